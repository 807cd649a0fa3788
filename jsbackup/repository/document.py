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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from jsbackup.errors import FormatError, ObjectExists, UnsupportedError
from jsbackup.model import JsonObject
from jsbackup.repository.objects import StoredObject, put_named, sha256_of
from jsbackup.stores.base import Data, ObjectInfo, Store
from jsbackup.strict_json import Fields, read_object, write_json
from jsbackup.times import parse_time

__all__ = [
    "BARE",
    "INT64_MAX",
    "MAX_DOCUMENT_BYTES",
    "UINT64_MAX",
    "BareEnvelope",
    "Document",
    "DocumentFields",
    "Documents",
    "Envelope",
    "decode_document",
    "encode_document",
    "seal_in",
]


# Only the manifest of an import grows with its streams, which are in no pages: by about 300 bytes for each of up to 64
# segments of a stream.
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
    """Return the checksum in a document, which is not compared. Raises FormatError."""
    return DocumentFields(read_object(data, what, max_bytes=MAX_DOCUMENT_BYTES, max_depth=_MAX_DEPTH), what).hex256(
        _SEAL
    )


class DocumentFields(Fields):
    """The fields of a document, which has all but the optional ones. `rest` returns those that nothing has read."""

    __slots__ = ("_asked",)

    MOST = INT64_MAX

    def __init__(self, value: Any, where: str) -> None:
        super().__init__(value, where)
        self._asked: set[str] = set()

    def get(self, key: str) -> Any:
        self._asked.add(key)
        return self.value.get(key)

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

    def array(self, key: str) -> list[Any]:
        value = self.get(key)
        if not isinstance(value, list):
            self.wrong(key, "a list")
        return value

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


# --- documents ---
#
# How the JSON documents of a repository are stored and read: manifests, catalogs, holds, records of checks.
#
# Callers name a document by the key of its plain form, such as `backups/<id>.json`, and pass its bytes. Only this
# module knows its envelope, and the suffix that the envelope adds to the stored key. In a repository that neither signs
# nor encrypts, the stored bytes are the document's own.
#
# Documents are create-only, like everything else. Leases are not documents: they contain no secrets, and everyone has
# to be able to read them.

# The most that an envelope adds: a signature, the header of the encryption, and 16 bytes for every 64 KiB.
_ENVELOPE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Document:
    """A document that was read. `key`, `size` and `sha256` are those of the stored object."""

    data: bytes
    key: str
    size: int
    sha256: str


class Envelope(Protocol):
    """How documents are wrapped. `suffix` ends the keys of the stored objects."""

    @property
    def suffix(self) -> str: ...

    def ensure_writable(self) -> None:
        """Raise `KeyUnavailable` without the key that is needed to sign documents."""

    def wrap(self, key: str, data: Data) -> Data:
        """Return the bytes to store. Raises KeyUnavailable without a key for writing."""

    def unwrap(self, key: str, data: bytes) -> bytes:
        """Return the document in the stored bytes.

        Raises:
            KeyUnavailable: no key that opens it was given.
            IntegrityError: it is damaged, or not signed by a writer.
        """

    def claimed_signer(self, key: str, data: bytes) -> str | None:
        """Return who claims to have signed the document in the stored bytes; None if nobody does, or if our keys do
        not open it. Nothing is checked.
        """


class BareEnvelope:
    """No envelope: stores documents as they are."""

    suffix = ""

    def ensure_writable(self) -> None:
        pass

    def wrap(self, key: str, data: Data) -> Data:
        return data

    def unwrap(self, key: str, data: bytes) -> bytes:
        return data

    def claimed_signer(self, key: str, data: bytes) -> str | None:
        return None


BARE = BareEnvelope()


