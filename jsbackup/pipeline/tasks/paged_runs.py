"""What a task reads of long lists of segments: runs of them, which pages name.

The driver reads only the pages that are too much for one task, and those with many others that nobody wants. The task
reads the rest. So neither the driver's memory nor what is sent to tasks grows with the number of segments.

Measured, 300,000 segments: as single references they are 300 MB in the driver, as pages 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Protocol, TypeVar

from jsbackup.pipeline.tasks.packing import OPENING_BYTES, pack, task_bytes
from jsbackup.repository.pages.segment_list import Part, SegmentList, parts_of
from jsbackup.repository.refs import PageRef, SegmentRef
from jsbackup.repository.repository import Repository

__all__ = ["PagedRun", "WantedParts", "packed_runs"]

S = TypeVar("S")

# Pages of segments that are read here because only a part of each is wanted. Filters on sequences leave two at most; on
# times it may be all of them, where clocks differ.
_MOST_PAGES = 64


class WantedParts(Protocol):
    """Which segments are wanted, by their sequences and times."""

    def wants_part(self, part: Part) -> bool | None:
        """Return what `parts_where` gets, to yield segments."""

    def wants_all_of(self, part: Part) -> bool:
        """Return whether all segments of a part are wanted, however they are inside."""


class _Everything:
    """All segments are wanted."""

    def wants_part(self, part: Part) -> bool | None:
        return None if isinstance(part, PageRef) else True

    def wants_all_of(self, _part: Part) -> bool:
        return True


_EVERYTHING = _Everything()


@dataclass(frozen=True, slots=True)
class PagedRun:
    """A segment; the segments of a page; or those of a page of level 0 from number `start` to before `stop`.

    `weight` is what it takes to read them: raw bytes, and something for each.
    """

    part: Part
    weight: int
    start: int = 0
    stop: int | None = None

    @classmethod
    def of(cls, part: Part) -> PagedRun:
        segments = part.segments if isinstance(part, PageRef) else 1
        return cls(part, part.bytes + segments * OPENING_BYTES)

    def segments(self, repository: Repository, wanted: WantedParts = _EVERYTHING) -> Iterator[SegmentRef]:
        """Yield those that are wanted. Raises as `PageStore.read`."""
        if isinstance(self.part, SegmentRef):
            yield self.part
            return
        segments = SegmentList([self.part], repository.pages.read)
        if self.stop is None:
            yield from (one for one in segments.parts_where(wanted.wants_part) if isinstance(one, SegmentRef))
        else:
            some = islice(segments, self.start, self.stop)
            yield from (ref for ref in some if wanted.wants_part(ref))


def packed_runs(
    streams: Iterable[tuple[S, Sequence[SegmentRef]]],
    cores: int,
    wanted: WantedParts = _EVERYTHING,
    *,
    most_tasks: int = 0,
) -> list[tuple[tuple[S, PagedRun], ...]]:
    """Return for each task the runs that it reads, each with what its stream is called here; all in order.

    `cores` are those that do it, 0 if unknown. With `most_tasks` tasks become larger rather than much more than these.
    Raises as `PageStore.read`.
    """
    found = [(name, segments, list(_wanted_runs(segments, wanted))) for name, segments in streams]
    total = sum(run.weight for _, _, runs in found for run in runs)
    limit = max(task_bytes(total, cores), -(-total // most_tasks) if most_tasks else 0)
    runs = [
        (name, part)
        for name, segments, those in found
        for run in those
        for part in _divided(run, _reading(segments), limit)
    ]
    return [tuple(runs[piece]) for piece in pack([run.weight for _, run in runs], limit)]


def _wanted_runs(segments: Sequence[SegmentRef], wanted: WantedParts) -> Iterator[PagedRun]:
    """Yield runs of which much is wanted."""
    read, left = _reading(segments), _MOST_PAGES

    def runs(parts: Iterable[Part]) -> Iterator[PagedRun]:
        nonlocal left
        for part in parts:
            if wanted.wants_part(part) is False:
                continue
            if isinstance(part, SegmentRef) or wanted.wants_all_of(part) or (not part.level and not left):
                yield PagedRun.of(part)
                continue
            left -= not part.level
            yield from runs(read(part))

    return runs(parts_of(segments))


def _divided(run: PagedRun, read: Callable[[PageRef], Sequence[Part]], limit: int) -> Iterator[PagedRun]:
    """Yield runs of at most `limit`, if segments are no larger; of a page of level 0 about as much each."""
    page = run.part
    if run.weight <= limit or isinstance(page, SegmentRef):
        yield run
    elif page.level:
        for part in read(page):
            yield from _divided(PagedRun.of(part), read, limit)
    else:
        pieces = min(page.segments, -(-run.weight // limit))
        ends = [page.segments * number // pieces for number in range(pieces + 1)]
        for start, stop in pairwise(ends):
            yield PagedRun(page, run.weight * (stop - start) // page.segments, start, stop)


def _reading(segments: Sequence[SegmentRef]) -> Callable[[PageRef], Sequence[Part]]:
    return segments.read if isinstance(segments, SegmentList) else _no_pages


def _no_pages(page: PageRef) -> Sequence[Part]:
    raise AssertionError(f"{page.key} is in no list")
