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
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Protocol, TypeAlias, runtime_checkable

from jsbackup.errors import StoreError, UnsupportedError

__all__ = [
    "MAX_KEY_BYTES",
    "MAX_PART_BYTES",
    "Data",
    "FiniteStore",
    "Glance",
    "GlanceStore",
    "LateRequests",
    "LateStore",
    "LockMode",
    "ObjectInfo",
    "ObjectLock",
    "ProbedStore",
    "StaleUploads",
    "Store",
    "StoreProbe",
    "check_key",
    "check_prefix",
    "check_range",
    "glance_of",
    "is_key",
    "late_seconds_of",
    "object_lock",
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


class Store(Protocol):
    """The interface of all stores; `tests/stores/test_contract.py` tests each of them."""

    @property
    def location(self) -> str:
        """The location of the store, for messages. Without secrets."""

    def put(self, key: str, data: Data) -> None:
        """Store `data` under a new key; the buffer is not kept.

        Raises:
            ObjectExists: there is already an object under the key; it was not changed. The caller decides whether that
                is a success.
        """

    def get(self, key: str) -> bytes:
        """Return the whole object, however large: read a range if the size is not known to be harmless.

        Raises:
            ObjectNotFound: there is no such object.
        """

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return `length` bytes (at least 1) from `offset` on; fewer at the end of the object, none beyond it.

        Raises:
            ObjectNotFound: there is no such object.
        """

    def head(self, key: str) -> ObjectInfo:
        """Return size and age of an object. Raises `ObjectNotFound` if there is none."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose keys start with `prefix`, in ascending order of keys."""

    def delete(self, key: str) -> None:
        """Remove the object. Removing a missing one succeeds: a repeated delete cannot be recognized (nor by S3)."""

    def is_temporary(self, error: StoreError) -> bool:
        """Return whether `error`, raised by this store, may be gone if the same call is repeated a little later."""


@dataclass(frozen=True, slots=True)
class StoreProbe:
    """What a store offers beyond the interface, found out by trying."""

    conditional_writes: bool = True  # of two simultaneous puts under one key one fails
    checksums: bool = False  # data damaged in transit is refused
    object_lock: bool = False  # objects can be locked against deletion for some time
    versioned: bool = False  # deleted objects take room until their versions are deleted (`delete` does that)


@runtime_checkable
class ProbedStore(Protocol):
    """A store that can be probed for more than the interface."""

    def probe(self, key: str, data: Data) -> StoreProbe:
        """Probe the store with the object `key`, which contains `data` and is not changed."""


class LockMode(StrEnum):
    """Who may end a retention early: users with a special permission, or no one."""

    GOVERNANCE = "governance"
    COMPLIANCE = "compliance"


@runtime_checkable
class ObjectLock(Protocol):
    """A store that can protect objects from deletion by anybody."""

    def check_object_lock(self) -> None:
        """Raise `UnsupportedError` if objects cannot be locked here."""

    def lock_until(self, key: str, until_seconds: float, mode: LockMode) -> None:
        """Lock the object at least until that Unix time. A retention is only ever extended or strengthened.

        Raises:
            ObjectNotFound: there is no such object.
            UnsupportedError: objects cannot be locked here.
        """


def object_lock(store: Store) -> ObjectLock:
    """Return the store as an `ObjectLock`. Raises `UnsupportedError` if it is a kind of store without locks."""
    if isinstance(store, ObjectLock):
        return store
    raise UnsupportedError(
        f"objects cannot be locked in {store.location}",
        hint="Take an S3 bucket that was made with object lock, or do without.",
    )


@runtime_checkable
class StaleUploads(Protocol):
    """A store in which unfinished uploads take room."""

    def abort_stale_uploads(self, older_than_seconds: float) -> int:
        """Abort this store's uploads that are older than that by the store's clock; return their number."""


@runtime_checkable
class FiniteStore(Protocol):
    """A store with a known capacity."""

    def room(self) -> tuple[int, int]:
        """Return free and total bytes. Raises `StoreError` if objects cannot be stored at all."""


@dataclass(frozen=True, slots=True)
class Glance:
    """Some of the keys at a location. `complete`: these are all."""

    keys: tuple[str, ...]
    complete: bool


@runtime_checkable
class LateStore(Protocol):
    """A store whose location is prepared by the first `put`, which takes a while."""

    def get_ready(self) -> None:
        """Prepare the location now. Raises the same errors as `put`."""


@runtime_checkable
class LateRequests(Protocol):
    """A store that knows how long a request may be under way."""

    def late_seconds(self) -> float:
        """Return how long after the end of a process its last requests may still arrive."""


def late_seconds_of(store: Store) -> float:
    """Return `store.late_seconds()`, or a time that is long enough for any store."""
    return store.late_seconds() if isinstance(store, LateRequests) else _LATE_SECONDS


@runtime_checkable
class GlanceStore(Protocol):
    """A store whose location may be any folder, in which a listing may take long or fail."""

    def glance(self, prefix: str = "") -> Glance:
        """List a limited number of files below `prefix` (empty, or a folder with its slash), some levels deep.

        Unreadable files are skipped, and special files count as files. Raises `StoreError` if the location itself
        cannot be read.
        """


def glance_of(store: Store, prefix: str = "") -> Glance:
    """Return `store.glance(prefix)`, or the first keys of a listing if the store has no such method."""
    if isinstance(store, GlanceStore):
        return store.glance(prefix)
    keys = [info.key for info in islice(store.list(prefix), _GLANCE + 1)]
    return Glance(tuple(keys[:_GLANCE]), len(keys) <= _GLANCE)


@runtime_checkable
class NestedStore(Protocol):
    """A store whose location may lie within that of another one."""

    def enclosing(self, key: str) -> str | None:
        """Return the nearest location above this one that has an object `key`; None if none has."""


def enclosing_of(store: Store, key: str) -> str | None:
    """Return `store.enclosing(key)`, or None if the store has no such method."""
    return store.enclosing(key) if isinstance(store, NestedStore) else None


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
