"""SQL over a backup: a view for each stream, with its name (SQL ignores case), and `messages` for all.

    stream, sequence, time, timestamp_ns, subject, backup
    headers        map<string,string>, `headers['Nats-Msg-Id']`
    data           the payload as bytes
    text           the payload as text, for `get_json_object(text, '$.customer')`
    header_block   the raw header block
    payload, _corrupt_record       if payloads are to be columns (`payloads/`)

A name that is not an identifier needs backquotes. If the names of streams only differ in case, their views end with the
incarnation, `orders_1a2b3c4d`. Only views whose names occur in the statement are created.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

from jsbackup.pipeline.jobs.plain_query import only_plain
from jsbackup.pipeline.messages.backup_frames import BackupFrames, FrameReader
from jsbackup.pipeline.messages.columns import COLUMNS
from jsbackup.pipeline.messages.headers import HEADER_MAP
from jsbackup.pipeline.payloads.parsing import PayloadParser
from jsbackup.pipeline.payloads.payload_frames import with_payloads
from jsbackup.pipeline.queries.payload_views import view_payloads
from jsbackup.pipeline.queries.query_model import Answer, note_of_hidden, view_names
from jsbackup.pipeline.session.connect import is_remote
from jsbackup.pipeline.session.failures import spark_errors
from jsbackup.pipeline.tasks.tasks import watched
from jsbackup.progress import Progress

__all__ = ["make_views", "run_query"]

_log = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def run_query(
    backup: BackupFrames,
    sql: str,
    *,
    most_rows: int,
    payloads: str | PayloadParser | None = None,
    progress: Progress | None = None,
) -> Answer:
    """Run one plain query, and return up to `most_rows` rows of its result. With `payloads`, as `view_payloads` takes
    them, views have the columns `payload` and `_corrupt_record`, too.

    Raises:
        UsageError, IntegrityError, KeyUnavailable, StoreError: as `view_payloads`.
        UsageError: it does not parse, names what does not exist, or does not only read streams (`plain_query.py`).
        JsBackupError: it fails.
    """
    total = sum(stream.captured.bytes for stream in backup.streams())
    made: list[str] = []
    found_payloads = view_payloads(backup, sql, payloads)
    parsers = found_payloads.parsers
    try:
        with ExitStack() as stack:
            stack.enter_context(found_payloads.explained())
            stack.enter_context(spark_errors("the query"))
            remote = is_remote(backup.session)
            if remote:  # Spark Connect checks a query by running it
                made = make_views(backup, sql, parsers)
            stack.enter_context(only_plain(backup.session, sql, backup.manifest.streams))
            if not remote:
                made = make_views(backup, sql, parsers)
            stack.enter_context(watched(backup.session, backup.manifest.id, total, progress))
            frame = backup.session.sql(sql)
            kinds = [field.dataType for field in frame.schema.fields]
            shown = _exact_times(frame, kinds).limit(most_rows + 1)
            found = shown.collect()
    finally:
        for name in made:
            backup.session.catalog.dropTempView(name)
    rows = [tuple(_value(value, kind) for value, kind in zip(row, kinds, strict=True)) for row in found]
    note = note_of_hidden(backup.manifest.streams, sql)
    more = len(rows) > most_rows
    return found_payloads.about(Answer(tuple(frame.columns), rows[:most_rows], more, note))


def make_views(backup: BackupFrames, sql: str, parsers: Mapping[str, PayloadParser] | None = None) -> list[str]:
    """Create the views that `sql` may name in the session; return their names. `parsers` are those of payloads."""
    words, parsers = sql.casefold(), parsers or {}
    # Spark's reader cannot filter by the column `time`, which is not in the files; ours can.
    reader = FrameReader.STORE if re.search(r"\btime\b", words) else FrameReader.AUTO
    if reader is FrameReader.STORE:
        _log.info("the query names the column time, so messages are read by jsbackup")
    names = view_names(backup.manifest.streams)
    named = {name: one for name, one in names.items() if _quoted(name)[1:-1].casefold() in words}
    with spark_errors("the query"):
        for name, stream in named.items():
            frame = backup.messages([] if stream is None else [stream], COLUMNS, reader)
            _view(frame, parsers.get(name)).createOrReplaceTempView(_quoted(name))
    return list(named)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _view(frame: DataFrame, parser: PayloadParser | None) -> DataFrame:
    frame = frame.selectExpr(
        "stream",
        "sequence",
        "time",
        "subject",
        f"{HEADER_MAP} AS headers",
        "data",
        "cast(data AS string) AS text",
        "timestamp_ns",
        "headers AS header_block",
        "backup",
    )
    return frame if parser is None else with_payloads(frame, parser, frame.columns)


def _exact_times(frame: DataFrame, kinds: Sequence[DataType]) -> DataFrame:
    """Convert times to microseconds, also inside of other values: PySpark would return them in the local time zone,
    where an hour repeats once a year, and Python does not have all hours of the years 1 and 9999.
    """
    numbered = frame.toDF(*(f"c{number}" for number in range(len(kinds))))
    columns = zip(numbered.columns, kinds, strict=True)
    return numbered.select(*(_without_times(F.col(name), kind).alias(name) for name, kind in columns))


def _has_times(kind: DataType) -> bool:
    """Return whether a type has times that `_without_times` converts: not in keys, nor beside ambiguous names."""
    if isinstance(kind, StructType):
        names = {field.name.casefold() for field in kind.fields}
        return len(names) == len(kind.fields) and any(_has_times(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_times(kind.elementType)
    return _has_times(kind.valueType) if isinstance(kind, MapType) else isinstance(kind, TimestampType)


def _without_times(column: Column, kind: DataType) -> Column:
    if not _has_times(kind):
        return column
    if isinstance(kind, StructType):
        parts = [_without_times(column.getField(one.name), one.dataType).alias(one.name) for one in kind.fields]
        return F.when(column.isNotNull(), F.struct(*parts))
    if isinstance(kind, ArrayType):
        item = kind.elementType
        return F.transform(column, lambda one: _without_times(one, item))
    if isinstance(kind, MapType):
        of = kind.valueType
        return F.transform_values(column, lambda _key, one: _without_times(one, of))
    return F.unix_micros(column)


def _value(value: Any, kind: DataType) -> Any:
    """Convert a value of Spark, with those inside of it."""
    if value is None:
        return None
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(kind, StructType):
        return {field.name: _value(one, field.dataType) for field, one in zip(kind.fields, value, strict=True)}
    if isinstance(kind, ArrayType):
        return [_value(one, kind.elementType) for one in value]
    if isinstance(kind, MapType):
        return {_value(key, kind.keyType): _value(one, kind.valueType) for key, one in value.items()}
    if isinstance(kind, TimestampType):
        return _EPOCH + timedelta(microseconds=value) if isinstance(value, int) else value.astimezone(UTC)
    return value
