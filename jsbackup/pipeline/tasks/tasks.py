"""Run tasks on Spark: small values that say what to do, and return small results.

A task reads and writes itself (that is faster than sending messages through Spark), may run more than once, and returns
what the driver needs. Our errors are returned and raised here; other errors fail the attempt, and Spark retries.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from pyspark.sql import SparkSession

from jsbackup.errors import JsBackupError
from jsbackup.pipeline.session.connect import is_remote, watched_remote
from jsbackup.pipeline.session.failures import SPARK_FAILURES, spark_errors
from jsbackup.pipeline.tasks.task_reader import task_reader
from jsbackup.progress import NullProgress, Progress

__all__ = ["OnSpark", "watched"]

T = TypeVar("T")

# Tasks of one job: their arguments pass through the driver as one text.
_MOST_TASKS = 4096

_LOOK_SECONDS = 0.3
_LAST_PART = 20  # one in so many
_GROUP = "spark.jobGroup.id"
_groups = count(1)


@dataclass(frozen=True, slots=True)
class OnSpark:
    """Runs tasks on Spark, as a `TaskRunner`: yields results as soon as some thousand are done.

    Spark only reports how many tasks are done, so the progress goes by weights.
    """

    session: SparkSession

    @property
    def cores(self) -> int:
        """The cores of the present executors; 0 on Spark Connect, which does not say."""
        return 0 if is_remote(self.session) else self.session.sparkContext.defaultParallelism

    def run(
        self,
        doing: str,
        tasks: Sequence[Callable[[], T]],
        *,
        weights: Sequence[int] = (),
        progress: Progress | None = None,
    ) -> Iterator[T]:
        session = self.session
        weights = weights or [1] * len(tasks)
        for start in range(0, len(tasks), _MOST_TASKS):
            part = tasks[start : start + _MOST_TASKS]
            with watched(session, doing, sum(weights[start : start + _MOST_TASKS]), progress), spark_errors(doing):
                frame = task_reader(session, part).load()
                rows = frame.collect()
            results: dict[int, object] = {row.task: pickle.loads(row.result) for row in rows}
            for number in range(len(part)):
                result = results[number]
                if isinstance(result, JsBackupError):
                    raise result
                yield result  # type: ignore[misc]  # whatever the task returned


@contextmanager
def watched(session: SparkSession, name: str, total_bytes: int, progress: Progress | None) -> Iterator[None]:
    """Report the progress of the jobs that are run inside to `progress`, from Spark's status.

    Spark plans later stages when earlier ones are done, so all that is known may be done long before the end: until
    then, the last part is held back.
    """
    if progress is None or isinstance(progress, NullProgress):
        yield
        return
    held = _HeldBack(progress, total_bytes)
    with _watched(session, name, total_bytes, held):
        yield
        held.complete(name)


class _HeldBack(NullProgress):
    """Passes progress on, but for the last part, which `complete` adds."""

    def __init__(self, progress: Progress, total_bytes: int) -> None:
        self._progress = progress
        self._left, self._rest = total_bytes - total_bytes // _LAST_PART, total_bytes // _LAST_PART
        self._lock = threading.Lock()

    def start(self, name: str, total_bytes: int, total_messages: int) -> None:
        self._progress.start(name, total_bytes, total_messages)

    def advance(self, name: str, byte_count: int, messages: int) -> None:
        with self._lock:
            passed = min(byte_count, self._left)
            self._left -= passed
        if passed:
            self._progress.advance(name, passed, messages)

    def complete(self, name: str) -> None:
        with self._lock:
            passed, self._left, self._rest = self._left + self._rest, 0, 0
        self._progress.advance(name, passed, 0)

    def finish(self, name: str) -> None:
        self._progress.finish(name)


@contextmanager
def _watched(session: SparkSession, name: str, total_bytes: int, progress: Progress) -> Iterator[None]:
    if is_remote(session):
        with watched_remote(session, name, total_bytes, progress):
            yield
        return
    context = session.sparkContext
    group = f"jsbackup-{next(_groups)}"
    before = context.getLocalProperty(_GROUP)
    context.setLocalProperty(_GROUP, group)
    over = threading.Event()
    watcher = threading.Thread(
        target=_watch,
        args=(session, group, name, total_bytes),
        kwargs={"progress": progress, "over": over},
        daemon=True,
    )
    progress.start(name, total_bytes, 0)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        context.setLocalProperty(_GROUP, before)  # type: ignore[arg-type]  # None: there was none
        progress.finish(name)


def _watch(
    session: SparkSession, group: str, name: str, total_bytes: int, *, progress: Progress, over: threading.Event
) -> None:
    tracker = session.sparkContext.statusTracker()
    reported = 0
    while not over.wait(_LOOK_SECONDS):
        # A session that is being stopped may raise various errors, which do not matter here.
        with suppress(*SPARK_FAILURES):
            done = tasks = 0
            for job in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job)
                stages = [tracker.getStageInfo(stage) for stage in info.stageIds] if info else []
                done += sum(stage.numCompletedTasks for stage in stages if stage)
                tasks += sum(stage.numTasks for stage in stages if stage)
            reached = total_bytes * done // tasks if tasks else 0
            if reached > reported:
                progress.advance(name, reached - reported, 0)
                reported = reached
