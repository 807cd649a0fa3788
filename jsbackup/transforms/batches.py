"""Operations on a message batch: look at its subjects, replace a column, drop rows, change the size of batches.

A batch has the columns `sequence`, `timestamp_ns`, `subject` (string, or binary if one is not UTF-8), `headers` (null
if none) and `data`, in this order (`formats/batch.py`). Transforms keep the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from jsbackup.errors import FormatError

__all__ = [
    "DATA",
    "HEADERS",
    "SEQUENCE",
    "SUBJECT",
    "TIMESTAMP",
    "MessageBatch",
    "Subjects",
    "keep_rows",
    "rebatch",
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
    """The distinct subjects of a batch: what depends on the subject is computed only once for each."""

    def __init__(self, batch: MessageBatch) -> None:
        if batch.schema.names != _NAMES:
            raise FormatError(f"not a batch of messages: {', '.join(batch.schema.names)}"[:200])
        column = batch.column(SUBJECT)
        encoded = column.dictionary_encode()
        self._type = column.type
        self._rows = encoded.indices
        self.texts: list[str] = [
            text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")
            for text in encoded.dictionary.to_pylist()
        ]

    def rows(self, wanted: Callable[[str], bool]) -> pa.BooleanArray:
        """Return for each row whether its subject is wanted."""
        return pa.array([wanted(text) for text in self.texts], pa.bool_()).take(self._rows)

    def exchanged(self, change: Callable[[str], str]) -> pa.Array | None:
        """Return the column of changed subjects; None if nothing changes."""
        changed = [change(text) for text in self.texts]
        if changed == self.texts:
            return None
        raw = [text.encode("utf-8", "surrogateescape") for text in changed]
        return pa.array(raw, pa.binary()).cast(self._type).take(self._rows)

    def __iter__(self) -> Iterator[str]:
        """Yield the subject of each row."""
        return (self.texts[index] for index in self._rows.to_pylist())


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
