"""Leases: who waits for whom, what ends them, and that no order of store operations lets anything be deleted in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace

import pytest

from jsbackup.errors import (
    FormatError,
    IntegrityError,
    ObjectLocked,
    ObjectNotFound,
    RepositoryLocked,
    StoreError,
    UsageError,
)
from jsbackup.repository import layout
from jsbackup.repository.inventory import find_gaps, write_catalog
from jsbackup.repository.keep import leases
from jsbackup.repository.keep.leases import (
    HolderProcess,
    Lease,
    Mode,
    Terms,
    acquire,
    list_leases,
    read_lease,
    remove_lease,
    unlock_leases,
)
from jsbackup.repository.keep.prune import prune
from jsbackup.repository.layout import LeaseKey
from jsbackup.repository.manifest import BackupResult, Manifest, Source, objects_named
from jsbackup.repository.objects import Objects
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, FIRST, SECOND, make_repository, store_opaque
from tests.harness.interleave import World, explore, wander
from tests.harness.stores import Fault, FaultStore

TERMS = Terms(Mode.SHARED, "backup", "jsbackup tests", "tests", CREATED)
ALONE = replace(TERMS, mode=Mode.EXCLUSIVE, purpose="prune")
DURATION = TERMS.duration_seconds


class Clockwork:
    """A store and a process that share a clock, which stands still but for `sleep` and by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.store = MemoryStore(lambda: self.now)
        self.slept: list[float] = []
        self.waited: list[RepositoryLocked] = []
        self.on_sleep: Callable[[], object] = lambda: None
        self.gone: set[HolderProcess] = set()
        self.removed: list[str] = []
        self._made = 0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.on_sleep()

    def random(self, count: int) -> bytes:
        self._made += 1
        return self._made.to_bytes(8, "big")[-count:]

    def acquire(self, terms: Terms, wait_seconds: float = 0, store: Store | None = None) -> Lease:
        return acquire(
            store or self.store,
            terms,
            wait_seconds=wait_seconds,
            clock=lambda: self.now,
            sleep=self.sleep,
            random=self.random,
            waiting=self.waited.append,
            is_gone=self.gone.__contains__,
            removed=self.removed.append,
        )

    def keys(self) -> list[str]:
        return [info.key for info in self.store.list(layout.LOCKS)]


@pytest.fixture
def clock() -> Clockwork:
    return Clockwork()


def test_shared_leases_go_together_and_an_exclusive_one_with_none(clock: Clockwork) -> None:
    first, second = clock.acquire(TERMS), clock.acquire(TERMS)
    with pytest.raises(RepositoryLocked, match=r"in use by backup \(since .*, jsbackup tests on tests\), shared lease"):
        clock.acquire(ALONE)
    assert len(list_leases(clock.store)) == 2
    first.release()
    second.release()
    alone = clock.acquire(ALONE)
    for terms in (TERMS, ALONE):
        with pytest.raises(RepositoryLocked, match=r"in use by prune .* exclusive lease"):
            clock.acquire(terms)
    alone.release()
    clock.acquire(TERMS).release()
    assert clock.keys() == []


@pytest.mark.parametrize("terms", [TERMS, ALONE])
def test_whoever_waits_gets_it_when_the_other_has_ended(clock: Clockwork, terms: Terms) -> None:
    alone = clock.acquire(ALONE)
    clock.on_sleep = lambda: alone.release() if len(clock.slept) == 3 else None
    lease = clock.acquire(terms, wait_seconds=60)
    assert lease.held and len(clock.slept) == 3
    assert len(clock.waited) == 1 and clock.waited[0].hint is not None and "--lock-timeout" in clock.waited[0].hint


def test_a_lease_of_a_killed_holder_is_waited_for_until_it_ends(clock: Clockwork) -> None:
    begun = clock.now
    clock.acquire(ALONE)
    clock.acquire(TERMS, wait_seconds=DURATION + 60)
    assert DURATION < clock.now - begun < DURATION + 30


PROCESS = HolderProcess("machine", "boot", 1, 2, 3, 4)


