"""Statistics of streams by one statement that DuckDB and Spark run: messages by size, subject, time, and id.

The size of a message is that of its subject, header block and payload. Time is divided into buckets of one of
`WIDTHS_NS`, the same for a whole stream, which begin at multiples of it since 1970; sizes into classes from one power
of two to the next. The width depends on the bounds in the manifest.

All messages are read once. What the statement returns are the sizes that occur (messages of N bytes together have fewer
than sqrt(2 N) sizes, a TiB 1.5 million), the buckets, and the largest subjects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from jsbackup.pipeline.queries.query_model import ALL_STREAMS, view_names
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.pages.segment_list import parts_of
from jsbackup.repository.read.growth import GrowthPoint

__all__ = [
    "DUCKDB",
    "SPARK",
    "WIDTHS_NS",
    "LargeMessage",
    "SizeClass",
    "Sizes",
    "StreamStats",
    "SubjectStats",
    "TimeBin",
    "stats_of",
    "stats_sql",
    "widths_of",
]

_SECOND, _DAY = 10**9, 86_400 * 10**9
_WITHIN_A_DAY = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_DAYS = (1, 7, 30, 365, 3650)

WIDTHS_NS: Final = tuple(count * _SECOND for count in _WITHIN_A_DAY) + tuple(count * _DAY for count in _DAYS)
"""From a second to ten years; timestamps of 64 bits span 59 such buckets."""

# What a chart can show; less for thousands of streams, so that some hundred thousand are held at most.
_MOST_BUCKETS, _LEAST_BUCKETS, _BUCKETS_IN_ALL = 100, 10, 200_000
_MOST_LARGE = 5


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a message: the median, the 90th and 99th percentile, the largest."""

    p50: int = 0
    p90: int = 0
    p99: int = 0
    largest: int = 0


class TimeBin(NamedTuple):
    """Messages stored within the bucket that begins at `start_ns` (Unix time), and their bytes."""

    start_ns: int
    messages: int
    bytes: int


class SizeClass(NamedTuple):
    """Messages of at least `least` bytes, and less than twice that. `bytes` is their sum."""

    least: int
    messages: int
    bytes: int


class LargeMessage(NamedTuple):
    """The first message of its size, `bytes`."""

    bytes: int
    sequence: int
    timestamp_ns: int
    subject: str


class SubjectStats(NamedTuple):
    """`oldest_ns` and `newest_ns` are Unix time."""

    subject: str
    messages: int
    bytes: int
    oldest_ns: int
    newest_ns: int


@dataclass(frozen=True, slots=True)
class StreamStats:
    """`bytes` are raw bytes, as in the manifest. `subjects` are the largest of `subject_count`. `duplicates` repeat a
    `Nats-Msg-Id`; None if they were not counted.

    Buckets, of `bucket_ns`, and classes rise, without empty ones; the `largest` messages fall. Times and `bucket_ns`
    are 0 if there are no messages. `growth` ends with this backup.
    """

    stream: str
    messages: int = 0
    bytes: int = 0
    oldest_ns: int = 0
    newest_ns: int = 0
    sizes: Sizes = Sizes()
    subject_count: int = 0
    subjects: tuple[SubjectStats, ...] = ()
    duplicates: int | None = None
    bucket_ns: int = 0
    buckets: tuple[TimeBin, ...] = ()
    classes: tuple[SizeClass, ...] = ()
    largest: tuple[LargeMessage, ...] = ()
    growth: tuple[GrowthPoint, ...] = ()


class Dialect(NamedTuple):
    """What differs: the bytes of a text, how a text is escaped, and the quote of names."""

    text_bytes: str
    escapes: Mapping[str, str]
    quote: str


DUCKDB: Final = Dialect("strlen(subject)", {"'": "''"}, '"')
SPARK: Final = Dialect("octet_length(subject)", {"\\": "\\\\", "'": "\\'"}, "`")


