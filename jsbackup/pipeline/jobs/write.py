"""Write DataFrames, one for each stream, as a backup that can be restored.

Executors store segments; the driver checks them and commits the manifest last. So an interruption at any point leaves
either no backup or a whole one. `write_backup` is for programs; commands hold their own lease.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from jsbackup.errors import FormatError, JsBackupError, UsageError
from jsbackup.exchange.server_store.lost_config import make_up
from jsbackup.formats.archive.archive_items import asset_name_is_sound
from jsbackup.formats.json_lines import refuse_misspelt
from jsbackup.model import JsonObject, StreamState
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM
from jsbackup.pipeline.jobs.job_run import JobRun
from jsbackup.pipeline.messages.columns import ddl
from jsbackup.pipeline.session.connect import is_remote
from jsbackup.pipeline.session.failures import spark_errors, unpersist
from jsbackup.pipeline.session.lease import held_lease
from jsbackup.pipeline.session.repository_ref import RepositoryRef
from jsbackup.pipeline.session.session import attach
from jsbackup.pipeline.tasks.row_notes import notes_on
from jsbackup.pipeline.tasks.row_rules import NO_COUNTS, RowCounts, SinkRules
from jsbackup.pipeline.tasks.segment_sink import StoredPartition, store_by_writer, store_rows
from jsbackup.pipeline.tasks.store_tables import ReadRows, SmallTable, StoredTable, store_tables
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
from jsbackup.repository.write.late_repository import is_late, make_now
from jsbackup.repository.write.new_backup import NewBackup, StoredStream
from jsbackup.times import ZERO_TIME, format_time

__all__ = ["SMALL_BYTES", "SmallStream", "TableStream", "default_subjects", "write_backup", "write_streams"]

# As which Spark reads unsigned integers of 64 bits.
_UNSIGNED = "decimal(20,0)"
_INTEGERS = ("bigint", "int", "smallint", "tinyint", _UNSIGNED)
_MOST = (1 << 63) - 1
_COLUMNS = ("sequence", "timestamp_ns", "subject", "headers", "data")

SMALL_BYTES = 8 << 20
"""A smaller table is sorted in one task: to find ranges of sequences would be another job."""


@dataclass(frozen=True, slots=True)
class TableStream:
    """A stream to be made from a DataFrame with the columns sequence, timestamp_ns, subject, data, and headers if any.

    Sequences start at 1 or later and are unique, in any order. `config` is the stream's configuration as a server has
    it, which a restore uses; the default is a file stream with its own name as its subject, and for the name of a
    bucket or an object store what clients need of one. `bytes` is the size of the table, for progress. Headers have to
    begin and end as clients write them, and subjects to be such as all clients can read, unless `any_headers` is true:
    servers store any bytes as headers, and take many in subjects.

    The frame may be computed two or three times, to find its ranges of sequences, and to store them. One that takes
    long is better persisted; `release` unpersists it when it is stored, or cannot be.
    """

    frame: DataFrame
    config: JsonObject = field(default_factory=dict)
    bytes: int = 0
    release: bool = False
    any_headers: bool = False


@dataclass(frozen=True, slots=True)
class SmallStream:
    """A stream to be made from a small table that a task can read without Spark: many of them are stored in one job.

    `bytes`, `config` and `any_headers` are as in `TableStream`. What `read` cannot read is made from `table`, by a job
    of its own.
    """

    read: ReadRows
    bytes: int
    config: JsonObject
    table: Callable[[], TableStream]
    any_headers: bool = False


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
        UsageError: a column is missing or has another type, or a row lacks a value, or has one that clients could not
            read after a restore.
        FormatError: a sequence is repeated, less than 1, or more than 2^62 - 1.
        KeyUnavailable: the repository needs a writer key, and none was given.
        RepositoryLocked, StoreError: nothing can be stored now.
    """
    repository = place.open()
    repository.documents.ensure_writable()
    with held_lease(repository, "import") as lease:
        run = JobRun(OnSpark(session), place, repository, lease)
        return write_streams(run, streams, tags=tags or {}, origin=origin)[0]


def write_streams(
    run: JobRun[OnSpark],
    streams: Mapping[str, TableStream | SmallStream],
    *,
    tags: Mapping[str, str],
    origin: str,
) -> tuple[Manifest, list[StoredStream]]:
    """As `write_backup`, in a repository that is open for writing."""
    with ExitStack() as stack:
        for table in streams.values():
            if isinstance(table, TableStream):
                stack.callback(_release, table)
        return _written(run, streams, tags, origin)


def _release(table: TableStream) -> None:
    if table.release:
        unpersist(table.frame)


