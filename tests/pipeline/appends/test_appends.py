"""`export --append`: every message that any backup has is in its table, once, by whatever reader; also after a kill.

`JSBACKUP_TEST_FUZZ_ROUNDS=500` runs that many random histories of each format; with `JSBACKUP_TEST_SEED=7` others.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import deltalake.transaction
import pyiceberg.catalog
import pyiceberg.table
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from jsbackup.model import S3Settings
from jsbackup.pipeline.session.repository_ref import place_of
from jsbackup.pipeline.tables import export as export_module
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.stores.local import LocalStore
from tests.cli.typed import in_shell
from tests.harness.stores import Killed
from tests.pipeline.appends.append_world import World
from tests.pipeline.tables.growing import export

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("JSBACKUP_TEST_FUZZ_ROUNDS", "4"))
SEED = os.environ.get("JSBACKUP_TEST_SEED", "1")
KINDS = [TableFormat.PARQUET, TableFormat.DELTA, TableFormat.ICEBERG]
each = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "SEGMENT_BYTES", 3000)


@each
@pytest.mark.parametrize("catalog", [False, True], ids=["", "catalog"])
def test_ten_backups_and_two_that_came_days_late_by_copy(tmp_path: Path, kind: TableFormat, catalog: bool) -> None:
    """A first export of some, then of one after the other, then of two that are copied more than two days late."""
    if catalog and kind is not TableFormat.ICEBERG:
        pytest.skip("only Iceberg has catalogs")
    world, out, uri, environ = World(tmp_path / "r"), tmp_path / "out", "", {}
    if catalog:  # one of the user's, by the configuration of pyiceberg
        uri = f"sqlite:///{tmp_path}/theirs.db"
        environ = {"PYICEBERG_CATALOG__LAKE__URI": uri, "PYICEBERG_CATALOG__LAKE__WAREHOUSE": f"file://{tmp_path}/lake"}
    line = ["--catalog", "lake"] if catalog else []
    for manifest in world.ten_days():
        world.commit(manifest)
    ids, copy = [one.id for one in world.manifests], tmp_path / "copy"
    late = [ids[4], ids[6]]  # one of them has what only it has, of a life that was replaced long ago
    world.committed = {*ids[:6]}.difference(late)
    assert in_shell("copy", *sorted(world.committed), "--to-repo", copy, *world.kept.line).code == 0
    words = ["export", "latest", "--append", "--format", kind, "--output", out, "-r", copy, "--json", *line]
    first = in_shell(*words, **environ)
    assert first.code == 0, first
    world.check(out, kind, uri)
    for backup in [*ids[7:], *late]:
        assert in_shell("copy", backup, "--to-repo", copy, *world.kept.line).code == 0
        world.committed.add(backup)
        done = in_shell(*words, **environ)
        assert done.code == 0, done
        world.check(out, kind, uri)
    done = in_shell(*words, **environ)
    assert done.code == 0 and done.document["rows"] == 0 and done.document["files"] == 0, done
    assert world.rows().keys() == {"ORDERS", "COMES_AND_GOES", "AGAIN"}


class _Killer:
    """Kills at the step with this number: before it, or after it. Then nothing works any more."""

    def __init__(self, at: int, late: bool) -> None:
        self.at, self.late, self.steps, self.dead = at, late, 0, False

    def of(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            if self.dead:
                raise Killed
            self.steps += 1
            if self.steps != self.at:
                return step(*arguments, **named)
            result = step(*arguments, **named) if self.late else None
            self.dead = True
            if self.dead:
                raise Killed
            return result

        return run

    @contextmanager
    def ready(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in (
                (LocalStore, "put"),
                (LocalStore, "delete"),
                (deltalake.DeltaTable, "create_write_transaction"),
                (deltalake.transaction, "create_table_with_add_actions"),
                (deltalake.table.TableAlterer, "set_table_properties"),
                (pyiceberg.table.Transaction, "add_files"),
                (pyiceberg.table.Table, "_do_commit"),
            ):
                patch.setattr(owner, name, self.of(getattr(owner, name)))
            yield


@pytest.mark.by_turns
@pytest.mark.parametrize(("kind", "catalog"), [*((kind, False) for kind in KINDS), (TableFormat.ICEBERG, True)])
@pytest.mark.parametrize("late", [False, True])
def test_killed_at_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TableFormat, catalog: bool, late: bool
) -> None:
    """An export of four backups is killed, another one goes on."""
    world = World(tmp_path / "r")
    for manifest in list(world.ten_days())[3:7]:
        world.commit(manifest)
    at, killed = 0, True
    while killed:
        at += 1
        place = place_of(str(tmp_path / f"out{at}"), S3Settings(), {})
        uri, named = (f"sqlite:///{tmp_path}/lake{at}.db", "lake") if catalog else ("", None)
        theirs = partial(SqlCatalog, uri=uri, warehouse=f"file://{tmp_path}/lake")
        monkeypatch.setattr(pyiceberg.catalog, "load_catalog", theirs)
        killer = _Killer(at, late)
        try:
            with killer.ready():
                export(world.kept, world.newest, place, kind, token=f"{at:08x}", catalog=named)
            killed = killer.dead
        except Killed:
            pass
        export(world.kept, world.newest, place, kind, token=f"{at:07x}f", catalog=named)
        world.check(tmp_path / f"out{at}", kind, uri)
    assert at > 8


@each
def test_a_damaged_backup_takes_nothing_of_those_before_it(tmp_path: Path, kind: TableFormat) -> None:
    """What the same export has committed of earlier backups stays when its last one fails."""
    world, out = World(tmp_path / "r"), tmp_path / "out"
    *before, last = list(world.ten_days())[3:7]
    for manifest in (*before, last):
        world.commit(manifest)
    shared = {ref.key for manifest in before for one in manifest.streams for ref in one.segments}
    keys = [ref.key for one in last.streams for ref in one.segments if ref.key not in shared]
    paths = [Path(world.kept.place.location) / key for key in keys]
    whole = [path.read_bytes() for path in paths]
    for path, content in zip(paths, whole, strict=True):
        path.chmod(0o600)
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    words = ["export", "latest", "--append", "--format", kind, "--output", out, *world.kept.line]
    assert in_shell(*words).code == 14
    for _ in keys:  # each time one more is known
        again = in_shell(*words)
    assert again.code in (3, 14) and "'jsbackup repair'" in again.out + again.err, again
    world.committed.remove(last.id)
    world.check(out, kind)
    for path, content in zip(paths, whole, strict=True):
        path.write_bytes(content)
    assert in_shell(*words).code == 0
    world.committed.add(last.id)
    world.check(out, kind)


@each
def test_a_stream_with_a_missing_segment_waits_for_its_repair(tmp_path: Path, kind: TableFormat) -> None:
    world, out = World(tmp_path / "r"), tmp_path / "out"
    for manifest in list(world.ten_days())[:4]:
        world.commit(manifest)
    path = Path(world.kept.place.location) / manifest.streams[0].segments[-1].key
    content = path.read_bytes()
    path.unlink()
    words = ["export", "latest", "--append", "--format", kind, "--output", out, *world.kept.line]
    told = in_shell(*words)
    assert told.code == 3 and "'jsbackup repair'" in told.out + told.err, told
    path.write_bytes(content)
    assert in_shell(*words).code == 0
    world.check(out, kind)


@each
def test_backups_after_one_of_a_clock_that_was_ahead(tmp_path: Path, kind: TableFormat) -> None:
    world, out = World(tmp_path / "r"), tmp_path / "out"
    place, ahead = place_of(str(out), S3Settings(), {}), "2026-11-20T00:00:00Z"
    for day, manifest in enumerate(world.ten_days()):
        if day == 4:
            streams = [
                replace(one, captured=replace(one.captured, begun=ahead, ended=ahead)) for one in manifest.streams
            ]
            later = replace(manifest, id="20261120T000000Z-ffffff", created=ahead, streams=tuple(streams))
            world.expected[later.id] = world.expected.pop(manifest.id)
            manifest = later
        world.commit(manifest)
        export(world.kept, manifest, place, kind, token=f"{day:07x}a")
        world.check(out, kind)


@pytest.mark.explore
@each
@pytest.mark.parametrize("number", range(ROUNDS))
def test_random_histories(tmp_path: Path, kind: TableFormat, number: int) -> None:
    """Backups come in any order, some days late; tables are extended now and then, also up to an older backup."""
    chance = random.Random(f"{SEED} {number}")
    world, waiting = World(tmp_path / "r", chance.randrange(1 << 30)), []
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    by_day = chance.random() < 0.3
    for step in range(14):
        for name in ("A", "B"):
            if name not in world.streams:
                if chance.random() < 0.6:
                    world.create(name)
            elif chance.random() < 0.15:
                del world.streams[name]
            elif chance.random() < 0.1:
                world.set_back(name)
        for one in world.streams.values():
            one.publish(chance, chance.randrange(12))
            if chance.random() < 0.5:
                one.purge(chance)
        waiting.append(world.back_up(commit=False))
        for manifest in [one for one in waiting if chance.random() < 0.6]:
            waiting.remove(manifest)
            world.commit(manifest)
        if world.committed and chance.random() < 0.4:
            upto = chance.choice([one for one in world.manifests if one.id in world.committed])
            export(world.kept, upto, place, kind, token=f"{step:08x}", by_day=by_day)
    for manifest in waiting:
        world.commit(manifest)
    export(world.kept, world.newest, place, kind, token="0000ffff", by_day=by_day)
    world.check(tmp_path / "out", kind)
    assert export(world.kept, world.newest, place, kind, token="0000fff0", by_day=by_day).files == 0
