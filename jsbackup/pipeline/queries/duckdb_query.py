"""SQL over a backup by DuckDB, in this process: the views and columns of `query.py`, in a second instead of ten.

DuckDB reads plain segments in a folder through pyarrow. Those of the streams that a query names are compared with the
manifest first, because the checksums of pages do not tell everything. Where a stream has many, they are read, and
compared, one after the other (`segment_source.py`). DuckDB cannot open files itself, nor load extensions, and its
settings cannot be changed by a statement: so a query only reads the views.

What is not UTF-8 differs from Spark: `text` and `headers` are null then, and a subject has escapes (`\\xFF`).
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from jsbackup.errors import FormatError, IntegrityError, JsBackupError, UnsupportedError, UsageError
from jsbackup.pipeline.messages.chosen import ChosenBackup, why_no_paths
from jsbackup.pipeline.payloads.json_types import alike_fields
from jsbackup.pipeline.payloads.parsing import PayloadParser
from jsbackup.pipeline.queries.duckdb_payloads import add_parsers, with_payloads
from jsbackup.pipeline.queries.duckdb_plan import TIME, needs_of
from jsbackup.pipeline.queries.payload_views import view_payloads
from jsbackup.pipeline.queries.query_model import QUERY_HINT, Answer, no_view, note_of_hidden, view_names
from jsbackup.pipeline.queries.segment_source import SCHEMA, SegmentSource, unreadable
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects

if TYPE_CHECKING:
    import duckdb

__all__ = ["NotUnderstood", "require_duckdb", "run_duckdb_query", "why_not_duckdb"]

# Views of so many streams take longer to make than Spark takes to start.
_MOST_STREAMS: Final = 1000
_BATCH_ROWS: Final = 1000
_THREADS: Final = 2
_INTERRUPT_SECONDS: Final = 0.1
_NO_TABLE: Final = re.compile(r"Table with name (.+) does not exist!", re.DOTALL)

_CONFIG: Final = {
    "python_enable_replacements": "false",  # names of Python's variables are not tables
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "memory_limit": "1GiB",
}

_MACROS: Final = (
    # As in Spark: null where the text is not JSON, or has nothing there.
    "CREATE MACRO get_json_object(t, p) AS CASE WHEN json_valid(t) THEN json_extract_string(t, p) END",
    # Of a repeated header the first value; malformed lines are skipped.
    r"""CREATE MACRO jsbackup_lines(block) AS
        list_transform(
            list_filter(string_split(try(decode(block)), chr(13) || chr(10)), lambda l: instr(l, ':') > 1),
            lambda l: {'name': l[:instr(l, ':') - 1], 'value': trim(l[instr(l, ':') + 1:], ' ')})""",
    r"""CREATE MACRO jsbackup_firsts(pairs) AS
        list_filter(pairs, lambda p, n: list_position(list_transform(pairs, lambda q: q.name), p.name) = n)""",
    r"""CREATE MACRO jsbackup_headers(block) AS
        map(list_transform(jsbackup_firsts(jsbackup_lines(block)), lambda p: p.name),
            list_transform(jsbackup_firsts(jsbackup_lines(block)), lambda p: p.value))""",
)


class NotUnderstood(UsageError):
    """DuckDB does not understand the statement; Spark may."""


def why_not_duckdb(backup: ChosenBackup, encrypted: bool) -> str:
    """Return why DuckDB cannot read the messages of a backup; nothing if it can."""
    if encrypted:
        return "messages are encrypted"
    if backup.place.folder is None:
        return "messages are in S3"
    if len(backup.manifest.streams) > _MOST_STREAMS:
        return f"there are more than {_MOST_STREAMS} streams"
    return ""


def require_duckdb() -> None:
    """Raise UnsupportedError if DuckDB is not installed."""
    if find_spec("duckdb") is None:
        raise UnsupportedError("DuckDB is not installed", hint="Install it with `pip install 'jsbackup[duckdb]'`.")


def run_duckdb_query(
    backup: ChosenBackup, sql: str, *, most_rows: int, payloads: str | PayloadParser | None = None
) -> Answer:
    """Run one query, and return up to `most_rows` rows of its result. With `payloads`, as `view_payloads` takes them,
    views have the columns `payload` and `_corrupt_record`, too.

    Raises:
        NotUnderstood: it does not parse, or names what does not exist; or fields of payloads differ only in case.
        UsageError, IntegrityError, KeyUnavailable, StoreError: as `view_payloads`.
        UsageError: it does not only read the views, or names a view that no engine has.
        FormatError: a segment cannot be read, or is not the one that was stored.
        JsBackupError: it fails.
    """
    require_duckdb()
    found = view_payloads(backup, sql, payloads)
    for parser in found.parsers.values():
        if alike := alike_fields(parser.schema):
            raise NotUnderstood(f"DuckDB takes the fields {alike[0][:80]!r} and {alike[1][:80]!r} of payloads for one")
    folder = Path(tempfile.mkdtemp(prefix="jsbackup-query-"))
    try:
        with found.explained(), _errors(backup), _connected(folder, found.parsers) as connection:
            stored = _make_views(connection, backup, sql, found.parsers)
            _check(connection, sql)
            if stored:
                needs = needs_of(connection, sql)
                for one in stored:
                    one.needs = needs
            with _explained(stored):
                answer = _interruptible(connection, partial(_answer, connection, sql, most_rows))
            note = note_of_hidden(backup.manifest.streams, sql)
            return found.about(replace(answer, note=note))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answer(connection: duckdb.DuckDBPyConnection, sql: str, most_rows: int) -> Answer:
    relation = connection.sql(sql)
    # Sums of integers are large ones, for which Arrow has no type but that of decimals.
    whole = ["HUGEINT" in str(kind) for kind in relation.types]
    reader = pa.RecordBatchReader.from_stream(relation)
    rows: list[tuple[Any, ...]] = []
    for batch in reader:
        columns = [_values(array, array.type, is_whole) for array, is_whole in zip(batch.columns, whole, strict=True)]
        rows += zip(*columns, strict=True)
        if len(rows) > most_rows:
            break
    return Answer(tuple(map(_heading, reader.schema.names)), rows[:most_rows], len(rows) > most_rows)


def _heading(name: str) -> str:
    """Return the name of a column without a name, as Spark and the manifest give it: `max(sequence)`."""
    if not name.endswith(")"):
        return name
    return re.sub(r'"(\w+)"', r"\1", name).replace("count_star()", "count(1)")


def _interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], Answer]) -> Answer:
    """Do the work in another thread: a thread in which DuckDB works learns of no Ctrl-C before the query ends."""
    with ThreadPoolExecutor(1, thread_name_prefix="query") as pool:
        done = pool.submit(work)
        try:
            return done.result()
        except BaseException:
            while not done.done():  # what has not begun yet cannot be interrupted
                connection.interrupt()
                wait([done], _INTERRUPT_SECONDS)
            raise


@contextmanager
def _connected(folder: Path, parsers: Mapping[str, PayloadParser]) -> Iterator[duckdb.DuckDBPyConnection]:
    import duckdb

    # What does not fit into memory goes to the folder.
    with closing(duckdb.connect(":memory:", config={**_CONFIG, "temp_directory": str(folder)})) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET default_null_order = 'NULLS_FIRST_ON_ASC_LAST_ON_DESC'")  # as Spark sorts
        connection.execute("SET ieee_floating_point_ops = false")  # what is divided by zero is an error, as in Spark
        for macro in _MACROS:
            connection.execute(macro)
        add_parsers(connection, parsers.values())
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection


@contextmanager
def _errors(backup: ChosenBackup) -> Iterator[None]:
    import duckdb

    try:
        yield
    except duckdb.PermissionException as error:
        raise UsageError(f"queries may only read the backup: {_line(error)}", hint=QUERY_HINT) from error
    except duckdb.CatalogException as error:
        if (found := _NO_TABLE.search(str(error))) and not _is_view(found[1], backup):
            raise no_view(found[1], backup.manifest.streams) from error
        raise NotUnderstood(f"DuckDB does not understand the query: {_line(error)}", hint=QUERY_HINT) from error
    except (duckdb.ParserException, duckdb.BinderException, duckdb.SyntaxException) as error:
        raise NotUnderstood(f"DuckDB does not understand the query: {_line(error)}", hint=QUERY_HINT) from error
    except duckdb.InterruptException as error:
        raise KeyboardInterrupt from error
    except duckdb.Error as error:
        raise JsBackupError(f"the query failed: {_line(error)}") from error
    except (OSError, pa.ArrowException) as error:
        raise FormatError(
            f"the query failed: a segment cannot be read ({' '.join(str(error).split())[:300]})"
        ) from error


@contextmanager
def _explained(sources: Sequence[SegmentSource]) -> Iterator[None]:
    """Raise our error in place of the one that DuckDB makes of it."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        for one in sources:
            if one.error is not None:
                raise one.error from error
        raise


