"""Where tables are written: a folder, or a prefix in S3. All of it is seen at its end, or nothing is.

Executors put files through a store, under names that say what is in them: a second attempt writes the same, and finds
it there. A folder is written under a hidden name, and gets its own when all is done. S3 knows no renaming: there an
object `_SUCCESS` comes last, as readers of tables expect it, and what a failed export has put is deleted.
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
    """What is being written. `place` is where executors put files, by its store."""

    @property
    def place(self) -> RepositoryRef: ...

    def commit(self) -> None:
        """Make it seen. Raises UsageError or StoreError if something is in the way by now."""


@contextmanager
def new_target(place: RepositoryRef, token: str) -> Iterator[TableTarget]:
    """A new table at `place`; without `commit` nothing is left of it. `token` is random.

    Raises:
        UsageError: there is something already.
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
    """Put what an earlier attempt may have put. Raises StoreError if there is something else."""
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
        # What stores write their files into, with what killed workers have left there.
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
