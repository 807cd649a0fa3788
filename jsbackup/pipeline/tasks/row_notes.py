"""What is said of messages that were stored as they are, and that surprise whoever restores them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jsbackup.pipeline.tasks.row_rules import OddRows, RowCounts
from jsbackup.readable import format_count
from jsbackup.repository.refs import SegmentRef
from jsbackup.times import format_time

__all__ = ["notes_on"]

_HEADERS = "headers that clients may not read: after such a message nats-py reads nothing more, and nats.go drops them"
_SUBJECTS = "subjects that clients may not read: nats-py reads nothing more after such a message"


_UNIT = "timestamp_ns is in nanoseconds since 1970"
# NATS is younger, and so is any time in nanoseconds that is meant. One in microseconds is in 1970 until 3973.
_EARLY_NS = 315_532_800 * 10**9  # 1980


def notes_on(name: str, segments: Sequence[SegmentRef], counts: RowCounts, *, from_server: bool) -> Iterator[str]:
    """Yield sentences about messages of a stream, in these segments, that clients may not read; and about their times,
    if these are not `from_server`.
    """
    newest_ns = max((one.max_ns for one in segments), default=_EARLY_NS)
    if newest_ns < _EARLY_NS and not from_server:
        newest = format_time(newest_ns) if newest_ns else "1970-01-01T00:00:00Z"
        yield f"stream {name}: {_UNIT}, so its newest message is of {newest}; other units need to be converted"
    for odd, what in ((counts.headers, _HEADERS), (counts.subjects, _SUBJECTS)):
        if odd.messages:
            yield f"stream {name}: {_of(odd)} {what}"


def _of(odd: OddRows) -> str:
    if odd.messages == 1:
        return f"1 message ({odd.first}) has"
    return f"{format_count(odd.messages, 'message')} (the first is {odd.first}) have"
