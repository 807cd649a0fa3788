"""Backups that nobody can delete for a while, by a store that keeps locks."""

from __future__ import annotations

import pytest

from jsbackup.errors import UnsupportedError
from jsbackup.repository import layout
from jsbackup.repository.manifest import Manifest, objects_named
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.locking import LockRequest, open_lock
from jsbackup.stores.base import LockMode
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import FIRST, SECOND, make_manifest, make_repository

DAY = 86400.0


@pytest.mark.parametrize("begun", [0.0, 1.0, 5.5 * DAY, 1_795_258_800.25])
def test_the_end_is_put_off_by_an_eighth_at_most_and_shared_by_what_is_made_meanwhile(begun: float) -> None:
    request = LockRequest(LockMode.GOVERNANCE, for_seconds=8 * DAY)
    end = request.end_seconds(begun)
    assert begun + 8 * DAY <= end <= begun + 9 * DAY
    assert request.end_seconds(end - 9 * DAY + 1) == request.end_seconds(end - 8 * DAY) == end
    assert LockRequest(LockMode.GOVERNANCE, until_seconds=77.0).end_seconds(begun) == 77.0


def test_a_store_that_locks_nothing_is_refused_before_anything_is_done() -> None:
    repository = make_repository(MemoryStore())
    with pytest.raises(UnsupportedError, match="objects cannot be locked in memory:"):
        open_lock(repository, LockRequest(LockMode.GOVERNANCE, for_seconds=DAY), 100.0)


def _commit(repository: Repository, manifest: Manifest, request: LockRequest, begun: float) -> Manifest:
    lock = open_lock(repository, request, begun)
    manifest = lock.lock_content(manifest)
    repository.commit(manifest)
    lock.lock_manifest(manifest)
    return manifest


class Locking(MemoryStore):
    """A store that notes what it was asked to lock."""

    def __init__(self, location: str) -> None:
        super().__init__()
        self.locked: dict[str, float] = {}
        self._location = location

    @property
    def location(self) -> str:
        return self._location

    def check_object_lock(self) -> None:
        pass

    def lock_until(self, key: str, until_seconds: float, mode: LockMode) -> None:
        self.locked[key] = until_seconds


def test_a_backup_that_was_copied_is_not_taken_for_locked() -> None:
    here, there = (make_repository(Locking(name)) for name in ("here", "there"))
    request = LockRequest(LockMode.GOVERNANCE, for_seconds=DAY)
    first = _commit(here, make_manifest(here, FIRST), request, DAY)
    for info in here.store.list("segments/"):
        there.store.put(info.key, here.store.get(info.key))
    there.commit(first)
    for repository, again in ((here, False), (there, True)):
        assert isinstance(repository.store, Locking)
        repository.store.locked.clear()
        second = _commit(repository, make_manifest(repository, SECOND), request, DAY)
        assert (set(objects_named(first)) & set(objects_named(second)) <= set(repository.store.locked)) == again


def test_all_that_a_backup_needs_is_locked_and_only_what_is_new_of_the_next() -> None:
    store = Locking("here")
    repository = make_repository(store)
    request = LockRequest(LockMode.GOVERNANCE, for_seconds=8 * DAY)
    first = _commit(repository, make_manifest(repository, FIRST), request, DAY)
    assert sorted(store.locked) == sorted({layout.DESCRIPTOR, layout.manifest_key(FIRST), *objects_named(first)})
    assert all(9 * DAY <= until <= 10 * DAY for until in store.locked.values())
    assert repository.manifest(FIRST).extra["locked"]["mode"] == "governance"

    store.locked.clear()
    second = _commit(repository, make_manifest(repository, SECOND), request, DAY)
    new = set(objects_named(second)) - set(objects_named(first))
    assert set(store.locked) == {layout.DESCRIPTOR, layout.manifest_key(SECOND), *new}

    store.locked.clear()
    longer = LockRequest(LockMode.GOVERNANCE, for_seconds=80 * DAY)
    third = _commit(repository, make_manifest(repository, "20261121T014700Z-000003"), longer, DAY)
    assert set(objects_named(third)) <= set(store.locked) and min(store.locked.values()) >= 81 * DAY
