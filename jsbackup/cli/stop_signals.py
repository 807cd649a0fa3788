"""The signals that end a command: those of Ctrl-C and SIGTERM that it was not started to ignore.

A shell without job control starts `command &` with Ctrl-C ignored, because that is meant for the command in front.
"""

from __future__ import annotations

import signal

__all__ = ["stop_signals"]


def stop_signals() -> tuple[signal.Signals, ...]:
    both = (signal.SIGINT, signal.SIGTERM)
    return tuple(number for number in both if signal.getsignal(number) is not signal.SIG_IGN)
