"""The messages of a stored segment as rows for Spark, read by a task from our own store.

The segment is read whole, and verified against the manifest before it is decoded: a damaged footer has no checksum; it
ends the process when its statistics are read (pyarrow 26), or hides row groups. With fewer columns or with bounds, only
the row groups and columns that are needed are decoded. If only the stream and the backup are asked for, as to count
messages, their number is that in the manifest, and nothing is read.

Measured, two columns of a local segment of 30 MB that cannot be compressed: 30 ms, and 5 by ranges; of one of JSON with
32 MiB, 1.7 MB stored: 5 ms and 4.

Join short batches of messages: each has some cost, whatever its length, and short segments have short ones.

Measured, 20,000 segments of four messages: statistics take 47 seconds of a processor, and 12 with joined batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Self, cast

import pyarrow as pa

from jsbackup.formats.segment import decode_segment, scan_segment
from jsbackup.pipeline.messages.bounds import ALL, Bounds
from jsbackup.pipeline.messages.columns import (
    CONSTANT,
    as_text_subjects,
    check_types,
    rows_alone,
    shaped,
    stored_columns,
)
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.repository import Repository

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["RowColumns", "gathered", "segment_rows"]

# As many rows as a batch for Spark has. A batch with so many bytes is long enough.
_MOST_ROWS, _MOST_BYTES = 10_000, 2 << 20


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `batches`, in order, in fewer batches. Long ones come as they are, and so do those of another
    schema than their neighbours. Batches without rows do not come.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        more_rows, more_bytes = batch.num_rows, batch.nbytes
        if not more_rows:
            continue
        fits = rows + more_rows <= _MOST_ROWS and size + more_bytes <= _MOST_BYTES
        if waiting and not (fits and batch.schema == waiting[0].schema):
            yield from _joined(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows, size = rows + more_rows, size + more_bytes
    yield from _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) < 2:
        yield from batches
    else:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Names of columns, in order."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, schema: StructType) -> Self:
        """Return those of a schema that Spark has, of us or of a user. Raises UsageError for other columns or types."""
        return cls(check_types({field.name: field.dataType.simpleString() for field in schema.fields}))

    @property
    def are_constant(self) -> bool:
        """Whether each is the same for all messages of a stream."""
        return CONSTANT.issuperset(self.names)

    def rows(
        self, repository: Repository, ref: SegmentRef, bounds: Bounds, *, stream: str, backup: str
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a segment within `bounds`, as `segment_rows`. Raises the same errors."""
        yield from segment_rows(repository, ref, self.names, bounds, stream=stream, backup=backup)


def segment_rows(
    repository: Repository, ref: SegmentRef, columns: Sequence[str], bounds: Bounds, *, stream: str, backup: str
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a segment of `stream` within `bounds`, with these columns (`columns.py`), in batches.

    Raises:
        IntegrityError: the segment is missing, or not the stored one.
        KeyUnavailable, StoreError: it cannot be read.
    """
    if CONSTANT.issuperset(columns) and not bounds.columns:
        yield from rows_alone(ref.messages, columns, stream, backup)
        return
    for batch in _batches(repository, ref, columns, bounds):
        yield from shaped(bounds.keep(batch), columns, stream, backup)


def _batches(
    repository: Repository, ref: SegmentRef, columns: Sequence[str], bounds: Bounds
) -> Iterator[pa.RecordBatch]:
    needed = stored_columns((*columns, *bounds.columns))
    # SHA-256 proves that it is the object in the manifest. Digests of messages are checked by `verify`: computing them
    # takes longer than everything else.
    data = repository.objects.fetch(ref)
    if bounds == ALL and "data" in needed:
        batches: Iterator[pa.RecordBatch] = decode_segment(data)
    else:
        file = cast(BinaryIO, pa.BufferReader(data))
        batches = scan_segment(file, needed, bounds.wants_group)
    yield from map(as_text_subjects, batches)
