"""The sequences of the messages that files of a table have, read from the files: only their column `sequence`."""

from __future__ import annotations

import io
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from jsbackup.errors import FormatError, ObjectNotFound
from jsbackup.stores.base import Store

__all__ = ["read_sequences"]

_COLUMN = "sequence"


def read_sequences(store: Store, keys: Iterable[str]) -> pa.Array:
    """Return the sequences of the rows of Parquet files in a store, in no order; eight bytes for each.

    Raises:
        FormatError: a file is missing or damaged, has no such column, or has no key.
        StoreError: one cannot be read.
    """
    found: list[pa.Array] = []
    for key in keys:
        if not key:
            raise FormatError("the table has a file that is not in its folder")
        try:
            file = pq.ParquetFile(pa.PythonFile(_StoredFile(store, key), mode="r"))
            column = file.read(columns=[_COLUMN]).column(_COLUMN)
            found += column.cast(pa.int64()).chunks
        except ObjectNotFound as error:
            raise FormatError(f"the file {key} of the table is missing") from error
        except (pa.ArrowException, KeyError) as error:
            raise FormatError(f"the file {key} of the table is damaged, or has no column {_COLUMN}") from error
    return pa.concat_arrays([pa.array([], pa.int64()), *found])


class _StoredFile(io.RawIOBase):
    """An object of a store, of which only those parts are fetched that are read."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key
        self._size, self._at = store.head(key).size, 0

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
        length = self._size - self._at if size < 0 else min(size, self._size - self._at)
        data = self._store.get_range(self._key, self._at, length) if length > 0 else b""
        self._at += len(data)
        return data
