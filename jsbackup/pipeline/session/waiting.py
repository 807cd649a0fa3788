"""Wait for Spark for a bounded time: for its start on a cluster, and for its first executor.

Spark itself waits without end where a cluster has no room, and only writes that to its log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from jsbackup.errors import JsBackupError
from jsbackup.pipeline.session.connect import is_remote
from jsbackup.pipeline.session.failures import SPARK_FAILURES, spark_errors

__all__ = ["AGAIN_SECONDS", "QUIET_SECONDS", "WAIT_SECONDS", "bounded_wait", "wait_for_executor"]

_log = logging.getLogger(__name__)

WAIT_SECONDS = 600.0
"""How long to wait by default: as long as another job on the same cluster may take."""

QUIET_SECONDS, AGAIN_SECONDS = 15.0, 60.0
"""When it is said that something is waited for, and how often again."""

# What is given up may only be about to start: try again.
_END_PAUSE_SECONDS = 0.5

_FAILURES = (*SPARK_FAILURES, JsBackupError)


@contextmanager
def bounded_wait(what: str, seconds: float, give_up: Callable[[], object], *, hint: str) -> Iterator[None]:
    """Let what is done inside take up to `seconds`. After that `give_up` is called, from another thread, which has to
    make it fail. `what` is waited for, such as `an executor of yarn`; it is logged after some seconds.

    Raises:
        JsBackupError: it took longer; or the error of what was done.
    """
    over, late = threading.Event(), threading.Event()

    def watch() -> None:
        waited, pause = 0.0, QUIET_SECONDS
        while not over.wait(min(pause, seconds - waited)):
            waited += min(pause, seconds - waited)
            if waited >= seconds:
                break
            _log.warning("%s", f"waiting for {what}: {waited:.0f} s, at most {seconds:.0f} s")
            pause = AGAIN_SECONDS
        while not over.wait(_END_PAUSE_SECONDS if late.is_set() else 0):
            late.set()
            with suppress(*_FAILURES):
                give_up()

    watcher = threading.Thread(target=watch, name="jsbackup-waiting", daemon=True)
    watcher.start()
    try:
        yield
    except _FAILURES as error:
        if late.is_set():
            raise JsBackupError(f"waited {seconds:.0f} s for {what}, in vain", hint=hint) from error
        raise
    finally:
        over.set()
        watcher.join()


def wait_for_executor(session: SparkSession, master: str, seconds: float) -> None:
    """Wait until an executor of a cluster has done a small job, which also makes it start one where they are started
    when they are needed.

    Raises:
        JsBackupError: there is none after `seconds`, or the job fails.
    """
    give_up = session.interruptAll if is_remote(session) else session.sparkContext.cancelAllJobs
    asked = ""
    if not is_remote(session):
        conf = session.sparkContext.getConf()
        asked = f" of {conf.get('spark.executor.memory', '1g')}"
        if cores := conf.get("spark.executor.cores"):
            asked += f" and {cores} cores"
    hint = (
        f"The cluster may have no room for one{asked}. --spark-wait waits longer; --spark-conf "
        "spark.executor.memory=SIZE and spark.executor.cores=N ask for less."
    )
    with (
        bounded_wait(f"an executor of {master}", seconds, give_up, hint=hint),
        spark_errors(f"the first job at {master}"),
    ):
        session.range(0, 1, 1, 1).collect()
