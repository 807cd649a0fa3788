"""The objects of a repository: named by their bytes, stored once, checked before use, encrypted if the repository is.

An object that a manifest names can be missing (`IntegrityError`), unreadable (`StoreError`), encrypted for another key
(`KeyUnavailable`) or changed (`DigestMismatch`): different errors, because the remedies differ.

Sizes and SHA-256 are always those of the stored bytes, so that they can be checked without a key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jsbackup.errors import DigestMismatch, FormatError, IntegrityError, ObjectExists, ObjectNotFound
from jsbackup.formats.compression import ZSTD, Compression
from jsbackup.repository import layout
from jsbackup.repository.crypto.sealing import PLAIN, Sealing
from jsbackup.repository.memory_budget import Room
from jsbackup.repository.refs import AnyRef, folder_of, id_of
from jsbackup.repository.segment_size import MAX_SEGMENT_BYTES, SEGMENT_BYTES, fitting_bytes
from jsbackup.stores.base import Data, LateStore, Store

__all__ = ["MAX_OBJECT_BYTES", "Objects", "StoredObject", "has_bytes", "put_named", "sha256_of"]

# At least as large as any object that we store: the largest segment, or one message of at most 96 MiB, uncompressible.
MAX_OBJECT_BYTES = MAX_SEGMENT_BYTES

_COMPARED_BYTES = 4 << 20  # held of an object that is there already


def sha256_of(data: Data) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in the store; `added` says whether this put stored it."""

    key: str
    size: int
    sha256: str
    added: bool


def put_named(store: Store, key: str, data: Data) -> StoredObject:
    """Store bytes under a key that names them: that of their content, and digits of their SHA-256
    (`layout.stored_keys`). What is under it already is used if it is the same; else it is damaged, and the bytes are
    stored beside it.

    So nothing else ever gets the key of an object, even if that was lost; and two who put the same at the same moment
    do no harm in a store in which the later put wins.

    Raises:
        IntegrityError: all objects under its keys are damaged.
        StoreError: it cannot be stored.
    """
    view = memoryview(data).cast("B")
    sha256 = sha256_of(view)
    for name in layout.stored_keys(key, sha256):
        try:
            store.put(name, view)
        except ObjectExists:
            if has_bytes(store, name, view):
                return StoredObject(name, len(view), sha256, added=False)
        else:
            return StoredObject(name, len(view), sha256, added=True)
    raise IntegrityError(
        f"object {key} is damaged, and so are those that replace it", hint="Remove them and run the command again."
    )


def has_bytes(store: Store, key: str, data: memoryview) -> bool:
    """Return whether the object under `key` has exactly these bytes. Raises StoreError."""
    places = range(0, max(len(data), 1), _COMPARED_BYTES)
    lengths = (_COMPARED_BYTES + (at == places[-1]) for at in places)  # at the end one byte more than there should be
    return all(store.get_range(key, at, n) == data[at : at + n] for at, n in zip(places, lengths, strict=True))


class Objects:
    """A store with a sealing, and a memory budget for objects. May be used from several threads.

    `damaged` returns the ids of objects known to be damaged, with their folders (`damaged.py`); it is called once, when
    needed, and by `look_for_damage`. `found_damaged` has the same of objects that were found damaged here.

    `segment_bytes` is the size of new segments, raw (`segment_size.py`); `compression` is theirs.
    """

    def __init__(
        self,
        store: Store,
        sealing: Sealing = PLAIN,
        *,
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
        self._read_damaged = damaged
        self._damaged: Mapping[str, frozenset[bytes]] | None = None  # by folder; those of "" are in each

    def get_ready(self) -> None:
        """Prepare a location that is not ready yet, before much data waits to be stored. Raises as a put."""
        if isinstance(self.store, LateStore):
            self.store.get_ready()

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
        """Store `data`, sealed, under a key that names it; `key` is that of its content. Raises as `put_named`."""
        return put_named(self.store, key, self.sealing.seal(data))

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
