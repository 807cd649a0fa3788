"""Content-addressed objects: stored once, checked before use.

An object that a manifest names is absent (`IntegrityError`), unreadable (`StoreError`) or not what it should be
(`DigestMismatch`): three different errors, because three different things have to be done.
"""

from __future__ import annotations

import hashlib

from jsbackup.errors import DigestMismatch, FormatError, IntegrityError, ObjectExists, ObjectNotFound
from jsbackup.stores.base import Data, Store

__all__ = ["MAX_OBJECT_BYTES", "fetch", "put_once", "sha256_of"]

# Nothing we store comes near: 64 MiB of raw messages, or one message of at most 96 MiB, that do not compress.
MAX_OBJECT_BYTES = 256 << 20


def sha256_of(data: Data) -> str:
    return hashlib.sha256(data).hexdigest()


def put_once(store: Store, key: str, data: Data) -> bool:
    """Store an object whose key contains its own SHA-256. False if it was there (with the same size).

    Raises:
        IntegrityError: the object that is there has another size, so it is damaged; it is left alone.
    """
    try:
        store.put(key, data)
    except ObjectExists:
        size = len(memoryview(data).cast("B"))
        found = store.head(key).size
        if found != size:
            raise IntegrityError(
                f"object {key} has {found} bytes, and {size} would be right",
                hint="It is damaged: remove it and run the command again.",
            ) from None
        return False
    return True


def fetch(store: Store, key: str, size: int, sha256: str) -> bytes:
    """The object a manifest names, checked against its size and SHA-256 before anybody looks inside.

    Raises:
        IntegrityError: it is missing.
        DigestMismatch: it is not the object that was stored.
        StoreError: it cannot be read.
    """
    if size > MAX_OBJECT_BYTES:
        raise FormatError(f"object {key} is said to have {size} bytes, more than any object has")
    try:
        # One byte more than there should be: a longer object shows itself, and a huge one is not fetched.
        data = store.get_range(key, 0, size + 1)
    except ObjectNotFound as error:
        raise IntegrityError(f"object {key} is missing") from error
    if len(data) != size:
        found = f"only {len(data)}" if len(data) < size else "more"
        raise DigestMismatch(f"object {key} should have {size} bytes and has {found}")
    if sha256_of(data) != sha256:
        raise DigestMismatch(f"object {key} has changed since it was stored (SHA-256 differs)")
    return data
