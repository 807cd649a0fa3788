"""Types of payloads as Spark has them."""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from jsbackup.pipeline.payloads.json_types import struct_of, unsupported
from jsbackup.pipeline.payloads.parsing import PayloadParser

__all__ = ["has_not_null", "of_spark", "parsed_type", "to_spark"]

_PLAIN: Final[dict[pa.DataType, DataType]] = {
    pa.bool_(): BooleanType(),
    pa.int8(): ByteType(),
    pa.int16(): ShortType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
}
# Those that payloads of Avro and Protobuf have besides.
_BINARY: Final[dict[pa.DataType, DataType]] = {
    pa.float32(): FloatType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.timestamp("us", "UTC"): TimestampType(),
}


def to_spark(kind: pa.DataType) -> DataType:
    """Return a type of payloads as Spark's, with parts that may be null."""
    if isinstance(kind, pa.StructType):
        return StructType([StructField(field.name, to_spark(field.type)) for field in kind])
    if isinstance(kind, pa.ListType):
        return ArrayType(to_spark(kind.value_type))
    if isinstance(kind, pa.MapType):
        return MapType(to_spark(kind.key_type), to_spark(kind.item_type))
    if isinstance(kind, pa.Decimal128Type):
        return DecimalType(kind.precision, kind.scale)
    return _PLAIN.get(kind) or _BINARY[kind]


def of_spark(kind: DataType) -> pa.DataType:
    """Return a type of Spark as one of `json_types.py`. Raises UsageError if JSON does not have it."""
    if isinstance(kind, StructType):
        return struct_of([(field.name, of_spark(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(of_spark(kind.elementType))
    if isinstance(kind, MapType) and kind.keyType == StringType():
        return pa.map_(pa.string(), of_spark(kind.valueType))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    for ours, theirs in _PLAIN.items():
        if kind == theirs:
            return ours
    raise unsupported(kind.simpleString())


def parsed_type(parser: PayloadParser) -> StructType:
    """Return the type of what a parser returns."""
    return StructType([StructField(field.name, to_spark(field.type)) for field in parser.fields])


def has_not_null(kind: StructType) -> bool:
    """Return whether a schema says of some part that it is never null."""
    return _as_told(kind, _nullable) != _as_told(kind, _without_comment)


def _as_told(kind: StructType, hook: Any) -> StructType:
    return StructType.fromJson(json.loads(kind.json(), object_hook=hook))


def _nullable(node: dict[str, Any]) -> dict[str, Any]:
    said = {name: True for name in ("nullable", "containsNull", "valueContainsNull") if name in node}
    return _without_comment(node) | said


def _without_comment(node: dict[str, Any]) -> dict[str, Any]:
    return node | {"metadata": {}} if "nullable" in node else node
