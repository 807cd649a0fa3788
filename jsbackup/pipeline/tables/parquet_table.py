"""A table of plain Parquet files, of which readers know nothing: they read all files in its folder.

    ORDERS/<first>-<last>-<backup>.parquet              with partitions in ORDERS/day=2026-11-26
    _jsbackup.d/ORDERS/00000000000000000000.json        the first commit: its files, and the state of the table
    _jsbackup.d/ORDERS/00000000000000000001-9f1c0a77/*.part      files of the next one, until they are moved up

An export writes its files below `_jsbackup.d`, where no reader looks. Then it puts the record with the next number,
which commits it, and then moves the files up one by one. If it is interrupted there, the next export goes on with that,
whichever runs it: to move a file twice does no harm. Files of exports that were not committed are removed once there is
a record with their number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from jsbackup.errors import FormatError, ObjectExists, ObjectNotFound, TargetConflict, UsageError
from jsbackup.pipeline.session.repository_ref import RepositoryRef
from jsbackup.pipeline.tables.table_state import TableState
from jsbackup.pipeline.tables.target import LOG_FOLDER, put_again
from jsbackup.pipeline.tables.writing import WrittenFile
from jsbackup.repository.layout import encode_name
from jsbackup.stores.base import is_key
from jsbackup.strict_json import read_object, write_json

__all__ = ["GrowingTable", "ParquetTable", "changed_meanwhile"]

_RECORD = re.compile(r"(\d{20})\.json")
_STAGED = re.compile(r"(\d{20})-([0-9a-f]+)/.+\.part", re.DOTALL)
_ENDING, _STAGED_ENDING = ".parquet", ".part"
_MAX_BYTES = 256 << 20


class GrowingTable(Protocol):
    """The table of a stream that an export makes or extends.

    `state` is None if there is none yet. Tasks write files to `folder` at `place`, with names that end with `ending`,
    by which a run recognizes its own; `joint` is between the folder of a partition and a name.
    """

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> TableState | None: ...

    @property
    def place(self) -> RepositoryRef: ...

    @property
    def folder(self) -> str: ...

    @property
    def ending(self) -> str: ...

    @property
    def joint(self) -> str: ...

    def commit(self, files: Sequence[WrittenFile], state: TableState, backup: str) -> None:
        """Make the written files, of messages of a backup, a part of the table; and `state` that of it, in one step.

        Raises:
            TargetConflict: something else has changed it meanwhile; these files are not a part of it.
            StoreError: it is not known whether they are.
        """

    def finish(self) -> None:
        """Complete what was committed. Raises StoreError."""


def changed_meanwhile(name: str) -> TargetConflict:
    return TargetConflict(
        f"something else has changed the table of stream {name} meanwhile",
        hint="Run the command again: it adds what is still missing.",
    )


class ParquetTable:
    """The table of the stream called `name` at a place. `token` is random, in hex.

    Raises:
        UsageError: files are there without a record.
        FormatError: the record is damaged.
        UnsupportedError: it was written by another version.
        StoreError: it cannot be read.
    """

    joint = "="  # no folders of partitions below `_jsbackup.d`, where they would stay behind
    ending = _STAGED_ENDING

    def __init__(self, place: RepositoryRef, name: str, token: str) -> None:
        self.place, self.name = place, name
        self.state: TableState | None = None
        self._store, self._token = place.store(), token
        self._files = encode_name(name)
        self._log = f"{LOG_FOLDER}/{self._files}"
        self._number = 0  # of the next record
        self._staged: list[str] = []  # keys of files that were not moved up, of this and earlier exports
        last = self._read()
        if last is not None:
            self._move_up(self._number - 1, last["token"], last["files"])
            self._sweep(self._number - 1)

    @property
    def folder(self) -> str:
        return self._staging(self._number, self._token)

    def finish(self) -> None:
        """Files were moved up by each commit."""

    def commit(self, files: Sequence[WrittenFile], state: TableState, backup: str) -> None:
        names = [f"{file.path().removesuffix(_STAGED_ENDING)}{_ENDING}" for file in files]
        record = {"token": self._token, "backup": backup, "state": state.to_json(), "files": names}
        data = write_json(record, "the record of a table")
        try:
            self._store.put(self._record(self._number), data)
        except ObjectExists:
            if self._store.get(self._record(self._number)) != data:
                raise changed_meanwhile(self.name) from None
        self._staged += [f"{self.folder}/{file.path(self.joint)}" for file in files]
        self.state, number = state, self._number
        self._number += 1
        self._move_up(number, self._token, names)
        self._sweep(number)

    def _read(self) -> dict[str, Any] | None:
        for info in self._store.list(f"{self._log}/"):
            path = info.key.removeprefix(f"{self._log}/")
            if match := _RECORD.fullmatch(path):
                self._number = int(match[1]) + 1
            elif _STAGED.fullmatch(path):
                self._staged.append(info.key)
        if not self._number:
            if next(iter(self._store.list(f"{self._files}/")), None) is not None:
                raise UsageError(
                    f"the table of stream {self.name} has no record of what it has: something else has made it",
                    hint="Export to another folder.",
                )
            return None
        what = f"the record {self._record(self._number - 1)} of the table"
        last = read_object(self._store.get_range(self._record(self._number - 1), 0, _MAX_BYTES), what)
        token, files, state = last.get("token"), last.get("files"), last.get("state")
        sound = isinstance(token, str) and re.fullmatch(r"[0-9a-f]+", token) and isinstance(state, str)
        if (
            not sound
            or not isinstance(files, list)
            or not all(isinstance(file, str) and is_key(file) for file in files)
        ):
            raise FormatError(f"{what} is damaged")
        self.state = TableState.from_json(str(state), what)
        return last

    def _move_up(self, number: int, token: str, names: Iterable[str]) -> None:
        """Move committed files to where readers find them. Those that are not staged have been moved."""
        folder, staged = self._staging(number, token), set(self._staged)
        for name in names:
            key = f"{folder}/{name.removesuffix(_ENDING).replace('/', self.joint)}{_STAGED_ENDING}"
            if key not in staged:
                continue
            try:
                content = self._store.get(key)
            except ObjectNotFound:
                continue  # another export has moved it at the same time
            put_again(self._store, f"{self._files}/{name}", content)
            self._store.delete(key)

    def _sweep(self, number: int) -> None:
        """Remove files of exports that can no longer be committed, because there is a record with their number."""
        kept = []
        for key in self._staged:
            match = _STAGED.fullmatch(key.removeprefix(f"{self._log}/"))
            if match is not None and int(match[1]) <= number:
                self._store.delete(key)
            else:
                kept.append(key)
        self._staged = kept

    def _record(self, number: int) -> str:
        return f"{self._log}/{number:020}.json"

    def _staging(self, number: int, token: str) -> str:
        return f"{self._log}/{number:020}-{token}"