@pytest.mark.parametrize("mode", Mode)
def test_a_lease_whose_process_is_gone_is_removed(clock: Clockwork, mode: Mode) -> None:
    dead = clock.acquire(replace(ALONE, process=PROCESS))
    clock.gone.add(PROCESS)
    lease = clock.acquire(replace(TERMS, mode=mode))
    assert [seen.key.id for seen in list_leases(clock.store)] == [lease.id] and clock.waited == []
    (text,) = clock.removed
    assert text.startswith(f"removed the lease {dead.id} of prune (since ") and text.endswith("its process 3 is gone")
    with pytest.raises(RepositoryLocked):
        dead.renew()


def test_where_requests_may_be_under_way_it_is_removed_when_they_have_arrived(clock: Clockwork) -> None:
    clock.acquire(replace(ALONE, process=PROCESS))
    begun = clock.now
    bucket = FaultStore(clock.store)
    assert bucket.late_seconds() == 120
    clock.gone.add(PROCESS)
    with pytest.raises(RepositoryLocked):
        clock.acquire(TERMS, wait_seconds=100, store=bucket)
    clock.acquire(ALONE, wait_seconds=DURATION, store=bucket)
    assert 220 <= clock.now - begun < 240 and len(clock.removed) == 1


def test_a_living_process_keeps_its_lease_and_so_does_one_that_is_not_named(clock: Clockwork) -> None:
    for process in (PROCESS, None):
        lease = clock.acquire(replace(ALONE, process=process))
        with pytest.raises(RepositoryLocked):
            clock.acquire(TERMS)
        lease.release()


def test_renewals_keep_a_lease_alive_and_leave_two_generations(clock: Clockwork) -> None:
    lease = clock.acquire(ALONE)
    for _ in range(10):
        clock.now += DURATION / 5
        lease.check()
        assert lease.renew() == clock.now
        assert len(clock.keys()) == 2
    with pytest.raises(RepositoryLocked):
        clock.acquire(TERMS)
    (seen,) = list_leases(clock.store)
    assert (seen.key.generation, seen.is_live(clock.now), seen.expires_seconds) == (11, True, clock.now + DURATION)
    assert read_lease(clock.store, seen).purpose == "prune"
    lease.release()
    assert clock.keys() == []


def test_a_holder_stops_long_before_others_pass_its_lease_over(clock: Clockwork) -> None:
    lease = clock.acquire(ALONE)
    clock.now += DURATION * 2 / 5 + 1
    with pytest.raises(RepositoryLocked, match="could not be renewed in time"):
        lease.check()
    with pytest.raises(RepositoryLocked):
        clock.acquire(TERMS)
    lease.renew()  # nobody has passed it over
    lease.check()


def test_a_lease_that_came_to_its_end_is_lost_for_good(clock: Clockwork) -> None:
    lease = clock.acquire(ALONE)
    clock.now += DURATION + 1
    for _ in range(2):
        with pytest.raises(RepositoryLocked, match="could not be renewed in time"):
            lease.renew()
        assert not lease.held
    assert clock.keys() == []


def test_a_lease_that_was_removed_is_lost_and_its_holder_notices(clock: Clockwork) -> None:
    lease = clock.acquire(TERMS)
    lease.renew()
    (seen,) = list_leases(clock.store)
    remove_lease(clock.store, seen)
    with pytest.raises(RepositoryLocked, match="was removed by someone"):
        lease.renew()
    assert clock.keys() == []


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_ANSWER])
def test_a_renewal_that_fails_anywhere_can_be_tried_again(clock: Clockwork, fault: Fault) -> None:
    watched = FaultStore(clock.store)
    lease = clock.acquire(TERMS, store=watched)
    before = watched.operations
    lease.renew()
    count = watched.operations - before
    assert count >= 2
    for at in range(1, count + 1):
        store = FaultStore(clock.store, fault, at=at + 2)
        lease = clock.acquire(TERMS, store=store)
        assert store.operations == 2
        clock.now += 100
        with suppress(StoreError):
            lease.renew()
        clock.now += 100
        lease.renew()
        assert lease.held
        lease.release()
    assert [seen.key.generation for seen in list_leases(clock.store)] == [2]  # of the first


