"""How Ctrl-C and SIGTERM end a command, also in its event loop: cleanly, but not for long.

An interrupted command cleans up, which takes a moment if store and server answer. If they do not, it is forced to end
after some seconds, and threads that wait for a store are abandoned: that leaves the same as a kill, which everything is
designed for.

A shell without job control starts `command &` with Ctrl-C ignored, because that is meant for the command in front: a
signal that a command was started to ignore does not end it.

asyncio and its threads are imported when a loop runs: all commands load this module, also `--version`.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, TypeVar

from jsbackup.cli.parsing.context import INTERRUPTED
from jsbackup.errors import Interrupted, JsBackupError

__all__ = ["closing_undisturbed", "exempt_from_collection", "run_loop", "stop_signals"]

T = TypeVar("T")

_DEFAULTS = (signal.SIG_IGN, signal.SIG_DFL)


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return them; also that of a closed terminal, where it is handled (`closing_undisturbed`)."""
    both = (signal.SIGINT, signal.SIGTERM)
    numbers = [number for number in both if signal.getsignal(number) is not signal.SIG_IGN]
    if signal.getsignal(signal.SIGHUP) not in _DEFAULTS:
        numbers.append(signal.SIGHUP)
    return tuple(numbers)


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


# --- the event loop ---

# Python's own thresholds, which `main` had raised: from now on garbage may hold buffers. But the last is ten times its
# own: with 10,000 streams, to look through everything so often took a quarter of the time of `follow`.
_THRESHOLDS = (700, 10, 100)
_GRACE_SECONDS = 5.0
_PRESS_SECONDS = 0.5


def exempt_from_collection() -> None:
    """Let the garbage collector pass over all objects that there are. For a command that runs for days with many: to
    look through 10,000 streams takes a tenth of a second each time.
    """
    gc.collect()
    gc.freeze()


def run_loop(work: Coroutine[Any, Any, T], ask: Callable[[], None] | None = None) -> T:
    """Run a command's work. Raises Interrupted after Ctrl-C or SIGTERM; the process should then end with `os._exit`.

    With `ask` the first signal calls it, for work that can end by itself, and only the second one interrupts.
    """
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from jsbackup.api.worker import raise_first

    class Threads(ThreadPoolExecutor):
        """The loop's threads for looking up names; abandoned ones are not waited for."""

        left = False

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait and not self.left, cancel_futures=cancel_futures or self.left)

    asking = [ask] if ask is not None else []
    early: list[int] = []
    signals = stop_signals()

    def note(number: int, _frame: FrameType | None) -> None:
        early.append(number)

    async def guarded() -> T:
        loop = asyncio.get_running_loop()
        guard = asyncio.current_task()
        threads = Threads()
        loop.set_default_executor(threads)
        task = asyncio.ensure_future(work)

        def stop() -> None:
            if asking:
                asking.pop()()
                return
            task.cancel()
            if not threads.left:
                threads.left = True
                loop.call_later(_GRACE_SECONDS, press)

        def press() -> None:
            for other in asyncio.all_tasks():
                if other is not guard:
                    other.cancel()
            loop.call_later(_PRESS_SECONDS, press)

        for number in signals:
            loop.add_signal_handler(number, stop)
        if early:
            stop()
        try:
            return await task
        except asyncio.CancelledError:
            if threads.left:
                raise Interrupted(INTERRUPTED) from None
            raise
        except (JsBackupError, BaseExceptionGroup) as error:
            if threads.left:  # it failed during its clean-up
                raise Interrupted(INTERRUPTED) from error
            if isinstance(error, BaseExceptionGroup):
                raise_first(error)
            raise
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
                signal.signal(number, note)

    # Imported objects stay, and are excluded from collection.
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    # An exception while a loop is created or closed would break it.
    before = {number: signal.signal(number, note) for number in signals}
    try:
        return asyncio.run(guarded())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        work.close()  # if it is interrupted before it begins, Python would warn that it was never awaited
