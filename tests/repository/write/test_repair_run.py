"""A repair finds what only shows when something else is there again, calls nothing lost that is not, and counts each
object once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from jsbackup.errors import IntegrityError, JsBackupError
from jsbackup.progress import NullProgress
from jsbackup.repository import layout
from jsbackup.repository.checks.ledger import read_damaged, remember
from jsbackup.repository.checks.verify import Level, Verifier
from jsbackup.repository.inventory import write_catalog
from jsbackup.repository.objects import PageRef, id_of
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.repair import Broken, RepairOutcome, put_in_place
from jsbackup.repository.write.repair_run import AskServer, RepairReport, RepairRun
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import FIRST, SECOND, make_manifest, make_repository, store_backup
from tests.harness.damage import flip, put_instead, store_undecodable
from tests.harness.many_streams import manifest_of, many_streams, pages_in
from tests.harness.stores import Fault, FaultStore, Killed

THIRD = "20261121T014700Z-000003"
NOW = 1_800_000_000


def copy_of(store: Store) -> MemoryStore:
    other = MemoryStore()
    for info in store.list():
        other.put(info.key, store.get(info.key))
    return other


def content_of(store: Store) -> dict[str, bytes]:
    """All of it but records of what was verified."""
    return {info.key: store.get(info.key) for info in store.list() if not info.key.startswith(layout.VERIFIED)}


def counter() -> Callable[[int], bytes]:
    numbers = iter(range(1, 1000))
    return lambda count: next(numbers).to_bytes(count, "big")


def run(
    store: Store, other: Store | None, *, dry_run: bool = False, check: bool = False, ask: AskServer | None = None
) -> RepairReport:
    repository = Repository.open(store)
    return RepairRun(
        repository,
        repository.backups(),
        NullProgress(),
        clock=lambda: NOW,
        random=counter(),
        other=other,
        ask_server=ask,
        check=check,
        dry_run=dry_run,
    ).carry_out()


def figures(report: RepairReport) -> object:
    objects = [(one.name, one.backups, str(outcome)) for one, outcome in report.objects]
    manifests = [(one.key, str(error)) for one, error in report.manifests]
    counts = (report.mended, report.beside, report.lost, report.lost_keys, report.sound)
    return objects, manifests, report.beyond, counts


def repair(store: Store, other: Store) -> RepairReport:
    """Repair, after a dry run, which says the same and changes nothing. A second repair finds only what stays lost."""
    before = {info.key: store.get(info.key) for info in store.list()}
    tried = run(store, other, dry_run=True)
    assert {info.key: store.get(info.key) for info in store.list()} == before
    done = run(store, other)
    assert figures(tried) == figures(done)
    again = run(store, other)
    assert (again.mended, again.sound, again.lost_keys) == (0, 0, done.lost_keys)
    assert again.incomplete == done.incomplete
    return done


def verify(store: Store, level: Level = Level.OBJECTS) -> None:
    """Record what is damaged, within the second of the repair."""
    repository = Repository.open(store)
    verifier = Verifier(repository.objects, level)
    for backup in repository.backups():
        list(verifier.check(repository.manifest(backup, in_part=True)))
    random = iter(range(1000, 2000))
    remember(
        repository.documents,
        verifier,
        everything=True,
        now_seconds=NOW,
        tool="t",
        random=lambda count: next(random).to_bytes(count, "big"),
    )


def three_backups(store: Store, streams: int = 300) -> None:
    """They share all their pages; a catalog names them."""
    repository = make_repository(store)
    for backup in (FIRST, SECOND, THIRD):
        repository.commit(manifest_of(many_streams(streams), backup))
    write_catalog(repository.documents)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_what_a_lost_page_lists_is_read(store: MemoryStore) -> None:
    """No `verify` could see it, so it is in no record."""
    store_backup(make_repository(store), count=1500)
    (stream, _) = Repository.open(store).manifest(FIRST).streams
    page = next(part for part in stream.walk() if isinstance(part, PageRef) and part.level == 0)
    segment = next(ref for ref in stream.segments if ref.first_seq == page.first_seq)
    other, before = copy_of(store), content_of(store)
    store.delete(page.key)
    put_instead(store, segment.key, flip(store.get(segment.key)))
    report = repair(store, other)
    assert (report.mended, report.incomplete) == (2, False)
    assert content_of(store) == before


def test_a_manifest_that_is_back_shows_that_the_one_before_it_is_missing(store: MemoryStore) -> None:
    repository = make_repository(store)
    previous = None
    for backup in (FIRST, SECOND, THIRD):
        repository.commit(replace(make_manifest(repository, backup), previous=previous))
        previous = backup
    other, before = copy_of(store), content_of(store)
    for info in list(store.list(layout.CATALOGS)):  # nothing else names the first
        store.delete(info.key)
        before.pop(info.key)
        other.delete(info.key)
    store.delete(layout.manifest_key(FIRST))
    key = layout.manifest_key(SECOND)
    put_instead(store, key, flip(store.get(key)))
    report = repair(store, other)
    assert [one.backup for one, _ in report.manifests] == [SECOND, FIRST]
    assert store.get(key) == before[key]
    assert report.incomplete == (content_of(store) != before)


def test_a_repair_that_is_killed_at_any_change_harms_nothing_and_the_next_one_completes_it() -> None:
    whole = MemoryStore()
    repository = make_repository(whole)
    first = store_backup(repository, FIRST, count=1500)
    repository.commit(replace(first, id=SECOND, previous=FIRST))
    stream = Repository.open(whole).manifest(FIRST).streams[0]
    page = next(part for part in stream.walk() if isinstance(part, PageRef))
    before = content_of(whole)

    def damaged() -> MemoryStore:
        store = copy_of(whole)
        for key, data in (
            (layout.manifest_key(FIRST), None),
            (page.key, None),
            (stream.segments[0].key, flip(before[stream.segments[0].key])),
            (stream.segments[-1].key, b""),
        ):
            put_instead(store, key, data)
        return store

    watched = FaultStore(damaged())
    assert run(watched, whole, check=True).mended == 4
    changes = [at for at, (operation, _) in enumerate(watched.log, 1) if operation in ("put", "delete")]
    assert len(changes) > 8
    for at in changes:
        store = damaged()
        right = {key for key, data in content_of(store).items() if before.get(key) == data}
        with suppress(Killed):
            run(FaultStore(store, Fault.KILL_AFTER, at=at), whole, check=True)
        assert all(store.get(key) == before[key] for key in right)
        run(store, whole, check=True)
        assert content_of(store) == before


# --- counts ---


@pytest.mark.parametrize("which", ["missing", "damaged"])
def test_a_page_of_streams_counts_once_for_all_backups_that_name_it(store: MemoryStore, which: str) -> None:
    three_backups(store)
    page = min(pages_in(store))
    other, before = copy_of(store), content_of(store)
    put_instead(store, page, flip(store.get(page)) if which == "damaged" else None)
    report = repair(store, other)
    ((one, outcome),) = report.objects
    assert (one.ref.key, one.backups, outcome) == (page, (FIRST, SECOND, THIRD), RepairOutcome.MENDED)
    assert (report.mended, report.lost, report.manifests, report.beyond) == (1, 0, (), ())
    assert content_of(store) == before


# --- two sources ---


def test_what_one_source_lacks_the_other_is_asked_for(store: MemoryStore) -> None:
    segments = store_backup(make_repository(store)).streams[0].segments
    other, before = copy_of(store), content_of(store)
    from_other, from_server, lost, *_ = segments
    for ref in (from_other, from_server, lost):
        store.delete(ref.key)
    for ref in (from_server, lost):
        other.delete(ref.key)

    def ask(broken: Sequence[Broken]) -> Sequence[RepairOutcome | JsBackupError]:
        assert [one.ref for one in broken] == [from_server, lost]
        return [put_in_place(store, from_server, before[from_server.key]), IntegrityError("nor has the server")]

    report = run(store, other, ask=ask)
    outcomes = {one.ref.key: outcome for one, outcome in report.objects}
    assert outcomes[from_other.key] is outcomes[from_server.key] is RepairOutcome.MENDED
    reason = outcomes[lost.key]
    assert isinstance(reason, JsBackupError)
    assert reason.message == "memory: has no copy of this object; nor has the server"
    assert (report.mended, report.lost, report.incomplete) == (2, 1, True)


# --- records ---


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["page of streams", "page", "segment", "piece"])
def test_what_was_put_back_is_not_recorded_as_damaged_any_more(store: MemoryStore, kind: str) -> None:
    if kind == "page of streams":
        three_backups(store)
        ref = Repository.open(store).manifest(FIRST).stream_pages[1]
        key = ref.key
    else:
        store_backup(make_repository(store), count=1500)
        orders, verbatim = Repository.open(store).manifest(FIRST).streams
        pages = [part for part in orders.walk() if isinstance(part, PageRef)]
        key = {"page": pages[-1].key, "segment": orders.segments[3].key, "piece": verbatim.opaque[0].key}[kind]
    other, before = copy_of(store), content_of(store)
    put_instead(store, key, flip(store.get(key)))
    verify(store)
    assert len(read_damaged(Repository.open(store).documents)) == 1
    report = repair(store, other)
    assert (report.mended, report.sound, report.incomplete) == (1, 0, False)
    assert read_damaged(Repository.open(store).documents) == {}
    assert content_of(store) == before


def test_what_was_put_right_otherwise_is_recorded_as_sound(store: MemoryStore) -> None:
    three_backups(store)
    page = min(pages_in(store))
    other, whole = copy_of(store), store.get(page)
    put_instead(store, page, flip(whole))
    verify(store)
    put_instead(store, page, whole)
    report = repair(store, other)
    assert (report.sound, report.mended, report.incomplete) == (1, 0, False)
    assert read_damaged(Repository.open(store).documents) == {}


def test_what_is_found_damaged_and_stays_lost_is_recorded(store: MemoryStore) -> None:
    """So that the next backup does not build on it. What is missing needs no record."""
    gone, damaged, *_ = store_backup(make_repository(store)).streams[0].segments
    store.delete(gone.key)
    assert run(store, MemoryStore(), check=True).lost == 1
    assert not list(store.list(layout.VERIFIED))
    put_instead(store, damaged.key, flip(store.get(damaged.key)))
    assert run(store, MemoryStore(), check=True).lost == 2
    records = list(store.list(layout.VERIFIED))
    assert read_damaged(Repository.open(store).documents).keys() == {id_of(damaged)}
    assert run(store, MemoryStore(), check=True).lost == 2
    assert list(store.list(layout.VERIFIED)) == records


def test_what_cannot_be_decoded_is_not_called_sound(store: MemoryStore) -> None:
    """It has the SHA-256 that the manifest names, and so has any copy."""
    _, ref = store_undecodable(make_repository(store))
    verify(store, Level.DATA)
    report = repair(store, copy_of(store))
    assert (report.objects, report.sound, report.lost_keys) == ((), 0, 1)
    assert [key for key, _ in report.beyond] == [ref.key]
    assert read_damaged(Repository.open(store).documents).keys() == {id_of(ref)}
