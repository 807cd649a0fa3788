"""The log of a stream's Delta table at the target of an export.

Readers see the files that the log names, so an export that extends a table writes its files beside the others, under
names that no other export uses, and a commit adds all of them at once. What an interrupted export leaves is never seen;
`VACUUM` removes it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from jsbackup.errors import FormatError, UsageError
from jsbackup.pipeline.messages.columns import COLUMNS, arrow_schema
from jsbackup.pipeline.tables.delta import LOG_FOLDER, KnownLog, TableFile, first_log, known_log, next_log, ranges_of
from jsbackup.pipeline.tables.partitions import partition_of
from jsbackup.pipeline.tables.table_log import FileRange, put_commit, refuse_other_format
from jsbackup.pipeline.tables.table_state import TableState
from jsbackup.pipeline.tables.writing import TableFormat, WrittenFile
from jsbackup.repository.names import encode_name
from jsbackup.stores.base import Store
from jsbackup.strict_json import read_object

__all__ = ["DeltaLog"]

_LAST_CHECKPOINT = "_last_checkpoint"
_VERSION = re.compile(r"(\d{20})\.(json|checkpoint\..*)")


class DeltaLog:
    """The log of the stream called `name` there. Names of files have `own` in them. A new target has no tables.

    `constants` are columns with one value; `now_ms` is the time; `partition` is what partitions are of, "" without any.

    Raises:
        UsageError: files are there that no export can extend.
        FormatError, UnsupportedError: as `known_log`.
        StoreError: it cannot be read.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        own: str,
        new_target: bool,
        constants: dict[str, str],
        now_ms: int,
        partition: str,
    ) -> None:
        self._store, self._name = store, name
        self._about: dict[str, Any] = {"constants": constants, "now_ms": now_ms, "partition": partition}
        self._folder = encode_name(name)
        self._known: KnownLog | None = None
        self.partitions: set[str] = set()
        self.ending = f"{own}.parquet"
        if not new_target:
            self._read()

    joint = "/"

    @property
    def state(self) -> TableState | None:
        return None if self._known is None else self._known.state

    @property
    def staging(self) -> str:
        return self._folder

    def ranges(self) -> list[FileRange]:
        return [] if self._known is None else ranges_of(self._name, self._known, self._folder)

    def finish(self) -> None:
        """A commit is complete at once."""

    def commit(self, files: Sequence[WrittenFile], state: TableState, payloads: Sequence[pa.Field] = ()) -> None:
        parts = [TableFile(file.path(), file.bytes, file.rows, file.bounds, file.partition) for file in files]
        schema, known = arrow_schema(COLUMNS), self._known
        for field in payloads:
            schema = schema.append(field)
        if self._about["partition"] not in ("", *COLUMNS):
            schema = schema.append(pa.field(self._about["partition"], pa.date32()))
        if known is None:
            number, log = 0, first_log(self._name, schema, parts, state=state, **self._about)
        else:
            log = next_log(known, parts, state=state, schema=schema, **self._about)
            number = known.version + 1
        put_commit(self._store, f"{self._folder}/{LOG_FOLDER}/{number:020}.json", log, self._name)

    def _read(self) -> None:
        folder, names, others = f"{self._folder}/{LOG_FOLDER}/", [], False
        for info in self._store.list(f"{self._folder}/"):
            refuse_other_format(self._name, TableFormat.DELTA, info.key.removeprefix(f"{self._folder}/"))
            if info.key.startswith(folder):
                names.append(info.key.removeprefix(folder))
            else:
                others = others or not re.search(r"-[0-9a-f]{8}\.parquet", info.key)
                folder_of_file = partition_of(info.key.removeprefix(f"{self._folder}/"))
                self.partitions |= {folder_of_file or ""} - {""}
        files = self._log_files(folder, names)
        if files:
            self._known = known_log(self._name, files)
        if (self._known is None and others) or (self._known is not None and self._known.state is None):
            raise UsageError(
                f"the log of the table of stream {self._name} does not say how far it goes: an older jsbackup or "
                "something else has made it",
                hint="Export to another folder; --append can extend that.",
            )

    def _log_files(self, folder: str, names: Sequence[str]) -> dict[str, bytes]:
        """Read the log from the last checkpoint on."""
        begin, files = 0, {}
        if _LAST_CHECKPOINT in names:
            data = self._store.get(f"{folder}{_LAST_CHECKPOINT}")
            version = read_object(data, f"{folder}{_LAST_CHECKPOINT}").get("version")
            if type(version) is not int:
                raise FormatError(f"{folder}{_LAST_CHECKPOINT} is damaged")
            begin, files[_LAST_CHECKPOINT] = version, data
        for name in names:
            found = _VERSION.fullmatch(name)
            if found is not None and int(found[1]) >= begin:
                files[name] = self._store.get(f"{folder}{name}")
        return files
