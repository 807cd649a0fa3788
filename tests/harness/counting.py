"""A store that counts what it is asked, as a bill does: a listing is one request for each thousand objects."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from jsbackup.errors import StoreError
from jsbackup.stores.base import Data, ObjectInfo, Store

PAGE = 1000  # of S3's ListObjectsV2


class CountingStore(Store):
    """`store`; `requests` by operation, and the `read_bytes` of all gets by key."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.requests: Counter[str] = Counter()
        self.read_bytes: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        return sum(self.requests.values())

    @property
    def location(self) -> str:
        return self.store.location

    def put(self, key: str, data: Data) -> None:
        self._count("put")
        self.store.put(key, data)

    def get(self, key: str) -> bytes:
        self._count("get")
        return self._read(key, self.store.get(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self._count("get")
        return self._read(key, self.store.get_range(key, offset, length))

    def head(self, key: str) -> ObjectInfo:
        self._count("head")
        return self.store.head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._count("list")
        for number, info in enumerate(self.store.list(prefix)):
            if number and number % PAGE == 0:
                self._count("list")
            yield info

    def delete(self, key: str) -> None:
        self._count("delete")
        self.store.delete(key)

    def is_temporary(self, error: StoreError) -> bool:
        return self.store.is_temporary(error)

    def _read(self, key: str, data: bytes) -> bytes:
        with self._lock:
            self.read_bytes[key] += len(data)
        return data

    def _count(self, operation: str) -> None:
        with self._lock:
            self.requests[operation] += 1


class NotingStore(CountingStore):
    """Notes the keys that are read."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.read: list[str] = []

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.read.append(key)
        return super().get_range(key, offset, length)
