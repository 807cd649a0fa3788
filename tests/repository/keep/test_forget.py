from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest

from jsbackup.errors import JsBackupError, KeyUnavailable, ObjectLocked, UsageError
from jsbackup.repository import layout
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.access import GivenKeys
from jsbackup.repository.crypto.new_keys import make_new_keys
from jsbackup.repository.inventory import find_gaps
from jsbackup.repository.keep.forget import LOCKED_REASON, ForgetPlan, plan_by_ids, plan_by_policy, remove_decided
from jsbackup.repository.keep.holds import Hold, find_hold, held_backups, put_hold
from jsbackup.repository.keep.retention import Decisions, Policy
from jsbackup.repository.read.sources import Grouping
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, make_repository
from tests.harness.many import nth_id, nth_manifest, put_manifests, put_segments
from tests.harness.stores import Fault, FaultStore, Killed

NOW_NS = 4_000_000_000_000_000_000
IDS = [nth_id(number) for number in range(5)]
LAST_TWO = Policy(last=2)


@pytest.fixture
def store() -> MemoryStore:
    """A repository with five small backups."""
    store = MemoryStore()
    make_repository(store)
    put_manifests(store, 5)
    put_segments(store)
    return store


def plan(store: Store, policy: Policy = LAST_TWO) -> ForgetPlan:
    return plan_by_policy(Repository.open(store), policy, Grouping.SELECTION, now_ns=NOW_NS)


def forget(store: Store) -> Decisions:
    return remove_decided(Repository.open(store), plan(store).decisions)


def hold(store: Store, backup: str, reason: str = "") -> None:
    put_hold(Repository.open(store), Hold(backup, CREATED, "tests", reason))


def kept(decisions: Decisions) -> list[str]:
    return [one.backup for one in decisions.kept]


def removed(decisions: Decisions) -> list[str]:
    return [one.backup for one in decisions.removed]


def objects(store: Store) -> set[str]:
    return {info.key for info in store.list()}


# --- by a policy ---


def test_what_is_planned_is_what_is_done_and_the_oldest_goes_first(store: MemoryStore) -> None:
    watched = FaultStore(store)
    planned = plan(store).decisions
    assert remove_decided(Repository.open(watched), planned) == planned
    assert Repository.open(store).backups() == IDS[3:]
    assert [key for name, key in watched.log if name == "delete"] == [layout.manifest_key(one) for one in IDS[:3]]


def test_a_backup_that_is_held_while_others_are_removed_stays(store: MemoryStore) -> None:
    def hold_the_third(operation: str, key: str) -> None:
        if (operation, key) == ("delete", layout.manifest_key(IDS[0])):
            hold(store, IDS[2])

    done = forget(FaultStore(store, before=hold_the_third))
    assert removed(done) == IDS[:2] and done.kept[0].backup == IDS[2] and done.kept[0].reasons == ("held",)
    assert Repository.open(store).backups() == IDS[2:]


def test_a_backup_that_the_store_has_locked_stays_and_the_others_go(store: MemoryStore) -> None:
    def lock(operation: str, key: str) -> None:
        if operation == "delete" and IDS[1] in key:
            raise ObjectLocked(key)

    decisions = forget(FaultStore(store, before=lock))
    assert removed(decisions) == [IDS[0], IDS[2]]
    assert next(one.reasons for one in decisions.kept if one.backup == IDS[1]) == (LOCKED_REASON,)
    assert [entry.id for entry in Repository.open(store).inventory().entries] == [IDS[1], *IDS[3:]]


# --- by ids ---


def test_if_one_is_missing_none_is_removed(store: MemoryStore) -> None:
    with pytest.raises(UsageError, match=f"no backup {nth_id(9)}"):
        plan_by_ids(Repository.open(store), [IDS[0], nth_id(9)])


