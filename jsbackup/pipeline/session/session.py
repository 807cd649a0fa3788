"""The Spark session for jobs: our own, embedded or on a cluster, or the caller's.

An existing session (in a notebook, in a caller's program) is used unchanged and never stopped. Otherwise one is started
for the given master, or on a Spark Connect server, and stopped at the end.

Nothing of Spark reaches the terminal: Java writes to a file in a temporary folder, from which a line is shown if it
does not start. Settings for speed were measured (pyspark 4.3, 2 cores, Java 17).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from jsbackup.config import environment, environment_with
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.pipeline.messages.source import BackupSource
from jsbackup.pipeline.session.class_archive import ClassArchive, find_class_archive
from jsbackup.pipeline.session.connect import is_remote, open_remote, ship, shown_address
from jsbackup.pipeline.session.data_sources import register
from jsbackup.pipeline.session.embedded_java import java_settings, may_use_archive
from jsbackup.pipeline.session.executor_watch import ended_without_executors
from jsbackup.pipeline.session.failures import SPARK_FAILURES
from jsbackup.pipeline.session.java import find_java, wrap_java
from jsbackup.pipeline.session.package_upload import ARCHIVE_FOLDER, pack_package
from jsbackup.pipeline.session.spark_work import WARM_UP, SparkWork, measured
from jsbackup.pipeline.session.waiting import WAIT_SECONDS, bounded_wait, wait_for_executor
from jsbackup.pipeline.session.worker_settings import memory_settings, socket_settings

__all__ = ["DEFAULT_MASTER", "SparkSettings", "attach", "load_classes", "open_session"]

_log = logging.getLogger(__name__)

DEFAULT_MASTER = "local[*]"

_LOCAL = re.compile(r"local(?:\[(\*|[1-9]\d{0,3})(?:, ?\d+)?\])?")
_CLUSTER = re.compile(r"(spark|k8s)://.+|yarn")
_CONNECT_SECONDS = 10
_WARM_UP_SECONDS = 10
# What Java itself takes to start on a busy machine, beside what is waited for.
_JAVA_SECONDS = 45
_LOG_TAIL_BYTES = 4000


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where to run, and Spark settings that override ours. `remote` is the address of a Spark Connect server. With
    `is_short` our own Java, embedded or the driver of a cluster, should not spend time on faster machine code: the job
    takes seconds, not minutes, or executors do the work.

    `wait_seconds` is how long a cluster may take to start, again to start its first executor, and again to start
    another one when all are lost. `report` gets what executors have done for all jobs, or None if that is not known.
    """

    master: str = DEFAULT_MASTER
    conf: Mapping[str, str] = field(default_factory=dict)
    remote: str | None = None
    is_short: bool = False
    wait_seconds: float = WAIT_SECONDS
    report: Callable[[SparkWork | None], object] | None = field(default=None, compare=False)


@contextmanager
def open_session(settings: SparkSettings) -> Iterator[SparkSession]:
    """Use the session of this process if there is one, otherwise start one with `settings`.

    Raises:
        UsageError: the master or the address is not valid.
        UnsupportedError: there is no Java for it, or no client of Spark Connect.
        JsBackupError: Spark does not start, the server does not answer, or the cluster has no room for an executor.
    """
    with _opened(settings) as session, measured(session, settings.report):
        yield session


