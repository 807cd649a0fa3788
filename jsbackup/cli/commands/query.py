"""`jsbackup query` and `jsbackup stats`: SQL over the messages of a backup, or of all.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from jsbackup.cli.options.backup_choice import WantedBackup, choose_readable, open_job
from jsbackup.cli.options.opening import Where, place_given, reading
from jsbackup.cli.output.new_file import check_new_file, made_elsewhere, write_new_file
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.result import (
    Block,
    Column,
    Result,
    broken_json,
    broken_lines,
    format_bytes,
    format_count,
    table,
)
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_values import WholeNumber
from jsbackup.config import parse_glob
from jsbackup.errors import UsageError
from jsbackup.exit_codes import combined
from jsbackup.model import JsonObject
from jsbackup.readable import format_width

if TYPE_CHECKING:
    from jsbackup.pipeline.queries.query_model import Answer
    from jsbackup.pipeline.queries.stats import StreamStats

__all__ = ["COMMANDS"]


@click.command(cls=Command, chooses=True, on_spark=True)
@click.argument("backup", required=False, shell_complete=complete_backup)
@click.argument("sql", required=False, metavar="SQL")
@click.option("--all-backups", is_flag=True, help="Query all backups of one source: each message once.")
@click.option(
    "--limit",
    type=WholeNumber(1, 1_000_000),
    default=1000,
    show_default=True,
    metavar="N",
    help="How many rows to print at most.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write all rows to a file that ends with .parquet, .csv or .json, in place of printing them.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def query(
    shared: Shared,
    backup: str | None,
    sql: str | None,
    *,
    all_backups: bool,
    limit: int,
    output: Path | None,
    force: bool,
    where: Where | None,
) -> Result:
    """Run an SQL query over the messages of BACKUP (an id, its start, or `latest`).

    Each stream is a view with its name (`orders` for ORDERS; quote it if it is not an SQL name). `messages` has all of
    them. Columns: stream, sequence, time, subject, headers (a map), data (bytes), text (data as text), timestamp_ns,
    header_block, incarnation, life, backup.

    DuckDB runs it, in this process, from any repository; with --spark, Spark does, in its SQL.
    """
    if all_backups and sql is None:
        backup, sql = None, backup
    if sql is None:
        raise UsageError("missing argument SQL", hint="See 'jsbackup query --help'.")
    if all_backups and (backup or shared.choosing.tags or where is not None):
        wrong = "a BACKUP" if backup else "--tag" if shared.choosing.tags else "--spark"
        raise UsageError(f"--all-backups does not go with {wrong}", hint="Leave one of them out.")
    if force and output is None:
        raise UsageError("--force makes sense with --output only", hint="Leave it out.")
    from jsbackup.pipeline.queries.query import output_format

    if output is not None:
        output_format(output)
    with ExitStack() as stack:
        target = None if output is None else stack.enter_context(made_elsewhere(output, replace=force))
        most_rows = None if target is not None else limit
        answer = _answer(stack, shared, backup, sql, most_rows=most_rows, target=target, where=where)
    rows = [[_json_value(value) for value in row] for row in answer.rows]
    document: JsonObject = {"columns": list(answer.columns), "rows": rows, "more": answer.more}
    text = []
    if output is not None:
        document["saved"] = {"file": str(output), "rows": answer.saved}
        text.append(f"{format_count(answer.saved or 0, 'row')} in {output}")
    elif not shared.output.as_json:  # also with --quiet: rows are what was asked for
        shared.output.table(answer.columns, [[_shown(value) for value in row] for row in rows])
    if answer.more:
        shared.output.note(f"these are the first {format_count(len(rows), 'row')}; --limit shows more")
    return Result(document, text)


def _answer(
    stack: ExitStack,
    shared: Shared,
    backup: str | None,
    sql: str,
    *,
    most_rows: int | None,
    target: Path | None,
    where: Where | None,
) -> Answer:
    """Return the rows, at most so many, or write all to the `target`. Without `backup`, query all backups."""
    from jsbackup.pipeline.queries.query import backup_streams, ranged_streams, require_duckdb, run_query
    from jsbackup.pipeline.queries.query_model import note_of_hidden

    if where is not None:
        from jsbackup.pipeline.jobs.query import run_spark_query

        job = stack.enter_context(open_job(shared, "query", WantedBackup(backup or ""), where=where))
        progress = stack.enter_context(make_progress("query", wanted=shared.progress))
        return run_spark_query(job.on_spark(), sql, most_rows=most_rows, output=target, progress=progress)
    require_duckdb()
    place, entries = place_given(shared), None
    if backup is None:
        from jsbackup.pipeline.messages.followed import all_messages
        from jsbackup.pipeline.session.repository_ref import check_readable

        repository = place.open()
        stack.enter_context(reading(shared, repository, "query"))
        check_readable(repository)
        streams = ranged_streams(all_messages(repository, origins=shared.choosing.origins))
    else:
        job = stack.enter_context(open_job(shared, "query", WantedBackup(backup), where=None))
        repository, entries = job.repository, job.backup.manifest.streams
        readable = [stream for stream in entries if stream.archive_format.has_messages]
        streams = backup_streams(readable, job.backup.manifest.id)
    if note := note_of_hidden(streams, sql):
        shared.output.note(note)
    return run_query(
        repository.objects,
        streams,
        sql,
        folder=place.folder,
        all_streams=entries,
        most_rows=most_rows,
        output=target,
    )


def _json_value(value: Any) -> Any:
    """Convert for JSON: bytes to text if they are UTF-8, else to {"base64": …}; times to RFC 3339; other types
    to text.
    """
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": b64encode(value).decode()}
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dict):
        return {str(name): _json_value(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value) if isinstance(value, Decimal | date | time | timedelta | UUID) else value


def _shown(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


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
    patterns = tuple(map(parse_glob, streams))
    # Of the documents of jobs only this one names its backup.
    wanted = WantedBackup(backup, patterns, silent=shared.output.as_json)
    if force and page is None:
        raise UsageError("--force makes sense with --html only", hint="Leave it out.")
    if page is not None:
        check_new_file(page, replace=force)

    from jsbackup.pipeline.queries.query import backup_streams, run_query
    from jsbackup.pipeline.queries.stats import DUCKDB, SPARK, stats_of, stats_sql, widths_of
    from jsbackup.repository.read.growth import growth_of

    with (
        open_job(shared, "stats", wanted, where=where) as job,
        make_progress("stats", wanted=shared.progress) as progress,
    ):
        readable, broken = choose_readable(shared, job.backup, streams)
        chosen, manifest = job.backup.streams(readable), job.backup.manifest
        widths = widths_of(chosen)
        dialect = DUCKDB if where is None else SPARK
        sql = stats_sql(dialect, chosen, widths, most_subjects=most_subjects, duplicates=duplicates)
        rows: Sequence[tuple[Any, ...]] = []
        if chosen and where is not None:
            from jsbackup.pipeline.jobs.query import run_spark_query

            rows = run_spark_query(job.on_spark(chosen), sql, progress=progress).rows
        elif chosen:
            views = backup_streams(chosen, manifest.id)
            rows = run_query(job.repository.objects, views, sql, folder=job.backup.place.folder).rows
        growth = growth_of(job.repository, manifest, [stream.name for stream in chosen])
    statistics = stats_of(chosen, rows, widths, growth, most_subjects=most_subjects, duplicates=duplicates)
    saved = None
    if page is not None:
        from jsbackup.cli.output.html_pages import stats_page

        write_new_file(page, stats_page(manifest.id, manifest.created, statistics), replace=force)
        saved = str(page)
    listed = list(map(_stream_json, statistics))
    document = {"backup": manifest.id, "streams": listed, "failed": broken_json(broken), "saved": saved}
    text = [*_text(listed), *broken_lines(broken), *([] if saved is None else [f"saved: {saved}"])]
    return Result(document, text, combined([0, *(error.exit_code for error in broken.values())]))


def _text(streams: Sequence[JsonObject]) -> Iterator[Block]:
    counts: dict[str, Column] = {">MESSAGES": ("messages", format_count), ">BYTES": ("bytes", format_bytes)}
    sizes = {">HALF": "p50", ">90 %": "p90", ">99 %": "p99", ">LARGEST": "largest"}
    yield table(
        [{**stream, **stream["sizes"]} for stream in streams],
        {
            "STREAM": "stream",
            **counts,
            ">SUBJECTS": ("subject_count", format_count),
            **{heading: (name, format_bytes) for heading, name in sizes.items()},
            "OLDEST": ("oldest", lambda time: time or "-"),
            "NEWEST": ("newest", lambda time: time or "-"),
        },
    )
    for stream in streams:
        if stream["duplicates"]:
            yield f"{stream['stream']}: {format_count(stream['duplicates'], 'message')} repeat a Nats-Msg-Id"
    busiest, grown = [], []
    for stream in streams:
        if buckets := stream["rate"]["buckets"]:
            most = max(buckets, key=lambda bucket: bucket["messages"])
            busiest.append({**most, "stream": stream["stream"], "width": format_width(stream["rate"]["seconds"])})
        if len(stream["growth"]) > 1:
            first, last = stream["growth"][0], stream["growth"][-1]
            by = {name: last[name] - first[name] for name in ("messages", "bytes", "stored_bytes")}
            grown.append({**by, "stream": stream["stream"], "since": first["backup"], "backups": len(stream["growth"])})
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
    return [{**row, "stream": stream["stream"]} for stream in streams for row in stream[key]]


def _signed(by: int) -> str:
    return f"{'+' if by >= 0 else ''}{format_bytes(by)}"


def _time(ns: int) -> str:
    """Format a time to the second. 0 is 1970, unlike in `time_to_second`: imported messages may have it."""
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _stream_json(stream: StreamStats) -> JsonObject:
    return {
        "stream": stream.stream,
        "messages": stream.messages,
        "bytes": stream.bytes,
        "oldest": _time(stream.oldest_ns) if stream.oldest_ns else None,
        "newest": _time(stream.newest_ns) if stream.newest_ns else None,
        "sizes": asdict(stream.sizes),
        "duplicates": stream.duplicates,
        "subject_count": stream.subject_count,
        "subjects": [
            {
                "subject": subject.subject,
                "messages": subject.messages,
                "bytes": subject.bytes,
                "oldest": _time(subject.oldest_ns) if subject.oldest_ns else None,
                "newest": _time(subject.newest_ns) if subject.newest_ns else None,
            }
            for subject in stream.subjects
        ],
        "rate": {
            "seconds": stream.bucket_ns // 10**9,
            "buckets": [
                {"start": _time(bucket.start_ns), "messages": bucket.messages, "bytes": bucket.bytes}
                for bucket in stream.buckets
            ],
        },
        "size_classes": [size._asdict() for size in stream.classes],
        "largest_messages": [
            {
                "sequence": large.sequence,
                "subject": large.subject,
                "bytes": large.bytes,
                "time": _time(large.timestamp_ns),
            }
            for large in stream.largest
        ],
        "growth": list(map(asdict, stream.growth)),
    }


COMMANDS = {"query": query, "stats": stats}
