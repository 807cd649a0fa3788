"""Rows of tables of messages, cast to our columns by pyarrow: in tasks, which run here or on Spark.

Of a table count the columns `sequence`, `timestamp_ns` (or `time`, or `timestamp`), `subject`, `data`, `headers` and
`stream`, in any case of letters. Times may be of any unit; integers are nanoseconds. Rows of a table without sequences
are numbered, in the order of the names of its files. JSON lines are read by `line_files.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jsbackup.errors import FormatError, UsageError
from jsbackup.exchange.folder import printable_name
from jsbackup.formats.json_lines import refuse_misspelt
from jsbackup.pipeline.tables.line_files import LINE_SCHEMA, line_tasks
from jsbackup.pipeline.tables.table_files import Table, refuse_other_streams
from jsbackup.pipeline.tables.writing import TableFormat

__all__ = ["ReadParquet", "ReadRows", "Unordered", "in_order", "row_tasks", "sorted_rows"]

ReadRows = Callable[[], Iterator[pa.RecordBatch]]
"""Yields rows of a table with the columns of `LINE_SCHEMA`. It can be pickled."""

# Rows that are decoded at once. Repeated payloads are stored once, so these may take much more than the file.
_BATCH_ROWS = 256
_PIECE_BYTES = 32 << 20
# Rows that are in no order are sorted in memory.
_MOST_SORTED_BYTES = 2 << 30
_TIMES = ("timestamp_ns", "time", "timestamp")
_OURS = {"sequence", "subject", "data", "headers", "stream", *_TIMES}
_NANOSECONDS = pa.timestamp("ns", tz="UTC")


@dataclass(frozen=True, slots=True)
class ReadParquet:
    """A task: yields the rows of some row groups of a file. `first` is the sequence of the first one in a table
    without sequences, else 0.

    Raises:
        UsageError: a column is missing, is there twice, or cannot be cast; the file does not exist on this node.
        FormatError: the file is damaged.
    """

    path: str
    groups: tuple[int, ...]
    first: int = 0

    def __call__(self) -> Iterator[pa.RecordBatch]:
        with _errors(self.path), pq.ParquetFile(self.path, page_checksum_verification=True) as file:
            names = _names(self.path, file.schema_arrow.names)
            columns = sorted({name for name in names.values() if name})
            at = self.first
            for batch in file.iter_batches(
                _BATCH_ROWS, row_groups=list(self.groups), columns=columns, use_threads=False
            ):
                yield self._cast(batch, names, at)
                at += batch.num_rows

    def _cast(self, batch: pa.RecordBatch, names: dict[str, str], first: int) -> pa.RecordBatch:
        arrays = []
        for field in LINE_SCHEMA:
            name = names[field.name]
            if name:
                arrays.append(self._column(name, batch.column(name), field.type, is_time=field.name == "timestamp_ns"))
            elif field.name == "sequence":
                arrays.append(pa.array(range(first, first + batch.num_rows), pa.int64()))
            else:
                arrays.append(pa.nulls(batch.num_rows, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=LINE_SCHEMA)

    def _column(self, name: str, array: pa.Array, kind: pa.DataType, *, is_time: bool) -> pa.Array:
        try:
            if pa.types.is_dictionary(array.type):
                array = array.dictionary_decode()
            if is_time and not pa.types.is_integer(array.type) and not pa.types.is_null(array.type):
                array = array.cast(pa.timestamp(getattr(array.type, "unit", "ns"), "UTC")).cast(_NANOSECONDS)
            if kind == pa.string() and not pa.types.is_string(array.type):  # its bytes, of which some are not UTF-8
                return array.cast(pa.binary()).view(pa.string())
            return array.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            wanted = "a time" if is_time else {"int64": "an integer", "string": "text"}.get(str(kind), "bytes")
            raise UsageError(
                f"{printable_name(self.path)}: the column {name} is {array.type}, and cannot be {wanted}: "
                f"{' '.join(str(error).split())[:200]}"
            ) from error


@contextmanager
def _errors(path: str) -> Iterator[None]:
    """Raise our errors for those of pyarrow about a file."""
    shown = printable_name(path)
    try:
        yield
    except FileNotFoundError as error:
        hint = "Where the work is spread, every node has to see it."
        raise UsageError(f"there is no file {shown}", hint=hint) from error
    except (OSError, pa.ArrowException, ValueError) as error:
        said = " ".join(str(error).split())[:200]
        raise FormatError(f"{shown} is not a Parquet file, or a damaged one: {said}") from error


def row_tasks(table: Table, kind: TableFormat) -> list[ReadRows]:
    """Return tasks that read the rows of a table, each of one stream; in the order of sequences, as far as files say.

    Raises:
        UsageError: a column is missing, is there twice, or is in some files only.
        FormatError: a file is damaged.
        StoreError: it cannot be read.
    """
    if kind is TableFormat.JSONL:
        return list(line_tasks(table.files))
    pieces: list[tuple[int, ReadParquet]] = []
    counted: set[bool] = set()
    row = 1
    for path in table.files:
        if not Path(path).stat().st_size:
            continue
        with _errors(path), pq.ParquetFile(path) as file:
            metadata, names = file.metadata, _names(path, file.schema_arrow.names)
            if not metadata.num_rows:
                continue
            counted.add(bool(names["sequence"]))
            column = file.schema_arrow.get_field_index(names["sequence"]) if names["sequence"] else -1
            groups: list[int] = []
            size, first, rows = 0, row, 0
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                groups.append(number)
                size, rows = size + group.total_byte_size, rows + group.num_rows
                if size >= _PIECE_BYTES or number == metadata.num_row_groups - 1:
                    least = _least(metadata.row_group(groups[0]), names["sequence"]) if column >= 0 else first
                    piece = ReadParquet(path, tuple(groups), 0 if column >= 0 else first)
                    pieces.append((least, piece))
                    groups, size, first = [], 0, row + rows
            row += rows
    if len(counted) > 1:
        raise UsageError(f"some files of the table of stream {table.stream} have no column sequence, others have one")
    return [piece for _, piece in sorted(pieces, key=lambda piece: piece[0])]


def _least(group: pq.RowGroupMetaData, name: str) -> int:
    """Return the least sequence of a row group, 0 if it is not known."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == name and column.statistics is not None and column.statistics.has_min_max:
            least = column.statistics.min
            return int(least) if isinstance(least, int) else 0
    return 0


