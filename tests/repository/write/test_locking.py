"""Backups that nobody can delete for a while, on a real S3 server."""

from __future__ import annotations

import itertools
import time

import pytest

from jsbackup.errors import ObjectLocked, UnsupportedError
from jsbackup.repository import layout
from jsbackup.repository.manifest import Manifest, objects_named
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.locking import LockRequest, open_lock
from jsbackup.stores.base import LockMode
from jsbackup.stores.memory import MemoryStore
from jsbackup.stores.retry import RetryingStore
from jsbackup.stores.s3 import S3Store
from tests.harness.backups import FIRST, SECOND, make_manifest, make_repository
from tests.harness.s3server import LOCKED_BUCKET, S3Server
from tests.stores.s3_bench import settings_of

_NUMBERS = itertools.count()
DAY = 86400.0


@pytest.mark.parametrize("begun", [0.0, 1.0, 5.5 * DAY, 1_795_258_800.25])
def test_the_end_is_put_off_by_an_eighth_at_most_and_shared_by_what_is_made_meanwhile(begun: float) -> None:
    request = LockRequest(LockMode.GOVERNANCE, for_seconds=8 * DAY)
    end = request.end_seconds(begun)
    assert begun + 8 * DAY <= end <= begun + 9 * DAY
    assert request.end_seconds(end - 9 * DAY + 1) == request.end_seconds(end - 8 * DAY) == end
    assert LockRequest(LockMode.GOVERNANCE, until_seconds=77.0).end_seconds(begun) == 77.0


@pytest.mark.parametrize("store", [MemoryStore(), RetryingStore(MemoryStore(), sleep=time.sleep)])
def test_a_store_that_locks_nothing_is_refused_before_anything_is_done(store: MemoryStore) -> None:
    repository = make_repository(store)
    with pytest.raises(UnsupportedError, match="objects cannot be locked in memory:"):
        open_lock(repository, LockRequest(LockMode.GOVERNANCE, for_seconds=DAY), 100.0)


class Counting:
    """How often objects are locked."""

    def __init__(self, store: S3Store) -> None:
        self._store = store
        self.locked: list[str] = []

    def lock_until(self, key: str, until_seconds: float, mode: LockMode) -> None:
        self.locked.append(key)
        self._store.lock_until(key, until_seconds, mode)

    def check_object_lock(self) -> None:
        self._store.check_object_lock()

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


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
        self.locked: list[str] = []
        self._location = location

    @property
    def location(self) -> str:
        return self._location

    def check_object_lock(self) -> None:
        pass

    def lock_until(self, key: str, until_seconds: float, mode: LockMode) -> None:
        self.locked.append(key)


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


@pytest.mark.s3
def test_all_that_a_backup_needs_is_locked_and_only_what_is_new_of_the_next(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.credentials().items():
        monkeypatch.setenv(name, value)
    place = f"locking/{next(_NUMBERS)}"
    store = Counting(S3Store(LOCKED_BUCKET, place, settings_of(s3_server.url)))
    repository = make_repository(store)  # type: ignore[arg-type]
    begun = time.time()
    request = LockRequest(LockMode.GOVERNANCE, for_seconds=8 * DAY)
    first = _commit(repository, make_manifest(repository, FIRST), request, begun)
    manifest_key = layout.manifest_key(first.id)
    needed = {layout.DESCRIPTOR, manifest_key, *objects_named(first)}
    assert set(store.locked) == needed and len(store.locked) == len(needed)
    for key in needed:
        with pytest.raises(ObjectLocked):
            store.delete(key)  # type: ignore[operator]
        retention = s3_server.client.get_object_retention(Bucket=LOCKED_BUCKET, Key=f"{place}/{key}")["Retention"]
        assert 8 * DAY <= retention["RetainUntilDate"].timestamp() - begun <= 9 * DAY + 1
    assert repository.manifest(first.id).extra["locked"]["mode"] == "governance"

    store.locked.clear()
    second = _commit(repository, make_manifest(repository, SECOND), request, begun)
    new = set(objects_named(second)) - set(objects_named(first))
    assert set(store.locked) == {layout.DESCRIPTOR, layout.manifest_key(second.id), *new}

    store.locked.clear()
    longer = LockRequest(LockMode.GOVERNANCE, for_seconds=80 * DAY)
    third = _commit(repository, make_manifest(repository, "20261121T014700Z-000003"), longer, begun)
    assert set(objects_named(third)) <= set(store.locked)
    key = f"{place}/{next(objects_named(third))}"
    retention = s3_server.client.get_object_retention(Bucket=LOCKED_BUCKET, Key=key)["Retention"]
    assert retention["RetainUntilDate"].timestamp() - begun >= 80 * DAY
