"""What is wrong with a repository is told on the line that it belongs to, whatever it is; and nothing is left in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from jsbackup.errors import UsageError
from jsbackup.model import Check, Verdict
from jsbackup.repository import layout
from jsbackup.repository.checks.doctor import Purpose, check_clock, examine_repository
from jsbackup.repository.crypto.access import NO_KEYS
from jsbackup.repository.document import encode_document
from jsbackup.repository.keep.leases import Mode, Terms, acquire
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Data, Store, StoreProbe
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED
from tests.harness.stores import Fault, FaultStore

NOW = 1_700_000_000.0
TERMS = Terms(Mode.SHARED, "backup", "jsbackup tests", "tests", CREATED)


class Counted:
    """Random bytes that are none."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, count: int) -> bytes:
        self.made += 1
        return self.made.to_bytes(8, "big")[-count:]


def repository(ahead: Callable[[], float] = lambda: 0.0) -> MemoryStore:
    """A plain one without backups, in a store whose clock is so far ahead."""
    store = MemoryStore(lambda: NOW + ahead())
    Repository.create(store, repository_id="ab" * 16, created=CREATED, tool="jsbackup tests")
    return store


def examine(store: Store, purpose: Purpose = Purpose.ALL) -> dict[str, Check]:
    found = examine_repository(store, NO_KEYS, purpose, clock=lambda: NOW, random=Counted())
    assert len({check.name for check in found}) == len(found)
    return {check.name: check for check in found}


def wrong(found: dict[str, Check]) -> dict[str, str]:
    return {name: str(check.verdict) for name, check in found.items() if check.verdict is not Verdict.OK}


def test_a_sound_one_stays_as_it_is() -> None:
    store = repository()
    before = list(store.list())
    assert wrong(examine(store)) == {}
    assert wrong(examine(store, Purpose.BACKUP)) == {}
    assert wrong(examine(store, Purpose.RESTORE)) == {"backups": "problem"}
    assert list(store.list()) == before


@pytest.mark.parametrize(
    ("ahead", "verdict"),
    [(0, "ok"), (5.5, "ok"), (-5.5, "ok"), (7, "warning"), (-200, "warning"), (302, "problem"), (-4000, "problem")],
)
def test_a_clock_that_is_off_is_told(ahead: float, verdict: str) -> None:
    found = examine(repository(lambda: ahead))["store-clock"]
    assert found.verdict == verdict
    if verdict != "ok":
        assert f"{abs(ahead) - 1:.0f} s {'ahead of' if ahead > 0 else 'behind'} ours" in found.found


def test_what_is_not_known_of_a_clock_is_in_its_favour() -> None:
    assert check_clock("c", "it", 309, 10).verdict is Verdict.WARNING
    assert check_clock("c", "it", -14, 10).verdict is Verdict.OK


def test_a_store_that_replaces_objects_is_told_of() -> None:
    class Overwriting(MemoryStore):
        def put(self, key: str, data: Data) -> None:
            self.delete(key)
            super().put(key, data)

    class Looking(MemoryStore):
        def probe(self, key: str, data: Data) -> StoreProbe:
            return StoreProbe(conditional_writes=False)

    for kind, verdict, code in ((Overwriting, "problem", 13), (Looking, "warning", 0)):
        store = kind(lambda: NOW)
        for info in repository().list():
            store.put(info.key, repository().get(info.key))
        before = list(store.list())
        found = examine(store)["create-only"]
        assert (found.verdict, found.code) == (verdict, code)
        assert list(store.list()) == before


def test_leases_are_told_by_who_holds_them() -> None:
    now = 0.0
    store = repository(lambda: now)

    def take(terms: Terms) -> None:
        acquire(store, terms, wait_seconds=0, clock=lambda: now, sleep=lambda _: None, random=lambda n: b"\1" * n)

    take(TERMS)
    assert "active locks: backup (since" in examine(store)["leases"].found
    now = 3600.0
    assert wrong(examine(store))["leases"] == "warning"
    assert "unlock" in (examine(store)["leases"].fix or "")
    for info in list(store.list(layout.LOCKS)):
        store.delete(info.key)
    take(replace(TERMS, mode=Mode.EXCLUSIVE, purpose="prune"))
    found = examine(store)["leases"]
    assert found.verdict is Verdict.WARNING and "other commands wait for prune" in found.found


_LATER = encode_document({"format": 99, "required_features": []}, "descriptor")


@pytest.mark.parametrize(("descriptor", "code"), [(b"", 14), (b"{", 14), (_LATER, 13), (None, 10)])
def test_one_that_cannot_be_opened_leaves_the_rest_untried(descriptor: bytes | None, code: int) -> None:
    store = repository()
    store.delete(layout.DESCRIPTOR)
    store.put("something", b"")
    if descriptor is not None:
        store.put(layout.DESCRIPTOR, descriptor)
    found = examine(store)
    assert (found["repository"].verdict, found["repository"].code) == (Verdict.PROBLEM, code)
    assert {check.verdict for name, check in found.items() if name != "repository"} == {Verdict.NOT_TRIED}


def test_a_damaged_backup_is_told() -> None:
    store = repository()
    store.put(layout.manifest_key("20261121T014500Z-1a2b3c"), b"[]")
    assert examine(store)["backups"].code == 14


def test_keys_that_cannot_be_read_stand_in_no_others_way() -> None:
    store = repository()
    error = UsageError("the file is gone", hint="Look for it.")
    found = examine_repository(store, error, Purpose.ALL, clock=lambda: NOW, random=Counted())
    assert [(c.name, c.code, c.fix) for c in found if c.verdict is not Verdict.OK] == [("keys", 2, "Look for it.")]
    empty = examine_repository(MemoryStore(), error, Purpose.BACKUP, clock=lambda: NOW, random=Counted())
    assert (empty[0].name, empty[0].code) == ("repository", 10)


def test_whatever_operation_fails_every_line_is_there() -> None:
    counting = FaultStore(repository())
    names = list(examine(counting))
    lines = []
    for at in range(1, counting.operations + 1):
        found = examine(FaultStore(repository(), Fault.FAIL, at=at))
        assert list(found) == names
        lines += list(wrong(found))
    assert {"repository", "backups", "writable", "store-clock", "leases"} <= set(lines)
    # To read is enough for a restore.
    read_only = FaultStore(
        repository(), Fault.FAIL, at=next(n for n, (op, _) in enumerate(counting.log, 1) if op == "put")
    )
    assert wrong(examine(read_only, Purpose.RESTORE))["writable"] == "warning"
