"""Many small tasks that mostly wait for a store, some at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["in_order"]

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
