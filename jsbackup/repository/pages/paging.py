"""Where pages end.

A page ends with the first part, after `LEAST`, whose name ends in five zero bits, or with the `MOST`th. (The name of a
segment is its digest, that of a page its own.) So where pages end depends on what they list, not on the backup that
made them: equal lists have equal pages, a change in the middle makes the page that has it again, and those above, and
appending makes a page only when one is full. What follows the last page of a level is listed in the manifest.

Measured, segments of random digests: 39 parts a page. So a manifest lists about 20 parts of each level, and a stream of
300,000 segments has four levels with its manifest: 7,700 pages, 197, 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from jsbackup.repository.pages.segment_list import Part
from jsbackup.repository.refs import PageRef, SegmentRef

__all__ = ["LEAST", "MOST", "Arranging", "arrange"]

LEAST = 8
MOST = 128
_ZERO_BITS = 5


def arrange(
    parts: Iterable[Part], read: Callable[[PageRef], Sequence[Part]], store: Callable[[int, Sequence[Part]], PageRef]
) -> list[Part]:
    """Arrange parts in pages. Returns what a manifest lists: pages of falling levels, then segments.

    `store` makes the page of a level that lists some parts. Pages among `parts` were made by this rule: one that begins
    where a page would begin is taken as it is; any other is read, and its parts arranged.
    """
    arranging = Arranging(read, store)
    for part in parts:
        arranging.add(part)
    return arranging.parts


class Arranging:
    """Does the same with parts that come one after the other. Holds those of no page yet."""

    def __init__(
        self, read: Callable[[PageRef], Sequence[Part]], store: Callable[[int, Sequence[Part]], PageRef]
    ) -> None:
        self._read = read
        self._store = store
        self._open: list[list[Part]] = [[]]  # by level of the page that they will be in

    @property
    def parts(self) -> list[Part]:
        """What a manifest lists."""
        return [part for level in reversed(self._open) for part in level]

    def add(self, part: Part) -> None:
        """Add the next part. Raises what `read` and `store` raise."""
        level = part.level + 1 if isinstance(part, PageRef) else 0
        while len(self._open) <= level:
            self._open.append([])
        if isinstance(part, PageRef) and any(self._open[:level]):
            for inner in self._read(part):
                self.add(inner)
            return
        listed = self._open[level]
        listed.append(part)
        if _ends_page(part, len(listed)):
            self._open[level] = []
            self.add(self._store(level, listed))


def _ends_page(part: Part, count: int) -> bool:
    name = part.digest if isinstance(part, SegmentRef) else part.name
    return count >= MOST or (count >= LEAST and int(name[-8:], 16) % (1 << _ZERO_BITS) == 0)
