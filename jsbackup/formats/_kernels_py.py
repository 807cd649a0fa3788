"""The readable twin of the compiled kernel `_kernels.pyx`: same names, same results, same error messages.

It is used if the kernel could not be compiled, and it is the specification that the kernel is tested against. Masks and
subjects are in `_shaping_py.py`, all else here, each part with its format.

`index.db` subject entry (nats-server `server/filestore.go`, `recoverFullState`): uvarint length, subject, uvarint
messages, uvarint first block, and uvarint last block where there is more than one message or the file's version is 4 or
later. A length of zero has nothing behind it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from jsbackup.errors import FormatError
from jsbackup.formats._shaping_py import Masker, SubjectMapper, SubjectMatcher
from jsbackup.formats.batch import ColumnReader, Columns, bytes_of
from jsbackup.formats.varints import append_uvarint, unzigzag, uvarint, zigzag

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "MAX_ENTRY_BYTES",
    "MAX_RECORD_BYTES",
    "MAX_TAKE_BYTES",
    "STREAM_DIGEST_KEY",
    "HighwayHash",
    "Masker",
    "SubjectMapper",
    "SubjectMatcher",
    "decode_entries",
    "decode_records",
    "encode_entries",
    "encode_records",
    "extremes",
    "first_fall",
    "s2_decode_block",
    "skip_index_subjects",
    "sum_digest",
]


# --- columns ---

# One call takes no more than this plus one entry, so that int32 offsets are always enough.
MAX_TAKE_BYTES = 1 << 30


class _Row(NamedTuple):
    """A message; `headers` is empty if it has none."""

    sequence: int
    timestamp_ns: int
    subject: bytes
    headers: bytes
    data: bytes


def _columns_of(rows: Sequence[_Row]) -> Columns:
    validity = bytearray((len(rows) + 7) // 8)
    for number, row in enumerate(rows):
        validity[number >> 3] |= bool(row.headers) << (number & 7)
    subjects = [row.subject for row in rows]
    headers, data = [row.headers for row in rows], [row.data for row in rows]
    return Columns(
        len(rows),
        array("q", [row.sequence for row in rows]).tobytes(),
        array("q", [row.timestamp_ns for row in rows]).tobytes(),
        _offsets_of(subjects),
        b"".join(subjects),
        None if all(headers) else bytes(validity),
        _offsets_of(headers),
        b"".join(headers),
        _offsets_of(data),
        b"".join(data),
    )


def _offsets_of(values: Sequence[bytes]) -> bytes:
    return array("i", accumulate(map(len, values), initial=0)).tobytes()


# --- highwayhash ---
#
# HighwayHash (github.com/google/highwayhash, `highwayhash/hh_portable.h`): 64 and 256 bit, lanes little endian.

_U64 = (1 << 64) - 1
_M32 = 0xFFFFFFFF
_LANES = Struct("<4Q")
_INIT0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_INIT1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
# The permutation of the bytes of a pair of lanes; spreads the bits that a multiplication mixed well.
_ZIPPER_PAIR = (3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7)
_ZIPPER = (*_ZIPPER_PAIR, *(place + 16 for place in _ZIPPER_PAIR))


@dataclass
class _State:
    """Four lanes of each of the four words of the reference: v0, v1, mul0, mul1."""

    a: list[int]
    b: list[int]
    m: list[int]
    n: list[int]


def _initial(key: bytes) -> _State:
    lanes = _LANES.unpack(key)
    return _State(
        [word ^ lane for word, lane in zip(_INIT0, lanes, strict=True)],
        [word ^ _swapped(lane) for word, lane in zip(_INIT1, lanes, strict=True)],
        list(_INIT0),
        list(_INIT1),
    )


def _swapped(word: int) -> int:
    return word >> 32 | (word & _M32) << 32


def _absorb(state: _State, data: Buffer) -> None:
    """Mix in whole packets of 32 bytes."""
    a, b, m, n = state.a, state.b, state.m, state.n
    for packet in _LANES.iter_unpack(data):
        for i, lane in enumerate(packet):
            b[i] = (b[i] + lane + m[i]) & _U64
            m[i] ^= (b[i] & _M32) * (a[i] >> 32)
            a[i] = (a[i] + n[i]) & _U64
            n[i] ^= (a[i] & _M32) * (b[i] >> 32)
        _add_zipped(a, b)
        _add_zipped(b, a)


def _add_zipped(target: list[int], source: list[int]) -> None:
    """Add the bytes of pairs of lanes, each in its new place."""
    packed = _LANES.pack(*source)
    for i, lane in enumerate(_LANES.unpack(bytes(packed[place] for place in _ZIPPER))):
        target[i] = (target[i] + lane) & _U64


def _absorb_rest(state: _State, rest: bytes) -> None:
    """Mix in the last 1 to 31 bytes, spread over one packet together with their number."""
    n = len(rest)

    def turned(word: int) -> int:
        return (word << n | word >> 32 - n) & _M32

    state.a = [(word + (n << 32 | n)) & _U64 for word in state.a]
    state.b = [turned(word >> 32) << 32 | turned(word & _M32) for word in state.b]
    odd = n & 3
    whole = n - odd
    packet = bytearray(32)
    packet[:whole] = rest[:whole]
    if n >= 16:
        packet[28:] = rest[-4:]
    elif odd:
        packet[16:19] = bytes((rest[whole], rest[whole + (odd >> 1)], rest[n - 1]))
    _absorb(state, packet)


def _reduce(x0: int, x1: int, x2: int, x3: int) -> bytes:
    """Reduce 256 bits modulo x^128 + x^2 + x over GF(2)."""
    high = x2 | (x3 & 0x3FFFFFFFFFFFFFFF) << 64
    value = (x0 | x1 << 64) ^ high << 1 ^ high << 2
    return (value & (1 << 128) - 1).to_bytes(16, "little")


class HighwayHash:
    """HighwayHash with a 32-byte key. More data may follow after a digest."""

    __slots__ = ("_rest", "_state")

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise ValueError("a HighwayHash key has 32 bytes")
        self._state = _initial(key)
        self._rest = b""

    def update(self, data: Buffer) -> None:
        unread = self._rest + bytes_of(data)
        whole = len(unread) & ~31
        _absorb(self._state, unread[:whole])
        self._rest = unread[whole:]

    def _ended(self, rounds: int) -> _State:
        """Return the state after the rest and the closing permutations."""
        state = deepcopy(self._state)
        if self._rest:
            _absorb_rest(state, self._rest)
        for _ in range(rounds):
            _absorb(state, _LANES.pack(*(_swapped(state.a[i]) for i in (2, 3, 0, 1))))
        return state

    def digest64(self) -> bytes:
        state = self._ended(4)
        return ((state.a[0] + state.b[0] + state.m[0] + state.n[0]) & _U64).to_bytes(8, "little")

    def digest256(self) -> bytes:
        state = self._ended(10)
        a = [(x + y) & _U64 for x, y in zip(state.a, state.m, strict=True)]
        b = [(x + y) & _U64 for x, y in zip(state.b, state.n, strict=True)]
        return _reduce(*a[:2], *b[:2]) + _reduce(*a[2:], *b[2:])


# --- entries ---
#
# Message entries of an archive v2, and digests of them.
#
# Archive-v2 entry (nats-server `server/archive/archive.go`): uvarint name length, zigzag varint timestamp, uvarint
# sequence, uvarint header size, uvarint payload size, name, header block, payload. Varints are those of Go's
# `encoding/binary`, in which a longer encoding than needed is allowed. The canonical encoding uses the shortest.

# A message is at most 64 MiB (the server's limit for max_payload); a larger entry is damaged, not incomplete.
MAX_ENTRY_BYTES = 96 << 20
STREAM_DIGEST_KEY = b"jsbackup stream digest, version1"
MAX_NAME = 0xFFFF
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
    rows: list[_Row] = []
    at, last = offset, 0
    while at < end and (at < limit or at == offset):
        numbers = []
        cursor = at
        for _ in range(5):
            value, cursor = uvarint(view, cursor, "archive entry")
            if cursor == 0:
                return _columns_of(rows), at
            numbers.append(value)
            if len(numbers) == 3 and value == 0:
                return _columns_of(rows), at
        name, time, sequence, headers, payload = numbers
        if sequence >> 63:
            raise FormatError(f"archive entry: sequence {sequence} out of range at byte {at}")
        if name > MAX_NAME or headers > MAX_ENTRY_BYTES or payload > MAX_ENTRY_BYTES - headers:
            raise FormatError(f"archive entry: too large at byte {at}")
        if sequence <= last:
            raise FormatError(f"archive entry: sequence {sequence} after {last} at byte {at}")
        body = cursor + name + headers
        if body + payload > end:
            break
        content = (
            bytes(view[cursor : cursor + name]),
            bytes(view[cursor + name : body]),
            bytes(view[body : body + payload]),
        )
        rows.append(_Row(sequence, unzigzag(time), *content))
        at, last = body + payload, sequence
    return _columns_of(rows), at


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
        for value in (len(subject), zigzag(timestamp), sequence, len(headers), len(data)):
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


# --- records ---
#
# Records of message blocks, which an archive v1 has.
#
# Archive-v1 record (nats-server `server/filestore.go`, the same from 2.10 to 2.15), little endian: `length u32 ·
# sequence u64 · timestamp i64 · subject length u16 · subject · [header length u32 · headers] · payload ·
# HighwayHash-64`. Bit 31 of the length says that headers are there. Bit 63 of the sequence marks an erased message or a
# skipped sequence, bit 62 a tombstone, which speaks about another message. The checksum covers sequence and timestamp
# as stored, subject, headers and payload, but no length. Records longer than 32 MiB are damage to the server.

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
    hidden = set(packed.cast("Q"))
    limit = min(max_bytes, MAX_TAKE_BYTES)
    if len(key) != 32:
        raise ValueError("a HighwayHash key has 32 bytes")
    rows: list[_Row] = []
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
        name, content = bytes(view[body : body + subject]), bytes(view[body + prefix : stop])
        hasher = HighwayHash(key)
        hasher.update(bytes(view[at + 4 : at + 20]) + name + content)
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
        if erased or sequence in hidden:
            continue
        headers = 0
        if has_headers:
            (headers,) = _U32.unpack_from(view, body + subject)
            if headers > len(content):
                raise FormatError(f"message block: bad header length of the record at byte {start}")
        rows.append(_Row(sequence, timestamp, name, content[:headers], content[headers:]))
        taken += length
    return _columns_of(rows), tombstones.tobytes(), at, last


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
        hasher.update(b"".join((out[start + 4 : start + 20], subject, headers, data)))
        out += subject
        if headers:
            out += _U32.pack(len(headers))
            out += headers
        out += data
        out += hasher.digest64()
        row += 1
    return bytes(out), row


# --- s2 ---
#
# Decode blocks of S2.
#
# S2 block (github.com/klauspost/compress/s2, a superset of Snappy's): uvarint decoded length, then operations. The two
# low bits of an operation's first byte are its kind, the six high bits its argument `m`.
#
#     00  literal   m < 60: the next m + 1 bytes; else m - 59 bytes of length follow, and the length is their value + 1
#     01  copy      11 bits of offset (3 high bits of m, next byte), length 4 + (m & 7)
#         repeat    the same with offset 0: copies from the last offset; if (m & 7) is 5, 6, 7, 1, 2, 3 bytes follow,
#                   and the length is 8, 260, 65540 + their value
#     10  copy      2 bytes of offset, length m + 1
#     11  copy      4 bytes of offset, length m + 1


def s2_decode_block(block: Buffer, max_size: int) -> bytes:
    """Decode one S2 (or Snappy) block of at most `max_size` decoded bytes; raise `FormatError` for any other."""
    source = bytes_of(block)
    end = len(source)
    size, at = uvarint(source, 0, "s2 block")
    if at == 0 or at > 5 or size > 0xFFFFFFFF:
        raise FormatError("s2 block: bad length")
    if size > max_size:
        raise FormatError(f"s2 block: {size} bytes declared, {max_size} allowed")
    out = bytearray()
    offset = 0
    while at < end:
        start = at
        tag = source[at]
        kind, m = tag & 3, tag >> 2
        at += 1
        if kind == 0:
            length = m + 1
            if m >= 60:
                extra = m - 59
                if end - at < extra:
                    raise FormatError(f"s2 block: cut short at byte {start}")
                length = int.from_bytes(source[at : at + extra], "little") + 1
                at += extra
            if length > end - at:
                raise FormatError(f"s2 block: cut short at byte {start}")
            if length > size - len(out):
                raise FormatError(f"s2 block: more than the declared length at byte {start}")
            out += source[at : at + length]
            at += length
            continue
        width = (0, 1, 2, 4)[kind]
        if end - at < width:
            raise FormatError(f"s2 block: cut short at byte {start}")
        value = int.from_bytes(source[at : at + width], "little")
        at += width
        if kind == 1:
            length = (m & 7) + 4
            value |= (m >> 3) << 8
            if value == 0:
                extra = max(0, (m & 7) - 4)
                if end - at < extra:
                    raise FormatError(f"s2 block: cut short at byte {start}")
                if extra:
                    length = int.from_bytes(source[at : at + extra], "little") + (8, 260, 65540)[extra - 1]
                at += extra
                value = offset
        else:
            length = m + 1
        offset = value
        filled = len(out)
        if offset == 0 or offset > filled:
            raise FormatError(f"s2 block: copy from before the start at byte {start}")
        if length > size - filled:
            raise FormatError(f"s2 block: more than the declared length at byte {start}")
        pattern = out[filled - offset : filled - offset + length]
        out += (pattern * (length // offset + 1))[:length]
    if len(out) != size:
        raise FormatError(f"s2 block: {len(out)} bytes decoded, {size} declared")
    return bytes(out)


# --- index.db -----------------------------------------------------------------------------------------------------


def skip_index_subjects(buffer: Buffer, offset: int, count: int, version: int) -> tuple[int, int]:
    """Skip up to `count` subject entries of an `index.db`; return the next offset and how many entries are left.

    Stops before an incomplete entry. Raises `FormatError` for a subject of more than 65535 bytes.
    """
    view = bytes_of(buffer)
    end = len(view)
    if not 0 <= offset <= end:
        raise ValueError("offset is outside the buffer")
    while count > 0 and offset < end:
        size, cursor = uvarint(view, offset, "stream index")
        if cursor == 0:
            break
        if size > MAX_NAME:
            raise FormatError(f"stream index: a subject of {size} bytes at byte {offset}")
        if size:
            cursor += size
            total, cursor = uvarint(view, cursor, "stream index")
            for _ in range(2 if total > 1 or version >= 4 else 1):
                if cursor:
                    _, cursor = uvarint(view, cursor, "stream index")
            if cursor == 0:
                break
        offset = cursor
        count -= 1
    return offset, count


# --- packed int64 -------------------------------------------------------------------------------------------------


def extremes(values: Buffer) -> tuple[int, int]:
    """Return the least and the greatest of packed int64 (at least one)."""
    view = bytes_of(values)
    if not view or len(view) % 8:
        raise ValueError("values have 8 bytes each, and there is one at least")
    numbers = view.cast("q")
    return min(numbers), max(numbers)


def first_fall(values: Buffer, after: int) -> int:
    """Return the index of the first packed int64 that is not greater than the one before it, or than `after`; or -1."""
    view = bytes_of(values)
    if len(view) % 8:
        raise ValueError("values have 8 bytes each")
    for index, value in enumerate(view.cast("q")):
        if value <= after:
            return index
        after = value
    return -1
