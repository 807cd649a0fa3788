"""What `repair` puts, and what it does not dare."""

from __future__ import annotations

import pytest

from jsbackup.errors import IntegrityError, ObjectLocked
from jsbackup.repository import layout
from jsbackup.repository.write.repair import RepairOutcome, fetch_from, put_in_place
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import make_repository, store_backup
from tests.harness.damage import flip, put_instead


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
    other.put(layout.replacement_keys(ref.key, ref.sha256)[0], right)
    assert fetch_from(other, ref) == right


def test_where_what_is_damaged_is_locked_the_right_bytes_lie_beside() -> None:
    store = Locked()
    ref = store_backup(make_repository(store)).streams[0].segments[0]
    right = store.get(ref.key)
    MemoryStore.delete(store, ref.key)
    store.put(ref.key, flip(right))
    assert put_in_place(store, ref, right) is RepairOutcome.BESIDE
    beside = layout.replacement_keys(ref.key, ref.sha256)[0]
    assert (store.get(ref.key), store.get(beside)) == (flip(right), right)
    assert put_in_place(store, ref, right) is RepairOutcome.BESIDE
