"""Messages that a tail holds (`tail.py`): the last ones by columns, earlier ones in compressed pieces."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import pyarrow as pa

from jsbackup.errors import FormatError
from jsbackup.formats.batch import BATCH_SCHEMA, BINARY_SUBJECT_SCHEMA
from jsbackup.formats.compressed_batch import PackedBatch
from jsbackup.protocol.events import Message

__all__ = ["LEAST_PIECE_BYTES", "ROW_BYTES", "Piece", "Rows"]

# Messages are compressed by pieces of this many, or of this many raw bytes; fewer only where there is no room.
_PIECE_MESSAGES = 8192
_PIECE_BYTES = 1 << 20
LEAST_PIECE_BYTES = 64 << 10
_ENTRY_BYTES = 16  # of a message besides its contents
ROW_BYTES = 250  # what its Python objects take besides


@dataclass(frozen=True, slots=True)
class Piece:
    """Messages up to sequence `last`, compressed."""

    last: int
    raw_bytes: int
    packed: PackedBatch


class Rows:
    """Messages that are not compressed yet, by columns."""

    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.times: list[int] = []
        self.subjects: list[str] = []
        self.headers: list[bytes | None] = []
        self.data: list[bytes] = []
        self.raw_bytes = 0

    def add(self, sequence: int, timestamp_ns: int, message: Message) -> int:
        """Add a message, and return its raw bytes."""
        self.sequences.append(sequence)
        self.times.append(timestamp_ns)
        self.subjects.append(message.subject)
        self.headers.append(message.headers or None)
        self.data.append(message.data)
        size = len(message.subject) + len(message.headers) + len(message.data) + _ENTRY_BYTES
        self.raw_bytes += size
        return size

    def forget_to(self, sequence: int) -> None:
        """Remove the messages up to `sequence`."""
        count = bisect_right(self.sequences, sequence)
        self.raw_bytes -= self._size(0, count)
        for column in (self.sequences, self.times, self.subjects, self.headers, self.data):
            del column[:count]

    def bytes_after(self, sequence: int) -> int:
        """Return the raw bytes of the messages after `sequence`."""
        return self._size(bisect_right(self.sequences, sequence), len(self.sequences))

    def _size(self, start: int, end: int) -> int:
        return (end - start) * _ENTRY_BYTES + sum(
            len(subject) + len(headers or b"") + len(data)
            for subject, headers, data in zip(
                self.subjects[start:end], self.headers[start:end], self.data[start:end], strict=True
            )
        )

    @property
    def held_bytes(self) -> int:
        return self.raw_bytes + len(self.sequences) * ROW_BYTES

    @property
    def full(self) -> bool:
        return self.raw_bytes >= _PIECE_BYTES or len(self.sequences) >= _PIECE_MESSAGES

    def batch(self, first: int, last: int) -> pa.RecordBatch:
        """Return the messages from `first` to `last`. Raises FormatError for an invalid sequence or time."""
        start, end = bisect_left(self.sequences, first), bisect_right(self.sequences, last)
        schema = BATCH_SCHEMA
        subjects = self.subjects[start:end]
        try:
            try:
                array = pa.array(subjects, pa.string())
            except UnicodeEncodeError:
                schema = BINARY_SUBJECT_SCHEMA
                array = pa.array([subject.encode("utf-8", "surrogateescape") for subject in subjects], pa.binary())
            columns = [
                pa.array(self.sequences[start:end], pa.int64()),
                pa.array(self.times[start:end], pa.int64()),
                array,
                pa.array(self.headers[start:end], pa.binary()),
                pa.array(self.data[start:end], pa.binary()),
            ]
            return pa.RecordBatch.from_arrays(columns, schema=schema)
        except (OverflowError, pa.ArrowInvalid) as error:
            raise FormatError("a message has no valid sequence or time") from error

    def packed(self) -> Piece:
        """Compress them. Raises FormatError as `batch`."""
        first, last = self.sequences[0], self.sequences[-1]
        return Piece(last, self.raw_bytes, PackedBatch(self.batch(first, last)))
