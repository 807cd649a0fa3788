"""The objects of a repository: content-addressed, stored once, checked before use, sealed where the repository is.

An object that a manifest names is absent (`IntegrityError`), unreadable (`StoreError`), locked away (`KeyUnavailable`)
or not what it should be (`DigestMismatch`): different errors, because different things have to be done.

Sizes and SHA-256 are always those of the stored bytes, so that they can be checked without a key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from jsbackup.errors import DigestMismatch, FormatError, IntegrityError, KeyUnavailable, ObjectExists, ObjectNotFound
from jsbackup.repository import layout
from jsbackup.repository.crypto.sealing import PLAIN, Sealing
from jsbackup.repository.manifest import AnyRef
from jsbackup.repository.memory_budget import Room
from jsbackup.repository.object_id import id_of
from jsbackup.stores.base import Data, LateStore, Store

__all__ = ["MAX_OBJECT_BYTES", "Objects", "StoredObject", "sha256_of"]

# Nothing we store comes near: 32 MiB of raw messages, or one message of at most 96 MiB, that do not compress.
MAX_OBJECT_BYTES = 256 << 20


def sha256_of(data: Data) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as it lies in the store; `added` tells whether this put brought it there."""

    key: str
    size: int
    sha256: str
    added: bool


class Objects:
    """A store seen through a sealing, and the memory for what is in them. May be used from several threads.

    `replaces` tells of a store that lets a put replace an object which another one brings at the same moment. Two who
    store the same content store other bytes for it, if it is sealed, or written by two versions of a library; so there
    each object has a key of its own from the beginning.

    `damaged` gives the ids of objects that are known to be damaged (`damaged.py`); it is asked once, when it matters,
    and by `look_for_damage`. `found_damaged` are the ids of those that were found damaged here.
    """

    def __init__(
        self,
        store: Store,
        sealing: Sealing = PLAIN,
        *,
        replaces: bool = False,
        damaged: Callable[[], Collection[bytes]] = frozenset,
    ) -> None:
        self.store = store
        self.sealing = sealing
        self.room = Room()
        self.found_damaged: set[bytes] = set()
        self._replaces = replaces
        self._read_damaged = damaged
        self._damaged: Collection[bytes] | None = None

    def get_ready(self) -> None:
        """Before much waits to be stored: a location that is not ready yet is made so. Raises as a put."""
        if isinstance(self.store, LateStore):
            self.store.get_ready()

    def names_for(self, key: str, sha256: str) -> Sequence[str]:
        """The keys under which content named `key` may be put, each if what is under the one before is of no use.

        `sha256` is of the object as it is to be stored.
        """
        return [*([] if self._replaces else [key]), *layout.replacement_keys(key, sha256)]

    def is_damaged(self, ref: AnyRef) -> bool:
        """Whether the object was found damaged. Then it is neither kept nor named again."""
        if self._damaged is None:
            self._damaged = self._read_damaged()
        return bool(self._damaged) and id_of(ref) in self._damaged

    def look_for_damage(self) -> None:
        """Ask again which objects were found damaged: for somebody who stores for days."""
        self._damaged = self._read_damaged()

    def put_once(self, key: str, data: Data) -> StoredObject:
        """Store `data` under a key that names it. An object that is there is used if it proves to hold the data; if
        not, it is left alone and the data stored beside it.

        Raises:
            IntegrityError: all objects that are there hold something else.
            StoreError: it cannot be stored.
        """
        sealed = self.sealing.seal(data)
        sha256 = sha256_of(sealed)
        size = memoryview(sealed).nbytes
        for name in self.names_for(key, sha256):
            try:
                self.store.put(name, sealed)
            except ObjectExists:
                found = self.store.get_range(name, 0, MAX_OBJECT_BYTES) if self.can_open(name) else None
                if found is not None and self._holds(name, found, data):
                    return StoredObject(name, len(found), sha256_of(found), added=False)
            else:
                return StoredObject(name, size, sha256, added=True)
        raise all_damaged(key)

    def can_open(self, key: str) -> bool:
        """Whether the object under `key` is encrypted for a key at hand, or not at all: asked before all of it is read.

        Raises StoreError.
        """
        head_bytes = self.sealing.head_bytes
        return not head_bytes or self.sealing.opens(self.store.get_range(key, 0, head_bytes))

    def _holds(self, key: str, found: bytes, data: Data) -> bool:
        try:
            return self.sealing.unseal(key, found) == data
        except (IntegrityError, KeyUnavailable):
            return False

    def fetch_stored(self, key: str, size: int, sha256: str) -> bytes:
        """The stored bytes of the object a manifest names, checked against size and SHA-256, not unsealed.

        Raises:
            IntegrityError: it is missing.
            DigestMismatch: it is not the object that was stored.
            StoreError: it cannot be read.
        """
        if size > MAX_OBJECT_BYTES:
            raise FormatError(f"object {key} is said to have {size} bytes, more than any object has")
        try:
            # One byte more than there should be: a longer object shows itself, and a huge one is not fetched.
            data = self.store.get_range(key, 0, size + 1)
        except ObjectNotFound as error:
            raise IntegrityError(f"object {key} is missing") from error
        if len(data) != size:
            found = f"only {len(data)}" if len(data) < size else "more"
            raise DigestMismatch(f"object {key} should have {size} bytes and has {found}")
        if sha256_of(data) != sha256:
            raise DigestMismatch(f"object {key} has changed since it was stored (SHA-256 differs)")
        return data

    def fetch_sealed(self, ref: AnyRef) -> bytes:
        """As `fetch_stored`, of the object that a reference names; remembers what is damaged."""
        try:
            return self.fetch_stored(ref.key, ref.size, ref.sha256)
        except DigestMismatch:
            self.found_damaged.add(id_of(ref))
            raise

    def fetch(self, ref: AnyRef) -> bytes:
        """The content of the object a manifest names, checked before anybody looks inside.

        Raises:
            KeyUnavailable: it is encrypted, and no key that opens it was given.
            IntegrityError, StoreError: as `fetch_stored`.
        """
        return self.sealing.unseal(ref.key, self.fetch_sealed(ref))


def all_damaged(key: str) -> IntegrityError:
    """What to raise where neither the object under `key` nor any that replaces it is of use."""
    return IntegrityError(
        f"object {key} is damaged, and so are those that replace it", hint="Remove them and run the command again."
    )
