"""Tasks that follow their giver: in order, bounded, and an error is the last thing that happens."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import Future
from contextlib import closing

import pytest

from jsbackup.errors import StoreError
from jsbackup.repository.background import Aftermath, in_order


def test_tasks_are_done_in_order_in_another_thread() -> None:
    done: list[tuple[int, bool]] = []
    giver = threading.current_thread()
    with closing(Aftermath(10)) as after:
        for number in range(100):
            after.give(lambda number=number: done.append((number, threading.current_thread() is giver)), 3)
        after.wait()
        assert after.held_bytes == 0
    assert done == [(number, False) for number in range(100)]


def test_the_giver_waits_when_enough_is_waiting() -> None:
    gate, given = threading.Event(), threading.Event()
    after = Aftermath(10)

    def give_three() -> None:
        after.give(gate.wait, 6)
        after.give(lambda: None, 4)
        assert after.held_bytes == 10
        given.set()
        after.give(lambda: None, 1)
        assert gate.is_set()

    with closing(after):
        giver = threading.Thread(target=give_three)
        giver.start()
        assert given.wait(10)
        gate.set()
        giver.join(10)
        after.wait()


def test_one_task_may_be_larger_than_what_may_wait() -> None:
    done = []
    with closing(Aftermath(10)) as after:
        after.give(lambda: done.append(1), 1000)
        after.give(lambda: done.append(2), 1000)
        after.wait()
    assert done == [1, 2]


def test_after_an_error_nothing_more_is_done_and_every_call_raises_it() -> None:
    done, gate = [], threading.Event()

    def fail() -> None:
        gate.wait()
        raise StoreError("the store is gone")

    with closing(Aftermath(10)) as after:
        after.give(fail)
        after.give(lambda: done.append(1))
        gate.set()
        for call in (after.wait, after.wait, lambda: after.give(lambda: done.append(2))):
            with pytest.raises(StoreError, match="gone"):
                call()
    assert not done


def test_an_error_is_raised_even_if_the_waiting_thread_goes_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A future wakes who waits for it before it calls back: a failed segment was taken for a stored one."""
    call_back = Future._invoke_callbacks

    def later(future: Future[None]) -> None:
        time.sleep(0.2)
        call_back(future)

    monkeypatch.setattr(Future, "_invoke_callbacks", later)

    given = threading.Event()

    def fail() -> None:
        given.wait()
        raise StoreError("the disk is full")

    with closing(Aftermath(10)) as after:
        after.give(fail)
        threading.Timer(0.1, given.set).start()
        with pytest.raises(StoreError, match="the disk is full"):
            after.wait()


def _under_way() -> tuple[Aftermath, threading.Event, list[int]]:
    """The first of two tasks has begun, and ends when the gate opens; what was done."""
    done: list[int] = []
    begun, gate = threading.Event(), threading.Event()
    after = Aftermath(10)

    def slow() -> None:
        begun.set()
        gate.wait()
        done.append(1)

    after.give(slow)
    after.give(lambda: done.append(2))
    assert begun.wait(10)
    return after, gate, done


def test_closed_it_drops_what_has_not_begun_and_does_not_wait() -> None:
    after, gate, done = _under_way()
    after.close()
    assert (done, after.held_bytes) == ([], 0)
    gate.set()
    after._pool.shutdown()
    assert done == [1]


def test_settled_it_has_waited_for_the_task_that_had_begun() -> None:
    after, gate, done = _under_way()
    threading.Timer(0.05, gate.set).start()
    after.settle()
    assert done == [1]


def test_closed_it_lets_go_of_whoever_waits_for_what_is_not_done_any_more() -> None:
    after, gate, done = _under_way()
    after._ahead.popleft()  # whoever waits is past the first, and the second has not begun
    waiting = threading.Thread(target=after.wait, daemon=True)
    waiting.start()
    while after._ahead:
        pass
    after.close()
    waiting.join(10)
    assert not waiting.is_alive()
    gate.set()
    after._pool.shutdown()
    assert done == [1]


def test_one_that_is_given_up_and_found_by_its_own_thread_ends_quietly() -> None:
    given_up, collected = threading.Event(), threading.Event()

    def collect() -> None:
        given_up.wait(10)
        gc.collect()
        collected.set()

    results = in_order([lambda: None, collect, lambda: None, lambda: None], 1)
    next(results)
    circle: list[object] = [results]
    circle.append(circle)
    del results, circle
    given_up.set()
    assert collected.wait(10)  # an error in there would be a warning, and fail the test