@contextmanager
def _opened(settings: SparkSettings) -> Iterator[SparkSession]:
    active = SparkSession.getActiveSession()
    if active is not None:
        yield attach(active)
        return
    if settings.remote is not None:
        with open_remote(settings.remote, settings.conf) as session:
            wait_for_executor(session, shown_address(settings.remote), settings.wait_seconds)
            yield attach(session)
        return
    master = _master(settings.master)
    java = find_java(environment())
    folder = Path(tempfile.mkdtemp(prefix="jsbackup-spark-"))
    try:
        importing = threading.Thread(target=_import, name="jsbackup-import")
        importing.start()
        session, archive = _start(master, settings, java, folder)
        importing.join()
        try:
            if master.startswith("local"):
                with _warmed_up(session) if settings.is_short else nullcontext():
                    yield attach(session)
            else:
                wait_for_executor(session, master, settings.wait_seconds)
                with ended_without_executors(session, master, settings.wait_seconds):
                    yield attach(session)
            if archive is not None and archive.new is not None:
                load_classes(session, folder / "example")
                archive.keep()
        finally:
            _stop(session)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def attach(session: SparkSession) -> SparkSession:
    """Return the session, ready for our jobs. May be called repeatedly.

    A Spark Connect server is sent jsbackup. It cannot find the data source by itself, as other Sparks do.
    """
    if is_remote(session):
        ship(session)
        register(session, BackupSource)
    return session


def _master(text: str) -> str:
    """Return the master for Spark. A local one gets retries, which plain `local[N]` does not have."""
    if local := _LOCAL.fullmatch(text):
        cores = local[1] or "1"
        return f"local[{os.cpu_count() or 1 if cores == '*' else cores},4]"
    if not _CLUSTER.fullmatch(text):
        raise UsageError(
            f"not a Spark master: {text[:200]!r}", hint="Write local[*], spark://host:7077, yarn or k8s://https://host."
        )
    if text.startswith("spark://"):
        _reach(text)
    return text


def _reach(master: str) -> None:
    """Check that a master answers: Spark would try for a minute and a half before it fails."""
    hosts = [part.rpartition(":") for part in master.removeprefix("spark://").split(",")]
    if not all(host and port.isdigit() for host, _, port in hosts):
        raise UsageError(f"not a Spark master: {master[:200]!r}", hint="Write it as spark://host:7077.")
    for host, _, port in hosts:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except (OSError, OverflowError):
            continue
        return
    raise JsBackupError(f"no Spark master answers at {master}", hint="Check the address, and that it is running.")


def _start(master: str, settings: SparkSettings, java: Path, folder: Path) -> tuple[SparkSession, ClassArchive | None]:
    """Start Spark; return also the archive of classes that its Java uses or makes."""
    conf = {
        **_settings(master, folder),
        **socket_settings(master, folder, settings.conf),
        **memory_settings(master, settings.conf),
        **settings.conf,
    }
    archive, environ = None, environment()
    conf |= java_settings(settings.conf, environ, is_short=settings.is_short)
    if may_use_archive(settings.conf, environ):
        # Not made for the driver of a cluster: it loads other classes than an embedded Spark does, and is killed if the
        # cluster does not answer.
        jars = Path(pyspark.__file__).parent / "jars"
        archive = find_class_archive(java, jars, environ, may_make=master.startswith("local"))
    _log.info("starting Spark at %s, with Java of %s", master, java)
    log = folder / "java.log"
    try:
        try:
            session = _launch(master, conf, wrap_java(java, folder / "java", log, archive), settings.wait_seconds)
        except SPARK_FAILURES:
            if archive is None or not archive.remove_if_refused(log):
                raise
            archive = None
            session = _launch(master, conf, wrap_java(java, folder / "java-again", log), settings.wait_seconds)
    except SPARK_FAILURES as error:
        said = _tail(log) or " ".join(str(error).split())[:400]
        raise JsBackupError(f"Spark does not start: {said}") from error
    if archive is not None:
        _log.info("Java %s its archive of classes, %s", "makes" if archive.new else "has", archive.path)
        if archive.remove_if_refused(log):
            _log.info("Java does without its archive of classes, which does not fit, and is made again")
    return session, archive


def _import() -> None:
    """Import what nearly all jobs need, and what PySpark imports when it talks to Java for the first time, with pandas
    if that is installed. That takes some tenths of a second, and Java a whole one to start.
    """
    for name in ("pyspark.testing.utils", "pyarrow.compute"):
        with suppress(ImportError):
            import_module(name)


