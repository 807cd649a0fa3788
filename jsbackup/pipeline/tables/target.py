"""The target of written tables: a folder, or a prefix in S3. It becomes visible as a whole.

Executors put files to a store under names that depend on their content: a second attempt writes the same, and finds it
already there. A folder is written under a hidden name, and renamed at the end. S3 has no renaming: there an object
`_SUCCESS` is written last, as readers of tables expect. Names of files have a part of the run's own there, so that a
run that fails deletes its files and those of no other.

A target that is extended has tables, each with a log of its own (`table_log.py`), which decides what is visible.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from jsbackup.errors import ObjectExists, ObjectNotFound, StoreError, TargetConflict, UsageError
from jsbackup.exchange.folder import folder_errors, printable_name
from jsbackup.exchange.new_folder import NewFolder, check_output
from jsbackup.pipeline.session.repository_ref import RepositoryRef
from jsbackup.stores.base import Data, Store
from jsbackup.stores.local import remove_incoming

__all__ = [
    "SUCCESS",
    "TableTarget",
    "ignores_case",
    "location_of",
    "new_target",
    "open_target",
    "put_again",
    "refuse_foreign",
    "refuse_place",
]

SUCCESS = "_SUCCESS"

_PRIVATE = 0o700
_USED_AGAIN = "; what was stored already is used again"

# What the first object of a table may be, or one that an interrupted export has left.
_OF_TABLES = re.compile(
    r"[^/]+/(_jsbackup/.|_delta_log/.|metadata/(version-hint\.text|[^/]+\.(metadata\.json|avro))|"
    r"(data/)?([^/=]+=[^/]*/)*\d{20}-\d{20}[-.])",
    re.DOTALL,
)
# Hidden folders that an export removes or uses, and what an empty disk has.
_NOTHING = re.compile(r"\.incoming|\..*\.jsbackup-[0-9a-f]+|lost\+found", re.DOTALL)
_ICEBERG = re.compile(r"metadata/(version-hint\.text|[^/]+\.metadata\.json)")


class TableTarget(Protocol):
    """A target being written. Executors put files to the store of `place`."""

    @property
    def place(self) -> RepositoryRef: ...

    @property
    def location(self) -> str:
        """Where readers find it once it is visible: a URL."""

    @property
    def token(self) -> str:
        """Random, for names that no other run uses."""

    @property
    def own(self) -> str:
        """What distinguishes the names of files of this run; "" where no other run writes."""

    @property
    def has_tables(self) -> bool:
        """Whether there may be tables in it, which are extended."""

    def commit(self) -> None:
        """Make it visible. Raises UsageError, TargetConflict or StoreError if something else is there by now."""


@contextmanager
def new_target(place: RepositoryRef, token: str) -> Iterator[TableTarget]:
    """Make a new table at `place`; a folder is removed unless `commit` is called. `token` is random.

    Raises:
        UsageError: something is already there.
        StoreError: it cannot be written.
    """
    if place.folder is not None:
        with _true_hints(), NewFolder(Path(place.folder), token, _PRIVATE) as new:
            staged = replace(place, location=str(new.staging))
            yield _FolderTarget(staged, new, token, location_of(place))
        return
    if next(iter(place.store().list()), None) is not None:
        raise UsageError(f"{place.store().location} is not empty", hint="Name a prefix under which there is nothing.")
    with _true_hints():
        yield _PrefixTarget(place, token)


@contextmanager
def open_target(place: RepositoryRef, token: str) -> Iterator[TableTarget]:
    """Open tables at `place` to extend them, or make a new target where nothing is. `token` is random.

    Raises the errors of `new_target`, and UsageError as `refuse_foreign` or if there is something else than a folder.
    """
    refuse_foreign(place)
    if place.folder is not None:
        folder = Path(place.folder)
        check_output(folder, hint="Name a folder that is empty or new, or has tables of an earlier export.")
        try:
            is_new = not folder.is_dir() or not any(folder.iterdir())
        except OSError as error:
            shown = printable_name(place.folder)
            raise StoreError(f"{shown} cannot be read: {os.strerror(error.errno or 0).lower()}") from error
        if is_new:
            with new_target(place, token) as target:
                yield target
            return
    # Also where nothing is in S3: what an interrupted first export leaves there is then no obstacle.
    with _true_hints():
        yield _GrowingTarget(place, token)


@contextmanager
def _true_hints() -> Iterator[None]:
    """Leave out of hints what is true of repositories only: nothing that a failed export has written is used again."""
    try:
        yield
    except StoreError as error:
        if error.hint is None or _USED_AGAIN not in error.hint:
            raise
        raise error.with_hint(error.hint.replace(_USED_AGAIN, "")) from error


def location_of(place: RepositoryRef) -> str:
    """Return a place as readers of tables know it: a URL."""
    if place.folder is not None:
        return f"file://{Path(place.folder).resolve()}"
    return place.location.rstrip("/")


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


def refuse_place(source: RepositoryRef, target: RepositoryRef) -> None:
    """Raise UsageError if tables would be in the repository, where nothing else is written, or in a table.

    Raises StoreError if the target cannot be listed.
    """
    if source.folder is not None and target.folder is not None:
        within = Path(target.folder).resolve().is_relative_to(Path(source.folder).resolve())
    else:
        within = f"{target.location.rstrip('/')}/".startswith(f"{source.location.rstrip('/')}/")
    if within:
        raise UsageError(
            f"{target.location} is in the repository, where nothing else is written", hint="Name a folder beside it."
        )
    if target.folder is not None and not Path(target.folder).is_dir():
        return
    store = target.store()
    for log in ("_jsbackup", "_delta_log", "metadata"):
        # A stream may be called `metadata`: then its table is there.
        keys = (info.key for info in store.list(f"{log}/"))
        if any(log != "metadata" or _ICEBERG.fullmatch(key) for key in keys):
            raise UsageError(
                f"{target.location} is itself the table of a stream: it has a folder {log}",
                hint="Name the folder above it, which has a folder for each stream.",
            )


def refuse_foreign(place: RepositoryRef) -> None:
    """Raise UsageError where something is, but nothing of a table: it may be the folder of something that is in use.

    Raises StoreError if the place cannot be read.
    """
    is_empty = True
    for path in _paths_at(place):
        if _OF_TABLES.match(path):
            return
        is_empty = False
    if not is_empty:
        raise UsageError(
            f"{printable_name(place.location)} is not empty, and has no tables",
            hint="Name one that is empty or does not exist yet, or that has the tables of an earlier run.",
        )


def _paths_at(place: RepositoryRef) -> Iterator[str]:
    """Yield what is at a place, relative to it: objects, or names in a folder, whatever they are."""
    if place.folder is None:
        yield from (info.key for info in place.store().list() if info.key != SUCCESS)
        return
    # Not through a store, which refuses links and does not see names that are no keys.
    root = Path(place.folder)
    with folder_errors(f"{printable_name(place.folder)} cannot be read"):
        entries = [entry for entry in root.iterdir() if not _NOTHING.fullmatch(entry.name)] if root.is_dir() else []
    for entry in entries:
        yield entry.name
        for folder, _, files in os.walk(entry):
            yield from (str((Path(folder) / file).relative_to(root)) for file in files)


def ignores_case(target: TableTarget) -> bool:
    """Return whether a file system takes names that differ in case for the same. Raises StoreError."""
    if target.place.folder is None:
        return False
    probe = Path(target.place.folder) / f".case-{target.token}"
    with folder_errors(f"{printable_name(target.place.folder)} cannot be written"):
        probe.touch(mode=0o600)
        try:
            return probe.with_name(probe.name.upper()).exists()
        finally:
            probe.unlink()


class _FolderTarget:
    has_tables = False
    own = ""

    def __init__(self, place: RepositoryRef, new: NewFolder, token: str, location: str) -> None:
        self.place, self.token, self.location = place, token, location
        self._new = new

    def commit(self) -> None:
        # The folder for temporary files of stores, with those of killed workers.
        shutil.rmtree(self._new.staging / ".incoming", ignore_errors=True)
        # Those of streams that were refused when their files were written.
        for folder in self._new.staging.iterdir():
            if folder.is_dir() and all(path.is_dir() for path in folder.rglob("*")):
                shutil.rmtree(folder, ignore_errors=True)
        self._new.commit()


class _PrefixTarget:
    has_tables = False

    def __init__(self, place: RepositoryRef, token: str) -> None:
        self.place, self.token, self.location, self.own = place, token, location_of(place), f"-{token}"

    def commit(self) -> None:
        try:
            self.place.store().put(SUCCESS, b"")
        except ObjectExists:
            raise TargetConflict(
                f"another export has written to {self.location} meanwhile", hint="Name another prefix."
            ) from None


class _GrowingTarget:
    has_tables = True

    def __init__(self, place: RepositoryRef, token: str) -> None:
        self.place, self.token, self.location, self.own = place, token, location_of(place), f"-{token}"

    def commit(self) -> None:
        if self.place.folder is None:
            put_again(self.place.store(), SUCCESS, b"")
        else:
            remove_incoming(Path(self.place.folder))
