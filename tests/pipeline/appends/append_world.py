"""Random histories of streams and their backups, with what tables of all these backups have to have."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.repository.manifest import Manifest
from tests.harness.backups import store_stream
from tests.harness.batches import Message
from tests.pipeline.places import Kept, keep

os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"  # else it warns that there is a faster one

__all__ = ["Life", "World", "read_by_all"]

Row = tuple[str, int, bytes]  # the column `incarnation`, sequence, payload


@dataclass
class Life:
    """A stream from its creation on, or since it gives sequences again."""

    incarnation: str
    life: str = ""
    messages: dict[int, Message] = field(default_factory=dict)
    last: int = 0

    def publish(self, chance: random.Random, count: int) -> None:
        for _ in range(count):
            self.last += chance.choice([1, 1, 1, 2, 4])
            day = chance.choice([0, 1])
            time_ns = 1_795_000_000 * 10**9 + self.last * 1000 + day * 86_400 * 10**9
            self.messages[self.last] = Message(
                self.last, time_ns, f"orders.{self.last % 5}", None, chance.randbytes(60)
            )

    def purge(self, chance: random.Random) -> None:
        for sequence in [one for one in self.messages if chance.random() < 0.3]:
            del self.messages[sequence]


class World:
    """A repository with a backup every 17 hours; `manifests` are all that were made, `committed` those that it has."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self.chance = random.Random(seed)
        self.kept: Kept = keep(folder, {})
        self.streams: dict[str, Life] = {}
        self.manifests: list[Manifest] = []
        self.committed: set[str] = set()
        self.expected: dict[str, dict[str, set[Row]]] = {}  # by backup and stream
        self._count = 0

    def create(self, name: str) -> Life:
        self._count += 1
        self.streams[name] = Life(f"{self._count:08x}")
        return self.streams[name]

    def set_back(self, name: str) -> None:
        """A restore in place: the stream gives sequences again."""
        self._count += 1
        one = self.streams[name]
        kept = {sequence: message for sequence, message in one.messages.items() if sequence < one.last // 2}
        last = max(kept, default=0)
        self.streams[name] = Life(one.incarnation, f"2026-11-0{1 + self._count % 9}T00:30:00Z", kept, last)

    def back_up(self, *, commit: bool = True) -> Manifest:
        number = len(self.manifests)
        created = f"2026-11-{1 + 17 * number // 24:02}T{17 * number % 24:02}:00:00Z"
        backup = f"{created.replace('-', '').replace(':', '')}-{number:06x}"
        stored = []
        self.expected[backup] = {}
        for name, one in sorted(self.streams.items()):
            messages = list(one.messages.values())
            entry = store_stream(self.kept.repository.objects, name, messages, one.incarnation)
            captured = replace(entry.captured, begun=created, ended=created)
            stored.append(replace(entry, life=one.life, captured=captured))
            life = f"{one.incarnation}@{one.life}" if one.life else one.incarnation
            rows = {(life, message.sequence, message.data) for message in one.messages.values()}
            self.expected[backup][name] = rows
        manifest = replace(self.kept.manifest, id=backup, created=created, streams=tuple(stored))
        self.manifests.append(manifest)
        if commit:
            self.commit(manifest)
        return manifest

    def commit(self, manifest: Manifest) -> None:
        self.kept.repository.commit(manifest)
        self.committed.add(manifest.id)

    @property
    def newest(self) -> Manifest:
        return max((one for one in self.manifests if one.id in self.committed), key=lambda one: one.id)

    def rows(self) -> dict[str, set[Row]]:
        """What tables of all backups that are there have, by stream."""
        found: dict[str, set[Row]] = {}
        for backup in self.committed:
            for name, rows in self.expected[backup].items():
                found.setdefault(name, set()).update(rows)
        return {name: rows for name, rows in found.items() if rows}

    def ten_days(self) -> Iterator[Manifest]:
        """Ten backups of a stream with purges, one that comes and goes, and one that is created again and set back."""
        self.create("ORDERS")
        for day in range(10):
            if day == 2:
                self.create("COMES_AND_GOES")
            if day == 5:
                del self.streams["COMES_AND_GOES"]
                self.create("AGAIN")
            if day == 7:
                self.create("AGAIN")
            if day == 8:
                self.set_back("AGAIN")
            for one in self.streams.values():
                one.publish(self.chance, 12)
            yield self.back_up(commit=False)
            for one in self.streams.values():
                one.purge(self.chance)

    def check(self, folder: Path, kind: TableFormat, catalog: str = "") -> None:
        """Compare the tables below a folder with all backups, as several readers find them."""
        for name, expected in self.rows().items():
            for reader, found in read_by_all(folder, name, kind, catalog).items():
                counted = Counter(found)
                assert max(counted.values(), default=1) == 1, (reader, name, counted.most_common(3))
                missing, more = expected - counted.keys(), counted.keys() - expected
                assert not missing and not more, (reader, name, sorted(missing)[:5], sorted(more)[:5])


def read_by_all(folder: Path, name: str, kind: TableFormat, catalog: str = "") -> Mapping[str, Sequence[Row]]:
    """The rows of a table by reader."""
    if kind is TableFormat.PARQUET:
        glob = f"{folder}/{name}/**/*.parquet"
        return {
            "duckdb": _rows(
                duckdb.sql(f"SELECT incarnation, sequence, data FROM read_parquet('{glob}')").to_arrow_table()
            ),
            "polars": _rows(pl.read_parquet(f"{folder}/{name}/").to_arrow()),
        }
    if kind is TableFormat.DELTA:
        return {
            "deltalake": _rows(DeltaTable(folder / name).to_pyarrow_table()),
            "polars": _rows(pl.scan_delta(str(folder / name)).collect().to_arrow()),
        }
    opened = (
        SqlCatalog("lake", uri=catalog) if catalog else SqlCatalog("jsbackup", uri=f"sqlite:///{folder}/catalog.db")
    )
    table = opened.load_table(("jsbackup", name))
    return {
        "pyiceberg": _rows(table.scan().to_arrow()),
        "polars": _rows(pl.scan_iceberg(table.metadata_location).collect().to_arrow()),
    }


def _rows(table: pa.Table) -> list[Row]:
    return list(zip(*(table[name].to_pylist() for name in ("incarnation", "sequence", "data")), strict=True))