def _written(
    run: JobRun[OnSpark], streams: Mapping[str, TableStream | SmallStream], tags: Mapping[str, str], origin: str
) -> tuple[Manifest, list[StoredStream]]:
    if not streams:
        raise UsageError("a backup needs at least one stream")
    repository, session = run.repository, run.runner.session
    attach(session)
    named = sorted(streams.items())
    frames = {name: _checked(name, table.frame) for name, table in named if isinstance(table, TableStream)}
    sink = _Sink(session, repository, run.place, run.progress or NullProgress())
    small = {name: table for name, table in named if isinstance(table, SmallStream)}
    if is_late(repository):  # nothing is left behind for tables that are refused
        sink.check(frames, {name: table for name, table in named if isinstance(table, TableStream)}, small)
        make_now(repository)  # executors open it themselves
    made = NewBackup(
        repository,
        source=Source(extra={"imported": {"from": origin}}),
        begun_ns=time.time_ns(),
        clock_ns=time.time_ns,
        random=run.random,
        tags=tags,
    )
    run.lease.check()
    ready = sink.store_small(small)
    written = []
    for name, table in named:
        run.lease.check()
        if name in ready:
            written.append(ready[name])
        elif isinstance(table, SmallStream):
            written.append(sink.store_alone(name, table))
        else:
            written.append(sink.store(name, frames[name], table))
            _release(table)
    manifest = made.manifest(written)
    leases.commit(repository, manifest, run.lease)
    return manifest, written


def _checked(name: str, frame: DataFrame) -> DataFrame:
    """Return the frame with only our columns, cast if that is lossless."""
    if not asset_name_is_sound(name):
        raise UsageError(f"not a stream's name: {name[:80]!r}")
    with spark_errors(f"the table of stream {name}"):
        # Spark takes names in any case.
        for column in frame.columns:
            if column not in _COLUMNS and column.lower() in _COLUMNS:
                frame = frame.withColumnRenamed(column, column.lower())
        if "headers" not in frame.columns:
            refuse_misspelt(f"the table of stream {name}", frame.columns)
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

    def store_small(self, streams: Mapping[str, SmallStream]) -> dict[str, StoredStream]:
        """Store streams in one job; return those that are stored. The others need `store_alone`."""
        if not streams:
            return {}
        begun_ns = time.time_ns()
        tables = {name: self._small_table(name, one) for name, one in streams.items()}
        stored = store_tables(OnSpark(self.session), self.place, tables, self.progress)
        times = begun_ns, time.time_ns()
        return {name: _stream_of_small(name, streams[name], found, times) for name, found in stored.items()}

    def _small_table(self, name: str, stream: SmallStream) -> SmallTable:
        counts = not stream.config and _is_bucket(name)
        return SmallTable(stream.read, stream.bytes, self._folder(name), counts, _rules(name, stream))

    def check(
        self, frames: Mapping[str, DataFrame], tables: Mapping[str, TableStream], small: Mapping[str, SmallStream]
    ) -> None:
        """Raise the errors of tables that cannot be stored, as far as these are known before large ones are sorted.

        `frames` are from `_checked`.
        """
        looking = {}
        for name, one in small.items():
            table = self._small_table(name, one)
            looking[name] = replace(table, rules=replace(table.rules, stores=False))
        sound = store_tables(OnSpark(self.session), self.place, looking, None) if small else {}
        for name, frame in frames.items():
            self._look(name, frame, tables[name])
        for name, one in small.items():
            if name not in sound:
                alone = one.table()
                try:
                    self._look(name, _checked(name, alone.frame), alone)
                finally:
                    _release(alone)

    def _look(self, name: str, frame: DataFrame, table: TableStream) -> None:
        in_order = _is_small(table)
        if not in_order:  # no payloads are sent to Python
            frame = frame.withColumn("data", F.when(F.col("data").isNotNull(), F.lit(bytearray())))
        self._run(name, frame, table, SinkRules(table.any_headers, stores=False, in_order=in_order))

    def store_alone(self, name: str, stream: SmallStream) -> StoredStream:
        """Store a stream by a job of Spark."""
        table = stream.table()
        try:
            return self.store(name, _checked(name, table.frame), table)
        finally:
            _release(table)

    def store(self, name: str, frame: DataFrame, table: TableStream) -> StoredStream:
        """Store one stream. The frame is from `_checked`."""
        begun_ns = time.time_ns()
        with watched(self.session, name, table.bytes, self.progress):
            parts = self._run(name, frame, table, _rules(name, table))
        segments = sorted((ref for part in parts for ref in part.segments.refs), key=lambda ref: ref.first_seq)
        for before, after in pairwise(segments):
            if after.first_seq <= before.last_seq:
                raise FormatError(f"stream {name}: sequence {after.first_seq} is there twice")
        found = StoredSegments(
            tuple(segments),
            sum(part.segments.reused for part in parts),
            sum(part.segments.stored_bytes for part in parts),
        )
        config = table.config or self._bucket_config(name, frame)
        ended_ns = time.time_ns()
        stored = _stored(name, config, found, times=(begun_ns, ended_ns), seconds=(ended_ns - begun_ns) / 1e9)
        counts = sum((part.counts for part in parts), NO_COUNTS)
        return _with_notes(stored, counts, from_server=table.any_headers)

    def _folder(self, name: str) -> str:
        return self.repository.objects.sealing.folder(name, _incarnation(name))

    def _bucket_config(self, name: str, frame: DataFrame) -> JsonObject:
        """Return the configuration of a bucket or an object store that keeps all of these messages; {} for others."""
        if not _is_bucket(name):
            return {}
        with spark_errors(f"reading stream {name}"):
            most = frame.groupBy("subject").count().agg(F.max("count")).first()
        return _bucket_config(name, most[0] if most else 0)

    def _run(self, name: str, frame: DataFrame, table: TableStream, rules: SinkRules) -> list[StoredPartition]:
        if rules.in_order:
            ranges = frame.coalesce(1) if _is_small(table) else frame.repartitionByRange("sequence")
            frame = ranges.sortWithinPartitions("sequence")
        with spark_errors(f"{'storing' if rules.stores else 'reading'} stream {name}"):
            store = store_rows if is_remote(self.session) else store_by_writer
            found = store(self.place, self._folder(name), frame, rules)
        parts = []
        for one in found:
            if isinstance(one, JsBackupError):
                raise one.with_message(f"stream {name}: {one.message}")
            parts.append(one)
        return parts