def _is_view(name: str, backup: ChosenBackup) -> bool:
    """Whether Spark knows the name: it ignores the case of all letters, DuckDB of ASCII ones only."""
    return name.casefold() in {view.casefold() for view in view_names(backup.manifest.streams)}


def _line(error: Exception) -> str:
    """Return the first line of DuckDB's message, without its kind."""
    text = str(error).strip().split("\n")[0]
    return (text.partition("Error: ")[2] or text)[:300].rstrip(".")


def _check(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    import duckdb

    if not sql.isprintable() and any("\ud800" <= character <= "\udfff" for character in sql):
        raise UsageError("the query is not valid UTF-8", hint=QUERY_HINT)
    statements = connection.extract_statements(sql)
    if len(statements) != 1 or statements[0].type is not duckdb.StatementType.SELECT:
        raise UsageError("only plain queries are run, one at a time", hint=QUERY_HINT)


def _make_views(
    connection: duckdb.DuckDBPyConnection, backup: ChosenBackup, sql: str, parsers: Mapping[str, PayloadParser]
) -> list[SegmentSource]:
    """Create the views that `sql` may name. Return the sources that wait to be told what it needs."""
    words = sql.casefold()
    names = view_names(backup.manifest.streams)
    readable = {stream.name: stream for stream in backup.streams()}
    of_all = any(stream is None and name in words for name, stream in names.items())
    made: dict[str, str] = {}  # the queries, by stream
    stored: list[SegmentSource] = []
    objects = backup.place.open().objects
    for name, of in names.items():
        if of in readable and (of_all or _quoted(name)[1:-1].casefold() in words):
            stream = readable[of]
            source: ds.Dataset | SegmentSource
            if why_no_paths([stream]):
                source = SegmentSource(objects, stream.segments)
                stored.append(source)
            else:
                _compare(objects, stream)
                source = _dataset(backup, stream)
            made[of] = _select(connection, backup, of, source, number=len(made))
            connection.execute(f"CREATE VIEW {_quoted(name)} AS {with_payloads(made[of], parsers.get(name))}")
    for name, of in names.items():
        if of is None and of_all:
            nothing = _select(connection, backup, "", SCHEMA.empty_table(), number=len(made))
            every = " UNION ALL ".join([*made.values(), nothing])
            connection.execute(f"CREATE VIEW {_quoted(name)} AS {with_payloads(every, parsers.get(name))}")
    return stored


def _compare(objects: Objects, stream: StreamBackup) -> None:
    """Raise FormatError if a segment of the stream is not the one that was stored."""

    def read(ref: SegmentRef) -> None:
        objects.fetch_sealed(ref)

    try:
        for _ in in_order((partial(read, ref) for ref in stream.segments), _THREADS):
            pass
    except IntegrityError as error:
        raise unreadable(error) from error


def _dataset(backup: ChosenBackup, stream: StreamBackup) -> ds.Dataset | pa.Table:
    """Return the messages of a stream, which pyarrow reads."""
    paths = [f"{backup.place.folder}/{ref.key}" for ref in stream.segments]
    if not paths:
        return SCHEMA.empty_table()
    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    return ds.dataset(paths, schema=SCHEMA, format=ds.ParquetFileFormat(default_fragment_scan_options=options))


def _select(
    connection: duckdb.DuckDBPyConnection,
    backup: ChosenBackup,
    name: str,
    source: ds.Dataset | pa.Table | SegmentSource,
    *,
    number: int,
) -> str:
    """Return a query of all messages of a stream, which `source` has."""
    table = f"jsbackup_segments_{number}"
    connection.register(table, source)
    # `//` rounds towards zero, but times before 1970 must be rounded down like all others.
    return f"""SELECT {_text(name)} AS stream, sequence,
        {TIME} AS time,
        coalesce(try(decode(subject)), subject::VARCHAR) AS subject,
        CASE WHEN headers IS NOT NULL THEN jsbackup_headers(headers) END AS headers,
        data, try(decode(data)) AS text, timestamp_ns, headers AS header_block,
        {_text(backup.manifest.id)} AS backup FROM {table}"""


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _values(array: pa.Array, kind: pa.DataType, is_whole: bool) -> Sequence[Any]:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        array = array.cast(pa.timestamp("us", kind.tz), safe=False)
    return [_value(value, kind, is_whole) for value in array.to_pylist()]


def _value(value: Any, kind: pa.DataType, is_whole: bool) -> Any:
    """Convert a value of Arrow as Spark's are: maps to dicts, and if `is_whole`, decimals without a point to int."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {_value(name, kind.key_type, is_whole): _value(one, kind.item_type, is_whole) for name, one in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [_value(one, kind.value_type, is_whole) for one in value]
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        return {field.name: _value(value[field.name], field.type, is_whole) for field in kind}
    if isinstance(value, Decimal) and is_whole and kind.scale == 0:
        return int(value)
    if isinstance(value, datetime):
        return value if value.tzinfo is None else value.astimezone(UTC)
    if isinstance(value, pa.MonthDayNano):
        return _interval(value)
    return str(value) if isinstance(value, time) else value


def _interval(value: pa.MonthDayNano) -> timedelta | str:
    """Convert an interval: as Spark's is if it has no months, which have no length."""
    length = timedelta(days=value.days, microseconds=value.nanoseconds // 1000)
    return f"{value.months} months {length}" if value.months else length
