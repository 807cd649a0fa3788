"""A message's header block, line by line, so that a value can be replaced and the rest stays byte for byte.

`NATS/1.0[ status]\\r\\n`, then `Name: value\\r\\n` for each field, then `\\r\\n`, which ends it. The server finds a
field by its exact name and uses the first; clients differ in how they read malformed blocks, therefore anything else (a
line without a colon, a continuation line, a lone CR or LF) is refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from jsbackup.errors import FormatError

__all__ = ["Field", "exchange", "fields"]

_MAGIC = b"NATS/1.0"


class Field(NamedTuple):
    """A field's name, and the position of its value in the block, without surrounding white space."""

    name: bytes
    start: int
    stop: int


def fields(block: bytes) -> Iterator[Field]:
    """Yield the fields of a block, in order. Raises FormatError if it is malformed."""
    at = _line_end(block, 0)
    status = block[len(_MAGIC) : at]
    if not block.startswith(_MAGIC) or not (status == b"" or status[:1] == b" "):
        raise FormatError("headers: no NATS/1.0 line")
    while True:
        start = at + 2
        at = _line_end(block, start)
        if at == start:
            break
        colon = block.find(b":", start, at)
        if colon <= start or block[start : start + 1] in (b" ", b"\t"):
            raise FormatError("headers: a line without a name")
        value = block[colon + 1 : at]
        first = colon + 1 + len(value) - len(value.lstrip(b" \t"))
        yield Field(block[start:colon], first, max(first, colon + 1 + len(value.rstrip(b" \t"))))
    if at + 2 != len(block):
        raise FormatError("headers: more after the end")


def _line_end(block: bytes, start: int) -> int:
    end = block.find(b"\r\n", start)
    if end < 0:
        raise FormatError("headers: cut short")
    if block.find(b"\n", start, end) >= 0 or block.find(b"\r", start, end) >= 0:
        raise FormatError("headers: a lone line break")
    return end


def exchange(block: bytes, change: Callable[[bytes, bytes], bytes | None]) -> bytes:
    """Return the block with values replaced by `change(name, value)` if that is not None.

    Raises FormatError if the block or a new value is malformed.
    """
    out: list[bytes] = []
    done = 0
    for name, start, stop in fields(block):
        value = change(name, block[start:stop])
        if value is None:
            continue
        if b"\r" in value or b"\n" in value:
            raise FormatError("headers: a value with a line break")
        out += (block[done:start], value)
        done = stop
    return b"".join([*out, block[done:]]) if out else block
