"""Read typed values from a server's JSON: everything unexpected is a FormatError that names the field.

`null` counts as absent, because Go writes empty lists and missing parts as `null`.
"""

from __future__ import annotations

from typing import Any, NoReturn

from jsbackup.errors import FormatError
from jsbackup.model import JsonObject
from jsbackup.names import is_name
from jsbackup.protocol.headers import one_line
from jsbackup.times import parse_time

__all__ = ["Fields"]

UINT64 = (1 << 64) - 1
INT64 = (1 << 63) - 1


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
