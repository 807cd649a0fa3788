"""The last gap before a moment is the one that a look at every message finds, and few segments are read for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jsbackup.look.moment import SequenceGaps
from jsbackup.model import StreamState
from jsbackup.repository.manifest import StreamBackup
from jsbackup.stores.memory import MemoryStore
from jsbackup.times import parse_time
from jsbackup.transforms.cut import AtSequence, AtTime, Edge
from tests.harness.backups import CREATED, make_repository, store_stream
from tests.harness.batches import Message
from tests.harness.servers import EXPLORE
from tests.harness.small_pages import make_pages_small


@pytest.fixture(autouse=True, scope="module")
def small_pages() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        make_pages_small(patch)
        yield


class _Counting(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.segments: list[str] = []

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        if key.endswith(".parquet"):
            self.segments.append(key)
        return super().get_range(key, offset, length)


def _stored(rows: Sequence[tuple[int, int]], tail: int = 0) -> tuple[SequenceGaps, _Counting]:
    """A stream of messages with these sequences and times, of which so many were removed at the end."""
    store = _Counting()
    repository = make_repository(store)
    messages = [Message(sequence, time_ns, "s", None, b"x" * 300) for sequence, time_ns in rows]
    stream: StreamBackup = store_stream(repository.objects, "S", messages)
    last = stream.last_seq + tail
    stream = replace(
        stream, segments=repository.listed(stream.segments), state=StreamState(last_seq=last), config={"first_seq": 3}
    )
    store.segments.clear()
    return SequenceGaps(repository.objects, stream), store


_ROWS = st.lists(st.tuples(st.integers(1, 2) | st.integers(1, 1), st.integers(0, 2)), min_size=1, max_size=120)
_EDGES = st.integers(1, 150).map(AtSequence) | st.integers(-1, 150).map(AtTime)


# The last possible message and the gap are in different segments, and the first of them is read for both.
@example(steps=[*[(1, 0)] * 5, (2, 0), (1, 0), (1, 1), (2, 0)], at=AtTime(0), tail=0)
@settings(max_examples=200 if EXPLORE else 40)
@given(steps=_ROWS, at=_EDGES, tail=st.integers(0, 2))
def test_the_last_gap_is_that_of_a_look_at_every_message(steps: Sequence[tuple[int, int]], at: Edge, tail: int) -> None:
    sequence, time_ns, rows = 2, 0, []
    for step, later in steps:
        sequence, time_ns = sequence + step, time_ns + later
        rows.append((sequence, time_ns))
    gaps, store = _stored(rows, tail)
    end = rows[-1][0] + tail
    if isinstance(at, AtSequence):
        possible = min(at.sequence, end)
    else:
        possible = next((sequence for sequence, time_ns in rows if time_ns > at.time_ns), end + 1) - 1
    there = {sequence for sequence, _ in rows}
    missing = [one for one in range(3, possible + 1) if one not in there]
    assert gaps.last_possible(at) == possible
    assert gaps.last_gap(possible) == (missing[-1] if missing else 0)
    assert len(set(store.segments)) <= 2


def test_a_clock_that_was_set_back_makes_more_possible() -> None:
    gaps, _ = _stored([(3, 10), (4, 20), (6, 12), (7, 30)])
    assert [gaps.last_possible(AtTime(one)) for one in (9, 10, 12, 20, 29, 30)] == [2, 3, 6, 6, 6, 7]
    assert gaps.last_gap(6) == 5


def test_nothing_is_older_than_its_stream() -> None:
    created = parse_time(CREATED)
    gaps, _ = _stored([(5, created + 10), (6, created + 20)])
    assert [gaps.last_possible(AtTime(created + one)) for one in (-1, 0, 9, 10, 20)] == [0, 4, 4, 5, 6]
    copied, _ = _stored([(5, created - 10), (6, created + 20)])
    assert [copied.last_possible(AtTime(created + one)) for one in (-11, -10, 0, 20)] == [4, 5, 5, 6]
