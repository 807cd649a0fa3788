"""The messages of segments as a source of DuckDB that reads them when they are asked for, in order, from any store.

A segment is read once, compared with the manifest, and only the columns that the query needs are decoded. DuckDB asks
for the schema of a source when it plans a query that names it, and for a new stream for each scan. A query that needs
no column, as `count(*)`, gets as many rows as the manifest says, and nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from typing import BinaryIO, Final, cast

import pyarrow as pa

from jsbackup.errors import JsBackupError, UsageError
from jsbackup.formats.segment import scan_segment
from jsbackup.memory import give_back
from jsbackup.pipeline.messages.bounds import ALL, Bounds
from jsbackup.pipeline.messages.columns import microseconds
from jsbackup.pipeline.messages.stream_walk import MessageRange
from jsbackup.pipeline.queries.duckdb_plan import Needs
from jsbackup.repository.background import in_order
from jsbackup.repository.objects import Objects

__all__ = ["STORED_COLUMNS", "SegmentSource"]

STORED_COLUMNS: Final = ("sequence", "timestamp_ns", "subject", "headers", "data")
# DuckDB takes the first column where it needs none.
_ROW: Final = "row"
_SCHEMA: Final = pa.schema(
    [
        (_ROW, pa.null()),
        ("sequence", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("timestamp_ns", pa.int64()),
        ("subject", pa.string()),
        ("headers", pa.binary()),
        ("data", pa.binary()),
        ("incarnation", pa.string()),
        ("life", pa.string()),
        ("backup", pa.string()),
    ]
)
_MOST_ROWS: Final = 100_000
# A thread reads so much at a time; each batch of DuckDB has some cost of its own. Of large segments one is held ahead.
_THREADS: Final = 4
_PIECE_SEGMENTS, _PIECE_BYTES = 64, 8 << 20
# Each thread of DuckDB makes some copies of a batch. Measured, two values of JSON, by two threads: 318 MiB with batches
# of 4 MiB, 282 to 289 with 1 MiB.
_BATCH_BYTES: Final = 1 << 20


class SegmentSource:
    """A source of the messages of `ranges`, which yields those within bounds. `needs` says what a query needs: other
    columns are null. `used`: DuckDB has planned a query that names it. `error` is why a stream has ended early.
    """

    def __init__(self, objects: Objects, ranges: Callable[[Bounds], Iterable[MessageRange]]) -> None:
        self._objects = objects
        self.ranges = ranges
        self.needs = Needs()
        self.used = False
        self.error: JsBackupError | None = None

    def __arrow_c_schema__(self) -> object:
        self.used = True
        return _SCHEMA.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(_SCHEMA, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def reader(self, columns: Sequence[str] = ()) -> pa.RecordBatchReader:
        """Return a reader of all messages, with all columns or some. Raises UsageError if there is no such column."""
        names = [*columns] or [name for name in _SCHEMA.names if name != _ROW]
        if unknown := [name for name in names if name not in _SCHEMA.names or name == _ROW]:
            raise UsageError(f"there is no column {unknown[0]!r}", hint=f"Choose from {', '.join(_SCHEMA.names[1:])}.")
        self.needs = Needs(frozenset(names))
        schema = pa.schema([_SCHEMA.field(name) for name in names])
        return pa.RecordBatchReader.from_batches(schema, (batch.select(names) for batch in self._batches()))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        ranges = iter(self.ranges(self.needs.bounds))
        try:
            if (first := next(ranges, None)) is None:
                return
            threads, ahead = (1, 1) if first.ref.bytes >= _PIECE_BYTES else (_THREADS, 2 * _THREADS)
            with closing(in_order(self._tasks(chain([first], ranges)), threads, ahead)) as batches:
                for batch in chain.from_iterable(batches):
                    rows = max(1, batch.num_rows * _BATCH_BYTES // max(batch.nbytes, 1))
                    yield from (batch.slice(at, rows) for at in range(0, batch.num_rows, rows))
                    give_back()
        except JsBackupError as error:
            self.error = error
            raise

    def _tasks(self, ranges: Iterable[MessageRange]) -> Iterator[Callable[[], Iterable[pa.RecordBatch]]]:
        needs, total = self.needs, 0
        piece: list[MessageRange] = []
        names = _SCHEMA.names if needs.columns is None else [name for name in _SCHEMA.names if name in needs.columns]
        for message_range in ranges:
            if piece and (len(piece) >= _PIECE_SEGMENTS or total + message_range.ref.bytes > _PIECE_BYTES):
                yield partial(_read, self._objects, tuple(piece), names, needs.bounds)
                piece, total = [], 0
            piece.append(message_range)
            total += message_range.ref.bytes
        if piece:
            yield partial(_read, self._objects, tuple(piece), names, needs.bounds)


def _read(
    objects: Objects, ranges: Sequence[MessageRange], names: Sequence[str], bounds: Bounds
) -> Iterable[pa.RecordBatch]:
    """Return the messages of ranges, with nulls in columns that are not among `names`. A single segment is fetched
    here, and decoded by row groups when these are asked for.
    """
    stored = {"timestamp_ns" if name == "time" else name for name in names}.intersection(STORED_COLUMNS)
    fetched = [
        None if message_range.is_whole and not stored else objects.fetch(message_range.ref) for message_range in ranges
    ]

    def decoded(message_range: MessageRange, data: bytes | None) -> Iterator[pa.RecordBatch]:
        if data is None:
            for at in range(0, message_range.ref.messages, _MOST_ROWS):
                yield pa.record_batch([pa.nulls(min(_MOST_ROWS, message_range.ref.messages - at))], [_ROW])
            return
        own = (
            ALL
            if message_range.is_whole
            else Bounds((message_range.first_seq, message_range.last_seq), only=message_range.only)
        )
        columns = [name for name in STORED_COLUMNS if name in {*stored, *own.columns}]
        yield from map(own.keep, scan_segment(cast(BinaryIO, pa.BufferReader(data)), columns, bounds.wants_group))

    batches = (
        _shaped(batch, message_range, names)
        for message_range, data in zip(ranges, fetched, strict=True)
        for batch in decoded(message_range, data)
    )
    return batches if len(ranges) == 1 else pa.Table.from_batches(batches, _SCHEMA).combine_chunks().to_batches()


def _as_text(subjects: pa.Array) -> pa.Array:
    """Return subjects that are not all UTF-8 as texts with escapes (`\\xff`)."""
    texts = (subject.decode(errors="backslashreplace") for subject in subjects.to_pylist())
    return pa.array(texts, pa.string())


def _shaped(batch: pa.RecordBatch, message_range: MessageRange, names: Sequence[str]) -> pa.RecordBatch:
    constants = {
        "incarnation": message_range.key.incarnation,
        "life": message_range.key.life,
        "backup": message_range.backup,
    }
    rows, arrays = batch.num_rows, []
    for field in _SCHEMA:
        if field.name not in names or field.name == _ROW:
            array = pa.nulls(rows, field.type)
        elif field.name in constants:
            array = pa.repeat(pa.scalar(constants[field.name], field.type), rows)
        elif field.name == "time":
            array = microseconds(batch.column("timestamp_ns"))
        else:
            array = batch.column(field.name)
        arrays.append(array if array.type == field.type else _as_text(array))
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
