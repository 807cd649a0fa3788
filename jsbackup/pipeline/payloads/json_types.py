"""Types of payloads that are JSON, and their schemas as text. Pure, and without Spark.

Schemas are what Spark's syntax calls one, or a STRUCT, or Spark's JSON of one. Types are those of Arrow:

    BOOLEAN                          bool
    TINYINT, SMALLINT, INT, BIGINT   int8 to int64
    DOUBLE                           float64
    DECIMAL(p, s)                    decimal128
    STRING                           string
    ARRAY, MAP<STRING, …>, STRUCT    list, map, struct

Every field may be missing, so NOT NULL is not kept. Comments are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from jsbackup.errors import UsageError

__all__ = ["EXAMPLE", "alike_fields", "as_ddl", "is_infer", "parse_schema", "struct_of", "type_text", "unsupported"]

EXAMPLE: Final = "Give a schema of Spark, such as 'id BIGINT, total DOUBLE', or 'infer'."

_PLAIN: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
}
_ALIASES: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_NESTED: Final = ("array", "map", "struct")
# Types of Spark that JSON does not have.
_OTHERS: Final = frozenset(
    [
        "binary",
        "char",
        "character",
        "date",
        "float",
        "geography",
        "geometry",
        "interval",
        "null",
        "time",
        "timestamp",
        "timestamp_ltz",
        "timestamp_ntz",
        "varchar",
        "variant",
        "void",
    ]
)
# Also of types that payloads of Avro and Protobuf have.
_TEXTS: Final = {kind: name.upper() for name, kind in _PLAIN.items()} | {
    pa.float32(): "FLOAT",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    pa.timestamp("us", "UTC"): "TIMESTAMP",
}
_HINTS: Final = {
    "float": "DOUBLE holds every number as JSON has it.",
    "timestamp": "Take STRING, and convert it with to_timestamp.",
    "timestamp_ltz": "Take STRING, and convert it with to_timestamp.",
    "timestamp_ntz": "Take STRING, and convert it with to_timestamp_ntz.",
    "date": "Take STRING, and convert it with to_date.",
}
_TYPES: Final = (
    "Types are BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, DOUBLE, DECIMAL, STRING, ARRAY, MAP<STRING, …> and STRUCT."
)
_MOST_DIGITS: Final = 38
_MOST_DEPTH: Final = 50

_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<word>\w+)
    |(?P<mark>[<>(),:])""",
    re.DOTALL | re.VERBOSE,
)


def is_infer(text: str) -> bool:
    """Return whether a schema is to be inferred."""
    return text.strip().lower() == "infer"


def parse_schema(text: str) -> pa.StructType:
    """Return the schema that a text is. Raises UsageError if it is none, or has types that JSON does not have."""
    text = text.strip()
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _not_understood("it is not valid UTF-8") from None
    if text.startswith("{"):
        return _of_json(text)
    tokens = _Tokens(text)
    if tokens.done:
        raise _no_fields(text)
    word, mark = tokens.ahead(0), tokens.ahead(1)
    if tokens.kind == "word" and _is_type(word) and mark in ("", "<", "("):
        kind = _type(tokens, 0)
        tokens.end()
        if not isinstance(kind, pa.StructType):
            raise _no_fields(text)
        return kind
    kind = struct_of(_fields(tokens, 0))
    tokens.end()
    return kind


def struct_of(fields: Sequence[tuple[str, pa.DataType]]) -> pa.StructType:
    """Return a struct. Raises UsageError if it has no fields, one twice, or one without a name."""
    names = [name for name, _ in fields]
    if not names:
        raise UsageError("a struct of the schema has no fields", hint=EXAMPLE)
    for name in names:
        if not name:
            raise UsageError("a field of the schema has no name", hint=EXAMPLE)
        if names.count(name) > 1:
            raise UsageError(f"the schema has the field {name[:80]!r} twice", hint="Leave one of them out.")
    return pa.struct(list(fields))


def unsupported(text: str) -> UsageError:
    """Return the error that JSON does not have a type, which `text` is in Spark's syntax."""
    return UsageError(f"payloads of JSON have no {text.upper()[:80]}", hint=_HINTS.get(text.lower(), _TYPES))


def as_ddl(kind: pa.StructType) -> str:
    """Return the fields of a schema in Spark's syntax. `parse_schema` returns the same schema for it."""
    return ", ".join(f"{_quoted(field.name)} {type_text(field.type)}" for field in kind)


