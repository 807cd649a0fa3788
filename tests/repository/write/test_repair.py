"""What `repair` puts, and what it does not dare."""

from __future__ import annotations

import time

import pytest

from jsbackup.errors import IntegrityError, ObjectLocked
from jsbackup.repository import layout
from jsbackup.repository.write.repair import RepairOutcome, fetch_from, put_document, put_in_place
from jsbackup.stores.base import LockMode
from jsbackup.stores.memory import MemoryStore
from jsbackup.stores.s3 import S3Store
from tests.harness.backups import FIRST, make_repository, store_backup
from tests.harness.damage import flip, put_instead
from tests.harness.s3server import LOCKED_BUCKET, S3Server
from tests.stores.s3_bench import settings_of


class Locked(MemoryStore):
    """Keeps every object."""

    def delete(self, key: str) -> None:
        raise ObjectLocked(f"{key} is locked")


def test_the_right_bytes_are_put_and_no_others() -> None:
    store, other = MemoryStore(), MemoryStore()
    ref = store_backup(make_repository(store)).streams[0].segments[0]
    store_backup(make_repository(other))
    right = store.get(ref.key)
    put_instead(store, ref.key, flip(right))
    with pytest.raises(IntegrityError, match="not the bytes"):
        put_in_place(store, ref, flip(right))
    assert store.get(ref.key) == flip(right)
    assert fetch_from(other, ref) == right
    assert put_in_place(store, ref, right) is RepairOutcome.MENDED and store.get(ref.key) == right
    # A copy may have it beside, and what is damaged there is of no use.
    put_instead(other, ref.key, flip(right))
    assert fetch_from(other, ref) is None
    other.put(layout.stored_keys(ref.key, ref.sha256)[1], right)
    assert fetch_from(other, ref) == right


def test_where_what_is_damaged_is_locked_the_right_bytes_lie_beside() -> None:
    store = Locked()
    ref = store_backup(make_repository(store)).streams[0].segments[0]
    right = store.get(ref.key)
    MemoryStore.delete(store, ref.key)
    store.put(ref.key, flip(right))
    assert put_in_place(store, ref, right) is RepairOutcome.BESIDE
    beside = layout.stored_keys(ref.key, ref.sha256)[1]
    assert (store.get(ref.key), store.get(beside)) == (flip(right), right)
    assert put_in_place(store, ref, right) is RepairOutcome.BESIDE


@pytest.mark.s3
@pytest.mark.parametrize("how", ["hidden", "deleted"])
def test_a_locked_version_that_is_right_is_what_counts_again(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """In a versioned bucket damage is a newer version, or a delete marker. Neither is locked."""
    for name, value in S3Server.credentials().items():
        monkeypatch.setenv(name, value)
    folder = f"repair/{how}"
    store = S3Store(LOCKED_BUCKET, folder, settings_of(s3_server.url))
    ref = store_backup(make_repository(store)).streams[0].segments[0]
    manifest = layout.manifest_key(FIRST)
    for key in (ref.key, manifest):
        right = store.get(key)
        store.lock_until(key, time.time() + 60, LockMode.GOVERNANCE)
        place = {"Bucket": LOCKED_BUCKET, "Key": f"{folder}/{key}"}
        if how == "hidden":
            s3_server.client.put_object(**place, Body=flip(right))
        else:
            s3_server.client.delete_object(**place)
        if key == manifest:
            put_document(store, key, right)
        else:
            assert put_in_place(store, ref, right) is RepairOutcome.MENDED
            assert not [one for one in layout.stored_keys(ref.key, ref.sha256)[1:] if list(store.list(one))]
        assert store.get(key) == right
