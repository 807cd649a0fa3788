"""Columns of an Iceberg table, and their numbers, by which readers find them in files. Pure; pyiceberg is not needed.

The numbers follow from the columns alone, so all exports into a table give the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from jsbackup.errors import UnsupportedError
from jsbackup.model import JsonObject

__all__ = ["iceberg_fields", "last_id", "numbered"]

_FIELD_ID = b"PARQUET:field_id"

_TYPES = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamptz",
}
_WIDER = {pa.int8(): pa.int32(), pa.int16(): pa.int32()}  # Iceberg has none so small


def numbered(schema: pa.Schema) -> pa.Schema:
    """Return a schema for files, with a number for each column and each part of one; small integers become larger."""
    ids = count(1)
    tops = [(field, next(ids)) for field in schema]
    return pa.schema([_field(field.name, field.type, number, ids) for field, number in tops])


def iceberg_fields(schema: pa.Schema) -> list[JsonObject]:
    """Return the fields of a table that has files with a schema of `numbered`.

    Raises UnsupportedError if it has a type that Iceberg has not.
    """
    return [_described(field) for field in schema]


def last_id(fields: Sequence[JsonObject]) -> int:
    """Return the greatest number in fields of a table."""
    return max(_ids(fields))


def _field(name: str, kind: pa.DataType, number: int, ids: count[int], *, nullable: bool = True) -> pa.Field:
    if isinstance(kind, pa.StructType):
        kind = pa.struct([_field(one.name, one.type, next(ids), ids) for one in kind])
    elif isinstance(kind, pa.ListType):
        kind = pa.list_(_field("element", kind.value_type, next(ids), ids))
    elif isinstance(kind, pa.MapType):
        key = _field("key", kind.key_type, next(ids), ids, nullable=False)
        kind = pa.map_(key, _field("value", kind.item_type, next(ids), ids))
    kind = _WIDER.get(kind, kind)
    return pa.field(name, kind, nullable=nullable, metadata={_FIELD_ID: str(number).encode()})


def _described(field: pa.Field) -> JsonObject:
    return {"id": _id(field), "name": field.name, "required": False, "type": _type(field.type)}


def _type(kind: pa.DataType) -> str | JsonObject:
    if isinstance(kind, pa.StructType):
        return {"type": "struct", "fields": [_described(field) for field in kind]}
    if isinstance(kind, pa.ListType):
        item = kind.value_field
        return {"type": "list", "element-id": _id(item), "element": _type(item.type), "element-required": False}
    if isinstance(kind, pa.MapType):
        key, item = kind.key_field, kind.item_field
        of_key: JsonObject = {"key-id": _id(key), "key": _type(key.type)}
        return {"type": "map", **of_key, "value-id": _id(item), "value": _type(item.type), "value-required": False}
    if isinstance(kind, pa.Decimal128Type):
        return f"decimal({kind.precision}, {kind.scale})"
    if kind not in _TYPES:
        raise UnsupportedError(f"Iceberg tables have no columns of the type {kind}")
    return _TYPES[kind]


def _id(field: pa.Field) -> int:
    return int(field.metadata[_FIELD_ID])


def _ids(value: Any) -> list[int]:
    """Return all numbers in fields, or in a part of them."""
    if isinstance(value, dict):
        own = [value[name] for name in ("id", "element-id", "key-id", "value-id") if name in value]
        return own + [number for one in value.values() for number in _ids(one)]
    if isinstance(value, list | tuple):
        return [number for one in value for number in _ids(one)]
    return []
