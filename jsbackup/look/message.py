"""A stored message, and its headers as people read them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from jsbackup.times import datetime_of

__all__ = ["Header", "LookedUp", "headers_of", "messages_in", "subject_text"]

_VERSION = b"NATS/1.0"


class LookedUp(NamedTuple):
    """A message. `subject` is text with bytes that are not UTF-8 as lone surrogates; `headers` is the header block."""

    sequence: int
    timestamp_ns: int
    subject: str
    headers: bytes | None
    data: bytes

    @property
    def time(self) -> datetime:
        """When the server stored it, to the microsecond."""
        return datetime_of(self.timestamp_ns)


class Header(NamedTuple):
    """A line of a header block, without surrounding blanks. Bytes that are not UTF-8 are lone surrogates."""

    name: str
    value: str


def messages_in(batch: pa.RecordBatch, *, newest_first: bool = False) -> Iterator[LookedUp]:
    """Yield the messages of a batch with all columns. One at a time: a batch may be large."""
    columns = batch.columns
    rows = range(batch.num_rows)
    for row in reversed(rows) if newest_first else rows:
        sequence, timestamp_ns, subject, headers, data = (column[row].as_py() for column in columns)
        yield LookedUp(sequence, timestamp_ns, subject_text(subject), headers, data)


def subject_text(subject: Any) -> str:
    """Return a subject of a batch, which has bytes if one of its subjects is not UTF-8."""
    return subject if isinstance(subject, str) else subject.decode("utf-8", "surrogateescape")


def headers_of(block: bytes | None) -> list[Header]:
    """Return the headers of a block, in order. Lines that are not headers are left out: clients may send anything."""
    if not block or not block.startswith(_VERSION):
        return []
    found = []
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon and name:
            found.append(Header(_text(name), _text(value.strip(b" \t"))))
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
