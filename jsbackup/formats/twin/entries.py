"""Message entries of an archive v2, and digests of them.

Archive-v2 entry (nats-server `server/archive/archive.go`): uvarint name length, zigzag varint timestamp, uvarint
sequence, uvarint header size, uvarint payload size, name, header block, payload. Varints are those of Go's
`encoding/binary`, in which a longer encoding than needed is allowed. The canonical encoding uses the shortest.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from jsbackup.errors import FormatError
from jsbackup.formats.batch import Columns
from jsbackup.formats.column_reader import ColumnReader, bytes_of
from jsbackup.formats.twin.column_writer import MAX_TAKE_BYTES, ColumnWriter
from jsbackup.formats.twin.highwayhash import HighwayHash
from jsbackup.formats.twin.varints import append_uvarint, uvarint

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["MAX_ENTRY_BYTES", "MAX_NAME", "STREAM_DIGEST_KEY", "decode_entries", "encode_entries", "sum_digest"]

# A message is at most 64 MiB (the server's limit for max_payload); a larger entry is damaged, not incomplete.
MAX_ENTRY_BYTES = 96 << 20
STREAM_DIGEST_KEY = b"jsbackup stream digest, version1"
MAX_NAME = 0xFFFF
_U64 = (1 << 64) - 1
_U256 = (1 << 256) - 1


def decode_entries(buffer: Buffer, offset: int, max_bytes: int) -> tuple[Columns, int]:
    """Decode message entries from `offset` on; return them and the offset of the first byte not taken.

    Stops before an incomplete entry, before an entry with sequence 0 (the end of the archive, or not a message) and
    once the entries taken reach `max_bytes` or `MAX_TAKE_BYTES`; the first complete one is always taken. Sequences must
    rise within a call. A header size of 0 means a message without headers.
    """
    view = bytes_of(buffer)
    end = len(view)
    if not 0 <= offset <= end:
        raise ValueError("offset is outside the buffer")
    limit = offset + min(max_bytes, MAX_TAKE_BYTES)
    rows = ColumnWriter()
    at, last = offset, 0
    while at < end and (at < limit or at == offset):
        numbers = []
        cursor = at
        for _ in range(5):
            value, cursor = uvarint(view, cursor, "archive entry")
            if cursor == 0:
                return rows.columns(), at
            numbers.append(value)
            if len(numbers) == 3 and value == 0:
                return rows.columns(), at
        name, zigzag, sequence, headers, payload = numbers
        if sequence >> 63:
            raise FormatError(f"archive entry: sequence {sequence} out of range at byte {at}")
        if name > MAX_NAME or headers > MAX_ENTRY_BYTES or payload > MAX_ENTRY_BYTES - headers:
            raise FormatError(f"archive entry: too large at byte {at}")
        if sequence <= last:
            raise FormatError(f"archive entry: sequence {sequence} after {last} at byte {at}")
        stop = cursor + name + headers + payload
        if stop > end:
            break
        rows.append(sequence, zigzag >> 1 ^ -(zigzag & 1), view[cursor:stop], name, headers=headers)
        at, last = stop, sequence
    return rows.columns(), at


def encode_entries(columns: Columns) -> tuple[bytes, bytes]:
    """Return the canonical archive-v2 encoding of all messages, concatenated, and the end of each as packed int64."""
    reader = ColumnReader(columns)
    out = bytearray()
    ends = array("q")
    last = 0
    for row in range(columns.count):
        sequence, timestamp = reader.sequences[row], reader.timestamps[row]
        if sequence <= last:
            raise FormatError(f"message batch: sequence {sequence} after {last} in row {row}")
        last = sequence
        subject, headers, data = reader.content(row)
        if len(headers) + len(data) > MAX_ENTRY_BYTES:
            raise FormatError(f"message batch: the message in row {row} is too large for an archive")
        for value in (len(subject), (timestamp << 1 ^ timestamp >> 63) & _U64, sequence, len(headers), len(data)):
            append_uvarint(out, value)
        out += subject
        out += headers
        out += data
        ends.append(len(out))
    return bytes(out), ends.tobytes()


def sum_digest(encoded: Buffer, ends: Buffer, total: bytes) -> bytes:
    """Add the HighwayHash-256 (key `STREAM_DIGEST_KEY`) of each entry from `encode_entries` to `total`.

    `total` and the result are 32-byte little-endian integers, as is each hash; the sum is modulo 2^256.
    """
    if len(total) != 32:
        raise ValueError("a digest has 32 bytes")
    view = bytes_of(encoded)
    value = int.from_bytes(total, "little")
    start = 0
    packed = bytes_of(ends)
    if len(packed) % 8:
        raise FormatError("stream digest: bad entry ends")
    for stop in packed.cast("q"):
        if not start <= stop <= len(view):
            raise FormatError("stream digest: bad entry ends")
        hasher = HighwayHash(STREAM_DIGEST_KEY)
        hasher.update(view[start:stop])
        value += int.from_bytes(hasher.digest256(), "little")
        start = stop
    return (value & _U256).to_bytes(32, "little")
