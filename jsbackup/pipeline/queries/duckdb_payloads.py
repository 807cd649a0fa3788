"""Payloads as columns in DuckDB: a function that parses them in this process, called for what a query needs only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from jsbackup.pipeline.payloads.parsing import CORRUPT, PAYLOAD, PayloadParser

if TYPE_CHECKING:
    import duckdb

__all__ = ["add_parsers", "with_payloads"]

_TYPES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.timestamp("us", "UTC"): "TIMESTAMP WITH TIME ZONE",
}


def add_parsers(connection: duckdb.DuckDBPyConnection, parsers: Iterable[PayloadParser]) -> None:
    """Define the functions that `with_payloads` calls."""
    from duckdb.func import ARROW, SPECIAL

    for name, parser in {_function(parser): parser for parser in parsers}.items():
        taken, given = connection.sqltype("BLOB"), connection.sqltype(_type(pa.struct(parser.fields)))
        connection.create_function(name, _parsing(parser), [taken], given, type=ARROW, null_handling=SPECIAL)


def with_payloads(query: str, parser: PayloadParser | None) -> str:
    """Return a query of messages with the columns of their payloads behind the others."""
    if parser is None:
        return query
    return (
        f"SELECT * EXCLUDE (jsbackup_parsed), jsbackup_parsed.{PAYLOAD} AS {PAYLOAD}, "
        f"jsbackup_parsed.{CORRUPT} AS {CORRUPT} "
        f"FROM (SELECT *, {_function(parser)}(data) AS jsbackup_parsed FROM ({query}))"
    )


def _function(parser: PayloadParser) -> str:
    return f"jsbackup_payload_{hashlib.sha256(parser.text.encode()).hexdigest()[:32]}"


def _parsing(parser: PayloadParser) -> Callable[[pa.Array | pa.ChunkedArray], pa.Array]:
    def parse(payloads: pa.Array | pa.ChunkedArray) -> pa.Array:
        if isinstance(payloads, pa.ChunkedArray):
            payloads = payloads.combine_chunks()
        return parser.parse(payloads)

    return parse


def _type(kind: pa.DataType) -> str:
    """Return a type of payloads in DuckDB's syntax."""
    if isinstance(kind, pa.StructType):
        fields = ", ".join(f'"{field.name.replace(chr(34), chr(34) * 2)}" {_type(field.type)}' for field in kind)
        return f"STRUCT({fields})"
    if isinstance(kind, pa.ListType):
        return f"{_type(kind.value_type)}[]"
    if isinstance(kind, pa.MapType):
        return f"MAP({_type(kind.key_type)}, {_type(kind.item_type)})"
    if isinstance(kind, pa.Decimal128Type):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _TYPES[kind]
