"""`jsbackup query`: SQL over the messages of a backup, or of all.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import math
from base64 import b64encode
from contextlib import ExitStack
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from jsbackup.cli.options.jobs import open_job
from jsbackup.cli.options.latest import WantedBackup, find_backup
from jsbackup.cli.options.leases import reading
from jsbackup.cli.options.spark import Where, place_given
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.new_file import made_elsewhere
from jsbackup.cli.output.output import format_count
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.result import Result
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_amounts import WholeNumber
from jsbackup.errors import UsageError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.pipeline.queries.query_model import Answer

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
    start_log(shared)
    if all_backups and sql is None:
        backup, sql = None, backup
    if sql is None:
        raise UsageError("missing argument SQL", hint="See 'jsbackup query --help'.")
    if all_backups and (backup or shared.choosing.tags or where is not None):
        wrong = "a BACKUP" if backup else "--tag" if shared.choosing.tags else "--spark"
        raise UsageError(f"--all-backups does not go with {wrong}", hint="Leave one of them out.")
    if force and output is None:
        raise UsageError("--force makes sense with --output only", hint="Leave it out.")
    if output is not None:
        from jsbackup.pipeline.queries.query import output_format

        output_format(output)
    with ExitStack() as stack:
        target = None if output is None else stack.enter_context(made_elsewhere(output, replace=force))
        most = None if target is not None else limit
        if where is not None:
            wanted = WantedBackup(backup or "")
            answer = _on_spark(shared, wanted, sql, most_rows=most, target=target, where=where)
        else:
            answer = _by_duckdb(shared, backup, sql, most_rows=most, target=target)
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


def _by_duckdb(
    shared: Shared,
    backup: str | None,
    sql: str,
    *,
    most_rows: int | None,
    target: Path | None,
) -> Answer:
    from jsbackup.pipeline.queries.query import backup_streams, ranged_streams, require_duckdb, run_query
    from jsbackup.pipeline.queries.query_model import note_of_hidden
    from jsbackup.pipeline.session.repository_ref import check_readable

    require_duckdb()
    place = place_given(shared)
    repository = place.open()
    with reading(shared, repository, "query"):
        if backup is None:
            from jsbackup.pipeline.messages.followed import all_messages

            check_readable(repository)
            streams = ranged_streams(all_messages(repository, origins=shared.choosing.origins))
            entries = None
        else:
            manifest = find_backup(shared, repository, WantedBackup(backup))
            check_readable(repository)
            entries = manifest.streams
            readable = [stream for stream in entries if stream.archive_format.has_messages]
            streams = backup_streams(readable, manifest.id)
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


def _on_spark(
    shared: Shared,
    wanted: WantedBackup,
    sql: str,
    *,
    most_rows: int | None,
    target: Path | None,
    where: Where,
) -> Answer:
    with (
        open_job(shared, "query", wanted, where=where) as job,
        make_progress("query", wanted=shared.progress) as progress,
    ):
        from jsbackup.pipeline.jobs.query import run_spark_query

        return run_spark_query(job.on_spark(), sql, most_rows=most_rows, output=target, progress=progress)


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
        return {str(name): _json_value(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_json_value(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value) if isinstance(value, Decimal | date | time | timedelta | UUID) else value


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


COMMANDS = {"query": query}
