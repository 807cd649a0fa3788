"""The columns of messages in Spark, and the conversion of our batches to them.

    stream         string      the stream's name
    sequence       bigint
    timestamp_ns   bigint      nanoseconds since the Unix epoch
    time           timestamp   the same without what is below a microsecond
    subject        string      its bytes as they are; few subjects are not UTF-8, and Spark lets them pass
    headers        binary      the raw header block, null without one
    data           binary      the payload
    backup         string      the backup's id

All are nullable, because Spark makes those of files nullable too, and both ways of reading should have the same schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from jsbackup.errors import UsageError

__all__ = [
    "COLUMNS",
    "CONSTANT",
    "arrow_schema",
    "as_text_subjects",
    "check_columns",
    "check_types",
    "ddl",
    "microseconds",
    "rows_alone",
    "shaped",
    "stored_columns",
]

_SPARK_TYPES = {
    "stream": "string",
    "sequence": "bigint",
    "timestamp_ns": "bigint",
    "time": "timestamp",
    "subject": "string",
    "headers": "binary",
    "data": "binary",
    "backup": "string",
}
COLUMNS = tuple(_SPARK_TYPES)
CONSTANT = frozenset({"stream", "backup"})
"""Columns with one value for all messages of a segment."""

_ARROW_TYPES = {
    "stream": pa.string(),
    "sequence": pa.int64(),
    "timestamp_ns": pa.int64(),
    "time": pa.timestamp("us", tz="UTC"),
    "subject": pa.string(),
    "headers": pa.binary(),
    "data": pa.binary(),
    "backup": pa.string(),
}

# Rows of a batch for Spark, beside the limit in bytes: Spark's own default.
_MAX_ROWS = 10_000


def check_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return `names` if they are columns, without repetition. Raises `UsageError` otherwise."""
    for name in names:
        if name not in _SPARK_TYPES:
            raise UsageError(f"there is no column {name[:80]!r}", hint=f"Choose from {', '.join(COLUMNS)}.")
    if len(set(names)) != len(names) or not names:
        raise UsageError("columns are named once each, and at least one of them")
    return tuple(names)


def check_types(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the columns of a given schema, a type for each. Raises `UsageError` for others than ours."""
    names = check_columns(list(given))
    for name in names:
        if given[name] != _SPARK_TYPES[name]:
            raise UsageError(f"the column {name} has the type {_SPARK_TYPES[name]}, not {given[name][:80]}")
    return names


def ddl(names: Sequence[str]) -> str:
    """Return a schema in Spark's syntax, which means the same whatever a session takes TIMESTAMP for."""
    return ", ".join(f"{name} {'timestamp_ltz' if name == 'time' else _SPARK_TYPES[name]}" for name in names)


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """Return a schema for pyarrow."""
    return pa.schema([(name, _ARROW_TYPES[name]) for name in names])


def stored_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns to read from a segment for these; at least one, since rows have to be counted."""
    wanted = {"timestamp_ns" if name == "time" else name for name in names}
    return tuple(n for n in ("sequence", "timestamp_ns", "subject", "headers", "data") if n in wanted) or ("sequence",)


def shaped(batch: pa.RecordBatch, names: Sequence[str], stream: str, backup: str) -> Iterator[pa.RecordBatch]:
    """Convert a batch with the stored columns to batches with the columns `names`, limited in rows."""
    schema = arrow_schema(names)
    constants = {"stream": stream, "backup": backup}
    for start in range(0, batch.num_rows, _MAX_ROWS):
        part = batch.slice(start, _MAX_ROWS)
        arrays = []
        for name in names:
            if name in constants:
                arrays.append(pa.repeat(pa.scalar(constants[name], pa.string()), part.num_rows))
            elif name == "time":
                arrays.append(microseconds(part.column("timestamp_ns")))
            else:
                arrays.append(part.column(name))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_alone(count: int, names: Sequence[str], stream: str, backup: str) -> Iterator[pa.RecordBatch]:
    """Yield so many rows of the columns `names`, which are among `CONSTANT`: nothing has to be read for them."""
    none = pa.RecordBatch.from_arrays([pa.nulls(min(count, _MAX_ROWS))], ["none"])
    for start in range(0, count, _MAX_ROWS):
        yield from shaped(none.slice(0, min(_MAX_ROWS, count - start)), names, stream, backup)


def as_text_subjects(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with binary subjects as strings, neither checked nor copied."""
    if "subject" not in batch.schema.names or batch.schema.field("subject").type == pa.string():
        return batch
    index = batch.schema.get_field_index("subject")
    return batch.set_column(index, pa.field("subject", pa.string()), batch.column(index).view(pa.string()))


def microseconds(timestamps: pa.Array) -> pa.Array:
    """Convert to microseconds, rounded down, also before 1970."""
    quotient = pc.divide(timestamps, 1000)
    rest = pc.subtract(timestamps, pc.multiply(quotient, 1000))
    down = pc.cast(pc.less(rest, 0), pa.int64())
    return pc.subtract(quotient, down).view(pa.timestamp("us", tz="UTC"))
