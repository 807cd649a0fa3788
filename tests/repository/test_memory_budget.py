"""Shares of a room: bounded together, and never all waiting."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.repository.memory_budget import BudgetShare, Room

SHARED = 100
SEGMENT = 64


def test_a_stream_alone_never_waits() -> None:
    share = Room(SHARED).share()
    for size in (1, SHARED, 100 * SHARED, 5, 200 * SHARED):
        share.hold(size)


def test_what_fits_is_held_at_once_and_counted() -> None:
    room = Room(SHARED)
    first, second = room.share(), room.share()
    first.hold(60)
    second.hold(40)
    assert room.held_bytes == 100
    with first:
        pass
    assert room.held_bytes == 40


def test_the_first_goes_on_and_the_others_wait_until_it_lets_go() -> None:
    room = Room(SHARED)
    first, second = room.share(), room.share()
    second.hold(SHARED)
    with ThreadPoolExecutor(1) as pool:
        first.hold(10 * SHARED)  # nobody else waits, so it is the first
        waiting = pool.submit(second.hold, SHARED + 1)
        first.hold(10 * SHARED - 1)  # hardly less: messages were compressed, nothing was stored
        first.hold(11 * SHARED)
        assert not waiting.done()
        first.hold(0)
        waiting.result(30)
    assert room.held_bytes == SHARED + 1


def test_a_share_that_is_closed_makes_room() -> None:
    room = Room(SHARED)
    first, second = room.share(), room.share()
    first.hold(2 * SHARED)
    second.hold(SHARED)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.hold, 2 * SHARED)
        first.close()
        waiting.result(30)


def wait_for_a_waiting(room: Room) -> None:
    while not room._waiting:
        time.sleep(0.001)


@pytest.mark.parametrize("held", [0, 10])
def test_a_share_that_is_closed_while_it_waits_holds_nothing(held: int) -> None:
    """A stream is given up while a thread still adds to it: what it had waited for would never be released."""
    room = Room(SHARED)
    other, given_up, next_one = room.share(), room.share(), room.share()
    other.hold(2 * SHARED)
    given_up.hold(held)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(given_up.hold, 2 * SHARED)
        wait_for_a_waiting(room)
        given_up.close()
        try:
            waiting.result(10)
            given_up.hold(3 * SHARED)
            assert room.held_bytes == 2 * SHARED
        finally:
            other.close()
        assert room.users == 0
        pool.submit(next_one.hold, 4 * SHARED).result(10)
    assert room.held_bytes == 4 * SHARED


@pytest.mark.timeout(120)
@settings(max_examples=20, deadline=None)
@given(st.integers(2, 8), st.integers(0, 1 << 30))
def test_streams_that_fill_segments_side_by_side_all_come_to_their_end_within_bounds(streams: int, seed: int) -> None:
    room = Room(SHARED)
    lock = threading.Lock()
    most = 0

    def fill(share: BudgetShare, chance: random.Random) -> None:
        nonlocal most
        for _ in range(4):
            held = 0
            while held < SEGMENT:
                held = min(held + chance.randrange(1, 9), SEGMENT)
                share.hold(held)
                with lock:
                    most = max(most, room.held_bytes)
            share.hold(0)
        share.close()

    with ThreadPoolExecutor(streams) as pool:
        for done in [pool.submit(fill, room.share(), random.Random(seed + n)) for n in range(streams)]:
            done.result(60)
    assert room.held_bytes == 0
    assert most <= SHARED + SEGMENT