class Documents:
    """The documents of a store, in an envelope. May be used from several threads."""

    def __init__(self, store: Store, envelope: Envelope = BARE) -> None:
        self._store = store
        self._envelope = envelope

    @property
    def signs(self) -> bool:
        """Whether documents are signed, so that each proves itself."""
        return self._envelope is not BARE

    def stored_key(self, key: str) -> str:
        """Return the key of the object that holds the document `key`."""
        return key + self._envelope.suffix

    def ensure_writable(self) -> None:
        """Raise `KeyUnavailable` if documents are signed, and the key that signs was not given.

        For callers that have much to do before they store one.
        """
        self._envelope.ensure_writable()

    def put(self, key: str, data: Data) -> StoredObject:
        """Store a document.

        Raises:
            ObjectExists: the key is taken; nothing was changed.
            KeyUnavailable: documents are signed, and the key that signs was not given.
            StoreError: it cannot be stored.
        """
        wrapped = self._envelope.wrap(key, data)
        stored_key = self.stored_key(key)
        self._store.put(stored_key, wrapped)
        return StoredObject(stored_key, memoryview(wrapped).nbytes, sha256_of(wrapped), added=True)

    def put_named(self, key: str, data: Data) -> StoredObject:
        """Store a document of an envelope that does not sign, under a key that names its bytes. Raises as
        `objects.put_named`, and KeyUnavailable as `put`.
        """
        return put_named(self._store, self.stored_key(key), self._envelope.wrap(key, data))

    def get(self, key: str, limit: int) -> bytes:
        """Return the bytes of a document of at most `limit` bytes. Errors as `fetch`."""
        return self.fetch(key, limit).data

    def fetch(self, key: str, limit: int) -> Document:
        """Return a document of at most `limit` bytes, with its size and SHA-256 as stored.

        Raises:
            ObjectNotFound: there is none.
            FormatError: it is larger.
            KeyUnavailable: it is encrypted, and no key that opens it was given.
            IntegrityError: it is damaged, or not signed by a writer.
            StoreError: it cannot be read.
        """
        stored_key = self.stored_key(key)
        wrapped = self.stored_bytes(key, limit)
        data = self._envelope.unwrap(key, wrapped) if len(wrapped) <= _most(limit) else wrapped
        if len(data) > limit:
            raise FormatError(f"{stored_key} has more than {limit} bytes")
        return Document(data, stored_key, len(wrapped), sha256_of(wrapped))

    def head(self, key: str) -> ObjectInfo:
        """Return what the store knows of a document; `size` is as stored. Raises ObjectNotFound and StoreError."""
        return self._named(self._store.head(self.stored_key(key)))

    def stored_bytes(self, key: str, limit: int, store: Store | None = None) -> bytes:
        """Return a document of at most `limit` bytes as it is stored, here or in the `store` of another repository;
        more bytes than that if it is larger.

        Raises:
            ObjectNotFound: there is none.
            StoreError: it cannot be read.
        """
        return (store or self._store).get_range(self.stored_key(key), 0, _most(limit) + 1)

    def unwrapped(self, key: str, wrapped: bytes) -> bytes:
        """Return the document in stored bytes, from wherever they are. Raises KeyUnavailable and IntegrityError as
        `fetch`.
        """
        return self._envelope.unwrap(key, wrapped)

    def claimed_signer(self, key: str, wrapped: bytes) -> str | None:
        """Return who claims to have signed the document in stored bytes (`Envelope.claimed_signer`)."""
        return self._envelope.claimed_signer(key, wrapped)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the documents whose key starts with `prefix`, in order, with the keys that `get` takes; `size` is as
        stored.

        Objects stored in another form (plain ones among encrypted ones) are skipped.
        """
        ending = f".json{self._envelope.suffix}"
        for info in self._store.list(prefix):
            if info.key.endswith(ending):
                yield self._named(info)

    def list_beside(self, prefix: str) -> tuple[Sequence[ObjectInfo], Sequence[ObjectInfo]]:
        """List once: documents as `list` yields them, and the objects that are stored without an envelope."""
        stored = tuple(self._store.list(prefix))
        ending = f".json{self._envelope.suffix}"
        documents = [self._named(info) for info in stored if info.key.endswith(ending)]
        return documents, [info for info in stored if not info.key.endswith(ending)]

    def put_beside(self, key: str, data: bytes = b"") -> None:
        """Store an object without an envelope: it is empty, as its key says everything, or is only a hint. Raises
        StoreError.
        """
        with suppress(ObjectExists):
            self._store.put(key, data)

    def get_beside(self, key: str, limit: int) -> bytes:
        """Return the first `limit` bytes of such an object. Raises ObjectNotFound and StoreError."""
        return self._store.get_range(key, 0, limit)

    def delete_beside(self, key: str) -> None:
        """Remove such an object. Succeeds if it is absent."""
        self._store.delete(key)

    def delete(self, key: str) -> None:
        """Remove a document. Succeeds if it is absent."""
        self._store.delete(self.stored_key(key))

    def _named(self, info: ObjectInfo) -> ObjectInfo:
        suffix = self._envelope.suffix
        return replace(info, key=info.key.removesuffix(suffix)) if suffix else info


def _most(limit: int) -> int:
    """Return the largest size of a stored document of at most `limit` bytes."""
    return limit + (limit >> 10) + _ENVELOPE_BYTES
