"""Pack work into tasks by its size in raw bytes.

Do long work in waves: some thousands of segments at a time, so that memory does not grow with their number.

`copy` reshapes segments so (`jobs/changed_copy.py`), and whatever joins short ones joins them
(`jobs/joining.py`).

What a task reads of long lists of segments: runs of them, which pages name.

The driver reads only the pages that are too much for one task. The task reads the rest. So neither the driver's memory
nor what is sent to tasks grows with the number of segments.

Measured, 300,000 segments: as single references they are 300 MB in the driver, as pages 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TypeVar

from jsbackup.progress import NullProgress, Progress
from jsbackup.repository.objects import PageRef, SegmentRef
from jsbackup.repository.pages.segment_list import Part, SegmentList, parts_of
from jsbackup.repository.repository import Repository

__all__ = ["OPENING_BYTES", "PagedRun", "as_one", "pack", "pack_tasks", "packed_runs", "task_bytes", "waves"]

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
        """Yield them. Raises IntegrityError, KeyUnavailable, StoreError."""
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
    Raises IntegrityError, KeyUnavailable, StoreError.
    """
    streams_with_runs = [
        (name, segments, [PagedRun.of(part) for part in parts_of(segments)]) for name, segments in streams
    ]
    total = sum(run.weight for _, _, runs in streams_with_runs for run in runs)
    limit = max(task_bytes(total, cores), -(-total // most_tasks) if most_tasks else 0)
    runs = [
        (name, part)
        for name, segments, those in streams_with_runs
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


T = TypeVar("T")

# Segments of a wave. Each takes some KB: its reference, what a task gets of it, what the task returns.
_MOST_SEGMENTS = 8192


def waves(work: Iterable[T], segments: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield the work in lists, in order. `segments` says how many a piece of it concerns. Each list is emptied when the
    next one is asked for.
    """
    wave: list[T] = []
    count = 0
    for piece in work:
        wave.append(piece)
        count += segments(piece)
        if count >= _MOST_SEGMENTS:
            yield wave
            wave.clear()
            count = 0
    if wave:
        yield wave


@contextmanager
def as_one(progress: Progress | None, total_bytes: int) -> Iterator[Progress | None]:
    """Yield a watcher for each of the waves, which passes on to `progress` that one work of `total_bytes` is done."""
    if progress is None or isinstance(progress, NullProgress):
        yield progress
        return
    whole = _Whole(progress, total_bytes)
    try:
        yield whole
    finally:
        whole.close()


class _Whole:
    def __init__(self, progress: Progress, total_bytes: int) -> None:
        self._progress = progress
        self._total_bytes = total_bytes
        self._names: dict[str, None] = {}
        self.expect, self.advance = progress.expect, progress.advance

    def start(self, name: str, _total_bytes: int, total_messages: int) -> None:
        if name not in self._names:
            self._names[name] = None
            self._progress.start(name, self._total_bytes, total_messages)

    def finish(self, name: str) -> None:
        """Another wave may come."""

    def close(self) -> None:
        for name in self._names:
            self._progress.finish(name)


OPENING_BYTES = 64 << 10
"""To open, check and decode a segment takes as long as so many bytes of messages."""

# Raw bytes for one task: its fixed cost on Spark is a hundredth of a second, and little is lost with it. Less if the
# total is small, so that all cores are used, and none waits long for the last task of another.
_MOST_BYTES, _LEAST_BYTES = 128 << 20, 8 << 20
_LEAST_TASKS, _TASKS_FOR_EACH_CORE = 16, 3


def pack(sizes: Sequence[int], limit: int) -> list[slice]:
    """Group adjacent sizes, up to `limit` each; larger ones are separate."""
    slices: list[slice] = []
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > limit:
            slices.append(slice(start, index))
            start, total = index, 0
        total += size
    if start < len(sizes):
        slices.append(slice(start, len(sizes)))
    return slices


def pack_tasks(sizes: Sequence[int], cores: int = 0) -> list[slice]:
    """Group adjacent sizes (raw bytes), as much as one task should do. `cores` are those that do it, 0 if unknown."""
    return pack(sizes, task_bytes(sum(sizes), cores))


def task_bytes(total: int, cores: int = 0) -> int:
    """Return how many raw bytes one task should process, given the total."""
    tasks = max(_LEAST_TASKS, _TASKS_FOR_EACH_CORE * cores)
    return max(_LEAST_BYTES, min(_MOST_BYTES, total // tasks))
