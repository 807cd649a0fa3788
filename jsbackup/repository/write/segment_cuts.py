"""Where a stream is cut into segments if some of it is already stored, so that little is stored again.

A stream is cut where the segments of its last backup were cut. A segment that still has all its messages is kept: the
manifest names it again. New messages, and the rest of a segment that has lost messages, are stored. Cutting decides
how much the *next* backup stores again:

- **New messages** make segments of their own. Short neighbours are joined when the largest of them is at most a
  `GROWTH`-th of the result. So a message is only stored again in a segment `GROWTH` times as large, and the number of
  short segments is logarithmic, however often a backup is made.
- **A stream that loses its front** (work queue, age, size): the rest of the first segment is cut into pieces of
  doubling size, beginning with the size of the loss. The next backup finds a cut near the front and stores little
  again.
- **A segment that lost few messages** (a key's next revision, a deletion) is cut into pieces, so that the next loss
  costs one of them. One that lost many is not: every piece would be hit again.
- Where messages go, joining stops at a *grain*. A larger segment costs more when it is hit, a smaller one its entry in
  each manifest: with one loss between two backups the sum of both is least at the root of their product.

Measured, simulated, one history each: raw bytes stored with each backup for every one that was new; the same
histories if nothing were cut finer; and segments in all, cut and not. Streams of one to eight segments' worth (of 1
MiB, and all else to scale), counted after some turnover:

    growing by 1 % or 0.03 % a backup                     2.3, 3.1                           8, 9
    expiring, 0.5 % a backup                              1.5            1.5               203      203
    expiring, 0.3 %, counted sooner                       3.9            20                282      280
    work queue with stragglers, 1 %                       4.8            8.4                31       18
    the same, 20 %                                        1.6            1.6                17        9
    1 % of the keys change, the rest never                1.0            1.0                20       14
    10 % of the keys change, the rest never               9.4            12                 75       41
    1 % changes, 99 % of it in a tenth of the keys        12             34                261       42
    any key, 1 % or 0.1 % or 0.01 % of them a backup      20, 36, 260    96, 870, 2300    1034, 699, 210

So cutting at the front helps while the large segments of a first backup expire, and not once all are small. Changes
anywhere benefit most and cost most: 20, 3.6 and 2.6 % of the stream with each backup, instead of 96, 87 and 23 %.
Other histories of the same kind differ by a quarter.

Verifying that a segment is still the same runs at 0.6 to 0.9 GB a second on one core, including compression; storing
it at 0.2 to 0.5. Memory, four streams at once (`memory_budget.py`): no more than for a first backup, if nothing can
be compressed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

from jsbackup.repository.objects import SegmentRef

__all__ = ["GROWTH", "Cuts", "SegmentExtent", "extent_of"]


# Measured, a stream that grows by 2 % and by 0.1 %: at 2 a message is stored 3.0 and 5.5 times in all, at 4 2.5 and 3.2
# times, at 8 1.9 and 2.7 times, with a third more segments.
GROWTH = 4

# What a segment's row in a manifest counts; it has about 300 bytes now.
_ENTRY_BYTES = 512
# The smallest grain, and the smallest piece at a front, as fractions of a segment: 256 KiB and 16 KiB.
_MIN_GRAIN = 128
_MIN_FRONT = 2048


@dataclass(frozen=True, slots=True)
class SegmentExtent:
    """The extent of a run of messages. `bytes` are raw; `new`: it was in no segment before."""

    first_seq: int
    last_seq: int
    messages: int
    bytes: int
    new: bool = False

    def __add__(self, after: SegmentExtent) -> SegmentExtent:
        return SegmentExtent(self.first_seq, after.last_seq, self.messages + after.messages, self.bytes + after.bytes)

    @property
    def dense(self) -> bool:
        """Whether nothing has been deleted within."""
        return self.messages == self.last_seq - self.first_seq + 1


def extent_of(ref: SegmentRef) -> SegmentExtent:
    return SegmentExtent(ref.first_seq, ref.last_seq, ref.messages, ref.bytes)


class Cuts:
    """The rules above for one stream. `stored_bytes` is the size of its last backup."""

    def __init__(self, stored_bytes: int, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.grain_bytes = min(max(isqrt(_ENTRY_BYTES * stored_bytes), segment_bytes // _MIN_GRAIN), segment_bytes)
        self.losing_front = False

    def limit(self, extent: SegmentExtent) -> int:
        """Return how large a segment of these messages may become by joining."""
        if extent.dense and not self.losing_front:
            return self.segment_bytes
        return min(2 * self.grain_bytes, self.segment_bytes)

    def joinable(self, extent: SegmentExtent) -> bool:
        """Return whether joining a segment of these messages with others can ever be worthwhile."""
        return extent.bytes * GROWTH <= self.limit(extent)

    def joined(self, extents: Sequence[SegmentExtent]) -> int:
        """Return how many of the last `extents` become one segment; 1 if none is joined."""
        count, largest, whole = 1, 0, None
        for number, extent in enumerate(reversed(extents), 1):
            whole = extent if whole is None else extent + whole
            if whole.bytes > self.limit(whole):  # and the limit can only decrease
                break
            largest = max(largest, 0 if extent.new else extent.bytes)
            if largest * GROWTH <= whole.bytes:
                count = number
        return count

    def front(self, size: int, gone_bytes: int) -> list[int]:
        """Return the sizes of the pieces of the first `size` bytes, of a stream that has lost `gone_bytes` before
        them.
        """
        piece = max(gone_bytes, self.segment_bytes // _MIN_FRONT, 1)
        sizes = [piece]
        while (rest := size - sum(sizes)) > sizes[-1]:
            sizes.append(min(sum(sizes), rest))
        return [*sizes[:-1], self.segment_bytes]

    def thinned(self, size: int, lost: int) -> list[int]:
        """Return the sizes of the pieces of a segment that has lost `lost` messages and now has `size` bytes."""
        if lost * self.grain_bytes >= size:
            return [self.segment_bytes]
        piece = max(self.grain_bytes, size // (GROWTH * lost), 1)
        return [*[piece] * (size // piece - 1), self.segment_bytes]
