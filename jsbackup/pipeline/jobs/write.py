"""Write DataFrames, one for each stream, as a backup that can be restored.

Executors store segments; the driver checks them and commits the manifest last. So an interruption at any point leaves
either no backup or a whole one. `write_backup` is for programs; commands hold their own lease.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from jsbackup.errors import FormatError, JsBackupError, UsageError
from jsbackup.formats.archive.archive_items import asset_name_is_sound
from jsbackup.formats.json_lines import refuse_misspelt
from jsbackup.model import JsonObject
from jsbackup.pipeline.jobs.imported_streams import (
    RowStream,
    bucket_config,
    commit_streams,
    imported_incarnation,
    imported_stream,
    is_bucket,
    rules_of,
    with_notes,
)
from jsbackup.pipeline.jobs.job_run import JobRun
from jsbackup.pipeline.messages.columns import ddl
from jsbackup.pipeline.session.connect import is_remote
from jsbackup.pipeline.session.failures import spark_errors, unpersist
from jsbackup.pipeline.session.lease import held_lease
from jsbackup.pipeline.session.repository_ref import RepositoryRef
from jsbackup.pipeline.session.session import attach
from jsbackup.pipeline.tables.line_files import LINE_SCHEMA
from jsbackup.pipeline.tables.table_files import refuse_other_streams
from jsbackup.pipeline.tasks.row_storing import NO_COUNTS, SinkRules, StoredPartition
from jsbackup.pipeline.tasks.segment_sink import store_by_writer, store_rows
from jsbackup.pipeline.tasks.task_reader import row_reader
from jsbackup.pipeline.tasks.tasks import OnSpark, watched
from jsbackup.progress import NullProgress, Progress
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.late_repository import is_late, make_now
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.repository.write.segment_writer import StoredSegments

__all__ = ["TableStream", "write_backup", "write_row_streams", "write_streams"]

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


def write_row_streams(
    run: JobRun[OnSpark], streams: Mapping[str, RowStream], *, tags: Mapping[str, str], origin: str
) -> tuple[Manifest, list[StoredStream]]:
    """As `write_streams`, of streams whose rows tasks read. Raises UsageError if some are of another stream."""
    session, tables = run.runner.session, {}
    for name, stream in streams.items():
        frame = session.createDataFrame([], ddl(LINE_SCHEMA.names))
        if stream.tasks:  # to read them takes longer than anything else
            frame = row_reader(session, ddl(LINE_SCHEMA.names), stream.tasks).load().persist(StorageLevel.DISK_ONLY)
        tables[name] = TableStream(
            frame, stream.config, stream.table.bytes, release=True, any_headers=stream.table.any_headers
        )
        with spark_errors(f"reading the table of stream {name}"):
            names = [row.stream for row in frame.select("stream").distinct().limit(3).collect()]
        refuse_other_streams(names, name, given=stream.table.alone)
    return write_streams(run, tables, tags=tags, origin=origin)


def write_streams(
    run: JobRun[OnSpark],
    streams: Mapping[str, TableStream],
    *,
    tags: Mapping[str, str],
    origin: str,
) -> tuple[Manifest, list[StoredStream]]:
    """As `write_backup`, in a repository that is open for writing."""
    with ExitStack() as stack:
        for table in streams.values():
            stack.callback(_release, table)
        return _written(run, streams, tags, origin)


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
    named = dict(sorted(streams.items()))
    frames = {name: _checked(name, table.frame) for name, table in named.items()}
    sink = _Sink(session, repository, run.place, run.progress or NullProgress())
    if is_late(repository):  # nothing is left behind for tables that are refused
        sink.check(frames, named)
        make_now(repository)  # executors open it themselves

    def stored() -> Iterator[StoredStream]:
        for name, table in named.items():
            yield sink.store(name, frames[name], table)
            _release(table)

    return commit_streams(run, stored(), tags=tags, origin=origin)


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

    def check(self, frames: Mapping[str, DataFrame], tables: Mapping[str, TableStream]) -> None:
        """Raise the errors of tables that cannot be stored, as far as these are known before large ones are sorted.

        `frames` are from `_checked`.
        """
        for name, frame in frames.items():
            self._look(name, frame, tables[name])

    def _look(self, name: str, frame: DataFrame, table: TableStream) -> None:
        in_order = _is_small(table)
        if not in_order:  # no payloads are sent to Python
            frame = frame.withColumn("data", F.when(F.col("data").isNotNull(), F.lit(bytearray())))
        self._run(name, frame, table, SinkRules(table.any_headers, stores=False, in_order=in_order))

    def store(self, name: str, frame: DataFrame, table: TableStream) -> StoredStream:
        """Store one stream. The frame is from `_checked`."""
        begun_ns = time.time_ns()
        with watched(self.session, name, table.bytes, self.progress):
            parts = self._run(name, frame, table, rules_of(name, table.config, table.any_headers))
        segments = sorted((ref for part in parts for ref in part.segments.refs), key=lambda ref: ref.first_seq)
        for before, after in pairwise(segments):
            if after.first_seq <= before.last_seq:
                raise FormatError(f"stream {name}: sequence {after.first_seq} is there twice")
        all_segments = StoredSegments(
            tuple(segments),
            sum(part.segments.reused for part in parts),
            sum(part.segments.stored_bytes for part in parts),
        )
        config = table.config or self._bucket_config(name, frame)
        ended_ns = time.time_ns()
        stored = imported_stream(name, config, all_segments, (begun_ns, ended_ns))
        counts = sum((part.counts for part in parts), NO_COUNTS)
        return with_notes(stored, counts, from_server=table.any_headers)

    def _folder(self, name: str) -> str:
        return self.repository.objects.sealing.folder(name, imported_incarnation(name))

    def _bucket_config(self, name: str, frame: DataFrame) -> JsonObject:
        """Return the configuration of a bucket or an object store that keeps all of these messages; {} for others."""
        if not is_bucket(name):
            return {}
        with spark_errors(f"reading stream {name}"):
            most = frame.groupBy("subject").count().agg(F.max("count")).first()
        return bucket_config(name, most[0] if most else 0)

    def _run(self, name: str, frame: DataFrame, table: TableStream, rules: SinkRules) -> list[StoredPartition]:
        if rules.in_order:
            ranges = frame.coalesce(1) if _is_small(table) else frame.repartitionByRange("sequence")
            frame = ranges.sortWithinPartitions("sequence")
        with spark_errors(f"{'storing' if rules.stores else 'reading'} stream {name}"):
            store = store_rows if is_remote(self.session) else store_by_writer
            partitions = store(self.place, self._folder(name), frame, rules)
        parts = []
        for partition in partitions:
            if isinstance(partition, JsBackupError):
                raise partition.with_message(f"stream {name}: {partition.message}")
            parts.append(partition)
        return parts


def _is_small(table: TableStream) -> bool:
    return 0 < table.bytes < _SMALL_BYTES
