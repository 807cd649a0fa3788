from __future__ import annotations

from collections.abc import Iterator

import pytest
from typing_extensions import Buffer

from jsbackup.errors import ObjectExists, StoreError, UnsupportedError
from jsbackup.stores.base import ObjectInfo, Store
from jsbackup.stores.memory import MemoryStore
from jsbackup.stores.probe import probe_store
from tests.harness.stores import Fault, FaultStore


def test_a_good_store_passes_and_keeps_nothing(store: Store) -> None:
    store.put("other", b"1")
    probe_store(store, "probe/1")
    assert [info.key for info in store.list()] == ["other"]


class Overwriting(MemoryStore):
    def put(self, key: str, data: Buffer) -> None:
        self.delete(key)
        super().put(key, data)


class OverwritingSilently(MemoryStore):
    """Says that the object exists and replaces it all the same."""

    def put(self, key: str, data: Buffer) -> None:
        existed = any(info.key == key for info in self.list(key))
        self.delete(key)
        super().put(key, data)
        if existed:
            raise ObjectExists(key)


class Inclusive(MemoryStore):
    """Reads ranges with an end that is included, as HTTP has them."""

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return super().get_range(key, offset, length + 1)


class Listless(MemoryStore):
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return iter(())


class Keeping(MemoryStore):
    def delete(self, key: str) -> None:
        pass


class Altering(MemoryStore):
    """Changes line ends, as a transfer in text mode would."""

    def get(self, key: str) -> bytes:
        return super().get(key).replace(b"\r", b"")


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (Overwriting, "replaces objects instead of refusing to"),
        (OverwritingSilently, "says that it refused to replace an object, and replaced it"),
        (Inclusive, "returns wrong ranges"),
        (Listless, "does not list what was put"),
        (Keeping, "shows an object that was deleted"),
        (Altering, "returns other bytes than were stored"),
    ],
)
def test_a_store_that_breaks_the_contract_is_refused(broken: type[MemoryStore], says: str) -> None:
    store = broken()
    with pytest.raises(UnsupportedError, match=says) as caught:
        probe_store(store, "probe/1")
    assert caught.value.exit_code == 13
    if broken is not Keeping:
        assert list(MemoryStore.list(store)) == []


@pytest.mark.parametrize("at", range(1, 10))
def test_a_store_that_fails_is_not_taken_for_a_good_one(at: int) -> None:
    memory = MemoryStore()
    with pytest.raises(StoreError, match="injected"):
        probe_store(FaultStore(memory, Fault.FAIL, at=at), "probe/1")
