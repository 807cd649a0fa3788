"""Schemas of payloads that are JSON: as text, which may come from people, and inferred from a sample.

Spark itself parses its syntax, which needs a session. The data source has none: there a text becomes the type of a
column in the schema that Spark parses for it (`column_of`).

What is inferred is what Spark's `schema_of_json` infers: integers are BIGINT, larger ones DECIMAL, and beyond that
DOUBLE; a field of values that have no common type is a STRING; so is one that is always null; objects without fields
are left out, and so are fields without a name.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from jsbackup.errors import FormatError, UsageError
from jsbackup.pipeline.messages.json_payload import PAYLOAD, PayloadParser
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.columns import read_columns
from jsbackup.strict_json import read_json

__all__ = [
    "EXAMPLE",
    "as_ddl",
    "column_of",
    "from_json",
    "has_not_null",
    "infer_schema",
    "infer_type",
    "is_infer",
    "no_fields",
    "nullable",
]

_log = logging.getLogger(__name__)

EXAMPLE: Final = "Give a schema of Spark, such as 'id BIGINT, total DOUBLE', or 'infer'."

_MOST_MESSAGES: Final = 1000
_MOST_SEGMENTS: Final = 20
_MOST_BYTES: Final = 4 << 20
_LONG, _LONG_DIGITS, _MOST_DIGITS = 1 << 63, 20, 38

# What is quoted or a comment in Spark's syntax, and what matters here of the rest.
_TOKEN = re.compile(
    r"""`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|--[^\n]*|/\*.*?\*/
    |\bNOT\s+NULL\b|\bCOMMENT\s*(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|[<>]""",
    re.DOTALL | re.IGNORECASE | re.VERBOSE,
)

T = TypeVar("T")


def is_infer(text: str) -> bool:
    """Return whether a schema is to be inferred."""
    return text.strip().lower() == "infer"


def column_of(text: str) -> str:
    """Return the column `payload` in Spark's syntax, for a schema in that or in Spark's JSON.

    Spark's syntax is left to Spark. NOT NULL is removed, since every field may be missing, and so are comments.

    Raises:
        UsageError: it is no schema, as far as that can be said without Spark.
    """
    text = text.strip()
    if text.startswith("{"):
        return f"{PAYLOAD} STRUCT<{as_ddl(from_json(text))}>"
    # A name and a type.
    if not re.search(r"[^\s:][\s:]+[^\s:]|^`|^struct\s*<", text, re.IGNORECASE):
        raise no_fields(text)
    depth = 0

    def replaced(token: re.Match[str]) -> str:
        nonlocal depth
        found = token[0]
        depth += (found == "<") - (found == ">")
        if depth < 0:
            raise UsageError("the schema of the payloads cannot be understood: a > is without its <", hint=EXAMPLE)
        return "" if found[0] in "nNcC" else found

    plain = _TOKEN.sub(replaced, text)
    whole = re.fullmatch(r"struct\s*<.*>", plain, re.DOTALL | re.IGNORECASE)
    # The last line may end with a comment.
    return f"{PAYLOAD} {plain}" if whole else f"{PAYLOAD} STRUCT<{plain}\n>"


def no_fields(text: str) -> UsageError:
    """Return the error that a text is not a schema with fields."""
    return UsageError(f"the schema of the payloads has no fields: {text[:80]!r}", hint=EXAMPLE)


