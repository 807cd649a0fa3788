"""A store: named bytes, and nothing about what they mean.

    put      create-only: an object appears whole under its key, or not at all, and is never replaced
    get      the whole object
    get_range  a part of it
    head     its size and age, and the SHA-256 that was put with it, if the store keeps one
    list     all objects whose key starts with a prefix, in order
    delete   idempotent

Rules. Stores are synchronous and may be used from several threads at once. When `put` returns, the object survives a
power cut. A listing contains every object whose `put` has returned, and no unfinished ones. Only `RetryingStore`
retries. A missing object is `ObjectNotFound`, every other failure another `StoreError`: no method returns None, and
"unreadable" is never reported as "absent".

**Keys** are ASCII, at most 512 bytes (an S3 key has 1024, including our prefix), parts separated by `/`. A part has 1
to 255 bytes (the limit of file systems) from `A–Z a–z 0–9 . _ - % = ~` and does not start with a dot (`..` is
impossible, and a store may keep its own files under hidden names) or with `=`. No key may be the folder of another (`a`
and `a/b`): a file and a folder cannot have the same name. Arguments are checked (`StoreError`), and a listing skips
foreign files whose names are not valid keys.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import TypeAlias

from jsbackup.errors import StoreError, UnsupportedError

__all__ = [
    "MAX_KEY_BYTES",
    "MAX_PART_BYTES",
    "Data",
    "Glance",
    "LockMode",
    "ObjectInfo",
    "Store",
    "StoreProbe",
    "check_key",
    "check_prefix",
    "check_range",
    "is_key",
]

Data: TypeAlias = bytes | bytearray | memoryview
"""Accepted by `put`: any contiguous bytes."""

MAX_KEY_BYTES = 512
MAX_PART_BYTES = 255

_GLANCE = 999  # keys: one page of S3

# Linux sends what a closed connection has left for 100 seconds (tcp_orphan_retries), and the server takes its time.
_LATE_SECONDS = 120.0

_PART = re.compile(r"[A-Za-z0-9_%~-][A-Za-z0-9._%=~-]{0,254}")
_PREFIX_TAIL = re.compile(r"([A-Za-z0-9_%~-][A-Za-z0-9._%=~-]{0,254})?")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object's key, size and age. `modified_seconds` is the Unix time of the put by the store's own clock.

    `sha256` (in hex) was recorded when the object was put; "" if there is none, and in listings.
    """

    key: str
    size: int
    modified_seconds: float
    sha256: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class StoreProbe:
    """What a store can do, found out by trying."""

    conditional_writes: bool = True  # of two simultaneous puts under one key one fails
    checksums: bool = False  # data damaged in transit is refused
    object_lock: bool = False  # objects can be locked against deletion for some time
    versioned: bool = False  # deleted objects take room until their versions are deleted (`delete` does that)


class LockMode(StrEnum):
    """Who may end a retention early: users with a special permission, or no one."""

    GOVERNANCE = "governance"
    COMPLIANCE = "compliance"


@dataclass(frozen=True, slots=True)
class Glance:
    """Some of the keys at a location. `complete`: these are all."""

    keys: tuple[str, ...]
    complete: bool


class Store(ABC):
    """The interface of all stores; `tests/stores/test_contract.py` tests each of them."""

    @property
    @abstractmethod
    def location(self) -> str:
        """The location of the store, for messages. Without secrets."""

    @abstractmethod
    def put(self, key: str, data: Data) -> None:
        """Store `data` under a new key; the buffer is not kept.

        Raises:
            ObjectExists: there is already an object under the key; it was not changed. The caller decides whether that
                is a success.
        """

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Return the whole object, however large: read a range if the size is not known to be harmless.

        Raises:
            ObjectNotFound: there is no such object.
        """

    @abstractmethod
    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return `length` bytes (at least 1) from `offset` on; fewer at the end of the object, none beyond it.

        Raises:
            ObjectNotFound: there is no such object.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Return size and age of an object. Raises `ObjectNotFound` if there is none."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose keys start with `prefix`, in ascending order of keys."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the object. Removing a missing one succeeds: a repeated delete cannot be recognized (nor by S3)."""

    @abstractmethod
    def is_temporary(self, error: StoreError) -> bool:
        """Return whether `error`, raised by this store, may be gone if the same call is repeated a little later."""

    # --- what differs: here for a store that has nothing of it ---

    def get_ready(self) -> None:
        """Prepare the location now, if the first `put` would, and that takes a while. Raises the same errors."""
        return

    def probe(self, key: str, data: Data) -> StoreProbe:
        """Find out by the object `key`, which contains `data` and is not changed, what the store can do."""
        return StoreProbe()

    def check_object_lock(self) -> None:
        """Raise `UnsupportedError` if objects cannot be locked here."""
        raise UnsupportedError(
            f"objects cannot be locked in {self.location}",
            hint="Take an S3 bucket that was made with object lock, or do without.",
        )

    def lock_until(self, key: str, until_seconds: float, mode: LockMode) -> None:
        """Lock the object at least until that Unix time. A retention is only ever extended or strengthened.

        Raises:
            ObjectNotFound: there is no such object.
            UnsupportedError: objects cannot be locked here.
        """
        self.check_object_lock()

    def abort_stale_uploads(self, older_than_seconds: float) -> int:
        """Abort this store's uploads that are older than that by the store's clock; return their number."""
        return 0

    def room(self) -> tuple[int, int] | None:
        """Return free and total bytes, if they are known. Raises `StoreError` if objects cannot be stored at all."""
        return None

    def late_seconds(self) -> float:
        """Return how long after the end of a process its last requests may still arrive."""
        return _LATE_SECONDS

    def glance(self, prefix: str = "") -> Glance:
        """List a limited number of keys below `prefix` (empty, or a folder with its slash). The location may be any
        folder or bucket.

        In a folder, files some levels deep: unreadable ones are skipped, and special files count as files. Raises
        `StoreError` if the location itself cannot be read.
        """
        keys = [info.key for info in islice(self.list(prefix), _GLANCE + 1)]
        return Glance(tuple(keys[:_GLANCE]), len(keys) <= _GLANCE)

    def enclosing(self, key: str) -> str | None:
        """Return the nearest location above this one that has an object `key`; None if none has."""
        return None


def is_key(key: str) -> bool:
    """Return whether `key` is valid."""
    return len(key) <= MAX_KEY_BYTES and all(_PART.fullmatch(part) for part in key.split("/"))


def check_key(key: str) -> str:
    """Return `key`, or raise `StoreError` if it is not valid."""
    if not is_key(key):
        raise StoreError(f"not a valid object key: {key[:MAX_KEY_BYTES]!r}")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix`, or raise `StoreError` if no key can start with it."""
    *folders, tail = prefix.split("/")
    whole = all(_PART.fullmatch(part) for part in folders) and _PREFIX_TAIL.fullmatch(tail)
    if len(prefix) > MAX_KEY_BYTES or not whole:
        raise StoreError(f"not a valid key prefix: {prefix[:MAX_KEY_BYTES]!r}")
    return prefix


def check_range(key: str, offset: int, length: int) -> None:
    """Raise `StoreError` unless this is a range that every store can read."""
    if offset < 0 or length < 1:
        raise StoreError(f"not a valid range of {key}: {length} bytes from {offset}")
