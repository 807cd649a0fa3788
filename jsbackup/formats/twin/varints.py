"""Varints of Go, of `encoding/binary`: a longer encoding than needed is allowed, the canonical one is the shortest."""

from __future__ import annotations

from jsbackup.errors import FormatError

__all__ = ["append_uvarint", "uvarint"]


def uvarint(view: memoryview, at: int, where: str) -> tuple[int, int]:
    """Return value and end of the uvarint at `at`; the end is 0 if the buffer ends inside it."""
    value = shift = 0
    start = at
    end = len(view)
    while at < end:
        byte = view[at]
        at += 1
        if byte < 0x80:
            if shift == 63 and byte > 1:
                break
            return value | byte << shift, at
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift == 70:
            break
    else:
        return 0, 0
    raise FormatError(f"{where}: a number of more than 64 bits at byte {start}")


def append_uvarint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
