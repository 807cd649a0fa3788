"""What the data source `jsbackup` (`source.py`) does: finds a schema, makes partitions, and reads them on executors.

The backup is chosen when the DataFrame (or the temporary view) is made, so that all of its actions read the same one;
its streams are chosen by the first action. Those that a named backup does not have are refused at once.

A partition is some runs of segments, of one stream or of several short ones; pages name them where a stream has many
(`packing.py`). How they are read is in `segment_rows.py`. Where only
constants are asked for, as to count messages, partitions are just numbers of messages, and no page is read either.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from jsbackup.config import parse_glob
from jsbackup.errors import UsageError
from jsbackup.pipeline.messages.bounds import ALL
from jsbackup.pipeline.messages.chosen import ChosenBackup, choose_streams
from jsbackup.pipeline.messages.columns import arrow_schema, rows_alone
from jsbackup.pipeline.messages.segment_rows import RowColumns, gathered
from jsbackup.pipeline.messages.source_options import SourceOptions, one_sentence, read_options
from jsbackup.pipeline.messages.stream_source import BackupStreamReader
from jsbackup.pipeline.session.repository_ref import check_readable, opened
from jsbackup.pipeline.tasks.packing import PagedRun, pack, packed_runs, task_bytes
from jsbackup.pipeline.tasks.task_source import freeze_worker
from jsbackup.repository.manifest import Manifest, SegmentRef
from jsbackup.repository.manifest_json import read_needed
from jsbackup.repository.pages.segment_list import total_of
from jsbackup.repository.repository import Repository

__all__ = ["OpenedSource", "find_schema", "make_reader", "make_stream_reader"]

_TYPES = {
    pa.string(): StringType(),
    pa.int64(): LongType(),
    pa.binary(): BinaryType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
}
# A row of constants takes as long as so many bytes of messages.
_ROW_BYTES = 64


class OpenedSource(Protocol):
    """What is needed of a data source: Spark's options, and the backup that was chosen, which is kept in it."""

    options: MutableMapping[str, str]
    backup: str


def find_schema(source: OpenedSource) -> StructType:
    """Return the columns. Raises all that is wrong as one sentence."""
    with one_sentence():
        options = read_options(source.options)
        repository = _open(options)
        # A streaming query may wait for the first one, and its streams may be those of older backups; whether this
        # is one is not known here, unless a backup is named.
        if options.names_backup or repository.backups():
            manifest = options.choose(repository).manifest
            source.backup = manifest.id
            if options.names_backup:
                choose_streams(manifest, options.patterns)
        # Types, not their names: a session may take TIMESTAMP for another type.
        return StructType([StructField(field.name, _TYPES[field.type]) for field in arrow_schema(options.columns)])


def make_reader(source: OpenedSource, schema: StructType) -> DataSourceReader:
    """Return a reader. Raises all that is wrong as one sentence."""
    with one_sentence():
        options = read_options(source.options)
        if options.of_queries:
            raise UsageError(
                f"the option '{options.of_queries[0]}' is for streaming queries, and spark.read reads one backup",
                hint="Leave it out, or use spark.readStream.",
            )
        columns = RowColumns.of(schema)
        return _Reader(options, source.backup, columns)


def make_stream_reader(source: OpenedSource, schema: StructType) -> DataSourceStreamReader:
    """Return a reader that follows the repository. Raises all that is wrong as one sentence."""
    with one_sentence():
        options = read_options(source.options)
        if options.names_backup:
            raise UsageError(
                "a streaming query follows all backups: the options 'backup' and 'at' are those of spark.read",
                hint="'start' says where it begins.",
            )
        return BackupStreamReader(options, RowColumns.of(schema))


class _Reader(DataSourceReader):
    def __init__(self, options: SourceOptions, backup: str, columns: RowColumns) -> None:
        self._options = options
        self._backup = backup
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        with one_sentence():
            options = self._options
            manifest = self._manifest(_open(options))
            streams = ChosenBackup(options.place, manifest).streams(options.patterns)
            named = [(stream.name, stream.segments) for stream in streams]
            # Spark does not say here how many cores it has; this is right where it is embedded.
            cores = options.cores or os.cpu_count() or 0
            if self._columns.are_constant:
                packed: Sequence[tuple[tuple[str, PagedRun | int], ...]] = _packed_counts(named, cores)
            else:
                packed = packed_runs(named, cores)
            return [InputPartition((manifest.id, runs)) for runs in packed]

    def _manifest(self, repository: Repository) -> Manifest:
        if not self._backup:
            return self._options.choose(repository).manifest
        literal = all(parse_glob(pattern).is_literal for pattern in self._options.patterns)
        needed = [[pattern] for pattern in self._options.patterns] if literal else ()
        return read_needed(repository, self._backup, needed, in_part=False)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_worker()
        if partition.value is None:  # Spark's partition if there are none
            return
        yield from gathered(self._rows(*partition.value))

    def _rows(self, backup: str, runs: Sequence[tuple[str, PagedRun | int]]) -> Iterator[pa.RecordBatch]:
        for stream, run in runs:
            if isinstance(run, int):
                yield from rows_alone(run, self._columns.names, stream, backup)
                continue
            repository = opened(self._options.place)
            for ref in run.segments(repository):
                yield from self._columns.rows(repository, ref, ALL, stream=stream, backup=backup)


def _packed_counts(
    streams: Sequence[tuple[str, Sequence[SegmentRef]]], cores: int
) -> list[tuple[tuple[str, int], ...]]:
    """Return for each task how many messages of which stream it has to yield. Reads no page."""
    counts = [(name, total_of(segments).messages) for name, segments in streams]
    most = task_bytes(sum(count for _, count in counts) * _ROW_BYTES, cores) // _ROW_BYTES
    pieces = [(name, min(most, count - start)) for name, count in counts for start in range(0, count, most)]
    return [tuple(pieces[piece]) for piece in pack([count for _, count in pieces], most)]


def _open(options: SourceOptions) -> Repository:
    """Open a repository whose messages can be read."""
    repository = opened(options.place)
    check_readable(repository)
    return repository