def test_what_is_in_a_lease_decides_nothing(clock: Clockwork) -> None:
    clock.store.put(layout.lease_key(LeaseKey("00" * 8, 3, exclusive=True, duration_seconds=50)), b"damaged")
    clock.store.put("locks/foreign.json", b"{}")
    clock.store.put("locks/0000000000000000-00000001-exclusive-99999.json", b"{}")
    (seen,) = list_leases(clock.store)
    with pytest.raises(FormatError):
        read_lease(clock.store, seen)
    with pytest.raises(RepositoryLocked, match="in use by an unknown command, exclusive lease 0000"):
        clock.acquire(TERMS)
    clock.now += 51
    clock.acquire(TERMS)


def test_a_commit_is_taken_back_if_the_machine_stood_still_before_it() -> None:
    """The store's time goes on, the holder's stands still: a paused virtual machine."""
    now = [1e9]
    store = MemoryStore(lambda: now[0])
    make_repository(store)

    def stand_still(operation: str, key: str) -> None:
        if operation == "put" and key == layout.manifest_key(FIRST):
            now[0] += 2 * DURATION

    lease = acquire(
        store, TERMS, wait_seconds=0, clock=lambda: 0.0, sleep=lambda seconds: None, random=lambda count: bytes(count)
    )
    manifest = Manifest(FIRST, CREATED, "tests", Source("2.15.1"), BackupResult.COMPLETE)
    with pytest.raises(RepositoryLocked):
        leases.commit(Repository.open(FaultStore(store, before=stand_still)), manifest, lease)
    repository = Repository.open(store)
    assert repository.backups() == []
    # Somebody may have followed it already: it is on record that it went.
    repository.commit(replace(manifest, id=SECOND, previous=FIRST))
    assert find_gaps(repository.documents) == []


def test_a_store_too_slow_to_hold_a_lease_is_an_error(clock: Clockwork) -> None:
    def crawl(operation: str, key: str) -> None:
        clock.now += DURATION / 4

    with pytest.raises(StoreError, match="too slow"):
        clock.acquire(TERMS, store=FaultStore(clock.store, before=crawl))
    assert clock.keys() == []


# --- every order of operations ---

CONTENT = bytes(range(256))
PLACES = (layout.LOCKS, layout.SEGMENTS, layout.BACKUPS)


def holding(world: World, store: Store, purpose: str) -> Callable[[Mode], AbstractContextManager[Lease]]:
    made = 0

    def random(count: int) -> bytes:
        nonlocal made
        made += 1
        return bytes([getattr(store, "number", 0) + 1, made]).rjust(count, b"\0")[-count:]

    @contextmanager
    def hold(mode: Mode) -> Iterator[Lease]:
        terms = replace(TERMS, mode=mode, purpose=purpose)
        lease = acquire(
            store, terms, wait_seconds=0, clock=lambda: world.now, sleep=lambda seconds: None, random=random
        )
        try:
            yield lease
        finally:
            lease.release()

    return hold


def orphan(store: MemoryStore) -> None:
    """A repository with objects that no manifest names."""
    _with_a_backup(store)
    store_opaque(store, "verbatim", CONTENT)


def _with_a_backup(store: MemoryStore) -> None:
    """Where there is none at all, nothing is ever pruned."""
    made = make_repository(store)
    made.commit(Manifest("20260101T000000Z-000000", CREATED, "tests", Source("2.15.1"), BackupResult.COMPLETE))
    write_catalog(made.documents)


def forgettable(store: MemoryStore) -> None:
    _with_a_backup(store)
    manifest = Manifest(
        FIRST, CREATED, "tests", Source("2.15.1"), BackupResult.COMPLETE, (store_opaque(store, "verbatim", CONTENT),)
    )
    Repository.open(store).commit(manifest)


def backing_up(world: World, store: Store) -> str:
    with holding(world, store, "backup")(Mode.SHARED) as lease:
        try:
            stream = store_opaque(store, "verbatim", CONTENT)
        except ObjectNotFound:  # it was there a moment ago
            assert not lease.held
            return "too late"
        manifest = Manifest(SECOND, CREATED, "tests", Source("2.15.1"), BackupResult.COMPLETE, (stream,))
        leases.commit(Repository.open(store), manifest, lease)
    return "committed"


def pruning(world: World, store: Store) -> int:
    report = prune(
        Repository.open(store),
        holding(world, store, "prune"),
        grace_seconds=0,
        tool="tests",
        random=lambda count: bytes([getattr(store, "number", 0)]) * count,
        threads=1,
    )
    return report.deleted_objects


