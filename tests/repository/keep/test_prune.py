"""Prune removes exactly what no backup needs, when it is time, and nothing on doubt; killed anywhere, it can go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache

import pytest

from jsbackup.errors import (
    FormatError,
    IntegrityError,
    JsBackupError,
    ObjectLocked,
    RepositoryLocked,
    UnsupportedError,
)
from jsbackup.repository import layout
from jsbackup.repository.checks.verify import Level, verify_backup
from jsbackup.repository.document import encode_document
from jsbackup.repository.inventory import write_catalog
from jsbackup.repository.keep import prune as prune_module
from jsbackup.repository.keep.forget import plan_by_ids, remove_decided
from jsbackup.repository.keep.leases import DURATION_SECONDS, Lease, Mode, Terms, acquire
from jsbackup.repository.keep.prune import NamedObjects, PruneReport, preview_prune, prune
from jsbackup.repository.layout import LeaseKey, ObjectKind, ReceiptKey
from jsbackup.repository.manifest import objects_named
from jsbackup.repository.manifest_json import encode_manifest
from jsbackup.repository.objects import Objects
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, FIRST, SECOND, make_repository, store_backup, store_opaque
from tests.harness.counting import NotingStore
from tests.harness.many_streams import manifest_of, many_streams
from tests.harness.small_pages import make_pages_small
from tests.harness.stores import Fault, FaultStore

DAY = 86_400.0
ORPHAN = bytes(range(256)) * 9 + b"nobody names this"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A repository with one backup, and with objects of a forgotten one and of an interrupted one."""

    objects: Mapping[str, bytes]
    needed: frozenset[str]
    orphans: frozenset[str]
    interrupted: frozenset[str]


@cache
def prepared() -> Prepared:
    store = MemoryStore()
    repository = make_repository(store)
    needed = frozenset(objects_named(store_backup(repository, FIRST, count=40)))
    forgotten = frozenset(objects_named(store_backup(repository, SECOND, count=60)))
    for key in (layout.manifest_key(SECOND), layout.witness_key(SECOND)):
        store.delete(key)
    interrupted = frozenset(ref.key for ref in store_opaque(store, "interrupted", ORPHAN).opaque)
    assert len(needed) > 4 and len(forgotten - needed) > 1 and len(interrupted) > 1
    objects = {info.key: store.get(info.key) for info in store.list()}
    return Prepared(objects, needed, (forgotten - needed) | interrupted, interrupted)


class Bench:
    """A store as prepared, and a clock."""

    def __init__(self) -> None:
        self.now = 1_795_225_500.1  # a little more than the same time in nanoseconds
        self.store = MemoryStore(lambda: self.now)
        for key, data in prepared().objects.items():
            self.store.put(key, data)
        self.repository = Repository.open(self.store)
        self.needed, self.orphans = set(prepared().needed), set(prepared().orphans)
        self._made = 0

    def random(self, count: int) -> bytes:
        self._made += 1
        return self._made.to_bytes(8, "big")[-count:]

    def taker(self, store: Store) -> Callable[[Mode], AbstractContextManager[Lease]]:
        @contextmanager
        def take(mode: Mode) -> Iterator[Lease]:
            terms = Terms(mode, "prune", "jsbackup tests", "tests", CREATED)
            lease = acquire(
                store, terms, wait_seconds=0, clock=lambda: self.now, sleep=lambda seconds: None, random=self.random
            )
            try:
                yield lease
            finally:
                lease.release()

        return take

    def prune(self, grace_seconds: float = 0, store: Store | None = None) -> PruneReport:
        store = store or self.store
        repository = Repository.open(store)
        return prune(
            repository, self.taker(store), grace_seconds=grace_seconds, tool="tests", random=self.random, threads=1
        )

    def preview(self, grace_seconds: float = 0, without: tuple[str, ...] = ()) -> PruneReport:
        return preview_prune(self.repository, self.taker(self.store), grace_seconds=grace_seconds, without=without)

    def content(self) -> set[str]:
        return {info.key for info in self.store.list(layout.SEGMENTS)}

    def everything(self) -> dict[str, bytes]:
        return {info.key: self.store.get(info.key) for info in self.store.list()}

    def assert_sound(self) -> None:
        manifest = Repository.open(self.store).manifest(FIRST)
        assert list(verify_backup(Objects(self.store), manifest, Level.OBJECTS)) == []


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_without_grace_exactly_the_unused_goes_at_once(bench: Bench) -> None:
    sizes = {info.key: info.size for info in bench.store.list()}
    report = bench.prune()
    assert report == PruneReport(len(bench.orphans), sum(sizes[key] for key in bench.orphans))
    assert bench.content() == bench.needed
    assert {layout.kind_of(info.key) for info in bench.store.list("")} & {ObjectKind.LEASE, ObjectKind.MARKS} == set()
    bench.assert_sound()
    assert bench.prune() == PruneReport()


