"""The messages of a stream's segments as a source of DuckDB that reads them when they are asked for, in order.

For streams of many segments, or of many short ones: pyarrow's dataset holds some 20 KB for each file, and opens it
twice. Here a segment is read once, compared with the manifest, and only the columns that the query needs are decoded.
DuckDB asks for a new stream for each scan of a view. A query that needs no column, as `count(*)`, gets as many rows as
the manifest says, and nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, BinaryIO, Final, cast

import pyarrow as pa

from jsbackup.errors import FormatError, IntegrityError, JsBackupError
from jsbackup.formats.segment import scan_segment
from jsbackup.pipeline.queries.duckdb_plan import Needs
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import parts_of, parts_where, total_of

__all__ = ["SCHEMA", "SegmentSource", "unreadable"]

SCHEMA: Final = pa.schema(
    [
        ("sequence", pa.int64()),
        ("timestamp_ns", pa.int64()),
        ("subject", pa.binary()),  # not UTF-8 in some segments
        ("headers", pa.binary()),
        ("data", pa.binary()),
    ]
)

# DuckDB takes the first column where it needs none.
_ROW: Final = "row"
_COLUMNS: Final = pa.schema([(_ROW, pa.null()), *SCHEMA])
_MOST_ROWS: Final = 100_000

_THREADS: Final = 2
# What a thread reads at a time; each batch of DuckDB has some cost of its own.
_PIECE_SEGMENTS, _PIECE_BYTES = 64, 8 << 20


class SegmentSource:
    """Rows of `SCHEMA`, and a column for those that need none. `needs` has to be set before they are asked for: other
    columns are null, and only segments in its ranges are read. `error` is why a stream has ended early.
    """

    def __init__(self, objects: Objects, segments: Sequence[SegmentRef]) -> None:
        self._objects = objects
        self._segments = segments
        self.needs: Needs | None = None
        self.error: JsBackupError | None = None

    def __arrow_c_schema__(self) -> object:
        return _COLUMNS.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        assert self.needs is not None, "the query is planned before it runs"
        batches = _rows_alone(self._segments) if self.needs.columns <= {_ROW} else self._batches(self.needs)
        reader = pa.RecordBatchReader.from_batches(_COLUMNS, batches)
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self, needs: Needs) -> Iterator[pa.RecordBatch]:
        try:
            with closing(in_order(self._tasks(needs), _THREADS)) as found:
                for batches in found:
                    yield from batches
        except IntegrityError as error:
            self.error = unreadable(error)
            raise
        except JsBackupError as error:
            self.error = error
            raise

    def _tasks(self, needs: Needs) -> Iterator[Callable[[], list[pa.RecordBatch]]]:
        piece: list[SegmentRef] = []
        total = 0
        for ref in parts_where(self._segments, needs.wants_part):
            assert isinstance(ref, SegmentRef), "pages are not yielded"
            if piece and (len(piece) >= _PIECE_SEGMENTS or total + ref.bytes > _PIECE_BYTES):
                yield partial(_read, self._objects, tuple(piece), needs.columns)
                piece, total = [], 0
            piece.append(ref)
            total += ref.bytes
        if piece:
            yield partial(_read, self._objects, tuple(piece), needs.columns)


def _rows_alone(segments: Sequence[SegmentRef]) -> Iterator[pa.RecordBatch]:
    left = total_of(parts_of(segments)).messages
    while left:
        count = min(left, _MOST_ROWS)
        yield pa.RecordBatch.from_arrays([pa.nulls(count, field.type) for field in _COLUMNS], schema=_COLUMNS)
        left -= count


def _read(objects: Objects, refs: Sequence[SegmentRef], wanted: frozenset[str]) -> list[pa.RecordBatch]:
    """Return the messages of segments, with nulls in columns that are not `wanted`."""
    columns = [name for name in SCHEMA.names if name in wanted] or ["sequence"]
    found: list[pa.RecordBatch] = []
    for ref in refs:
        file = cast(BinaryIO, pa.BufferReader(objects.fetch(ref)))
        found += (_shaped(batch, columns) for batch in scan_segment(file, columns, _any_group))
    if len(refs) > 1:
        found = pa.Table.from_batches(found, _COLUMNS).combine_chunks().to_batches()
    return found


def _shaped(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    rows = batch.num_rows
    arrays = [_stored(batch, one) if one.name in columns else pa.nulls(rows, one.type) for one in _COLUMNS]
    return pa.RecordBatch.from_arrays(arrays, schema=_COLUMNS)


def _stored(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    array = batch.column(field.name)
    return array if array.type == field.type else array.view(field.type)


def _any_group(_bounds: Any) -> bool:
    return True


def unreadable(error: IntegrityError) -> FormatError:
    """Return the error of a query that meets a segment, or a list of them, that is damaged or missing."""
    return FormatError(f"the query failed: a segment cannot be read ({error.message})", hint="See 'jsbackup verify'.")
