"""Payloads as values of a given type: parsed by Python's `json`, checked against the type, and never changed.

A payload that is a JSON object becomes a row of the fields that the schema has; fields that it does not have are null,
and other fields are ignored. A value that the type cannot hold exactly makes the whole record a corrupt one. Spark's
`from_json` would change some: it rounds decimals and large integers, puts `?` for half a surrogate pair, takes what
follows the first value for nothing, and makes text of numbers.

    BOOLEAN                          true, false
    TINYINT, SMALLINT, INT, BIGINT   integers within the range, without point or exponent
    DOUBLE                           as `json.loads`; also integers if a double is equal to them
    DECIMAL(p, s)                    numbers with so many digits, to the last one
    STRING                           strings of Unicode
    ARRAY, MAP<STRING, …>, STRUCT    of these; null is a value of each type
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from math import isfinite
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from jsbackup.errors import UsageError

__all__ = ["CORRUPT", "PAYLOAD", "PayloadParser"]

PAYLOAD = "payload"
CORRUPT = "_corrupt_record"

_BITS: dict[DataType, int] = {ByteType(): 8, ShortType(): 16, IntegerType(): 32, LongType(): 64}
_INTEGERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_HINTS = {
    "float": "DOUBLE holds every number as JSON has it.",
    "timestamp": "Take STRING, and convert it with to_timestamp.",
    "timestamp_ntz": "Take STRING, and convert it with to_timestamp_ntz.",
    "date": "Take STRING, and convert it with to_date.",
}
_TYPES = "Types are BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, DOUBLE, DECIMAL, STRING, ARRAY, MAP<STRING, …> and STRUCT."


class _DoesNotFit(Exception):
    """A value is not one of the type, or would be changed by it."""


_Convert = Callable[[Any], Any]
"""Returns a value of JSON as pyarrow takes it, never called with None. Raises _DoesNotFit."""


@dataclass(frozen=True, slots=True)
class PayloadParser:
    """Parses payloads as JSON objects with the fields of a schema.

    Raises UsageError if the schema has no fields, a field twice, or a type that JSON does not have.
    """

    schema: StructType

    def __post_init__(self) -> None:
        _converter(self.schema)

    @property
    def result_type(self) -> StructType:
        """The type of what `parse` returns."""
        return StructType([StructField(PAYLOAD, self.schema), StructField(CORRUPT, StringType())])

    def parse(self, payloads: pa.Array) -> pa.StructArray:
        """Return a struct of two fields for each payload: the parsed one, and the text of those that do not parse.

        Both are null for an empty payload, as a deleted key of a bucket has it, and for JSON's null. In a text that is
        not UTF-8, U+FFFD stands for what is not.
        """
        kind, convert = _converter(self.schema)
        decoder = json.JSONDecoder(parse_constant=_no_constant, parse_float=_float_of(self.schema))
        rows: list[Any] = []
        corrupt: list[str | None] = []
        for payload in payloads.to_pylist():
            row = text = None
            if payload:
                try:
                    found = decoder.decode(payload.decode())
                    row = None if found is None else convert(found)
                # ValueError: not UTF-8, not JSON, or an integer of thousands of digits.
                # ArithmeticError: a number that the type does not hold, or an exponent that even Decimal does not.
                except (_DoesNotFit, ValueError, ArithmeticError, RecursionError):
                    text = payload.decode(errors="replace")
            rows.append(row)
            corrupt.append(text)
        arrays = [pa.array(rows, kind), pa.array(corrupt, pa.string())]
        return pa.StructArray.from_arrays(arrays, [PAYLOAD, CORRUPT])


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _float_of(kind: DataType) -> Callable[[str], Any]:
    """Return how numbers with a point or an exponent are read: exactly, where the type has decimals."""
    return Decimal if "decimal" in kind.simpleString() else float


def _converter(kind: DataType) -> tuple[pa.DataType, _Convert]:
    """Return the type of Arrow and the conversion for a type of Spark. Raises UsageError if JSON does not have it."""
    if kind == StringType():
        return pa.string(), _string
    if isinstance(kind, BooleanType):
        return pa.bool_(), _boolean
    if isinstance(kind, DoubleType):
        return pa.float64(), _double
    if kind in _BITS:
        return _INTEGERS[_BITS[kind]], _integer(_BITS[kind])
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale), _decimal(kind.precision, kind.scale)
    if isinstance(kind, ArrayType):
        item, convert = _converter(kind.elementType)
        return pa.list_(item), _list(convert)
    if isinstance(kind, MapType) and kind.keyType == StringType():
        item, convert = _converter(kind.valueType)
        return pa.map_(pa.string(), item), _map(convert)
    if isinstance(kind, StructType):
        return _struct(kind.fields)
    text = kind.simpleString()
    raise UsageError(f"payloads of JSON have no {text.upper()}", hint=_HINTS.get(text, _TYPES))


def _string(value: Any) -> str:
    if type(value) is not str:
        raise _DoesNotFit
    if not value.isascii():
        value.encode()  # half a surrogate pair is a UnicodeEncodeError, which is a ValueError
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _DoesNotFit
    return value


def _integer(bits: int) -> _Convert:
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def convert(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise _DoesNotFit
        return value

    return convert


def _double(value: Any) -> float:
    if type(value) not in (float, int, Decimal):
        raise _DoesNotFit
    number = float(value)  # of a huge integer an OverflowError, which is an ArithmeticError
    if not isfinite(number) or (type(value) is int and number != value):
        raise _DoesNotFit
    return number


def _decimal(precision: int, scale: int) -> _Convert:
    exact = Context(prec=precision, traps=[Inexact, InvalidOperation])
    last = Decimal(1).scaleb(-scale)

    def convert(value: Any) -> Decimal:
        if type(value) not in (Decimal, int):
            raise _DoesNotFit
        return Decimal(value).quantize(last, context=exact)  # Inexact and InvalidOperation are ArithmeticErrors

    return convert


def _list(convert: _Convert) -> _Convert:
    def convert_all(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _DoesNotFit
        return [None if one is None else convert(one) for one in value]

    return convert_all


def _map(convert: _Convert) -> _Convert:
    def convert_all(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            raise _DoesNotFit
        return [(_string(name), None if one is None else convert(one)) for name, one in value.items()]

    return convert_all


def _struct(fields: Sequence[StructField]) -> tuple[pa.DataType, _Convert]:
    names = [field.name for field in fields]
    if not names:
        raise UsageError("a struct of the schema has no fields")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"the schema has the field {name[:80]!r} twice")
    found = {field.name: _converter(field.dataType) for field in fields}
    converts = [(name, convert) for name, (_, convert) in found.items()]

    def convert_all(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _DoesNotFit
        return {name: None if (one := value.get(name)) is None else convert(one) for name, convert in converts}

    return pa.struct([(name, kind) for name, (kind, _) in found.items()]), convert_all
