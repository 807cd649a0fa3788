"""Rows of a micro-batch of a streaming query: the ids by which they are recognized when the batch runs again. Pure.

After a restart from its checkpoint, Spark runs the last batch again: with the same number and the same rows, but in
other partitions and in another order. So the id of a row is made of nothing but the query, the batch and what is in the
row, and of a number if the partition has had equal rows before:

    s0f8fad5bd9cb469f-17-kZ3yqPW0cC1mZ7bq8Q1nVg         s0f8fad5bd9cb469f-17-kZ3yqPW0cC1mZ7bq8Q1nVg-1

Equal rows in two partitions get the same id, of which the stream stores one, while it recognizes it. That is found at
the end, as each row says by which sequence the stream has it (`BatchPart`).
"""

from __future__ import annotations

import re
import zlib
from array import array
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from uuid import UUID

from jsbackup.putting_back.new_rows import NewRow, WrittenRows

__all__ = ["BatchId", "BatchPart", "RowIds", "StoredRows", "count_rows", "numbered", "packed", "rows_too_many"]

_DIGEST_BYTES = 16
_DIGEST_CHARACTERS = 22


@dataclass(frozen=True, slots=True)
class BatchId:
    """A batch: the id of its query, a UUID that the checkpoint has, and its number."""

    query: str
    number: int

    @property
    def query_prefix(self) -> str:
        """What the ids of all rows of the query begin with: a part of its id, since all of it is the key of digests."""
        return f"s{self.query.replace('-', '')[:16]}-"

    def __str__(self) -> str:
        return f"{self.query_prefix}{self.number}"

    def number_in(self, row_id: bytes) -> int | None:
        """Return the number of the batch in the id of a row of this query, None for any other text."""
        found = re.match(rb"%b(\d{1,19})-" % self.query_prefix.encode(), row_id)
        return int(found[1]) if found is not None else None

    def content_in(self, row_id: bytes) -> bytes:
        """Return what is the same in the ids of equal rows of this batch."""
        return row_id[: len(str(self)) + 1 + _DIGEST_CHARACTERS]

    def place_of(self, row_id: str) -> tuple[bytes, int]:
        """Return that, and how many equal rows its partition has before, of a row of this batch."""
        content = self.content_in(row_id.encode())
        return content, int(row_id[len(content) + 1 :] or 0)


class RowIds:
    """Makes the ids of the rows of a partition. It remembers the digests of all."""

    def __init__(self, batch: BatchId) -> None:
        self._prefix = f"{batch}-"
        # Who can read messages with the id of a row alone, such as masked copies, cannot try out what the row was.
        self._key = UUID(batch.query).bytes
        self._seen: set[bytes] = set()
        self._equal: Counter[bytes] = Counter()

    def of(self, row: NewRow) -> str:
        digest = self._digest(row)
        text = self._prefix + urlsafe_b64encode(digest).decode().rstrip("=")
        if digest not in self._seen:
            self._seen.add(digest)
            return text
        self._equal[digest] += 1
        return numbered(text, self._equal[digest])

    def _digest(self, row: NewRow) -> bytes:
        found = blake2b(digest_size=_DIGEST_BYTES, key=self._key)
        own_id = None if row.message_id is None else row.message_id.encode("utf-8", "surrogatepass")
        for value in (row.subject, row.data, row.headers, own_id, row.place):
            found.update(b"-" if value is None else b"%d:" % len(value))
            found.update(value or b"")
        return found.digest()


def numbered(content: str, number: int) -> str:
    """Return the id of a row that has so many equal ones before it."""
    return f"{content}-{number}" if number else content


class StoredRows:
    """The sequences by which a stream has rows of a batch. Which one of equal rows is which does not matter."""

    def __init__(self) -> None:
        self._first: dict[bytes, int] = {}
        self._more: dict[bytes, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._first)

    def add(self, content: bytes, sequence: int) -> None:
        if content in self._first:
            self._more.setdefault(content, []).append(sequence)
        else:
            self._first[content] = sequence

    def all(self, content: bytes) -> Sequence[int]:
        if content not in self._first:
            return ()
        return (self._first[content], *self._more.get(content, ()))


@dataclass(frozen=True, slots=True)
class BatchPart:
    """What came of a partition. By which sequences the stream has its rows without an id of their own: `fresh` ones are
    new, `known` ones were there before. Both are packed.
    """

    partition: int
    rows: WrittenRows = field(default_factory=WrittenRows)
    fresh: bytes = b""
    known: bytes = b""


def packed(sequences: Sequence[int]) -> bytes:
    """Return sequences in any order as bytes, about one for each."""
    gaps, last = array("Q"), 0
    for sequence in sorted(sequences):
        gaps.append(sequence - last)
        last = sequence
    return zlib.compress(gaps.tobytes(), 1) if gaps else b""


def _unpacked(text: bytes) -> Iterator[int]:
    """Yield the sequences, rising."""
    gaps, last = array("Q"), 0
    if text:
        gaps.frombytes(zlib.decompress(text))
    for gap in gaps:
        last += gap
        yield last


def rows_too_many(parts: Collection[BatchPart]) -> set[int]:
    """Return the sequences that the stream has for several rows."""
    rows = Counter(chain.from_iterable(_unpacked(part.known) for part in parts))
    fresh = chain.from_iterable(_unpacked(part.fresh) for part in parts)
    rows.update([sequence for sequence in fresh if sequence in rows])
    return {sequence for sequence, count in rows.items() if count > 1}


def count_rows(parts: Collection[BatchPart], wanted: Collection[int]) -> Counter[int]:
    """Return how many rows the stream has by each of these sequences."""
    both = chain.from_iterable((part.known, part.fresh) for part in parts)
    return Counter(sequence for text in both for sequence in _unpacked(text) if sequence in wanted)
