"""Distributed backups: executors read streams from the server and store them, and the driver commits.

A task has one stream, or several small ones. It runs the same code as a backup on one machine, with its own connection,
and returns the entries of its streams for the manifest. Only the driver holds the lease, and writes the manifest when
all tasks have ended and it has checked what they stored. A stream that fails, or that Spark gives up, does not affect
others. A task may run more than once: the name of an object depends on its content, and unused objects are in no
manifest.

No secrets are sent: for keys and S3 see `repository_ref.py`, for the server `config/reference.py`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from jsbackup.config import ConnectionOptions, ConnectionReference, connection_reference, environment, source_connection
from jsbackup.engine.backup.backup import BackupReport, BegunBackup, Chosen, begin_backup, finish_backup
from jsbackup.engine.backup.options import BackupOptions
from jsbackup.engine.backup.run import BackupRun
from jsbackup.engine.backup.worker_share import StoredPart, back_up_part, complete
from jsbackup.engine.read.downstream import copies_first
from jsbackup.errors import JsBackupError, StoreError
from jsbackup.failure import Failure
from jsbackup.pipeline.session.lease import held_lease
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened_same
from jsbackup.pipeline.session.session import attach
from jsbackup.pipeline.tasks.packing import pack_tasks
from jsbackup.pipeline.tasks.separate_jobs import run_apart
from jsbackup.pipeline.tasks.tasks import OnSpark
from jsbackup.progress import NullProgress, Progress
from jsbackup.repository import layout
from jsbackup.repository.checks.verify import Level, verify_backup
from jsbackup.repository.manifest import Manifest, Result, StreamBackup
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["Executors", "back_up", "packed", "store_streams"]

_log = logging.getLogger(__name__)

# The cost of a stream besides its bytes, in bytes that could be moved in that time: requests, their answers, listings.
_EACH_BYTES = 1 << 20

_SHARED = "Executors and this machine have to see one repository, at the same place."


@dataclass(frozen=True, slots=True)
class Executors:
    """Where tasks run, and their common arguments. `at_once` is how many tasks may run, 0 as many as Spark can."""

    session: SparkSession
    place: RepositoryRef
    repository_id: str
    server: ConnectionReference
    at_once: int = 0


def back_up(
    session: SparkSession,
    place: RepositoryRef,
    server: ConnectionOptions,
    options: BackupOptions | None = None,
    *,
    progress: Progress | None = None,
    at_once: int = 0,
) -> BackupReport:
    """Back streams up into an existing repository. The report has no manifest if every stream failed.

    Raises:
        UsageError: a named stream does not exist, or a secret would have to be sent to executors.
        NatsError: the server does not answer, or with an error.
        KeyUnavailable: the repository needs a writer key, and none was given.
        RepositoryLocked, StoreError: nothing can be stored now, or the lease was lost.
    """
    attach(session)
    options, progress = options or BackupOptions(), progress or NullProgress()
    reference = connection_reference(server, environment())
    connection = source_connection(server, environment())
    repository = place.open()
    repository.documents.ensure_writable()
    executors = Executors(session, place, repository.descriptor.id, reference, at_once)
    with held_lease(repository, "backup") as lease:
        run = BackupRun(connection, repository, options, progress)
        begun = complete(begin_backup(run, lease))
        results, failures = store_streams(executors, run, begun)
        return finish_backup(run, begun, results, failures, lease=lease)


def store_streams(executors: Executors, run: BackupRun, begun: BegunBackup) -> tuple[list[StoredStream], list[Failure]]:
    """Read and store the streams of a backup; return results and failures in order of names.

    Raises errors of Spark itself.
    """
    results: list[StoredStream] = []
    failures: list[Failure] = []
    chosen = begun.chosen
    needed = replace(run.options, streams=(), exclude=(), tags={}, lock=None)
    infos = {info.name: info for info in chosen.streams}

    def make(part: Sequence[str], _again: bool) -> _StoreStreams:
        streams = tuple(infos[name] for name in part)
        earlier = {name: chosen.earlier[name] for name in part if name in chosen.earlier}
        return _StoreStreams(
            executors.place,
            executors.repository_id,
            executors.server,
            needed,
            Chosen(chosen.source, streams, earlier),
        )

    def take(part: Sequence[str], stored: StoredPart | JsBackupError) -> None:
        if isinstance(stored, JsBackupError):
            stored = StoredPart((), tuple(Failure(name, stored) for name in part), ())
        failed = list(stored.failures)
        for result in stored.results:
            unseen = _unseen(run.repository, begun, result.stream)
            if unseen is None:
                results.append(result)
                _tell_stored(run.progress, result.stream)
            else:
                failed.append(Failure(result.stream.name, unseen))
        for failure in failed:
            _log.warning("stream %s failed: %s", failure.name, failure.error.message)
            run.progress.finish(failure.name)
        if not failed:
            begun.receipts.take_over(stored.receipts)
        failures.extend(failed)

    for stage in copies_first(chosen.streams):
        sizes = {info.name: info.state.bytes for info in stage}
        parts = packed(sizes, OnSpark(executors.session).cores)
        run_apart(executors.session, "the backup", parts, make, take=take, at_once=executors.at_once)
    return sorted(results, key=lambda one: one.stream.name), sorted(failures, key=lambda one: one.name)


def packed(sizes: Mapping[str, int], cores: int = 0) -> list[list[str]]:
    """Distribute names to tasks, by the bytes of each: the largest first, small ones together. `cores` are those of the
    executors, 0 if unknown.
    """
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    return [names[piece] for piece in pack_tasks([sizes[name] + _EACH_BYTES for name in names], cores)]


@dataclass(frozen=True, slots=True)
class _StoreStreams:
    """A task."""

    place: RepositoryRef
    repository_id: str
    server: ConnectionReference
    options: BackupOptions
    chosen: Chosen

    def __call__(self) -> StoredPart:
        return back_up_part(
            BackupRun(self.server.resolve(environment()), opened_same(self.place, self.repository_id), self.options),
            self.chosen,
            os.urandom(8).hex(),
        )


def _unseen(repository: Repository, begun: BegunBackup, stream: StreamBackup) -> StoreError | None:
    """Return why the driver does not find the stream in the repository; None if it does."""
    backup = layout.backup_id(begun.begun_ns, bytes(3), None)
    alone = Manifest(backup, format_time(begun.begun_ns), TOOL, begun.chosen.source, Result.COMPLETE, (stream,))
    try:
        problem = next(verify_backup(repository.objects, alone, Level.MANIFEST), None)
    except StoreError as error:
        return error
    return None if problem is None else StoreError(f"an executor has stored it, but {problem.problem}", hint=_SHARED)


def _tell_stored(progress: Progress, stream: StreamBackup) -> None:
    if stream.read is not None:
        _log.info("stream %s: %s: %s", stream.name, stream.read.how, stream.read.why)
    progress.start(stream.name, stream.captured.bytes, stream.captured.messages)
    progress.advance(stream.name, stream.captured.bytes, stream.captured.messages)
    progress.finish(stream.name)
