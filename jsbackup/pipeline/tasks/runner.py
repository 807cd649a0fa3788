"""Run tasks: small values that say what to do, read and write themselves, and return small results.

Spark runs them on executors (`tasks.py`). Without Spark they run here, in threads of this process: with the same
results, because the tasks are the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Protocol, TypeVar

from jsbackup.memory import give_back
from jsbackup.progress import NullProgress, Progress
from jsbackup.repository.background import in_order

__all__ = ["THREADS", "InProcess", "TaskRunner"]

T = TypeVar("T")

# A thread holds about 100 MiB: an object, its messages, and what is made of them.
THREADS = min(2, os.cpu_count() or 1)


class TaskRunner(Protocol):
    """Runs the tasks of a job."""

    @property
    def cores(self) -> int:
        """How many tasks it runs at the same time; 0 if that is not known."""

    def run(
        self,
        doing: str,
        tasks: Sequence[Callable[[], T]],
        *,
        weights: Sequence[int] = (),
        progress: Progress | None = None,
    ) -> Iterator[T]:
        """Run all tasks and yield their results in order.

        `doing` says what failed in errors. `weights` are the raw bytes of the tasks, for `progress`.

        Raises:
            JsBackupError: the error of a task, or of what runs it.
        """


class InProcess:
    """Runs tasks in `threads` threads of this process. Each thread holds what one task does."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    @property
    def cores(self) -> int:
        return self._threads

    def run(
        self,
        doing: str,
        tasks: Sequence[Callable[[], T]],
        *,
        weights: Sequence[int] = (),
        progress: Progress | None = None,
    ) -> Iterator[T]:
        progress = progress or NullProgress()
        weights = weights or [1] * len(tasks)
        progress.start(doing, sum(weights), 0)
        try:
            with closing(in_order((partial(_done, task) for task in tasks), self._threads)) as results:
                for weight, result in zip(weights, results, strict=True):
                    progress.advance(doing, weight, 0)
                    yield result
        finally:
            progress.finish(doing)


def _done(task: Callable[[], T]) -> T:
    result = task()
    give_back()
    return result