def type_text(kind: pa.DataType) -> str:
    """Return a type in Spark's syntax."""
    if isinstance(kind, pa.StructType):
        return f"STRUCT<{', '.join(f'{_quoted(field.name)}: {type_text(field.type)}' for field in kind)}>"
    if isinstance(kind, pa.ListType):
        return f"ARRAY<{type_text(kind.value_type)}>"
    if isinstance(kind, pa.MapType):
        return f"MAP<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    if isinstance(kind, pa.Decimal128Type):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return _TEXTS.get(kind, str(kind).upper())


def alike_fields(kind: pa.DataType) -> tuple[str, str] | None:
    """Return two names of fields of one struct, anywhere in the type, that differ only in case; None if all differ."""
    if isinstance(kind, pa.StructType):
        seen: dict[str, str] = {}
        for field in kind:
            if (other := seen.setdefault(field.name.casefold(), field.name)) != field.name:
                return other, field.name
        return next((found for field in kind if (found := alike_fields(field.type))), None)
    if isinstance(kind, pa.ListType):
        return alike_fields(kind.value_type)
    return alike_fields(kind.item_type) if isinstance(kind, pa.MapType) else None


def _quoted(name: str) -> str:
    return name if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else f"`{name.replace('`', '``')}`"


def _no_fields(text: str) -> UsageError:
    return UsageError(f"the schema of the payloads has no fields: {text[:80]!r}", hint=EXAMPLE)


def _not_understood(why: str) -> UsageError:
    return UsageError(f"the schema of the payloads cannot be understood: {why}", hint=EXAMPLE)


def _is_type(word: str) -> bool:
    name = _ALIASES.get(word.lower(), word.lower())
    return name in _PLAIN or name in _DECIMALS or name in _NESTED or name in _OTHERS


def _decimal(precision: int, scale: int) -> pa.DataType:
    if not 0 < precision <= _MOST_DIGITS or not 0 <= scale <= precision:
        raise _not_understood(
            f"DECIMAL({precision}, {scale}) has to have 1 to {_MOST_DIGITS} digits, and no more of them after the point"
        )
    return pa.decimal128(precision, scale)


def _map(key: pa.DataType, item: pa.DataType) -> pa.DataType:
    if key != pa.string():
        raise unsupported(f"MAP<{type_text(key)},{type_text(item)}>")
    return pa.map_(key, item)


def _deeper(depth: int) -> int:
    if depth >= _MOST_DEPTH:
        raise _not_understood(f"more than {_MOST_DEPTH} types are in one another")
    return depth + 1


# --- Spark's syntax ---


