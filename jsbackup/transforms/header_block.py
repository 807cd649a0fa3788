"""A message's header block, line by line, so that one value can be exchanged and all else stays byte for byte.

`NATS/1.0[ status]\\r\\n`, then `Name: value\\r\\n` for each field, then `\\r\\n`, which ends it. The server looks for a
field by its exact name and takes the first; clients differ in how they read what is not written so, hence anything else
(a line without a colon, one that goes on the line before, a lone CR or LF) is no block here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from jsbackup.errors import FormatError

__all__ = ["Field", "exchange", "fields"]

_MAGIC = b"NATS/1.0"


class Field(NamedTuple):
    """A field's name, and where in the block its value is, without the white space around it."""

    name: bytes
    start: int
    stop: int


def fields(block: bytes) -> Iterator[Field]:
    """The fields of a block, in order. Raises FormatError if it is none."""
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
    """The block with `change(name, value)` in place of each value for which that is not None.

    Raises FormatError if it is no block, or if a value could not stand in one.
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
