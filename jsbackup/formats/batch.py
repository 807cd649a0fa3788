"""A message batch: an Arrow `RecordBatch` of `BATCH_SCHEMA`, used everywhere from the wire to the repository.

Rows are messages in strictly rising `sequence`; a gap is a deleted message. `headers` is null for a message without a
header block and otherwise the block byte for byte (`NATS/1.0\r\n…\r\n\r\n`). Subjects that are not UTF-8 (the
server does not require it) make a batch of `BINARY_SUBJECT_SCHEMA` instead, which has the same layout in memory.

`Columns` is the same as plain buffers, which the kernels produce and consume, so that they do not depend on Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import pyarrow as pa
import pyarrow.ipc as ipc

from jsbackup.errors import FormatError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "BATCH_SCHEMA",
    "BINARY_SUBJECT_SCHEMA",
    "ColumnReader",
    "Columns",
    "PackedBatch",
    "batch_from_columns",
    "bytes_of",
    "columns_from_batch",
    "columns_of_subjects",
    "typed_buffer",
]


def _schema(subject: pa.DataType) -> pa.Schema:
    return pa.schema(
        [
            pa.field("sequence", pa.int64(), nullable=False),
            pa.field("timestamp_ns", pa.int64(), nullable=False),
            pa.field("subject", subject, nullable=False),
            pa.field("headers", pa.binary(), nullable=True),
            pa.field("data", pa.binary(), nullable=False),
        ]
    )


BATCH_SCHEMA = _schema(pa.string())
BINARY_SUBJECT_SCHEMA = _schema(pa.binary())


class Columns(NamedTuple):
    """A batch as buffers in Arrow's layout (little endian), for the kernels.

    `sequences` and `timestamps` hold `count` int64 each; each `*_offsets` holds `count + 1` int32 (the first need not
    be 0 in a sliced batch), pointing into the buffer beside it. `header_validity` is an Arrow validity bitmap with bit
    0 for row 0, or None if every row has headers; a row without its bit has no header block.
    """

    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    sequences: bytes | memoryview
    timestamps: bytes | memoryview
    subject_offsets: bytes | memoryview
    subjects: bytes | memoryview
    header_validity: bytes | memoryview | None
    header_offsets: bytes | memoryview
    headers: bytes | memoryview
    data_offsets: bytes | memoryview
    data: bytes | memoryview


def batch_from_columns(columns: Columns) -> pa.RecordBatch:
    """Wrap buffers as a batch, without copying them. Subjects that are not UTF-8 yield `BINARY_SUBJECT_SCHEMA`."""
    count = columns.count

    def var(kind: pa.DataType, validity: object, offsets: object, data: object) -> pa.Array:
        valid = None if validity is None else pa.py_buffer(validity)
        return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(offsets), pa.py_buffer(data)])

    def fixed(data: object) -> pa.Array:
        return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(data)])

    schema = BATCH_SCHEMA
    subject = var(pa.string(), None, columns.subject_offsets, columns.subjects)
    try:
        subject.validate(full=True)
    except pa.ArrowInvalid:
        schema = BINARY_SUBJECT_SCHEMA
        subject = var(pa.binary(), None, columns.subject_offsets, columns.subjects)
    return pa.RecordBatch.from_arrays(
        [
            fixed(columns.sequences),
            fixed(columns.timestamps),
            subject,
            var(pa.binary(), columns.header_validity, columns.header_offsets, columns.headers),
            var(pa.binary(), None, columns.data_offsets, columns.data),
        ],
        schema=schema,
    )


def columns_from_batch(batch: pa.RecordBatch) -> Columns:
    """Return a batch's buffers, respecting slices; only a validity bitmap that starts inside a byte is copied."""
    count = batch.num_rows
    sequence, timestamp, subject, headers, data = (batch.column(i) for i in range(5))

    def fixed(array: pa.Array) -> memoryview:
        return memoryview(array.buffers()[1])[array.offset * 8 : (array.offset + count) * 8]

    validity: bytes | memoryview | None = None
    if headers.null_count:
        bitmap = headers.buffers()[0]
        if headers.offset % 8 == 0:
            validity = memoryview(bitmap)[headers.offset // 8 :]
        else:
            whole = int.from_bytes(memoryview(bitmap), "little") >> headers.offset
            validity = (whole & ((1 << count) - 1)).to_bytes((count + 7) // 8, "little")
    subject_offsets, subjects = _buffers(subject)
    header_offsets, header_bytes = _buffers(headers)
    data_offsets, data_bytes = _buffers(data)
    return Columns(
        count,
        fixed(sequence),
        fixed(timestamp),
        subject_offsets,
        subjects,
        validity,
        header_offsets,
        header_bytes,
        data_offsets,
        data_bytes,
    )


def columns_of_subjects(subjects: pa.Array) -> Columns:
    """Return a column of subjects as a batch, for a kernel that looks at nothing else."""
    offsets, values = _buffers(subjects)
    blank = bytes(8 * len(subjects))
    return Columns(len(subjects), blank, blank, offsets, values, None, offsets, values, offsets, values)


def _buffers(array: pa.Array) -> tuple[memoryview, memoryview]:
    """Return offsets and values of an array of strings or bytes."""
    _, offsets, values = array.buffers()
    if not len(array):
        return memoryview(bytes(4)), memoryview(b"")
    view = memoryview(offsets)[array.offset * 4 : (array.offset + len(array) + 1) * 4]
    return view, memoryview(values) if values is not None else memoryview(b"")


# --- compressed batch ---
#
# A batch kept compressed in memory: Arrow's own stream format, its buffers compressed with zstd.
#
# For messages that may not be needed. Measured, one core of a busy machine: 1.2 to 2.4 GB/s in and 3 to 6 GB/s out with
# messages of 256 B, three times that with large ones; JSON shrinks to a sixteenth. That is a tenth of the time of
# writing them as Parquet, and half the time of digesting them. Never stored: the bytes may change between versions.


class PackedBatch:
    """One compressed batch. A slice is compressed without the rest of its batch."""

    __slots__ = ("_data",)

    def __init__(self, batch: pa.RecordBatch) -> None:
        # The system's allocator grows a block without copying it, and returns freed memory at once.
        sink = pa.BufferOutputStream(pa.system_memory_pool())
        options = ipc.IpcWriteOptions(compression="zstd", use_threads=False)
        with ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        self._data = sink.getvalue()

    @property
    def size(self) -> int:
        """The compressed size in bytes."""
        return int(self._data.size)

    def unpack(self) -> pa.RecordBatch:
        return ipc.open_stream(self._data).read_next_batch()


# --- rows of columns ---
#
# For what reads single rows in Python. Every offset is checked: a batch may come from a hostile file.

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
