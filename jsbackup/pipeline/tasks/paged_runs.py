"""What a task reads of long lists of segments: runs of them, which pages name.

The driver reads only the pages that are too much for one task. The task reads the rest. So neither the driver's memory
nor what is sent to tasks grows with the number of segments.

Measured, 300,000 segments: as single references they are 300 MB in the driver, as pages 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TypeVar

from jsbackup.pipeline.tasks.packing import OPENING_BYTES, pack, task_bytes
from jsbackup.repository.pages.segment_list import Part, SegmentList, parts_of
from jsbackup.repository.refs import PageRef, SegmentRef
from jsbackup.repository.repository import Repository

__all__ = ["PagedRun", "packed_runs"]

S = TypeVar("S")


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

    def segments(self, repository: Repository) -> Iterator[SegmentRef]:
        """Yield them. Raises as `PageStore.read`."""
        if isinstance(self.part, SegmentRef):
            yield self.part
            return
        segments = SegmentList([self.part], repository.pages.read)
        if self.stop is None:
            yield from segments
        else:
            yield from islice(segments, self.start, self.stop)


def packed_runs(
    streams: Iterable[tuple[S, Sequence[SegmentRef]]],
    cores: int,
    *,
    most_tasks: int = 0,
) -> list[tuple[tuple[S, PagedRun], ...]]:
    """Return for each task the runs that it reads, each with what its stream is called here; all in order.

    `cores` are those that do it, 0 if unknown. With `most_tasks` tasks become larger rather than much more than these.
    Raises as `PageStore.read`.
    """
    found = [(name, segments, [PagedRun.of(part) for part in parts_of(segments)]) for name, segments in streams]
    total = sum(run.weight for _, _, runs in found for run in runs)
    limit = max(task_bytes(total, cores), -(-total // most_tasks) if most_tasks else 0)
    runs = [
        (name, part)
        for name, segments, those in found
        for run in those
        for part in _divided(run, _reading(segments), limit)
    ]
    return [tuple(runs[piece]) for piece in pack([run.weight for _, run in runs], limit)]


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
