"""SQL over a backup by Spark: the views of `queries/query.py`, read by our data source.

Names that are no identifiers need backquotes. Only the columns that the statement may name are read.

Expressions for header blocks in the column `headers`, without Python.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from jsbackup.pipeline.messages.backup_frames import BackupFrames
from jsbackup.pipeline.messages.columns import COLUMNS
from jsbackup.pipeline.queries.query import require_duckdb, save_result
from jsbackup.pipeline.queries.query_model import Answer, names_in, view_names
from jsbackup.pipeline.session.failures import spark_errors
from jsbackup.pipeline.tasks.tasks import watched
from jsbackup.progress import Progress

__all__ = ["HEADER_MAP", "run_spark_query"]

_LINES: Final = r"filter(split(try_validate_utf8(cast(headers AS string)), '\r\n'), line -> instr(line, ':') > 1)"
_NAME: Final = "substring_index(line, ':', 1)"
_PAIR: Final = f"map({_NAME}, trim(substr(line, instr(line, ':') + 1, length(line))))"
_ADDED: Final = f"if(map_contains_key(found, {_NAME}), found, map_concat(found, {_PAIR}))"

HEADER_MAP: Final = f"aggregate({_LINES}, cast(map() AS map<string, string>), (found, line) -> {_ADDED})"
"""In Spark's SQL, the block in the column `headers` as `map<string,string>`; a repeated header has its first value, as
in NATS clients. Names keep their case. Null without a block; malformed lines are skipped.
"""


# The columns of views, and of which of the data source they are made.
_MADE = {
    "stream": ("stream", "stream"),
    "sequence": ("sequence", "sequence"),
    "time": ("time", "time"),
    "subject": ("subject", "make_valid_utf8(subject) AS subject"),
    "headers": ("headers", f"{HEADER_MAP} AS headers"),
    "data": ("data", "data"),
    "text": ("data", "try_validate_utf8(cast(data AS string)) AS text"),
    "timestamp_ns": ("timestamp_ns", "timestamp_ns"),
    "header_block": ("headers", "headers AS header_block"),
    "backup": ("backup", "backup"),
}


def run_spark_query(
    backup: BackupFrames,
    sql: str,
    *,
    most_rows: int | None = None,
    output: Path | None = None,
    progress: Progress | None = None,
) -> Answer:
    """Run one statement; arguments and result are those of `run_query`.

    Raises:
        UsageError: it does not parse, or names what does not exist.
        UnsupportedError: DuckDB is not installed, which says its rows.
        JsBackupError: it fails.
    """
    require_duckdb()
    import duckdb

    total = sum(stream.captured.bytes for stream in backup.streams())
    made: list[str] = []
    try:
        with spark_errors("the query"), watched(backup.session, backup.manifest.id, total, progress):
            made = _make_views(backup, sql)
            frame = backup.session.sql(sql)
            table = (frame if most_rows is None else frame.limit(most_rows + 1)).toArrow()
            columns = tuple(frame.columns)
    finally:
        for name in made:
            backup.session.catalog.dropTempView(name)
    # DuckDB writes the result, and says its values: times as moments in UTC, in sessions of any time zone.
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        result = connection.from_arrow(table)
        if output is not None:
            return save_result(connection, result, output)
        rows = result.fetchall()
    more = most_rows is not None and len(rows) > most_rows
    return Answer(columns, rows[:most_rows] if more else rows, more)


def _make_views(backup: BackupFrames, sql: str) -> list[str]:
    """Create the views that the statement may name in the session; return their names."""
    words = names_in(sql)
    everything = "*" in re.sub(r"count\s*\(\s*\*\s*\)", "", sql, flags=re.IGNORECASE)
    chosen = [name for name in _MADE if everything or name in words] or ["stream"]
    read = [name for name in COLUMNS if name in {_MADE[column][0] for column in chosen}]
    made = []
    for name, stream in view_names(backup.streams()).items():
        if name.casefold() in words:
            frame = backup.messages([] if stream is None else [stream], read)
            quoted = "`" + name.replace("`", "``") + "`"
            frame.selectExpr(*(_MADE[column][1] for column in chosen)).createOrReplaceTempView(quoted)
            made.append(name)
    return made
