"""Rows of a micro-batch of a streaming query: the ids by which they are recognized when the batch runs again. Pure.

After a restart from its checkpoint, Spark runs the last batch again: with the same number and the same rows, but in
other partitions and in another order. So the id of a row is made of nothing but the query, the batch and what is in the
row, and of a number if the partition has had equal rows before:

    s0f8fad5bd9cb469f-17-kZ3yqPW0cC1mZ7bq8Q1nVg         s0f8fad5bd9cb469f-17-kZ3yqPW0cC1mZ7bq8Q1nVg-1

Equal rows in two partitions get the same id, of which the stream stores one, while it recognizes it. That is found at
the end, as each row says by which sequence the stream has it (`BatchPart`).

A row that was stored, and removed by others that came again, is stored once more, with the old sequence in its id:

    s0f8fad5bd9cb469f-17-kZ3yqPW0cC1mZ7bq8Q1nVg.4711      s0f8fad5bd9cb469f-17-kZ3yqPW0cC1mZ7bq8Q1nVg-1.4711
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

__all__ = [
    "BatchId",
    "BatchPart",
    "RowIds",
    "StoredRows",
    "count_rows",
    "id_once_more",
    "numbered",
    "packed",
    "row_in",
    "rows_too_many",
]

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


def id_once_more(row_id: str, sequence: int) -> str:
    """Return another id for a row that was stored by `sequence` before."""
    return f"{row_id}.{sequence}"


def row_in(stored_id: bytes) -> bytes:
    """Return the id of the row in that of a message, which may be one of once more."""
    return stored_id.partition(b".")[0]


class StoredRows:
    """The sequences by which a stream has rows of a batch.

    Of equal rows, each is the message with its number: where a stream keeps few messages of a subject, it has the last
    ones. Messages with one number, of rows in several partitions, stand for those that no number is left for.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}
        self._more: dict[bytes, list[int]] = {}  # by content

    def __bool__(self) -> bool:
        return bool(self._rows)

    def copy(self) -> StoredRows:
        found = StoredRows()
        found._rows = self._rows.copy()
        found._more = {content: more.copy() for content, more in self._more.items()}
        return found

    def add(self, row_id: bytes, content: bytes, sequence: int) -> None:
        """Add a message: of the row with this id, whose content is in it, too."""
        known = self._rows.get(row_id)
        if known is not None:
            self._more.setdefault(content, []).append(min(known, sequence))
        self._rows[row_id] = max(known or 0, sequence)

    def of(self, row_id: bytes) -> int:
        """Return the sequence of the message with the number of a row, 0 if there is none."""
        return self._rows.get(row_id, 0)

    def more(self, content: bytes) -> Sequence[int]:
        """Return the sequences of other messages with this content, in the order in which they were added."""
        return self._more.get(content, ())


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
