"""A compact, sorted set of stream sequences: eight bytes each, for deletions by the million."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from operator import sub
from typing import Literal, NamedTuple

import pyarrow as pa

from jsbackup import compute as pc

__all__ = ["GivenSequences", "SequenceSet", "ranges_of", "sequence_set"]


class SequenceSet:
    """Immutable sorted set of sequences (unsigned 64 bit)."""

    __slots__ = ("_items",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, sequences: Iterable[int] = ()) -> None:
        items = array("Q", sequences)
        if any(items[i] >= items[i + 1] for i in range(len(items) - 1)):
            items = array("Q", sorted(set(items)))
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[int]:
        return iter(self._items)

    def __contains__(self, sequence: int) -> bool:
        at = bisect_left(self._items, sequence)
        return at < len(self._items) and self._items[at] == sequence

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SequenceSet) and self._items == other._items

    def __or__(self, other: SequenceSet) -> SequenceSet:
        if not other:
            return self
        if not self:
            return other
        return SequenceSet(sorted(set(self._items) | set(other._items)))

    def __repr__(self) -> str:
        return f"SequenceSet({list(self._items[:8])}{'…' if len(self) > 8 else ''}, len={len(self)})"

    def within(self, first: int, last: int) -> array[int]:
        """The members from `first` to `last`, both included."""
        return self._items[bisect_left(self._items, first) : bisect_right(self._items, last)]


def ranges_of(sequences: Iterable[int]) -> list[tuple[int, int]]:
    """Return rising sequences as ranges, each with both ends."""
    ranges: list[tuple[int, int]] = []
    for sequence in sequences:
        if ranges and ranges[-1][1] == sequence - 1:
            ranges[-1] = ranges[-1][0], sequence
        else:
            ranges.append((sequence, sequence))
    return ranges


# --- sequence bitmap ---
#
# The sequences that a reader has yielded as messages, stored compactly: an archive v1 reports deletions late.
#
# A batch without gaps costs a few numbers, one with gaps a byte or two for each message more.

# Later records concern nearby sequences, so a few unpacked runs answer nearly all lookups.
_UNPACKED_RUNS = 4
_FEW = 10_000  # Python objects; more are sorted by Arrow


def _narrowest(value: int) -> Literal["B", "H", "I", "Q"]:
    return "B" if value < 1 << 8 else "H" if value < 1 << 16 else "I" if value < 1 << 32 else "Q"


class _Run(NamedTuple):
    first: int
    last: int
    steps: array[int] | None  # from each sequence to the next; None if all are 1


class GivenSequences:
    """A growing, sorted set of sequences. `append` only takes runs in rising order."""

    __slots__ = ("_count", "_firsts", "_runs", "_unpacked")

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._firsts: list[int] = []
        self._unpacked: dict[int, array[int]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def last(self) -> int:
        """The highest member, 0 if there is none."""
        return self._runs[-1].last if self._runs else 0

    def append(self, sequences: memoryview) -> None:
        """Add a run of rising sequences (int64), all above `last`."""
        if not sequences:
            return
        first, last, count = sequences[0], sequences[-1], len(sequences)
        steps = None
        if last - first + 1 != count:
            whole = array("Q", map(sub, sequences[1:], sequences))
            steps = array(_narrowest(max(whole)), whole)
        self._runs.append(_Run(first, last, steps))
        self._firsts.append(first)
        self._count += count

    def within(self, first: int, last: int) -> array[int]:
        """The members from `first` to `last`, both included, rising."""
        result = array("Q")
        at = max(0, bisect_right(self._firsts, first) - 1)
        while at < len(self._runs) and self._runs[at].first <= last:
            run = self._runs[at]
            if run.last >= first:
                if run.steps is None:
                    result.extend(range(max(first, run.first), min(last, run.last) + 1))
                else:
                    members = self._unpack(at)
                    result.extend(members[bisect_left(members, first) : bisect_right(members, last)])
            at += 1
        return result

    def intersection(self, sequences: set[int]) -> array[int]:
        """Return the members among `sequences`, in no order."""
        asked = array("Q", sorted(sequences))
        result = array("Q")
        for at, run in enumerate(self._runs):
            part = asked[bisect_left(asked, run.first) : bisect_right(asked, run.last)]
            if part and run.steps is None:
                result.extend(part)
            elif part:
                result.extend(set(part).intersection(self._unpack(at)))
        return result

    def _unpack(self, at: int) -> array[int]:
        members = self._unpacked.get(at)
        if members is None:
            run = self._runs[at]
            members = array("Q", accumulate(run.steps or (), initial=run.first))
            if len(self._unpacked) >= _UNPACKED_RUNS:
                del self._unpacked[next(iter(self._unpacked))]
            self._unpacked[at] = members
        return members


def sequence_set(sequences: array[int]) -> SequenceSet:
    """Return the set of many sequences in any order, with duplicates, without a Python object for each."""
    if len(sequences) <= _FEW:
        return SequenceSet(sorted(set(sequences)))
    packed = pa.Array.from_buffers(pa.uint64(), len(sequences), [None, pa.py_buffer(sequences)])
    unique = pc.unique(packed)
    ordered = unique.take(pc.sort_indices(unique))
    return SequenceSet(array("Q", memoryview(ordered.buffers()[1])[: 8 * len(ordered)].tobytes()))
