"""SQL over messages by DuckDB, in this process: of one backup, or of all, in any repository.

A view for each stream, with its name, and `messages` for all:

    stream, sequence, time, timestamp_ns, subject, incarnation, life, backup
    headers        map(varchar, varchar): `headers['Nats-Msg-Id']`, of a repeated header the first value
    header_block   the raw header block
    data           the payload as bytes
    text           the payload as text, for `text ->> '$.customer'`; null if it is not UTF-8

DuckDB gets messages from our own reader (`segment_source.py`), a few segments at a time. Those of a backup in a plain
folder it reads itself, after the segments that a query needs were compared with the manifest: a damaged one has no
checksum of its own. Only the streams that a query uses are read. Two threads of DuckDB work, however many cores there
are: each takes some 35 MiB.

Measured, an aggregate over two values of JSON, on two cores, the medians of three. 1 GiB in a folder: 1.3 times the
processor time of plain DuckDB on the same files, with the start of the command, and 243 MiB of memory; by our own
reader 1.6 times, and 227 MiB. `count(*)` reads nothing: it costs the start of the command.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from jsbackup.errors import JsBackupError, UnsupportedError, UsageError
from jsbackup.pipeline.messages.bounds import Bounds
from jsbackup.pipeline.messages.stream_walk import MessageRange, key_of
from jsbackup.pipeline.queries.duckdb_plan import Needs, needs_of
from jsbackup.pipeline.queries.query_model import ALL_STREAMS, Answer, names_in, no_view, view_names
from jsbackup.pipeline.queries.segment_source import STORED_COLUMNS, SegmentSource
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import parts_where

if TYPE_CHECKING:
    import duckdb

__all__ = [
    "QueriedStream",
    "backup_streams",
    "output_format",
    "ranged_streams",
    "require_duckdb",
    "run_query",
    "save_result",
]

# DuckDB opens each file that it reads itself; with more, or many short ones, our reader is faster.
_MOST_FILES: Final = 1000
_SHORT_BYTES: Final = 1 << 20
_THREADS: Final = 2
_INTERRUPT_SECONDS: Final = 0.1
_NO_TABLE: Final = re.compile(r"Table with name (.+?) does not exist!", re.DOTALL)
_FORMATS: Final = {".parquet": "parquet", ".csv": "csv", ".json": "json"}

_CONFIG: Final = {
    "python_enable_replacements": "false",  # names of Python's variables are not tables
    "autoinstall_known_extensions": "false",
    "memory_limit": "1GiB",  # what is more goes to temporary files
    "threads": "2",  # each takes some 35 MiB; `SET threads` changes it
    "allocator_background_threads": "true",  # return freed memory soon: 20 MiB less
    "disable_parquet_prefetching": "true",  # what is read was compared just now; it would take 10 MiB for each thread
}
_MACROS: Final = (
    # Malformed lines are skipped.
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
_TIME: Final = "make_timestamptz(timestamp_ns // 1000 - (timestamp_ns % 1000 < 0)::BIGINT)"  # rounded down


@dataclass(frozen=True, slots=True)
class QueriedStream:
    """A stream: `ranges` yields its messages that may be within bounds. `files`: they are all messages of segments. Its
    `incarnation` tells it from others whose names differ in case only.
    """

    name: str
    ranges: Callable[[Bounds], Iterable[MessageRange]]
    incarnation: str
    files: bool = False


def backup_streams(streams: Iterable[StreamBackup], backup: str) -> list[QueriedStream]:
    """Return the streams of one backup, for `run_query`."""

    def ranges(stream: StreamBackup, bounds: Bounds) -> Iterator[MessageRange]:
        for ref in parts_where(stream.segments, bounds.wants_part):
            assert isinstance(ref, SegmentRef), "pages are not yielded"
            yield MessageRange(key_of(stream), backup, ref, ref.first_seq, ref.last_seq)

    return [QueriedStream(stream.name, partial(ranges, stream), stream.incarnation, True) for stream in streams]


def ranged_streams(ranges: Iterable[MessageRange]) -> list[QueriedStream]:
    """Return the streams of ranges of several backups, for `run_query`."""
    by_stream: dict[str, list[MessageRange]] = {}
    for message_range in ranges:
        by_stream.setdefault(message_range.key.name, []).append(message_range)

    def within(those: Sequence[MessageRange], bounds: Bounds) -> Iterator[MessageRange]:
        return (message_range for message_range in those if bounds.wants_part(message_range.ref))

    return [QueriedStream(name, partial(within, those), those[-1].key.incarnation) for name, those in by_stream.items()]


def require_duckdb() -> None:
    """Raise UnsupportedError if DuckDB is not installed."""
    if find_spec("duckdb") is None:
        raise UnsupportedError("DuckDB is not installed", hint="Install it with `pip install 'jsbackup[duckdb]'`.")


def output_format(path: Path) -> str:
    """Return the format of a file for results, by its name. Raises UsageError for another one."""
    kind = _FORMATS.get(path.suffix.lower())
    if kind is None:
        raise UsageError(f"the name of {path.name} says no format", hint="Let it end with .parquet, .csv or .json.")
    return kind


def run_query(
    objects: Objects,
    streams: Sequence[QueriedStream],
    sql: str,
    *,
    folder: str | None = None,
    all_streams: Sequence[StreamBackup] | None = None,
    most_rows: int | None = None,
    output: Path | None = None,
    as_table: bool = False,
) -> Answer:
    """Run SQL: the answer is that of its last statement. With `output` it is written to this file, as its name says;
    `as_table` makes it an Arrow table.

    `folder` is that of the repository, if it is in one, and `all_streams` are those that the user may mean, for errors.

    Raises:
        UsageError: DuckDB does not understand it, or there is no such stream.
        IntegrityError, KeyUnavailable, StoreError: messages cannot be read.
        JsBackupError: it fails.
    """
    require_duckdb()
    with (
        tempfile.TemporaryDirectory(prefix="jsbackup-query-") as spill,
        _errors(streams if all_streams is None else all_streams),
        _connected(spill) as connection,
        ThreadPoolExecutor(1, thread_name_prefix="query") as pool,
    ):
        views = _Views(connection, objects, streams, folder)
        # A thread in which DuckDB works learns of no Ctrl-C before the query ends.
        done = pool.submit(_answer, views, sql, most_rows, output=output, as_table=as_table)
        try:
            return done.result()
        except BaseException as error:
            while not done.done():  # what has not begun yet cannot be interrupted
                connection.interrupt()
                wait([done], _INTERRUPT_SECONDS)
            if (ours := views.error) is not None:
                raise ours from error
            raise


def _answer(views: _Views, sql: str, most_rows: int | None, *, output: Path | None, as_table: bool) -> Answer:
    connection = views.connection
    views.create(names_in(sql))
    statements = connection.extract_statements(sql)
    if not statements:
        raise UsageError("the query is empty")
    for statement in statements[:-1]:
        connection.execute(statement)
    last = statements[-1].query
    import duckdb

    if statements[-1].type is not duckdb.StatementType.SELECT:
        result = connection.execute(last)
        columns = tuple(column[0] for column in result.description or ())
        rows = result.fetchall()
        lists = {name: [row[at] for row in rows] for at, name in enumerate(columns)}
        return Answer(columns, rows, table=pa.table(lists) if as_table else None)
    views.forget_use()
    views.plan(needs_of(connection, last))
    relation = connection.sql(last)
    columns = tuple(relation.columns)
    if as_table:
        return Answer(columns, [], table=relation.to_arrow_table())
    if output is not None:
        # To keep an order that was not asked for, DuckDB holds a gigabyte, and fails if messages are large.
        connection.execute("SET preserve_insertion_order = false")
        size = ", ROW_GROUP_SIZE_BYTES '16MB'" if output_format(output) == "parquet" else ""
        return save_result(connection, relation, output, size)
    rows = (relation if most_rows is None else relation.limit(most_rows + 1)).fetchall()
    more = most_rows is not None and len(rows) > most_rows
    return Answer(columns, rows[:most_rows] if more else rows, more)


def save_result(
    connection: duckdb.DuckDBPyConnection, result: duckdb.DuckDBPyRelation, output: Path, options: str = ""
) -> Answer:
    """Write the result of a query to a file, as its name says. `options` are more of COPY, each after a comma."""
    result.create_view("jsbackup_result", replace=True)
    target = str(output).replace("'", "''")
    copied = connection.execute(f"COPY jsbackup_result TO '{target}' (FORMAT {output_format(output)}{options})")
    ((count,),) = copied.fetchall()
    return Answer(tuple(result.columns), [], saved=count)


class _Views:
    """The views of a connection."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        objects: Objects,
        streams: Sequence[QueriedStream],
        folder: str | None,
    ) -> None:
        self.connection = connection
        self._objects = objects
        self._streams = {stream.name: stream for stream in streams}
        self._folder = folder if not objects.sealing.suffix else None
        self._sources: dict[str, SegmentSource] = {}

    @property
    def error(self) -> JsBackupError | None:
        """Why a stream of messages has ended early."""
        return next((source.error for source in self._sources.values() if source.error is not None), None)

    def create(self, words: frozenset[str]) -> None:
        """Create the views that these words may name."""
        names = view_names(list(self._streams.values()))
        of_all = any(stream is None and name in words for name, stream in names.items())
        views = []
        for name, of in names.items():
            if of is not None and (of_all or name.casefold() in words):
                table = f"jsbackup_stream_{len(self._sources)}"
                self._sources[of] = SegmentSource(self._objects, self._streams[of].ranges)
                self.connection.register(table, self._sources[of])
                self.connection.execute(f"CREATE VIEW {table}_read AS SELECT * FROM {table}")
                self.connection.execute(f"CREATE VIEW {_quoted(name)} AS {_select(of, f'{table}_read')}")
                views.append(_quoted(name))
        if of_all:
            nothing = "jsbackup_nothing"
            self.connection.register(nothing, SegmentSource(self._objects, lambda _bounds: ()))
            every = " UNION ALL ".join(f"FROM {view}" for view in views) or f"{_select('', nothing)}"
            self.connection.execute(f"CREATE VIEW {ALL_STREAMS} AS {every}")

    def forget_use(self) -> None:
        for source in self._sources.values():
            source.used = False

    def plan(self, needs: Needs) -> None:
        """Prepare the streams that are used for a query with these needs."""
        reads = needs.columns is None or not needs.columns.isdisjoint({*STORED_COLUMNS, "time"})
        for number, (name, source) in enumerate(self._sources.items()):
            source.needs = needs
            if not source.used or not reads or (paths := self._paths(self._streams[name], needs.bounds)) is None:
                continue
            files = ", ".join(map(_text, paths))
            constants = ", ".join(f"{_text(value)} AS {column}" for column, value in self._constants(name).items())
            self.connection.execute(
                f"CREATE OR REPLACE VIEW jsbackup_stream_{number}_read AS SELECT sequence, {_TIME} AS time, "
                f"timestamp_ns, subject, headers, data, {constants} FROM read_parquet([{files}])"
            )

    def _constants(self, name: str) -> dict[str, str]:
        (message_range,) = islice(self._streams[name].ranges(Bounds()), 1)
        return {
            "incarnation": message_range.key.incarnation,
            "life": message_range.key.life,
            "backup": message_range.backup,
        }

    def _paths(self, stream: QueriedStream, bounds: Bounds) -> list[str] | None:
        """Return the files of the segments within bounds, compared with the manifest; None if our reader is to read."""
        if self._folder is None or not stream.files:
            return None
        refs = [message_range.ref for message_range in islice(stream.ranges(bounds), _MOST_FILES + 1)]
        if not refs or len(refs) > _MOST_FILES or sum(ref.bytes for ref in refs) < (len(refs) - 8) * _SHORT_BYTES:
            return None
        with closing(in_order((partial(self._has_text, ref) for ref in refs), _THREADS)) as compared:
            return [f"{self._folder}/{ref.key}" for ref in refs] if all(list(compared)) else None

    def _has_text(self, ref: SegmentRef) -> bool:
        """Return whether all subjects of a segment are UTF-8: DuckDB needs the same type in all files. Raises
        IntegrityError if it is not the one in the manifest.
        """
        schema = pq.read_schema(pa.BufferReader(self._objects.fetch(ref)))
        return bool(schema.field("subject").type == pa.string())


