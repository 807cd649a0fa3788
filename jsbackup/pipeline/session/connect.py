"""Sessions on a Spark Connect server: this process is a client, and needs no Java.

A session there has its own folder, in which its Python processes work; files that are sent are stored in it, archives
unpacked.
"""

from __future__ import annotations

import re
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from jsbackup.errors import JsBackupError, UnsupportedError, UsageError
from jsbackup.pipeline.session.failures import plain_message, spark_errors
from jsbackup.pipeline.session.package_upload import pack_package, pack_signpost
from jsbackup.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql.connect.shell.progress import StageInfo

__all__ = ["is_remote", "open_remote", "ship", "watched_remote"]

# What follows the address may contain a token, and is never shown.
_ADDRESS = re.compile(r"(sc://(?:\[([0-9a-fA-F:.]+)\]|([^\s:/;@\[\]]+))(?::(\d{1,5}))?)(?:/(?:;\S*)?)?")
_DEFAULT_PORT = 15002
_CONNECT_SECONDS = 10
_CLIENT = ("grpc", "grpc_status", "pandas", "zstandard")
_SETTINGS = {"spark.sql.session.timeZone": "UTC"}

_shipped: set[str] = set()


def is_remote(session: SparkSession) -> bool:
    """Return whether the session is on a Spark Connect server."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


@contextmanager
def open_remote(address: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Open a session on the server at `address`, `sc://host:port/;parameters`, and close it afterwards.

    Raises:
        UsageError: the address is not valid, or a setting cannot be given to a session.
        UnsupportedError: the client is not installed.
        JsBackupError: no server answers.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise UsageError("not the address of a Spark Connect server", hint="Write it as sc://host:15002.")
    if missing := [name for name in _CLIENT if find_spec(name) is None]:
        raise UnsupportedError(
            f"the client of Spark Connect is not installed: there is no {missing[0]}",
            hint="Install it with `pip install 'jsbackup[connect]'`.",
        )
    place, host = match[1], match[2] or match[3]
    try:
        socket.create_connection((host, int(match[4] or _DEFAULT_PORT)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError):
        raise JsBackupError(
            f"no Spark Connect server answers at {place}", hint="Check the address, and that it is running."
        ) from None
    with spark_errors(f"opening a session at {place}"):
        session = SparkSession.builder.remote(address).create()
    try:
        for name, value in {**_SETTINGS, **conf}.items():
            try:
                session.conf.set(name, value)
            except PySparkException as error:
                raise UsageError(f"a session cannot be given {name}: {plain_message(error)}") from error
        yield session
    except BaseException:
        with suppress(PySparkException):
            session.interruptAll()
        raise
    finally:
        session.stop()


def ship(session: SparkSession) -> None:
    """Send jsbackup to a session, once."""
    if session.session_id in _shipped:  # type: ignore[attr-defined]  # what only these have
        return
    folder = Path(tempfile.mkdtemp(prefix="jsbackup-spark-"))
    try:
        with spark_errors("sending jsbackup to the Spark Connect server"):
            session.addArtifacts(pack_package(folder), archive=True)
            session.addArtifacts(pack_signpost(folder), pyfile=True)
            # An executor unpacks archives when its first task arrives, and removes existing ones. In a server that is
            # its own executor that archive may be in use.
            session.range(1).collect()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _shipped.add(session.session_id)  # type: ignore[attr-defined]


@contextmanager
def watched_remote(session: SparkSession, name: str, total_bytes: int, progress: Progress) -> Iterator[None]:
    """Report the server's progress with what is run inside to `progress`."""
    reported = 0

    def report(stages: Iterable[StageInfo] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        nonlocal reported
        known = list(stages or ())
        tasks = sum(stage.num_tasks for stage in known)
        reached = total_bytes * sum(stage.num_completed_tasks for stage in known) // tasks if tasks else 0
        if reached > reported:
            progress.advance(name, reached - reported, 0)
            reported = reached

    progress.start(name, total_bytes, 0)
    session.registerProgressHandler(report)  # type: ignore[arg-type]  # it asks for a class where it calls a function
    try:
        yield
    finally:
        session.removeProgressHandler(report)  # type: ignore[arg-type]
        progress.finish(name)
