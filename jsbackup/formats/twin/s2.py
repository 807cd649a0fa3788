"""Decode blocks of S2.

S2 block (github.com/klauspost/compress/s2, a superset of Snappy's): uvarint decoded length, then operations. The two
low bits of an operation's first byte are its kind, the six high bits its argument `m`.

    00  literal   m < 60: the next m + 1 bytes; else m - 59 bytes of length follow, and the length is their value + 1
    01  copy      11 bits of offset (3 high bits of m, next byte), length 4 + (m & 7)
        repeat    the same with offset 0: copies from the last offset; if (m & 7) is 5, 6, 7, 1, 2, 3 bytes follow,
                  and the length is 8, 260, 65540 + their value
    10  copy      2 bytes of offset, length m + 1
    11  copy      4 bytes of offset, length m + 1
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsbackup.errors import FormatError
from jsbackup.formats.column_reader import bytes_of
from jsbackup.formats.twin.varints import uvarint

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["s2_decode_block"]


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
        source_at = filled - offset
        if length <= offset:
            out += out[source_at : source_at + length]
        else:
            pattern = out[source_at:]
            out += (pattern * (length // offset + 1))[:length]
    if len(out) != size:
        raise FormatError(f"s2 block: {len(out)} bytes decoded, {size} declared")
    return bytes(out)
