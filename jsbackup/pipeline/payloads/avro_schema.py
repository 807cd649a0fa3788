"""Schemas of Avro as columns. The package fastavro reads a schema: names, namespaces and references.

    boolean, string, bytes, fixed        BOOLEAN, STRING, BINARY
    int, long, float, double             INT, BIGINT, FLOAT, DOUBLE
    enum                                 STRING, the symbol
    array, map, record                   ARRAY, MAP<STRING, …>, STRUCT
    a union of null and another type     that type; null is null
    decimal                              DECIMAL, up to 38 digits
    date                                 DATE
    timestamp-millis, timestamp-micros   TIMESTAMP
    uuid                                 STRING

Other logical types are what they are stored as: such a time of day is a number. Refused are what columns cannot
express: other unions, types that contain themselves, and types without any values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from importlib.util import find_spec
from typing import Any, Final

import pyarrow as pa

from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.pipeline.payloads.binary_payload import MICROSECONDS, MOST_TYPES
from jsbackup.strict_json import read_json

__all__ = ["AvroKind", "AvroSchema", "AvroType", "read_avro_schema"]

_MOST_DEPTH: Final = 50  # of types in one another
_MOST_JSON_DEPTH: Final = 4 * _MOST_DEPTH
_MOST_DIGITS: Final = 38
_MOST_SIZE: Final = 1 << 30
_UUID_BYTES: Final = 16
_MARK: Final = b"\xc3\x01"
_FIELD: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_ITSELF = "The column data has these payloads as they are."


class AvroKind(Enum):
    """How the bytes of a type are read."""

    BOOLEAN = auto()
    INT = auto()
    LONG = auto()
    FLOAT = auto()
    DOUBLE = auto()
    BYTES = auto()
    STRING = auto()
    FIXED = auto()
    ENUM = auto()
    ARRAY = auto()
    MAP = auto()
    RECORD = auto()
    UNION = auto()
    DATE = auto()
    MILLISECONDS = auto()
    MICROSECONDS = auto()
    DECIMAL = auto()
    UUID = auto()


@dataclass(frozen=True, slots=True)
class AvroType:
    """A type: what is read, and the column that it becomes. Pure data, which needs no fastavro.

    `parts` are the types of the fields of a record, of the items or values of an array or a map, or the other type of a
    union; `symbols` are those of an enum. `size` is that of a fixed, also if it is a decimal (0: one of bytes); of a
    union it is the number of null, -1 without null.
    """

    kind: AvroKind
    column: pa.DataType
    parts: tuple[AvroType, ...] = ()
    symbols: tuple[str, ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A record, and what a payload begins with in the single-object encoding: a mark and the schema's fingerprint."""

    record: AvroType
    header: bytes


_PLAIN: Final[dict[str, tuple[AvroKind, pa.DataType]]] = {
    "boolean": (AvroKind.BOOLEAN, pa.bool_()),
    "int": (AvroKind.INT, pa.int32()),
    "long": (AvroKind.LONG, pa.int64()),
    "float": (AvroKind.FLOAT, pa.float32()),
    "double": (AvroKind.DOUBLE, pa.float64()),
    "bytes": (AvroKind.BYTES, pa.binary()),
    "string": (AvroKind.STRING, pa.string()),
}
_LOGICAL: Final[dict[tuple[str, str], tuple[AvroKind, pa.DataType]]] = {
    ("int", "date"): (AvroKind.DATE, pa.date32()),
    ("long", "timestamp-millis"): (AvroKind.MILLISECONDS, MICROSECONDS),
    ("long", "timestamp-micros"): (AvroKind.MICROSECONDS, MICROSECONDS),
}


