"""Rows of a batch that comes as plain buffers (`Columns`), for the pure-Python kernels.

Every offset is checked: a batch may come from a hostile file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsbackup.errors import FormatError
from jsbackup.formats.batch import Columns

if TYPE_CHECKING:
    from typing import Literal

    from typing_extensions import Buffer

__all__ = ["ColumnReader", "bytes_of", "typed_buffer"]

# The longest subject that an archive can have.
_MAX_NAME = 0xFFFF


def bytes_of(buffer: Buffer) -> memoryview:
    """Return a buffer as bytes."""
    return memoryview(buffer).cast("B")


def typed_buffer(buffer: Buffer, kind: Literal["B", "i", "q"], count: int) -> memoryview:
    """Return the first `count` numbers of a buffer. Raises FormatError if it has fewer."""
    view = bytes_of(buffer)
    size = count * {"B": 1, "i": 4, "q": 8}[kind]
    if len(view) < size:
        raise FormatError("message batch: a buffer is too short")
    return view[:size].cast(kind)


class ColumnReader:
    """Reads rows of `Columns`. Raises FormatError for buffers that are too short, and for bad offsets."""

    __slots__ = ("_offsets", "_validity", "_values", "sequences", "timestamps")

    def __init__(self, columns: Columns) -> None:
        count = columns.count
        if count < 0:
            raise FormatError("message batch: a buffer is too short")
        self.sequences = typed_buffer(columns.sequences, "q", count)
        self.timestamps = typed_buffer(columns.timestamps, "q", count)
        self._offsets = [
            typed_buffer(offsets, "i", count + 1)
            for offsets in (columns.subject_offsets, columns.header_offsets, columns.data_offsets)
        ]
        self._values = [bytes_of(values) for values in (columns.subjects, columns.headers, columns.data)]
        bitmap = columns.header_validity
        self._validity = None if bitmap is None else typed_buffer(bitmap, "B", (count + 7) // 8)

    def content(self, row: int) -> tuple[memoryview, memoryview, memoryview]:
        """Return subject, header block (empty if there is none) and payload of a row."""
        subject, headers, data = self.subject(row), self._slice(1, row), self.data(row)
        if not self.has_headers(row):
            headers = headers[:0]
        if len(subject) > _MAX_NAME:
            raise FormatError(f"message batch: the subject in row {row} has {len(subject)} bytes")
        return subject, headers, data

    def subject(self, row: int) -> memoryview:
        return self._slice(0, row)

    def headers(self, row: int) -> memoryview | None:
        """Return the header block of a row, None if there is none."""
        block = self._slice(1, row)
        return block if self.has_headers(row) else None

    def data(self, row: int) -> memoryview:
        return self._slice(2, row)

    def has_headers(self, row: int) -> bool:
        return self._validity is None or bool(self._validity[row >> 3] >> (row & 7) & 1)

    def _slice(self, column: int, row: int) -> memoryview:
        start, stop = self._offsets[column][row], self._offsets[column][row + 1]
        values = self._values[column]
        if not 0 <= start <= stop <= len(values):
            raise FormatError(f"message batch: bad offsets in row {row}")
        return values[start:stop]
