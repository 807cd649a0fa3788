"""Backups of streams that grow, exported into tables that grow with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from jsbackup.config import parse_glob
from jsbackup.pipeline.session.repository_ref import RepositoryRef, lent
from jsbackup.pipeline.tables.export import Exported, TablesAsked, export_tables, plan_export
from jsbackup.pipeline.tables.target import files_target, tables_target
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.pipeline.tasks.runner import InProcess, TaskRunner
from jsbackup.planning.changed_streams import ChangeOptions
from jsbackup.progress import NullProgress
from jsbackup.repository.manifest import Manifest
from jsbackup.stores.base import Store
from tests.harness.backups import store_stream
from tests.harness.batches import Message, some_messages
from tests.pipeline.places import Kept, keep

Row = tuple[int, int, str, bytes | None, bytes]


def ids(number: int) -> tuple[str, str]:
    """Id and time of the backup with this number, from 0 on."""
    return f"20261121T01{45 + number}00Z-00000{number + 1}", f"2026-11-21T01:{45 + number}:00Z"


def backed_up(kept: Kept, number: int, streams: Mapping[str, Sequence[Message]]) -> Manifest:
    """Commit one more backup."""
    backup, created = ids(number)
    stored = [store_stream(kept.repository.objects, name, messages) for name, messages in sorted(streams.items())]
    manifest = replace(kept.manifest, id=backup, created=created, streams=tuple(stored))
    kept.repository.commit(manifest)
    return manifest


def growing(folder: Path, counts: Sequence[int] = (40, 100, 180), *, size: int = 60) -> tuple[Kept, list[Manifest]]:
    """Backups of a stream with so many messages each, and of one that does not change."""
    messages, still = some_messages(max(counts), size, seed=7), some_messages(10, size, seed=8)
    kept = keep(folder, {"ORDERS": messages[: counts[0]], "STILL": still})
    found = [kept.manifest]
    for number, count in enumerate(counts[1:], start=1):
        found.append(backed_up(kept, number, {"ORDERS": messages[:count], "STILL": still}))
    return kept, found


@dataclass(frozen=True)
class StoreAt(RepositoryRef):
    """A place with a given store, as it is in S3."""

    given: Store | None = None

    @property
    def folder(self) -> str | None:
        return None

    def store(self) -> Store:
        assert self.given is not None
        return self.given


def export(
    kept: Kept,
    manifest: Manifest,
    place: RepositoryRef,
    kind: TableFormat,
    *,
    options: ChangeOptions | None = None,
    token: str = "00ff00ff",
    runner: TaskRunner | None = None,
    by_day: bool = False,
    append: bool = True,
    catalog: str | None = None,
    streams: Sequence[str] = (),
) -> Exported:
    """Export, with --append unless it is told otherwise."""
    asked = TablesAsked(kind, options or ChangeOptions(), append=append, by_day=by_day, catalog=catalog)
    opening = tables_target(place, token, append=append)
    if kind is TableFormat.JSONL:
        opening = files_target(place, token)
    with opening as target, lent(kept.place, kept.repository):
        plan = plan_export(kept.place, manifest, target, asked, patterns=tuple(map(parse_glob, streams)))
        return export_tables(runner or InProcess(), kept.place, target, plan, progress=NullProgress())


def copied(folder: Path, store: Store) -> Path:
    for info in store.list():
        path = folder / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(info.key))
    return folder


def table_of(folder: Path, name: str, kind: TableFormat, catalog: str = "") -> pa.Table:
    """The table of a stream below a folder, by a reader of its format."""
    if kind is TableFormat.DELTA:
        return DeltaTable(folder / name).to_pyarrow_table()
    if kind is TableFormat.ICEBERG:
        opened = SqlCatalog("jsbackup", uri=catalog or f"sqlite:///{folder}/catalog.db")
        return opened.load_table(("jsbackup", name)).scan().to_arrow()
    return ds.dataset(folder / name, format="parquet", partitioning="hive").to_table()


def rows_of(folder: Path, kind: TableFormat, name: str = "ORDERS") -> list[Row]:
    """The rows of a table, as a reader finds them, in the order of sequences."""
    table = table_of(folder, name, kind)
    columns = ["sequence", "timestamp_ns", "subject", "headers", "data"]
    return sorted(zip(*(table[one].to_pylist() for one in columns), strict=True), key=lambda row: row[0])


def rows(messages: Sequence[Message]) -> list[Row]:
    return [(m.sequence, m.timestamp_ns, str(m.subject), m.headers, m.data) for m in messages]
