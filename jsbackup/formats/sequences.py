"""A compact, sorted set of stream sequences: eight bytes each, for deletions by the million."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

__all__ = ["SequenceSet", "ranges_of"]


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
    found: list[tuple[int, int]] = []
    for one in sequences:
        if found and found[-1][1] == one - 1:
            found[-1] = found[-1][0], one
        else:
            found.append((one, one))
    return found
