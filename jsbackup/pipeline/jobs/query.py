"""SQL over a backup by Spark: the views of `queries/query.py`, read by Spark's own reader where that can, else by ours.

Names that are no identifiers need backquotes. Only the columns that the statement may name are read.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from jsbackup.pipeline.messages.backup_frames import BackupFrames
from jsbackup.pipeline.messages.columns import COLUMNS
from jsbackup.pipeline.messages.headers import HEADER_MAP
from jsbackup.pipeline.queries.query_model import Answer, names_in, view_names
from jsbackup.pipeline.session.failures import spark_errors
from jsbackup.pipeline.tasks.tasks import watched
from jsbackup.progress import Progress

__all__ = ["run_spark_query"]

# The columns of views, and of which of the data source they are made.
_MADE = {
    "stream": ("stream", "stream"),
    "sequence": ("sequence", "sequence"),
    "time": ("time", "time"),
    "subject": ("subject", "subject"),
    "headers": ("headers", f"{HEADER_MAP} AS headers"),
    "data": ("data", "data"),
    "text": ("data", "cast(data AS string) AS text"),
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
        JsBackupError: it fails.
    """
    total = sum(stream.captured.bytes for stream in backup.streams())
    made: list[str] = []
    try:
        with spark_errors("the query"), watched(backup.session, backup.manifest.id, total, progress):
            made = _make_views(backup, sql)
            frame = backup.session.sql(sql)
            if output is not None:
                return _save(frame, output)
            found = frame if most_rows is None else frame.limit(most_rows + 1)
            rows = [tuple(map(_value, row)) for row in found.collect()]
    finally:
        for name in made:
            backup.session.catalog.dropTempView(name)
    more = most_rows is not None and len(rows) > most_rows
    return Answer(tuple(frame.columns), rows[:most_rows] if more else rows, more)


def _make_views(backup: BackupFrames, sql: str) -> list[str]:
    """Create the views that the statement may name in the session; return their names."""
    words = names_in(sql)
    everything = "*" in re.sub(r"count\s*\(\s*\*\s*\)", "", sql, flags=re.IGNORECASE)
    chosen = [name for name in _MADE if everything or name in words] or ["stream"]
    read = [name for name in COLUMNS if name in {_MADE[one][0] for one in chosen}]
    made = []
    for name, stream in view_names(backup.streams()).items():
        if name.casefold() in words:
            frame = backup.messages([] if stream is None else [stream], read)
            quoted = "`" + name.replace("`", "``") + "`"
            frame.selectExpr(*(_MADE[one][1] for one in chosen)).createOrReplaceTempView(quoted)
            made.append(name)
    return made


def _save(frame: DataFrame, output: Path) -> Answer:
    """Write the result, which the driver holds, as DuckDB writes it."""
    import duckdb

    from jsbackup.pipeline.queries.query import save_result

    # Times as moments in UTC, in sessions of any time zone.
    table = frame.toArrow()
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return save_result(connection, connection.from_arrow(table), output)


def _value(value: Any) -> Any:
    """Convert a value of Spark, with those inside of it."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime):
        return value if value.tzinfo is None else value.astimezone(UTC)
    if isinstance(value, dict):
        return {_value(key): _value(one) for key, one in value.items()}
    if hasattr(value, "asDict"):
        return {name: _value(one) for name, one in value.asDict().items()}
    return [_value(one) for one in value] if isinstance(value, list) else value
