"""A lease is renewed while the work goes on, and given up when it ends, however it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from jsbackup.engine.backup import lease_renewal
from jsbackup.engine.backup.lease_renewal import hold_lease
from jsbackup.errors import RepositoryLocked, StoreError
from jsbackup.repository import layout
from jsbackup.repository.keep.leases import Mode, Terms, list_leases
from jsbackup.stores.memory import MemoryStore
from tests.harness.stores import FaultStore

TERMS = Terms(Mode.SHARED, "backup", "jsbackup tests", "tests", "2026-11-21T01:45:00Z", 1)
FAR_SECONDS = 30.0


class Watched(FaultStore):
    """Tells when the lease reaches a generation; what `before_put` does, happens ahead of each put of one."""

    def __init__(self, generation: int, before_put: Callable[[int], None] = lambda generation: None) -> None:
        super().__init__(MemoryStore())
        self.generation = generation
        self.reached = threading.Event()
        self.before_put = before_put

    def put(self, key: str, data: bytes) -> None:  # type: ignore[override]
        lease = layout.parse_lease_key(key)
        assert lease is not None
        self.before_put(lease.generation)
        super().put(key, data)
        if lease.generation >= self.generation:
            self.reached.set()


def _silent(error: RepositoryLocked) -> None:
    raise AssertionError("nobody is in the way")


def test_it_is_renewed_again_and_again_and_given_up_at_the_end() -> None:
    store = Watched(5)
    with hold_lease(store, TERMS, wait_seconds=0, waiting=_silent) as lease:
        assert store.reached.wait(FAR_SECONDS)
        lease.check()
        assert len(list_leases(store)) == 1
    assert list(store.list()) == []


@pytest.mark.parametrize("error", [StoreError("full"), KeyboardInterrupt()])
def test_it_is_given_up_after_an_error_and_when_interrupted(error: BaseException) -> None:
    store = Watched(1)
    with pytest.raises(type(error)), hold_lease(store, TERMS, wait_seconds=0, waiting=_silent):
        raise error
    assert list(store.list()) == []


def test_a_renewal_that_fails_is_tried_again() -> None:
    def fail(generation: int) -> None:
        if generation in (2, 3):
            raise StoreError("not now")

    store = Watched(4, fail)
    with hold_lease(store, TERMS, wait_seconds=0, waiting=_silent):
        assert store.reached.wait(FAR_SECONDS)
    assert list(store.list()) == []


def test_a_store_that_hangs_has_one_renewal_to_hang_on_and_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_renewal, "_HURRIED_SECONDS", 0.01)
    hanging, go_on = threading.Event(), threading.Event()
    tried: list[int] = []

    def hang(generation: int) -> None:
        tried.append(generation)
        if generation > 1:
            hanging.set()
            go_on.wait(FAR_SECONDS)

    store = Watched(1, hang)
    with suppress(KeyboardInterrupt), hold_lease(store, TERMS, wait_seconds=0, waiting=_silent):
        assert hanging.wait(FAR_SECONDS)
        raise KeyboardInterrupt
    assert tried == [1, 2]
    (keeper,) = [thread for thread in threading.enumerate() if thread.name.startswith("lease ")]
    go_on.set()
    keeper.join(FAR_SECONDS)
    assert list(store.list()) == []


def test_a_lease_that_is_lost_is_not_renewed_any_more() -> None:
    store = Watched(3)
    with hold_lease(store, TERMS, wait_seconds=0, waiting=_silent) as lease:
        assert store.reached.wait(FAR_SECONDS)
        for info in list(store.list()):
            store.delete(info.key)
        with pytest.raises(RepositoryLocked, match="removed by someone"):
            while True:
                lease.renew()
        with pytest.raises(RepositoryLocked):
            lease.check()
    assert list(store.list()) == []
