"""Repositories of the first format, made by version 0.2.0 (`tests/data/format1-*.tar.gz`: `Scene(kind)`, then
`store_backup` with 1000 and 1100 messages): read, continued, pruned, copied, upgraded.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from jsbackup.errors import IntegrityError, KeyUnavailable, StoreError, UnsupportedError
from jsbackup.progress import NullProgress
from jsbackup.repository import layout, manifest_json
from jsbackup.repository.descriptor import decode_descriptor, encode_descriptor
from jsbackup.repository.document import MAX_DOCUMENT_BYTES
from jsbackup.repository.keep.forget import plan_by_ids, remove_decided
from jsbackup.repository.keep.leases import Lease, Mode
from jsbackup.repository.keep.prune import prune
from jsbackup.repository.layout import ObjectKind
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.copying import CopyReport, copy_backups
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, FIRST, make_repository, store_backup
from tests.harness.history import Scene, assert_whole, initialise
from tests.harness.stores import Fault, FaultStore, Killed

DATA = Path(__file__).parents[1] / "data"
OLD = ["20261121T014500Z-000000", "20261121T014501Z-000001"]
NEW = ["20261121T015000Z-0000aa", "20261121T015100Z-0000bb"]


@pytest.fixture(params=["plain", "encrypted"])
def scene(request: pytest.FixtureRequest) -> Scene:
    scene = Scene(request.param, "0100")  # `initialise` took the next id
    with tarfile.open(DATA / f"format1-{request.param}.tar.gz") as tar:
        for member in tar:
            stored = tar.extractfile(member)
            assert stored is not None
            scene.store.put(member.name, stored.read())
    return scene


def assert_sound(scene: Scene, backups: list[str]) -> None:
    repository = scene.open_to_read()
    assert repository.backups() == backups
    for backup in backups:
        assert_whole(repository, backup, repository.manifest(backup))


def pages_in(store: Store) -> set[str]:
    return {info.key for info in store.list(layout.SEGMENTS) if layout.kind_of(info.key) is ObjectKind.PAGE}


def format_of(scene: Scene, backup: str) -> bool:
    """Whether the manifest is of the second format."""
    data = scene.open().documents.get(layout.manifest_key(backup), MAX_DOCUMENT_BYTES)
    return b'"format":2' in data


def taker(scene: Scene) -> Callable[[Mode], AbstractContextManager[Lease]]:
    return lambda mode: scene.lease(scene.store, mode, "prune")


def test_old_backups_are_read_and_continued_in_the_old_format(scene: Scene) -> None:
    assert_sound(scene, OLD)
    assert len(scene.open().manifest(OLD[1]).streams[0].segments) > 64
    store_backup(scene.open(), NEW[0], count=1200)
    assert_sound(scene, [*OLD, NEW[0]])
    assert not pages_in(scene.store) and not format_of(scene, NEW[0])


@pytest.mark.slow
def test_after_an_upgrade_new_backups_have_pages_and_old_ones_stay_as_they_are(scene: Scene) -> None:
    before = {info.key: scene.store.get(info.key) for info in scene.store.list()}
    assert scene.open().upgrade("jsbackup tests")
    assert not scene.open().upgrade("jsbackup tests")
    added = {info.key for info in scene.store.list()} - before.keys()
    assert added == {layout.UPGRADED}
    for number, backup in enumerate(NEW):
        store_backup(scene.open(), backup, count=1200 + 50 * number)
        assert format_of(scene, backup)
    assert pages_in(scene.store)
    assert {
        key: scene.store.get(key) for key in before if not key.startswith(layout.CATALOGS)
    }.items() <= before.items()
    assert_sound(scene, [*OLD, *NEW])


def test_both_formats_are_pruned(scene: Scene) -> None:
    scene.open().upgrade("jsbackup tests")
    for backup in NEW:
        store_backup(scene.open(), backup, count=1200)
    repository = scene.open()
    remove_decided(repository, plan_by_ids(repository, [OLD[0], NEW[0]]).decisions)
    prune(scene.open(), taker(scene), grace_seconds=0, tool="tests", random=os.urandom)
    assert_sound(scene, [OLD[1], NEW[1]])
    left = scene.open()
    named = {ref.key for backup in left.backups() for ref in left.manifest(backup).refs}
    assert {info.key for info in scene.store.list(layout.SEGMENTS)} == named


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "encrypted"])
def test_backups_of_both_formats_are_copied(scene: Scene, kind: str) -> None:
    scene.open().upgrade("jsbackup tests")
    store_backup(scene.open(), NEW[0], count=1200)
    target = Scene(kind, "7a79")
    initialise(target, target.store)
    with target.lease(target.store, Mode.SHARED, "copy") as lease:
        report = copy_backups(
            scene.open_to_read(), target.open(), [*OLD, NEW[0]], lease, progress=NullProgress(), jobs=2
        )
    assert report.copied == (*OLD, NEW[0])
    assert_sound(target, [*OLD, NEW[0]])


@pytest.mark.by_turns
@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.KILL_BEFORE, Fault.KILL_AFTER, Fault.FAIL, Fault.LOSE_ANSWER])
def test_an_upgrade_stopped_at_any_operation_is_done_or_not(scene: Scene, fault: Fault) -> None:
    watched = FaultStore(scene.copy().store)
    scene.open(watched).upgrade("jsbackup tests")
    continued = set()
    for at in range(1, len(watched.log) + 1):
        there = scene.copy()
        with suppress(StoreError, Killed):
            there.open(FaultStore(there.store, fault, at=at)).upgrade("jsbackup tests")
        assert_sound(there, OLD)
        there.open().upgrade("jsbackup tests")
        assert there.open().descriptor.pages
        if (state := there.state()) in continued:
            continue
        continued.add(state)
        store_backup(there.open(), NEW[0], count=1200)
        assert format_of(there, NEW[0])
        assert_sound(there, [*OLD, NEW[0]])


def test_a_version_without_pages_refuses_by_name_and_deletes_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.open().upgrade("jsbackup tests")
    store_backup(scene.open(), NEW[0], count=1200)
    monkeypatch.setattr(manifest_json, "FORMAT_VERSION", 1)
    monkeypatch.setattr("jsbackup.repository.descriptor.KNOWN_FEATURES", frozenset({"signatures", "encryption"}))
    first = decode_descriptor(scene.store.get(layout.DESCRIPTOR))
    assert not first.pages, "which such a version goes on to read"
    with pytest.raises(UnsupportedError, match="needs features not known here: pages"):
        scene.open()
    monkeypatch.setattr("jsbackup.repository.stored_descriptor.newest_descriptor", lambda store, first: first)
    before = {info.key for info in scene.store.list(layout.SEGMENTS)}
    scene.open().manifest(OLD[0])
    with pytest.raises(UnsupportedError, match="has format 2, known up to 1"):
        scene.open().manifest(NEW[0])
    with pytest.raises(UnsupportedError, match="has format 2, known up to 1"):
        prune(scene.open(), taker(scene), grace_seconds=0, tool="tests", random=os.urandom)
    assert {info.key for info in scene.store.list(layout.SEGMENTS)} == before


def test_the_descriptor_of_another_repository_is_no_upgrade(scene: Scene) -> None:
    other = make_repository(MemoryStore(), "7a79").descriptor
    scene.store.put(layout.UPGRADED, encode_descriptor(other))
    with pytest.raises(IntegrityError, match="does not belong to"):
        scene.open()


def test_a_damaged_upgrade_is_not_taken_for_none(scene: Scene) -> None:
    data = encode_descriptor(replace(scene.open().descriptor, pages=True))
    scene.store.put(layout.UPGRADED, data[:-20])
    with pytest.raises(IntegrityError):
        scene.open()


def test_a_signed_repository_is_upgraded_by_those_who_may_write() -> None:
    scene = Scene("signed")
    initialise(scene, scene.store)
    old = replace(scene.open().descriptor, pages=False)
    scene.store.delete(layout.DESCRIPTOR)
    scene.store.put(layout.DESCRIPTOR, encode_descriptor(old))
    with pytest.raises(KeyUnavailable):
        Repository.open(scene.store).upgrade("jsbackup tests")
    assert not list(scene.store.list(layout.UPGRADED))
    assert scene.open().upgrade("jsbackup tests")
    store_backup(scene.open(), FIRST, count=1000)
    assert pages_in(scene.store)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "signed", "encrypted"])
def test_a_replica_without_keys_goes_on_when_its_source_is_upgraded(kind: str) -> None:
    source = Scene(kind)
    initialise(source, source.store)
    old = replace(source.open().descriptor, pages=False)
    source.store.delete(layout.DESCRIPTOR)
    source.store.put(layout.DESCRIPTOR, encode_descriptor(old))
    store_backup(source.open(), OLD[0], count=1000)
    replica = Scene(kind, "7a79")
    replica.new_keys = source.new_keys

    Repository.create_replica(replica.store, source.open_to_read(), probe_id="7a", created=CREATED, tool="t")

    def copy(store: Store, *backups: str) -> CopyReport:
        target = replica.open_to_read(store)
        with replica.lease(replica.store, Mode.SHARED, "copy") as lease:
            return copy_backups(source.open_to_read(), target, backups, lease, progress=NullProgress(), jobs=1)

    assert copy(replica.store, OLD[0]).copied == (OLD[0],)
    assert source.open().upgrade("jsbackup tests")
    store_backup(source.open(), NEW[0], count=40)
    store_backup(source.open(), NEW[1], count=1200)
    watched = FaultStore(replica.copy().store)
    assert copy(watched, *OLD[:1], *NEW).copied == tuple(NEW)
    for fault in (Fault.KILL_BEFORE, Fault.KILL_AFTER):
        for at, (operation, key) in enumerate(watched.log, 1):
            if key != layout.UPGRADED:
                continue
            there = replica.copy()
            with suppress(Killed):
                copy(FaultStore(there.store, fault, at=at), OLD[0], *NEW)
            report = copy(there.store, OLD[0], *NEW)
            assert not report.failed and operation
            assert_sound(there, [OLD[0], *NEW])
            assert there.open().descriptor.pages
            same = {info.key for prefix in (layout.BACKUPS, layout.SEGMENTS) for info in source.store.list(prefix)}
            assert all(there.store.get(key) == source.store.get(key) for key in same)
