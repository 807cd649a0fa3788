"""The output of `stats`: the document of `--json`, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jsbackup.cli.output.grouped import broken_json, tell_broken
from jsbackup.cli.output.output import Output, format_bytes, format_count, format_time
from jsbackup.errors import JsBackupError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.pipeline.queries.stats import Sizes, StreamStats

__all__ = ["format_moment", "format_width", "stats_json", "tell_stats"]

_SECOND = 10**9


def stats_json(
    backup: str, found: Sequence[StreamStats], broken: Mapping[str, JsBackupError], saved: str | None
) -> JsonObject:
    streams = [_stream_json(one) for one in found]
    return {"backup": backup, "streams": streams, "failed": broken_json(broken), "saved": saved}


def tell_stats(
    output: Output, found: Sequence[StreamStats], broken: Mapping[str, JsBackupError], saved: str | None
) -> None:
    output.table(
        ["STREAM", ">MESSAGES", ">BYTES", ">SUBJECTS", ">HALF", ">90 %", ">99 %", ">LARGEST", "OLDEST", "NEWEST"],
        [
            (
                one.stream,
                format_count(one.messages),
                format_bytes(one.bytes),
                format_count(one.subject_count),
                *map(format_bytes, (one.sizes.p50, one.sizes.p90, one.sizes.p99, one.sizes.largest)),
                format_time(one.oldest_ns),
                format_time(one.newest_ns),
            )
            for one in found
        ],
    )
    for one in found:
        if one.duplicates:
            output.line(f"{one.stream}: {format_count(one.duplicates, 'message')} repeat a Nats-Msg-Id")
    for header, rows in (_busiest(found), _subjects(found), _large_messages(found), _growth(found)):
        if rows:
            output.line()
            output.table(header, rows)
    tell_broken(output, broken)
    if saved is not None:
        output.line(f"saved: {saved}")


_Table = tuple[list[str], Sequence[Sequence[str]]]


def _busiest(found: Sequence[StreamStats]) -> _Table:
    rows = []
    for one in found:
        if buckets := one.buckets:
            most = max(buckets, key=lambda bucket: bucket.messages)
            messages, size = format_count(most.messages), format_bytes(most.bytes)
            rows.append((one.stream, format_width(one.bucket_ns), format_moment(most.start_ns), messages, size))
    return ["STREAM", "BUSIEST", "FROM", ">MESSAGES", ">BYTES"], rows


def _subjects(found: Sequence[StreamStats]) -> _Table:
    rows = [
        (one.stream, subject.subject, format_count(subject.messages), format_bytes(subject.bytes))
        for one in found
        for subject in one.subjects
    ]
    return ["STREAM", "SUBJECT", ">MESSAGES", ">BYTES"], rows


def _large_messages(found: Sequence[StreamStats]) -> _Table:
    rows = [
        (one.stream, str(large.sequence), large.subject, format_bytes(large.bytes))
        for one in found
        for large in one.largest
    ]
    return ["STREAM", ">LARGEST AT", "SUBJECT", ">BYTES"], rows


def _growth(found: Sequence[StreamStats]) -> _Table:
    rows = []
    for one in found:
        if len(one.growth) > 1:
            first, last = one.growth[0], one.growth[-1]
            more, stored = last.bytes - first.bytes, last.stored_bytes - first.stored_bytes
            rows.append(
                (
                    one.stream,
                    first.backup,
                    str(len(one.growth)),
                    f"{last.messages - first.messages:+,}",
                    *(f"{'+' if by >= 0 else ''}{format_bytes(by)}" for by in (more, stored)),
                )
            )
    return ["STREAM", "GROWN SINCE", ">BACKUPS", ">MESSAGES", ">BYTES", ">STORED"], rows


def format_width(width_ns: int) -> str:
    """Format the width of a bucket of time: `30 s`, `5 min`, `7 d`."""
    seconds = width_ns // _SECOND
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def format_moment(ns: int) -> str:
    """Format as RFC 3339 to the second, UTC; 0 is 1970."""
    return datetime.fromtimestamp(ns // _SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _stream_json(one: StreamStats) -> JsonObject:
    return {
        "stream": one.stream,
        "messages": one.messages,
        "bytes": one.bytes,
        "oldest": _time_json(one.oldest_ns),
        "newest": _time_json(one.newest_ns),
        "sizes": _sizes_json(one.sizes),
        "duplicates": one.duplicates,
        "subject_count": one.subject_count,
        "subjects": [
            {
                "subject": subject.subject,
                "messages": subject.messages,
                "bytes": subject.bytes,
                "oldest": _time_json(subject.oldest_ns),
                "newest": _time_json(subject.newest_ns),
            }
            for subject in one.subjects
        ],
        "rate": {
            "seconds": one.bucket_ns // _SECOND,
            "buckets": [
                {"start": format_moment(bucket.start_ns), "messages": bucket.messages, "bytes": bucket.bytes}
                for bucket in one.buckets
            ],
        },
        "size_classes": [
            {"least": found.least, "messages": found.messages, "bytes": found.bytes} for found in one.classes
        ],
        "largest_messages": [
            {
                "sequence": large.sequence,
                "subject": large.subject,
                "bytes": large.bytes,
                "time": format_moment(large.timestamp_ns),
            }
            for large in one.largest
        ],
        "growth": [
            {
                "backup": point.backup,
                "created": point.created,
                "messages": point.messages,
                "bytes": point.bytes,
                "stored_bytes": point.stored_bytes,
            }
            for point in one.growth
        ],
    }


def _sizes_json(sizes: Sizes) -> JsonObject:
    return {"p50": sizes.p50, "p90": sizes.p90, "p99": sizes.p99, "largest": sizes.largest}


def _time_json(ns: int) -> str | None:
    return format_time(ns) if ns else None
