"""Run tasks that fail separately: each is a separate Spark job, started from a thread of the driver.

Within one job a task that Spark gives up, because its worker is killed repeatedly, makes all others fail.
"""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, TypeVar

from pyspark import TaskContext
from pyspark.sql import SparkSession

from jsbackup.errors import ExecutorsLost, JsBackupError
from jsbackup.pipeline.session.connect import is_remote
from jsbackup.pipeline.session.failures import SPARK_FAILURES, spark_errors
from jsbackup.pipeline.tasks.task_reader import task_reader

__all__ = ["is_repeated", "run_apart"]

I = TypeVar("I")  # noqa: E741
T = TypeVar("T")

# Spark starts more executors, if allowed, for jobs that wait for a core. Each start of a job briefly needs a Python
# process of the driver, which limits their number.
_JOBS_FOR_EACH_CORE = 2
_MOST_JOBS = 512

_END_ATTEMPTS, _END_PAUSE_SECONDS = 50, 0.2


def is_repeated() -> bool:
    """Return, in a task, whether an earlier attempt at it was lost."""
    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def run_apart(
    session: SparkSession,
    doing: str,
    parts: Sequence[Sequence[I]],
    make: Callable[[Sequence[I], bool], Callable[[], T]],
    *,
    take: Callable[[Sequence[I], T | JsBackupError], None],
    at_once: int = 0,
) -> None:
    """Run `make(part, again)` for each part, in this order, `at_once` of them (0: as many as Spark can).

    `take` is called with each part and its result, in this thread. If Spark gives up a part of several items, each of
    them is tried separately (`again`). If this is interrupted, or `take` raises, the jobs are cancelled.

    Raises:
        ExecutorsLost: the cluster has none any more. Parts that were done before have been taken.
    """
    jobs = (_RemoteJobs if is_remote(session) else _Jobs)(session, doing)
    waiting = deque((tuple(part), False) for part in parts)
    running: dict[Future[object], tuple[I, ...]] = {}
    threads = ThreadPoolExecutor(_MOST_JOBS, thread_name_prefix="jsbackup")
    try:
        while waiting or running:
            most = at_once or min(_MOST_JOBS, jobs.cores * _JOBS_FOR_EACH_CORE)
            while waiting and len(running) < most:
                part, again = waiting.popleft()
                running[threads.submit(jobs.run, make(part, again))] = part
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                part = running.pop(future)
                try:
                    result: Any = future.result()
                except ExecutorsLost:
                    raise
                except JsBackupError as given_up:
                    if len(part) > 1:
                        waiting.extend(((item,), True) for item in part)
                        continue
                    result = given_up
                take(part, result)
    except BaseException:
        _cancel(jobs, running)
        raise
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _cancel(jobs: _Jobs, running: Collection[Future[object]]) -> None:
    # Repeatedly: jobs that are still being planned are not cancelled.
    for _ in range(_END_ATTEMPTS):
        with suppress(*SPARK_FAILURES):
            jobs.cancel()
        if not wait(running, _END_PAUSE_SECONDS).not_done:
            break


class _Jobs:
    """The jobs of one run, in a job group of Spark. Measured, pyspark 4.3: `interruptTag` does not find them."""

    def __init__(self, session: SparkSession, doing: str) -> None:
        self.session = session
        self.doing = doing
        self.name = f"jsbackup-{os.urandom(8).hex()}"

    @property
    def cores(self) -> int:
        """The number of cores of the present executors."""
        return self.session.sparkContext.defaultParallelism

    def join(self) -> None:
        """Add the jobs that this thread starts from now on."""
        self.session.sparkContext.setJobGroup(self.name, self.doing, interruptOnCancel=True)

    def cancel(self) -> None:
        self.session.sparkContext.cancelJobGroup(self.name)

    def run(self, task: object) -> object:
        """Return the result of the task, or one of our errors that it raised. Raises the error for which Spark gave it
        up.
        """
        with spark_errors(self.doing):
            self.join()
            frame = task_reader(self.session, [task]).load()
            (row,) = frame.collect()
        return pickle.loads(row.result)


class _RemoteJobs(_Jobs):
    """Jobs on a Spark Connect server, which does not report its number of cores."""

    cores = 8

    def join(self) -> None:
        self.session.addTag(self.name)

    def cancel(self) -> None:
        self.session.interruptTag(self.name)
