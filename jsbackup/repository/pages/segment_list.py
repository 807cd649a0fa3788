"""The segments of a stream as a sequence whose pages are read when they are needed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias, overload

from jsbackup.errors import IntegrityError, StoreError, UnsupportedError
from jsbackup.formats.digest import StreamDigest
from jsbackup.repository.objects import PageRef, SegmentRef

__all__ = [
    "BrokenPage",
    "Part",
    "SegmentList",
    "Totals",
    "either",
    "ends_of",
    "joined",
    "parts_of",
    "parts_where",
    "raw_bytes_of",
    "readable",
    "size_of",
    "split_at",
    "total_of",
    "touching",
]

Part: TypeAlias = PageRef | SegmentRef
"""A part of a list of segments: a page of them, or a single one."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums over some segments. Sequences are 0 if there is no message."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    digest: StreamDigest = field(default_factory=StreamDigest)


@dataclass(frozen=True, slots=True)
class BrokenPage:
    """A page that cannot be read, and why."""

    page: PageRef
    error: IntegrityError | StoreError | UnsupportedError


class SegmentList(Sequence[SegmentRef]):
    """The segments in `parts`, in order.

    `read` returns the parts that a page lists. Whatever needs them raises its errors: IntegrityError for a missing or
    damaged page, KeyUnavailable, StoreError. Nothing is kept of what was read. Compares as a tuple of its segments, and
    is pickled as one.
    """

    def __init__(self, parts: Iterable[Part], read: Callable[[PageRef], Sequence[Part]]) -> None:
        self.parts = tuple(parts)
        self.read = read

    @cached_property
    def totals(self) -> Totals:
        """The sums over all segments, from those of the parts."""
        return total_of(self.parts)

    @cached_property
    def _count(self) -> int:
        return sum(map(_count_of, self.parts))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[SegmentRef]:
        return self._from(self.parts, 0)

    def __reversed__(self) -> Iterator[SegmentRef]:
        return self._reversed(self.parts)

    @overload
    def __getitem__(self, index: int) -> SegmentRef: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[SegmentRef, ...]: ...

    def __getitem__(self, index: int | slice) -> SegmentRef | tuple[SegmentRef, ...]:
        if isinstance(index, int):
            at = index + len(self) if index < 0 else index
            if not 0 <= at < len(self):
                raise IndexError(index)
            return next(self._from(self.parts, at))
        start, stop, step = index.indices(len(self))
        if step != 1:
            return tuple(self)[index]
        return tuple(islice(self._from(self.parts, start), max(0, stop - start)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SegmentList | tuple):
            return NotImplemented
        if isinstance(other, SegmentList) and other.parts == self.parts:
            return True
        return len(other) == len(self) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (list(self),)

    def pages(self) -> Iterator[PageRef]:
        """Yield all pages, each before those that it lists. Reads only those of higher levels."""
        return self._pages(self.parts)

    def select(self, keeps: Callable[[Part], bool | None]) -> SegmentList:
        """Return the list of the parts that `keeps` is true of. A page of which it is None is read, and its parts are
        asked for.
        """
        return SegmentList(self.parts_where(keeps), self.read)

    def parts_where(self, keeps: Callable[[Part], bool | None]) -> Iterator[Part]:
        """Yield the parts of `select`, and read a page when its parts are due."""
        return self._selected(self.parts, keeps)

    def upto(self, last_seq: int) -> SegmentList:
        """Return the list of the segments that end at `last_seq` or before."""
        return self.select(lambda part: _relation(part.last_seq <= last_seq, part.first_seq <= last_seq, part))

    def after(self, first_seq: int) -> SegmentList:
        """Return the list of the segments that begin after `first_seq`."""
        return self.select(lambda part: _relation(part.first_seq > first_seq, part.last_seq > first_seq, part))

    def plus(self, segments: Iterable[SegmentRef]) -> SegmentList:
        """Return the list with more segments after its own."""
        return SegmentList((*self.parts, *segments), self.read)

    def walk(self) -> Iterator[Part | BrokenPage]:
        """Yield all pages and segments, each page before what it lists, or before what is wrong with it.

        Raises only KeyUnavailable.
        """
        return self._walk(self.parts)

    def _reversed(self, parts: Sequence[Part]) -> Iterator[SegmentRef]:
        for part in reversed(parts):
            if isinstance(part, SegmentRef):
                yield part
            else:
                yield from self._reversed(self.read(part))

    def _from(self, parts: Iterable[Part], skipped: int) -> Iterator[SegmentRef]:
        """Yield the segments after the first `skipped` ones."""
        for part in parts:
            count = _count_of(part)
            if skipped >= count:
                skipped -= count
            elif isinstance(part, SegmentRef):
                yield part
            else:
                yield from self._from(self.read(part), skipped)
                skipped = 0

    def _pages(self, parts: Iterable[Part]) -> Iterator[PageRef]:
        for part in parts:
            if isinstance(part, PageRef):
                yield part
                if part.level:
                    yield from self._pages(self.read(part))

    def _selected(self, parts: Iterable[Part], keeps: Callable[[Part], bool | None]) -> Iterator[Part]:
        for part in parts:
            verdict = keeps(part)
            if verdict:
                yield part
            elif verdict is None and isinstance(part, PageRef):
                yield from self._selected(self.read(part), keeps)

    def _walk(self, parts: Iterable[Part]) -> Iterator[Part | BrokenPage]:
        for part in parts:
            yield part
            if isinstance(part, PageRef):
                try:
                    listed = self.read(part)
                except (IntegrityError, StoreError, UnsupportedError) as error:
                    yield BrokenPage(part, error)
                else:
                    yield from self._walk(listed)


def _relation(wholly: bool, partly: bool, part: Part) -> bool | None:
    """Return what `select` gets for a part. A segment that is there partly is not wanted."""
    return True if wholly else None if partly and isinstance(part, PageRef) else False


def ends_of(segments: Sequence[SegmentRef]) -> tuple[int, int]:
    """Return the first and the last sequence, 0 without segments. Reads no page."""
    parts = parts_of(segments)
    return (parts[0].first_seq, parts[-1].last_seq) if parts else (0, 0)


def raw_bytes_of(segments: Sequence[SegmentRef]) -> int:
    """Return the raw bytes of segments. Reads no page."""
    return sum(part.bytes for part in parts_of(segments))


def split_at(segments: Sequence[SegmentRef], first_seq: int) -> tuple[Sequence[SegmentRef], Sequence[SegmentRef]]:
    """Return the segments that end before a sequence, and those that begin there or later; none holds it within."""
    if isinstance(segments, SegmentList):
        return segments.upto(first_seq - 1), segments.after(first_seq - 1)
    at = bisect_left(segments, first_seq, key=lambda ref: ref.first_seq)
    return segments[:at], segments[at:]


def joined(head: Sequence[SegmentRef], tail: Sequence[SegmentRef]) -> Sequence[SegmentRef]:
    """Return the segments of both, without reading the pages of `head`."""
    return head.plus(tail) if isinstance(head, SegmentList) else (*head, *tail)


def touching(segments: Sequence[SegmentRef], first_seq: int, last_seq: int) -> Iterator[SegmentRef]:
    """Yield the segments that have sequences from `first_seq` to `last_seq`. Reads no other pages."""

    def touches(part: Part) -> bool | None:
        if part.last_seq < first_seq or last_seq < part.first_seq:
            return False
        return None if isinstance(part, PageRef) else True

    return (part for part in parts_where(segments, touches) if isinstance(part, SegmentRef))


def either(wholly: bool, partly: bool, part: Part) -> bool | None:
    """Return what `SegmentList.select` gets: a segment counts if a part of it does; such a page is read."""
    return None if isinstance(part, PageRef) and partly and not wholly else partly


def parts_where(segments: Sequence[SegmentRef], keeps: Callable[[Part], bool | None]) -> Iterator[Part]:
    """Yield the parts that `keeps` is true of, as `SegmentList.select` takes it. It is never None of a segment."""
    if isinstance(segments, SegmentList):
        return segments.parts_where(keeps)
    return (ref for ref in segments if keeps(ref))


def readable(segments: Iterable[SegmentRef]) -> list[SegmentRef]:
    """Return the segments except those in pages that cannot be read."""
    if isinstance(segments, SegmentList):
        return [part for part in segments.walk() if isinstance(part, SegmentRef)]
    return list(segments)


def parts_of(segments: Sequence[SegmentRef]) -> Sequence[Part]:
    """Return the parts of a list of segments, those of a tuple one by one."""
    # Most are tuples; asking an abstract class about another takes ten times as long.
    return segments.parts if not isinstance(segments, tuple) and isinstance(segments, SegmentList) else segments


def total_of(segments: Iterable[Part]) -> Totals:
    """Add segments up: the numbers that `Captured` and `StreamBackup.digest` hold. Reads no page."""
    if isinstance(segments, SegmentList):
        return segments.totals
    messages = size = first_seq = last_seq = 0
    digest = StreamDigest()
    for part in segments:
        messages += part.messages
        size += part.bytes
        first_seq = min(first_seq, part.first_seq) if last_seq else part.first_seq
        last_seq = max(last_seq, part.last_seq)
        digest += part.fingerprint
    return Totals(messages, size, first_seq, last_seq, digest)


def size_of(segments: Sequence[SegmentRef]) -> int:
    """Return the stored bytes of segments. Reads no page."""
    return sum(part.stored_bytes if isinstance(part, PageRef) else part.size for part in parts_of(segments))


def _count_of(part: Part) -> int:
    return part.segments if isinstance(part, PageRef) else 1
