"""Backups of streams that grow, exported into tables that grow with them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyiceberg.io import InputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import StaticTable

from jsbackup.pipeline.messages.chosen import ChosenBackup
from jsbackup.pipeline.payloads.parsing import PayloadParser
from jsbackup.pipeline.session.repository_ref import RepositoryRef, lent
from jsbackup.pipeline.tables.export import Exported, export_tables, plan_export
from jsbackup.pipeline.tables.gaps.table_gaps import OtherBackups
from jsbackup.pipeline.tables.partitions import PartitionBy
from jsbackup.pipeline.tables.table_payloads import TablePayloads, parser_for_tables
from jsbackup.pipeline.tables.target import open_target
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.pipeline.tasks.runner import InProcess, TaskRunner
from jsbackup.planning.transforming import TransformOptions, plan_streams
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
    """A place with a given store; `shown` is its folder, None if it is as in S3."""

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
    options: TransformOptions | None = None,
    token: str = "00ff00ff",
    runner: TaskRunner | None = None,
    by: PartitionBy | None = None,
    payloads: str | PayloadParser | None = None,
    may_miss: bool = False,
    skip_gaps: bool = False,
) -> Exported:
    """Export with --append."""
    options = options or TransformOptions()
    with open_target(place, token) as target, lent(kept.place, kept.repository):
        streams = plan_streams(manifest, manifest.streams, options, "exported")
        given = None if payloads is None else TablePayloads(kept.place, parser_for_tables(payloads), may_miss)
        plan = plan_export(
            manifest,
            target,
            kind,
            streams,
            options=options,
            append=True,
            partition_by=by,
            payloads=given,
            others=OtherBackups(kept.repository, skip_gaps),
        )
        backup = ChosenBackup(kept.place, manifest)
        return export_tables(runner or InProcess(), backup, target, plan, progress=NullProgress())


def delta_table(folder: Path, store: Store, name: str) -> DeltaTable:
    """The table of a stream in a store, copied to a folder."""
    copied(folder, store)
    return DeltaTable(folder / name)


class MovedIO(PyArrowFileIO):
    """Reads files of a table that was copied to a folder: tables of Iceberg name them by whole locations."""

    def new_input(self, location: str) -> InputFile:
        before, after = self.properties["moved.from"], self.properties["moved.to"]
        return super().new_input(location.replace(before, after, 1))


def newest_version(folder: Path) -> Path:
    """The newest version of the Iceberg table in a folder, as the hint says, or without one as readers find it."""
    hint = folder / "metadata" / "version-hint.text"
    versions = [int(path.name[1:].split(".")[0]) for path in (folder / "metadata").glob("v*.metadata.json")]
    number = int(hint.read_text()) if hint.exists() else max(versions)
    return folder / "metadata" / f"v{number}.metadata.json"


def iceberg_table(folder: Path) -> StaticTable:
    """The Iceberg table in a folder, wherever it was written."""
    path = newest_version(folder)
    properties = {
        "py-io-impl": f"{MovedIO.__module__}.MovedIO",
        "moved.from": json.loads(path.read_text())["location"],
        "moved.to": f"file://{folder}",
    }
    return StaticTable.from_metadata(str(path), properties)


def copied(folder: Path, store: Store) -> Path:
    for info in store.list():
        path = folder / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(info.key))
    return folder


def rows_of(folder: Path, kind: TableFormat) -> list[Row]:
    """The rows of the table in a folder, as a reader finds them, in the order of sequences."""
    if kind is TableFormat.DELTA:
        table = DeltaTable(folder).to_pyarrow_table()
    elif kind is TableFormat.ICEBERG:
        table = iceberg_table(folder).scan().to_arrow()
    else:
        files = [file for file in ds.dataset(folder, format="parquet").files if "/_" not in file]
        table = pa.concat_tables(ds.dataset(file, format="parquet").to_table() for file in files)
    columns = ["sequence", "timestamp_ns", "subject", "headers", "data"]
    return sorted(zip(*(table[name].to_pylist() for name in columns), strict=True), key=lambda row: row[0])


def rows(messages: Sequence[Message]) -> list[Row]:
    return [(m.sequence, m.timestamp_ns, str(m.subject), m.headers, m.data) for m in messages]


def log_lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in folder.read_text().splitlines()]