def _names(path: str, columns: Sequence[str]) -> dict[str, str]:
    """Return the names of columns of a file, by ours; "" for one that it has not."""
    shown = printable_name(path)
    known: dict[str, str] = {}
    for name in columns:
        if name.lower() in _OURS and known.setdefault(name.lower(), name) != name:
            raise UsageError(
                f"{shown} has the columns {known[name.lower()]!r} and {name!r}", hint="Take one of them out."
            )
    time = next((name for name in _TIMES if name in known), "")
    for name, is_present in (("timestamp_ns", time), ("subject", "subject" in known), ("data", "data" in known)):
        if not is_present:
            raise UsageError(f"{shown} has no column {name}")
    if "headers" not in known:
        refuse_misspelt(shown, columns)
    names = {field.name: known.get(field.name, "") for field in LINE_SCHEMA}
    return {**names, "timestamp_ns": known[time]}


class Unordered(Exception):
    """Rows of a table do not rise."""


def in_order(table: Table, tasks: Sequence[ReadRows]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table as they come, as long as their sequences rise.

    Raises UsageError for rows of another stream, and Unordered for such that do not rise.
    """
    last, streams = 0, set[str | None]()
    for task in tasks:
        for batch in task():
            if not batch.num_rows:
                continue
            streams |= set(pc.unique(batch.column("stream")).to_pylist())
            refuse_other_streams(streams, table.stream, given=table.alone)
            sequences = batch.column("sequence")
            rises = sequences.null_count or pc.all(pc.greater(sequences[1:], sequences[:-1])).as_py() is not False
            if not rises or (not sequences.null_count and sequences[0].as_py() <= last):
                raise Unordered
            last = sequences[-1].as_py() or last
            yield batch


def sorted_rows(table: Table, tasks: Sequence[ReadRows]) -> Iterator[pa.RecordBatch]:
    batches, size = [], 0
    for task in tasks:
        for batch in task():
            size += batch.nbytes
            if size > _MOST_SORTED_BYTES:
                raise UsageError(
                    f"the rows of stream {table.stream} are in no order, and more than 2 GiB",
                    hint="Sort them by sequence, or let Spark do so with --spark.",
                )
            batches.append(batch)
    yield from pa.Table.from_batches(batches, LINE_SCHEMA).sort_by("sequence").to_batches(_BATCH_ROWS)
