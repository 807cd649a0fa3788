from __future__ import annotations

import itertools
from typing import Any

import pytest

from jsbackup.errors import ObjectExists, ObjectNotFound, StoreError
from jsbackup.stores.memory import MemoryStore
from jsbackup.stores.retry import RetryingStore
from tests.harness.stores import Fault, FaultStore


class Bench:
    """A retrying store over one that goes wrong at its operations `at` … `at + times - 1`."""

    def __init__(self, fault: Fault, at: int = 1, times: int = 1) -> None:
        self.memory = MemoryStore()
        self.faulty = FaultStore(self.memory, fault, at=at, times=times)
        self.slept: list[float] = []
        self.store = RetryingStore(self.faulty, sleep=self.slept.append, delays=(1.0, 2.0, 3.0))


def test_each_operation_is_tried_again_after_each_delay() -> None:
    bench = Bench(Fault.FAIL, times=3)
    bench.store.put("a", b"1")
    assert bench.slept == [1.0, 2.0, 3.0]
    for use in (
        lambda store: store.get("a"),
        lambda store: store.get_range("a", 0, 1),
        lambda store: store.head("a"),
        lambda store: list(store.list()),
        lambda store: store.delete("a"),
    ):
        bench = Bench(Fault.FAIL, times=2)
        bench.memory.put("a", b"1")
        use(bench.store)
        assert bench.slept == [1.0, 2.0]
        assert bench.faulty.operations == 3


def test_what_never_works_fails_with_the_last_error() -> None:
    bench = Bench(Fault.FAIL, times=4)
    with pytest.raises(StoreError, match="injected: get a failed"):
        bench.store.get("a")
    assert bench.faulty.operations == 4
    assert bench.slept == [1.0, 2.0, 3.0]


def test_absence_and_presence_are_answers_and_not_retried() -> None:
    bench = Bench(Fault.FAIL, at=99)
    bench.memory.put("a", b"1")
    with pytest.raises(ObjectNotFound):
        bench.store.get("b")
    with pytest.raises(ObjectExists):
        bench.store.put("a", b"1")
    assert bench.slept == []


def test_an_error_that_stays_is_not_retried() -> None:
    bench = Bench(Fault.FAIL, at=99)
    with pytest.raises(StoreError, match="not a valid object key"):
        bench.store.get("..")
    assert bench.slept == []


def test_a_put_whose_answer_was_lost_succeeds() -> None:
    bench = Bench(Fault.LOSE_ANSWER)
    bench.store.put("a", bytearray(b"data"))
    assert bench.memory.get("a") == b"data"
    assert [operation for operation, _ in bench.faulty.log] == ["put", "put", "get_range"]


@pytest.mark.parametrize("theirs", [b"", b"dat", b"datA", b"data and more"])
def test_a_repeated_put_does_not_take_another_object_for_its_own(theirs: bytes) -> None:
    bench = Bench(Fault.FAIL)
    bench.memory.put("a", theirs)
    with pytest.raises(ObjectExists):
        bench.store.put("a", b"data")
    assert bench.memory.get("a") == theirs


def test_a_delete_whose_answer_was_lost_succeeds() -> None:
    bench = Bench(Fault.LOSE_ANSWER)
    bench.memory.put("a", b"")
    bench.store.delete("a")
    assert list(bench.memory.list()) == []


def test_a_broken_listing_goes_on_where_it_broke() -> None:
    bench = Bench(Fault.LOSE_ANSWER, times=2)
    for number in range(10):
        bench.memory.put(f"k/{number}", b"")
    assert [info.key for info in bench.store.list("k/")] == [f"k/{number}" for number in range(10)]
    assert bench.slept == [1.0, 2.0]


# --- how long it waits ---


def waits(**how: Any) -> list[float]:
    """The pauses of an operation that never works."""
    slept: list[float] = []
    faulty = FaultStore(MemoryStore(), Fault.FAIL, at=1, times=99)
    with pytest.raises(StoreError):
        RetryingStore(faulty, sleep=slept.append, delays=(1.0, 2.0, 4.0), **how).get("a")
    return slept


def test_chance_shortens_pauses_by_half_at_most() -> None:
    chances = iter([0.0, 0.5, 1.0])
    assert waits(random=lambda: next(chances)) == [0.5, 1.5, 4.0]


def test_no_try_begins_when_the_time_is_over() -> None:
    """Each try takes so long that not all of them fit."""
    seconds = itertools.count(0, 50)
    assert waits(clock=lambda: float(next(seconds)), deadline_seconds=110) == [1.0, 2.0]
    assert waits(deadline_seconds=3.0) == [1.0, 2.0]


def test_a_store_that_asks_for_a_pause_gets_it() -> None:
    class Busy(MemoryStore):
        def get(self, key: str) -> bytes:
            raise StoreError("busy", temporary=True, retry_after_seconds=3.0)

        def is_temporary(self, error: StoreError) -> bool:
            return error.temporary

    slept: list[float] = []
    with pytest.raises(StoreError, match="busy"):
        RetryingStore(Busy(), sleep=slept.append, delays=(1.0, 2.0, 4.0)).get("a")
    assert slept == [3.0, 3.0, 4.0]
