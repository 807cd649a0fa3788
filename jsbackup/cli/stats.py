"""`jsbackup stats` and `jsbackup query`: looking into a backup without restoring it.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from jsbackup.cli.command import Command, Shared
from jsbackup.cli.completion import complete_backup
from jsbackup.cli.leases import lock_timeout_option
from jsbackup.cli.log import start_log
from jsbackup.cli.output import format_bytes, format_count, format_time
from jsbackup.cli.progress import make_progress
from jsbackup.cli.spark import Where, note_left_out, on_spark, open_with_spark, require_spark
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.pipeline.query import Answer
    from jsbackup.pipeline.stats import Sizes, StreamStats

__all__ = ["COMMANDS"]


@click.command(cls=Command)
@click.argument("backup", shell_complete=complete_backup)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...")
@click.option(
    "--subjects",
    "most_subjects",
    type=click.IntRange(0, 10_000),
    default=10,
    show_default=True,
    metavar="N",
    help="How many subjects of each stream to show, the largest first.",
)
@click.option("--duplicates", is_flag=True, help="Count messages that repeat a Nats-Msg-Id; reads all once more.")
@on_spark
@lock_timeout_option
def stats(
    shared: Shared,
    backup: str,
    streams: tuple[str, ...],
    most_subjects: int,
    duplicates: bool,
    where: Where,
    lock_timeout: str,
) -> int:
    """Say what is in BACKUP (an id, its start, or `latest`), by stream and subject.

    Messages, bytes (as `show` counts them), sizes that half, 90 % and 99 % of the messages do not exceed, and the time
    from the oldest to the newest message. Runs on Spark.
    """
    start_log(shared)
    require_spark()
    from jsbackup.pipeline.stats import collect_stats

    with (
        open_with_spark(shared, "stats", backup, streams, where, lock_timeout) as opened,
        make_progress("stats", wanted=shared.progress) as progress,
    ):
        note_left_out(shared, opened, streams)
        found = collect_stats(opened, streams, most_subjects=most_subjects, duplicates=duplicates, progress=progress)
        name = opened.manifest.id
    _tell_stats(shared, name, found)
    return 0


@click.command(cls=Command)
@click.argument("backup", shell_complete=complete_backup)
@click.argument("sql", metavar="SQL")
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    metavar="N",
    help="How many rows to print at most.",
)
@on_spark
@lock_timeout_option
def query(shared: Shared, backup: str, sql: str, limit: int, where: Where, lock_timeout: str) -> int:
    """Run an SQL query over the messages of BACKUP (an id, its start, or `latest`).

    Each stream is a view of its name (`orders` for ORDERS; in backquotes if it is no SQL name), `messages` is all of
    them. Columns: stream, sequence, time, subject, headers (a map), data (bytes), text (the same as text, for
    get_json_object), timestamp_ns, header_block, backup. Runs on Spark.
    """
    start_log(shared)
    require_spark()
    from jsbackup.pipeline.query import run_query

    with (
        open_with_spark(shared, "query", backup, (), where, lock_timeout) as opened,
        make_progress("query", wanted=shared.progress) as progress,
    ):
        answer = run_query(opened, sql, most_rows=limit, progress=progress)
    _tell_answer(shared, answer)
    return 0


# --- what they print ---


def _tell_stats(shared: Shared, backup: str, found: Sequence[StreamStats]) -> None:
    output = shared.output

    def text() -> None:
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
        rows = [
            (one.stream, s.subject, format_count(s.messages), format_bytes(s.bytes))
            for one in found
            for s in one.subjects
        ]
        if rows:
            output.line()
            output.table(["STREAM", "SUBJECT", ">MESSAGES", ">BYTES"], rows)

    output.result({"backup": backup, "streams": [_stream_json(one) for one in found]}, text)


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
                "sizes": _sizes_json(subject.sizes),
            }
            for subject in one.subjects
        ],
    }


def _sizes_json(sizes: Sizes) -> JsonObject:
    return {"p50": sizes.p50, "p90": sizes.p90, "p99": sizes.p99, "largest": sizes.largest}


def _time_json(ns: int) -> str | None:
    return format_time(ns) if ns else None


def _tell_answer(shared: Shared, answer: Answer) -> None:
    rows = [[_json_value(value) for value in row] for row in answer.rows]

    def text() -> None:
        shared.output.table(list(answer.columns), [[_shown(value) for value in row] for row in rows])

    shared.output.result({"columns": list(answer.columns), "rows": rows, "more": answer.more}, text)
    if answer.more:
        shared.output.note(f"there are more rows than {format_count(len(rows))}; --limit shows more of them")


def _json_value(value: Any) -> Any:
    """Bytes as text where they are UTF-8, else as {"base64": …}; times in RFC 3339; what else JSON lacks as text."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": b64encode(value).decode()}
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dict):
        return {str(name): _json_value(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_json_value(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value) if isinstance(value, Decimal | date) else value


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        import json

        return json.dumps(value, ensure_ascii=False)
    return str(value)


COMMANDS = {"stats": stats, "query": query}
