"""The objects of a repository: content-addressed, stored once, checked before use, encrypted if the repository is.

An object that a manifest names can be missing (`IntegrityError`), unreadable (`StoreError`), encrypted for another key
(`KeyUnavailable`) or changed (`DigestMismatch`): different errors, because the remedies differ.

Sizes and SHA-256 are always those of the stored bytes, so that they can be checked without a key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jsbackup.errors import DigestMismatch, FormatError, IntegrityError, KeyUnavailable, ObjectExists, ObjectNotFound
from jsbackup.formats.compression import ZSTD, Compression
from jsbackup.repository import layout
from jsbackup.repository.crypto.sealing import PLAIN, Sealing
from jsbackup.repository.memory_budget import Room
from jsbackup.repository.refs import AnyRef, folder_of, id_of
from jsbackup.repository.segment_size import MAX_SEGMENT_BYTES, SEGMENT_BYTES, fitting_bytes
from jsbackup.stores.base import Data, LateStore, Store

__all__ = ["MAX_OBJECT_BYTES", "Objects", "StoredObject", "sha256_of"]

# At least as large as any object that we store: the largest segment, or one message of at most 96 MiB, uncompressible.
MAX_OBJECT_BYTES = MAX_SEGMENT_BYTES


def sha256_of(data: Data) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in the store; `added` says whether this put stored it."""

    key: str
    size: int
    sha256: str
    added: bool


class Objects:
    """A store with a sealing, and a memory budget for objects. May be used from several threads.

    `replaces`: the store lets a put replace an object that another client puts at the same moment. Two writers of the
    same content store different bytes if it is encrypted, or written by two versions of a library; so in such a store
    each object has a key of its own from the beginning.

    `damaged` returns the ids of objects known to be damaged, with their folders (`damaged.py`); it is called once, when
    needed, and by `look_for_damage`. `found_damaged` has the same of objects that were found damaged here.

    `segment_bytes` is the size of new segments, raw (`segment_size.py`); `compression` is theirs.
    """

    def __init__(
        self,
        store: Store,
        sealing: Sealing = PLAIN,
        *,
        replaces: bool = False,
        damaged: Callable[[], Mapping[bytes, str]] = dict,
        segment_bytes: int = SEGMENT_BYTES,
        compression: Compression = ZSTD,
    ) -> None:
        self.store = store
        self.sealing = sealing
        self.room = Room()
        self.segment_bytes = fitting_bytes(segment_bytes)
        self.compression = compression
        self.found_damaged: dict[bytes, str] = {}
        self._replaces = replaces
        self._read_damaged = damaged
        self._damaged: Mapping[str, frozenset[bytes]] | None = None  # by folder; those of "" are in each

    def get_ready(self) -> None:
        """Prepare a location that is not ready yet, before much data waits to be stored. Raises as a put."""
        if isinstance(self.store, LateStore):
            self.store.get_ready()

    def names_for(self, key: str, sha256: str) -> Sequence[str]:
        """Return the keys for content named `key`, in order; the next one is used if the object under the one before is
        not usable.

        `sha256` is that of the object as it will be stored.
        """
        return [*([] if self._replaces else [key]), *layout.replacement_keys(key, sha256)]

    def is_damaged(self, ref: AnyRef) -> bool:
        """Return whether the object was found damaged. Then it is neither kept nor named again."""
        damaged = self.damaged_in(folder_of(ref))
        return bool(damaged) and id_of(ref) in damaged

    def damaged_in(self, folder: str) -> frozenset[bytes]:
        """Return the ids of the objects in this folder that were found damaged, and of those whose folder is not
        recorded.
        """
        if self._damaged is None:
            self.look_for_damage()
        assert self._damaged is not None
        return self._damaged.get(folder, self._damaged[""])

    def look_for_damage(self) -> None:
        """Read again which objects were found damaged. For commands that store for days."""
        found: dict[str, set[bytes]] = {"": set()}
        for name, folder in self._read_damaged().items():
            found.setdefault(folder, set()).add(name)
        self._damaged = {folder: frozenset(names | found[""]) for folder, names in found.items()}

    def note_damaged(self, ref: AnyRef) -> None:
        """Note that an object was found damaged, for those who record it."""
        self.found_damaged[id_of(ref)] = folder_of(ref)

    def put_once(self, key: str, data: Data) -> StoredObject:
        """Store `data` under a key that names it. An existing object is used if it holds the data; otherwise the data
        is stored beside it.

        Raises:
            IntegrityError: all existing objects hold something else.
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
        """Return whether the object under `key` is encrypted for a given key, or not at all. Reads only its beginning.

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
        """Return the stored bytes of an object, checked against size and SHA-256, not unsealed.

        Raises:
            IntegrityError: it is missing.
            DigestMismatch: it is not the object that was stored.
            StoreError: it cannot be read.
        """
        if size > MAX_OBJECT_BYTES:
            raise FormatError(f"object {key} is said to have {size} bytes, more than any object has")
        try:
            # One byte more than expected: a longer object is noticed, and a huge one is not fetched.
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
        """Do `fetch_stored` for a reference, and remember a damaged object."""
        try:
            return self.fetch_stored(ref.key, ref.size, ref.sha256)
        except DigestMismatch:
            self.note_damaged(ref)
            raise

    def fetch(self, ref: AnyRef) -> bytes:
        """Return the content of the object that a reference names, checked before it is used.

        Raises:
            KeyUnavailable: it is encrypted, and no key that opens it was given.
            IntegrityError, StoreError: as `fetch_stored`.
        """
        return self.sealing.unseal(ref.key, self.fetch_sealed(ref))


def all_damaged(key: str) -> IntegrityError:
    """Return the error for when neither the object under `key` nor any of its replacements is usable."""
    return IntegrityError(
        f"object {key} is damaged, and so are those that replace it", hint="Remove them and run the command again."
    )
