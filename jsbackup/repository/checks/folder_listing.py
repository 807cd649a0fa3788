"""The objects of folders as the store lists them, held in little memory: folders may have a million."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from jsbackup.stores.base import ObjectInfo

__all__ = ["FolderListing", "ListedObject"]


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