def _select(name: str, table: str) -> str:
    """Return a query of all messages of a stream, which `table` has."""
    return f"""SELECT {_text(name)} AS stream, sequence, time,
        subject,
        CASE WHEN headers IS NOT NULL THEN jsbackup_headers(headers) END AS headers,
        data, try(decode(data)) AS text, timestamp_ns, headers AS header_block, incarnation, life, backup
        FROM {table}"""


@contextmanager
def _connected(spill: str) -> Iterator[duckdb.DuckDBPyConnection]:
    import duckdb

    with closing(duckdb.connect(":memory:", config={**_CONFIG, "temp_directory": spill})) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET enable_progress_bar = false")  # on stdout, where DuckDB takes Python for interactive
        for macro in _MACROS:
            connection.execute(macro)
        yield connection


@contextmanager
def _errors(streams: Sequence[StreamBackup | QueriedStream]) -> Iterator[None]:
    import duckdb

    try:
        yield
    except duckdb.CatalogException as error:
        if match := _NO_TABLE.search(str(error)):
            raise no_view(match[1], streams) from error
        raise UsageError(f"DuckDB does not understand the query: {_line(error)}") from error
    except (duckdb.ParserException, duckdb.BinderException, duckdb.SyntaxException) as error:
        raise UsageError(f"DuckDB does not understand the query: {_line(error)}") from error
    except duckdb.InterruptException as error:
        raise KeyboardInterrupt from error
    except duckdb.Error as error:
        raise JsBackupError(f"the query failed: {_line(error)}") from error


def _line(error: Exception) -> str:
    """Return the first line of DuckDB's message, without its kind."""
    text = str(error).strip().split("\n")[0]
    return (text.partition("Error: ")[2] or text)[:300].rstrip(".")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
