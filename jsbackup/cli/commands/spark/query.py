"""`jsbackup query`: SQL over the messages of a backup.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import math
from base64 import b64encode
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from jsbackup.cli.commands.spark.payloads import PayloadOptions, payload_options
from jsbackup.cli.options.jobs import LEAST_SPARK_BYTES, open_with_spark
from jsbackup.cli.options.latest import WantedBackup, choosing_options, find_backup, parse_choosing
from jsbackup.cli.options.leases import lock_timeout_option, reading
from jsbackup.cli.options.spark import Where, on_spark, place_given, require_spark, settings_of
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import format_bytes, format_count
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_amounts import WholeNumber
from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsbackup.pipeline.messages.chosen import ChosenBackup
    from jsbackup.pipeline.payloads.parsing import PayloadParser
    from jsbackup.pipeline.queries.query_model import Answer
    from jsbackup.repository.repository import Repository

__all__ = ["COMMANDS"]


class _Engine(StrEnum):
    """What runs a query; `manifest` cannot be asked for."""

    AUTO = "auto"
    DUCKDB = "duckdb"
    SPARK = "spark"
    MANIFEST = "manifest"


@dataclass(frozen=True, slots=True)
class _Chosen:
    """An engine, and why it runs the query."""

    engine: _Engine
    why: str

    @property
    def words(self) -> str:
        if self.engine is _Engine.MANIFEST:
            return f"answered from the manifest: {self.why}"
        return f"runs on {'DuckDB' if self.engine is _Engine.DUCKDB else 'Spark'}: {self.why}"


@click.command(cls=Command)
@click.argument("backup", shell_complete=complete_backup)
@click.argument("sql", metavar="SQL")
@click.option(
    "--limit",
    type=WholeNumber(1, 1_000_000),
    default=1000,
    show_default=True,
    metavar="N",
    help="How many rows to print at most.",
)
@click.option(
    "--engine",
    type=click.Choice([engine.value for engine in _Engine if engine is not _Engine.MANIFEST]),
    default=_Engine.AUTO.value,
    show_default=True,
    help="What runs the query. auto: the manifest, if it knows the answer; DuckDB, if it is installed, for less than "
    "16 GiB of messages in a folder, not encrypted; otherwise Spark.",
)
@payload_options
@choosing_options
@on_spark
@lock_timeout_option
def query(
    shared: Shared,
    backup: str,
    sql: str,
    limit: int,
    *,
    engine: str,
    payloads: PayloadOptions,
    origins: tuple[str, ...],
    tags: tuple[str, ...],
    where: Where,
    lock_timeout: str,
) -> int:
    """Run an SQL query over the messages of BACKUP (an id, its start, or `latest`).

    Each stream is a view with its name (`orders` for ORDERS; quote it if it is not an SQL name). `messages` has all of
    them. Columns: stream, sequence, time, subject, headers (a map), data (bytes), text (data as text, for
    get_json_object), timestamp_ns, header_block, backup; with --payload-json, --payload-avro or --payload-protobuf also
    payload and _corrupt_record. A query that does more than read these views is refused.
    """
    start_log(shared)
    wanted = WantedBackup(backup, parse_choosing(backup, origins, tags))
    asked = _Engine(engine)
    _check_options(asked, where)
    given = payloads.given
    from jsbackup.pipeline.queries.query_model import check_beginning
    from jsbackup.pipeline.session.embedded_java import in_session

    check_beginning(sql)

    if asked is _Engine.AUTO and not where.given and not in_session():
        with _opened(shared, wanted, lock_timeout) as (repository, opened):
            chosen, answer = _embedded(repository, opened, sql, limit, payloads=given)
            # Spark opens the same backup.
            wanted = WantedBackup(opened.manifest.id, parse_choosing(opened.manifest.id, (), ()), silent=True)
    elif asked is _Engine.DUCKDB:
        with _opened(shared, wanted, lock_timeout) as (repository, opened):
            chosen, answer = _forced_duckdb(repository, opened, sql, limit, payloads=given)
    else:
        chosen, answer = _Chosen(_Engine.SPARK, _why_spark(asked, where)), None
    shared.output.note(chosen.words)
    if answer is None:
        answer = _on_spark(shared, wanted, sql, limit, payloads=given, where=where, lock_timeout=lock_timeout)
    _tell_answer(shared, answer, chosen, where.work_json)
    return 0


def _check_options(asked: _Engine, where: Where) -> None:
    """Raise UsageError for options of Spark beside another engine, and the errors of `settings_of`."""
    if asked is _Engine.DUCKDB:
        if where.given:
            raise UsageError(
                "--engine duckdb contradicts the options of Spark",
                hint="Leave out --spark-master, --spark-remote and --spark-conf.",
            )
        from jsbackup.pipeline.queries.duckdb_query import require_duckdb

        require_duckdb()
    elif asked is _Engine.SPARK or where.given:
        settings_of(where)


def _why_spark(asked: _Engine, where: Where) -> str:
    if asked is _Engine.SPARK:
        return "--engine spark"
    return "an option of Spark is given" if where.given else "there is a session"


@contextmanager
def _opened(shared: Shared, wanted: WantedBackup, lock_timeout: str) -> Iterator[tuple[Repository, ChosenBackup]]:
    """Open a backup for an engine in this process, under a lease."""
    from jsbackup.pipeline.messages.chosen import ChosenBackup
    from jsbackup.pipeline.session.repository_ref import check_readable
    from jsbackup.repository.read.broken_lists import refuse_unreadable

    place = place_given(shared)
    repository = place.open()
    with reading(shared, repository, "query", lock_timeout):
        opened = ChosenBackup(place, find_backup(shared, repository, wanted))
        check_readable(repository)
        refuse_unreadable(opened.streams())
        yield repository, opened


def _embedded(
    repository: Repository, opened: ChosenBackup, sql: str, limit: int, *, payloads: str | PayloadParser | None
) -> tuple[_Chosen, Answer | None]:
    """Answer in this process if that is possible and faster; otherwise return why Spark has to."""
    from jsbackup.pipeline.queries.manifest_query import answer_by_manifest

    answer = answer_by_manifest(opened.manifest, sql)
    if answer is not None:
        return _Chosen(_Engine.MANIFEST, "no message had to be read"), answer
    if find_spec("duckdb") is None:
        require_spark()
        return _Chosen(_Engine.SPARK, "DuckDB is not installed"), None
    from jsbackup.pipeline.queries.duckdb_query import NotUnderstood, run_duckdb_query, why_not_duckdb

    raw_bytes = sum(stream.captured.bytes for stream in opened.streams())
    size, most = format_bytes(raw_bytes), format_bytes(LEAST_SPARK_BYTES)
    why_not = why_not_duckdb(opened, bool(repository.objects.sealing.suffix))
    if why_not or raw_bytes >= LEAST_SPARK_BYTES:
        require_spark()
        return _Chosen(_Engine.SPARK, why_not or f"{size} of messages are {most} or more"), None
    try:
        answer = run_duckdb_query(opened, sql, most_rows=limit, payloads=payloads)
    except NotUnderstood as error:
        if find_spec("pyspark") is None:
            raise
        return _Chosen(_Engine.SPARK, error.message), None
    return _Chosen(_Engine.DUCKDB, f"{size} of messages are less than {most}"), answer


def _forced_duckdb(
    repository: Repository, opened: ChosenBackup, sql: str, limit: int, *, payloads: str | PayloadParser | None
) -> tuple[_Chosen, Answer]:
    from jsbackup.pipeline.queries.duckdb_query import run_duckdb_query, why_not_duckdb

    if why_not := why_not_duckdb(opened, bool(repository.objects.sealing.suffix)):
        raise UnsupportedError(f"DuckDB cannot run this query: {why_not}", hint="Run it with --engine spark.")
    answer = run_duckdb_query(opened, sql, most_rows=limit, payloads=payloads)
    return _Chosen(_Engine.DUCKDB, "--engine duckdb"), answer


def _on_spark(
    shared: Shared,
    wanted: WantedBackup,
    sql: str,
    limit: int,
    *,
    payloads: str | PayloadParser | None,
    where: Where,
    lock_timeout: str,
) -> Answer:
    require_spark()
    from jsbackup.pipeline.jobs.query import run_query

    with (
        open_with_spark(shared, "query", wanted, where=where, lock_timeout=lock_timeout) as opened,
        make_progress("query", wanted=shared.progress) as progress,
    ):
        return run_query(opened, sql, most_rows=limit, payloads=payloads, progress=progress)


# --- what a query prints ---


def _tell_answer(shared: Shared, answer: Answer, chosen: _Chosen, work: JsonObject) -> None:
    rows = [[_json_value(value) for value in row] for row in answer.rows]

    def text() -> None:
        shared.output.table(list(answer.columns), [[_shown(value) for value in row] for row in rows])

    samples = {view: counts.json for view, counts in answer.payload_samples.items()}
    engine = {"used": chosen.engine.value, "why": chosen.why, **work}
    document = {
        "columns": list(answer.columns),
        "rows": rows,
        "more": answer.more,
        "engine": engine,
        **({"payload_schemas": dict(answer.payloads)} if answer.payloads else {}),
        **({"payload_samples": samples} if samples else {}),
    }
    shared.output.result(document, text)
    for view, schema in answer.payloads.items():
        shared.output.note(f"payloads of {view}, by the inferred schema: {schema}")
    for doubt in answer.doubts:
        shared.output.note(f"{doubt}; SELECT data, _corrupt_record shows them")
    for why in answer.without:
        shared.output.note(f"without payloads as columns: {why}")
    if answer.note:
        shared.output.note(answer.note)
    if answer.more:
        shared.output.note(f"these are the first {format_count(len(rows), 'row')}; --limit shows more")


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
    return str(value) if isinstance(value, Decimal | date | timedelta) else value


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
