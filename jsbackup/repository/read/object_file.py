"""A stored object as a file that can be read in parts, for readers that need little of it.

Only for objects that are not encrypted: an encrypted one can only be opened as a whole. Nothing is verified, because a
manifest's digests (`objects.py`) cover the whole object.
"""

from __future__ import annotations

import io

from jsbackup.stores.base import Store

__all__ = ["ObjectFile"]


class ObjectFile(io.RawIOBase):
    """The object `key` of `size` bytes. Reading raises `ObjectNotFound` and `StoreError`."""

    def __init__(self, store: Store, key: str, size: int) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        length = left if size < 0 else min(size, left)
        data = self._store.get_range(self._key, self._at, length) if length else b""
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()
