"""Tasks that write files of tables: each reads, verifies, encodes and writes runs of a stream's segments.

Parquet files have the columns of `columns.py`, including the stream's name, and `incarnation`: with that, a sequence is
one message, also of a stream that was deleted and created again. JSON lines are described in `formats/json_lines.py`.

With partitions by day (of a message's time, in UTC) a run becomes a file for each day, in folders named as Hive does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jsbackup.formats.digest import MessageBatch
from jsbackup.formats.json_lines import encode_lines
from jsbackup.formats.paged import PagedFile
from jsbackup.formats.segment import split_batch
from jsbackup.memory import give_back
from jsbackup.pipeline.messages.bounds import Bounds
from jsbackup.pipeline.messages.columns import COLUMNS, arrow_schema, as_text_subjects, shaped
from jsbackup.pipeline.messages.stream_walk import MessageRange
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tables.target import put_again
from jsbackup.pipeline.tasks.reshape_task import MaskKey, SegmentRun
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.stores.base import Data, Store
from jsbackup.transforms.reshape import ReshapeTally

__all__ = ["DAY", "TABLE_SCHEMA", "FileToWrite", "RowBounds", "TableFormat", "WriteFiles", "WrittenFile", "WrittenRun"]

DAY = "day"
INCARNATION = "incarnation"
TABLE_SCHEMA = arrow_schema(COLUMNS).append(pa.field(INCARNATION, pa.string()))

# The amount that readers of tables read at once; our segments are made for readers of single messages. Twice as much
# takes 40 MiB more.
_GROUP_BYTES = 16 << 20

# Messages become objects of Python, which take several times their bytes.
_LINES_BYTES = 1 << 20
_DAY_NS = 86_400 * 10**9


class TableFormat(StrEnum):
    PARQUET = "parquet"
    JSONL = "jsonl"
    DELTA = "delta"
    ICEBERG = "iceberg"

    @property
    def suffix(self) -> str:
        """The suffix of its files."""
        return self.value if self is TableFormat.JSONL else "parquet"


@dataclass(frozen=True, slots=True)
class FileToWrite:
    """A file to write at `place` as `folder`/`name`, with the messages of `ranges`, which are of segments of `run` and
    may change on the way. `by_day`: a file for each day of the messages, in a folder of its own before `joint`.
    """

    place: RepositoryRef
    stream: str
    incarnation: str
    folder: str
    name: str
    run: SegmentRun
    ranges: tuple[MessageRange, ...]
    by_day: bool = False
    joint: str = "/"

    @property
    def raw_bytes(self) -> int:
        return sum(message_range.ref.bytes for message_range in self.ranges)


@dataclass(frozen=True, slots=True)
class RowBounds:
    """The least and greatest values of the rows of a file, by which readers skip it. `no_headers` is the number of rows
    without a header block.
    """

    sequence: tuple[int, int]
    timestamp_ns: tuple[int, int]
    subject: tuple[bytes, bytes]
    no_headers: int

    @classmethod
    def of(cls, batch: MessageBatch) -> RowBounds:
        subject = batch.column("subject")
        return cls(
            _ends(batch.column("sequence")),
            _ends(batch.column("timestamp_ns")),
            _ends(subject.view(pa.binary()) if subject.type == pa.string() else subject),
            batch.column("headers").null_count,
        )

    def joined(self, other: RowBounds) -> RowBounds:
        return RowBounds(
            (min(self.sequence[0], other.sequence[0]), max(self.sequence[1], other.sequence[1])),
            (min(self.timestamp_ns[0], other.timestamp_ns[0]), max(self.timestamp_ns[1], other.timestamp_ns[1])),
            (min(self.subject[0], other.subject[0]), max(self.subject[1], other.subject[1])),
            self.no_headers + other.no_headers,
        )


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a task wrote; `bounds` only of Parquet. `day` is that of its partition, "" without partitions."""

    name: str
    rows: int
    bytes: int
    bounds: RowBounds | None
    day: str = ""

    def path(self, joint: str = "/") -> str:
        """Return its path in the table, or where its task wrote it."""
        return f"{DAY}={self.day}{joint}{self.name}" if self.day else self.name


@dataclass(frozen=True, slots=True)
class WrittenRun:
    """What was written of a run: no file without rows. `is_text`: all subjects are UTF-8."""

    files: tuple[WrittenFile, ...]
    tally: ReshapeTally
    hashed: tuple[str, ...] = ()  # tokens that were obfuscated for the first time
    is_text: bool = True


