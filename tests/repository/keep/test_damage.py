"""Which backups are known to be damaged: by records of objects, and by what `verify` said of backups."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
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
from jsbackup.repository.manifest import Manifest, Selection, StreamBackup
from jsbackup.repository.objects import folder_of, id_of
from jsbackup.repository.read.sources import Grouping
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import FIRST, SECOND, make_manifest, make_repository
from tests.harness.damage import DAMAGES, flip, put_instead
from tests.harness.many_streams import many_streams
from tests.harness.small_pages import make_pages_small, make_stream_pages_small

THIRD = "20261121T014700Z-000003"
NOW_NS = 1_800_000_000_000_000_000
TIMES = count(1)


OWN = ("segment", "page of segments", "page of streams")  # of the second backup
SHARED = ("consumer state", "opaque piece")


@cache
def two_backups() -> dict[str, bytes]:
    """They share most of their objects; the second has some of its own."""
    store = MemoryStore()
    repository = make_repository(store)
    with pytest.MonkeyPatch.context() as patch:
        make_pages_small(patch)
        make_stream_pages_small(patch)
        for number, backup in enumerate((FIRST, SECOND)):
            made = make_manifest(repository, backup, count=100 + 50 * number)
            streams = (*many_streams(3 + number), *made.streams)
            repository.commit(replace(made, streams=streams, selection=Selection()))
    return {info.key: store.get(info.key) for info in store.list()}


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    for key, data in two_backups().items():
        store.put(key, data)
    return store


def stream(store: MemoryStore, backup: str, name: str = "orders") -> StreamBackup:
    return next(one for one in manifest(store, backup).streams if one.name == name)


def key_of(store: MemoryStore, kind: str) -> str:
    """The key of such an object of the second backup."""
    if kind == "page of streams":
        first, second = (manifest(store, backup).stream_pages for backup in (FIRST, SECOND))
        return next(page.key for page in second if page not in first)
    was, orders = (stream(store, backup) for backup in (FIRST, SECOND))
    if kind == "consumer state":
        return next(one.pending.key for one in orders.consumers if one.pending is not None)
    if kind == "opaque piece":
        return stream(store, SECOND, "verbatim").opaque[0].key
    old, new = ({ref.key for ref in (one.segments if kind == "segment" else one.pages)} for one in (was, orders))
    return min(new - old)


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


@pytest.mark.parametrize("how", ["missing", "flipped", "truncated"])
@pytest.mark.parametrize("kind", [*OWN, *SHARED])
def test_damage_is_known_from_the_next_verify_on_until_a_later_one_finds_it_repaired(
    store: MemoryStore, kind: str, how: str
) -> None:
    """Damage of a shared object is damage of each backup, also of one that `verify` was not asked about."""
    key = key_of(store, kind)
    was = store.get(key)
    put_instead(store, key, DAMAGES[how](was))
    assert verify(store, SECOND) == [SECOND]
    assert damaged(store) == ({SECOND} if kind in OWN else {FIRST, SECOND})
    put_instead(store, key, was)
    assert damaged(store) == set() or how != "missing"  # what is there again is not missing
    assert verify(store) == [] and damaged(store) == set()


@pytest.mark.parametrize("kind", [*OWN, *SHARED])
def test_a_backup_that_lacks_an_object_is_seen_before_others_are_removed(store: MemoryStore, kind: str) -> None:
    assert removed(store, Policy(last=1)) == [FIRST]
    store.delete(key_of(store, kind))
    assert removed(store, Policy(last=1)) == [] and SECOND in plan(store, Policy(last=1)).damaged


def test_damage_found_before_is_not_settled_by_a_run_over_other_backups(store: MemoryStore) -> None:
    store.delete(key_of(store, "segment"))
    assert verify(store) == [SECOND]
    assert verify(store, FIRST) == [] and damaged(store) == {SECOND}


def test_what_a_backup_has_found_while_it_ran_counts(store: MemoryStore) -> None:
    ref = next(ref for ref in stream(store, SECOND).segments if ref.key == key_of(store, "segment"))
    documents = Repository.open(store).documents
    remember_damaged(documents, {id_of(ref): folder_of(ref)}, now_seconds=9, tool="t", random=lambda size: b"x" * size)
    assert damaged(store) == {SECOND}


def test_a_record_that_cannot_be_read_lets_nothing_be_removed(store: MemoryStore) -> None:
    key = key_of(store, "segment")
    put_instead(store, key, flip(store.get(key)))
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


@pytest.mark.parametrize("policy", RULES, ids=repr)
def test_a_backup_that_lacks_an_object_takes_no_ones_place_although_none_has_looked(
    three: MemoryStore, policy: Policy
) -> None:
    tagged = [FIRST] if policy.tags else []
    assert removed(three, policy) == [one for one in (FIRST, SECOND) if one not in tagged]
    three.delete([*manifest(three, THIRD).streams[0].segments][-1].key)
    planned = plan(three, policy)
    assert planned.damaged == (THIRD,) and removed(three, policy) == [one for one in (FIRST,) if one not in tagged]
    three.delete([*manifest(three, SECOND).streams[0].segments][-1].key)  # is looked at because it would be the next
    assert removed(three, policy) == []
    if not tagged:
        assert plan(three, policy).damaged == (SECOND, THIRD)
