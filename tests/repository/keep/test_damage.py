"""Which backups are known to be damaged: by records of objects, and by what `verify` said of backups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from jsbackup.errors import IntegrityError
from jsbackup.progress import NullProgress
from jsbackup.repository import layout
from jsbackup.repository.checks.ledger import remember_damaged
from jsbackup.repository.checks.verify import Level
from jsbackup.repository.checks.verify_run import VerifyRun
from jsbackup.repository.keep.damage import find_damaged
from jsbackup.repository.keep.forget import ForgetPlan, plan_by_policy
from jsbackup.repository.keep.retention import Policy, TagRule
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.objects import SegmentRef, folder_of, id_of
from jsbackup.repository.read.sources import Grouping
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import FIRST, SECOND, make_manifest, make_repository, store_backup, store_stream
from tests.harness.batches import some_messages
from tests.harness.damage import flip
from tests.harness.many_streams import manifest_of, many_streams
from tests.harness.small_pages import make_pages_small

THIRD = "20261121T014700Z-000003"
NOW_NS = 1_800_000_000_000_000_000
TIMES = count(1)


@pytest.fixture
def store() -> MemoryStore:
    """Two backups that share segments; the second has some of its own."""
    store = MemoryStore()
    repository = make_repository(store)
    store_backup(repository, FIRST, count=40)
    store_backup(repository, SECOND, count=60)
    return store


def verify(store: Store, *chosen: str, level: Level = Level.OBJECTS) -> list[str]:
    """Verify backups, or all; return the damaged ones."""
    repository = Repository.open(store)
    at = NOW_NS + next(TIMES) * 10**9
    run = VerifyRun(
        repository,
        chosen or repository.backups(),
        level,
        whole=not chosen,
        begun_ns=at,
        clock_ns=lambda: at,
        random=lambda size: next(TIMES).to_bytes(size, "big"),
        note=pytest.fail,
    )
    report = run.check([], [], progress=NullProgress())
    run.record(report, part=False)
    return report.damaged


def damaged(store: Store) -> set[str]:
    repository = Repository.open(store)
    return set(find_damaged(repository, repository.backups()))


def manifest(store: Store, backup: str) -> Manifest:
    return Repository.open(store).manifest(backup)


def segments(store: Store, backup: str) -> list[SegmentRef]:
    return [*manifest(store, backup).streams[0].segments]


def own_segment(store: Store) -> SegmentRef:
    """A segment that only the second backup has."""
    shared = {ref.key for ref in segments(store, FIRST)}
    return next(ref for ref in segments(store, SECOND) if ref.key not in shared)


def put_instead(store: MemoryStore, key: str, data: bytes) -> None:
    store.delete(key)
    store.put(key, data)


def lose(store: MemoryStore, key: str) -> None:
    store.delete(key)


def change(store: MemoryStore, key: str) -> None:
    put_instead(store, key, flip(store.get(key)))


def cut(store: MemoryStore, key: str) -> None:
    put_instead(store, key, store.get(key)[:-1])


BREAK = [lose, change, cut]
Break = Callable[[MemoryStore, str], None]


@pytest.mark.parametrize("break_it", BREAK)
def test_damage_is_known_from_the_next_verify_on_until_a_later_one_finds_it_repaired(
    store: MemoryStore, break_it: Break
) -> None:
    key = own_segment(store).key
    was = store.get(key)
    break_it(store, key)
    assert verify(store) == [SECOND] and damaged(store) == {SECOND}
    if break_it is not lose:
        store.delete(key)
    store.put(key, was)
    assert verify(store) == [] and damaged(store) == set()


@pytest.mark.parametrize("break_it", BREAK)
def test_damage_of_a_shared_object_is_damage_of_each_backup(store: MemoryStore, break_it: Break) -> None:
    """Also of one that `verify` was not asked about, and of one made since."""
    shared = segments(store, FIRST)[0]
    assert shared.key in {ref.key for ref in segments(store, SECOND)}
    break_it(store, shared.key)
    assert verify(store, SECOND) == [SECOND]
    newer = replace(manifest(store, FIRST), id=THIRD)
    Repository.open(store).commit(newer)
    assert damaged(store) == {FIRST, SECOND, THIRD}


@pytest.mark.parametrize("break_it", BREAK)
def test_a_lost_consumer_state_or_opaque_piece_is_damage(store: MemoryStore, break_it: Break) -> None:
    orders, verbatim = manifest(store, SECOND).streams
    pending = next(one.pending for one in orders.consumers if one.pending is not None)
    for key in (pending.key, verbatim.opaque[0].key):
        was = store.get(key)
        break_it(store, key)
        assert verify(store) == [FIRST, SECOND] and damaged(store) == {FIRST, SECOND}
        if break_it is not lose:
            store.delete(key)
        store.put(key, was)
        assert verify(store) == [] and damaged(store) == set()


def test_what_was_put_back_since_is_not_missing(store: MemoryStore) -> None:
    key = own_segment(store).key
    was = store.get(key)
    store.delete(key)
    assert verify(store) == [SECOND]
    store.put(key, was)
    assert damaged(store) == set()


def test_damage_found_before_is_not_settled_by_a_run_over_other_backups(store: MemoryStore) -> None:
    lose(store, own_segment(store).key)
    assert verify(store) == [SECOND]
    assert verify(store, FIRST) == [] and damaged(store) == {SECOND}


def test_what_a_backup_has_found_while_it_ran_counts(store: MemoryStore) -> None:
    ref = own_segment(store)
    documents = Repository.open(store).documents
    remember_damaged(documents, {id_of(ref): folder_of(ref)}, now_seconds=9, tool="t", random=lambda size: b"x" * size)
    assert damaged(store) == {SECOND}


@pytest.mark.parametrize("break_it", BREAK)
@pytest.mark.parametrize("record", [True, False])
def test_a_lost_page_of_segments_is_damage_of_the_backups_that_name_it(
    break_it: Break, record: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_pages_small(monkeypatch)
    store = MemoryStore()
    repository = make_repository(store)
    for backup, messages in ((FIRST, 400), (SECOND, 500)):
        repository.commit(manifest_of([store_stream(repository.objects, "S", some_messages(messages, 100))], backup))
    first, second = ({page.key for page in manifest(store, one).streams[0].pages} for one in (FIRST, SECOND))
    break_it(store, sorted(second - first)[0])
    assert verify(store) == [SECOND] and damaged(store) == {SECOND}
    assert first & second
    break_it(store, sorted(first & second)[0])
    assert verify(store, *([] if record else [SECOND])) in ([FIRST, SECOND], [SECOND])
    assert damaged(store) == {FIRST, SECOND}


@pytest.mark.parametrize("break_it", BREAK)
def test_a_lost_page_of_streams_is_damage(break_it: Break) -> None:
    store = MemoryStore()
    repository = make_repository(store)
    repository.commit(manifest_of(many_streams(), FIRST))
    repository.commit(manifest_of(many_streams()[:-100], SECOND))
    first, second = (manifest(store, backup).stream_pages for backup in (FIRST, SECOND))
    assert first[0] == second[0] and first[-1] not in second
    break_it(store, first[-1].key)
    assert verify(store) == [FIRST] and damaged(store) == {FIRST}
    break_it(store, first[0].key)
    assert verify(store, SECOND) == [SECOND] and damaged(store) == {FIRST, SECOND}


def test_a_record_that_cannot_be_read_lets_nothing_be_removed(store: MemoryStore) -> None:
    change(store, own_segment(store).key)
    verify(store)
    (record,) = [info.key for info in store.list(layout.VERIFIED) if layout.is_damage_record(info.key)]
    put_instead(store, record, store.get(record)[:-9])
    with pytest.raises(IntegrityError, match=record) as caught:
        plan_by_policy(Repository.open(store), Policy(last=1), Grouping.SELECTION, now_ns=NOW_NS)
    assert caught.value.hint and "jsbackup verify" in caught.value.hint
    assert verify(store) == [SECOND]
    planned = plan_by_policy(Repository.open(store), Policy(last=1), Grouping.SELECTION, now_ns=NOW_NS)
    assert planned.damaged == (SECOND,) and planned.decisions.removed == ()


# --- what nobody has looked at ---


def plan(store: Store, policy: Policy) -> ForgetPlan:
    return plan_by_policy(Repository.open(store), policy, Grouping.SELECTION, now_ns=NOW_NS)


def removed(store: Store, policy: Policy) -> list[str]:
    return [one.backup for one in plan(store, policy).decisions.removed]


RULES = [Policy(last=1), Policy(hourly=1), Policy(daily=1), Policy(within_seconds=1), Policy(tags=(TagRule("k"),))]


@pytest.fixture
def three() -> MemoryStore:
    """Three backups, the oldest of them with a tag. Each has a segment of its own."""
    store = MemoryStore()
    repository = make_repository(store)
    for number, backup in enumerate((FIRST, SECOND, THIRD)):
        made = make_manifest(repository, backup, count=40 + 20 * number)
        tags = {} if number else {"k": "v"}
        repository.commit(replace(made, created=f"2026-11-21T01:4{5 + number}:00Z", tags=tags))
    return store


@pytest.mark.parametrize("break_it", [lose, cut])
@pytest.mark.parametrize("policy", RULES, ids=repr)
def test_a_backup_that_lacks_an_object_takes_no_ones_place_although_none_has_looked(
    three: MemoryStore, policy: Policy, break_it: Break
) -> None:
    tagged = [FIRST] if policy.tags else []
    assert removed(three, policy) == [one for one in (FIRST, SECOND) if one not in tagged]
    break_it(three, [*segments(three, THIRD)][-1].key)
    planned = plan(three, policy)
    assert planned.damaged == (THIRD,) and removed(three, policy) == [one for one in (FIRST,) if one not in tagged]
    break_it(three, [*segments(three, SECOND)][-1].key)  # is looked at because it would be the next
    assert removed(three, policy) == []
    if not tagged:
        assert plan(three, policy).damaged == (SECOND, THIRD)


def test_a_lost_consumer_state_or_opaque_piece_is_seen_before_others_are_removed(store: MemoryStore) -> None:
    assert removed(store, Policy(last=1)) == [FIRST]
    orders, verbatim = manifest(store, SECOND).streams
    pending = next(one.pending for one in orders.consumers if one.pending is not None)
    for key in (pending.key, verbatim.opaque[0].key):
        was = store.get(key)
        store.delete(key)
        assert removed(store, Policy(last=1)) == [] and plan(store, Policy(last=1)).damaged == (SECOND,)
        store.put(key, was)
    assert removed(store, Policy(last=1)) == [FIRST]


@pytest.mark.parametrize("break_it", BREAK)
def test_a_lost_page_of_segments_is_seen_before_others_are_removed(
    break_it: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_pages_small(monkeypatch)
    store = MemoryStore()
    repository = make_repository(store)
    for backup, messages in ((FIRST, 400), (SECOND, 500)):
        repository.commit(manifest_of([store_stream(repository.objects, "S", some_messages(messages, 100))], backup))
    assert removed(store, Policy(last=1)) == [FIRST]
    first, second = ({page.key for page in manifest(store, one).streams[0].pages} for one in (FIRST, SECOND))
    break_it(store, sorted(second - first)[-1])
    assert removed(store, Policy(last=1)) == [] and plan(store, Policy(last=1)).damaged == (SECOND,)


@pytest.mark.parametrize("break_it", BREAK)
def test_a_lost_page_of_streams_is_seen_before_others_are_removed(break_it: Break) -> None:
    store = MemoryStore()
    repository = make_repository(store)
    repository.commit(manifest_of(many_streams()[:-100], FIRST))
    repository.commit(manifest_of(many_streams(), SECOND))
    assert removed(store, Policy(last=1)) == [FIRST]
    break_it(store, manifest(store, SECOND).stream_pages[-1].key)
    assert removed(store, Policy(last=1)) == [] and plan(store, Policy(last=1)).damaged == (SECOND,)
