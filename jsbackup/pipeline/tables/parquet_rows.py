"""Read a small Parquet table in a task, without Spark, if Spark would read the same.

Only tables of plain columns are read so, of which each file has the same. All others are left to Spark, and so is what
turns out to be damaged: Spark decides what such a table means, and says what is wrong with it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from jsbackup.formats.batch import BATCH_SCHEMA
from jsbackup.formats.json_lines import is_misspelt
from jsbackup.pipeline.tables.one_stream import OneStream

__all__ = ["ReadParquet", "find_plain"]

# Raw bytes of a table, by its footers.
_MOST_BYTES = 64 << 20

# Rows that are decoded at once. Repeated payloads are stored once, so these may take much more than the file.
_BATCH_ROWS = 256

# Our columns: how they are stored, and what says how to read that. Spark has longs, texts and bytes of these.
_OURS = {
    "sequence": {("INT32", "NONE"), ("INT64", "NONE"), ("INT32", "INT"), ("INT64", "INT")},
    "timestamp_ns": {("INT64", "NONE"), ("INT64", "INT")},
    "subject": {("BYTE_ARRAY", "STRING")},
    "headers": {("BYTE_ARRAY", "NONE"), ("BYTE_ARRAY", "STRING")},
    "data": {("BYTE_ARRAY", "NONE"), ("BYTE_ARRAY", "STRING")},
    "stream": {("BYTE_ARRAY", "STRING")},
}
# Other columns, which are not read. Spark refuses a whole table for some, such as times in nanoseconds.
_OTHERS = {
    *(pair for pairs in _OURS.values() for pair in pairs),
    ("BOOLEAN", "NONE"),
    ("INT32", "DATE"),
    ("INT64", "TIMESTAMP"),
    ("FLOAT", "NONE"),
    ("DOUBLE", "NONE"),
}
_NEEDED = _OURS.keys() - {"headers", "stream"}

# The columns as Spark wrote them, which it prefers to those of the file; and the types that are as in the file.
_SPARK_COLUMNS = b"org.apache.spark.sql.parquet.row.metadata"
_SPARK_TYPES = {"long", "integer", "short", "byte", "string", "binary"}


@dataclass(frozen=True, slots=True)
class ReadParquet:
    """A task: yields the messages of files that `find_plain` has found, in batches of `BATCH_SCHEMA`.

    Raises OSError, ArrowException or ValueError for what Spark may take in another way, or not at all, and UsageError
    for rows of another stream than `stream`, that of their folder.
    """

    files: tuple[str, ...]
    stream: str

    def __call__(self) -> Iterator[pa.RecordBatch]:
        streams = OneStream(self.stream)
        for path in self.files:
            _check_sums(Path(path))
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                names = [name for name in (*BATCH_SCHEMA.names, "stream") if name in file.schema_arrow.names]
                for batch in file.iter_batches(_BATCH_ROWS, columns=names, use_threads=False):
                    streams.check(batch)
                    yield _messages(batch)


def find_plain(files: Sequence[str], stream: str) -> ReadParquet | None:
    """Return what reads these files, of one stream; None if Spark has to."""
    columns, raw_bytes = set(), 0
    try:
        for path in files:
            with pq.ParquetFile(path) as file:
                columns.add(_columns_of(file))
                metadata = file.metadata
                raw_bytes += sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        return None
    is_plain = len(columns) == 1 and None not in columns and raw_bytes <= _MOST_BYTES
    return ReadParquet(tuple(files), stream) if is_plain else None


def _columns_of(file: pq.ParquetFile) -> tuple[tuple[str, str, str], ...] | None:
    """Return the columns of a file, None if Spark might read others. Raises ValueError, KeyError or TypeError for what
    Spark has not written.
    """
    schema = file.metadata.schema
    columns = [schema.column(number) for number in range(len(schema.names))]
    names = [column.name for column in columns]
    if len({name.casefold() for name in names}) < len(names) or not _NEEDED.issubset(names):
        return None
    if "headers" not in names and any(map(is_misspelt, names)):
        return None
    if "stream" not in names and "stream" in map(str.lower, names):
        return None
    for column in columns:
        logical = column.logical_type
        if (column.physical_type, logical.type) not in _OURS.get(column.name, _OTHERS):
            return None
        # Neither lists nor fields of a column; and nanoseconds are refused.
        if column.max_repetition_level or column.path != column.name or "nanoseconds" in logical.to_json():
            return None
    if not all(_is_plain(file.schema_arrow.field(name).type) for name in names if name in _OURS):
        return None
    written = (file.metadata.metadata or {}).get(_SPARK_COLUMNS)
    if written is not None:
        fields = json.loads(written)["fields"]
        ours = [one for one in fields if one["name"] in _OURS]
        if {one["name"] for one in fields} != set(names):
            return None
        if any(one["metadata"] or one["type"] not in _SPARK_TYPES for one in ours):
            return None
    return tuple((column.name, column.physical_type, column.logical_type.to_json()) for column in columns)


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether a column of ours is of a type that Parquet has, too, and not one with a dictionary."""
    return bool(pa.types.is_integer(kind) or kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()))


def _messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return our columns with our types. Raises ArrowInvalid if an integer is too large."""
    arrays = []
    for field in BATCH_SCHEMA:
        if field.name in batch.schema.names:
            arrays.append(batch.column(field.name).cast(field.type))
        else:
            arrays.append(pa.nulls(batch.num_rows, field.type))
    # Nullable, until all are checked.
    return pa.RecordBatch.from_arrays(arrays, BATCH_SCHEMA.names)


def _check_sums(path: Path) -> None:
    """Check a file against the sums that Hadoop has written beside it, if any: Spark does so, too.

    Raises ValueError if it differs, or the sums are not of the usual kind.
    """
    try:
        sums = (path.parent / f".{path.name}.crc").read_bytes()
    except FileNotFoundError:
        return
    size = int.from_bytes(sums[4:8])
    data = path.read_bytes()
    found = [zlib.crc32(data[start : start + size]) for start in range(0, len(data), size or len(data) + 1)]
    if sums != b"crc\0" + size.to_bytes(4) + b"".join(one.to_bytes(4) for one in found):
        raise ValueError(f"{path} does not have the sums that are beside it")
