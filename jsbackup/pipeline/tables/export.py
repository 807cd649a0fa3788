"""Export streams of a backup as tables of files, `<stream>/<first sequence>-<last sequence>.parquet` or `.jsonl`.

Parquet files have the columns of `columns.py`, including the stream's name, so that they can be added to any table. A
Delta table consists of such files and a log beside them. JSON lines are described in `formats/json_lines.py`. A file
has about 32 MiB of messages.

A task reads, verifies, encodes and writes a few files: three times as fast as sending the messages through Spark to its
own writers.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from jsbackup.errors import IntegrityError
from jsbackup.exchange.exporting import ExportedStream
from jsbackup.formats.json_lines import encode_lines
from jsbackup.pipeline.messages.columns import COLUMNS, arrow_schema, as_text_subjects, shaped
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tables.delta import LOG_KEY, TableFile, first_log, require_deltalake
from jsbackup.pipeline.tables.target import TableTarget, put_again
from jsbackup.pipeline.tasks.tasks import pack, pack_tasks, run_tasks
from jsbackup.progress import Progress
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.names import encode_name
from jsbackup.repository.objects import Objects
from jsbackup.repository.segment_size import SEGMENT_BYTES
from jsbackup.repository.segments import SegmentReader
from jsbackup.stores.base import Store

__all__ = ["Exported", "TableFormat", "export_tables"]

# The amount that readers of tables read at once; our segments are made for readers of single messages.
_GROUP_BYTES = 32 << 20


class TableFormat(StrEnum):
    PARQUET = "parquet"
    JSONL = "jsonl"
    DELTA = "delta"

    @property
    def suffix(self) -> str:
        """The suffix of its files."""
        return "parquet" if self is TableFormat.DELTA else self.value


@dataclass(frozen=True, slots=True)
class Exported:
    """The written tables. `bytes` is the size of the files."""

    files: int
    bytes: int
    streams: tuple[ExportedStream, ...]


@dataclass(frozen=True, slots=True)
class _File:
    """A file to write, with a run of a stream's segments."""

    key: str
    stream: str
    refs: tuple[SegmentRef, ...]

    @property
    def raw_bytes(self) -> int:
        return sum(ref.bytes for ref in self.refs)


@dataclass(frozen=True, slots=True)
class _WriteFiles:
    """A task; returns rows and bytes of each file."""

    source: RepositoryRef
    target: RepositoryRef
    kind: TableFormat
    backup: str
    files: tuple[_File, ...]

    def __call__(self) -> list[tuple[int, int]]:
        objects, store = opened(self.source).objects, self.target.store()
        written = []
        for file in self.files:
            rows, data = _ENCODERS[self.kind](objects, file, self.backup)
            put_again(store, file.key, data)
            written.append((rows, len(data)))
        return written


def export_tables(
    session: SparkSession,
    source: RepositoryRef,
    target: TableTarget,
    kind: TableFormat,
    *,
    backup: str,
    streams: Sequence[StreamBackup],
    progress: Progress,
) -> Exported:
    """Write the messages of `streams` of a backup, and commit the target.

    Raises:
        IntegrityError: the repository is damaged; nothing is left.
        UnsupportedError: the package for Delta tables is not installed.
        StoreError: something cannot be read or written.
    """
    if kind is TableFormat.DELTA:
        require_deltalake()
    files = [file for stream in streams for file in _files_of(stream, kind)]
    tasks, weights = [], []
    for piece in pack_tasks([file.raw_bytes for file in files]):
        part = tuple(files[piece])
        tasks.append(_WriteFiles(source, target.place, kind, backup, part))
        weights.append(sum(file.raw_bytes for file in part))
    written = list(run_tasks(session, "the export", tasks, weights=weights, progress=progress))
    sizes = [one for part in written for one in part]
    rows: dict[str, int] = {}
    for file, (count, _) in zip(files, sizes, strict=True):
        rows[file.stream] = rows.get(file.stream, 0) + count
    for stream in streams:
        if rows.get(stream.name, 0) != stream.captured.messages:
            raise IntegrityError(
                f"stream {stream.name} has {stream.captured.messages} messages, and {rows.get(stream.name, 0)} came out"
            )
    if kind is TableFormat.DELTA:
        _log_tables(target.place.store(), streams, files, sizes)
    target.commit()
    exported = tuple(ExportedStream(stream.name, kind, stream.captured.messages) for stream in streams)
    return Exported(len(files), sum(size for _, size in sizes), exported)


def _files_of(stream: StreamBackup, kind: TableFormat) -> Iterator[_File]:
    for piece in pack([ref.bytes for ref in stream.segments], SEGMENT_BYTES):
        refs = tuple(stream.segments[piece])
        name = f"{refs[0].first_seq:020}-{refs[-1].last_seq:020}.{kind.suffix}"
        yield _File(f"{encode_name(stream.name)}/{name}", stream.name, refs)


def _log_tables(
    store: Store, streams: Sequence[StreamBackup], files: Sequence[_File], sizes: Sequence[tuple[int, int]]
) -> None:
    """Add logs, which make the written files Delta tables."""
    now_ms = time.time_ns() // 1_000_000
    tables: dict[str, list[TableFile]] = {stream.name: [] for stream in streams}
    for file, (rows, size) in zip(files, sizes, strict=True):
        least = {"sequence": file.refs[0].first_seq, "timestamp_ns": min(ref.min_ns for ref in file.refs)}
        most = {"sequence": file.refs[-1].last_seq, "timestamp_ns": max(ref.max_ns for ref in file.refs)}
        tables[file.stream].append(TableFile(file.key.rpartition("/")[2], size, rows, least, most))
    for name, parts in tables.items():
        log = first_log(name, arrow_schema(COLUMNS), parts, now_ms)
        store.put(f"{encode_name(name)}/{LOG_KEY}", log)


def _parquet(objects: Objects, file: _File, backup: str) -> tuple[int, bytes]:
    sink = io.BytesIO()
    writer: pq.ParquetWriter | None = None
    waiting: list[pa.RecordBatch] = []
    rows = size = 0

    def write() -> None:
        nonlocal writer, size
        table = pa.Table.from_batches(waiting)
        writer = writer or pq.ParquetWriter(sink, table.schema, compression="zstd", write_page_checksum=True)
        writer.write_table(table, row_group_size=max(1, table.num_rows))
        waiting.clear()
        size = 0

    for ref in file.refs:
        for batch in SegmentReader(objects).prove(ref):
            waiting += shaped(as_text_subjects(batch), COLUMNS, file.stream, backup)
            rows += batch.num_rows
            size += batch.nbytes
            if size >= _GROUP_BYTES:
                write()
    if waiting:
        write()
    if writer is not None:
        writer.close()
    return rows, sink.getvalue()


def _json_lines(objects: Objects, file: _File, _backup: str) -> tuple[int, bytes]:
    rows = 0
    lines = []
    for ref in file.refs:
        for batch in SegmentReader(objects).prove(ref):
            lines.append(encode_lines(batch, file.stream))
            rows += batch.num_rows
    return rows, b"".join(lines)


_ENCODERS = {TableFormat.PARQUET: _parquet, TableFormat.JSONL: _json_lines, TableFormat.DELTA: _parquet}
