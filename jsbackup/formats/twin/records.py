"""Records of message blocks, which an archive v1 has.

Archive-v1 record (nats-server `server/filestore.go`, the same from 2.10 to 2.15), little endian:
`length u32 · sequence u64 · timestamp i64 · subject length u16 · subject · [header length u32 · headers] · payload ·
HighwayHash-64`. Bit 31 of the length says that headers are there. Bit 63 of the sequence marks an erased message or a
skipped sequence, bit 62 a tombstone, which speaks about another message. The checksum covers sequence and timestamp as
stored, subject, headers and payload, but no length. Records longer than 32 MiB are damage to the server.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from struct import Struct
from typing import TYPE_CHECKING

from jsbackup.errors import FormatError
from jsbackup.formats.batch import Columns
from jsbackup.formats.column_reader import ColumnReader, bytes_of
from jsbackup.formats.twin.column_writer import MAX_TAKE_BYTES, ColumnWriter
from jsbackup.formats.twin.highwayhash import HighwayHash

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["MAX_RECORD_BYTES", "decode_records", "encode_records"]

# The server's own limit for a record (rlBadThresh).
MAX_RECORD_BYTES = 32 << 20
_ERASED = 1 << 63
_TOMBSTONE = 1 << 62
_RECORD_HEAD = Struct("<IQqH")
_RECORD_EMPTY = _RECORD_HEAD.size + 8
_U32 = Struct("<I")


def decode_records(
    block: Buffer, key: bytes, offset: int, max_bytes: int, first_seq: int, after_seq: int, deleted: Buffer
) -> tuple[Columns, bytes, int, int]:
    """Decode the records of a whole message block from `offset` on.

    Returns the live messages, the sequences named by tombstones (packed uint64, in order of occurrence), the offset of
    the first record not read (the block's length at its end) and the highest sequence, from `after_seq` on, live or
    dead. Dead are: erased ones, sequence 0, those below `first_seq`, those that do not rise, those in `deleted`
    (sorted, packed uint64). Stops once the records of live messages reach `max_bytes` or `MAX_TAKE_BYTES`. Every
    checksum is verified, also those of dead records and tombstones, as the server does.
    """
    view = bytes_of(block)
    end = len(view)
    if not 0 <= offset <= end:
        raise ValueError("offset is outside the block")
    packed = bytes_of(deleted)
    if len(packed) % 8:
        raise ValueError("deleted sequences have 8 bytes each")
    hidden = packed.cast("Q")
    limit = min(max_bytes, MAX_TAKE_BYTES)
    if len(key) != 32:
        raise ValueError("a HighwayHash key has 32 bytes")
    rows = ColumnWriter()
    tombstones = array("Q")
    at, last, taken = offset, after_seq, 0
    while at < end and (taken < limit or taken == 0):
        if end - at < _RECORD_EMPTY:
            raise FormatError(f"message block: cut short at byte {at}")
        length, sequence, timestamp, subject = _RECORD_HEAD.unpack_from(view, at)
        has_headers = length >> 31
        length &= 0x7FFFFFFF
        prefix = subject + 4 * has_headers
        if length > MAX_RECORD_BYTES or length < _RECORD_EMPTY + prefix:
            raise FormatError(f"message block: bad record length at byte {at}")
        if length > end - at:
            raise FormatError(f"message block: cut short at byte {at}")
        body = at + _RECORD_HEAD.size
        stop = at + length - 8
        hasher = HighwayHash(key)
        hasher.update(view[at + 4 : at + 20])
        hasher.update(view[body : body + subject])
        hasher.update(view[body + prefix : stop])
        if hasher.digest64() != view[stop : stop + 8]:
            raise FormatError(f"message block: wrong checksum of the record at byte {at}")
        start = at
        at += length
        if sequence & _TOMBSTONE:
            tombstones.append(sequence & ~(_TOMBSTONE | _ERASED))
            continue
        erased = sequence & _ERASED
        sequence &= ~_ERASED
        if sequence < first_seq or sequence <= last:
            continue
        last = sequence
        if erased or _contains(hidden, sequence):
            continue
        headers = 0
        if has_headers:
            (headers,) = _U32.unpack_from(view, body + subject)
            if headers > stop - body - prefix:
                raise FormatError(f"message block: bad header length of the record at byte {start}")
        if has_headers:
            content = memoryview(bytes(view[body : body + subject]) + view[body + prefix : stop])
        else:
            content = view[body:stop]
        rows.append(sequence, timestamp, content, subject, headers=headers)
        taken += length
    return rows.columns(), tombstones.tobytes(), at, last


def _contains(ordered: memoryview, value: int) -> bool:
    at = bisect_left(ordered, value)
    return at < len(ordered) and ordered[at] == value


def encode_records(columns: Columns, row: int, key: bytes, max_bytes: int) -> tuple[bytes, int]:
    """Encode records from `row` on while they fit in `max_bytes` (at least one); also return the next row.

    Raises `FormatError` for records that no server would read back: over 32 MiB, or sequences of 62 bits or more.
    """
    reader = ColumnReader(columns)
    if not 0 <= row <= columns.count:
        raise ValueError("row is outside the batch")
    if len(key) != 32:
        raise ValueError("a HighwayHash key has 32 bytes")
    limit = min(max_bytes, MAX_TAKE_BYTES)
    out = bytearray()
    first = row
    last = 0
    while row < columns.count:
        sequence = reader.sequences[row]
        if sequence <= last:
            raise FormatError(f"message batch: sequence {sequence} after {last} in row {row}")
        if sequence >= _TOMBSTONE:
            raise FormatError(f"message batch: sequence {sequence} out of range in row {row}")
        last = sequence
        subject, headers, data = reader.content(row)
        length = _RECORD_EMPTY + len(subject) + len(headers) + len(data) + (4 if headers else 0)
        if length > MAX_RECORD_BYTES:
            raise FormatError(f"message batch: the message in row {row} is too large for a message block")
        if row > first and len(out) + length > limit:
            break
        flagged = length | (1 << 31 if headers else 0)
        start = len(out)
        out += _RECORD_HEAD.pack(flagged, sequence, reader.timestamps[row], len(subject))
        hasher = HighwayHash(key)
        hasher.update(bytes(out[start + 4 : start + 20]))
        for part in (subject, headers, data):
            hasher.update(part)
        out += subject
        if headers:
            out += _U32.pack(len(headers))
            out += headers
        out += data
        out += hasher.digest64()
        row += 1
    return bytes(out), row
