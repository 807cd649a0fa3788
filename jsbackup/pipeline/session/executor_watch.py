"""End jobs of a cluster that has lost all of its executors.

Spark waits without end for others. A cluster that releases executors when they are idle has none between jobs, too: so
only time counts in which some job waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from jsbackup.errors import ExecutorsLost
from jsbackup.pipeline.session.failures import SPARK_FAILURES
from jsbackup.pipeline.session.waiting import AGAIN_SECONDS, QUIET_SECONDS

__all__ = ["ended_without_executors"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0


@contextmanager
def ended_without_executors(session: SparkSession, master: str, seconds: float) -> Iterator[None]:
    """Let jobs that are run inside fail with ExecutorsLost, when they have waited `seconds` for an executor while there
    is none. The wait is logged after some seconds. All later jobs fail, too, unless an executor comes.
    """
    over = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(session, master, seconds, over), name="jsbackup-executors", daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(session: SparkSession, master: str, seconds: float, over: threading.Event) -> None:
    context = session.sparkContext
    scala, tracker = context._jsc.sc(), context.statusTracker()
    waited, said, looked = 0.0, QUIET_SECONDS, time.monotonic()
    while not over.wait(_LOOK_SECONDS):
        passed, looked = time.monotonic() - looked, time.monotonic()
        # A session that is being stopped may raise various errors, which do not matter here.
        with suppress(*SPARK_FAILURES):
            if scala.getExecutorIds().size():
                waited, said = 0.0, QUIET_SECONDS
                continue
            jobs = tracker.getActiveJobsIds()
            if not jobs:
                continue
            waited += passed
            if waited >= seconds:
                lost = f"all executors of {master} were lost, and none came back within {seconds:.0f} s"
                for job in jobs:
                    # `failures.py` finds the line in what Spark makes of it.
                    scala.cancelJob(job, f"\njsbackup.errors.{ExecutorsLost.__name__}: {lost}\n")
            elif waited >= said:
                _log.warning(
                    "%s",
                    f"waiting for an executor of {master}: all are lost, for {waited:.0f} s; at most {seconds:.0f} s",
                )
                said = waited + AGAIN_SECONDS
