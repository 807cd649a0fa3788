"""Schemas of payloads that are JSON, inferred from a sample. Spark is not needed.

What is inferred is what Spark's `schema_of_json` infers: integers are BIGINT, larger ones DECIMAL, and beyond that
DOUBLE; a field of values that have no common type is a STRING; so is one that is always null; objects without fields
are left out, and so are fields without a name. But names that differ in case stay two fields, of which Spark sometimes
keeps the first one only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from jsbackup.errors import FormatError, UsageError
from jsbackup.pipeline.payloads.json_types import as_ddl
from jsbackup.pipeline.payloads.payload_sample import ReadSegment, SampleSize, sampled_payloads, stored
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.strict_json import read_json

__all__ = ["infer_schema", "infer_type"]

_log = logging.getLogger(__name__)

_SIZE: Final = SampleSize(messages=1000, segments=20)
_MOST_BYTES: Final = 4 << 20
_LONG, _LONG_DIGITS, _MOST_DIGITS = 1 << 63, 20, 38


def infer_schema(objects: Objects, streams: Sequence[StreamBackup], read: ReadSegment | None = None) -> pa.StructType:
    """Return a schema that is inferred from a sample: up to 1,000 messages, from up to 20 segments. It is logged.
    `read` reads the messages, if they are not to be those that are stored.

    Raises:
        UsageError: none of them is a JSON object with fields.
        IntegrityError, KeyUnavailable, StoreError: they cannot be read.
    """
    looked, size = 0, 0
    found: list[dict[str, Any]] = []
    for payload in sampled_payloads(streams, read or stored(objects), _SIZE):
        if size + len(payload) > _MOST_BYTES:
            continue
        looked += 1
        one = _object(payload)
        if one is not None:
            found.append(one)
            size += len(payload)
    if kind := infer_type(found):
        _log.info("payloads: %d of %d sampled messages are JSON objects: %s", len(found), looked, as_ddl(kind))
        return kind
    raise UsageError(
        f"no schema can be inferred: of {looked} sampled messages none is a JSON object",
        hint="Give a schema of Spark, such as 'id BIGINT, total DOUBLE'.",
    )


def _object(payload: bytes) -> dict[str, Any] | None:
    try:
        found = read_json(payload, "a payload")
    except FormatError:
        return None
    return found if isinstance(found, dict) else None


def infer_type(objects: Sequence[dict[str, Any]]) -> pa.StructType | None:
    """Return the type of JSON objects; None if they have no fields."""
    kind = _finished(_all_of(objects))
    return kind if isinstance(kind, pa.StructType) else None


def _all_of(values: Sequence[Any]) -> pa.DataType:
    kind = pa.null()
    for value in values:
        kind = _common(kind, _type_of(value))
    return kind


def _type_of(value: Any) -> pa.DataType:
    if isinstance(value, dict):
        return _struct({name: _type_of(one) for name, one in value.items()})
    if isinstance(value, list):
        return pa.list_(_all_of(value))
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        if -_LONG <= value < _LONG:
            return pa.int64()
        digits = len(str(abs(value)))
        return pa.decimal128(digits, 0) if digits <= _MOST_DIGITS else pa.float64()
    if isinstance(value, float):
        return pa.float64()
    return pa.string() if value else pa.null()  # also an empty text, as in Spark: some write that for null


def _struct(fields: dict[str, pa.DataType]) -> pa.StructType:
    """Return a struct with its fields in Java's order of texts."""
    return pa.struct([(name, fields[name]) for name in sorted(fields, key=lambda name: name.encode("utf-16-be"))])


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the narrowest type that has the values of both."""
    if one == other or other == pa.null():
        return one
    if one == pa.null():
        return other
    if isinstance(one, pa.StructType) and isinstance(other, pa.StructType):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = _common(fields.get(field.name, pa.null()), field.type)
        return _struct(fields)
    if isinstance(one, pa.ListType) and isinstance(other, pa.ListType):
        return pa.list_(_common(one.value_type, other.value_type))
    digits = [_digits(one), _digits(other)]
    if 0 in digits:
        return pa.string()
    return pa.decimal128(max(digits), 0) if max(digits) <= _MOST_DIGITS else pa.float64()


def _digits(kind: pa.DataType) -> int:
    """Return how many digits integers of a type have; more than any for a double, 0 if these are no numbers."""
    if isinstance(kind, pa.Decimal128Type):
        return int(kind.precision)
    if kind == pa.int64():
        return _LONG_DIGITS
    return _MOST_DIGITS + 1 if kind == pa.float64() else 0


def _finished(kind: pa.DataType) -> pa.DataType | None:
    """Return a type without what Spark has no column for; None if nothing is left of it."""
    if kind == pa.null():
        return pa.string()
    if isinstance(kind, pa.ListType):
        item = _finished(kind.value_type)
        return None if item is None else pa.list_(item)
    if isinstance(kind, pa.StructType):
        fields = {one.name: found for one in kind if one.name and (found := _finished(one.type)) is not None}
        return _struct(fields) if fields else None
    return kind
