"""A repository that is made only when the first lasting object is stored in it.

A first backup may fail because of the server, the stream's name or permissions: then nothing must be left behind. So
for an empty location, commands use this store in front of it. Leases are kept in memory, because there is no one to
coordinate with yet. The first object of any other kind makes the repository and stores the leases there; from then on
everything goes to the location itself.

The times of leases stay those of the clock that they began with, even after they are stored in the location, whose
clock may differ: their holder compares one with the next.

Someone else may make the repository meanwhile. If it is plain too, it is used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from jsbackup.errors import JsBackupError, RepositoryLocked, RepositoryNotFound, StoreError, UsageError
from jsbackup.repository import layout
from jsbackup.repository.crypto.access import NO_KEYS, Access, GivenKeys
from jsbackup.repository.descriptor import Descriptor, is_vacant, refuse_inside
from jsbackup.repository.keep.leases import list_leases
from jsbackup.repository.objects import fitting_bytes
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Data, LockMode, ObjectInfo, Store, StoreProbe
from jsbackup.stores.memory import MemoryStore

__all__ = ["is_late", "make_late", "make_now", "open_or_make", "open_unless_vacant"]


def open_unless_vacant(store: Store, keys: GivenKeys) -> Repository | None:
    """Return the existing repository, or None if a plain one can be made.

    Raises IntegrityError, KeyUnavailable, StoreError. RepositoryNotFound is raised if there is something else, or if
    keys were given: a user with keys expects a repository that is not plain, and nothing plain must be written for a
    store that shows none. UsageError is raised for a location inside of another repository.
    """
    try:
        return Repository.open(store, keys)
    except RepositoryNotFound:
        if keys != NO_KEYS:
            raise
    if not is_vacant(store):
        return Repository.open(store, keys)  # it may have been made meanwhile
    refuse_inside(store)
    return None


def make_late(
    store: Store,
    descriptor: Descriptor,
    make: Callable[[], Repository],
    *,
    access: Access | None = None,
    clock: Callable[[], float],
) -> Repository:
    """Return a repository in an empty location, which `make` will make when needed.

    `descriptor` and `access` are those it will have, as far as they are known; `clock` returns Unix time.
    """
    making = MakingStore(store, make, clock)
    repository = Repository(making, descriptor, access)

    def adopt(made: Descriptor) -> None:
        repository.descriptor = made
        repository.objects.segment_bytes = fitting_bytes(made.segment_bytes)
        repository.objects.compression = made.compression

    making.adopt = adopt
    return repository


def open_or_make(
    store: Store, keys: GivenKeys, *, repository_id: str, created: str, tool: str, making: Callable[[str], None]
) -> Repository:
    """Return the repository for writing. If the location is empty, a plain one is made when the first object is stored.

    `making` is called then. The texts are as in `Repository.create`. Raises KeyUnavailable without the key for writing,
    and as `open_unless_vacant`.
    """
    repository = open_unless_vacant(store, keys)
    if repository is not None:
        repository.documents.ensure_writable()
        return repository

    def make() -> Repository:
        making(f"no repository at {store.location}: creating one")
        return Repository.create(store, repository_id=repository_id, created=created, tool=tool)

    return make_late(store, Descriptor(repository_id, created, tool), make, clock=time.time)


def is_late(repository: Repository) -> bool:
    """Return whether the repository is not made yet."""
    return isinstance(repository.store, MakingStore) and not repository.store.is_made


def make_now(repository: Repository) -> None:
    """Make the repository at once, if it is not made yet.

    Raises UsageError, UnsupportedError, StoreError, RepositoryLocked.
    """
    if isinstance(repository.store, MakingStore):
        repository.store.ensure_made()


class MakingStore(Store):
    """The store of such a repository."""

    def __init__(self, store: Store, make: Callable[[], Repository], clock: Callable[[], float]) -> None:
        self._store = store
        self._make = make
        self._early = MemoryStore(clock)
        self._made: Descriptor | None = None
        self._failed: JsBackupError | None = None
        self.adopt: Callable[[Descriptor], object] = lambda made: None
        """Called with the descriptor of the repository once it is made: someone else may have made it."""
        self._ahead_seconds = 0.0  # how far the location's clock is ahead
        self._lock = threading.RLock()

    @property
    def is_made(self) -> bool:
        return self._made is not None

    def get_ready(self) -> None:
        self.ensure_made()

    def ensure_made(self) -> Descriptor:
        """Make the repository, unless that is done, and return its descriptor.

        Raises UsageError, UnsupportedError, StoreError, RepositoryLocked.
        """
        with self._lock:
            if self._failed is not None:  # concurrent streams need not try again
                raise self._failed
            if self._made is None:
                try:
                    self._made = self._make_and_move_leases()
                except JsBackupError as error:
                    self._failed = error
                    raise
                self.adopt(self._made)
            return self._made

    def _make_and_move_leases(self) -> Descriptor:
        made = self._make_or_join()
        for info in list(self._early.list()):
            self._store.put(info.key, self._early.get(info.key))
            self._ahead_seconds = self._store.head(info.key).modified_seconds - info.modified_seconds
        return made

    def _make_or_join(self) -> Descriptor:
        try:
            return self._make().descriptor
        except UsageError as occupied:  # someone may have been faster
            try:
                repository = Repository.open(self._store)
            except RepositoryNotFound:
                raise occupied from None
            if repository.descriptor.authority is not None:
                raise
            if any(seen.key.exclusive for seen in list_leases(self._store)):
                raise RepositoryLocked(
                    f"{self.location} has become a repository meanwhile, and is being pruned",
                    hint="Run it again.",
                ) from None
            return repository.descriptor

    def _at(self, key: str) -> Store:
        """Return the store that has, or would have, an object of this key."""
        return self._store if self._made is not None else self._early

    def _by_own_clock(self, info: ObjectInfo) -> ObjectInfo:
        if self._made is None or not info.key.startswith(layout.LOCKS):
            return info
        return replace(info, modified_seconds=info.modified_seconds - self._ahead_seconds)

    # --- the store ---

    @property
    def location(self) -> str:
        return self._store.location

    def put(self, key: str, data: Data) -> None:
        with self._lock:
            if self._made is None and layout.parse_lease_key(key) is not None:
                self._early.put(key, data)
                return
            self.ensure_made()
        self._store.put(key, data)

    def get(self, key: str) -> bytes:
        return self._at(key).get(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        if key == layout.DESCRIPTOR:  # who asks whether the repository is there is about to commit
            self.ensure_made()
        return self._at(key).get_range(key, offset, length)

    def head(self, key: str) -> ObjectInfo:
        return self._by_own_clock(self._at(key).head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return map(self._by_own_clock, self._at(prefix).list(prefix))

    def delete(self, key: str) -> None:
        with self._lock:
            self._at(key).delete(key)

    def is_temporary(self, error: StoreError) -> bool:
        return self._store.is_temporary(error)

    def probe(self, key: str, data: Data) -> StoreProbe:
        return self._store.probe(key, data)

    def check_object_lock(self) -> None:
        self._store.check_object_lock()

    def lock_until(self, key: str, until_seconds: float, mode: LockMode) -> None:
        self._store.lock_until(key, until_seconds, mode)

    def abort_stale_uploads(self, older_than_seconds: float) -> int:
        return self._store.abort_stale_uploads(older_than_seconds)
