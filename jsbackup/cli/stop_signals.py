"""The signals that end a command: those of Ctrl-C and SIGTERM that it was not started to ignore.

A shell without job control starts `command &` with Ctrl-C ignored, because that is meant for the command in front.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

__all__ = ["closing_undisturbed", "stop_signals"]

_DEFAULTS = (signal.SIG_IGN, signal.SIG_DFL)


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return them; also that of a closed terminal, where it is handled (`closing_undisturbed`)."""
    both = (signal.SIGINT, signal.SIGTERM)
    found = [number for number in both if signal.getsignal(number) is not signal.SIG_IGN]
    if signal.getsignal(signal.SIGHUP) not in _DEFAULTS:
        found.append(signal.SIGHUP)
    return tuple(found)


@contextmanager
def closing_undisturbed() -> Iterator[ExitStack]:
    """A stack for what must be closed, such as a server with a copy of the data: a second Ctrl-C does not stop that.

    Meanwhile a closed terminal ends the command as SIGTERM does.
    """
    hangup = signal.getsignal(signal.SIGHUP)
    stack = ExitStack()
    if hangup is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))
    try:
        yield stack
    finally:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in stop_signals()}
        try:
            stack.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.signal(signal.SIGHUP, hangup)
