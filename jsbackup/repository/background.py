"""Work in other threads: many small tasks that mostly wait for a store, and tasks that run one after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from threading import get_ident
from typing import TypeVar

__all__ = ["Aftermath", "QueuedTask", "in_order"]

T = TypeVar("T")


def in_order(tasks: Iterable[Callable[[], T]], threads: int, ahead_most: int = 0) -> Generator[T, None, None]:
    """Run the tasks in this many threads, at most so many ahead of what was asked for (by default two for each thread),
    and yield their results in order.

    An exception of a task is raised in its place. Tasks that have not begun are then dropped; those that are running
    are waited for, except on Ctrl-C, where a store that hangs would keep the process alive. One that is given up, and
    that the garbage collector finds in a thread of its own, cannot wait for that thread.
    """
    tasks = iter(tasks)
    first = next(tasks, None)
    second = next(tasks, None)
    if first is None:
        return
    if second is None:  # a thread would cost more than it could do beside
        yield first()
        return
    own: set[int] = set()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="tasks", initializer=lambda: own.add(get_ident()))
    ahead: deque[Future[T]] = deque()
    wait = True
    try:
        for task in chain((first, second), tasks):
            ahead.append(pool.submit(task))
            if len(ahead) > (ahead_most or 2 * threads):
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    except KeyboardInterrupt:
        wait = False
        raise
    finally:
        pool.shutdown(wait and get_ident() not in own, cancel_futures=True)


class QueuedTask:
    """A task that was given to an `Aftermath`."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def wait(self) -> None:
        """Wait until it is done, or will not be done."""
        with suppress(CancelledError):  # cancelled by `close`; `wait` of the library would not return for it
            self._future.result()


class Aftermath:
    """Tasks that run one after another in one thread, while the caller goes on.

    Each task comes with the number of bytes that it holds. At most `limit_bytes` of them wait (or one task). After a
    task has raised, no other runs, and every call raises the same exception.
    """

    def __init__(self, limit_bytes: int, thread_name: str = "aftermath") -> None:
        self.limit_bytes = limit_bytes
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=thread_name)
        self._ahead: deque[tuple[QueuedTask, int]] = deque()
        self._ahead_bytes = 0
        self._error: BaseException | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes held by the tasks that are not known to be done."""
        return self._ahead_bytes

    def give(self, task: Callable[[], None], size: int = 0) -> QueuedTask:
        """Run `task`, which holds `size` bytes. Waits while the queue is full."""
        while self._ahead and (self._ahead[0][0].is_done or self._ahead_bytes + size > self.limit_bytes):
            self._finish_one()
        self.check()
        turn = QueuedTask(self._pool.submit(self._do, task))
        self._ahead.append((turn, size))
        self._ahead_bytes += size
        return turn

    def wait(self) -> None:
        """Wait until all tasks are done."""
        while self._ahead:
            self._finish_one()
        self.check()

    def close(self) -> None:
        """Drop the tasks that have not begun. Does not wait for the running one: a store that hangs would keep the
        process alive.
        """
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._ahead.clear()
        self._ahead_bytes = 0

    def settle(self) -> None:
        """Close, and wait for the running task."""
        self.close()
        self._pool.shutdown()

    def _finish_one(self) -> None:
        turn, size = self._ahead.popleft()
        turn.wait()
        self._ahead_bytes -= size

    def check(self) -> None:
        """Raise what a task has raised."""
        if self._error is not None:
            raise self._error

    def _do(self, task: Callable[[], None]) -> None:
        if self._error is None:
            try:
                task()
            except BaseException as error:  # noqa: BLE001
                # Noted before the task counts as done: who waits for it may go on before a callback of it runs.
                self._error = error
