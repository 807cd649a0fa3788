"""The one way the JSON documents of a repository are stored and read: manifests, catalogs, holds, what was verified.

Callers name a document by the key of its plain form, such as `backups/<id>.json`, and hand over its bytes; what it is
wrapped in, and how the key of the stored object ends because of that, is known here only. In a repository that neither
signs nor encrypts, the stored bytes are the document's own.

Documents are create-only, like everything else. Leases are not among them: they carry no secrets, and whoever comes
across one has to be able to read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from jsbackup.errors import FormatError, ObjectExists
from jsbackup.repository.objects import StoredObject, sha256_of
from jsbackup.stores.base import Data, ObjectInfo, Store

__all__ = ["BARE", "BareEnvelope", "Document", "Documents", "Envelope"]

# What an envelope adds, at most: a signature, and an encryption's header and 16 bytes for every 64 KiB.
_ENVELOPE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Document:
    """A document that was read. `key`, `size` and `sha256` are those of the stored object."""

    data: bytes
    key: str
    size: int
    sha256: str


class Envelope(Protocol):
    """What documents are wrapped in. `suffix` ends the keys of the stored objects."""

    @property
    def suffix(self) -> str: ...

    def ensure_writable(self) -> None:
        """Raises `KeyUnavailable` without the key that it takes to sign documents."""

    def wrap(self, key: str, data: Data) -> Data:
        """The bytes to store. Raises the same."""

    def unwrap(self, key: str, data: bytes) -> bytes:
        """The opposite.

        Raises:
            KeyUnavailable: no key that opens it was given.
            IntegrityError: it is damaged, or nobody who may has signed it.
        """


class BareEnvelope:
    """None at all."""

    suffix = ""

    def ensure_writable(self) -> None:
        pass

    def wrap(self, key: str, data: Data) -> Data:
        return data

    def unwrap(self, key: str, data: bytes) -> bytes:
        return data


BARE = BareEnvelope()


class Documents:
    """A store seen through an envelope. May be used from several threads."""

    def __init__(self, store: Store, envelope: Envelope = BARE) -> None:
        self._store = store
        self._envelope = envelope

    def stored_key(self, key: str) -> str:
        """The key of the object that holds the document `key`."""
        return key + self._envelope.suffix

    def ensure_writable(self) -> None:
        """Raise `KeyUnavailable` if documents are signed here, and the key that signs was not given.

        For those who have much to do before they put one.
        """
        self._envelope.ensure_writable()

    def put(self, key: str, data: Data) -> StoredObject:
        """Store a document.

        Raises:
            ObjectExists: there is one under the key; it was left alone.
            KeyUnavailable: documents are signed here, and the key that signs was not given.
            StoreError: it cannot be stored.
        """
        wrapped = self._envelope.wrap(key, data)
        stored_key = self.stored_key(key)
        self._store.put(stored_key, wrapped)
        return StoredObject(stored_key, memoryview(wrapped).nbytes, sha256_of(wrapped), added=True)

    def get(self, key: str, limit: int) -> bytes:
        """The bytes of a document of at most `limit` bytes. Errors as `fetch`."""
        return self.fetch(key, limit).data

    def fetch(self, key: str, limit: int) -> Document:
        """A document of at most `limit` bytes, with its size and SHA-256 as stored.

        Raises:
            ObjectNotFound: there is none.
            FormatError: it is larger.
            KeyUnavailable: it is encrypted, and no key that opens it was given.
            IntegrityError: it is damaged, or nobody who may has signed it.
            StoreError: it cannot be read.
        """
        stored_key = self.stored_key(key)
        most = limit + (limit >> 10) + _ENVELOPE_BYTES
        wrapped = self._store.get_range(stored_key, 0, most + 1)
        data = self._envelope.unwrap(key, wrapped) if len(wrapped) <= most else wrapped
        if len(data) > limit:
            raise FormatError(f"{stored_key} has more than {limit} bytes")
        return Document(data, stored_key, len(wrapped), sha256_of(wrapped))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Documents whose key starts with `prefix`, in order, named as `get` wants them; `size` is as stored.

        What is stored otherwise (plain among encrypted ones) is no document here, and passed over.
        """
        ending = f".json{self._envelope.suffix}"
        for info in self._store.list(prefix):
            if info.key.endswith(ending):
                yield self._named(info)

    def list_beside(self, prefix: str) -> tuple[Sequence[ObjectInfo], Sequence[ObjectInfo]]:
        """With one look: documents as `list` has them, and what is stored there without an envelope."""
        stored = tuple(self._store.list(prefix))
        ending = f".json{self._envelope.suffix}"
        documents = [self._named(info) for info in stored if info.key.endswith(ending)]
        return documents, [info for info in stored if not info.key.endswith(ending)]

    def put_beside(self, key: str) -> None:
        """Store an object that has no content, since its key says it all. Raises StoreError."""
        with suppress(ObjectExists):
            self._store.put(key, b"")

    def delete_beside(self, key: str) -> None:
        """Remove such an object. Removing what is absent succeeds."""
        self._store.delete(key)

    def delete(self, key: str) -> None:
        """Remove a document. Removing what is absent succeeds."""
        self._store.delete(self.stored_key(key))

    def _named(self, info: ObjectInfo) -> ObjectInfo:
        suffix = self._envelope.suffix
        return replace(info, key=info.key.removesuffix(suffix)) if suffix else info
