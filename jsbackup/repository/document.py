"""The JSON documents of a repository: canonical when written, distrusted when read.

Canonical JSON: UTF-8, keys sorted by code point, no blanks, characters not escaped where JSON allows, one newline at
the end. Equal documents are equal bytes, so they can be hashed and signed.

Every document has a checksum: `sha256` is the SHA-256, in hex, of the canonical JSON of the document without that
field. Otherwise a single flipped bit could turn a configuration into another valid one.

Reading limits the size, and everything unexpected is a `FormatError` that names the document and the field. Fields that
this version does not know are passed to the caller, who keeps them: a document survives being rewritten by an older
tool.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from jsbackup.errors import FormatError, UnsupportedError
from jsbackup.model import JsonObject
from jsbackup.stores.base import Data
from jsbackup.strict_json import read_object, write_json
from jsbackup.times import parse_time

__all__ = [
    "INT64_MAX",
    "MAX_DOCUMENT_BYTES",
    "UINT64_MAX",
    "DocumentFields",
    "decode_document",
    "encode_document",
    "seal_in",
]

# Only a manifest without pages grows with the messages, by 525 to 541 bytes a segment: this is one of some 11 TiB.
MAX_DOCUMENT_BYTES = 192 << 20
INT64_MAX = (1 << 63) - 1
UINT64_MAX = (1 << 64) - 1

# Deeper than any configuration of a server, which documents contain.
_MAX_DEPTH = 128
_SEAL = "sha256"

_HEX256 = re.compile(r"[0-9a-f]{64}")

_Choice = TypeVar("_Choice", bound=StrEnum)


def encode_document(value: JsonObject, what: str) -> bytes:
    """Encode canonical JSON with its checksum.

    Raises `FormatError` if it cannot be written: half a surrogate pair, infinity, too deep.
    """
    return _canonical({**value, _SEAL: _seal_of(value, what)}, what, max_depth=_MAX_DEPTH)


def _canonical(value: JsonObject, what: str, *, max_depth: int | None = None) -> bytes:
    return write_json(value, what, max_depth=max_depth, sort_keys=True) + b"\n"


def _seal_of(value: JsonObject, what: str) -> str:
    return hashlib.sha256(_canonical({k: v for k, v in value.items() if k != _SEAL}, what)).hexdigest()


def decode_document(data: Data, what: str) -> DocumentFields:
    """Return the object in `data`, without its checksum. Raises `FormatError` if it is not JSON, or was changed."""
    value = read_object(data, what, max_bytes=MAX_DOCUMENT_BYTES, max_depth=_MAX_DEPTH)
    fields = DocumentFields(value, what)
    if fields.hex256(_SEAL) != _seal_of(value, what):
        raise FormatError(f"{what} has changed since it was written (SHA-256 differs)")
    del value[_SEAL]
    return fields


def seal_in(data: Data, what: str) -> str:
    """Return the checksum in a document, which is not compared. Raises as `decode_document`."""
    return DocumentFields(read_object(data, what, max_bytes=MAX_DOCUMENT_BYTES, max_depth=_MAX_DEPTH), what).hex256(
        _SEAL
    )


class DocumentFields:
    """Typed access to one JSON object. `where` names it in errors; `rest` returns the fields that nothing has read."""

    __slots__ = ("_asked", "value", "where")

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise FormatError(f"{where} is not a JSON object")
        self.value: JsonObject = value
        self.where = where
        self._asked: set[str] = set()

    def wrong(self, key: str, expected: str) -> NoReturn:
        problem = f"is not {expected}" if key in self.value else "is missing"
        raise FormatError(f"{self.where}: {key} {problem}")

    def get(self, key: str) -> Any:
        self._asked.add(key)
        return self.value.get(key)

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            self.wrong(key, "text")
        return value

    def optional_text(self, key: str) -> str | None:
        return None if self.get(key) is None else self.text(key)

    def texts(self, key: str) -> tuple[str, ...]:
        values = self.array(key)
        if not all(isinstance(value, str) for value in values):
            self.wrong(key, "a list of texts")
        return tuple(values)

    def hex256(self, key: str) -> str:
        value = self.text(key)
        if not _HEX256.fullmatch(value):
            self.wrong(key, "64 lower-case hex digits")
        return value

    def number(self, key: str, low: int = 0, high: int = INT64_MAX) -> int:
        value = self.get(key)
        if type(value) is not int or not low <= value <= high:
            self.wrong(key, f"an integer from {low} to {high}")
        return value

    def boolean(self, key: str) -> bool:
        value = self.get(key)
        if not isinstance(value, bool):
            self.wrong(key, "true or false")
        return value

    def time_ns(self, key: str) -> int:
        return parse_time(self.text(key), f"{self.where}: {key}")

    def choice(self, key: str, kind: type[_Choice]) -> _Choice:
        value = self.text(key)
        if value not in set(kind):
            self.wrong(key, f"one of {', '.join(kind)}")
        return kind(value)

    def object(self, key: str) -> JsonObject:
        return self.fields(key).value

    def fields(self, key: str) -> DocumentFields:
        value = self.get(key)
        if not isinstance(value, dict):
            self.wrong(key, "an object")
        return DocumentFields(value, f"{self.where}: {key}")

    def optional_fields(self, key: str) -> DocumentFields | None:
        return None if self.get(key) is None else self.fields(key)

    def array(self, key: str) -> list[Any]:
        value = self.get(key)
        if not isinstance(value, list):
            self.wrong(key, "a list")
        return value

    def each(self, key: str) -> list[DocumentFields]:
        return [DocumentFields(value, f"{self.where}: {key}[{number}]") for number, value in enumerate(self.array(key))]

    def rows(self, key: str, width: int, low: int = 0, high: int = UINT64_MAX) -> list[list[int]]:
        """Return a list of lists of `width` integers."""
        rows = self.array(key)
        for row in rows:
            if not isinstance(row, list) or len(row) != width:
                self.wrong(key, f"a list of lists of {width} integers")
            if not all(type(value) is int and low <= value <= high for value in row):
                self.wrong(key, f"a list of lists of integers from {low} to {high}")
        return rows

    def version(self, known: int, features: frozenset[str]) -> None:
        """Check `format` and `required_features`. Raises `UnsupportedError` for those of a later tool."""
        if (version := self.number("format", 1)) > known:
            raise UnsupportedError(f"{self.where} has format {version}, known up to {known}", hint=_NEWER)
        if unknown := sorted(set(self.texts("required_features")) - features):
            raise UnsupportedError(
                f"{self.where} needs features not known here: {', '.join(unknown)[:200]}", hint=_NEWER
            )

    def rest(self) -> JsonObject:
        """Return the fields that nothing has read."""
        return {key: value for key, value in self.value.items() if key not in self._asked}


_NEWER = "Use a newer jsbackup."