class _Tokens:
    """The tokens of a text, without blanks and comments: words, names in backquotes, texts and marks."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        self._next = 0
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise _not_understood(f"{text[at : at + 20]!r} is neither a name nor a type")
            if found.lastgroup != "blank":
                self._tokens.append((str(found.lastgroup), found[0]))
            at = found.end()

    @property
    def done(self) -> bool:
        return self._next >= len(self._tokens)

    @property
    def kind(self) -> str:
        """The kind of the next token, "" behind the last one."""
        return "" if self.done else self._tokens[self._next][0]

    def ahead(self, count: int) -> str:
        """Return the token after the next `count`, "" behind the last one."""
        at = self._next + count
        return self._tokens[at][1] if at < len(self._tokens) else ""

    def take(self) -> str:
        token = self.ahead(0)
        self._next += 1
        return token

    def take_if(self, *words: str) -> bool:
        """Take these tokens if they come next."""
        if any(self.ahead(number).lower() != word for number, word in enumerate(words)):
            return False
        self._next += len(words)
        return True

    def expect(self, mark: str, after: str) -> None:
        """Take a mark. Raises UsageError if it does not come next."""
        if not self.take_if(mark):
            raise _not_understood(f"a {mark} is missing after {after}{self._found()}")

    def end(self) -> None:
        """Raises UsageError if there are more tokens."""
        if self.ahead(0) == ">":
            raise _not_understood("a > is without its <")
        if not self.done:
            raise _not_understood(f"{self.ahead(0)[:40]!r} does not belong there")

    def _found(self) -> str:
        return "" if self.done else f", before {self.ahead(0)[:40]!r}"


def _fields(tokens: _Tokens, depth: int) -> list[tuple[str, pa.DataType]]:
    found = []
    while True:
        kind, token = tokens.kind, tokens.take()
        if kind not in ("word", "quoted"):
            where = f"{token[:40]!r} is no name" if token else "a field is missing at the end"
            raise _not_understood(f"{where}; names with other signs than letters, digits and _ need backquotes")
        name = token[1:-1].replace("``", "`") if kind == "quoted" else token
        tokens.take_if(":")
        found.append((name, _type(tokens, depth, of=name)))
        tokens.take_if("not", "null")
        if tokens.ahead(0).lower() == "comment":
            tokens.take()
            if tokens.kind != "text":
                raise _not_understood("the text of a comment is missing")
            tokens.take()
        if not tokens.take_if(","):
            return found


def _type(tokens: _Tokens, depth: int, *, of: str = "") -> pa.DataType:
    """Take a type; `of` is the field that has it."""
    depth = _deeper(depth)
    if tokens.kind != "word":
        found = f", before {tokens.ahead(0)[:40]!r}" if tokens.ahead(0) else ""
        what = f"the type of the field {of[:80]!r}" if of else "a type"
        raise _not_understood(f"{what} is missing{found}")
    word = tokens.take()
    name = _ALIASES.get(word.lower(), word.lower())
    if name == "string" and tokens.take_if("collate"):
        raise unsupported(f"STRING COLLATE {tokens.take()}")
    if name in _PLAIN:
        return _PLAIN[name]
    if name in _DECIMALS:
        precision, scale = 10, 0
        if tokens.take_if("("):
            precision = _number(tokens)
            scale = _number(tokens) if tokens.take_if(",") else 0
            tokens.expect(")", "the digits of a DECIMAL")
        return _decimal(precision, scale)
    if name in _OTHERS:
        raise unsupported(name)
    if name not in _NESTED:
        raise _not_understood(f"there is no type {word[:40]}")
    tokens.expect("<", name.upper())
    if name == "struct":
        fields = [] if tokens.ahead(0) == ">" else _fields(tokens, depth)
        kind = struct_of(fields)
    elif name == "array":
        kind = pa.list_(_type(tokens, depth))
    else:
        key = _type(tokens, depth)
        tokens.expect(",", "the names of a MAP")
        kind = _map(key, _type(tokens, depth))
    tokens.expect(">", f"{name.upper()}<…")
    return kind


def _number(tokens: _Tokens) -> int:
    word = tokens.take()
    if not re.fullmatch("[0-9]{1,9}", word):
        raise _not_understood("the digits of a DECIMAL are not a number")
    return int(word)


# --- Spark's JSON, as `schema.json()` has it ---


class _NotASchema(Exception):
    pass


def _of_json(text: str) -> pa.StructType:
    try:
        found = _json_type(json.loads(text), 0)
        if not isinstance(found, pa.StructType):
            raise _NotASchema
    except (_NotASchema, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _not_understood("it is not the JSON of a schema") from error
    return found


def _json_type(node: Any, depth: int) -> pa.DataType:
    depth = _deeper(depth)
    if isinstance(node, str):
        name = _ALIASES.get(node, node)
        if name in _PLAIN:
            return _PLAIN[name]
        if found := re.fullmatch(r"decimal(?:\( *([0-9]{1,9}) *, *([0-9]{1,9}) *\))?", name, re.ASCII):
            return _decimal(int(found[1] or 10), int(found[2] or 0))
        if re.split(r"[\s(]", name)[0] in _OTHERS:
            raise unsupported(name)
        raise _NotASchema
    kind = node["type"]
    if kind == "struct":
        return struct_of([_json_field(field, depth) for field in node["fields"]])
    if kind == "array":
        return pa.list_(_json_type(node["elementType"], depth))
    if kind == "map":
        return _map(_json_type(node["keyType"], depth), _json_type(node["valueType"], depth))
    raise _NotASchema


def _json_field(node: Any, depth: int) -> tuple[str, pa.DataType]:
    if (node.get("metadata") or {}).get("__COLLATIONS"):
        raise unsupported("STRING COLLATE")
    name = node["name"]
    if not isinstance(name, str):
        raise _NotASchema
    name.encode()  # half a surrogate pair is a ValueError
    return name, _json_type(node["type"], depth)
