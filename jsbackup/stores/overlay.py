"""A store whose changes stay in memory: what a command would do, without doing it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from heapq import merge

from jsbackup.errors import ObjectExists, ObjectNotFound, StoreError
from jsbackup.stores.base import Data, ObjectInfo, Store
from jsbackup.stores.memory import MemoryStore

__all__ = ["OverlayStore"]


class OverlayStore(Store):
    """`store` as it would be after what is put and deleted here. The store itself never changes.

    What is put is held in memory, so it should be small. `clock` returns Unix time.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._memory = MemoryStore(clock)
        self._changed: set[str] = set()  # keys that were put or deleted here, and are only looked for in memory
        self._lock = threading.Lock()

    @property
    def location(self) -> str:
        return self._store.location

    def put(self, key: str, data: Data) -> None:
        with self._lock:
            if key not in self._changed and self._is_below(key):
                raise ObjectExists(key)
            self._memory.put(key, data)
            self._changed.add(key)

    def get(self, key: str) -> bytes:
        return self._at(key).get(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._at(key).get_range(key, offset, length)

    def head(self, key: str) -> ObjectInfo:
        return self._at(key).head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        with self._lock:
            changed, here = frozenset(self._changed), self._memory.list(prefix)
        unchanged = (info for info in self._store.list(prefix) if info.key not in changed)
        return merge(unchanged, here, key=lambda info: info.key)

    def delete(self, key: str) -> None:
        with self._lock:
            self._memory.delete(key)
            self._changed.add(key)

    def is_temporary(self, error: StoreError) -> bool:
        return self._store.is_temporary(error)

    def _at(self, key: str) -> Store:
        return self._memory if key in self._changed else self._store

    def _is_below(self, key: str) -> bool:
        try:
            self._store.head(key)
        except ObjectNotFound:
            return False
        return True
