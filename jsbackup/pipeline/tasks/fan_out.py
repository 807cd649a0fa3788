"""Distributed backups: executors read streams from the server and store them, and the driver commits.

A task has one stream, several small ones, or a range of a huge one (`engine/backup/worker_share.py`). It runs the same
code as a backup on one machine, with its own connection, and returns the entries of its streams for the manifest. Only
the driver holds the lease, and writes the manifest when all tasks have ended and it has checked what they stored. A
stream that fails, or that Spark gives up, does not affect others. A task may run more than once: the name of an object
depends on its content, and unused objects are in no manifest.

No secrets are sent: for keys and S3 see `repository_ref.py`, for the server `config/connection.py`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from jsbackup.config import environment
from jsbackup.config.connection import ConnectionReference
from jsbackup.engine.backup.backup import BegunBackup, Chosen
from jsbackup.engine.backup.run import BackupOptions, BackupRun
from jsbackup.engine.backup.worker_share import (
    RangedStream,
    StoredPart,
    StoredRange,
    StreamRange,
    back_up_part,
    complete,
    plan_ranges,
    store_on_ranges,
    store_range,
)
from jsbackup.engine.read.increment import SequenceSpan
from jsbackup.engine.read.mirrors import copies_first
from jsbackup.errors import JsBackupError, StoreError
from jsbackup.failure import Failure
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened_same
from jsbackup.pipeline.tasks.packing import pack_tasks
from jsbackup.pipeline.tasks.separate_jobs import run_apart
from jsbackup.pipeline.tasks.tasks import OnSpark
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.checks.verify import Level, verify_backup
from jsbackup.repository.manifest import BackupResult, Manifest, Source, StreamBackup
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["Executors", "packed", "store_streams"]

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


def store_streams(executors: Executors, run: BackupRun, begun: BegunBackup) -> tuple[list[StoredStream], list[Failure]]:
    """Read and store the streams of a backup; return results and failures in order of names.

    Raises NatsError, and errors of Spark itself.
    """
    cores = OnSpark(executors.session).cores
    at_once = min(cores, executors.at_once) if executors.at_once else cores
    ranged = complete(plan_ranges(run, begun.chosen, at_once))
    spread = _SpreadBackup(executors, run, begun, ranged)
    for stage in copies_first(begun.chosen.streams):
        large = [ranged[info.name] for info in stage if info.name in ranged]
        sizes = {info.name: info.state.bytes for info in stage if info.name not in ranged}
        parts: list[list[str | StreamRange]] = [[part] for stream in large for part in stream.ranges]
        parts += [list(names) for names in packed(sizes, cores)]
        run_apart(executors.session, "the backup", parts, spread.make, take=spread.take, at_once=executors.at_once)
        for stream in large:
            spread.complete(stream)
    return (
        sorted(spread.results, key=lambda result: result.stream.name),
        sorted(spread.failures, key=lambda failure: failure.name),
    )


class _SpreadBackup:
    """The tasks of a backup, and what came of them."""

    def __init__(
        self, executors: Executors, run: BackupRun, begun: BegunBackup, ranged: Mapping[str, RangedStream]
    ) -> None:
        self.results: list[StoredStream] = []
        self.failures: list[Failure] = []
        self._executors = executors
        self._run = run
        self._begun = begun
        self._needed = replace(run.options, streams=(), exclude=(), tags={}, lock=None)
        self._infos = {info.name: info for info in begun.chosen.streams}
        self._ranged = ranged
        self._ranges: dict[tuple[str, SequenceSpan], StoredRange] = {}

    def make(self, part: Sequence[str | StreamRange], _again: bool) -> Callable[[], StoredPart | StoredRange]:
        executors, chosen = self._executors, self._begun.chosen
        source = executors.place, executors.repository_id, executors.server, self._needed
        first = part[0]
        if isinstance(first, StreamRange):
            return _StoreRange(*source, chosen.source, first)
        names = [name for name in part if isinstance(name, str)]
        earlier = {name: chosen.earlier[name] for name in names if name in chosen.earlier}
        return _StoreStreams(*source, Chosen(chosen.source, tuple(self._infos[name] for name in names), earlier))

    def take(self, part: Sequence[str | StreamRange], stored: StoredPart | StoredRange | JsBackupError) -> None:
        first = part[0]
        if isinstance(first, StreamRange):
            self._take_range(first, stored)
            return
        if isinstance(stored, JsBackupError):
            stored = StoredPart((), tuple(Failure(str(name), stored) for name in part), ())
        assert isinstance(stored, StoredPart)
        for result in stored.results:
            self._add(result)
        for failure in stored.failures:
            self._fail(failure)
        if not stored.failures:
            self._begun.receipts.take_over(stored.receipts)

    def _take_range(self, part: StreamRange, stored: object) -> None:
        span = part.span
        if isinstance(stored, StoredRange):
            if not self._is_begun(part.info.name):
                state = part.info.state
                self._run.progress.start(part.info.name, state.bytes, state.messages)
            self._ranges[part.info.name, part.span] = stored
            refs = stored.stored.refs
            self._run.progress.advance(
                part.info.name, sum(ref.bytes for ref in refs), sum(ref.messages for ref in refs)
            )
        elif isinstance(stored, JsBackupError):
            _log.warning(
                "stream %s: sequences %d to %d are read again: %s",
                part.info.name,
                span.first,
                span.last,
                stored.message,
            )

    def _is_begun(self, name: str) -> bool:
        return any(stream == name for stream, _ in self._ranges)

    def complete(self, stream: RangedStream) -> None:
        """Store a stream on its ranges, here."""
        keys = [(part.info.name, part.span) for part in stream.ranges]
        ranges = [self._ranges[key] for key in keys if key in self._ranges]
        stored = [ranged.stored for ranged in ranges]
        source, receipts = self._begun.chosen.source, self._begun.receipts
        result = complete(store_on_ranges(self._run, source, stream, stored, receipts=receipts))
        if isinstance(result, Failure):
            self._fail(result)
            return
        self._add(result, moved=not ranges)
        for ranged in ranges:
            receipts.take_over(ranged.receipts)

    def _add(self, result: StoredStream, *, moved: bool = True) -> None:
        unseen = _unseen(self._run.repository, self._begun, result.stream)
        if unseen is not None:
            self._fail(Failure(result.stream.name, unseen))
            return
        self.results.append(result)
        _tell_stored(self._run.progress, result.stream, moved=moved)

    def _fail(self, failure: Failure) -> None:
        _log.warning("stream %s failed: %s", failure.name, failure.error.message)
        self._run.progress.finish(failure.name)
        self.failures.append(failure)


def packed(sizes: Mapping[str, int], cores: int = 0) -> list[list[str]]:
    """Distribute names to tasks, by the bytes of each: the largest first, small ones together. `cores` are those of the
    executors, 0 if unknown.
    """
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    return [names[piece] for piece in pack_tasks([sizes[name] + _EACH_BYTES for name in names], cores)]


@dataclass(frozen=True, slots=True)
class _Task:
    """What all tasks get."""

    place: RepositoryRef
    repository_id: str
    server: ConnectionReference
    options: BackupOptions

    def _run(self) -> BackupRun:
        repository = opened_same(self.place, self.repository_id)
        return BackupRun(self.server.resolve(environment()), repository, self.options)


@dataclass(frozen=True, slots=True)
class _StoreStreams(_Task):
    chosen: Chosen

    def __call__(self) -> StoredPart:
        return back_up_part(self._run(), self.chosen, os.urandom(8).hex())


@dataclass(frozen=True, slots=True)
class _StoreRange(_Task):
    source: Source
    part: StreamRange

    def __call__(self) -> StoredRange:
        return store_range(self._run(), self.source, self.part, os.urandom(8).hex())


def _unseen(repository: Repository, begun: BegunBackup, stream: StreamBackup) -> StoreError | None:
    """Return why the driver does not find the stream in the repository; None if it does."""
    backup = layout.backup_id(begun.begun_ns, bytes(3), None)
    alone = Manifest(backup, format_time(begun.begun_ns), TOOL, begun.chosen.source, BackupResult.COMPLETE, (stream,))
    try:
        problem = next(verify_backup(repository.objects, alone, Level.MANIFEST), None)
    except StoreError as error:
        return error
    return None if problem is None else StoreError(f"an executor has stored it, but {problem.problem}", hint=_SHARED)


def _tell_stored(progress: Progress, stream: StreamBackup, *, moved: bool) -> None:
    """`moved`: it is all at once, nothing of it was told before."""
    if stream.read is not None:
        _log.info("stream %s: %s: %s", stream.name, stream.read.how, stream.read.why)
    if moved:
        progress.start(stream.name, stream.captured.bytes, stream.captured.messages)
        progress.advance(stream.name, stream.captured.bytes, stream.captured.messages)
    progress.finish(stream.name)
