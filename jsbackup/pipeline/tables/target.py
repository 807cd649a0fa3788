"""The target of written tables: a folder, or a prefix in S3. It becomes visible as a whole.

Executors put files to a store under names that depend on their content: a second attempt writes the same, and finds it
already there. A folder is written under a hidden name, and renamed at the end. S3 has no renaming: there an object
`_SUCCESS` is written last, as readers of tables expect, and the files of a failed export are deleted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from jsbackup.errors import ObjectExists, ObjectNotFound, StoreError, UsageError
from jsbackup.exchange.new_folder import NewFolder
from jsbackup.pipeline.session.repository_ref import RepositoryRef
from jsbackup.stores.base import Data, Store

__all__ = ["SUCCESS", "TableTarget", "new_target", "put_again"]

SUCCESS = "_SUCCESS"

_PRIVATE = 0o700


class TableTarget(Protocol):
    """A target being written. Executors put files to the store of `place`."""

    @property
    def place(self) -> RepositoryRef: ...

    def commit(self) -> None:
        """Make it visible. Raises UsageError or StoreError if something else is there by now."""


@contextmanager
def new_target(place: RepositoryRef, token: str) -> Iterator[TableTarget]:
    """Make a new table at `place`, which is removed unless `commit` is called. `token` is random.

    Raises:
        UsageError: something is already there.
        StoreError: it cannot be written.
    """
    if place.folder is not None:
        with NewFolder(Path(place.folder), token, _PRIVATE) as new:
            yield _FolderTarget(replace(place, location=str(new.staging)), new)
        return
    target = _PrefixTarget(place)
    if next(iter(place.store().list()), None) is not None:
        raise UsageError(f"{place.store().location} is not empty", hint="Name a prefix under which there is nothing.")
    try:
        yield target
    finally:
        target.clean()


def put_again(store: Store, key: str, data: Data) -> None:
    """Put an object that an earlier attempt may have put. Raises StoreError if there is a different one."""
    try:
        store.put(key, data)
    except ObjectExists:
        view = memoryview(data).cast("B")
        try:
            same = store.get_range(key, 0, len(view) + 1) == view
        except ObjectNotFound:
            same = False
        if not same:
            raise StoreError(f"{key} is there already, with another content") from None


class _FolderTarget:
    def __init__(self, place: RepositoryRef, new: NewFolder) -> None:
        self.place = place
        self._new = new

    def commit(self) -> None:
        # The folder for temporary files of stores, with those of killed workers.
        shutil.rmtree(self._new.staging / ".incoming", ignore_errors=True)
        self._new.commit()


class _PrefixTarget:
    def __init__(self, place: RepositoryRef) -> None:
        self.place = place
        self._committed = False

    def commit(self) -> None:
        self.place.store().put(SUCCESS, b"")
        self._committed = True

    def clean(self) -> None:
        if not self._committed:
            store = self.place.store()
            for info in list(store.list()):
                store.delete(info.key)