def test_what_is_unused_is_marked_and_goes_when_its_time_has_come(bench: Bench) -> None:
    report = bench.prune(DAY)
    assert (report.deleted_objects, report.marked_objects) == (0, len(bench.orphans))
    assert report.due_seconds == bench.now + DAY
    bench.now += DAY / 2
    assert bench.prune(DAY) == report
    bench.now += DAY / 2 - 1
    assert bench.prune(DAY).deleted_objects == 0
    bench.now += 1
    assert bench.prune(DAY).deleted_objects == len(bench.orphans)
    assert bench.content() == bench.needed
    assert list(bench.store.list(layout.MARKS)) == []


def test_what_came_back_waits_again(bench: Bench) -> None:
    bench.prune(DAY)
    key = min(bench.orphans)
    data = bench.store.get(key)
    bench.now += DAY
    bench.store.delete(key)
    bench.store.put(key, data)
    report = bench.prune(DAY)
    assert (report.deleted_objects, report.marked_objects) == (len(bench.orphans) - 1, 1)
    assert key in bench.content()


def test_what_was_used_meanwhile_waits_again(bench: Bench) -> None:
    bench.prune(DAY)
    store_backup(bench.repository, SECOND, count=60)
    bench.now += DAY
    interrupted = len(prepared().interrupted)
    assert bench.prune(DAY).deleted_objects == interrupted
    for key in (layout.manifest_key(SECOND), layout.witness_key(SECOND)):
        bench.store.delete(key)
    report = bench.prune(DAY)
    assert (report.deleted_objects, report.marked_objects) == (0, len(bench.orphans) - interrupted)


