"""A store: named bytes, and nothing about what they mean.

    put      create-only: an object appears whole under its key, or not at all, and is never replaced
    get      the whole object
    get_range  a part of it
    head     its size and age
    list     all objects whose key starts with a prefix, in order
    delete   idempotent

Rules for both sides. Stores are synchronous and may be used from several threads at once. When `put` returns, the
object survives a power cut. A listing shows every object whose `put` has returned, and none that is unfinished. Nothing
here retries but `RetryingStore`. Absence is `ObjectNotFound`, everything else that stands between the caller and the
bytes is another `StoreError`: nothing is answered with None, and "unreadable" is never taken for "absent".

**Keys** are ASCII, at most 512 bytes (an S3 key has 1024, and a prefix goes before ours), parts separated by `/`. A
part has 1 to 255 bytes (what file systems take) from `A–Z a–z 0–9 . _ - %` and does not start with a dot: `..` cannot
be written, and a store may keep files of its own under hidden names. No key may continue another (`a` and `a/b`): where
keys are files, that is a file and a folder of one name. Keys are checked on the way in (`StoreError`) and on what a
listing gives: a foreign file whose name cannot be a key is not an object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
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
    "object_lock",
]

Data: TypeAlias = bytes | bytearray | memoryview
"""What can be put: any contiguous bytes."""

MAX_KEY_BYTES = 512
MAX_PART_BYTES = 255

_GLANCE = 999  # keys: one page of S3

_PART = re.compile(r"[A-Za-z0-9_%-][A-Za-z0-9._%-]{0,254}")
_PREFIX_TAIL = re.compile(r"([A-Za-z0-9_%-][A-Za-z0-9._%-]{0,254})?")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object without its bytes. `modified_seconds` is Unix time of the put by the store's own clock."""

    key: str
    size: int
    modified_seconds: float


class Store(Protocol):
    """The contract; `tests/stores/test_contract.py` holds every store to it."""

    @property
    def location(self) -> str:
        """Where the store is, for messages. Holds no secrets."""

    def put(self, key: str, data: Data) -> None:
        """Store `data` under a new key; the buffer is not kept.

        Raises:
            ObjectExists: there is an object under the key; it was left alone. Whether that is as good as done is for
                the caller to say.
        """

    def get(self, key: str) -> bytes:
        """The whole object, however large: ask for a range where the size is not known to be harmless.

        Raises:
            ObjectNotFound: there is no such object.
        """

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """`length` bytes (at least 1) from `offset` on; fewer only where the object ends, none past its end.

        Raises:
            ObjectNotFound: there is no such object.
        """

    def head(self, key: str) -> ObjectInfo:
        """Raises `ObjectNotFound` if there is no such object."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Every object whose key starts with `prefix`, in ascending order of keys. Empty if there is none."""

    def delete(self, key: str) -> None:
        """Remove the object. Removing what is absent succeeds: a repeated delete cannot tell (nor can S3)."""

    def is_temporary(self, error: StoreError) -> bool:
        """Whether `error`, raised by this store, may go away if the same is done again a little later."""


@dataclass(frozen=True, slots=True)
class StoreProbe:
    """What a store promises beyond the contract, found out by trying."""

    conditional_writes: bool = True  # of two puts under one key at the same moment one fails
    checksums: bool = False  # what was damaged on its way is refused
    object_lock: bool = False  # objects can be kept from everybody for some time
    versioned: bool = False  # deleted objects go on to take room until their versions are deleted, which `delete` does


@runtime_checkable
class ProbedStore(Protocol):
    """A store that can tell more about itself than the contract."""

    def probe(self, key: str, data: Data) -> StoreProbe:
        """Try what can be tried with the object `key`, which holds `data` and stays as it is."""


class LockMode(StrEnum):
    """Who may end a retention before its time: users with a special permission, or nobody at all."""

    GOVERNANCE = "governance"
    COMPLIANCE = "compliance"


@runtime_checkable
class ObjectLock(Protocol):
    """A store that can keep objects from being deleted, by whomever."""

    def check_object_lock(self) -> None:
        """Raises `UnsupportedError` if objects cannot be locked here."""

    def lock_until(self, key: str, until_seconds: float, mode: LockMode) -> None:
        """Keep the object until that Unix time at least. A retention is extended, never shortened or weakened.

        Raises:
            ObjectNotFound: there is no such object.
            UnsupportedError: objects cannot be locked here.
        """


def object_lock(store: Store) -> ObjectLock:
    """The store as one that locks. `UnsupportedError` if it cannot, whatever the bucket."""
    if isinstance(store, ObjectLock):
        return store
    raise UnsupportedError(
        f"objects cannot be locked in {store.location}",
        hint="Take an S3 bucket that was made with object lock, or do without.",
    )


@runtime_checkable
class StaleUploads(Protocol):
    """A store in which uploads that were never finished take room."""

    def abort_stale_uploads(self, older_than_seconds: float) -> int:
        """Abort those of this store that were begun so long ago, by the store's own clock. How many they were."""


@runtime_checkable
class FiniteStore(Protocol):
    """A store that knows how much it can still take."""

    def room(self) -> tuple[int, int]:
        """Free bytes, and all that there are, free or not. Raises `StoreError` where objects cannot be put at all."""


@dataclass(frozen=True, slots=True)
class Glance:
    """Some of what a location holds, whatever that is. `complete`: these keys are all of it."""

    keys: tuple[str, ...]
    complete: bool


@runtime_checkable
class LateStore(Protocol):
    """A store whose location is made ready by the first object that is put, which takes a while."""

    def get_ready(self) -> None:
        """Do that now. Raises as `put`."""


@runtime_checkable
class GlanceStore(Protocol):
    """A store whose location may be anything: a folder of somebody's, in which a listing takes long or fails."""

    def glance(self, prefix: str = "") -> Glance:
        """Look at a bounded part of what lies below `prefix` (empty, or a folder with its slash), some levels deep.

        What cannot be read is passed over, and special files count as files. Raises `StoreError` if the location
        itself cannot be read.
        """


def glance_of(store: Store, prefix: str = "") -> Glance:
    """The same for any store: of one that cannot, the first keys of a listing."""
    if isinstance(store, GlanceStore):
        return store.glance(prefix)
    keys = [info.key for info in islice(store.list(prefix), _GLANCE + 1)]
    return Glance(tuple(keys[:_GLANCE]), len(keys) <= _GLANCE)


def is_key(key: str) -> bool:
    """Whether `key` obeys the rules."""
    return len(key) <= MAX_KEY_BYTES and all(_PART.fullmatch(part) for part in key.split("/"))


def check_key(key: str) -> str:
    """Give `key` back, or raise `StoreError`."""
    if not is_key(key):
        raise StoreError(f"not a valid object key: {key[:MAX_KEY_BYTES]!r}")
    return key


def check_prefix(prefix: str) -> str:
    """Give back `prefix`, the start of some key, or raise `StoreError`."""
    *folders, tail = prefix.split("/")
    whole = all(_PART.fullmatch(part) for part in folders) and _PREFIX_TAIL.fullmatch(tail)
    if len(prefix) > MAX_KEY_BYTES or not whole:
        raise StoreError(f"not a valid key prefix: {prefix[:MAX_KEY_BYTES]!r}")
    return prefix


def check_range(key: str, offset: int, length: int) -> None:
    """Raise `StoreError` unless this is a range that every store can read."""
    if offset < 0 or length < 1:
        raise StoreError(f"not a valid range of {key}: {length} bytes from {offset}")
