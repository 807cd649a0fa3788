"""`jsbackup stats`: examine a backup without restoring it.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jsbackup.cli.options.jobs import choose_readable, open_job
from jsbackup.cli.options.latest import WantedBackup
from jsbackup.cli.options.spark import Where
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.new_file import check_new_file, write_new_file
from jsbackup.cli.output.output import format_bytes, format_count
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.result import Block, Column, Result, broken_json, broken_lines, table
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_amounts import WholeNumber
from jsbackup.config.values import parse_glob
from jsbackup.errors import UsageError
from jsbackup.exit_codes import combined
from jsbackup.model import JsonObject
from jsbackup.readable import format_width

if TYPE_CHECKING:
    from jsbackup.cli.options.jobs import OpenedJob
    from jsbackup.pipeline.queries.stats import StreamStats
    from jsbackup.progress import Progress

__all__ = ["COMMANDS"]


@click.command(cls=Command, chooses=True, on_spark=True)
@click.argument("backup", shell_complete=complete_backup)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@click.option(
    "--subjects",
    "most_subjects",
    type=WholeNumber(0, 10_000),
    default=10,
    show_default=True,
    metavar="N",
    help="How many subjects of each stream to show, the largest first.",
)
@click.option("--duplicates", is_flag=True, help="Count messages that repeat a Nats-Msg-Id.")
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also make an HTML page with charts: one file, which loads nothing and runs no script.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def stats(
    shared: Shared,
    backup: str,
    streams: tuple[str, ...],
    most_subjects: int,
    *,
    duplicates: bool,
    page: Path | None,
    force: bool,
    where: Where | None,
) -> Result:
    """Show statistics of BACKUP (an id, its start, or `latest`), by stream and subject.

    Messages, bytes (as `show` counts them), sizes (subject, headers and payload) that half, 90 % and 99 % of the
    messages do not exceed, and the time from the oldest to the newest message; the busiest time, the largest messages
    (of each size the first), and how streams have grown since earlier backups of the same account. --json also has the
    rates over the whole time, and the distribution of sizes.

    DuckDB counts, in this process; with --spark, Spark does.
    """
    start_log(shared)
    patterns = tuple(map(parse_glob, streams))
    # Of the documents of jobs only this one names its backup.
    wanted = WantedBackup(backup, patterns, silent=shared.output.as_json)
    if force and page is None:
        raise UsageError("--force makes sense with --html only", hint="Leave it out.")
    if page is not None:
        check_new_file(page, replace=force)

    with (
        open_job(shared, "stats", wanted, where=where) as job,
        make_progress("stats", wanted=shared.progress) as progress,
    ):
        readable, broken = choose_readable(shared, job.backup, streams)
        found = _collected(
            job, readable, most_subjects, duplicates=duplicates, progress=progress, spark=where is not None
        )
        manifest = job.backup.manifest
    saved = None
    if page is not None:
        from jsbackup.cli.output.html_pages import stats_page

        write_new_file(page, stats_page(manifest.id, manifest.created, found), replace=force)
        saved = str(page)
    rows = list(map(_stream_json, found))
    document = {"backup": manifest.id, "streams": rows, "failed": broken_json(broken), "saved": saved}
    text = [*_text(rows), *broken_lines(broken), *([] if saved is None else [f"saved: {saved}"])]
    return Result(document, text, combined([0, *(error.exit_code for error in broken.values())]))


def _collected(
    job: OpenedJob, readable: Sequence[str], most_subjects: int, *, duplicates: bool, progress: Progress, spark: bool
) -> list[StreamStats]:
    from jsbackup.pipeline.queries.query import backup_streams, run_query
    from jsbackup.pipeline.queries.stats import DUCKDB, SPARK, stats_of, stats_sql, widths_of
    from jsbackup.repository.read.growth import growth_of

    streams, manifest = job.backup.streams(readable), job.backup.manifest
    widths = widths_of(streams)
    dialect = SPARK if spark else DUCKDB
    sql = stats_sql(dialect, streams, widths, most_subjects=most_subjects, duplicates=duplicates)
    if not streams:
        rows = []
    elif spark:
        from jsbackup.pipeline.jobs.query import run_spark_query

        rows = run_spark_query(job.on_spark(streams), sql, progress=progress).rows
    else:
        chosen = backup_streams(streams, manifest.id)
        rows = run_query(job.repository.objects, chosen, sql, folder=job.backup.place.folder).rows
    growth = growth_of(job.repository, manifest, [stream.name for stream in streams])
    return stats_of(streams, rows, widths, growth, most_subjects=most_subjects, duplicates=duplicates)


def _text(streams: Sequence[JsonObject]) -> Iterator[Block]:
    counts: dict[str, Column] = {">MESSAGES": ("messages", format_count), ">BYTES": ("bytes", format_bytes)}
    sizes = {">HALF": "p50", ">90 %": "p90", ">99 %": "p99", ">LARGEST": "largest"}
    yield table(
        [{**one, **one["sizes"]} for one in streams],
        {
            "STREAM": "stream",
            **counts,
            ">SUBJECTS": ("subject_count", format_count),
            **{heading: (name, format_bytes) for heading, name in sizes.items()},
            "OLDEST": ("oldest", _or_dash),
            "NEWEST": ("newest", _or_dash),
        },
    )
    for one in streams:
        if one["duplicates"]:
            yield f"{one['stream']}: {format_count(one['duplicates'], 'message')} repeat a Nats-Msg-Id"
    busiest, grown = [], []
    for one in streams:
        if buckets := one["rate"]["buckets"]:
            most = max(buckets, key=lambda bucket: bucket["messages"])
            busiest.append({**most, "stream": one["stream"], "width": format_width(one["rate"]["seconds"])})
        if len(one["growth"]) > 1:
            first, last = one["growth"][0], one["growth"][-1]
            by = {name: last[name] - first[name] for name in ("messages", "bytes", "stored_bytes")}
            grown.append({**by, "stream": one["stream"], "since": first["backup"], "backups": len(one["growth"])})
    more: dict[str, Column] = {
        ">MESSAGES": ("messages", "{:+,}".format),
        ">BYTES": ("bytes", _signed),
        ">STORED": ("stored_bytes", _signed),
    }
    large: dict[str, Column] = {">LARGEST AT": "sequence", "SUBJECT": "subject", ">BYTES": ("bytes", format_bytes)}
    tables: list[tuple[list[JsonObject], dict[str, Column]]] = [
        (busiest, {"BUSIEST": "width", "FROM": "start", **counts}),
        (_of_streams(streams, "subjects"), {"SUBJECT": "subject", **counts}),
        (_of_streams(streams, "largest_messages"), large),
        (grown, {"GROWN SINCE": "since", ">BACKUPS": "backups", **more}),
    ]
    for rows, columns in tables:
        if rows:
            yield ""
            yield table(rows, {"STREAM": "stream", **columns})


def _of_streams(streams: Sequence[JsonObject], key: str) -> list[JsonObject]:
    return [{**row, "stream": one["stream"]} for one in streams for row in one[key]]


def _or_dash(time: str | None) -> str:
    return time or "-"


def _signed(by: int) -> str:
    return f"{'+' if by >= 0 else ''}{format_bytes(by)}"


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _stream_json(one: StreamStats) -> JsonObject:
    return {
        "stream": one.stream,
        "messages": one.messages,
        "bytes": one.bytes,
        "oldest": _time(one.oldest_ns) if one.oldest_ns else None,
        "newest": _time(one.newest_ns) if one.newest_ns else None,
        "sizes": asdict(one.sizes),
        "duplicates": one.duplicates,
        "subject_count": one.subject_count,
        "subjects": [
            {
                "subject": subject.subject,
                "messages": subject.messages,
                "bytes": subject.bytes,
                "oldest": _time(subject.oldest_ns) if subject.oldest_ns else None,
                "newest": _time(subject.newest_ns) if subject.newest_ns else None,
            }
            for subject in one.subjects
        ],
        "rate": {
            "seconds": one.bucket_ns // 10**9,
            "buckets": [
                {"start": _time(bucket.start_ns), "messages": bucket.messages, "bytes": bucket.bytes}
                for bucket in one.buckets
            ],
        },
        "size_classes": [size._asdict() for size in one.classes],
        "largest_messages": [
            {
                "sequence": large.sequence,
                "subject": large.subject,
                "bytes": large.bytes,
                "time": _time(large.timestamp_ns),
            }
            for large in one.largest
        ],
        "growth": list(map(asdict, one.growth)),
    }


COMMANDS = {"stats": stats}
