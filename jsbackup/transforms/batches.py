"""Operations on a message batch: look at its subjects, replace a column, drop rows, change the size of batches.

A batch has the columns `sequence`, `timestamp_ns`, `subject` (string, or binary if one is not UTF-8), `headers` (null
if none) and `data`, in this order (`formats/batch.py`). Transforms keep the schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import FormatError
from jsbackup.formats import kernels
from jsbackup.formats.batch import columns_from_batch, columns_of_subjects
from jsbackup.formats.mask_rules import ShapedColumn

__all__ = [
    "DATA",
    "HEADERS",
    "SEQUENCE",
    "SUBJECT",
    "TIMESTAMP",
    "MessageBatch",
    "Subjects",
    "array_of",
    "int32_array",
    "keep_rows",
    "matching_subjects",
    "mentions",
    "rebatch",
    "surviving",
    "with_column",
]

if TYPE_CHECKING:
    MessageBatch: TypeAlias = Any  # pyarrow has no type stubs
else:
    MessageBatch = pa.RecordBatch

SEQUENCE, TIMESTAMP, SUBJECT, HEADERS, DATA = range(5)
_NAMES = ["sequence", "timestamp_ns", "subject", "headers", "data"]

# Segments are read in batches of 4 MiB. Half of that is large enough to pass on; twice that is cut.
_LEAST_BYTES = 2 << 20
_MOST_BYTES = 8 << 20


class Subjects:
    """The subjects of a batch. Kernels compare and map all rows; what Python does is done for each distinct one."""

    def __init__(self, batch: MessageBatch) -> None:
        if batch.schema.names != _NAMES:
            raise FormatError(f"not a batch of messages: {', '.join(batch.schema.names)}"[:200])
        self._batch = batch
        self._column = batch.column(SUBJECT)

    @cached_property
    def _encoded(self) -> tuple[pa.Array, list[str]]:
        """The number of each row's distinct subject, and these."""
        encoded = self._column.dictionary_encode()
        texts = [
            text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")
            for text in encoded.dictionary.to_pylist()
        ]
        return encoded.indices, texts

    def matches(self, patterns: Sequence[str]) -> pa.BooleanArray:
        """Return for each row whether its subject matches one of the patterns."""
        return matching_subjects(self._column, patterns)

    def sets(self, patterns: Sequence[str]) -> tuple[bytes, tuple[tuple[int, ...], ...]]:
        """Return the number of each row's set (packed int32), and the sets: which patterns its subject matches."""
        if not self._batch.num_rows:
            return b"", ()
        return kernels.SubjectMatcher(_raw(patterns)).sets(columns_from_batch(self._batch))

    def mapped(self, stages: Sequence[Sequence[tuple[bytes, Sequence[bytes | int]]]]) -> pa.Array | None:
        """Return the column of subjects after stages of maps (`kernels.SubjectMapper`); None if nothing changes."""
        if not self._batch.num_rows:
            return None
        mapped = kernels.SubjectMapper(stages).map(columns_from_batch(self._batch))
        return None if mapped is None else array_of(self._column.type, mapped)

    def rows(self, wanted: Callable[[str], bool]) -> pa.BooleanArray:
        """Return for each row whether its subject is wanted."""
        numbers, texts = self._encoded
        return pa.array([wanted(text) for text in texts], pa.bool_()).take(numbers)

    def translated(self, change: Callable[[str], str]) -> pa.Array:
        """Return the column with each distinct subject changed."""
        numbers, texts = self._encoded
        changed: list[Any] = [change(text) for text in texts]
        if pa.types.is_binary(self._column.type):
            changed = [text.encode("utf-8", "surrogateescape") for text in changed]
        return pa.array(changed, self._column.type).take(numbers)

    def __iter__(self) -> Iterator[str]:
        """Yield the subject of each row."""
        numbers, texts = self._encoded
        return (texts[index] for index in numbers.to_pylist())


def matching_subjects(column: pa.Array, patterns: Sequence[str]) -> pa.BooleanArray:
    """Return for each subject of a column whether it matches one of the patterns."""
    if not len(column):
        return pa.array([], pa.bool_())
    numbers = kernels.SubjectMatcher(_raw(patterns)).first(columns_of_subjects(column))
    return pc.greater_equal(int32_array(numbers), 0)


def _raw(patterns: Sequence[str]) -> list[bytes]:
    return [pattern.encode("utf-8", "surrogateescape") for pattern in patterns]


def int32_array(packed: bytes) -> pa.Array:
    """Return packed numbers as an array."""
    return pa.Array.from_buffers(pa.int32(), len(packed) // 4, [None, pa.py_buffer(packed)])


def array_of(kind: pa.DataType, column: ShapedColumn, validity: bytes | memoryview | None = None) -> pa.Array:
    """Return a column that a kernel has made as an array of strings or of bytes, without copying it."""
    valid = None if validity is None else pa.py_buffer(validity)
    count = memoryview(column.offsets).nbytes // 4 - 1
    return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(column.offsets), pa.py_buffer(column.values)])


def mentions(column: pa.Array, pattern: re.Pattern[bytes]) -> bool:
    """Return whether a pattern is anywhere in a column of bytes, or across its rows.

    That takes a fraction of the time of a look at each row.
    """
    _, offsets, values = column.buffers()
    if values is None or not len(column):
        return False
    ends = memoryview(offsets).cast("B").cast("i")
    return pattern.search(memoryview(values)[ends[column.offset] : ends[column.offset + len(column)]]) is not None


def with_column(batch: MessageBatch, index: int, column: pa.Array | Sequence[bytes | None]) -> MessageBatch:
    """Return the batch with column `index` replaced; values are converted to the type of the column."""
    columns = batch.columns
    columns[index] = column if isinstance(column, pa.Array) else pa.array(column, batch.schema.field(index).type)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def keep_rows(batch: MessageBatch, rows: pa.BooleanArray) -> MessageBatch:
    """Return the rows that are true; the batch itself, not a copy, if all are."""
    return batch if rows.true_count == batch.num_rows else batch.filter(rows)


def rebatch(batches: Iterable[MessageBatch]) -> Iterator[MessageBatch]:
    """Yield the same rows in batches of 2 to 8 MiB, if possible: small batches are joined, large ones cut."""
    held: list[MessageBatch] = []
    held_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if held and held[0].schema != batch.schema:
            yield _joined(held)
            held, held_bytes = [], 0
        size = batch.nbytes
        if not held and _LEAST_BYTES <= size <= _MOST_BYTES:
            yield batch
            continue
        for piece in _cut(batch, size):
            held.append(piece)
            held_bytes += piece.nbytes
            if held_bytes >= _LEAST_BYTES:
                yield _joined(held)
                held, held_bytes = [], 0
    if held:
        yield _joined(held)


def _cut(batch: MessageBatch, size: int) -> Iterator[MessageBatch]:
    if size <= _MOST_BYTES or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    for part in (batch.slice(0, half), batch.slice(half)):
        yield from _cut(part, part.nbytes)


def _joined(batches: list[MessageBatch]) -> MessageBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def surviving(batch: MessageBatch, sequences: set[int]) -> set[int]:
    """Return those of `sequences` that are in the batch."""
    wanted = pa.array([sequence for sequence in sequences if sequence < 1 << 63], pa.int64())
    column = batch.column(SEQUENCE)
    return set(column.filter(pc.is_in(column, value_set=wanted)).to_pylist())