@dataclass(frozen=True, slots=True)
class WriteFiles:
    """A task; returns what was written of each file."""

    source: RepositoryRef
    kind: TableFormat
    backup: str
    mask_key: MaskKey
    files: tuple[FileToWrite, ...]

    def __call__(self) -> list[WrittenRun]:
        objects = opened(self.source).objects
        hashing = any(file.run.reshape.masks.needs_secret for file in self.files)
        secret = self.mask_key.secret() if hashing else b""
        written = []
        for file in self.files:
            # Its first object is fetched while another thread may still encode; then what is large takes turns.
            first, *rest = file.ranges
            batches = SegmentReader(objects).prove(first.ref)
            with objects.room.share() as share:
                share.hold(self._held_bytes(file))
                chunks = chain(
                    _within(first, batches),
                    *(
                        _within(message_range, SegmentReader(objects).prove(message_range.ref))
                        for message_range in rest
                    ),
                )
                tally, obfuscation = ReshapeTally(), file.run.reshape.obfuscation
                known = 0 if obfuscation is None else obfuscation.names.count
                rows = _Rows(file, self.backup)
                files = tuple(self._files_of(rows, file.run.changed(rows.looked_at(chunks), secret, tally)))
                hashed = () if obfuscation is None else obfuscation.names.since(known)
                written.append(WrittenRun(files, tally, hashed, rows.is_text))
            give_back()
        return written

    def _held_bytes(self, file: FileToWrite) -> int:
        if file.by_day:
            return 2 * file.raw_bytes
        return (
            file.raw_bytes
            if self.kind is TableFormat.JSONL
            else sum(message_range.ref.size for message_range in file.ranges)
        )

    def _files_of(self, rows: _Rows, messages: Iterator[MessageBatch]) -> Iterator[WrittenFile]:
        file, encode = rows.file, _json_lines if self.kind is TableFormat.JSONL else _parquet
        parts: Iterable[tuple[str, Iterable[MessageBatch]]] = [("", messages)]
        if file.by_day:
            parts = _days(list(messages))
        store: Store = file.place.store()
        for day, batches in parts:
            count, data, bounds = encode(batches, rows)
            if count:
                written = WrittenFile(file.name, count, memoryview(data).nbytes, bounds, day)
                put_again(store, f"{file.folder}/{written.path(file.joint)}", data)
                yield written
            del data


def _within(wanted: MessageRange, batches: Iterator[MessageBatch]) -> Iterator[MessageBatch]:
    """Yield the messages of a range out of those of its segment, of which all are read: that proves them."""
    bounds = Bounds(sequence=(wanted.first_seq, wanted.last_seq), only=wanted.only)
    for batch in batches:
        kept = batch if wanted.is_whole else bounds.keep(batch)
        if kept.num_rows:
            yield kept


class _Rows:
    """The rows of a file. `is_text`: all subjects that came are UTF-8."""

    def __init__(self, file: FileToWrite, backup: str) -> None:
        self.file = file
        self.is_text = True
        self._backup = backup

    def looked_at(self, batches: Iterable[MessageBatch]) -> Iterator[MessageBatch]:
        for batch in batches:
            subjects = batch.column("subject")
            if self.is_text and pa.types.is_binary(subjects.type):
                try:
                    subjects.cast(pa.string())
                except pa.ArrowInvalid:
                    self.is_text = False
            yield batch

    def of(self, batch: MessageBatch) -> Iterator[pa.RecordBatch]:
        for part in shaped(as_text_subjects(batch), COLUMNS, self.file.stream, self._backup):
            life = pa.repeat(pa.scalar(self.file.incarnation, pa.string()), part.num_rows)
            yield pa.RecordBatch.from_arrays([*part.columns, life], schema=TABLE_SCHEMA)


def _parquet(batches: Iterable[MessageBatch], rows: _Rows) -> tuple[int, Data, RowBounds | None]:
    sink = PagedFile()
    writer: pq.ParquetWriter | None = None
    waiting: list[pa.RecordBatch] = []
    bounds: RowBounds | None = None
    count = size = 0

    def write() -> None:
        nonlocal writer, size
        table = pa.Table.from_batches(waiting)
        writer = writer or pq.ParquetWriter(sink, table.schema, compression="zstd", write_page_checksum=True)
        writer.write_table(table, row_group_size=max(1, table.num_rows))
        waiting.clear()
        size = 0

    for batch in batches:
        if not batch.num_rows:
            continue
        size += batch.nbytes
        count += batch.num_rows
        waiting += rows.of(batch)
        own = RowBounds.of(batch)
        bounds = own if bounds is None else bounds.joined(own)
        if size >= _GROUP_BYTES:
            write()
    if waiting:
        write()
    if writer is not None:
        writer.close()
    return count, sink.content(), bounds


def _json_lines(batches: Iterable[MessageBatch], rows: _Rows) -> tuple[int, Data, RowBounds | None]:
    count = 0
    lines = PagedFile()
    for batch in batches:
        for part in split_batch(batch, _LINES_BYTES):
            lines.write(encode_lines(part, rows.file.stream))
        count += batch.num_rows
    return count, lines.content(), None


def _days(batches: list[MessageBatch]) -> Iterator[tuple[str, list[pa.RecordBatch]]]:
    """Yield the messages of each day, in their order. Holds a copy of them."""
    if not batches:
        return
    table = pa.Table.from_batches([as_text_subjects(batch) for batch in batches])
    days = pc.divide(pc.subtract(table["timestamp_ns"], _rest(table["timestamp_ns"])), _DAY_NS)
    for day in pc.unique(days).to_pylist():
        shown = pa.scalar(day, pa.int32()).cast(pa.date32()).as_py().isoformat()
        yield shown, table.filter(pc.equal(days, day)).to_batches()


def _rest(times: Any) -> Any:
    """Return what of times is after the beginning of their days; also before 1970, where division rounds up."""
    rest = pc.subtract(times, pc.multiply(pc.divide(times, _DAY_NS), _DAY_NS))
    return pc.if_else(pc.less(rest, 0), pc.add(rest, _DAY_NS), rest)


def _ends(column: pa.Array) -> tuple[Any, Any]:
    ends = pc.min_max(column)
    return ends["min"].as_py(), ends["max"].as_py()
