"""Which sequences of a stream a backup lacks: messages that were there once, and had been removed when it was made.

Bounds and counts in the manifest and its pages tell most of it. At most the two segments are read in which the moment
and the last gap before it lie.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.look.message_filter import ALL_MESSAGES
from jsbackup.look.moment import end_of
from jsbackup.look.segments import heads
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects, PageRef
from jsbackup.repository.pages.segment_list import Part, SegmentList, parts_of
from jsbackup.times import parse_time
from jsbackup.transforms.cut import AtSequence, Cut, Edge

__all__ = ["SequenceGaps"]

_NUMBERS = ("sequence", "timestamp_ns")


@dataclass(frozen=True, slots=True)
class SequenceGaps:
    """The missing sequences of a stream in a backup. All methods raise as `matching`."""

    objects: Objects
    stream: StreamBackup

    def last_possible(self, at: Edge) -> int:
        """Return the highest sequence that a message of up to the moment may have had, 0 if none.

        The time of a missing message is not known. It lay between those of its neighbours, as times rise with
        sequences, except where a clock was set back: so all sequences count up to the next message that is later. Of
        before the stream was created there is none, unless it has messages that are older: from elsewhere.
        """
        if isinstance(at, AtSequence):
            return min(at.sequence, end_of(self.stream))
        parts = parts_of(self.stream.segments)
        following, found = self._following(parts, at, end_of(self.stream) + 1)
        if not found and at.time_ns < parse_time(self.stream.created) <= min(
            (part.min_ns for part in parts), default=0
        ):
            return 0
        return following - 1

    def last_gap(self, upto: int) -> int:
        """Return the highest missing sequence up to this one, 0 if none is missing. Those that the stream never gave,
        because its configuration has a `first_seq`, are not missing.
        """
        missing = self._last_missing(parts_of(self.stream.segments), upto)
        first = self.stream.config.get("first_seq")
        return missing if missing >= (first if isinstance(first, int) else 1) else 0

    def _following(self, parts: Sequence[Part], at: Edge, following: int) -> tuple[int, bool]:
        """Return the first sequence after the last message of up to the moment, and whether there is such a message.
        After all parts comes `following`.
        """
        until = Cut(until=at)
        for part in reversed(parts):
            share = until.share(part.first_seq, part.last_seq, part.min_ns, part.max_ns)
            if share == "none":
                following = part.first_seq
            elif share == "all":
                return following, True
            elif isinstance(part, PageRef):
                return self._following(self._listed(part), at, following)
            else:
                rows = self._rows(part)
                last = pc.indices_nonzero(until.rows(rows))[-1].as_py()
                return (following if last + 1 == rows.num_rows else rows.column(0)[last + 1].as_py()), True
        return following, False

    def _last_missing(self, parts: Sequence[Part], upto: int) -> int:
        """Return the highest sequence up to `upto` that no part has."""
        for part in reversed(parts):
            if part.first_seq > upto:
                continue
            if part.last_seq < upto:
                return upto
            if not part.dense:
                if isinstance(part, PageRef):
                    upto = self._last_missing(self._listed(part), upto)
                else:
                    upto = _last_missing_of(self._rows(part).column(0), upto)
                if upto >= part.first_seq:
                    return upto
            else:
                upto = part.first_seq - 1
        return max(upto, 0)

    def _listed(self, page: PageRef) -> Sequence[Part]:
        segments = self.stream.segments
        assert isinstance(segments, SegmentList), "only lists have pages"
        return segments.read(page)

    def _rows(self, ref: SegmentRef) -> pa.RecordBatch:
        batches = list(heads(self.objects, ref, ALL_MESSAGES, _NUMBERS))
        return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _last_missing_of(sequences: pa.Array, upto: int) -> int:
    """Return the highest sequence up to `upto` that is not among these, which rise."""
    rows = range(len(sequences))
    count = bisect_right(rows, upto, key=lambda row: sequences[row].as_py())
    if not count or sequences[count - 1].as_py() < upto:
        return upto
    # Without a gap, a sequence and its row differ by as much as the last ones do.
    first = bisect_left(rows, upto - count + 1, hi=count, key=lambda row: sequences[row].as_py() - row)
    missing: int = sequences[first].as_py() - 1
    return missing
