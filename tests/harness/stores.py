"""A store that goes wrong at a chosen operation, and one that stores nothing before it may."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

from typing_extensions import Buffer

from jsbackup.errors import StoreError
from jsbackup.stores.base import ObjectInfo, Store
from jsbackup.stores.memory import MemoryStore


class Killed(BaseException):
    """The process is dead from here on. Not an `Exception`: no clean-up code may catch it and go on."""


class Fault(Enum):
    FAIL = "the operation fails and does nothing"
    LOSE_ANSWER = "the operation is done, and then reported as failed"
    TRUNCATE = "half of the bytes are stored, or half are given back"
    KILL_BEFORE = "the process dies before the operation"
    KILL_AFTER = "the process dies after the operation"


class FaultStore(Store):
    """`store`, but operation number `at` (counted from 1) meets `fault`, and so do the next `times - 1`.

    `before` is called ahead of each operation with its name and key; it is where a test makes a store slow.
    """

    def __init__(
        self,
        store: Store,
        fault: Fault | None = None,
        *,
        at: int = 0,
        times: int = 1,
        before: Callable[[str, str], None] = lambda operation, key: None,
    ) -> None:
        self.store = store
        self.log: list[tuple[str, str]] = []
        self._fault = fault
        self._faulty = range(at, at + times)
        self._before = before
        self._dead = False
        self._lock = threading.Lock()

    @property
    def operations(self) -> int:
        return len(self.log)

    @property
    def location(self) -> str:
        return self.store.location

    def put(self, key: str, data: Buffer) -> None:
        fault = self._begin("put", key)
        view = memoryview(data).cast("B")
        with self._ending(fault):
            self.store.put(key, view[: len(view) // 2] if fault is Fault.TRUNCATE else view)

    def get(self, key: str) -> bytes:
        fault = self._begin("get", key)
        with self._ending(fault):
            return _half(fault, self.store.get(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        fault = self._begin("get_range", key)
        with self._ending(fault):
            return _half(fault, self.store.get_range(key, offset, length))

    def head(self, key: str) -> ObjectInfo:
        fault = self._begin("head", key)
        with self._ending(fault):
            info = self.store.head(key)
            return ObjectInfo(key, info.size // 2, info.modified_seconds) if fault is Fault.TRUNCATE else info

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        fault = self._begin("list", prefix)
        found = list(self.store.list(prefix))
        yield from found[: len(found) // 2]
        with self._ending(fault):
            pass
        yield from found[len(found) // 2 :]

    def delete(self, key: str) -> None:
        fault = self._begin("delete", key)
        with self._ending(fault):
            self.store.delete(key)

    def is_temporary(self, error: StoreError) -> bool:
        return isinstance(error, _InjectedError)

    def _begin(self, operation: str, key: str) -> Fault | None:
        self._before(operation, key)
        with self._lock:
            if self._dead:
                raise Killed
            self.log.append((operation, key))
            fault = self._fault if len(self.log) in self._faulty else None
            if fault is Fault.KILL_BEFORE:
                self._dead = True
                raise Killed
        if fault is Fault.FAIL:
            raise _InjectedError(f"injected: {operation} {key} failed")
        return fault

    @contextmanager
    def _ending(self, fault: Fault | None) -> Iterator[None]:
        """Around the real operation, whose own outcome nobody learns if this is where things go wrong."""
        try:
            yield
        finally:
            if fault is Fault.KILL_AFTER:
                self._dead = True
                raise Killed
            if fault is Fault.LOSE_ANSWER:
                raise _InjectedError("injected: the answer was lost")


def _half(fault: Fault | None, data: bytes) -> bytes:
    return data[: len(data) // 2] if fault is Fault.TRUNCATE else data


class _InjectedError(StoreError):
    pass


class HeldUp(MemoryStore):
    """Its first object is not stored before the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.putting, self.gate = threading.Event(), threading.Event()

    def put(self, key: str, data: Buffer) -> None:
        self.putting.set()
        assert self.gate.wait(10)
        super().put(key, data)
