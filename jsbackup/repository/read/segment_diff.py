"""Compare two lists of segments: which have to be read, and the result.

Segments that overlap make a group. A group with the same digest on both sides is not read, however it is cut, and a
group that only one side has is counted from its manifest. The rest are spans of sequences, to be compared message by
message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from jsbackup.errors import KeyUnavailable
from jsbackup.formats.digest import MessageBatch
from jsbackup.repository.manifest import SegmentRef, total_of
from jsbackup.repository.read.message_diff import Change, DifferenceTally, Merger, MessageDiff, cut_at, example_of
from jsbackup.repository.segments import SegmentReader

__all__ = ["SegmentSpan", "compare_span", "count_whole", "diff_segments", "find_spans"]

Advance = Callable[[int, int], None]
"""Gets the bytes and messages that were read."""


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """The messages from one sequence to another, in segments of either side that may also hold others."""

    first_seq: int
    last_seq: int
    a: tuple[SegmentRef, ...]
    b: tuple[SegmentRef, ...]

    @property
    def bytes(self) -> int:
        """Raw bytes of the segments."""
        return sum(ref.bytes for ref in (*self.a, *self.b))

    @property
    def messages(self) -> int:
        return sum(ref.messages for ref in (*self.a, *self.b))


@dataclass(frozen=True, slots=True)
class _Group:
    """Segments of one or both sides that overlap."""

    a: tuple[SegmentRef, ...]
    b: tuple[SegmentRef, ...]

    @property
    def adds_up(self) -> bool:
        ours, theirs = total_of(self.a), total_of(self.b)
        return (ours.digest, ours.messages, ours.bytes) == (theirs.digest, theirs.messages, theirs.bytes)

    @property
    def span(self) -> SegmentSpan | None:
        """What has to be read of it; None if nothing."""
        if not self.a or not self.b or self.adds_up:
            return None
        both = (*self.a, *self.b)
        return SegmentSpan(min(ref.first_seq for ref in both), max(ref.last_seq for ref in both), self.a, self.b)


def find_spans(a: Iterable[SegmentRef], b: Iterable[SegmentRef]) -> list[SegmentSpan]:
    """Return the spans to compare message by message, in order."""
    return [span for group in _groups(a, b) if (span := group.span) is not None]


def compare_span(reader: SegmentReader, span: SegmentSpan, named: int, advance: Advance) -> DifferenceTally:
    """Compare a span; up to `named` messages of each kind are listed. Raises the errors of reading a segment."""
    tally = DifferenceTally(named)
    merger = Merger(_read(reader, span.a, span, advance), tally, Change.REMOVED)
    for batch in _read(reader, span.b, span, advance):
        merger.add(batch)
    merger.finish()
    return tally


def diff_segments(
    reader: SegmentReader,
    a: Sequence[SegmentRef],
    b: Sequence[SegmentRef],
    tallies: Iterator[DifferenceTally],
    *,
    named: int,
    notes: list[str],
) -> MessageDiff:
    """Return the whole difference. `tallies` yields that of each span of `find_spans`.

    Raises the errors of `tallies` and of reading a segment.
    """
    whole = DifferenceTally(named)
    for group in _groups(a, b):
        if group.span is not None:
            whole.absorb(next(tallies))
        elif group.a and group.b:
            whole.same()
        else:
            for ref in group.a or group.b:
                count_whole(reader, ref, whole, Change.REMOVED if group.a else Change.ADDED, notes=notes)
    return whole.result()


def count_whole(
    reader: SegmentReader, ref: SegmentRef, tally: DifferenceTally, change: Change, *, notes: list[str]
) -> None:
    """Count a segment that only one side has. It is read only to list messages; without a key that is skipped."""
    if tally.wants(change) > 0:
        try:
            for batch in reader.read(ref):
                for row in range(min(tally.wants(change), batch.num_rows)):
                    tally.show(example_of(change, batch.slice(row, 1)))
                if tally.wants(change) <= 0:
                    break
        except KeyUnavailable:
            note = "without a key that reads messages, messages in whole segments are counted, not listed"
            if note not in notes:
                notes.append(note)
    tally.note(change, ref.first_seq, ref.last_seq, ref.messages)


def _read(
    reader: SegmentReader, refs: Iterable[SegmentRef], span: SegmentSpan, advance: Advance
) -> Iterator[MessageBatch]:
    """Yield the messages within the span. Segments are read to their ends, because that verifies them."""
    for ref in refs:
        for batch in reader.read(ref):
            advance(batch.nbytes, batch.num_rows)
            _before, rest = cut_at(batch, span.first_seq - 1)
            yield cut_at(rest, span.last_seq)[0]


def _groups(a: Iterable[SegmentRef], b: Iterable[SegmentRef]) -> Iterator[_Group]:
    """Group the segments of both sides, in order; those that overlap are together."""
    ours: list[SegmentRef] = []
    theirs: list[SegmentRef] = []
    last = 0
    both = [(ref.first_seq, ref.last_seq, ours_too, ref) for refs, ours_too in ((a, True), (b, False)) for ref in refs]
    for first_seq, last_seq, is_ours, ref in sorted(both, key=lambda one: one[:3]):
        if first_seq > last and (ours or theirs):
            yield _Group(tuple(ours), tuple(theirs))
            ours, theirs = [], []
        (ours if is_ours else theirs).append(ref)
        last = max(last, last_seq)
    if ours or theirs:
        yield _Group(tuple(ours), tuple(theirs))
