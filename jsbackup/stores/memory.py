"""A store in memory: the reference implementation, for tests and dry runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from jsbackup.errors import ObjectExists, ObjectNotFound, StoreError
from jsbackup.stores.base import Data, ObjectInfo, Store, check_key, check_prefix, check_range

__all__ = ["MemoryStore"]


def _epoch() -> float:
    return 0.0


class MemoryStore(Store):
    """Objects in a dict. `clock` returns Unix seconds; without it all objects are from 1970."""

    def __init__(self, clock: Callable[[], float] = _epoch) -> None:
        self._clock = clock
        self._objects: dict[str, tuple[bytes, float]] = {}
        self._lock = threading.Lock()

    @property
    def location(self) -> str:
        return "memory:"

    def put(self, key: str, data: Data) -> None:
        check_key(key)
        copy = bytes(data)
        with self._lock:
            if key in self._objects:
                raise ObjectExists(key)
            self._objects[key] = (copy, self._clock())

    def get(self, key: str) -> bytes:
        return self._find(key)[0]

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(key, offset, length)
        return self._find(key)[0][offset : offset + length]

    def head(self, key: str) -> ObjectInfo:
        data, modified = self._find(key)
        return ObjectInfo(key, len(data), modified)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with self._lock:
            objects = [ObjectInfo(k, len(d), m) for k, (d, m) in self._objects.items() if k.startswith(prefix)]
        return iter(sorted(objects, key=lambda info: info.key))

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            self._objects.pop(key, None)

    def is_temporary(self, error: StoreError) -> bool:
        return False

    def late_seconds(self) -> float:
        return 0.0

    def _find(self, key: str) -> tuple[bytes, float]:
        check_key(key)
        with self._lock:
            try:
                return self._objects[key]
            except KeyError:
                raise ObjectNotFound(key) from None
