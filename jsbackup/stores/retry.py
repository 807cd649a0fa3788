"""Retries: a wrapper around any store, and the only place that retries.

The wrapped store decides which errors are retried (`is_temporary`). The first try may have succeeded and only its
answer been lost, therefore:

- a repeated `put` that finds its key taken compares the bytes: the same bytes are success, others are `ObjectExists`;
- a repeated `delete` of a missing object is success (as every delete is);
- an interrupted listing continues after the last key it yielded.

The pauses grow, and are shortened randomly (`random`), so that the streams of a backup that were refused at the same
time do not retry at the same time; a store's own waiting time is respected. No try begins after `deadline_seconds`,
however many are left: otherwise a store that is slow to fail would take minutes for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from jsbackup.errors import ObjectExists, ObjectNotFound, StoreError
from jsbackup.stores.base import Data, Glance, LockMode, ObjectInfo, Store, StoreProbe

__all__ = ["DEFAULT_DEADLINE_SECONDS", "DEFAULT_DELAYS_SECONDS", "RetryingStore"]

# Under a minute in all: long enough for a failover or throttling, short enough for a waiting person.
DEFAULT_DELAYS_SECONDS = (0.2, 1.0, 4.0, 10.0, 20.0)

DEFAULT_DEADLINE_SECONDS = 300.0

_T = TypeVar("_T")


def _whole() -> float:
    return 1.0


def _stopped() -> float:
    return 0.0


class _Tries:
    """The remaining tries of an operation that began `now`."""

    def __init__(self, delays: Sequence[float], now: float) -> None:
        self.delays = iter(delays)
        self.begun = now


class RetryingStore(Store):
    """Wraps `store`, retrying each operation after each of `delays`.

    `sleep` takes seconds, `random` returns numbers from 0 to 1 (by default the delays are not shortened), `clock` is
    monotonic, in seconds (by default there is no deadline).
    """

    def __init__(
        self,
        store: Store,
        *,
        sleep: Callable[[float], None],
        delays: Sequence[float] = DEFAULT_DELAYS_SECONDS,
        random: Callable[[], float] = _whole,
        clock: Callable[[], float] = _stopped,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> None:
        self._store = store
        self._sleep = sleep
        self._delays = tuple(delays)
        self._random = random
        self._clock = clock
        self._deadline_seconds = deadline_seconds

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
        tries = self._tries()
        while True:
            try:
                for info in self._store.list(prefix):
                    if info.key > last:
                        # After progress a long listing has all its tries again.
                        last, tries = info.key, self._tries()
                        yield info
                return
            except StoreError as error:
                self._wait_or_raise(error, tries)

    def delete(self, key: str) -> None:
        self._retry(lambda: self._store.delete(key))

    def is_temporary(self, error: StoreError) -> bool:
        """Return False: errors from here have been retried enough."""
        return False

    def probe(self, key: str, data: Data) -> StoreProbe:
        return self._retry(lambda: self._store.probe(key, data))

    def check_object_lock(self) -> None:
        self._retry(self._store.check_object_lock)

    def lock_until(self, key: str, until_seconds: float, mode: LockMode) -> None:
        self._retry(lambda: self._store.lock_until(key, until_seconds, mode))

    def abort_stale_uploads(self, older_than_seconds: float) -> int:
        return self._retry(lambda: self._store.abort_stale_uploads(older_than_seconds))

    def late_seconds(self) -> float:
        return self._store.late_seconds()

    def glance(self, prefix: str = "") -> Glance:
        return self._retry(lambda: self._store.glance(prefix))

    def enclosing(self, key: str) -> str | None:
        return self._retry(lambda: self._store.enclosing(key))

    # --- retrying ---

    def _tries(self) -> _Tries:
        return _Tries(self._delays, self._clock())

    def _retry(self, once: Callable[[], _T]) -> _T:
        tries = self._tries()
        while True:
            try:
                return once()
            except StoreError as error:
                self._wait_or_raise(error, tries)

    def _wait_or_raise(self, error: StoreError, tries: _Tries) -> None:
        if isinstance(error, ObjectNotFound | ObjectExists) or not self._store.is_temporary(error):
            raise error
        delay = next(tries.delays, None)
        if delay is None:
            raise error
        delay = max(delay * (1 + self._random()) / 2, error.retry_after_seconds)
        if self._clock() + delay - tries.begun > self._deadline_seconds:
            raise error
        self._sleep(delay)

    def _holds(self, key: str, data: Data) -> bool:
        view = memoryview(data).cast("B")
        # One byte more than ours, to recognize a longer object without fetching a huge one.
        return self._store.get_range(key, 0, len(view) + 1) == view
