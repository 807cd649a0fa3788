from __future__ import annotations

import os
from dataclasses import dataclass, replace

import pytest

from jsbackup.errors import (
    IntegrityError,
    RepositoryLocked,
    TargetConflict,
)
from jsbackup.progress import NullProgress
from jsbackup.repository import layout
from jsbackup.repository.checks.verify import Level, verify_backup
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.access import NO_KEYS, GivenKeys
from jsbackup.repository.crypto.new_keys import NewKeys, make_new_keys
from jsbackup.repository.inventory import find_gaps
from jsbackup.repository.keep.leases import Lease, Mode, Terms, acquire
from jsbackup.repository.objects import sha256_of
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.copying import CopyReport, copy_backups, is_replica
from jsbackup.repository.write.stream_objects import load_consumer
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, FIRST, SECOND, make_repository, store_backup
from tests.harness.damage import put_instead
from tests.harness.stores import Fault, FaultStore, Killed

THIRD = "20261121T014700Z-000003"
ALL = [FIRST, SECOND, THIRD]


def lease_on(store: Store) -> Lease:
    terms = Terms(Mode.SHARED, "copy", "jsbackup tests", "here", CREATED)
    return acquire(store, terms, wait_seconds=0, clock=lambda: 0.0, sleep=lambda seconds: None, random=os.urandom)


def copy(
    source: Repository, target: Repository, backups: list[str] | None = None, *, lease: Lease | None = None
) -> CopyReport:
    lease = lease or lease_on(MemoryStore())
    return copy_backups(source, target, ALL if backups is None else backups, lease, progress=NullProgress(), jobs=3)


@pytest.fixture
def source() -> Repository:
    """Three backups that share most of their segments."""
    repository = make_repository(MemoryStore(), "5007ce")
    for number, backup in enumerate(ALL):
        store_backup(repository, backup, count=40 + 10 * number)
    return repository


@pytest.fixture
def target() -> Repository:
    return make_repository(MemoryStore(), "7a79e7")


def objects(store: Store) -> dict[str, bytes]:
    """All but the descriptor and witnesses."""
    beside = (layout.ObjectKind.DESCRIPTOR, layout.ObjectKind.WITNESS)
    return {info.key: store.get(info.key) for info in store.list() if layout.kind_of(info.key) not in beside}


def assert_sound(repository: Repository, backup: str) -> None:
    assert list(verify_backup(repository.objects, repository.manifest(backup), Level.DATA)) == []


# --- as they are ---


def test_a_copy_is_the_same_objects_and_only_what_is_missing_travels(source: Repository, target: Repository) -> None:
    copy(source, target, [FIRST])
    before = objects(target.store)
    report = copy(source, target)
    assert (report.copied, report.present, report.failed) == ((SECOND, THIRD), (FIRST,), ())
    copied = objects(target.store)
    assert copied == objects(source.store)
    assert report.copied_objects == len(copied) - len(before) and report.skipped_objects > 0
    assert report.copied_bytes == sum(map(len, copied.values())) - sum(map(len, before.values()))
    again = copy(source, target)
    assert (again.copied, again.present, again.copied_objects) == ((), (FIRST, SECOND, THIRD), 0)


@pytest.mark.parametrize("damage", ["gone", "short", "other"])
def test_a_damaged_object_costs_the_backups_that_need_it(source: Repository, target: Repository, damage: str) -> None:
    first = {ref.key for ref in source.manifest(FIRST).streams[0].segments}
    key = next(ref.key for ref in source.manifest(SECOND).streams[0].segments if ref.key not in first)
    whole = source.store.get(key)
    source.store.delete(key)
    if damage != "gone":
        source.store.put(key, whole[:-1] if damage == "short" else whole[:-1] + b"x")
    needing = [b for b in ALL if any(ref.key == key for ref in source.manifest(b).streams[0].segments)]
    report = copy(source, target)
    assert [one.id for one in report.failed] == needing
    assert all(isinstance(one.error, IntegrityError) and key in one.error.message for one in report.failed)
    assert list(report.copied) == [backup for backup in ALL if backup not in needing] == target.backups()
    for backup in report.copied:
        assert_sound(target, backup)
    assert key not in objects(target.store)


def test_another_backup_of_the_same_id_is_a_conflict_and_left_alone(source: Repository, target: Repository) -> None:
    other = replace(source.manifest(SECOND), tags={"another": "one"})
    target.commit(other)
    target.store.put(layout.manifest_key(FIRST), b"{}")
    report = copy(source, target)
    assert report.copied == (THIRD,)
    assert [one.id for one in report.failed] == [FIRST, SECOND]
    assert isinstance(report.failed[0].error, IntegrityError) and "cannot be read" in report.failed[0].error.message
    assert isinstance(report.failed[1].error, TargetConflict)
    assert target.manifest(SECOND) == other


