"""Bounds of the messages that a query needs, by sequences, times and subjects.

Filters that Spark pushes down become `Bounds`: with them segments (by the manifest) and row groups (by their
statistics) are not read, and unwanted messages not sent. They need not be complete, because Spark filters again:
filters that are not understood here are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from jsbackup.formats.segment import GroupBounds
from jsbackup.repository.pages.segment_list import Part
from jsbackup.repository.refs import PageRef

__all__ = ["ALL", "Bounds", "bounds_of"]

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Ranges include both ends. `subjects` and `streams` are those wanted, None for all; all `prefixes` must match.
    With `only`, sequences are among these.
    """

    sequence: tuple[int, int] = (_LEAST, _MOST)
    timestamp_ns: tuple[int, int] = (_LEAST, _MOST)
    subjects: frozenset[str] | None = None
    prefixes: tuple[str, ...] = ()
    streams: frozenset[str] | None = None
    only: tuple[int, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns needed to decide which messages are wanted."""
        whole = (_LEAST, _MOST)
        wanted = {
            "sequence": self.sequence != whole,
            "timestamp_ns": self.timestamp_ns != whole,
            "subject": self.on_subjects,
        }
        return tuple(name for name, used in wanted.items() if used)

    @property
    def on_subjects(self) -> bool:
        """Whether subjects matter. Statistics help little with them: a group has many subjects between its least and
        greatest.
        """
        return self.subjects is not None or bool(self.prefixes)

    def wants_stream(self, name: str) -> bool:
        return self.streams is None or name in self.streams

    def wants_part(self, part: Part) -> bool | None:
        """Return what `parts_where` gets, to yield segments: pages with other sequences and times are not read."""
        wanted = _meet(self.sequence, (part.first_seq, part.last_seq)) and _meet(
            self.timestamp_ns, (part.min_ns, part.max_ns)
        )
        return None if wanted and isinstance(part, PageRef) else wanted

    def wants_all_of(self, part: Part) -> bool:
        """Return whether sequences and times rule out none of the messages of a part."""
        return _holds(self.sequence, (part.first_seq, part.last_seq)) and _holds(
            self.timestamp_ns, (part.min_ns, part.max_ns)
        )

    def wants_group(self, group: GroupBounds) -> bool:
        if group.sequence is not None and not _meet(self.sequence, group.sequence):
            return False
        if group.timestamp_ns is not None and not _meet(self.timestamp_ns, group.timestamp_ns):
            return False
        return group.subject is None or self._wants_subjects(*group.subject)

    def _wants_subjects(self, low: bytes, high: bytes) -> bool:
        if self.subjects is not None and not any(low <= _bytes(one) <= high for one in self.subjects):
            return False
        prefixes = map(_bytes, self.prefixes)
        return all(prefix <= high and low[: len(prefix)] <= prefix for prefix in prefixes)

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted rows. The batch has the columns of `columns`; its subjects are strings."""
        masks = [
            mask
            for name, (low, high) in (("sequence", self.sequence), ("timestamp_ns", self.timestamp_ns))
            if (low, high) != (_LEAST, _MOST)
            for mask in (pc.greater_equal(batch.column(name), low), pc.less_equal(batch.column(name), high))
        ]
        if self.on_subjects:
            subject = batch.column("subject").view(pa.binary())
            if self.subjects is not None:
                masks.append(pc.is_in(subject, value_set=pa.array(map(_bytes, sorted(self.subjects)), pa.binary())))
            masks += [pc.starts_with(subject, _bytes(prefix)) for prefix in self.prefixes]
        if self.only:
            masks.append(pc.is_in(batch.column("sequence"), value_set=pa.array(self.only, pa.int64())))
        for mask in masks[1:]:
            masks[0] = pc.and_(masks[0], mask)
        return batch.filter(masks[0]) if masks else batch


ALL = Bounds()


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """Return the combined bounds of all filters."""
    bounds = ALL
    for one in filters:
        match getattr(one, "attribute", ()):
            case (str(column),):
                bounds = _narrowed(bounds, column, one)
    return bounds


def _narrowed(bounds: Bounds, column: str, one: Filter) -> Bounds:
    values = one.value if isinstance(one, In) else (getattr(one, "value", None),)
    if any(value is None for value in values):
        return bounds
    if column in ("subject", "stream") and all(isinstance(value, str) for value in values):
        return _named(bounds, column, one, values)
    if column in ("sequence", "timestamp_ns") and all(type(value) is int for value in values):
        span = _range(one, [(value, value) for value in values])
        if column == "sequence":
            return replace(bounds, sequence=_cut(bounds.sequence, span))
        return replace(bounds, timestamp_ns=_cut(bounds.timestamp_ns, span))
    if column == "time" and all(isinstance(value, datetime) for value in values):
        # A time is the timestamp rounded down to microseconds.
        spans = [(us * 1000, us * 1000 + 999) for us in map(_microseconds, values)]
        return replace(bounds, timestamp_ns=_cut(bounds.timestamp_ns, _range(one, spans)))
    return bounds


def _named(bounds: Bounds, column: str, one: Filter, values: Sequence[str]) -> Bounds:
    if isinstance(one, EqualTo | In):
        named = frozenset(values)
        if column == "stream":
            return replace(bounds, streams=named if bounds.streams is None else bounds.streams & named)
        return replace(bounds, subjects=named if bounds.subjects is None else bounds.subjects & named)
    if isinstance(one, StringStartsWith) and column == "subject":
        return replace(bounds, prefixes=(*bounds.prefixes, one.value))
    return bounds


def _range(one: Filter, spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the range allowed by a comparison if each of its values is a span."""
    if isinstance(one, EqualTo | In):
        return (min(low for low, _ in spans), max(high for _, high in spans)) if spans else (0, -1)
    ((low, high),) = spans
    if isinstance(one, GreaterThan):
        return (high + 1, _MOST)
    if isinstance(one, GreaterThanOrEqual):
        return (low, _MOST)
    if isinstance(one, LessThan):
        return (_LEAST, low - 1)
    if isinstance(one, LessThanOrEqual):
        return (_LEAST, high)
    return (_LEAST, _MOST)


def _cut(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return (low, high) if low <= high else (1, 0)


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return max(one[0], other[0]) <= min(one[1], other[1])


def _holds(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] <= other[0] and other[1] <= one[1]


def _microseconds(value: Any) -> int:
    moment: datetime = value if value.tzinfo is not None else value.astimezone(UTC)
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
