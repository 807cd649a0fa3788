"""What is put and deleted in an overlay is seen there, and nowhere else."""

from __future__ import annotations

import pytest

from jsbackup.errors import ObjectExists, ObjectNotFound
from jsbackup.stores.memory import MemoryStore
from jsbackup.stores.overlay import OverlayStore


def test_changes_are_seen_in_the_overlay_and_the_store_stays_as_it_was() -> None:
    store = MemoryStore()
    for key in ("a", "b", "d"):
        store.put(key, key.encode())
    before = {info: store.get(info.key) for info in store.list()}
    overlay = OverlayStore(store, lambda: 5.0)
    with pytest.raises(ObjectExists):
        overlay.put("a", b"other")
    overlay.delete("b")
    overlay.put("c", b"new")
    overlay.delete("d")
    overlay.put("d", b"again")
    assert [(info.key, info.size, info.modified_seconds) for info in overlay.list()] == [
        ("a", 1, 0.0),
        ("c", 3, 5.0),
        ("d", 5, 5.0),
    ]
    assert (overlay.get("a"), overlay.get("c"), overlay.get_range("d", 1, 2)) == (b"a", b"new", b"ga")
    with pytest.raises(ObjectNotFound):
        overlay.head("b")
    assert {info: store.get(info.key) for info in store.list()} == before