def _rules(name: str, stream: TableStream | SmallStream) -> SinkRules:
    return SinkRules(stream.any_headers, () if stream.config else default_subjects(name))


def default_subjects(name: str) -> tuple[str, ...]:
    """Return the subjects of a stream without a configuration."""
    return tuple(_bucket_config(name, 1)["subjects"]) if _is_bucket(name) else (name,)


def _is_small(table: TableStream) -> bool:
    return 0 < table.bytes < SMALL_BYTES


def _is_bucket(name: str) -> bool:
    return name.startswith((BUCKET_STREAM, OBJECT_STREAM))


def _bucket_config(name: str, most: int | None) -> JsonObject:
    return make_up(name, Counter({b"": most or 1}))[0]


def _incarnation(name: str) -> str:
    return layout.incarnation("", "", name, ZERO_TIME)


def _stream_of_small(name: str, stream: SmallStream, table: StoredTable, times: tuple[int, int]) -> StoredStream:
    config = stream.config
    if not config and _is_bucket(name):
        config = _bucket_config(name, table.most)
    stored = _stored(name, config, table.segments, times=times, seconds=table.seconds)
    return _with_notes(stored, table.counts, from_server=stream.any_headers)


def _with_notes(stored: StoredStream, counts: RowCounts, *, from_server: bool) -> StoredStream:
    stream = stored.stream
    notes = notes_on(stream.name, stream.segments, counts, from_server=from_server)
    return replace(stored, others=counts.others, notes=tuple(notes))


def _stored(
    name: str, config: JsonObject, found: StoredSegments, *, times: tuple[int, int], seconds: float
) -> StoredStream:
    """Return a stream for the manifest. It was stored between `times`, in nanoseconds."""
    total = total_of(found.refs)
    stream = StreamBackup(
        name=name,
        incarnation=_incarnation(name),
        config=_config_of(name, config),
        created=ZERO_TIME,
        state=StreamState(
            messages=total.messages,
            bytes=total.bytes,
            first_seq=total.first_seq,
            last_seq=total.last_seq,
            deleted=total.last_seq - total.first_seq + 1 - total.messages if found.refs else 0,
        ),
        captured=Captured.of(total, *(format_time(time_ns) for time_ns in times)),
        archive_format=ArchiveFormat.MESSAGES,
        digest=total.digest,
        segments=found.refs,
    )
    return StoredStream(stream, found.reused, found.stored_bytes, seconds)


def _config_of(name: str, config: JsonObject) -> JsonObject:
    """Return the configuration for a restore. Mirrors have no subjects, and streams with sources need none."""
    subjects = {} if config.keys() & {"subjects", "mirror", "sources"} else {"subjects": [name]}
    return {**subjects, "retention": "limits", "storage": "file", **config, "name": name}