@contextmanager
def _warmed_up(session: SparkSession) -> Iterator[None]:
    """Let Java run a first, small job while the real one is planned, which takes one core: the classes and the code
    that running a job needs are there then. That spares a short job some tenths of a second.
    """

    def run() -> None:
        with suppress(*SPARK_FAILURES):
            # Java's own calls: nothing is imported in two threads at once.
            session._jsparkSession.sparkContext().setJobDescription(WARM_UP)
            session._jsparkSession.range(0, 1, 1, 1).count()

    thread = threading.Thread(target=run, name="jsbackup-warm-up", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(_WARM_UP_SECONDS)


def load_classes(session: SparkSession, folder: Path) -> None:
    """Load the classes that most jobs use, so that an archive has them, whatever the job was that makes it."""
    with suppress(*SPARK_FAILURES):
        session.range(100).selectExpr("id AS sequence", "concat('a', id % 3) AS subject").write.parquet(str(folder))
        session.read.schema("sequence bigint, subject string").parquet(str(folder)).createOrReplaceTempView("example")
        counts = "SELECT subject, count(*) AS messages FROM example WHERE sequence > 5 GROUP BY subject"
        session.sql(f"{counts} ORDER BY messages DESC").limit(2).collect()
        session.catalog.dropTempView("example")


def _launch(master: str, conf: Mapping[str, str], home: Path, wait_seconds: float) -> SparkSession:
    builder = SparkSession.builder.master(master).appName("jsbackup")
    for name, value in conf.items():
        builder = builder.config(name, value)
    variables = {"JAVA_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if python := conf.get("spark.pyspark.python"):
        variables["PYSPARK_PYTHON"] = python
    # A cluster may have no room for the application: YARN then lets it wait.
    bound = (
        nullcontext()
        if master.startswith("local")
        else bounded_wait(
            f"Spark at {master}",
            wait_seconds + _JAVA_SECONDS,
            _end_java,
            hint="Look at the cluster, or set --spark-wait.",
        )
    )
    with bound, environment_with(variables):
        return builder.getOrCreate()


def _stop(session: SparkSession) -> None:
    """Stop the session. PySpark's server for accumulators looks every half a second whether it is to end, and is not
    waited for: Java, which talks to it, has ended its jobs.
    """
    context: Any = session.sparkContext
    server, context._accumulatorServer = context._accumulatorServer, None
    with suppress(*SPARK_FAILURES):  # its JVM may have ended already
        session.stop()
    if server is not None:
        threading.Thread(target=_end_accumulators, args=(server,), name="jsbackup-accumulators", daemon=True).start()


def _end_accumulators(server: Any) -> None:
    with suppress(OSError):  # the folder of its socket may be removed meanwhile
        server.shutdown()


def _end_java() -> None:
    """End the Java that is starting, and let a later session start another one."""
    gateway = SparkContext._gateway
    if gateway is not None:
        SparkContext._gateway = SparkContext._jvm = None
        gateway.proc.kill()


def _settings(master: str, folder: Path) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.speculation": "false",
        # Otherwise PySpark imports IPython, if it is there, and tells Java the place of each call.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
        "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|credential|nkey|seed|creds|jwt|passphrase",
    }
    if master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "2g",
            # Java leaves its temporary files if it is killed; these are removed with the folder.
            "spark.local.dir": str(folder / "local"),
            # 200 by default: a group-by of a few rows takes 1.3 s instead of 0.3.
            "spark.sql.shuffle.partitions": str(max(4, 2 * (os.cpu_count() or 1))),
        }
        return settings
    settings |= {"spark.archives": pack_package(folder), "spark.executorEnv.PYTHONPATH": ARCHIVE_FOLDER}
    if re.match(r"spark://(127\.|localhost\b|\[::1\])", master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings


def _tail(log: Path) -> str:
    """Return the last error line of a Java that did not start."""
    with suppress(OSError):
        lines = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").splitlines()
        errors = [line.strip() for line in lines if re.search(r"Exception|Error|error", line)]
        return " ".join((errors or lines)[-1].split())[:400] if lines else ""
    return ""
