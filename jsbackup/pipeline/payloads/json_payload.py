"""Payloads as values of a given type: parsed by Python's `json`, checked against the type, and never changed.

A payload that is a JSON object becomes a row of the fields that the schema has; fields that it does not have are null,
and other fields are ignored. A value that the type cannot hold exactly makes the whole record a corrupt one. Spark's
`from_json` would change some: it rounds decimals and large integers, puts `?` for half a surrogate pair, takes what
follows the first value for nothing, and makes text of numbers.

The types are those of `json_types.py`. Spark is not needed.

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
from typing import Any, Final, NoReturn

import pyarrow as pa

from jsbackup.pipeline.payloads.json_types import as_ddl, type_text, unsupported
from jsbackup.pipeline.payloads.parsing import CORRUPT, PAYLOAD, DoesNotFit, PayloadParser, parts_of
from jsbackup.pipeline.payloads.payload_tally import FieldPath, PayloadTally

__all__ = ["JsonParser"]

# Payloads become objects of Python, which take several times their bytes: so much of them at a time.
_MOST_BYTES: Final = 1 << 20

_BITS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


_Convert = Callable[[Any], Any]
"""Returns a value of JSON as pyarrow takes it, never called with None. Raises DoesNotFit."""


@dataclass(frozen=True, slots=True)
class JsonParser(PayloadParser):
    """Parses payloads as JSON objects with the fields of a schema, of `json_types.py`.

    Raises UsageError if it has a type that JSON does not have.
    """

    def __post_init__(self) -> None:
        _converter(self.schema, set())

    @property
    def corrupt(self) -> pa.DataType:
        return pa.string()

    @property
    def text(self) -> str:
        return as_ddl(self.schema)

    def unseen(self, tally: PayloadTally) -> tuple[str, ...]:
        return tally.unseen(self.schema)

    def parse(self, payloads: pa.Array, tally: PayloadTally | None = None) -> pa.StructArray:
        """Return a struct of two fields for each payload: the parsed one, and the text of those that do not parse.

        Both are null for an empty payload, as a deleted key of a bucket has it, and for JSON's null. In a text that is
        not UTF-8, U+FFFD stands for what is not.
        """
        tally = PayloadTally() if tally is None else tally
        convert = _converter(self.schema, tally.seen)
        decoder = json.JSONDecoder(parse_constant=_no_constant, parse_float=_float_of(self.schema))
        parts = [self._part(part.to_pylist(), decoder, convert, tally) for part in parts_of(payloads, _MOST_BYTES)]
        tally.known = bool(tally.seen)
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _part(
        self, payloads: list[bytes | None], decoder: json.JSONDecoder, convert: _Convert, tally: PayloadTally
    ) -> pa.StructArray:
        rows: list[Any] = []
        corrupt: list[str | None] = []
        for payload in payloads:
            row = text = None
            if payload:
                try:
                    found = decoder.decode(payload.decode())
                    row = None if found is None else convert(found)
                # ValueError: not UTF-8, not JSON, or an integer of thousands of digits.
                # ArithmeticError: a number that the type does not hold, or an exponent that even Decimal does not.
                except (DoesNotFit, ValueError, ArithmeticError, RecursionError):
                    text = payload.decode(errors="replace")
            rows.append(row)
            corrupt.append(text)
        arrays = [pa.array(rows, self.schema), pa.array(corrupt, pa.string())]
        misfits = len(corrupt) - arrays[1].null_count
        tally.misfits += misfits
        tally.payloads += misfits + len(rows) - arrays[0].null_count
        return pa.StructArray.from_arrays(arrays, [PAYLOAD, CORRUPT])


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _float_of(kind: pa.DataType) -> Callable[[str], Any]:
    """Return how numbers with a point or an exponent are read: exactly, where the type has decimals."""
    return Decimal if "decimal" in str(kind) else float


def _converter(kind: pa.DataType, seen: set[FieldPath], path: FieldPath = ()) -> _Convert:
    """Return the conversion for a type, of the field at `path`. It adds the fields that values have to `seen`.

    Raises UsageError if JSON does not have the type.
    """
    if kind == pa.string():
        return _string
    if kind == pa.bool_():
        return _boolean
    if kind == pa.float64():
        return _double
    if kind in _BITS:
        return _integer(_BITS[kind])
    if isinstance(kind, pa.Decimal128Type):
        return _decimal(kind.precision, kind.scale)
    if isinstance(kind, pa.MapType) and kind.key_type == pa.string():
        return _map(_converter(kind.item_type, seen, path))
    if isinstance(kind, pa.ListType):
        return _list(_converter(kind.value_type, seen, path))
    if isinstance(kind, pa.StructType):
        inner = {field.name: (*path, field.name) for field in kind}
        converts = [(field.name, _converter(field.type, seen, inner[field.name])) for field in kind]
        return _struct(converts, {name: one for name, one in inner.items() if one not in seen}, seen)
    raise unsupported(type_text(kind))


def _string(value: Any) -> str:
    if type(value) is not str:
        raise DoesNotFit
    if not value.isascii():
        value.encode()  # half a surrogate pair is a UnicodeEncodeError, which is a ValueError
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise DoesNotFit
    return value


def _integer(bits: int) -> _Convert:
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def convert(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise DoesNotFit
        return value

    return convert


def _double(value: Any) -> float:
    if type(value) not in (float, int, Decimal):
        raise DoesNotFit
    number = float(value)  # of a huge integer an OverflowError, which is an ArithmeticError
    if not isfinite(number) or (type(value) is int and number != value):
        raise DoesNotFit
    return number


def _decimal(precision: int, scale: int) -> _Convert:
    exact = Context(prec=precision, traps=[Inexact, InvalidOperation])
    last = Decimal(1).scaleb(-scale)

    def convert(value: Any) -> Decimal:
        if type(value) not in (Decimal, int):
            raise DoesNotFit
        return Decimal(value).quantize(last, context=exact)  # Inexact and InvalidOperation are ArithmeticErrors

    return convert


def _list(convert: _Convert) -> _Convert:
    def convert_all(value: Any) -> list[Any]:
        if type(value) is not list:
            raise DoesNotFit
        return [None if one is None else convert(one) for one in value]

    return convert_all


def _map(convert: _Convert) -> _Convert:
    def convert_all(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            raise DoesNotFit
        return [(_string(name), None if one is None else convert(one)) for name, one in value.items()]

    return convert_all


def _struct(converts: Sequence[tuple[str, _Convert]], unseen: dict[str, FieldPath], seen: set[FieldPath]) -> _Convert:
    """`unseen` are the fields that are not in `seen` yet, by name."""

    def convert_all(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise DoesNotFit
        if unseen and not unseen.keys().isdisjoint(value):
            for name in unseen.keys() & value.keys():
                seen.add(unseen.pop(name))
        return {name: None if (one := value.get(name)) is None else convert(one) for name, convert in converts}

    return convert_all