@pytest.mark.parametrize("reason", ["", "audit"])
def test_if_one_is_held_none_is_removed_and_the_error_says_why(store: MemoryStore, reason: str) -> None:
    hold(store, IDS[1], reason)
    with pytest.raises(JsBackupError, match=f"backup {IDS[1]} is held since {CREATED}") as caught:
        plan_by_ids(Repository.open(store), IDS[:3])
    assert caught.value.exit_code == 1 and caught.value.message.endswith(reason)
    assert caught.value.hint is not None and f"jsbackup hold --release {IDS[1]}" in caught.value.hint


# --- where documents are signed, or encrypted too ---


def _kept_apart(*, encrypted: bool) -> tuple[MemoryStore, GivenKeys]:
    """A repository with three backups, and the keys of a backup host."""
    recipient = age.age_identity(bytes(32)).recipient
    assert recipient is not None
    new_keys = make_new_keys("00ff", [recipient] if encrypted else [], None, os.urandom)
    store = MemoryStore()
    Repository.create(store, repository_id="00ff", created=CREATED, tool="jsbackup tests", new_keys=new_keys)
    keys = GivenKeys(new_keys.writer_key)
    for number in range(3):
        Repository.open(store, keys).commit(nth_manifest(number))
    return store, keys


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [False, True])
def test_what_is_forgotten_does_not_look_removed_wherever_it_was_killed(encrypted: bool) -> None:
    def forget_by_id(store: Store, keys: GivenKeys) -> None:
        repository = Repository.open(store, keys)
        there = [backup for backup in (IDS[0], IDS[2]) if backup in repository.backups()]
        remove_decided(repository, plan_by_ids(repository, there).decisions)

    store, keys = _kept_apart(encrypted=encrypted)
    left = set()
    for at in range(1, _operations(partial(forget_by_id, keys=keys), store) + 1):
        store, keys = _kept_apart(encrypted=encrypted)
        with pytest.raises(Killed):
            forget_by_id(FaultStore(store, Fault.KILL_AFTER, at=at), keys)
        repository = Repository.open(store, keys)
        assert find_gaps(repository.documents) == []
        left.add(tuple(repository.backups()))
        forget_by_id(store, keys)
        repository.commit(nth_manifest(3))
        assert repository.backups() == [IDS[1], IDS[3]] and find_gaps(repository.documents) == []
    assert left == {tuple(IDS[:3]), tuple(IDS[1:3]), (IDS[1],)}
    store.delete(repository.documents.stored_key(layout.manifest_key(IDS[1])))
    assert [gap.backup for gap in find_gaps(repository.documents)] == [IDS[1]]


@pytest.mark.parametrize("encrypted", [False, True])
def test_without_the_key_that_signs_nothing_is_removed(encrypted: bool) -> None:
    store, keys = _kept_apart(encrypted=encrypted)
    before = objects(store)
    repository = Repository.open(store)
    with pytest.raises(KeyUnavailable):
        remove_decided(repository, plan_by_ids(repository, [IDS[0]]).decisions)
    with pytest.raises(KeyUnavailable):
        put_hold(repository, Hold(IDS[0], CREATED))
    assert objects(store) == before
    done = remove_decided(Repository.open(store, keys), plan_by_ids(Repository.open(store, keys), [IDS[0]]).decisions)
    assert removed(done) == [IDS[0]]


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_hold_is_sealed_like_other_documents_and_holds_also_without_a_key(encrypted: bool) -> None:
    store, keys = _kept_apart(encrypted=encrypted)
    hold = Hold(IDS[0], CREATED, "tests", "audit of the größte")
    assert put_hold(Repository.open(store, keys), hold)
    assert find_hold(Repository.open(store, keys), IDS[0]) == hold
    stored = store.get(f"holds/{IDS[0]}.json{'.age' if encrypted else ''}")
    assert (b"audit" in stored) is not encrypted
    repository = Repository.open(store)
    assert held_backups(repository) == {IDS[0]}
    with pytest.raises(JsBackupError, match="is held"):
        plan_by_ids(repository, [IDS[0]])


# --- killed, failing, many ---


def _operations(run: Callable[[Store], object], store: MemoryStore) -> int:
    watched = FaultStore(store)
    run(watched)
    return watched.operations
