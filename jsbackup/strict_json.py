"""Read and write untrusted or possibly damaged JSON, for all modules.

What RFC 8259 allows is read, in UTF-8, with numbers that can be written again: no `NaN`, no `Infinity`, no `1e999`.
Size and depth are limited. Half a surrogate pair in an escape is refused, because it cannot be encoded again.
If an object has a name twice, the last value counts, as for Go and so for every server; with `unique_names`, for what
people write, it is an error.

Every problem becomes one error that says where, never a traceback or a `RecursionError`. The error does not quote the
text, which may contain passwords, only a name that is there twice; and it has no cause, because a `JSONDecodeError`
contains the whole text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from math import isfinite
from typing import Any, NoReturn, Self

from jsbackup.errors import FormatError, UsageError
from jsbackup.model import JsonObject
from jsbackup.names import is_name
from jsbackup.readable import one_line
from jsbackup.times import parse_time

__all__ = ["INT64", "MAX_DEPTH", "MAX_JSON_BYTES", "UINT64", "Fields", "read_json", "read_object", "write_json"]

# Eight times the recommended max_payload of a server (8 MiB): enough for the details of many deletions.
MAX_JSON_BYTES = 64 << 20
# The deepest answer of a server, a list of streams with sources and their transforms, nests eight levels.
MAX_DEPTH = 32


class _NotANumber(ValueError):
    pass


def _refuse_constant(name: str) -> NoReturn:
    raise _NotANumber(f"{name} is not a number of JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):
        raise _NotANumber("a number is too large")
    return value


class _NameTwice(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> JsonObject:
    value = dict(pairs)
    if len(value) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise _NameTwice(json.dumps(twice[:40]))
    return value


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_UNIQUE_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)


def read_json(
    data: bytes | bytearray | memoryview | str,
    what: str,
    *,
    max_bytes: int = MAX_JSON_BYTES,
    max_depth: int = MAX_DEPTH,
    kind: type[FormatError | UsageError] = FormatError,
    unique_names: bool = False,
) -> Any:
    """Return the value in `data`. Raises `kind` if it is not valid; `what` begins its message."""
    if len(data) > max_bytes:
        raise kind(f"{what} has more than {max_bytes} bytes")
    try:
        text = data if isinstance(data, str) else str(data, "utf-8")
        value = (_UNIQUE_DECODER if unique_names else _DECODER).decode(text)
        if isinstance(data, str) or _SURROGATE.search(text):  # only escapes can contain half a surrogate pair
            _encode(value)
        if text.count("{") + text.count("[") <= max_depth or not _is_deeper(value, max_depth):
            return value
        problem = _too_deep(max_depth)
    except UnicodeDecodeError:
        problem = "it is not UTF-8"
    except UnicodeEncodeError:
        problem = "it has half a surrogate pair"
    except json.JSONDecodeError as error:
        expected = f"{error.msg[:1].lower()}{error.msg[1:]}".removesuffix(" at")
        problem = f"{expected} in line {error.lineno}, column {error.colno}"
    except _NameTwice as error:
        raise kind(f"{what} has the name {error} twice in one object") from None
    except _NotANumber as error:
        problem = str(error)
    except ValueError:  # more digits than Python converts to a number
        problem = "a number has too many digits"
    except RecursionError:
        problem = _too_deep(max_depth)
    raise kind(f"{what} is not JSON: {problem}")


def read_object(
    data: bytes | bytearray | memoryview | str,
    what: str,
    *,
    max_bytes: int = MAX_JSON_BYTES,
    max_depth: int = MAX_DEPTH,
    kind: type[FormatError | UsageError] = FormatError,
    unique_names: bool = False,
) -> JsonObject:
    """As `read_json`, for an object."""
    value = read_json(data, what, max_bytes=max_bytes, max_depth=max_depth, kind=kind, unique_names=unique_names)
    if not isinstance(value, dict):
        raise kind(f"{what} is not a JSON object")
    return value


def write_json(
    value: JsonObject,
    what: str,
    *,
    max_depth: int | None = None,
    sort_keys: bool = False,
    indent: int | None = None,
    ascii_only: bool = False,
) -> bytes:
    """Encode an object in UTF-8, compact unless `indent` is given. Raises `FormatError` if that is not possible, or it
    is too deep.
    """
    try:
        encoded = _encode(value, sort_keys=sort_keys, indent=indent, ascii_only=ascii_only)
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"{what} cannot be written as JSON: {str(error)[:200]}") from error
    if max_depth is not None and _is_deeper(value, max_depth):
        raise FormatError(f"{what} cannot be written as JSON: {_too_deep(max_depth)}")
    return encoded


def _encode(value: Any, *, sort_keys: bool = False, indent: int | None = None, ascii_only: bool = False) -> bytes:
    separators = (",", ":") if indent is None else None
    return json.dumps(
        value, ensure_ascii=ascii_only, allow_nan=False, sort_keys=sort_keys, indent=indent, separators=separators
    ).encode()


def _too_deep(max_depth: int) -> str:
    return f"it nests deeper than {max_depth} levels"


def _is_deeper(value: Any, max_depth: int) -> bool:
    level = [value]
    for _ in range(max_depth):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


# --- fields ---

UINT64 = (1 << 64) - 1
INT64 = (1 << 63) - 1


class Fields:
    """Typed access to one JSON object: everything unexpected is a FormatError that names the field.

    `where` names the object in errors. `null` counts as absent, because Go writes empty lists and missing parts as
    `null`.
    """

    __slots__ = ("value", "where")

    MOST = UINT64
    """The largest number, where no other one is named."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise FormatError(one_line(f"{where} is not a JSON object"))
        self.value: JsonObject = value
        self.where = where

    def get(self, key: str) -> Any:
        return self.value.get(key)

    def wrong(self, key: str, expected: str) -> NoReturn:
        problem = f"is not {expected}" if key in self.value else "is missing"
        raise FormatError(one_line(f"{self.where}: {key} {problem}"))

    def text(self, key: str, default: str | None = None) -> str:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            self.wrong(key, "text")
        return value

    def name(self, key: str) -> str:
        """Return the name of a stream or consumer, which must be valid, because it is used in subjects and file
        names.
        """
        value = self.text(key)
        if not is_name(value):
            self.wrong(key, "a name")
        return value

    def number(self, key: str, low: int = 0, high: int | None = None, *, default: int | None = None) -> int:
        value = self.get(key)
        if value is None and default is not None:
            return default
        most = self.MOST if high is None else high
        if type(value) is not int or not low <= value <= most:
            self.wrong(key, f"an integer from {low} to {most}")
        return value

    def signed(self, key: str, default: int | None = None) -> int:
        return self.number(key, -INT64 - 1, INT64, default=default)

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            self.wrong(key, "true or false")
        return bool(value)

    def time_ns(self, key: str) -> int:
        """Nanoseconds since the epoch; 0 if absent or Go's zero time."""
        value = self.text(key, "")
        return parse_time(value, f"{self.where}: {key}") if value else 0

    def object(self, key: str) -> JsonObject:
        value = self.get(key)
        if not isinstance(value, dict):
            self.wrong(key, "an object")
        return value

    def fields(self, key: str) -> Self:
        return type(self)(self.object(key), f"{self.where}: {key}")

    def optional(self, key: str) -> Self | None:
        return None if self.get(key) is None else self.fields(key)

    def array(self, key: str) -> list[Any]:
        value = self.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.wrong(key, "a list")
        return value

    def each(self, key: str) -> list[Self]:
        """Return the objects of a list."""
        return [type(self)(value, f"{self.where}: {key}[{number}]") for number, value in enumerate(self.array(key))]

    def names(self, key: str) -> tuple[str, ...]:
        values = self.array(key)
        if not all(isinstance(value, str) and is_name(value) for value in values):
            self.wrong(key, "a list of names")
        return tuple(values)

    def numbers(self, key: str) -> tuple[int, ...]:
        """Return unsigned 64-bit integers in rising order (sorted here if necessary)."""
        values = self.array(key)
        if not all(type(value) is int and 0 <= value <= UINT64 for value in values):
            self.wrong(key, "a list of sequences")
        return tuple(sorted(values))
