"""Test that a store meets the requirements when a repository is made, so that no backup fails later because of it."""

from __future__ import annotations

from contextlib import suppress

from jsbackup.errors import ObjectExists, ObjectLocked, ObjectNotFound, StoreError, UnsupportedError
from jsbackup.stores.base import Store, StoreProbe

__all__ = ["probe_store"]

_DATA = bytes(range(256)) * 16


def probe_store(store: Store, key: str) -> StoreProbe:
    """Put, read, list and delete an object under `key`, which must not exist, and probe the store's other abilities.

    Leaves nothing behind, unless the bucket locks every new object.

    Raises:
        UnsupportedError: the store does not behave as required.
        StoreError: it does not answer, or does not allow it.
    """
    store.put(key, _DATA)
    try:
        _probe(store, key)
        abilities = store.probe(key, _DATA)
    except BaseException:
        with suppress(StoreError):  # the first error counts
            store.delete(key)
        raise
    try:
        store.delete(key)
        store.head(key)
    except (ObjectNotFound, ObjectLocked):
        return abilities
    raise _broken(store, "shows an object that was deleted")


def _probe(store: Store, key: str) -> None:
    if store.get(key) != _DATA:
        raise _broken(store, "returns other bytes than were stored")
    if store.get_range(key, 250, 20) != _DATA[250:270] or store.get_range(key, len(_DATA) - 1, 20) != _DATA[-1:]:
        raise _broken(store, "returns wrong ranges")
    if store.head(key).size != len(_DATA):
        raise _broken(store, "returns a wrong size")
    if [(info.key, info.size) for info in store.list(key)] != [(key, len(_DATA))]:
        raise _broken(store, "does not list what was put")
    with suppress(ObjectExists):
        store.put(key, b"replaced")
        raise _broken(store, "replaces objects instead of refusing to")
    if store.get(key) != _DATA:
        raise _broken(store, "says that it refused to replace an object, and replaced it")


def _broken(store: Store, how: str) -> UnsupportedError:
    return UnsupportedError(
        f"the store at {store.location} {how}", hint="Use another store: backups would not be safe."
    )
