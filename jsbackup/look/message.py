"""A stored message, and its headers as people read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, reduce
from typing import Any, NamedTuple

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.formats.header_block import lines
from jsbackup.formats.segment import GroupBounds
from jsbackup.repository.pages.segment_list import Part
from jsbackup.times import datetime_of
from jsbackup.transforms.cut import Cut, KeptShare
from jsbackup.transforms.filters.filters import Filters, subject_rows
from jsbackup.transforms.filters.rising import RisingSequences

__all__ = ["ALL_MESSAGES", "Header", "LookedUp", "MessageFilter", "headers_of", "messages_in", "subject_text"]


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
    return [Header(line.name.decode("utf-8", "surrogateescape"), line.text) for line in lines(block) if line.name]


# --- message filter ---
#
# Which messages are looked for: by sequence or time, subject, headers and payload.
#
# All conditions must hold. A filter judges a page or segment by its bounds in the manifest, a row group by its
# statistics, and messages by their columns; nothing is read that an earlier judgement rules out.

_HEAD = ("sequence", "timestamp_ns", "subject")


@dataclass(frozen=True)
class MessageFilter:
    """`subjects` are patterns of which one must match; none: any subject. `text` is part of the payload, as bytes.

    `others` are conditions of `Filters` besides. Of these messages only the `chosen` ones are wanted, if that is given.
    """

    cut: Cut = field(default_factory=Cut)
    subjects: tuple[str, ...] = ()
    others: Filters = field(default_factory=Filters)
    text: bytes = b""
    chosen: RisingSequences | None = None

    @classmethod
    def of(cls, cut: Cut, filters: Filters, text: str = "") -> MessageFilter:
        """Return a filter for all of these conditions."""
        rest = replace(filters, subject=())
        return cls(cut, filters.subject, rest, text.encode("utf-8", "surrogateescape"))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it judges by."""
        judged = {*self.others.columns, *(["data"] if self.text else [])}
        return (*_HEAD, *(name for name in ("headers", "data") if name in judged))

    @property
    def by_content(self) -> bool:
        """Whether it needs more than sequences and times."""
        return bool(self.subjects or self.others or self.text)

    def wants_part(self, part: Part) -> bool:
        """Return whether a page or segment may have such messages."""
        return self._share(part) is not KeptShare.NONE and self._chooses(part.first_seq, part.last_seq)

    def _chooses(self, first: int, last: int) -> bool:
        """Return whether any of these sequences is chosen."""
        return self.chosen is None or self.chosen.rank(last) > self.chosen.rank(first - 1)

    def _share(self, part: Part) -> KeptShare:
        return self.cut.share(part.first_seq, part.last_seq, part.min_ns, part.max_ns)

    def wants_group(self, bounds: GroupBounds) -> bool:
        """Return whether a row group may have such messages."""
        sequences, times = bounds.sequence, bounds.timestamp_ns
        if sequences and times and self.cut.share(*sequences, *times) is KeptShare.NONE:
            return False
        if sequences and not self._chooses(*sequences):
            return False
        if not self.subjects or bounds.subject is None:
            return True
        low, high = bounds.subject
        # A bound may be a shortened subject, so that only as much of it is compared.
        return any(low[: len(each)] <= each and high[: len(each)] >= each[: len(high)] for each in self._prefixes)

    def rows(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each row of a batch, which has at least `columns`, whether it is wanted."""
        masks = [] if not self.cut else [self.cut.rows(batch)]
        if self.chosen is not None:
            masks.append(self.chosen.rows(batch.column("sequence")))
        if self.subjects:
            masks.append(subject_rows(batch.column("subject"), self.subjects))
        if self.text:
            masks.append(pc.match_substring(batch.column("data"), self.text))
        if self.others and (kept := self.others.rows(batch)) is not None:
            masks.append(kept)
        return reduce(pc.and_, masks) if masks else pc.is_valid(batch.column("sequence"))

    def any_row(self, batch: pa.RecordBatch) -> bool:
        return bool(self.rows(batch).true_count)

    @cached_property
    def _prefixes(self) -> list[bytes]:
        return [_literal_part(subject).encode() for subject in self.subjects]


ALL_MESSAGES = MessageFilter()


def _literal_part(pattern: str) -> str:
    """Return what all subjects that match begin with."""
    tokens = pattern.split(".")
    for at, token in enumerate(tokens):
        if token in ("*", ">"):
            return "".join(f"{token}." for token in tokens[:at])
    return pattern
