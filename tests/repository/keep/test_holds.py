from __future__ import annotations

import pytest

from jsbackup.errors import FormatError, UsageError
from jsbackup.repository import layout
from jsbackup.repository.document import encode_document
from jsbackup.repository.keep.holds import (
    Hold,
    decode_hold,
    encode_hold,
    find_hold,
    held_backups,
    is_held,
    put_hold,
    release_hold,
)
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, FIRST, SECOND, make_repository, store_backup
from tests.harness.stores import Fault, FaultStore, Killed

HOLD = Hold(FIRST, CREATED, "jsbackup tests", "audit größe")
KEY = layout.hold_key(FIRST)


@pytest.fixture
def repository() -> Repository:
    repository = make_repository(MemoryStore())
    store_backup(repository, FIRST, count=3)
    return repository


# --- the document ---


def test_a_hold_comes_back_with_fields_of_a_later_tool() -> None:
    hold = Hold(FIRST, CREATED, "jsbackup tests", "audit", {"until": "2030"})
    assert decode_hold(encode_hold(hold), KEY) == hold


def _document(**changes: object) -> bytes:
    plain = {"format": 1, "required_features": [], "backup": FIRST, "created": CREATED, "tool": "", "reason": ""}
    return encode_document({**plain, **changes}, "test")


@pytest.mark.parametrize(
    "changes", [{"backup": SECOND}, {"created": "yesterday"}, {"created": None}, {"reason": 7}, {"tool": []}]
)
def test_a_forged_hold_is_refused(changes: dict[str, object]) -> None:
    decode_hold(_document(), KEY)
    with pytest.raises(FormatError):
        decode_hold(_document(**changes), KEY)


# --- in a repository ---


def test_a_backup_is_held_until_it_is_released(repository: Repository) -> None:
    assert (held_backups(repository), find_hold(repository, FIRST)) == (frozenset(), None)
    assert put_hold(repository, HOLD)
    assert held_backups(repository) == {FIRST} and is_held(repository, FIRST)
    assert find_hold(repository, FIRST) == HOLD
    assert release_hold(repository, FIRST)
    assert (held_backups(repository), find_hold(repository, FIRST)) == (frozenset(), None)
    assert not is_held(repository, FIRST) and not release_hold(repository, FIRST)


def test_a_backup_that_is_forgotten_while_it_is_held_is_an_error(repository: Repository) -> None:
    def forget(operation: str, key: str) -> None:
        if (operation, key) == ("put", KEY):
            repository.store.delete(layout.manifest_key(FIRST))

    with pytest.raises(UsageError, match="no backup"):
        put_hold(Repository.open(FaultStore(repository.store, before=forget)), HOLD)
    assert held_backups(repository) == frozenset()


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", _document(format=2), _document(backup=SECOND), b" " * 200_000])
def test_a_hold_that_cannot_be_read_holds_and_can_be_released(repository: Repository, data: bytes) -> None:
    repository.store.put(KEY, data)
    assert held_backups(repository) == {FIRST} and is_held(repository, FIRST)
    found = find_hold(repository, FIRST)
    assert found is not None and found.created is None and found.reason.startswith("the hold cannot be read: ")
    assert not put_hold(repository, HOLD)
    assert release_hold(repository, FIRST) and held_backups(repository) == frozenset()


def test_a_hold_in_the_form_of_another_repository_holds(repository: Repository) -> None:
    repository.store.put(f"{KEY}.age", b"age-encryption.org/v1")
    assert held_backups(repository) == {FIRST} and is_held(repository, FIRST)
    found = find_hold(repository, FIRST)
    assert found is not None and "stored in another form" in found.reason
    assert release_hold(repository, FIRST) and not is_held(repository, FIRST)


@pytest.mark.parametrize("fault", [Fault.KILL_BEFORE, Fault.KILL_AFTER])
def test_a_hold_killed_anywhere_is_there_or_not_and_a_rerun_holds(fault: Fault) -> None:
    at = 1
    while True:
        store = MemoryStore()
        store_backup(make_repository(store), FIRST, count=3)
        killed = Repository.open(store)
        faulty = FaultStore(store, fault, at=at)
        try:
            put_hold(Repository(faulty, killed.descriptor), HOLD)
        except Killed:
            at += 1
        else:
            break
        repository = Repository.open(store)
        assert find_hold(repository, FIRST) in (HOLD, None)
        put_hold(repository, HOLD)
        assert find_hold(repository, FIRST) == HOLD
    assert at > 3
