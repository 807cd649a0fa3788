"""The results of `status` as a page: problems, key figures, the newest backups, growth, checks, streams without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta

from jsbackup.browse.overview import NO_POLICY, growth_of_series, key_figures, recent_table, verdict
from jsbackup.cli.output.output import format_bytes, format_count, format_seconds, format_time
from jsbackup.cli.output.status_report import Report, recovery_point_seconds
from jsbackup.engine.check.backup_series import BackupSeries
from jsbackup.engine.check.health_rules import not_backed_up, span
from jsbackup.html.charts import CALENDAR_WEEKS, ChartLine, ChartScale, Day, Slot, bar, calendar, columns, lines
from jsbackup.html.page import Markup, clipped, document, element
from jsbackup.html.page_parts import cell, figure, folded, number_cell, table
from jsbackup.html.tiles import Tile, tile_row
from jsbackup.repository.manifest import Result
from jsbackup.repository.summary import BackupSummary
from jsbackup.times import parse_time

__all__ = ["status_page"]

# A line takes some 60 KB of page, most of it its calendar.
_MOST_LINES = 20
_MOST_POINTS = 60
_MOST_STREAMS = 500
_MOST_CHECKS = 30
_MOST_RECENT = 20
_CALENDAR_SECONDS = 120 * 86_400


def status_page(report: Report, location: str, *, expiry: Tile = NO_POLICY, held: Collection[str] = ()) -> bytes:
    """Return the page in UTF-8. `location` has no login; `expiry` is the tile of what is removed next."""
    status = report.status
    title = f"Backups in {clipped(location)}"
    left_out = len(status.lines) - _MOST_LINES
    newest = status.backups[: -_MOST_RECENT - 1 : -1]
    return document(
        title,
        element("h1", title),
        verdict(report.breaches),
        tile_row(key_figures(status, report.breaches, expiry)),
        element(
            "p",
            f"Looked at on {format_time(status.now_ns)}. Times are UTC, sizes those of messages before compression.",
            class_="quiet",
        ),
        *(
            [recent_table(newest, held, status.damaged, now_ns=status.now_ns, caption="The newest backups")]
            if newest
            else []
        ),
        *(part for line in status.lines[:_MOST_LINES] for part in _line(report, line)),
        *([element("p", f"{left_out} more series of backups are not shown.", class_="quiet")] if left_out > 0 else []),
        element("h2", "Stored"),
        *_stored(report),
        element("h2", "Drills"),
        *_drills(report),
        element("h2", "Verified"),
        *_verifies(report),
        element("h2", "Streams without a backup"),
        *_without_backup(report),
    )


# --- a line of backups ---


def _line(report: Report, line: BackupSeries) -> Iterable[Markup]:
    yield element("h2", clipped(line.title))
    newest = line.newest_complete
    covered = " Newer backups of another series have all of its streams." if line.covered else ""
    since = (
        f"the newest {span(report.age_seconds(newest.created))} old" if newest is not None else "none of them complete"
    )
    held = f"{format_count(len(line.backups), 'backup')}, {format_count(len(line.complete))} complete, {since}."
    yield element("p", f"{held}{covered}")
    if sparkline := growth_of_series(line):
        yield sparkline
    if _is_long(report, line):
        yield element("div", _calendar(report, line), class_="wide")
    if len(line.complete) > 1:
        yield element("div", *_growth(line), class_="charts")
    yield from _streams(line)


def _is_long(report: Report, line: BackupSeries) -> bool:
    """Whether a calendar of a year would show more than grey days."""
    return report.age_seconds(line.backups[0].created) >= _CALENDAR_SECONDS


def _calendar(report: Report, line: BackupSeries) -> Markup:
    today = datetime.fromtimestamp(report.status.now_ns // 10**9, UTC).date()
    complete: Counter[str] = Counter()
    partial: Counter[str] = Counter()
    for backup in line.backups:
        (complete if backup.result is Result.COMPLETE else partial)[backup.created[:10]] += 1
    # Whole weeks, the last one ends today.
    begin = today - timedelta(days=today.weekday() + 7 * (CALENDAR_WEEKS - 1))
    dates = [begin + timedelta(days=number) for number in range((today - begin).days + 1)]
    days = []
    for date in dates:
        name = date.isoformat()
        counts = [
            f"{count} {word}" for count, word in ((complete[name], "complete"), (partial[name], "partial")) if count
        ]
        class_ = "one" if complete[name] else "two" if partial[name] else "none"
        mark = f"{date:%b}" if date.day <= 7 and date.weekday() == 0 else ""
        days.append(Day(date.weekday(), class_, f"{name}: {', '.join(counts) or 'no backup'}", mark))
    with_backup = sum(day.class_ != "none" for day in days)
    about = f"Backups by day over a year: {with_backup} of {len(days)} days have one that is kept."
    rows = [
        [cell(name, "time"), number_cell(format_count(complete[name])), number_cell(format_count(partial[name]))]
        for name in sorted({*complete, *partial}, reverse=True)[: len(days)]
    ]
    return element(
        "div",
        figure("Backups by day", calendar(about, days)),
        element(
            "p",
            "A day is blue with a complete backup, orange with partial ones only, and grey without.",
            class_="quiet",
        ),
        folded("Backups by day", ["Day", ">Complete", ">Partial"], rows),
    )


def _growth(line: BackupSeries) -> list[Markup]:
    points = _thinned(line.complete)
    moments = [parse_time(point.created) for point in points]
    moments = [max(moments[: index + 1]) for index in range(len(moments))]  # a clock may have been set back
    marks = [f"{one.created[:10]} {one.created[11:16]}" for one in (points[0], points[-1])]
    charts = []
    for name, scale in (("Messages", ChartScale.COUNT), ("Bytes", ChartScale.BYTES)):
        values = [one.messages if scale is ChartScale.COUNT else one.bytes for one in points]
        counts = [format_count(value) if scale is ChartScale.COUNT else format_bytes(value) for value in values]
        tips = [f"{one.created[:19]}Z: {text}" for one, text in zip(points, counts, strict=True)]
        curve = ChartLine(name.lower(), values, tips)
        about = f"{name} in {len(points)} backups, from {tips[0]} to {tips[-1]}."
        charts.append(figure(f"{name} by backup", lines(about, moments, marks, [curve], scale=scale)))
    rows = [
        [
            cell(one.id, "time"),
            *map(number_cell, (str(one.streams), format_count(one.messages), format_bytes(one.bytes))),
        ]
        for one in reversed(points)
    ]
    numbers = folded("Numbers by backup", ["Backup", ">Streams", ">Messages", ">Bytes"], rows)
    return [charts[0], element("div", charts[1], numbers)]


def _thinned(backups: Sequence[BackupSummary]) -> list[BackupSummary]:
    """Return at most so many of them, evenly distributed, with the first and the last."""
    if len(backups) <= _MOST_POINTS:
        return list(backups)
    step = (len(backups) - 1) / (_MOST_POINTS - 1)
    return [backups[round(number * step)] for number in range(_MOST_POINTS)]


def _streams(line: BackupSeries) -> Iterable[Markup]:
    largest = sorted(line.streams, key=lambda one: (-one.bytes, one.name))[:_MOST_STREAMS]
    most = max((one.bytes for one in largest), default=0)
    rows = [
        [
            cell(clipped(one.name), "name"),
            number_cell(format_count(one.messages)),
            number_cell(format_bytes(one.bytes)),
            cell(bar(one.bytes, most)),
            number_cell(format_bytes(one.stored_bytes)),
        ]
        for one in largest
    ]
    if rows:
        caption = f"Streams in the newest backup, {len(rows)} of {format_count(len(line.streams))}"
        yield table(caption, ["Stream", ">Messages", ">Bytes", "Share", ">Stored"], rows)
    for names, word in ((line.new, "New"), (line.gone, "Gone")):
        if names:
            shown = ", ".join(map(clipped, names[:20])) + (" …" if len(names) > 20 else "")
            yield element("p", f"{word} since the backup before: {shown}.")


# --- all of the repository ---


def _stored(report: Report) -> Iterable[Markup]:
    status, stored = report.status, report.status.stored
    raw = sum(backup.bytes for backup in status.backups)
    backups = f"{format_count(len(status.backups), 'backup')} of {format_bytes(raw)} in all"
    if stored.objects is None or stored.bytes is None:
        yield element("p", f"{backups} are stored, in too many objects to list them.")
        return
    objects = f"{format_count(stored.objects, 'object')} of {format_bytes(stored.bytes)}"
    shared = ", by compression and because backups share what they have in common"
    less = f": {raw / stored.bytes:,.1f} times less{shared}" if stored.bytes else ""
    yield element("p", f"{backups} are stored in {objects}{less}.")
    if raw and stored.bytes:
        slots = [
            Slot(raw, f"in all backups: {format_bytes(raw)}", "all backups"),
            Slot(stored.bytes, f"stored: {format_bytes(stored.bytes)}", "stored"),
        ]
        about = f"Bytes of messages in all backups, {format_bytes(raw)}, and stored, {format_bytes(stored.bytes)}."
        yield element("div", figure("Deduplication", columns(about, slots, ChartScale.BYTES)), class_="charts")
    if stored.unused_objects:
        yield element(
            "p",
            f"{format_count(stored.unused_objects, 'object')} of {format_bytes(stored.unused_bytes)} were needed by no "
            "backup when prune last looked.",
        )


def _drills(report: Report) -> Iterable[Markup]:
    drills = report.status.drills_of(None)[:_MOST_CHECKS]
    if not drills:
        yield element("p", "No drill has been recorded.", class_="quiet")
        return
    slots = []
    for number, one in enumerate(reversed(drills)):
        mark = one.begun[:10] if number in (0, len(drills) - 1) else ""
        tip = f"{one.begun[:19]}Z: {format_seconds(one.seconds)}{'' if one.ok else ', failed'}"
        slots.append(Slot(max(1, round(one.seconds)), tip, mark))
    about = f"Seconds that each of {len(slots)} drills took. The last: {slots[-1].tip}."
    yield element("div", figure("Seconds by drill", columns(about, slots, ChartScale.COUNT)), class_="charts")
    rows = [
        [
            cell(f"{one.begun[:19]}Z", "time"),
            _outcome_cell(
                "restored and proved" if one.everything else "restored and proved, in part",
                "failed" if one.everything else "failed, in part",
                one.error or "",
                ok=one.ok,
            ),
            cell(one.backup, "time"),
            cell(span(recovery_point_seconds(one)), "time"),
            number_cell(str(one.restored)),
            number_cell(format_count(one.messages)),
            number_cell(format_seconds(one.seconds)),
        ]
        for one in drills
    ]
    header = ["Drill", "Result", "Backup", "Its age then", ">Streams", ">Messages", ">Time"]
    yield table("Drills", header, rows)
    last = sorted(drills[0].streams, key=lambda one: -one.seconds)[:_MOST_STREAMS]
    times = [
        [
            cell(clipped(one.name), "name"),
            number_cell(format_count(one.messages)),
            number_cell(format_bytes(one.bytes)),
            number_cell(format_seconds(one.seconds)),
            cell("verified" if one.verified else "not verified"),
        ]
        for one in last
    ]
    if times:
        yield table("Streams of the last drill", ["Stream", ">Messages", ">Bytes", ">Time", "Proof"], times)


def _outcome_cell(good: str, bad: str, more: str = "", *, ok: bool) -> Markup:
    """Return a cell with the result of a check in its colour; `more` is shown if it was not good."""
    mark = element("span", good if ok else bad, class_=f"state {'good' if ok else 'bad'}")
    return element("td", mark, *([] if ok or not more else [f" {clipped(more)}"]), class_="name")


def _verifies(report: Report) -> Iterable[Markup]:
    rows = [
        [
            cell(f"{one.ended[:19]}Z", "time"),
            cell(one.level),
            cell("all backups" if one.everything else format_count(one.backups, "backup")),
            cell("a part" if one.part else "all objects"),
            _outcome_cell("nothing wrong", format_count(one.problems, "problem"), ok=one.ok),
        ]
        for one in report.status.verifies[:_MOST_CHECKS]
    ]
    if rows:
        yield table("Runs of verify", ["Ended", "Level", "Of", "Read", "Found"], rows)
    else:
        yield element("p", "No verify has been recorded.", class_="quiet")


def _without_backup(report: Report) -> Iterable[Markup]:
    skipped = [
        [cell(clipped(one.name), "name"), cell(f"{line.newest.id} lacks it: {one.reason}", "name")]
        for line in report.status.lines
        if not line.covered
        for one in line.skipped
    ]
    live = report.live
    missing = [] if live is None else not_backed_up(report.status, live)
    never = [[cell(clipped(name), "name"), cell("on the server, and in no newest backup")] for name in missing]
    accounts = () if report.accounts is None else report.accounts.accounts
    never += [
        [cell(clipped(name), "name"), cell(clipped(f"of {one.origin.words}, and in no newest backup"))]
        for one in accounts
        for name in not_backed_up(report.status, one)
    ]
    rows = [*never, *skipped]
    if rows:
        yield table("Streams without a backup", ["Stream", "Why"], rows[:_MOST_STREAMS])
    elif live is not None:
        yield element("p", f"None: the server has {format_count(len(live.names), 'stream')}.")
    elif accounts:
        yield element("p", f"None: the system has {format_count(len(accounts), 'account')} with JetStream.")
    if live is None and report.accounts is None:
        yield element("p", "The server was not asked which streams it has (--live).", class_="quiet")
