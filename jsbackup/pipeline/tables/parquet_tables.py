"""Read the Parquet files of a table by Spark, as what they mean and not as what Spark makes of their schemas.

Writers store a column without any value as one without a type, which Spark takes for integers. So such files are read
apart, and files without rows are not read at all. Spark reads times in nanoseconds only as integers, as we need them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from jsbackup.errors import UsageError
from jsbackup.exchange.folder import printable_name
from jsbackup.formats.json_lines import refuse_misspelt
from jsbackup.pipeline.messages.columns import ddl

__all__ = ["read_parquet_files"]

_NANOS_AS_INTEGERS = "spark.sql.legacy.parquet.nanosAsLong"
_COLUMNS = ("stream", "sequence", "timestamp_ns", "subject", "headers", "data")
_TYPES = dict(part.split() for part in ddl(_COLUMNS).split(", "))
_SOME_LACK = {"headers", "stream"}


@dataclass(frozen=True, slots=True)
class _Footer:
    """What a file says of itself. `untyped` are those of our columns, in small letters, that have no type."""

    names: tuple[str, ...] = ()
    rows: int = 1
    untyped: frozenset[str] = frozenset()
    has_nanos: bool = False


def read_parquet_files(session: SparkSession, files: Sequence[str]) -> DataFrame:
    """Return the rows of all files. Headers and streams that only some of them have are added.

    Raises:
        UsageError: a file has two columns whose names differ in case only, or a misspelt one in place of headers.
        AnalysisException: Spark does not understand a file.
    """
    footers = {file: _footer(file) for file in files}
    for file, footer in footers.items():
        _refuse_same(file, footer.names)
    _refuse_misspelt_in_some(footers)
    if any(footer.has_nanos for footer in footers.values()):
        session.conf.set(_NANOS_AS_INTEGERS, "true")
    groups: dict[frozenset[str], dict[str, _Footer]] = {}
    for file, footer in footers.items():
        if footer.rows:
            groups.setdefault(footer.untyped, {})[file] = footer
    if not groups:
        return session.createDataFrame([], ddl([one for one in _COLUMNS if _some_has(one, footers)]))
    found: DataFrame | None = None
    for untyped, group in sorted(groups.items(), key=lambda one: len(one[0])):
        frame = _typed(_read_group(session, group), untyped, found)
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
    frame = session.read.parquet(*paths)
    schema, lacking = frame.schema, _SOME_LACK - {name.lower() for name in frame.columns}
    for file, footer in footers.items() if lacking else ():
        if found := lacking & {name.lower() for name in footer.names}:
            fields = session.read.parquet(f"file:{file}").schema.fields
            schema = StructType([*schema.fields, *(one for one in fields if one.name.lower() in found)])
            lacking -= found
    if schema == frame.schema:
        return frame
    return session.read.schema(schema).parquet(*paths)


def _refuse_same(file: str, names: Sequence[str]) -> None:
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(name.lower(), name)) != name:
            raise UsageError(
                f"{printable_name(file)} has the columns {other[:80]!r} and {name[:80]!r}, which are one for Spark",
                hint="Rename one of them, or take it out.",
            )


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
        untyped = {field.name.lower() for field in schema if pa.types.is_null(field.type)}
        has_nanos = any("[ns" in str(field.type) for field in schema)
        return _Footer(tuple(schema.names), metadata.num_rows, frozenset(untyped & _TYPES.keys()), has_nanos)
    return _Footer()