def test_a_backup_whose_objects_are_in_other_places_is_the_same(source: Repository, target: Repository) -> None:
    manifest = source.manifest(FIRST)
    stream = manifest.streams[0]
    ref = replace(stream.segments[0], key=layout.stored_keys(stream.segments[0].key, "0" * 64)[0])
    moved = replace(stream, segments=(ref, *stream.segments[1:]))
    target.commit(replace(manifest, streams=(moved, *manifest.streams[1:])))
    assert copy(source, target, [FIRST]).present == (FIRST,)


def test_another_object_at_the_target_is_left_alone_and_ours_stored_beside_it(
    source: Repository, target: Repository
) -> None:
    ref = source.manifest(FIRST).streams[0].segments[0]
    other = source.store.get(ref.key)[:-20] + bytes(20)
    target.store.put(ref.key, other)
    report = copy(source, target)
    assert (report.copied, report.failed) == ((FIRST, SECOND, THIRD), ())
    assert target.store.get(ref.key) == other
    for backup in ALL:
        assert_sound(target, backup)
        assert contents(target, backup) == contents(source, backup)
    assert target.store.get(layout.stored_keys(ref.key, ref.sha256)[1]) == source.store.get(ref.key)
    again = copy(source, target)
    assert (again.present, again.copied_objects) == ((FIRST, SECOND, THIRD), 0)


def test_the_next_manifest_names_one_that_was_written_again_as_it_is_here(target: Repository) -> None:
    """Else the copy of the one before would seem to have been replaced."""
    source = make_repository(MemoryStore(), "50e4ce")
    first = store_backup(source, FIRST)
    source.commit(replace(first, id=SECOND, previous=FIRST, streams=()))
    Repository.open(source.store).commit(replace(first, id=THIRD, previous=SECOND, streams=()))
    target.store.put(first.streams[0].segments[0].key, b"something else")
    assert copy(source, target, [FIRST]).copied == (FIRST,)
    assert target.store.get(layout.manifest_key(FIRST)) != source.store.get(layout.manifest_key(FIRST))
    assert copy(source, target).copied == (SECOND, THIRD)
    shas = {backup: sha256_of(target.store.get(layout.manifest_key(backup))) for backup in target.backups()}
    named = [target.manifest(backup).previous_sha256 for backup in (FIRST, SECOND, THIRD)]
    assert named == [None, shas[FIRST], shas[SECOND]]
    assert find_gaps(target.documents) == []
    assert copy(source, target).present == (FIRST, SECOND, THIRD)


def test_a_manifest_that_was_lost_is_put_back_as_it_was_or_not_at_all(source: Repository, target: Repository) -> None:
    """Another one would be taken for a forgery, and `repair` would put the first one in its place."""
    copy(source, target)
    key, ref = layout.manifest_key(FIRST), source.manifest(FIRST).streams[0].segments[0]
    target.store.delete(key)
    assert copy(source, target).copied == (FIRST,) and find_gaps(target.documents) == []
    target.store.delete(key)
    put_instead(target.store, ref.key, b"damaged")  # so ours lies beside it, and the manifest has to say so
    report = copy(source, target)
    assert [type(one.error) for one in report.failed] == [TargetConflict] and report.present == (SECOND, THIRD)
    assert FIRST not in target.backups()


def test_a_backup_that_is_forgotten_meanwhile_is_named_and_the_others_are_copied(
    source: Repository, target: Repository
) -> None:
    key = layout.manifest_key(SECOND)

    def forget(operation: str, asked: str) -> None:
        if operation == "put" and asked == layout.manifest_key(FIRST):
            source.store.delete(key)

    report = copy(source, Repository.open(FaultStore(target.store, before=forget)))
    assert report.copied == (FIRST, THIRD)
    assert [(one.id, "was removed" in one.error.message) for one in report.failed] == [(SECOND, True)]


def test_a_lost_lease_ends_the_copy_before_the_next_manifest(source: Repository, target: Repository) -> None:
    lease = lease_on(target.store)

    def lose(operation: str, key: str) -> None:
        if operation == "put" and key == layout.manifest_key(FIRST):
            lease.release()

    watched = Repository.open(FaultStore(target.store, before=lose))
    with pytest.raises(RepositoryLocked):
        copy(source, watched, lease=lease)
    assert target.backups() == []  # taken back: what it names was not safe any more


def test_somebody_else_copies_the_same_at_the_same_time(source: Repository, target: Repository) -> None:
    met: list[str] = []

    def overtake(operation: str, key: str) -> None:
        if operation == "put" and not met:
            met.append(key)
            copy(source, target)

    report = copy(source, Repository.open(FaultStore(target.store, before=overtake)))
    assert report.failed == () and report.present == (FIRST, SECOND, THIRD)
    assert objects(target.store) == objects(source.store)


# --- encrypted and signed ---

IDENTITY = age.age_identity(b"a reader's key, of 32 bytes all in"[:32])
BESIDES = (layout.KEYS, layout.CATALOGS)


@dataclass(frozen=True, slots=True)
class Kept:
    """A repository of some kind, and what opens it."""

    store: MemoryStore
    new_keys: NewKeys | None

    def writer(self) -> Repository:
        """As a backup host has it."""
        return Repository.open(self.store, GivenKeys(self.new_keys.writer_key) if self.new_keys else NO_KEYS)

    def reader(self) -> Repository:
        """With the key that reads messages."""
        if self.new_keys is None or self.new_keys.secret is None:
            return self.writer()
        return Repository.open(self.store, GivenKeys(identities=(IDENTITY,)))


