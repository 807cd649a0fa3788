"""The objects of folders as the store lists them, held in little memory: folders may have a million."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from jsbackup.repository import layout
from jsbackup.repository.refs import AnyRef, folder_of
from jsbackup.stores.base import ObjectInfo, Store

__all__ = ["FolderListing", "FolderListings", "ListedObject"]

# So many folders are listed one by one, and then all others at once.
_MOST_LISTED = 32


class ListedObject(NamedTuple):
    """Size in bytes, and the Unix time of the put by the store's clock."""

    size: int
    modified_seconds: float


class FolderListing:
    """Sizes and times by key, 24 bytes for each object. Hashes of keys are held: a key that is not there would only be
    found if its hash of 64 bits were that of another.
    """

    def __init__(self, infos: Iterable[ObjectInfo]) -> None:
        hashes, sizes, times = array("q"), array("q"), array("d")
        for info in infos:
            hashes.append(hash(info.key))
            sizes.append(info.size)
            times.append(info.modified_seconds)
        order = sorted(range(len(hashes)), key=hashes.__getitem__)
        self._hashes = array("q", map(hashes.__getitem__, order))
        self._sizes = array("q", map(sizes.__getitem__, order))
        self._times = array("d", map(times.__getitem__, order))

    def find(self, key: str) -> ListedObject | None:
        """Return the object with this key, None if it is not listed."""
        wanted = hash(key)
        at = bisect_left(self._hashes, wanted)
        if at == len(self._hashes) or self._hashes[at] != wanted:
            return None
        return ListedObject(self._sizes[at], self._times[at])


class FolderListings:
    """Listings of the folders of streams and of pages of streams, each from when it was first needed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folders: dict[str, FolderListing] = {}
        self._others: FolderListing | None = None  # all folders that are not among these

    def find(self, ref: AnyRef) -> ListedObject | None:
        """Return the object that a reference names. Raises StoreError."""
        return self._listed(folder_of(ref)).find(ref.key)

    def has(self, ref: AnyRef) -> bool:
        """Return whether that is there, with its size. Raises StoreError."""
        listed = self.find(ref)
        return listed is not None and listed.size == ref.size

    def _listed(self, folder: str) -> FolderListing:
        if folder in self._folders:
            return self._folders[folder]
        if len(self._folders) < _MOST_LISTED or layout.STREAMS.startswith(folder):
            self._folders[folder] = FolderListing(self._store.list(f"{folder}/"))
            return self._folders[folder]
        if self._others is None:
            self._others = self._list_others()
        return self._others

    def _list_others(self) -> FolderListing:
        """List all folders that were not listed before: a request lists a thousand objects, and most have few."""
        infos = self._store.list(layout.SEGMENTS)
        return FolderListing(info for info in infos if info.key.rpartition("/")[0] not in self._folders)
