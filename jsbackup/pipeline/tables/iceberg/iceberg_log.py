"""The metadata of a stream's Iceberg table at the target of an export.

    ORDERS/data/<first>-<last>-<token>.parquet        messages, in the folder of their partition if there are any
    ORDERS/metadata/v3.metadata.json                  a version: the snapshots, and how far the table goes
    ORDERS/metadata/version-hint.text                 the number of the newest version
    ORDERS/metadata/snap-<id>-<token>.avro            the lists of files of a snapshot
    ORDERS/metadata/<id>-<token>-m0.avro              a list of the files that an export has added

Readers see the files that a version names. The next version is created exclusively, which commits an export. What an
interrupted one leaves is never seen; `remove_orphan_files` of other programs removes it. If the hint is behind, readers
that trust it see the state before; the next export moves it on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from jsbackup.errors import FormatError, ObjectNotFound, StoreError, TargetConflict, UnsupportedError, UsageError
from jsbackup.pipeline.messages.columns import COLUMNS, arrow_schema
from jsbackup.pipeline.tables.iceberg.columns import numbered
from jsbackup.pipeline.tables.iceberg.lists import known_lists, known_ranges
from jsbackup.pipeline.tables.iceberg.metadata_files import VERSION, bare, point_to, version_key
from jsbackup.pipeline.tables.iceberg.table import KnownTable, known_table, next_version
from jsbackup.pipeline.tables.partitions import partition_of
from jsbackup.pipeline.tables.table_log import FileRange, put_commit, refuse_other_format
from jsbackup.pipeline.tables.table_state import TableState
from jsbackup.pipeline.tables.writing import TableFormat, WrittenFile
from jsbackup.repository.names import encode_name
from jsbackup.stores.base import Store, is_key

__all__ = ["IcebergLog"]

_DATA, _METADATA = "data", "metadata"


class IcebergLog:
    """The metadata of the stream called `name` there. `token` is random, in hex; names of files have `own` in them. A
    new target has no tables.

    `location` is that of the target, for readers; `backup` is the id that the column of that name has; `now_ms` is the
    time.

    Raises:
        UsageError: files are there that no export can extend, or readers do not find tables there.
        FormatError, UnsupportedError: as `known_table`.
        StoreError: it cannot be read.
    """

    joint = "/"

    def __init__(
        self,
        store: Store,
        name: str,
        token: str,
        *,
        own: str,
        new_target: bool,
        location: str,
        backup: str,
        now_ms: int,
    ) -> None:
        self._store, self._name = store, name
        self._folder = encode_name(name)
        self._metadata = f"{self._folder}/{_METADATA}"
        self._about: dict[str, Any] = {"name": name, "backup": backup, "now_ms": now_ms, "token": token}
        self._about["location"] = f"{location}/{self._folder}"
        self._known: KnownTable | None = None
        self.partitions: set[str] = set()
        self.ending = f"{own}.parquet"
        if found := {"#", "?"} & set(location):
            raise UsageError(
                f"readers of Iceberg find no tables below a name with {sorted(found)[0]}", hint="Name another folder."
            )
        if not new_target:
            self._read()

    @property
    def state(self) -> TableState | None:
        return None if self._known is None else self._known.state

    @property
    def staging(self) -> str:
        return f"{self._folder}/{_DATA}"

    def ranges(self) -> list[FileRange]:
        if self._known is None:
            return []
        found = known_ranges(self._name, self._known.lists, self._list)
        within = f"{bare(self._about['location'])}/"
        return [one._replace(key=self._key(bare(one.key), within)) for one in found]

    def _key(self, path: str, within: str) -> str:
        """Return the key of a file at a location; "" if that is not in the folder of the table."""
        key = f"{self._folder}/{path.removeprefix(within)}"
        return key if path.startswith(within) and is_key(key) else ""

    def finish(self) -> None:
        if self._known is not None:
            point_to(self._store, self._metadata, self._known.version)

    def commit(self, files: Sequence[WrittenFile], state: TableState, payloads: Sequence[pa.Field] = ()) -> None:
        schema = arrow_schema(COLUMNS)
        for field in payloads:
            schema = schema.append(field)
        new = next_version(self._known, files, numbered(schema), state=state, **self._about)
        version = 1 if self._known is None else self._known.version + 1
        for name, content in new.files.items():
            self._store.put(f"{self._metadata}/{name}", content)
        try:
            put_commit(self._store, version_key(self._metadata, version), new.document, self._name)
        except TargetConflict:
            for name in new.files:
                with suppress(StoreError):
                    self._store.delete(f"{self._metadata}/{name}")
            raise
        point_to(self._store, self._metadata, version)

    def _read(self) -> None:
        version, others = 0, False
        for info in self._store.list(f"{self._folder}/"):
            path = info.key.removeprefix(f"{self._folder}/")
            refuse_other_format(self._name, TableFormat.ICEBERG, path)
            folder, _, rest = path.partition("/")
            if folder == _DATA:
                self.partitions |= {partition_of(rest) or ""} - {""}
            elif folder != _METADATA:
                others = True
            elif found := VERSION.fullmatch(rest):
                version = max(version, int(found[1]))
            elif ".metadata.json" in rest:
                raise UnsupportedError(
                    f"the Iceberg table of stream {self._name} is written through a catalog, or compressed, so that "
                    f"readers would not learn of what is added: it has {rest[:80]}",
                    hint="Export to another folder.",
                )
        if version:
            self._known = self._known_at(version)
        elif others:
            raise UsageError(
                f"the folder of stream {self._name} has something else than an Iceberg table",
                hint="Export to another folder; --append can extend that.",
            )

    def _known_at(self, version: int) -> KnownTable:
        location = self._about["location"]
        data = self._store.get(version_key(self._metadata, version))
        known = known_table(self._name, version, data, location)
        if known.snapshot is None:
            return known
        path = str(known.snapshot.get("manifest-list"))
        return replace(known, lists=tuple(known_lists(self._name, path, self._list(path))))

    def _list(self, path: str) -> bytes:
        """Return the content of a list of files, or of lists, at a location."""
        within = f"{bare(self._about['location'])}/{_METADATA}/"
        if not bare(path).startswith(within):
            raise UnsupportedError(
                f"the Iceberg table of stream {self._name} has a list of files that is not in its folder: {path[:200]}",
                hint="Export to another folder.",
            )
        try:
            return self._store.get(f"{self._metadata}/{bare(path).removeprefix(within)}")
        except ObjectNotFound as error:
            raise FormatError(f"the Iceberg table of stream {self._name} lacks {path[:200]}") from error