def test_a_damaged_list_of_marks_makes_everything_wait_again(bench: Bench) -> None:
    bench.prune(DAY)
    (info,) = bench.store.list(layout.MARKS)
    data = bytearray(bench.store.get(info.key))
    data[len(data) // 2] ^= 1
    bench.store.delete(info.key)
    bench.store.put(info.key, data)
    bench.now += DAY
    assert bench.prune(DAY).deleted_objects == 0
    assert bench.prune(DAY).due_seconds == bench.now + DAY


def _flipped(bench: Bench, key: str, data: bytes) -> None:
    bench.store.put(key, data.replace(b"orders", b"orderz", 1))


def _newer(bench: Bench, key: str, data: bytes) -> None:
    document = encode_document({"format": 99, "required_features": []}, "manifest")
    bench.store.put(key, document)


@pytest.mark.parametrize("spoil", [_flipped, _newer])
def test_a_manifest_that_cannot_be_read_stops_it(bench: Bench, spoil: Callable[[Bench, str, bytes], None]) -> None:
    manifest = store_backup(bench.repository, SECOND, count=60)
    key = layout.manifest_key(SECOND)
    bench.store.delete(key)
    spoil(bench, key, encode_manifest(manifest))
    before = bench.everything()
    with pytest.raises((IntegrityError, UnsupportedError)) as caught:
        bench.prune()
    assert caught.value.hint is not None
    assert bench.everything() == before


def test_a_backup_that_was_taken_away_stops_it_until_it_is_given_up(bench: Bench) -> None:
    write_catalog(bench.repository.documents)
    (lost, *_) = bench.repository.backups()
    bench.store.delete(layout.manifest_key(lost))
    before = bench.content()
    with pytest.raises(IntegrityError, match=f"backup {lost}: it was removed, but not by jsbackup") as caught:
        bench.prune()
    assert caught.value.hint and f"jsbackup forget {lost}" in caught.value.hint
    assert bench.content() == before
    done = remove_decided(bench.repository, plan_by_ids(bench.repository, [lost]).decisions)
    assert [one.backup for one in done.removed] == [lost]
    bench.prune()
    assert bench.content() < before


def test_a_backup_forgotten_while_it_looks_is_none(bench: Bench) -> None:
    store_backup(bench.repository, SECOND, count=60)

    def forget(operation: str, key: str) -> None:
        if operation == "get_range" and key == layout.manifest_key(SECOND):
            remove_decided(bench.repository, plan_by_ids(bench.repository, [SECOND]).decisions)

    bench.prune(store=FaultStore(bench.store, before=forget))
    assert bench.content() == bench.needed


def test_a_manifest_that_comes_between_its_two_phases_counts(bench: Bench) -> None:
    exclusive: list[str] = []

    def back_up(operation: str, key: str) -> None:
        lease = layout.parse_lease_key(key)
        if operation == "put" and lease is not None and lease.exclusive and not exclusive:
            exclusive.append(key)
            store_backup(bench.repository, SECOND, count=60)

    report = bench.prune(store=FaultStore(bench.store, before=back_up))
    assert exclusive and report.deleted_objects == len(prepared().interrupted)
    assert Repository.open(bench.store).backups() == [FIRST, SECOND]
    for backup in (FIRST, SECOND):
        assert set(objects_named(bench.repository.manifest(backup))) <= bench.content()


def test_foreign_objects_are_left_alone(bench: Bench) -> None:
    foreign = [
        "segments/notes.txt",
        "segments/orders-1a2b3c4d/notes.txt",
        f"segments/orders-1a2b3c4d/opaque-{'0' * 64}.zst.bak",
        "photos/cat.jpg",
        "backups/notes.txt",
        "pruning/a.txt",
        "probe/a/b",
        "locks/notes.json",
        "holds/notes.json",
    ]
    for key in foreign:
        bench.store.put(key, b"mine")
    bench.now += 10 * DAY
    bench.prune()
    assert {key for key in bench.everything() if layout.kind_of(key) is ObjectKind.FOREIGN} == set(foreign)


def test_leftovers_go_when_they_are_old(bench: Bench) -> None:
    probe, hold, held = layout.probe_key("1a2b"), layout.hold_key(SECOND), layout.hold_key(FIRST)
    lease = layout.lease_key(LeaseKey("00" * 8, 1, exclusive=False, duration_seconds=60))
    for key in (probe, hold, held, lease):
        bench.store.put(key, b"")
    with pytest.raises(RepositoryLocked):
        bench.prune()
    bench.now += 61
    assert bench.prune(DAY).leftovers == 1
    assert {probe, hold, held} <= set(bench.everything())
    bench.now += DAY
    assert bench.prune(DAY).leftovers == 2
    assert {probe, hold, held} & set(bench.everything()) == {held}


def test_receipts_go_when_their_run_has_ended_and_they_are_old(bench: Bench) -> None:
    bench.prune()
    ended, running = (layout.receipt_key(ReceiptKey(run * 8, 3)) for run in ("aa", "bb"))
    foreign = layout.RECEIPTS + "foreign.json"
    for key in (ended, running, foreign):
        bench.store.put(key, b"")
    bench.now += DAY - 1
    assert bench.prune(DAY).leftovers == 0
    bench.now += 1
    lease = layout.lease_key(LeaseKey("bb" * 8, 1440, exclusive=False, duration_seconds=60))
    bench.store.put(lease, b"")
    assert bench.prune(DAY).leftovers == 1
    assert {ended, running, foreign, lease} & set(bench.everything()) == {running, foreign, lease}
    bench.now += 61
    assert bench.prune(DAY).leftovers == 2
    assert {running, foreign, lease} & set(bench.everything()) == {foreign}


def test_what_the_store_locks_is_kept_and_counted(bench: Bench) -> None:
    key = min(bench.orphans)

    class Locked(FaultStore):
        def delete(self, wanted: str) -> None:
            if wanted == key:
                raise ObjectLocked(wanted)
            super().delete(wanted)

    report = bench.prune(store=Locked(bench.store))
    assert (report.deleted_objects, report.kept_objects) == (len(bench.orphans) - 1, 1)
    assert report.kept_bytes == bench.store.head(key).size
    assert bench.content() == bench.needed | {key}
    assert bench.prune().deleted_objects == 1


def test_it_stops_deleting_when_its_lease_is_not_sure_any_more(bench: Bench) -> None:
    deletes = 0

    def hang(operation: str, key: str) -> None:
        nonlocal deletes
        if operation == "delete" and key in bench.orphans:
            deletes += 1
            bench.now += DURATION_SECONDS / 4

    with pytest.raises(RepositoryLocked, match="could not be renewed in time"):
        bench.prune(store=FaultStore(bench.store, before=hang))
    assert 1 <= deletes < len(bench.orphans)
    assert bench.prune().deleted_objects > 0
    bench.assert_sound()


def operations(grace_seconds: float) -> int:
    bench = marked()
    watched = FaultStore(bench.store)
    bench.prune(grace_seconds, watched)
    return watched.operations


def marked() -> Bench:
    """With objects that are marked and due, with new ones, and with an expired lease."""
    bench = Bench()
    bench.prune(DAY)
    lease = layout.lease_key(LeaseKey("00" * 8, 1, exclusive=True, duration_seconds=60))
    bench.store.put(lease, b"")
    bench.now += DAY
    bench.orphans |= {ref.key for ref in store_opaque(bench.store, "late", b"later").opaque}
    return bench


def test_answers_cut_short_delete_nothing_that_is_needed() -> None:
    """A store that breaks its promises: what is read is cut in half, once."""
    for at in range(1, operations(0) + 1):
        bench = marked()
        with suppress(JsBackupError, FormatError):
            bench.prune(0, FaultStore(bench.store, Fault.TRUNCATE, at=at))
        bench.assert_sound()


def test_a_page_whose_key_has_the_hash_of_another_is_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only such a page lists would seem unused, and be deleted."""
    make_pages_small(monkeypatch)
    store = NotingStore(MemoryStore())
    store_backup(make_repository(store), FIRST, count=200)
    Repository.open(store).commit(manifest_of(many_streams(100), SECOND))
    content = {info.key for prefix in (layout.SEGMENTS, layout.STREAMS) for info in store.list(prefix)}
    monkeypatch.setattr(prune_module, "hash", lambda key: 7, raising=False)
    store.read.clear()
    repository = Repository.open(store)
    named = NamedObjects(repository.stream_pages)
    for backup in repository.backups():
        named.add(repository.manifest(backup, streams=False))
    named.read_pages(2)
    pages = sorted(key for key in content if "/page-" in key)
    assert len(pages) > 4 and sorted(key for key in store.read if "/page-" in key) == pages
    assert all(key in named for key in content)
