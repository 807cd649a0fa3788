"""Work in other threads: many small tasks that mostly wait for a store, and tasks that follow their giver."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

__all__ = ["Aftermath", "in_order"]

T = TypeVar("T")


def in_order(tasks: Iterable[Callable[[], T]], threads: int) -> Generator[T, None, None]:
    """Run the tasks in so many threads, a few ahead of what has been asked for, and give their results in order.

    What a task raises is raised in its place; those that have not begun are not begun any more, those that have are
    waited for. Not so on Ctrl-C: a store that hangs would have the last word.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="tasks")
    ahead: deque[Future[T]] = deque()
    wait = True
    try:
        for task in tasks:
            ahead.append(pool.submit(task))
            if len(ahead) > 2 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    except KeyboardInterrupt:
        wait = False
        raise
    finally:
        pool.shutdown(wait, cancel_futures=True)


class Aftermath:
    """Tasks done one after the other in one thread, while their giver goes on to the next.

    What tasks hold in memory is given with them, and at most `limit_bytes` of it waits (or one task). After a task that
    raised nothing more is done, and every call raises what it did.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="aftermath")
        self._ahead: deque[tuple[Future[None], int]] = deque()
        self._ahead_bytes = 0
        self._error: BaseException | None = None

    @property
    def held_bytes(self) -> int:
        """What the tasks hold that are not known to be done."""
        return self._ahead_bytes

    def give(self, task: Callable[[], None], size: int = 0) -> None:
        """Have `task` done, which holds `size` bytes. Waits while there is enough to do."""
        while self._ahead and (self._ahead[0][0].done() or self._ahead_bytes + size > self._limit_bytes):
            self._finish_one()
        self._raise()
        done = self._pool.submit(self._do, task)
        # In its thread, before the next one.
        done.add_done_callback(self._note_error)
        self._ahead.append((done, size))
        self._ahead_bytes += size

    def wait(self) -> None:
        """Until all is done."""
        while self._ahead:
            self._finish_one()
        self._raise()

    def close(self) -> None:
        """Drop what has not begun. Does not wait for the task that has: a store that hangs would have the last word."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._ahead.clear()
        self._ahead_bytes = 0

    def settle(self) -> None:
        """Close, and wait for the task that has begun after all."""
        self.close()
        self._pool.shutdown()

    def _finish_one(self) -> None:
        done, size = self._ahead.popleft()
        with suppress(CancelledError):  # by `close`, of which `wait` of the library would not hear
            done.exception()
        self._ahead_bytes -= size

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _do(self, task: Callable[[], None]) -> None:
        if self._error is None:
            task()

    def _note_error(self, done: Future[None]) -> None:
        if not done.cancelled():
            self._error = self._error or done.exception()
