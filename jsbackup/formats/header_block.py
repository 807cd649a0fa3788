"""A message's header block: `NATS/1.0[ status]\\r\\n`, then `Name: value\\r\\n` for each field, then `\\r\\n`.

It is read in three ways. `fields` is strict, so that a value can be replaced and the rest stays byte for byte: clients
differ in how they read malformed blocks, therefore anything else (a line without a colon, a continuation line, a lone
CR or LF) is refused. `lines` takes what comes: clients may send anything, and servers store it. `first_value` finds a
field as the server does: by its exact name, the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from jsbackup.errors import FormatError

__all__ = ["Field", "HeaderLine", "exchange", "fields", "first_value", "lines"]

_MAGIC = b"NATS/1.0"


class HeaderLine(NamedTuple):
    """A line below the first. `name` is as it was written, empty without a colon; `value` has no blanks around it."""

    name: bytes
    value: bytes
    line: bytes

    @property
    def key(self) -> str:
        """The name in lower case, without blanks around it."""
        return self.name.decode("latin-1").strip().lower()

    @property
    def text(self) -> str:
        """The value. Bytes that are not UTF-8 are lone surrogates."""
        return self.value.decode("utf-8", "surrogateescape")


def lines(block: bytes | None) -> Iterator[HeaderLine]:
    """Yield what is between the first line of a block and its end, in order."""
    for line in (block or b"").removesuffix(b"\r\n\r\n").split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        yield HeaderLine(name if colon else b"", value.strip(b" \t"), line)


def first_value(block: bytes, name: bytes) -> bytes | None:
    """Return the value of the first field of exactly this name; None if there is none."""
    start = b"\r\n%b:" % name
    at = block.find(start)
    if at < 0:
        return None
    at += len(start)
    end = block.find(b"\r\n", at)
    return block[at : end if end >= 0 else len(block)].strip(b" \t")


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
