"""The only place that retries: a wrapper around any store.

What is worth another try is for the wrapped store to say (`is_temporary`). Doing something again that may have been
done already needs care, because an answer can be lost after the deed:

- a repeated `put` that finds its key taken compares the bytes: its own are success, others are `ObjectExists`;
- a repeated `delete` that finds nothing is success (as every delete is);
- a listing that breaks goes on behind the last key it gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from jsbackup.errors import ObjectExists, ObjectNotFound, StoreError
from jsbackup.stores.base import Data, ObjectInfo, Store

__all__ = ["DEFAULT_DELAYS_SECONDS", "RetryingStore"]

# Under a minute in all: long enough for a failover or a throttled minute, short enough for a person who waits.
DEFAULT_DELAYS_SECONDS = (0.2, 1.0, 4.0, 10.0, 20.0)

_T = TypeVar("_T")


class RetryingStore:
    """`store`, with each operation tried again after each of `delays`. `sleep` takes seconds."""

    def __init__(
        self, store: Store, *, sleep: Callable[[float], None], delays: Sequence[float] = DEFAULT_DELAYS_SECONDS
    ) -> None:
        self._store = store
        self._sleep = sleep
        self._delays = tuple(delays)

    @property
    def location(self) -> str:
        return self._store.location

    def put(self, key: str, data: Data) -> None:
        tries = 0

        def once() -> None:
            nonlocal tries
            tries += 1
            try:
                self._store.put(key, data)
            except ObjectExists:
                if tries == 1 or not self._holds(key, data):
                    raise

        self._retry(once)

    def get(self, key: str) -> bytes:
        return self._retry(lambda: self._store.get(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._retry(lambda: self._store.get_range(key, offset, length))

    def head(self, key: str) -> ObjectInfo:
        return self._retry(lambda: self._store.head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        last = ""
        delays = iter(self._delays)
        while True:
            try:
                for info in self._store.list(prefix):
                    if info.key > last:
                        # Progress was made: a long listing has all its tries for each break.
                        last, delays = info.key, iter(self._delays)
                        yield info
                return
            except StoreError as error:
                self._wait_or_raise(error, delays)

    def delete(self, key: str) -> None:
        self._retry(lambda: self._store.delete(key))

    def is_temporary(self, error: StoreError) -> bool:
        """Always False: what comes out of here has been retried enough."""
        return False

    def _retry(self, once: Callable[[], _T]) -> _T:
        delays = iter(self._delays)
        while True:
            try:
                return once()
            except StoreError as error:
                self._wait_or_raise(error, delays)

    def _wait_or_raise(self, error: StoreError, delays: Iterator[float]) -> None:
        if isinstance(error, ObjectNotFound | ObjectExists) or not self._store.is_temporary(error):
            raise error
        delay = next(delays, None)
        if delay is None:
            raise error
        self._sleep(delay)

    def _holds(self, key: str, data: Data) -> bool:
        view = memoryview(data).cast("B")
        # One byte more than ours, so that a longer object shows itself and a huge one is not fetched.
        return self._store.get_range(key, 0, len(view) + 1) == view