def made(kind: str, repository_id: str) -> Kept:
    assert IDENTITY.recipient is not None
    recipients = [IDENTITY.recipient] if kind == "encrypted" else []
    new_keys = None if kind == "plain" else make_new_keys(repository_id, recipients, None, os.urandom)
    store = MemoryStore()
    Repository.create(store, repository_id=repository_id, created=CREATED, tool="jsbackup tests", new_keys=new_keys)
    return Kept(store, new_keys)


def replicate(store: Store, source: Repository) -> None:
    Repository.create_replica(store, source, probe_id=os.urandom(8).hex(), created=CREATED, tool="jsbackup tests")


def contents(repository: Repository, backup: str) -> list[object]:
    """What a backup holds, whatever it is stored as."""
    found: list[object] = []
    for stream in repository.manifest(backup).streams:
        found += [stream.name, stream.config, stream.digest.hex, [ref.digest for ref in stream.segments]]
        found += [batch.to_pydict() for ref in stream.segments for batch in SegmentReader(repository.objects).read(ref)]
        found += [load_consumer(repository.objects, consumer).state for consumer in stream.consumers]
        found += [repository.objects.fetch(ref) for ref in stream.opaque]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "to"), [("plain", "encrypted"), ("encrypted", "encrypted"), ("encrypted", "signed"), ("signed", "plain")]
)
def test_what_a_backup_holds_is_the_same_however_it_is_kept(of: str, to: str) -> None:
    source, target = made(of, "5007ce"), made(to, "7a79e7")
    for number, backup in enumerate(ALL[:2]):
        store_backup(source.writer(), backup, count=40 + 10 * number)
    report = copy(source.reader(), target.writer(), ALL[:2])
    assert (report.copied, report.failed) == ((FIRST, SECOND), ())
    # Every object was stored once, also where sealing it again would make another one of it.
    assert report.copied_objects == len([key for key in objects(target.store) if not key.startswith(BESIDES)])
    for backup in ALL[:2]:
        assert_sound(target.reader(), backup)
        assert contents(target.reader(), backup) == contents(source.reader(), backup)
    # Next time, with one more.
    store_backup(source.writer(), THIRD, count=70)
    report = copy(source.reader(), target.writer())
    assert (report.copied, report.present, report.failed) == ((THIRD,), (FIRST, SECOND), ())
    new = {ref.digest for ref in source.reader().manifest(THIRD).streams[0].segments}
    new -= {ref.digest for ref in source.reader().manifest(SECOND).streams[0].segments}
    assert report.copied_objects == len(new) + 1
    assert contents(target.reader(), THIRD) == contents(source.reader(), THIRD)
    if to != "plain":
        assert [target.reader().manifest(backup).previous for backup in ALL] == [None, FIRST, SECOND]
        assert find_gaps(target.writer().documents) == []


def test_a_replica_takes_everything_as_it_is_without_a_key_that_reads_messages() -> None:
    source = made("encrypted", "5007ce")
    for backup in ALL:
        store_backup(source.writer(), backup)
    store = MemoryStore()
    replicate(store, source.writer())
    replica = Kept(store, source.new_keys)
    assert is_replica(source.writer(), replica.writer())
    assert copy(source.writer(), replica.writer(), [FIRST, THIRD]).copied == (FIRST, THIRD)
    ours, there = objects(source.store), objects(store)
    assert all(ours[key] == data for key, data in there.items() if not key.startswith(layout.CATALOGS))
    for backup in (FIRST, THIRD):
        assert contents(replica.reader(), backup) == contents(source.reader(), backup)
    # What follows one that was not copied is on record; backups go on there, if need be.
    store_backup(replica.writer(), "20261121T014800Z-000004")
    assert find_gaps(replica.writer().documents) == []
    # As if the copy had been stopped before it could put anything on record: the next one does.
    for info in list(store.list(layout.CATALOGS)):
        store.delete(info.key)
    assert [gap.backup for gap in find_gaps(replica.writer().documents)] == [SECOND]
    assert copy(source.writer(), replica.writer(), [FIRST, THIRD]).present == (FIRST, THIRD)
    assert find_gaps(replica.writer().documents) == []


def test_an_interrupted_replica_can_be_made_again() -> None:
    source = made("encrypted", "5007ce").writer()
    watched = FaultStore(MemoryStore())
    replicate(watched, source)
    for at in range(1, watched.operations + 1):
        store = MemoryStore()
        with pytest.raises(Killed):
            replicate(FaultStore(store, Fault.KILL_AFTER, at=at), source)
        if not list(store.list(layout.DESCRIPTOR)):
            replicate(store, source)
        assert is_replica(Repository.open(store), source)
        assert {key: store.get(key) for key in objects(store) if key.startswith(layout.KEYS)} == objects(source.store)
