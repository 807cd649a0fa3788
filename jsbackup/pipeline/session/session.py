"""The Spark session for jobs: our own, embedded or on a cluster, or the caller's.

An existing session (in a notebook, in a caller's program) is used unchanged and never stopped. Otherwise one is started
for the given URL, or opened on a Spark Connect server, and stopped at the end.

What Java prints goes to a file in a temporary folder, from which a line is shown if Spark does not start.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import socketserver
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from jsbackup.config import environment, environment_with
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.pipeline.messages.source import BackupSource
from jsbackup.pipeline.session.connect import is_remote, open_remote, ship
from jsbackup.pipeline.session.data_sources import register
from jsbackup.pipeline.session.failures import SPARK_FAILURES
from jsbackup.pipeline.session.java import find_java, wrap_java
from jsbackup.pipeline.session.package_upload import ARCHIVE_FOLDER, pack_package

__all__ = ["SparkSettings", "attach", "check_url", "open_session"]

_log = logging.getLogger(__name__)

_LOCAL = re.compile(r"local(?:\[(\*|[1-9]\d{0,3})(?:, ?\d+)?\])?")
_CLUSTER = re.compile(r"(spark|k8s)://.+|yarn")
_CONNECT_SECONDS = 10
_LOOK_SECONDS = 1.0
_SAY_SECONDS = 15.0  # when it is said that an executor is waited for
_LOG_TAIL_BYTES = 4000

# What the path of a Unix socket may have, less the names that Spark makes (`daemon.py` of pyspark): a dot, a UUID and
# `.sock`.
_SOCKET_FOLDER_BYTES = (103 if sys.platform == "darwin" else 107) - len("/.00000000-0000-0000-0000-000000000000.sock")

# Beside the heap, in MiB: what Java itself needs (Spark's own least overhead), and each Python worker, one for a core,
# which was measured to take 200 to 300. YARN and Kubernetes end containers that take more than they asked for.
_JAVA_MIB, _WORKER_MIB = 384, 384


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where to run: `local`, `local[N]`, a master (`spark://…`, `yarn`, `k8s://…`) or a Spark Connect server (`sc://…`),
    with settings of Spark that override ours.

    `wait_seconds` is how long a job may wait for an executor of a cluster.
    """

    url: str = "local"
    conf: Mapping[str, str] = field(default_factory=dict)
    wait_seconds: float = 600.0


def check_url(url: str) -> None:
    """Raise UsageError if this is no place of Spark."""
    if not (_LOCAL.fullmatch(url) or _CLUSTER.fullmatch(url) or url.startswith("sc://")):
        raise UsageError(
            f"not a place of Spark: {url[:200]!r}",
            hint="Write local, local[N], spark://host:7077, yarn, k8s://https://host or sc://host:15002.",
        )


@contextmanager
def open_session(settings: SparkSettings) -> Iterator[SparkSession]:
    """Use the session of this process if there is one, otherwise start one with `settings`.

    Raises:
        UsageError: the URL is not valid.
        UnsupportedError: there is no Java for it, or no client of Spark Connect.
        JsBackupError: Spark does not start, or the server does not answer.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield attach(active)
        return
    if settings.url.startswith("sc://"):
        with open_remote(settings.url, settings.conf) as session:
            yield attach(session)
        return
    master = _master(settings.url)
    java = find_java(environment())
    socketserver.BaseServer.handle_error = _log_error  # type: ignore[method-assign,assignment]
    with tempfile.TemporaryDirectory(prefix="jsbackup-spark-", ignore_cleanup_errors=True) as folder:
        session = _start(master, settings, java, Path(folder))
        is_local = master.startswith("local")
        try:
            with nullcontext() if is_local else _ended_without_executors(session, master, settings.wait_seconds):
                yield attach(session)
        finally:
            with suppress(*SPARK_FAILURES):  # its Java may have ended already
                session.stop()


def _log_error(*_: object) -> None:
    """Log an error of PySpark's own server, which would print a traceback if Java ends first, as after Ctrl-C."""
    _log.debug("a connection of Spark ended early", exc_info=True)


def attach(session: SparkSession) -> SparkSession:
    """Return the session, ready for our jobs. May be called repeatedly.

    A Spark Connect server is sent jsbackup. It cannot find the data source by itself, as other Sparks do.
    """
    if is_remote(session):
        ship(session)
        register(session, BackupSource)
    return session


def _master(url: str) -> str:
    """Return the master for Spark. A local one gets retries, which plain `local[N]` does not have."""
    check_url(url)
    if local := _LOCAL.fullmatch(url):
        cores = local[1] or "*"
        return f"local[{os.cpu_count() or 1 if cores == '*' else cores},4]"
    if url.startswith("spark://"):
        _reach(url)
    return url