def from_json(text: str) -> StructType:
    """Return the schema that is in Spark's JSON, as `schema.json()` has it, with fields that may be missing.

    Raises:
        UsageError: it is none, or has types that JSON does not have.
    """
    try:
        found = nullable(StructType.fromJson(json.loads(text)))
    except (PySparkException, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        message = "the schema of the payloads cannot be understood: it is not the JSON of a schema"
        raise UsageError(message, hint=EXAMPLE) from error
    PayloadParser(found)
    return found


def nullable(kind: StructType) -> StructType:
    """Return the type with parts that may be null, as every field may be missing, and without comments."""
    return StructType.fromJson(json.loads(kind.json(), object_hook=_nullable))


def has_not_null(kind: StructType) -> bool:
    """Return whether a schema says of some part that it is never null."""
    return nullable(kind) != StructType.fromJson(json.loads(kind.json(), object_hook=_without_comment))


def _nullable(node: dict[str, Any]) -> dict[str, Any]:
    said = {name: True for name in ("nullable", "containsNull", "valueContainsNull") if name in node}
    return _without_comment(node) | said


def _without_comment(node: dict[str, Any]) -> dict[str, Any]:
    return node | {"metadata": {}} if "nullable" in node else node


def as_ddl(kind: StructType) -> str:
    """Return the fields of a schema in Spark's syntax, without comments."""
    return ", ".join(f"{_quoted(field.name)} {_type_text(field.dataType)}" for field in kind.fields)


def _quoted(name: str) -> str:
    return name if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else f"`{name.replace('`', '``')}`"


def _type_text(kind: DataType) -> str:
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(f'{_quoted(one.name)}: {_type_text(one.dataType)}' for one in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_type_text(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_type_text(kind.keyType)}, {_type_text(kind.valueType)}>"
    return kind.simpleString().upper()


def infer_schema(objects: Objects, streams: Sequence[StreamBackup]) -> StructType:
    """Return a schema that is inferred from a sample: up to 1,000 messages, from up to 20 segments. It is logged.

    Raises:
        UsageError: none of them is a JSON object with fields.
        IntegrityError, KeyUnavailable, StoreError: they cannot be read.
    """
    looked, size = 0, 0
    found: list[dict[str, Any]] = []
    for payload in _sample(objects, streams):
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
    raise UsageError(f"no schema can be inferred: of {looked} sampled messages none is a JSON object", hint=EXAMPLE)


def _object(payload: bytes) -> dict[str, Any] | None:
    try:
        found = read_json(payload, "a payload")
    except FormatError:
        return None
    return found if isinstance(found, dict) else None


def _sample(objects: Objects, streams: Sequence[StreamBackup]) -> Iterator[bytes]:
    """Yield payloads that are spread over the streams, and over each of them, without empty ones."""
    looked_at = _spread([stream for stream in streams if stream.segments], _MOST_SEGMENTS)
    refs = [ref for one in looked_at for ref in _spread(one.segments, _MOST_SEGMENTS // len(looked_at))]
    for ref in refs:
        batches = list(read_columns(objects, ref, {"data"}))
        column = pa.chunked_array([batch.column("data") for batch in batches], pa.binary())
        for row in _spread(range(len(column)), _MOST_MESSAGES // len(refs)):
            if payload := column[row].as_py():
                yield payload


def _spread(items: Sequence[T], most: int) -> Sequence[T]:
    """Return up to `most` of the items at even distances, the last one among them."""
    if len(items) <= most:
        return items
    return [items[(number + 1) * len(items) // most - 1] for number in range(most)]


def infer_type(objects: Sequence[dict[str, Any]]) -> StructType | None:
    """Return the type of JSON objects; None if they have no fields."""
    kind = _finished(_all_of(objects))
    return kind if isinstance(kind, StructType) else None


def _all_of(values: Sequence[Any]) -> DataType:
    kind: DataType = NullType()
    for value in values:
        kind = _common(kind, _type_of(value))
    return kind


def _type_of(value: Any) -> DataType:
    if isinstance(value, dict):
        return _struct({name: _type_of(one) for name, one in value.items()})
    if isinstance(value, list):
        return ArrayType(_all_of(value))
    if isinstance(value, bool):
        return BooleanType()
    if isinstance(value, int):
        if -_LONG <= value < _LONG:
            return LongType()
        digits = len(str(abs(value)))
        return DecimalType(digits, 0) if digits <= _MOST_DIGITS else DoubleType()
    if isinstance(value, float):
        return DoubleType()
    return StringType() if value else NullType()  # also an empty text, as in Spark: some write that for null


def _struct(fields: dict[str, DataType]) -> StructType:
    """Return a struct with its fields in Java's order of texts."""
    names = sorted(fields, key=lambda name: name.encode("utf-16-be"))
    return StructType([StructField(name, fields[name]) for name in names])


def _common(one: DataType, other: DataType) -> DataType:
    """Return the narrowest type that has the values of both."""
    if one == other or isinstance(other, NullType):
        return one
    if isinstance(one, NullType):
        return other
    if isinstance(one, StructType) and isinstance(other, StructType):
        fields = {field.name: field.dataType for field in one.fields}
        for field in other.fields:
            fields[field.name] = _common(fields.get(field.name, NullType()), field.dataType)
        return _struct(fields)
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_common(one.elementType, other.elementType))
    digits = [_digits(one), _digits(other)]
    if 0 in digits:
        return StringType()
    return DecimalType(max(digits), 0) if max(digits) <= _MOST_DIGITS else DoubleType()


def _digits(kind: DataType) -> int:
    """Return how many digits integers of a type have; more than any for a double, 0 if these are no numbers."""
    if isinstance(kind, DecimalType):
        return kind.precision
    if isinstance(kind, LongType):
        return _LONG_DIGITS
    return _MOST_DIGITS + 1 if isinstance(kind, DoubleType) else 0


def _finished(kind: DataType) -> DataType | None:
    """Return a type without what Spark has no column for; None if nothing is left of it."""
    if isinstance(kind, NullType):
        return StringType()
    if isinstance(kind, ArrayType):
        item = _finished(kind.elementType)
        return None if item is None else ArrayType(item)
    if isinstance(kind, StructType):
        fields = {one.name: found for one in kind.fields if one.name and (found := _finished(one.dataType))}
        return _struct(fields) if fields else None
    return kind
