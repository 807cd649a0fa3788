"""A repository that is made when the first thing is stored in it that is to stay, and not before.

A first backup may find no server, no stream of the name, no permission: then nothing must be left behind. So where a
location is empty, commands work on a store that looks like it. Leases are kept in memory: there is nobody yet to keep
anything from. The first object of any other kind makes the repository, takes the leases along, and from then on
everything goes to the location itself.

Times of leases are told by the clock that they began with, also when they are in the location, whose clock may be
another: their holder compares one with the next.

Somebody else may make the repository meanwhile. If it is a plain one too, it is as good as our own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from jsbackup.errors import JsBackupError, RepositoryLocked, RepositoryNotFound, StoreError, UsageError
from jsbackup.repository import layout
from jsbackup.repository.crypto.access import Access
from jsbackup.repository.crypto.keys import NO_KEYS, GivenKeys
from jsbackup.repository.descriptor import Descriptor
from jsbackup.repository.keep.leases import list_leases
from jsbackup.repository.location import is_vacant
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import (
    Data,
    LockMode,
    ObjectInfo,
    ProbedStore,
    StaleUploads,
    Store,
    StoreProbe,
    object_lock,
)
from jsbackup.stores.memory import MemoryStore

__all__ = ["make_late", "make_now", "open_or_make", "open_unless_vacant"]


def open_unless_vacant(store: Store, keys: GivenKeys) -> Repository | None:
    """The repository there, or None where a plain one can be made.

    Raises as `Repository.open`: also RepositoryNotFound where there is something else, or where there are keys, because
    whoever has keys expects a repository that is not plain, and a store that shows none must get nothing plain.
    """
    try:
        return Repository.open(store, keys)
    except RepositoryNotFound:
        if keys != NO_KEYS:
            raise
    return None if is_vacant(store) else Repository.open(store, keys)  # which may have been made meanwhile


def make_late(
    store: Store,
    descriptor: Descriptor,
    make: Callable[[], Repository],
    *,
    access: Access | None = None,
    clock: Callable[[], float],
) -> Repository:
    """A repository in an empty location, which `make` is going to make there. `descriptor` and `access` are what it
    will have, as far as that is known; `clock` gives Unix time."""
    return Repository(MakingStore(store, make, clock), descriptor, access)


def open_or_make(
    store: Store, keys: GivenKeys, *, repository_id: str, created: str, tool: str, making: Callable[[str], None]
) -> Repository:
    """The repository there, to write to. Where the location is empty, a plain one that is made when the first thing is
    stored in it; `making` is told then. The texts are as in `Repository.create`.

    Raises KeyUnavailable without the key for writing, and as `open_unless_vacant`.
    """
    repository = open_unless_vacant(store, keys)
    if repository is not None:
        repository.documents.ensure_writable()
        return repository

    def make() -> Repository:
        making(f"no repository at {store.location}: making one")
        return Repository.create(store, repository_id=repository_id, created=created, tool=tool)

    return make_late(store, Descriptor(repository_id, created, tool), make, clock=time.time)


def make_now(repository: Repository) -> None:
    """Make it at once, if it is to be made late. Raises as `Repository.create`, and RepositoryLocked."""
    if isinstance(repository.store, MakingStore):
        repository.descriptor = repository.store.found()


class MakingStore:
    """The store of such a repository."""

    def __init__(self, store: Store, make: Callable[[], Repository], clock: Callable[[], float]) -> None:
        self._store = store
        self._make = make
        self._early = MemoryStore(clock)
        self._made: Descriptor | None = None
        self._failed: JsBackupError | None = None
        self._ahead_seconds = 0.0  # of the location's clock
        self._lock = threading.RLock()

    def get_ready(self) -> None:
        self.found()

    def found(self) -> Descriptor:
        """Make the repository, if that is not done; what it has as its descriptor. Raises as `make_now`."""
        with self._lock:
            if self._failed is not None:  # the streams beside each other need not try each by itself
                raise self._failed
            if self._made is None:
                try:
                    self._made = self._found()
                except JsBackupError as error:
                    self._failed = error
                    raise
            return self._made

    def _found(self) -> Descriptor:
        made = self._make_or_join()
        for info in list(self._early.list()):
            self._store.put(info.key, self._early.get(info.key))
            self._ahead_seconds = self._store.head(info.key).modified_seconds - info.modified_seconds
        return made

    def _make_or_join(self) -> Descriptor:
        try:
            return self._make().descriptor
        except UsageError as occupied:  # somebody may have been quicker
            try:
                found = Repository.open(self._store)
            except RepositoryNotFound:
                raise occupied from None
            if found.descriptor.authority is not None:
                raise
            if any(seen.key.exclusive for seen in list_leases(self._store)):
                raise RepositoryLocked(
                    f"{self.location} has become a repository meanwhile, and is being pruned",
                    hint="Run it again.",
                ) from None
            return found.descriptor

    def _at(self, key: str) -> Store:
        """Where an object of this key is, or would be looked for."""
        return self._store if self._made is not None else self._early

    def _told(self, info: ObjectInfo) -> ObjectInfo:
        if self._made is None or not info.key.startswith(layout.LOCKS):
            return info
        return replace(info, modified_seconds=info.modified_seconds - self._ahead_seconds)

    # --- a store ---

    @property
    def location(self) -> str:
        return self._store.location

    def put(self, key: str, data: Data) -> None:
        with self._lock:
            if self._made is None and layout.parse_lease_key(key) is not None:
                self._early.put(key, data)
                return
            self.found()
        self._store.put(key, data)

    def get(self, key: str) -> bytes:
        return self._at(key).get(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._at(key).get_range(key, offset, length)

    def head(self, key: str) -> ObjectInfo:
        return self._told(self._at(key).head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return map(self._told, self._at(prefix).list(prefix))

    def delete(self, key: str) -> None:
        with self._lock:
            self._at(key).delete(key)

    def is_temporary(self, error: StoreError) -> bool:
        return self._store.is_temporary(error)

    # --- what not every store can do ---

    def probe(self, key: str, data: Data) -> StoreProbe:
        store = self._store
        return store.probe(key, data) if isinstance(store, ProbedStore) else StoreProbe()

    def check_object_lock(self) -> None:
        object_lock(self._store).check_object_lock()

    def lock_until(self, key: str, until_seconds: float, mode: LockMode) -> None:
        object_lock(self._store).lock_until(key, until_seconds, mode)

    def abort_stale_uploads(self, older_than_seconds: float) -> int:
        store = self._store
        return store.abort_stale_uploads(older_than_seconds) if isinstance(store, StaleUploads) else 0