def _reach(master: str) -> None:
    """Check that a master answers: Spark would try for a minute and a half before it fails."""
    hosts = [part.rpartition(":") for part in master.removeprefix("spark://").split(",")]
    if not all(host and port.isdigit() for host, _, port in hosts):
        raise UsageError(f"not a Spark master: {master[:200]!r}", hint="Write it as spark://host:7077.")
    for host, _, port in hosts:
        with suppress(OSError, OverflowError):
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
            return
    raise JsBackupError(f"no Spark master answers at {master}", hint="Check the address, and that it is running.")


def _start(master: str, settings: SparkSettings, java: Path, folder: Path) -> SparkSession:
    _log.info("starting Spark at %s, with Java of %s", master, java)
    log = folder / "java.log"
    builder = SparkSession.builder.master(master).appName("jsbackup")
    for name, value in {**_settings(master, folder, settings.conf), **settings.conf}.items():
        builder = builder.config(name, value)
    variables = {
        "JAVA_HOME": str(wrap_java(java, folder / "java", log)),
        "PYSPARK_PYTHON": settings.conf.get("spark.pyspark.python", sys.executable),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    try:
        with environment_with(variables):
            return builder.getOrCreate()
    except SPARK_FAILURES as error:
        said = _tail(log) or " ".join(str(error).split())[:400]
        raise JsBackupError(f"Spark does not start: {said}") from error


def _settings(master: str, folder: Path, conf: Mapping[str, str]) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.speculation": "false",
        # Otherwise PySpark imports IPython, if it is there, and tells Java the place of each call.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        # With Unix sockets a Python task takes 8 ms instead of 54. Executors may have paths that are too long for them.
        "spark.python.unix.domain.socket.enabled": "false",
        "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|credential|nkey|seed|creds|jwt|passphrase",
    }
    if master.startswith("local"):
        if len(os.fsencode(folder)) <= _SOCKET_FOLDER_BYTES:
            settings["spark.python.unix.domain.socket.enabled"] = "true"
            settings["spark.python.unix.domain.socket.dir"] = str(folder)
        return settings | {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "2g",
            # Java leaves its temporary files if it is killed; these are removed with the folder.
            "spark.local.dir": str(folder / "local"),
            # 200 by default: a group-by of a few rows takes 1.3 s instead of 0.3.
            "spark.sql.shuffle.partitions": str(max(4, 2 * (os.cpu_count() or 1))),
        }
    settings |= {"spark.archives": pack_package(folder), "spark.executorEnv.PYTHONPATH": ARCHIVE_FOLDER}
    if re.match(r"spark://(127\.|localhost\b|\[::1\])", master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if master == "yarn" or master.startswith("k8s://"):
        cores = conf.get("spark.executor.cores", "1").strip()
        workers = int(cores) if cores.isascii() and cores.isdecimal() else 1
        settings["spark.executor.memoryOverhead"] = f"{_JAVA_MIB + max(1, workers) * _WORKER_MIB}m"
    return settings


@contextmanager
def _ended_without_executors(session: SparkSession, master: str, seconds: float) -> Iterator[None]:
    """Let jobs that are run inside fail with ExecutorsLost when they have waited `seconds` for an executor: Spark would
    wait without end where a cluster has no room, or all executors are lost. The wait is logged after some seconds.
    """
    over = threading.Event()
    context = session.sparkContext

    def watch() -> None:
        tracker, waited, said = context.statusTracker(), 0.0, False
        while not over.wait(_LOOK_SECONDS):
            # A session that is being stopped may raise various errors, which do not matter here.
            with suppress(*SPARK_FAILURES):
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                idle = bool(tracker.getActiveJobsIds()) and not any(stage and stage.numActiveTasks for stage in stages)
                waited = waited + _LOOK_SECONDS if idle else 0.0
                if waited >= seconds:
                    context.cancelAllJobs()  # `failures.py` knows it
                elif idle and waited >= _SAY_SECONDS and not said:
                    said = True
                    _log.warning("%s", f"waiting for an executor of {master}, at most {seconds:.0f} s")

    watcher = threading.Thread(target=watch, name="jsbackup-executors", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _tail(log: Path) -> str:
    """Return the last error line of a Java that did not start."""
    with suppress(OSError):
        lines = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").splitlines()
        errors = [line.strip() for line in lines if re.search(r"Exception|Error|error", line)]
        return " ".join((errors or lines)[-1].split())[:400] if lines else ""
    return ""
