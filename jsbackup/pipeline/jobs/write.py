"""Write DataFrames, one for each stream, as a backup that can be restored.

Executors store segments; the driver checks them and commits the manifest last. So an interruption at any point leaves
either no backup or a whole one. `write_backup` is for programs; commands hold their own lease.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from jsbackup.errors import FormatError, JsBackupError, UsageError
from jsbackup.exchange.server_store.lost_config import make_up
from jsbackup.formats.archive.archive_items import asset_name_is_sound
from jsbackup.model import JsonObject, StreamState
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM
from jsbackup.pipeline.jobs.job_run import JobRun
from jsbackup.pipeline.messages.columns import ddl
from jsbackup.pipeline.session.connect import is_remote
from jsbackup.pipeline.session.failures import spark_errors, unpersist
from jsbackup.pipeline.session.lease import held_lease
from jsbackup.pipeline.session.repository_ref import RepositoryRef
from jsbackup.pipeline.session.session import attach
from jsbackup.pipeline.tasks.segment_sink import store_by_writer, store_rows
from jsbackup.pipeline.tasks.tasks import OnSpark, watched
from jsbackup.progress import NullProgress, Progress
from jsbackup.repository import layout
from jsbackup.repository.keep import leases
from jsbackup.repository.manifest import (
    ArchiveFormat,
    Captured,
    Manifest,
    Source,
    StreamBackup,
    total_of,
)
from jsbackup.repository.repository import Repository
from jsbackup.repository.segments import StoredSegments
from jsbackup.repository.write.late_repository import make_now
from jsbackup.repository.write.new_backup import NewBackup, StoredStream
from jsbackup.times import ZERO_TIME, format_time

__all__ = ["TableStream", "write_backup", "write_streams"]

# As which Spark reads unsigned integers of 64 bits.
_UNSIGNED = "decimal(20,0)"
_INTEGERS = ("bigint", "int", "smallint", "tinyint", _UNSIGNED)
_MOST = (1 << 63) - 1
_COLUMNS = ("sequence", "timestamp_ns", "subject", "headers", "data")

# A smaller table is sorted in one task: to find ranges of sequences would be another job.
_SMALL_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class TableStream:
    """A stream to be made from a DataFrame with the columns sequence, timestamp_ns, subject, data, and headers if any.

    Sequences start at 1 or later and are unique, in any order. `config` is the stream's configuration as a server has
    it, which a restore uses; the default is a file stream with its own name as its subject, and for the name of a
    bucket or an object store what clients need of one. `bytes` is the size of the table, for progress.

    The frame may be computed two or three times, to find its ranges of sequences, and to store them. One that takes
    long is better persisted; `release` unpersists it when it is stored, or cannot be.
    """

    frame: DataFrame
    config: JsonObject = field(default_factory=dict)
    bytes: int = 0
    release: bool = False


def write_backup(
    session: SparkSession,
    place: RepositoryRef,
    streams: Mapping[str, TableStream],
    *,
    tags: Mapping[str, str] | None = None,
    origin: str = "a table",
) -> Manifest:
    """Make a backup of streams by their names, in a repository that exists; return its manifest.

    `origin` says where the messages come from, for `show`.

    Raises:
        UsageError: a column is missing or has another type, or a row lacks a value.
        FormatError: a sequence is repeated, less than 1, or more than 2^63 - 1.
        KeyUnavailable: the repository needs a writer key, and none was given.
        RepositoryLocked, StoreError: nothing can be stored now.
    """
    repository = place.open()
    repository.documents.ensure_writable()
    with held_lease(repository, "import") as lease:
        run = JobRun(OnSpark(session), place, repository, lease)
        return write_streams(run, streams, tags=tags or {}, origin=origin)[0]


def write_streams(
    run: JobRun[OnSpark], streams: Mapping[str, TableStream], *, tags: Mapping[str, str], origin: str
) -> tuple[Manifest, list[StoredStream]]:
    """As `write_backup`, in a repository that is open for writing."""
    try:
        return _written(run, streams, tags, origin)
    finally:
        for table in streams.values():
            _release(table)


def _release(table: TableStream) -> None:
    if table.release:
        unpersist(table.frame)


def _written(
    run: JobRun[OnSpark], streams: Mapping[str, TableStream], tags: Mapping[str, str], origin: str
) -> tuple[Manifest, list[StoredStream]]:
    if not streams:
        raise UsageError("a backup needs at least one stream")
    repository, session = run.repository, run.runner.session
    attach(session)
    frames = {name: _checked(name, table.frame) for name, table in sorted(streams.items())}
    make_now(repository)  # executors open it themselves
    made = NewBackup(
        repository,
        source=Source(extra={"imported": {"from": origin}}),
        begun_ns=time.time_ns(),
        clock_ns=time.time_ns,
        random=run.random,
        tags=tags,
    )
    sink = _Sink(session, repository, run.place, run.progress or NullProgress())

    written = []
    for name, frame in frames.items():
        run.lease.check()
        written.append(sink.store(name, frame, streams[name]))
        _release(streams[name])
    manifest = made.manifest(written)
    leases.commit(repository, manifest, run.lease)
    return manifest, written


def _checked(name: str, frame: DataFrame) -> DataFrame:
    """Return the frame with only our columns, cast if that is lossless."""
    if not asset_name_is_sound(name):
        raise UsageError(f"not a stream's name: {name[:80]!r}")
    with spark_errors(f"the table of stream {name}"):
        if "headers" not in frame.columns:
            frame = frame.withColumn("headers", F.lit(None).cast("binary"))
        missing = [column for column in _COLUMNS if column not in frame.columns]
        if missing:
            raise UsageError(f"the table of stream {name} has no column {missing[0]}")
        wanted = {"sequence": _INTEGERS, "timestamp_ns": ("bigint", _UNSIGNED), "subject": ("string",)}
        types = dict(frame.dtypes)
        for column in _COLUMNS:
            allowed = wanted.get(column, ("binary", "string"))
            if types[column] not in allowed:
                raise UsageError(f"column {column} of stream {name} is {types[column]}, not {allowed[0]}")
            if types[column] == _UNSIGNED:
                frame = frame.withColumn(column, _signed(name, column))
        return frame.select(*(F.col(part.split()[0]).cast(part.split()[1]) for part in ddl(_COLUMNS).split(", ")))


def _signed(stream: str, column: str) -> Column:
    """Return a column of unsigned integers as a bigint. A value that is none fails the job, as a FormatError."""
    what = "a sequence" if column == "sequence" else "a time in nanoseconds"
    # `failures.py` finds the line in what Spark makes of it.
    before, after = f"\njsbackup.errors.{FormatError.__name__}: stream {stream}: ", f" is not {what}\n"
    told = F.concat(F.lit(before), F.col(column).cast("string"), F.lit(after))
    return F.when(F.col(column) > F.lit(_MOST), F.raise_error(told)).otherwise(F.col(column).cast("bigint"))


@dataclass(frozen=True, slots=True)
class _Sink:
    """Stores frames as streams."""

    session: SparkSession
    repository: Repository
    place: RepositoryRef
    progress: Progress

    def store(self, name: str, frame: DataFrame, table: TableStream) -> StoredStream:
        """Store one stream. The frame is from `_checked`."""
        begun_ns = time.time_ns()
        incarnation = layout.incarnation("", "", name, ZERO_TIME)
        with watched(self.session, name, table.bytes, self.progress):
            folder = self.repository.objects.sealing.folder(name, incarnation)
            parts = self._run(name, frame, folder, is_small=0 < table.bytes < _SMALL_BYTES)
        segments = sorted((ref for part in parts for ref in part.refs), key=lambda ref: ref.first_seq)
        for before, after in pairwise(segments):
            if after.first_seq <= before.last_seq:
                raise FormatError(f"stream {name}: sequence {after.first_seq} is there twice")
        total = total_of(segments)
        ended_ns = time.time_ns()
        stream = StreamBackup(
            name=name,
            incarnation=incarnation,
            config=_config_of(name, table.config or self._bucket_config(name, frame)),
            created=ZERO_TIME,
            state=StreamState(
                messages=total.messages,
                bytes=total.bytes,
                first_seq=total.first_seq,
                last_seq=total.last_seq,
                deleted=total.last_seq - total.first_seq + 1 - total.messages if segments else 0,
            ),
            captured=Captured.of(total, format_time(begun_ns), format_time(ended_ns)),
            archive_format=ArchiveFormat.MESSAGES,
            digest=total.digest,
            segments=tuple(segments),
        )
        reused, stored_bytes = sum(part.reused for part in parts), sum(part.stored_bytes for part in parts)
        return StoredStream(stream, reused, stored_bytes, (ended_ns - begun_ns) / 1e9)

    def _bucket_config(self, name: str, frame: DataFrame) -> JsonObject:
        """Return the configuration of a bucket or an object store that keeps all of these messages; {} for others."""
        if not name.startswith((BUCKET_STREAM, OBJECT_STREAM)):
            return {}
        with spark_errors(f"reading stream {name}"):
            most = frame.groupBy("subject").count().agg(F.max("count")).first()
        return make_up(name, Counter({b"": most[0] or 1 if most else 1}))[0]

    def _run(self, name: str, frame: DataFrame, folder: str, *, is_small: bool) -> list[StoredSegments]:
        ranges = frame.coalesce(1) if is_small else frame.repartitionByRange("sequence")
        ordered = ranges.sortWithinPartitions("sequence")
        with spark_errors(f"storing stream {name}"):
            found = (store_rows if is_remote(self.session) else store_by_writer)(self.place, folder, ordered)
        parts = []
        for one in found:
            if isinstance(one, JsBackupError):
                raise one.with_message(f"stream {name}: {one.message}")
            parts.append(one)
        return parts


def _config_of(name: str, config: JsonObject) -> JsonObject:
    """Return the configuration for a restore. Mirrors have no subjects, and streams with sources need none."""
    subjects = {} if config.keys() & {"subjects", "mirror", "sources"} else {"subjects": [name]}
    return {**subjects, "retention": "limits", "storage": "file", **config, "name": name}
