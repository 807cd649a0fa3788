"""Where files and tables are written: a folder, or a prefix in S3.

Executors put files to a store under names that depend on their content: a second attempt writes the same, and finds it
already there. Files of lines become visible together: a folder is written under a hidden name, and renamed at the end;
S3 has no renaming, there an object `_SUCCESS` is written last. Tables have commits of their own.

Where others may write, names of files have a part of the run's own: a run that fails deletes its files alone.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from jsbackup.errors import ObjectExists, ObjectNotFound, StoreError, TargetConflict, UsageError
from jsbackup.exchange.folder import NewFolder, check_output, folder_errors, printable_name
from jsbackup.pipeline.session.repository_ref import RepositoryRef
from jsbackup.stores.base import Data, Store
from jsbackup.stores.local import remove_incoming

__all__ = [
    "CATALOG",
    "LOG_FOLDER",
    "SUCCESS",
    "ExportTarget",
    "files_target",
    "location_of",
    "put_again",
    "refuse_foreign",
    "refuse_others",
    "refuse_place",
    "tables_target",
]

SUCCESS = "_SUCCESS"
LOG_FOLDER = "_jsbackup.d"
"""Beside tables of plain Parquet files: what they have. No name of a stream is encoded so."""
CATALOG = "catalog.db"

_PRIVATE = 0o700
_USED_AGAIN = "; what was stored already is used again"

# What the first object of a table may be, or one that an interrupted export has left.
_OF_TABLES = re.compile(
    rf"{re.escape(LOG_FOLDER)}/.|{re.escape(CATALOG)}|[^/]+/(_delta_log/.|metadata/(version-hint\.text|"
    r"[^/]+\.(metadata\.json|avro))|(data/)?([^/=]+=[^/]*/)*\d{20}-\d{20}[-.])",
    re.DOTALL,
)
# Hidden folders that an export removes or uses, and what an empty disk has.
_NOTHING = re.compile(r"\.incoming|\..*\.jsbackup-[0-9a-f]+|lost\+found", re.DOTALL)
_ICEBERG = re.compile(r"metadata/(version-hint\.text|[^/]+\.metadata\.json)")


class ExportTarget(Protocol):
    """Where files or tables are written. Executors put files to the store of `place`."""

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
    def was_empty(self) -> bool: ...

    def commit(self) -> None:
        """Make files visible. Raises UsageError, TargetConflict or StoreError if something else is there by now."""


@contextmanager
def files_target(place: RepositoryRef, token: str) -> Iterator[ExportTarget]:
    """Write files that become visible together at `place`, where nothing is. A folder is removed unless `commit` is
    called. `token` is random.

    Raises:
        UsageError: something is already there.
        StoreError: it cannot be written.
    """
    if place.folder is not None:
        with _true_hints(), NewFolder(Path(place.folder), token, _PRIVATE) as new:
            staged = replace(place, location=str(new.staging))
            yield _FolderTarget(staged, new, token, location_of(place))
        return
    _refuse_any(place)
    with _true_hints():
        yield _PrefixTarget(place, token)


@contextmanager
def tables_target(place: RepositoryRef, token: str, *, append: bool) -> Iterator[ExportTarget]:
    """Write tables at `place`, each of which has commits of its own. With `append` there may be some, which are
    extended. `token` is random.

    Raises UsageError and StoreError as `files_target`, and with `append` as `refuse_foreign`.
    """
    if append:
        refuse_foreign(place)
    folder = None if place.folder is None else Path(place.folder)
    if folder is None:
        if not append:
            _refuse_any(place)
    else:
        hint = "is empty or new, or has tables of an earlier export." if append else "is empty or does not exist yet."
        check_output(folder, hint=f"Name a folder that {hint}")
        with folder_errors(f"{printable_name(str(folder))} cannot be written"):
            folder.mkdir(_PRIVATE, exist_ok=True)
            if not append and any(path.name != CATALOG for path in folder.iterdir()):
                raise UsageError(
                    f"{printable_name(str(folder))} is not empty",
                    hint="Name a folder that is empty or does not exist yet, or extend its tables with --append.",
                )
    was_empty = next(_paths_at(place), None) is None
    try:
        with _true_hints():
            yield _TablesTarget(place, token, was_empty)
    finally:
        if folder is not None:
            remove_incoming(folder)
            _remove_empty(folder)
    if folder is not None:  # also if no stream has a message
        folder.mkdir(_PRIVATE, exist_ok=True)


def _refuse_any(place: RepositoryRef) -> None:
    if next(iter(place.store().list()), None) is not None:
        raise UsageError(f"{place.store().location} is not empty", hint="Name a prefix under which there is nothing.")


def _remove_empty(folder: Path) -> None:
    """Remove folders without files, and with all of them the folder itself."""
    for path, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            Path(path).rmdir()


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
    for log in ("_delta_log", "metadata"):
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


def refuse_others(store: Store, folder: str, name: str, own: re.Pattern[str]) -> None:
    """Raise UsageError if the folder of the table of the stream called `name`, of which there is none yet, has other
    files than `own`, which exports leave that were interrupted.
    """
    others = (info.key for info in store.list(f"{folder}/") if not own.fullmatch(info.key.removeprefix(f"{folder}/")))
    other = next(others, None) or next((info.key for info in store.list(f"{LOG_FOLDER}/{folder}/")), None)
    if other is not None:
        what = "one of plain Parquet files" if other.startswith(LOG_FOLDER) else "of another format, or something else"
        raise UsageError(
            f"the table of stream {name} is {what}: {printable_name(other[:200])} is there",
            hint="Append to it with its --format, or export to another folder.",
        )


class _FolderTarget:
    own = ""
    was_empty = True

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
    was_empty = True

    def __init__(self, place: RepositoryRef, token: str) -> None:
        self.place, self.token, self.location, self.own = place, token, location_of(place), f"-{token}"

    def commit(self) -> None:
        try:
            self.place.store().put(SUCCESS, b"")
        except ObjectExists:
            raise TargetConflict(
                f"another export has written to {self.location} meanwhile", hint="Name another prefix."
            ) from None


class _TablesTarget:
    def __init__(self, place: RepositoryRef, token: str, was_empty: bool) -> None:
        self.place, self.token, self.location, self.own = place, token, location_of(place), f"-{token}"
        self.was_empty = was_empty

    def commit(self) -> None:
        """Each table was committed."""
