"""Leases that are over go; active ones stay unless that is forced; what cannot be read or removed is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jsbackup.errors import ObjectLocked, UsageError
from jsbackup.repository.keep import leases
from jsbackup.repository.keep.leases import LeaseOutcome, list_leases, this_process, unlock_leases
from tests.repository.keep.test_leases import DURATION, TERMS, Clockwork


@pytest.fixture
def clock() -> Clockwork:
    return Clockwork()


def unlocked(clock: Clockwork, *wanted: str, force: bool = False) -> list[LeaseOutcome]:
    return unlock_leases(clock.store, wanted, clock.now, force=force)


def left(clock: Clockwork) -> set[str]:
    return {seen.key.id for seen in list_leases(clock.store)}


def test_an_expired_lease_is_removed_and_an_active_one_is_shown(clock: Clockwork) -> None:
    old = clock.acquire(TERMS)
    clock.now += DURATION + 1
    new = clock.acquire(TERMS)
    by_id = {one.seen.key.id: one for one in unlocked(clock)}
    assert (by_id[old.id].live, by_id[old.id].removed) == (False, True)
    assert (by_id[new.id].live, by_id[new.id].removed) == (True, False)
    assert by_id[new.id].text is not None and by_id[new.id].text.purpose == TERMS.purpose
    assert left(clock) == {new.id}


def test_an_active_lease_goes_by_force_or_if_its_process_is_gone(
    clock: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = this_process()
    assert process is not None
    dead, forced = clock.acquire(replace(TERMS, process=process)), clock.acquire(TERMS)
    assert not any(one.process_gone or one.removed for one in unlocked(clock))
    monkeypatch.setattr(leases, "is_gone", process.__eq__)
    assert {one.seen.key.id for one in unlocked(clock) if one.removed} == {dead.id}
    assert {one.seen.key.id for one in unlocked(clock, force=True) if one.removed} == {forced.id}


def test_only_named_leases_go_and_an_unknown_name_is_an_error(clock: Clockwork) -> None:
    one, other = clock.acquire(TERMS), clock.acquire(TERMS)
    clock.now += DURATION + 1
    unlocked(clock, one.id)
    assert left(clock) == {other.id}
    with pytest.raises(UsageError, match="no lease nobody"):
        unlocked(clock, "nobody")


def test_a_damaged_lease_is_damage_while_it_stays(clock: Clockwork) -> None:
    lease = clock.acquire(TERMS)
    key = clock.keys()[0]
    clock.store.delete(key)
    clock.store.put(key, b"no lease")
    (seen,) = unlocked(clock)
    assert (seen.text, seen.damaged, seen.removed) == (None, True, False) and seen.problem
    (gone,) = unlocked(clock, lease.id, force=True)
    assert (gone.damaged, gone.removed) == (False, True)


def test_a_lease_that_the_store_keeps_locked_stays_and_is_no_damage(
    clock: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_store: object, _seen: object) -> None:
        raise ObjectLocked("locks/a")

    clock.acquire(TERMS)
    clock.now += DURATION + 1
    monkeypatch.setattr(leases, "remove_lease", refuse)
    (seen,) = unlocked(clock)
    assert (seen.removed, seen.damaged) == (False, False)
    assert seen.locked is not None and "locks/a" in seen.locked