def restoring(world: World, store: Store) -> str:
    repository = Repository.open(store)
    with holding(world, store, "restore")(Mode.SHARED) as lease:
        try:
            manifest = repository.manifest(FIRST)
        except UsageError:
            return "forgotten"
        try:
            for ref in manifest.streams[0].opaque:
                Objects(store).fetch(ref)
        except IntegrityError:
            assert not lease.held
            return "too late"
    return "restored"


def forgetting(world: World, store: Store) -> int:
    store.delete(layout.witness_key(FIRST))
    store.delete(layout.manifest_key(FIRST))
    return pruning(world, store)


def assert_whole(world: World) -> None:
    """Every backup has all it names, once its writer (the first actor) has ended, and nobody misses anything."""
    if world.actors[0].done:
        repository = Repository.open(world.store)
        for backup in repository.backups():
            for key in objects_named(repository.manifest(backup)):
                world.store.head(key)
    for actor in world.actors:
        refused = isinstance(actor.error, RepositoryLocked) or "too slow" in str(actor.error)
        assert actor.error is None or refused, actor.error


Run = Callable[[World, Store], object]


def world(prepare: Callable[[MemoryStore], None], *runs: Run) -> World:
    return World(prepare, runs, PLACES, (layout.LOCKS,))


def outcomes(prepare: Callable[[MemoryStore], None], *runs: Run) -> set[tuple[object, ...]]:
    """What comes of all orders: the results of the actors, None where one found the repository locked."""
    found: set[tuple[object, ...]] = set()

    def check(world: World) -> None:
        assert_whole(world)
        if all(actor.done for actor in world.actors):
            found.add(tuple(actor.result for actor in world.actors))

    explore(lambda: world(prepare, *runs), check, switches=2)
    return found


@pytest.mark.slow
def test_no_order_of_a_backup_and_a_prune_deletes_what_the_backup_names() -> None:
    found = outcomes(orphan, backing_up, pruning)
    assert found == {("committed", 0), ("committed", 1), ("committed", None), (None, 1), (None, None)}


@pytest.mark.slow
def test_no_order_of_a_restore_and_a_forget_with_prune_takes_anything_from_the_restore() -> None:
    found = outcomes(forgettable, restoring, forgetting)
    assert found >= {("restored", 1), ("restored", None), ("forgotten", 1)}


@pytest.mark.slow
def test_no_order_in_which_time_passes_and_leases_end_does_harm() -> None:
    expired = 0

    def check(world: World) -> None:
        nonlocal expired
        assert_whole(world)
        expired += "in time" in str(world.actors[0].error)

    # A jump is as long as a lease is sure to be held without being renewed; then a request takes as long as it can.
    for prepare, runs in ((orphan, (backing_up, pruning, pruning)), (forgettable, (backing_up, restoring, forgetting))):
        wander(
            lambda prepare=prepare, runs=runs: world(prepare, *runs),  # type: ignore[misc]
            check,
            runs=150,
            jump_seconds=DURATION * 2 / 5,
            latest_seconds=DURATION * 3 / 5,
        )
    assert expired


# --- unlock ---


def test_unlock_removes_a_living_lease_only_by_force_or_if_its_process_is_gone(
    clock: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removed(*, force: bool = False) -> set[str]:
        return {one.seen.key.id for one in unlock_leases(clock.store, (), clock.now, force=force) if one.removed}

    dead, forced = clock.acquire(replace(TERMS, process=PROCESS)), clock.acquire(TERMS)
    assert removed() == set()
    monkeypatch.setattr(leases, "is_gone", PROCESS.__eq__)
    assert removed() == {dead.id} and removed(force=True) == {forced.id}


def test_unlock_says_which_lease_the_store_keeps_locked(clock: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_store: object, _seen: object) -> None:
        raise ObjectLocked("locks/a")

    clock.acquire(TERMS)
    clock.now += DURATION + 1
    monkeypatch.setattr(leases, "remove_lease", refuse)
    (seen,) = unlock_leases(clock.store, (), clock.now, force=False)
    assert (seen.removed, seen.damaged) == (False, False) and "locks/a" in str(seen.locked)
