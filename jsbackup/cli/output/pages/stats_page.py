"""The results of `stats` as a page: a table of all streams, and charts and tables of the largest of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jsbackup.cli.output.output import format_bytes, format_count, format_time
from jsbackup.cli.output.stats_report import format_moment, format_width
from jsbackup.html.charts import ChartLine, ChartScale, Slot, bar, columns, legend, lines
from jsbackup.html.page import Markup, clipped, document, element, join
from jsbackup.html.page_parts import cell, figure, folded, number_cell, table
from jsbackup.html.tiles import Tile, tile_row
from jsbackup.times import parse_time

if TYPE_CHECKING:
    from jsbackup.pipeline.queries.stats import StreamStats

__all__ = ["stats_page"]

# A stream takes some 40 KB of page with all its charts; a row in the table a few hundred bytes.
_MOST_CHARTED, _MOST_LISTED = 50, 1000

_DAY = 86_400 * 10**9

_ONE = {"1 s": "second", "1 min": "minute", "1 h": "hour", "1 d": "day"}


def stats_page(backup: str, created: str, found: Sequence[StreamStats]) -> bytes:
    """Return the page in UTF-8. `created` is RFC 3339, as in the manifest."""
    by_size = sorted(range(len(found)), key=lambda number: -found[number].bytes)
    charted = sorted(number for number in by_size[:_MOST_CHARTED] if found[number].messages or found[number].growth)
    listed = sorted(by_size[:_MOST_LISTED])
    messages, size = sum(one.messages for one in found), sum(one.bytes for one in found)
    largest = found[by_size[0]] if found else None
    tiles = [
        Tile("Streams", format_count(len(found))),
        Tile("Messages", format_count(messages)),
        Tile("Bytes", format_bytes(size), "before compression"),
        *([Tile("Largest stream", format_bytes(largest.bytes), clipped(largest.stream))] if largest else []),
    ]
    return document(
        f"Backup {backup}",
        element("h1", f"Backup {backup}"),
        element("p", f"Made {created[:19]}Z. Times are UTC, sizes are those of messages before compression."),
        tile_row(tiles),
        _streams(found, listed, set(charted)),
        *(_left_out(len(found), len(charted), len(listed))),
        *(_stream(found[number], number) for number in charted),
    )


def _left_out(streams: int, charted: int, listed: int) -> Iterable[Markup]:
    if listed < streams:
        yield element("p", f"Only the {listed} largest of {format_count(streams)} streams are listed.", class_="quiet")
    if charted < listed:
        yield element("p", f"Charts follow for {charted} of them, the largest.", class_="quiet")


def _streams(found: Sequence[StreamStats], listed: Sequence[int], charted: set[int]) -> Markup:
    most = max((one.bytes for one in found), default=0)
    counted = any(one.duplicates is not None for one in found)
    rows = []
    for number in listed:
        one = found[number]
        name = clipped(one.stream)
        rows.append(
            [
                cell(element("a", name, href=f"#stream-{number}") if number in charted else name, "name"),
                number_cell(format_count(one.messages)),
                number_cell(format_bytes(one.bytes)),
                cell(bar(one.bytes, most)),
                number_cell(format_count(one.subject_count)),
                *([number_cell(format_count(one.duplicates or 0))] if counted else []),
                *(cell(format_time(moment), "time") for moment in (one.oldest_ns, one.newest_ns)),
            ]
        )
    duplicates = [">Duplicates"] if counted else []
    header = ["Stream", ">Messages", ">Bytes", "Share", ">Subjects", *duplicates, "Oldest", "Newest"]
    return table("Streams", header, rows)


def _stream(one: StreamStats, number: int) -> Markup:
    parts = []
    if one.messages:
        parts += [*_rates(one), _sizes(one)]
    if len(one.growth) > 1:
        parts += _growth(one)
    tables = [_subjects(one), _largest(one)] if one.messages else []
    if not parts:
        parts = [element("p", "It has no messages, and this is the only backup of it.", class_="quiet")]
    return element(
        "section",
        element("h2", clipped(one.stream), id=f"stream-{number}"),
        element("div", *parts, class_="charts"),
        *tables,
    )


def _rates(one: StreamStats) -> list[Markup]:
    width, each = one.bucket_ns, format_width(one.bucket_ns)
    each = _ONE.get(each, each)
    first = one.buckets[0].start_ns // width
    count = one.buckets[-1].start_ns // width - first + 1
    by_number = {bucket.start_ns // width - first: bucket for bucket in one.buckets}
    charts = []
    for title, scale, write in (
        ("Messages", ChartScale.COUNT, format_count),
        ("Bytes", ChartScale.BYTES, format_bytes),
    ):
        slots = []
        for number in range(count):
            bucket = by_number.get(number)
            value = 0 if bucket is None else bucket.messages if scale is ChartScale.COUNT else bucket.bytes
            start = (first + number) * width
            mark = _axis_time(start, width) if number in (0, count // 2 if count > 4 else 0, count - 1) else ""
            slots.append(Slot(value, f"{format_moment(start)}: {write(value)}", mark))
        busiest = max(slots, key=lambda slot: slot.value)
        about = f"{title} of {clipped(one.stream)} per {each}. Most from {busiest.tip}."
        charts.append(figure(f"{title} per {each}", columns(about, slots, scale)))
    rows = [
        [
            cell(format_moment(bucket.start_ns), "time"),
            number_cell(format_count(bucket.messages)),
            number_cell(format_bytes(bucket.bytes)),
        ]
        for bucket in one.buckets
    ]
    numbers = folded(f"Numbers per {each}", ["From", ">Messages", ">Bytes"], rows)
    return [charts[0], join(element("div", charts[1], numbers))]


def _sizes(one: StreamStats) -> Markup:
    classes = {found.least: found for found in one.classes}
    least = [1 << power for power in range(min(classes).bit_length() - 1, max(classes).bit_length())]
    each = -(-len(least) // 6)
    slots = []
    for number, low in enumerate(least):
        messages = classes[low].messages if low in classes else 0
        mark = _power(low) if number % each == 0 else ""
        slots.append(Slot(messages, f"{_class(low)}: {format_count(messages, 'message')}", mark))
    common = max(slots, key=lambda slot: slot.value)
    rows = [
        [cell(_class(low)), number_cell(format_count(found.messages)), number_cell(format_bytes(found.bytes))]
        for low, found in sorted(classes.items())
    ]
    sizes = one.sizes
    said = (
        f"Half of the messages have up to {format_bytes(sizes.p50)}, 90 % up to {format_bytes(sizes.p90)}, "
        f"99 % up to {format_bytes(sizes.p99)}; the largest has {format_bytes(sizes.largest)}."
    )
    about = f"Messages of {clipped(one.stream)} by size. {said} Most in {common.tip}."
    return element(
        "div",
        figure("Messages by size", columns(about, slots, ChartScale.COUNT)),
        element("p", said),
        folded("Numbers by size", ["Size", ">Messages", ">Bytes"], rows),
    )


def _growth(one: StreamStats) -> list[Markup]:
    points = one.growth
    moments = [parse_time(point.created) for point in points]
    moments = [max(moments[: index + 1]) for index in range(len(moments))]  # a clock may have been set back
    marks = [f"{moment[:10]} {moment[11:16]}" for moment in (points[0].created, points[-1].created)]

    def line(name: str, values: list[int], write: str) -> ChartLine:
        texts = [format_bytes(value) if write == "bytes" else format_count(value, "message") for value in values]
        tips = [f"{point.created[:19]}Z: {text}" for point, text in zip(points, texts, strict=True)]
        return ChartLine(name, values, tips)

    counts = line("messages", [point.messages for point in points], "messages")
    raw = line("bytes of messages", [point.bytes for point in points], "bytes")
    stored = line("stored", [point.stored_bytes for point in points], "bytes")
    name = clipped(one.stream)
    over = f"in {len(points)} backups of {name}, from {counts.tips[0]} to {counts.tips[-1]}"
    rows = [
        [
            cell(point.backup, "time"),
            number_cell(format_count(point.messages)),
            number_cell(format_bytes(point.bytes)),
            number_cell(format_bytes(point.stored_bytes)),
        ]
        for point in points
    ]
    return [
        figure("Messages by backup", lines(f"Messages {over}.", moments, marks, [counts], scale=ChartScale.COUNT)),
        element(
            "div",
            figure(
                "Bytes by backup",
                lines(f"Bytes {over}.", moments, marks, [raw, stored], scale=ChartScale.BYTES),
                legend([raw, stored]),
            ),
            folded("Numbers by backup", ["Backup", ">Messages", ">Bytes", ">Stored"], rows),
        ),
    ]


def _subjects(one: StreamStats) -> Markup:
    if not one.subjects:
        return Markup()
    most = one.subjects[0].bytes
    rows = [
        [
            cell(clipped(subject.subject), "name"),
            number_cell(format_count(subject.messages)),
            number_cell(format_bytes(subject.bytes)),
            cell(bar(subject.bytes, most)),
            cell(format_time(subject.newest_ns), "time"),
        ]
        for subject in one.subjects
    ]
    caption = f"Largest subjects, {len(rows)} of {format_count(one.subject_count)}"
    return table(caption, ["Subject", ">Messages", ">Bytes", "", "Newest"], rows)


def _largest(one: StreamStats) -> Markup:
    rows = [
        [
            cell(str(large.sequence), "time"),
            cell(clipped(large.subject), "name"),
            number_cell(format_bytes(large.bytes)),
            cell(format_moment(large.timestamp_ns), "time"),
        ]
        for large in one.largest
    ]
    return table("Largest messages", ["Sequence", "Subject", ">Size", "Stored"], rows)


def _class(low: int) -> str:
    return f"{_power(low)} to {_power(2 * low)}"


def _power(count: int) -> str:
    """Format a power of two: `512 B`, `1 KiB`."""
    power = (count.bit_length() - 1) // 10
    return f"{count >> 10 * power} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB')[power]}"


def _axis_time(ns: int, width_ns: int) -> str:
    form = "%Y-%m-%d" if width_ns >= _DAY else "%m-%d %H:%M" if width_ns >= 60 * 10**9 else "%H:%M:%S"
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime(form)
