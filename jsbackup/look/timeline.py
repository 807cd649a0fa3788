"""How the messages of a stream are spread over time.

Of a small stream the times of all messages are read. Of others nothing is read: the messages of each segment, or page
of segments, are spread evenly between its first and its last time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jsbackup import compute as pc
from jsbackup.look.message import ALL_MESSAGES
from jsbackup.look.stream import heads
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import Part, parts_of, size_of

__all__ = ["Timeline", "timeline_of"]

_SECOND = 10**9
_MOST_SLOTS = 60
_WIDTHS = [_SECOND * n for n in (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86_400, 7 * 86_400, 30 * 86_400)]
_MOST_MESSAGES, _MOST_BYTES = 500_000, 24 << 20


@dataclass(frozen=True, slots=True)
class Timeline:
    """The number of messages in consecutive slots of `width_ns` from `start_ns` on. `exact`: their times were read."""

    start_ns: int
    width_ns: int
    messages: tuple[int, ...]
    exact: bool


def timeline_of(objects: Objects, stream: StreamBackup) -> Timeline | None:
    """Return the timeline of a stream; None without messages.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    parts = [part for part in parts_of(stream.segments) if part.messages]
    if not parts:
        return None
    low, high = min(part.min_ns for part in parts), max(part.max_ns for part in parts)
    width = _width(high - low)
    start = low // width * width
    counts = [0] * ((high - start) // width + 1)
    exact = stream.captured.messages <= _MOST_MESSAGES and size_of(stream.segments) <= _MOST_BYTES
    spread = _read(objects, stream, start, width) if exact else _spread(parts, start, width)
    for slot, count in spread:
        counts[slot] += count
    return Timeline(start, width, tuple(counts), exact)


def _width(span_ns: int) -> int:
    for width in _WIDTHS:
        if span_ns // width < _MOST_SLOTS - 1:
            return width
    return -(-span_ns // (_MOST_SLOTS - 2) // _WIDTHS[-1]) * _WIDTHS[-1]


def _read(objects: Objects, stream: StreamBackup, start: int, width: int) -> Iterator[tuple[int, int]]:
    for ref in stream.segments:
        for batch in heads(objects, ref, ALL_MESSAGES, ALL_MESSAGES.columns):
            times = pc.subtract(batch.column("timestamp_ns"), pc.int64_array([start])[0])
            slots = pc.value_counts(pc.divide(times, pc.int64_array([width])[0]))
            for slot in slots.to_pylist():
                yield slot["values"], slot["counts"]


def _spread(parts: Iterable[Part], start: int, width: int) -> Iterator[tuple[int, int]]:
    for part in parts:
        first, last = (part.min_ns - start) // width, (part.max_ns - start) // width
        each, rest = divmod(part.messages, last - first + 1)
        for slot in range(first, last + 1):
            yield slot, each + (slot - first < rest)