def widths_of(streams: Sequence[StreamBackup]) -> dict[str, int]:
    """Return the width of the buckets of each stream, in nanoseconds: the narrowest with which there are few enough."""
    most = max(_LEAST_BUCKETS, min(_MOST_BUCKETS, _BUCKETS_IN_ALL // max(1, len(streams))))
    widths = {}
    for stream in streams:
        oldest = min((part.min_ns for part in parts_of(stream.segments)), default=0)
        newest = max((part.max_ns for part in parts_of(stream.segments)), default=0)
        fitting = (width for width in WIDTHS_NS if newest // width - oldest // width < most)
        widths[stream.name] = next(fitting, WIDTHS_NS[-1])
    return widths


def stats_sql(
    dialect: Dialect,
    streams: Sequence[StreamBackup],
    widths: Mapping[str, int],
    *,
    most_subjects: int,
    duplicates: bool,
) -> str:
    """Return the statement over the views of streams (`query.py`)."""
    names, quote = view_names(streams), dialect.quote
    messages = ALL_STREAMS
    if None not in names.values():  # a stream has this name
        quoted = (quote + name.replace(quote, quote * 2) + quote for name in names)
        messages = f"({' UNION ALL '.join(f'SELECT * FROM {name}' for name in quoted)}) AS each_of_them"
    by_width: defaultdict[int, list[str]] = defaultdict(list)
    for name, width in widths.items():
        by_width[width].append("'" + "".join(dialect.escapes.get(char, char) for char in name) + "'")
    cases = " ".join(f"WHEN stream IN ({', '.join(texts)}) THEN {width}" for width, texts in by_width.items())
    message_id, grouped_id = ("headers['Nats-Msg-Id'] AS id,", "id") if duplicates else ("", "NULL AS id")
    sets = ["(stream, size)", "(stream, subject)", "(stream, bucket)", *(["(stream, id)"] if duplicates else [])]
    return f"""
        SELECT kind, stream, size, subject, bucket, messages, bytes, oldest, newest, sequence, stored_ns, first_subject,
            rows_of_kind, repeats
        FROM (
            SELECT *,
                row_number() OVER (PARTITION BY stream, kind ORDER BY bytes DESC, messages DESC, subject) AS place,
                count(*) OVER (PARTITION BY stream, kind) AS rows_of_kind,
                sum(CASE WHEN id IS NULL THEN 0 ELSE messages - 1 END) OVER (PARTITION BY stream, kind) AS repeats
            FROM (
                SELECT stream, size, subject, bucket, {grouped_id}, count(*) AS messages, sum(counted) AS bytes,
                    CASE WHEN grouping(size) = 0 THEN 'size' WHEN grouping(subject) = 0 THEN 'subject'
                        WHEN grouping(bucket) = 0 THEN 'time' ELSE 'id' END AS kind,
                    min(timestamp_ns) AS oldest, max(timestamp_ns) AS newest, min(sequence) AS sequence,
                    min_by(timestamp_ns, sequence) AS stored_ns,
                    min_by(named, sequence) AS first_subject
                FROM (
                    SELECT *, size AS counted, subject AS named FROM (
                        SELECT stream, sequence, timestamp_ns, subject, {message_id}
                            CAST(floor(timestamp_ns / CASE {cases} END) AS bigint) AS bucket,
                            {dialect.text_bytes} + octet_length(data) + coalesce(octet_length(header_block), 0) AS size
                        FROM {messages}
                    ) AS measured
                ) AS named
                GROUP BY GROUPING SETS ({", ".join(sets)})
            ) AS counted
        ) AS ranked
        WHERE kind IN ('size', 'time') OR place <= CASE kind WHEN 'id' THEN 1 ELSE {max(most_subjects, 1)} END
        """


def stats_of(
    streams: Sequence[StreamBackup],
    rows: Iterable[Sequence[Any]],
    widths: Mapping[str, int],
    growth: Mapping[str, Sequence[GrowthPoint]],
    *,
    most_subjects: int,
    duplicates: bool,
) -> list[StreamStats]:
    """Return the statistics of streams from the rows of `stats_sql`, in the order of `streams`."""
    kinds: defaultdict[tuple[str, str], list[_Row]] = defaultdict(list)
    for row in map(_Row._make, rows):
        kinds[row.stream, row.kind].append(row)
    stats = []
    for stream in streams:
        sizes, subjects, times, ids = (kinds[stream.name, kind] for kind in ("size", "subject", "time", "id"))
        grown, repeats = tuple(growth[stream.name]), sum(row.repeats for row in ids)
        if not sizes:
            stats.append(StreamStats(stream.name, duplicates=0 if duplicates else None, growth=grown))
            continue
        sizes.sort(key=lambda row: row.size)
        times.sort(key=lambda row: row.bucket)
        subjects.sort(key=lambda row: (-row.bytes, -row.messages, row.subject))
        width = widths[stream.name]
        tops = reversed(sizes[-_MOST_LARGE:])
        stats.append(
            StreamStats(
                stream.name,
                sum(row.messages for row in sizes),
                stream.captured.bytes,
                min(row.oldest for row in sizes),
                max(row.newest for row in sizes),
                Sizes(_percentile(sizes, 50), _percentile(sizes, 90), _percentile(sizes, 99), sizes[-1].size),
                subjects[0].rows_of_kind,
                tuple(
                    SubjectStats(row.subject, row.messages, row.bytes, row.oldest, row.newest)
                    for row in subjects[:most_subjects]
                ),
                repeats if duplicates else None,
                width,
                tuple(TimeBin(row.bucket * width, row.messages, row.bytes) for row in times),
                tuple(_classes(sizes)),
                tuple(LargeMessage(row.size, row.sequence, row.stored_ns, row.first_subject) for row in tops),
                grown,
            )
        )
    return stats


class _Row(NamedTuple):
    """A row of `stats_sql`."""

    kind: str
    stream: str
    size: int
    subject: str
    bucket: int
    messages: int
    bytes: int
    oldest: int
    newest: int
    sequence: int
    stored_ns: int
    first_subject: str
    rows_of_kind: int
    repeats: int


def _percentile(sizes: Sequence[_Row], percent: int) -> int:
    """Return the size of the message with that rank, rounded up."""
    rank = -(-sum(row.messages for row in sizes) * percent // 100)
    for row in sizes:
        rank -= row.messages
        if rank <= 0:
            break
    return row.size


def _classes(sizes: Sequence[_Row]) -> Iterable[SizeClass]:
    classes: defaultdict[int, list[_Row]] = defaultdict(list)
    for row in sizes:
        classes[1 << max(row.size.bit_length() - 1, 0)].append(row)
    for least, rows in sorted(classes.items()):
        yield SizeClass(least, sum(row.messages for row in rows), sum(row.bytes for row in rows))
