"""Varints of Go, of `encoding/binary`: a longer encoding than needed is read, the shortest one is written.

Signed numbers are zigzag: 0, -1, 1, -2 and so on are 0, 1, 2, 3.
"""

from __future__ import annotations

from jsbackup.errors import FormatError

__all__ = ["append_uvarint", "unzigzag", "uvarint", "zigzag"]


def uvarint(buffer: bytes | bytearray | memoryview, at: int, where: str) -> tuple[int, int]:
    """Return value and end of the unsigned varint at `at`; the end is 0 if the buffer ends inside it.

    Raises FormatError, which begins with `where`, for a number of more than 64 bits.
    """
    value = 0
    for shift, end in zip(range(0, 70, 7), range(at + 1, len(buffer) + 1), strict=False):
        byte = buffer[end - 1]
        value |= (byte & 0x7F) << shift
        if byte < 0x80 and value >> 64 == 0:
            return value, end
        if byte < 0x80 or shift == 63:
            raise FormatError(f"{where}: a number of more than 64 bits at byte {at}")
    return 0, 0


def append_uvarint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def unzigzag(value: int) -> int:
    return value >> 1 ^ -(value & 1)
