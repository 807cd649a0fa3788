"""Read untrusted JSON: limited in size, and everything unexpected is a FormatError that names the field.

`load_object` limits size and depth; `Fields` reads typed values out of an object. `null` counts as absent, because Go
writes empty lists and missing parts as `null`.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, NoReturn

from jsbackup.errors import FormatError
from jsbackup.model import JsonObject
from jsbackup.names import is_name
from jsbackup.protocol.headers import one_line
from jsbackup.times import parse_time

__all__ = ["Fields", "dump_object", "load_object"]

# Eight times the recommended max_payload of a server (8 MiB): enough for the details of many deletions.
MAX_JSON_BYTES = 64 * 1024 * 1024
# The deepest answer, a list of streams with sources and their transforms, nests eight levels.
MAX_DEPTH = 32
UINT64 = (1 << 64) - 1
INT64 = (1 << 63) - 1


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):  # 1e999 would become infinity, which cannot be encoded again
        raise ValueError(f"{digits} is not a finite number")
    return value


def load_object(payload: bytes, what: str) -> JsonObject:
    """Parse the JSON object in `payload`. Raises FormatError if it is invalid, too large, too deep, or not Unicode
    throughout.
    """
    if len(payload) > MAX_JSON_BYTES:
        raise FormatError(f"{what} has {len(payload)} bytes, more than {MAX_JSON_BYTES}")
    try:
        text = str(payload, "utf-8")
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        if "\\u" in text:  # an escape may contain half a surrogate pair, which cannot be encoded again
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{what} is not JSON") from error
    if not isinstance(value, dict):
        raise FormatError(f"{what} is not a JSON object")
    if text.count("{") + text.count("[") > MAX_DEPTH:
        _check_depth(value, what)
    return value


def _check_depth(value: Any, what: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise FormatError(f"{what} nests deeper than {MAX_DEPTH} levels")


def dump_object(value: JsonObject, what: str) -> bytes:
    """Encode `value` as compact JSON in UTF-8. Raises FormatError if that is not possible."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"{what} cannot be written as JSON: {error}") from error


class Fields:
    """Typed access to one JSON object; `where` names it in errors."""

    __slots__ = ("value", "where")

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise FormatError(one_line(f"{where} is not a JSON object"))
        self.value: JsonObject = value
        self.where = where

    def _wrong(self, key: str, expected: str) -> NoReturn:
        problem = "is missing" if self.value.get(key) is None else f"is not {expected}"
        raise FormatError(one_line(f"{self.where}: {key} {problem}"))

    def text(self, key: str, default: str | None = None) -> str:
        value = self.value.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            self._wrong(key, "text")
        return value

    def name(self, key: str) -> str:
        """Return the name of a stream or consumer, which must be valid, because it is used in subjects and file
        names.
        """
        value = self.text(key)
        if not is_name(value):
            self._wrong(key, "a name")
        return value

    def number(self, key: str, default: int | None = None, *, low: int = 0, high: int = UINT64) -> int:
        value = self.value.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not low <= value <= high:
            self._wrong(key, f"an integer from {low} to {high}")
        return value

    def signed(self, key: str, default: int | None = None) -> int:
        return self.number(key, default, low=-INT64 - 1, high=INT64)

    def flag(self, key: str) -> bool:
        value = self.value.get(key, False)
        if value is not None and not isinstance(value, bool):
            self._wrong(key, "true or false")
        return bool(value)

    def time_ns(self, key: str) -> int:
        """Nanoseconds since the epoch; 0 if absent or Go's zero time."""
        value = self.text(key, "")
        try:
            return parse_time(value) if value else 0
        except FormatError as error:
            raise FormatError(f"{self.where}: {key}: {error.message}") from error

    def object(self, key: str) -> JsonObject:
        value = self.value.get(key)
        if not isinstance(value, dict):
            self._wrong(key, "an object")
        return value

    def fields(self, key: str) -> Fields:
        return Fields(self.object(key), f"{self.where}: {key}")

    def optional(self, key: str) -> Fields | None:
        return None if self.value.get(key) is None else self.fields(key)

    def array(self, key: str) -> list[Any]:
        value = self.value.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self._wrong(key, "a list")
        return value

    def names(self, key: str) -> tuple[str, ...]:
        values = self.array(key)
        if not all(isinstance(value, str) and is_name(value) for value in values):
            self._wrong(key, "a list of names")
        return tuple(values)

    def numbers(self, key: str) -> tuple[int, ...]:
        """Return unsigned 64-bit integers in rising order (sorted here if necessary)."""
        values = self.array(key)
        if not all(type(value) is int and 0 <= value <= UINT64 for value in values):
            self._wrong(key, "a list of sequences")
        return tuple(sorted(values))
