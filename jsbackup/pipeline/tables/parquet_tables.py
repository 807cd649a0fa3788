"""Read the Parquet files of a table by Spark, as what they mean and not as what Spark makes of their schemas.

Spark reads all files by the schema of one of them, and checks little: times in microseconds become nanoseconds, numbers
become bytes. So files are read apart by their types, and types that do not mean the same are refused. Writers store a
column without any value as one without a type, which Spark takes for integers. Files without rows are not read at all.
Spark reads times in nanoseconds only as integers, as we need them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from jsbackup.errors import UsageError
from jsbackup.exchange.folder import printable_name
from jsbackup.formats.json_lines import refuse_misspelt
from jsbackup.pipeline.messages.columns import ddl
from jsbackup.pipeline.session.parquet_files import whole_files

__all__ = ["read_parquet_files"]

_NANOS_AS_INTEGERS = "spark.sql.legacy.parquet.nanosAsLong"
_COLUMNS = ("stream", "sequence", "timestamp_ns", "subject", "headers", "data")
_TYPES = dict(part.split() for part in ddl(_COLUMNS).split(", "))
_SOME_LACK = {"headers", "stream"}
_UNKNOWN_TO_SPARK = {"BROTLI", "LZO"}  # without libraries that it does not come with
_BYTES, _INTEGER = "bytes", "integer"


@dataclass(frozen=True, slots=True)
class _Footer:
    """What a file says of itself. `types` are those of our columns, in small letters, without those that have none."""

    names: tuple[str, ...] = ()
    rows: int = 1
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    codecs: frozenset[str] = frozenset()
    has_nanos: bool = False

    @property
    def untyped(self) -> frozenset[str]:
        """Those of our columns that have no type."""
        return frozenset(set(map(str.lower, self.names)) & _TYPES.keys() - self.types.keys())

    @property
    def key(self) -> frozenset[tuple[str, str]]:
        """The same for files that Spark reads by the schema of each of them."""
        return frozenset((name, _read_as(kind)) for name, kind in self.types.items())


def read_parquet_files(session: SparkSession, files: Sequence[str]) -> DataFrame:
    """Return the rows of all files. Headers and streams that only some of them have are added.

    Raises:
        UsageError: a file has two columns whose names differ in case only, or a misspelt one in place of headers; files
            have a column with types that do not mean the same; Spark does not read the compression.
        AnalysisException: Spark does not understand a file.
    """
    footers = {file: _footer(file) for file in files}
    for file, footer in footers.items():
        _refuse_same(file, footer.names)
        if unknown := sorted(footer.codecs & _UNKNOWN_TO_SPARK):
            raise UsageError(
                f"{printable_name(file)} is compressed by {unknown[0]}, which Spark does not read",
                hint="Write it again, with zstd or snappy.",
            )
    _refuse_misspelt_in_some(footers)
    _refuse_other_types(footers)
    if any(footer.has_nanos for footer in footers.values()):
        session.conf.set(_NANOS_AS_INTEGERS, "true")
    groups: dict[frozenset[tuple[str, str]], dict[str, _Footer]] = {}
    known = [footer for footer in footers.values() if footer.names]
    for file, footer in footers.items():
        if footer.rows:
            # One that is damaged goes with others, and Spark says so.
            like = footer if footer.names or not known else known[0]
            groups.setdefault(like.key, {})[file] = footer
    if not groups:
        return session.createDataFrame([], ddl([one for one in _COLUMNS if _some_has(one, footers)]))
    found: DataFrame | None = None
    for group in sorted(groups.values(), key=lambda one: len(next(iter(one.values())).untyped)):
        frame = _typed(_read_group(session, group), next(iter(group.values())).untyped, found)
        found = frame if found is None else _ours(found).unionByName(_ours(frame), allowMissingColumns=True)
    assert found is not None
    return found


def _some_has(column: str, footers: Mapping[str, _Footer]) -> bool:
    return any(column in map(str.lower, footer.names) for footer in footers.values())


def _typed(frame: DataFrame, untyped: frozenset[str], like: DataFrame | None) -> DataFrame:
    """Return the rows with the type that untyped columns have in `like`, or should have."""
    known = {} if like is None else {name.lower(): kind for name, kind in like.dtypes}
    for column in [name for name in frame.columns if name.lower() in untyped]:
        name = column.lower()
        frame = frame.drop(column).withColumn(name, F.lit(None).cast(known.get(name, _TYPES[name])))
    return frame


def _ours(frame: DataFrame) -> DataFrame:
    names = {name.lower() for name in frame.columns}
    return frame.select(*(one for one in _COLUMNS if one in names))


def _read_group(session: SparkSession, footers: Mapping[str, _Footer]) -> DataFrame:
    """Return the rows of files. Spark takes the columns of one of them; those that only others have are added."""
    paths = [f"file:{file}" for file in footers]
    frame = whole_files(session).parquet(*paths)
    schema, lacking = frame.schema, _SOME_LACK - {name.lower() for name in frame.columns}
    for file, footer in footers.items() if lacking else ():
        if found := lacking & {name.lower() for name in footer.names}:
            fields = whole_files(session).parquet(f"file:{file}").schema.fields
            schema = StructType([*schema.fields, *(one for one in fields if one.name.lower() in found)])
            lacking -= found
    if schema == frame.schema:
        return frame
    return whole_files(session).schema(schema).parquet(*paths)


def _refuse_same(file: str, names: Sequence[str]) -> None:
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(name.lower(), name)) != name:
            raise UsageError(
                f"{printable_name(file)} has the columns {other[:80]!r} and {name[:80]!r}, which are one for Spark",
                hint="Rename one of them, or take it out.",
            )


def _refuse_other_types(footers: Mapping[str, _Footer]) -> None:
    """Raise UsageError if files have one of our columns with types that do not mean the same."""
    first: dict[str, tuple[str, pa.DataType]] = {}
    for file, footer in footers.items():
        for name, kind in footer.types.items() if footer.rows else ():
            other, known = first.setdefault(name, (file, kind))
            if _meaning(kind) != _meaning(known):
                raise UsageError(
                    f"{printable_name(file)} has the column {name} as {kind}, and {printable_name(other)} as {known}",
                    hint="Write them with the same type.",
                )


def _read_as(kind: pa.DataType) -> str:
    """Return a type in words; those of which Spark reads one as the other without a change have the same."""
    if kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()) or pa.types.is_fixed_size_binary(kind):
        return _BYTES
    return str(pa.int64()) if _is_nanos(kind) else str(kind)


def _meaning(kind: pa.DataType) -> str:
    """Return what values of a type are, in words; all integers are the same, in nanoseconds, too."""
    # Spark has such decimals for integers of 64 bits without a sign.
    is_integer = pa.types.is_integer(kind) or _is_nanos(kind) or kind == pa.decimal128(20, 0)
    return _INTEGER if is_integer else _read_as(kind)


def _is_nanos(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.unit == "ns")


def _refuse_misspelt_in_some(footers: Mapping[str, _Footer]) -> None:
    """Raise UsageError if files have headers, and another one has a column of a misspelt name in their place.

    Where none has them, the columns of the whole table show it.
    """
    lacking = [file for file, footer in footers.items() if "headers" not in map(str.lower, footer.names)]
    for file in lacking if len(lacking) < len(footers) else ():
        refuse_misspelt(printable_name(file), footers[file].names)


def _footer(file: str) -> _Footer:
    """Return what a file says of itself, as little as possible if it is damaged, which Spark says."""
    with suppress(OSError, pa.ArrowException, ValueError):
        metadata = pq.read_metadata(file)
        schema = metadata.schema.to_arrow_schema()
        types = {one.name.lower(): one.type for one in schema if not pa.types.is_null(one.type)}
        has_nanos = any("[ns" in str(one.type) for one in schema)
        group = metadata.row_group(0) if metadata.num_row_groups else None
        codecs = frozenset(group.column(n).compression for n in range(group.num_columns)) if group else frozenset()
        ours = {name: kind for name, kind in types.items() if name in _TYPES}
        return _Footer(tuple(schema.names), metadata.num_rows, ours, codecs, has_nanos)
    return _Footer()