def read_avro_schema(data: bytes, shown: str) -> AvroSchema:
    """Return the schema that a file has; `shown` is its name, for errors.

    Raises:
        UnsupportedError: fastavro is not installed.
        UsageError: it is none, or columns cannot express it.
    """
    if find_spec("fastavro") is None:
        raise UnsupportedError(
            "payloads of Avro take the package fastavro, which is not installed",
            hint="Install it with `pip install 'jsbackup[avro]'`.",
        )
    node = read_json(data, shown, max_depth=_MOST_JSON_DEPTH, kind=UsageError, unique_names=True)
    if isinstance(node, dict):
        node.pop("__fastavro_parsed", None)  # it would be taken as it is
    from fastavro.schema import SchemaParseException, fingerprint, parse_schema, to_parsing_canonical_form

    named: dict[str, Any] = {}
    try:
        parsed = parse_schema(node, named)
        mark = bytes.fromhex(fingerprint(to_parsing_canonical_form(node), "CRC-64-AVRO"))
    except (SchemaParseException, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(
            f"{shown} is not a schema of Avro: {why}", hint="Give a file of JSON, as avro-tools and others write it."
        ) from error
    record = _Types(named, shown).of(parsed, "", 0)
    if record.kind is not AvroKind.RECORD:
        raise UsageError(
            f"the schema of {shown} is not a record, and payloads become columns by the fields of one", hint=_ITSELF
        )
    return AvroSchema(record, _MARK + mark)


class _Types:
    """Converts the types of one schema, which fastavro has read: references have full names, those of `named`."""

    def __init__(self, named: Mapping[str, Any], shown: str) -> None:
        self._named, self._shown = named, shown
        self._open: list[str] = []  # the records around the type that is converted
        self._count = 0

    def of(self, node: Any, where: str, depth: int) -> AvroType:
        """Return a type; `where` is the path of its field, `depth` how many types are around it."""
        self._count += 1
        if self._count > MOST_TYPES:
            raise UsageError(f"{self._shown} would become more than {MOST_TYPES:,} columns", hint=_ITSELF)
        if depth > _MOST_DEPTH:
            raise UsageError(f"{self._shown} has more than {_MOST_DEPTH} types in one another", hint=_ITSELF)
        if isinstance(node, list):
            return self._union(node, where, depth)
        if isinstance(node, str):
            node = {"type": node} if node == "null" or node in _PLAIN else self._named[node]
        name, logical = node["type"], node.get("logicalType")
        if logical == "decimal" and name in ("bytes", "fixed"):
            return self._decimal(node, where)
        if name in ("record", "error"):
            return self._record(node, where, depth)
        if name == "enum":
            return AvroType(AvroKind.ENUM, pa.string(), symbols=self._symbols(node, where))
        if name == "fixed":
            size = self._size(node, where)
            if logical == "uuid" and size == _UUID_BYTES:
                return AvroType(AvroKind.UUID, pa.string(), size=size)
            return AvroType(AvroKind.FIXED, pa.binary(), size=size)
        if name == "array":
            item = self.of(node["items"], f"{where}[]", depth + 1)
            return AvroType(AvroKind.ARRAY, pa.list_(item.column), (item,))
        if name == "map":
            value = self.of(node["values"], f"{where}[]", depth + 1)
            return AvroType(AvroKind.MAP, pa.map_(pa.string(), value.column), (value,))
        if name == "null":
            raise self._refused(where, "is always null", "Leave it out of the schema of what is written.")
        kind, column = _PLAIN[name]
        if isinstance(logical, str):
            kind, column = _LOGICAL.get((name, logical), (kind, column))
        return AvroType(kind, column)

    def _record(self, node: Mapping[str, Any], where: str, depth: int) -> AvroType:
        name = str(node["name"])
        if name in self._open:
            raise self._refused(where, f"is in a {name[:80]} that contains itself")
        if not node["fields"]:
            raise self._refused(where, f"is a record without fields, {name[:80]}")
        self._open.append(name)
        parts: dict[str, AvroType] = {}
        for field in node["fields"]:
            of = field["name"]
            if not isinstance(of, str) or not _FIELD.fullmatch(of):
                raise UsageError(f"{self._shown} has a field without a name of Avro: {str(of)[:80]!r}")
            if of in parts:
                raise UsageError(f"{self._shown} has the field {of[:80]!r} twice in {name[:80]}")
            parts[of] = self.of(field["type"], f"{where}.{of}" if where else of, depth + 1)
        self._open.pop()
        column = pa.struct([(of, part.column) for of, part in parts.items()])
        return AvroType(AvroKind.RECORD, column, tuple(parts.values()))

    def _union(self, branches: list[Any], where: str, depth: int) -> AvroType:
        nulls = [number for number, one in enumerate(branches) if _is_null(one)]
        others = [one for one in branches if not _is_null(one)]
        if len(others) != 1 or len(nulls) > 1 or isinstance(others[0], list):
            raise self._refused(where, "is a union of other types than null and one more")
        other = self.of(others[0], where, depth + 1)
        return AvroType(AvroKind.UNION, other.column, (other,), size=nulls[0] if nulls else -1)

    def _decimal(self, node: Mapping[str, Any], where: str) -> AvroType:
        precision, scale = node.get("precision"), node.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision < 1:
            raise self._refused(
                where, f"is a decimal with a precision of {precision!r:.40} and a scale of {scale!r:.40}"
            )
        if precision > _MOST_DIGITS:
            raise self._refused(where, f"is a decimal of {precision} digits, and columns have up to {_MOST_DIGITS}")
        size = self._size(node, where) if node["type"] == "fixed" else 0
        return AvroType(AvroKind.DECIMAL, pa.decimal128(precision, scale), size=size)

    def _size(self, node: Mapping[str, Any], where: str) -> int:
        size = node["size"]
        # One without bytes could be in an array any number of times.
        if type(size) is not int or not 0 < size <= _MOST_SIZE:
            raise self._refused(where, f"is a fixed of {size!r:.40} bytes")
        return size

    def _symbols(self, node: Mapping[str, Any], where: str) -> tuple[str, ...]:
        symbols = node["symbols"]
        if not isinstance(symbols, list) or not symbols or not all(isinstance(one, str) for one in symbols):
            raise self._refused(where, "is an enum whose symbols are not a list of names")
        return tuple(symbols)

    def _refused(self, where: str, what: str, hint: str = _ITSELF) -> UsageError:
        which = f"the field {where[:120]} of {self._shown}" if where else f"the schema of {self._shown}"
        return UsageError(f"{which} {what}, which columns cannot express", hint=hint)


def _is_null(node: Any) -> bool:
    return bool(node == "null" or (isinstance(node, dict) and node.get("type") == "null"))
