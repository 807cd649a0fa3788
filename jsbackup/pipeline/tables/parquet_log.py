"""The log of a table of plain Parquet files, of which readers know nothing: they read all files in the folder.

    ORDERS/00000000000000000001-00000000000000000400.parquet
    ORDERS/_jsbackup/00000000000000000000.json             the first export: its files, and how far they go
    ORDERS/_jsbackup/00000000000000000001-9f1c0a77/*.part  files of the next one, until they are moved up

With partitions, files are in the folder of theirs: `ORDERS/day=2026-11-26/*.parquet`.

An export that extends a table writes its files below `_jsbackup`, where no reader looks. Then it puts the record with
the next number, which commits it, and then moves the files up one by one. If it is interrupted there, the next export
goes on with that, whichever runs it: to move a file twice does no harm. Files of exports that were not committed are
removed once there is a record with their number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from jsbackup.errors import FormatError, ObjectNotFound, UsageError
from jsbackup.pipeline.tables.partitions import partition_of
from jsbackup.pipeline.tables.table_log import ANY_RANGE, FileRange, put_commit, range_of, refuse_other_format
from jsbackup.pipeline.tables.table_state import TablePosition, TableSource, TableState
from jsbackup.pipeline.tables.target import put_again
from jsbackup.pipeline.tables.writing import TableFormat, WrittenFile
from jsbackup.repository.names import encode_name
from jsbackup.stores.base import Store, is_key
from jsbackup.strict_json import read_object, write_json

__all__ = ["ParquetLog", "was_exported"]

_FOLDER = "_jsbackup"
_RECORD = re.compile(r"(\d{20})\.json")
_STAGED = re.compile(r"(\d{20})-([0-9a-f]+)/.+\.part", re.DOTALL)
_ENDING, _STAGED_ENDING = ".parquet", ".part"
_JOINT, _STAGED_JOINT = "/", "="  # no folders of partitions below `_jsbackup`, where they would stay behind
_NO_TOKEN = "00000000"  # of a new target, whose files are not moved: equal exports have equal records
_MAX_BYTES = 256 << 20


def was_exported(path: Path) -> bool:
    """Return whether a table in local files, a partition or a file of one was written by an export."""
    return any((folder / _FOLDER).is_dir() for folder in (path, *path.parents[:2]))


class ParquetLog:
    """The log of the stream called `name` there. `token` is random, in hex. A new target has no tables, and its files
    have `own` in their names.

    Raises:
        UsageError: files are there without a log.
        FormatError: the log is damaged.
        UnsupportedError: it was written by a newer version.
        StoreError: it cannot be read.
    """

    def __init__(self, store: Store, name: str, token: str, *, own: str, new_target: bool) -> None:
        self._store, self._name = store, name
        self.ending = f"{own}{_ENDING}" if new_target else _STAGED_ENDING
        self._token = _NO_TOKEN if new_target else token
        self._folder = encode_name(name)
        self._is_new = new_target
        self._number = 0  # of the next record
        self._staged: list[str] = []  # keys of files that were not moved up, of this and earlier exports
        self._last: dict[str, Any] | None = None
        self.state: TableState | None = None
        self.partitions: set[str] = set()
        if not new_target:
            self._read()

    @property
    def staging(self) -> str:
        return self._folder if self._is_new else self._staging(self._number, self._token)

    @property
    def joint(self) -> str:
        return _JOINT if self._is_new else _STAGED_JOINT

    def ranges(self) -> list[FileRange]:
        found, staged = [], set(self._staged)
        for number in range(self._number):
            key = self._record(number)
            record = _checked(self._store.get_range(key, 0, _MAX_BYTES), f"the log {key} of the table")
            folder = self._staging(number, record["token"])
            for file in record["files"]:
                name, rows = file["name"], _rows_of(file, key)
                # An interrupted export may not have moved it up.
                before = _staged_key(folder, name)
                path = before if before in staged else f"{self._folder}/{name}"
                found.append(range_of(name, rows, path) or ANY_RANGE._replace(rows=rows, key=path))
        return found

    def finish(self) -> None:
        if self._last is not None:
            self._move_up(self._number - 1, self._last["token"], [file["name"] for file in self._last["files"]])
            self._sweep(self._number - 1)

    def commit(self, files: Sequence[WrittenFile], state: TableState, payloads: Sequence[pa.Field] = ()) -> None:
        if not files and self.state is None:
            return  # a folder without files is no table
        names = [f"{file.path().removesuffix(_STAGED_ENDING).removesuffix(_ENDING)}{_ENDING}" for file in files]
        record = {
            "table": state.source.to_json(),
            "position": state.position.to_json(),
            "token": self._token,
            "files": [
                {"name": name, "rows": file.rows, "bytes": file.bytes} for name, file in zip(names, files, strict=True)
            ],
        }
        put_commit(self._store, self._record(self._number), write_json(record, "the record of a table"), self._name)
        if not self._is_new:
            self._staged += [f"{self.staging}/{file.path(self.joint)}" for file in files]
            self._move_up(self._number, self._token, names)
            self._sweep(self._number)

    def _read(self) -> None:
        others = False
        for info in self._store.list(f"{self._folder}/"):
            path = info.key.removeprefix(f"{self._folder}/")
            refuse_other_format(self._name, TableFormat.PARQUET, path)
            if not path.startswith(f"{_FOLDER}/"):
                others = True
                self.partitions |= {partition_of(path) or ""} - {""}
                continue
            path = path.removeprefix(f"{_FOLDER}/")
            if found := _RECORD.fullmatch(path):
                self._number = int(found[1]) + 1
            elif _STAGED.fullmatch(path):
                self._staged.append(info.key)
        if self._number:
            key = self._record(self._number - 1)
            self._last = _checked(self._store.get_range(key, 0, _MAX_BYTES), f"the log {key} of the table")
            what = f"the log of the table of stream {self._name}"
            source = TableSource.from_json(self._last["table"], what)
            self.state = TableState(source, TablePosition.from_json(self._last["position"], what))
        elif others:
            raise UsageError(
                f"the table of stream {self._name} has no log that says how far it goes: an older jsbackup "
                "or something else has made it, or an export was interrupted",
                hint="Export to another folder; --append can extend that.",
            )

    def _move_up(self, number: int, token: str, names: Iterable[str]) -> None:
        """Move committed files to where readers find them. Those that are not staged have been moved."""
        folder, staged = self._staging(number, token), set(self._staged)
        for name in names:
            key = _staged_key(folder, name)
            if key not in staged:
                continue
            try:
                content = self._store.get(key)
            except ObjectNotFound:
                continue  # another export has moved it at the same time
            put_again(self._store, f"{self._folder}/{name}", content)
            self._store.delete(key)

    def _sweep(self, number: int) -> None:
        """Remove files of exports that can no longer be committed, because there is a record with their number."""
        kept = []
        for key in self._staged:
            found = _STAGED.fullmatch(key.removeprefix(f"{self._folder}/{_FOLDER}/"))
            if found is not None and int(found[1]) <= number:
                self._store.delete(key)
            else:
                kept.append(key)
        self._staged = kept

    def _record(self, number: int) -> str:
        return f"{self._folder}/{_FOLDER}/{number:020}.json"

    def _staging(self, number: int, token: str) -> str:
        return f"{self._folder}/{_FOLDER}/{number:020}-{token}"


def _staged_key(folder: str, name: str) -> str:
    """Return where a file was written that is to be moved up under this name."""
    return f"{folder}/{name.removesuffix(_ENDING).replace('/', _STAGED_JOINT)}{_STAGED_ENDING}"


def _rows_of(file: dict[str, Any], key: str) -> int:
    rows = file.get("rows")
    if type(rows) is not int:
        raise FormatError(f"the log {key} of the table is damaged")
    return rows


def _checked(data: bytes, what: str) -> dict[str, Any]:
    record = read_object(data, what, max_bytes=_MAX_BYTES)
    token, files = record.get("token"), record.get("files")
    sound = (
        all(isinstance(record.get(name), dict) for name in ("table", "position"))
        and isinstance(token, str)
        and re.fullmatch(r"[0-9a-f]+", token) is not None
        and isinstance(files, list)
        and all(isinstance(file, dict) and isinstance(file.get("name"), str) and is_key(file["name"]) for file in files)
    )
    if not sound:
        raise FormatError(f"{what} is damaged")
    return record
