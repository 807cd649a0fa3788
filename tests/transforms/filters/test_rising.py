from __future__ import annotations

import pickle
from bisect import bisect_right

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.transforms.filters import rising
from jsbackup.transforms.filters.rising import RisingSequences

numbers = st.lists(st.integers(1, 60), unique=True).map(sorted)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rising, "_CHUNK", 4)


def made(parts: list[list[int]]) -> RisingSequences:
    found = RisingSequences()
    for part in parts:
        found.add(pa.array(part, pa.int64()))
    return found


@settings(deadline=None)
@given(numbers, st.integers(1, 7), st.integers(0, 62), st.integers(0, 62))
def test_it_is_the_sequences_that_were_added(whole: list[int], step: int, first: int, last: int) -> None:
    found = made([whole[at : at + step] for at in range(0, len(whole), step)])
    for one in (found, pickle.loads(pickle.dumps(found))):
        assert one.array().to_pylist() == whole
        assert len(one) == len(whole)
        assert [one.at(n) for n in range(1, len(whole) + 1)] == whole
        assert [n in one for n in range(62)] == [n in whole for n in range(62)]
        assert [one.rank(n) for n in range(-1, 63)] == [bisect_right(whole, n) for n in range(-1, 63)]
        part = one.within(first, last)
        assert part.array().to_pylist() == [n for n in whole if first <= n <= last]
        assert [part.rank(n) for n in range(63)] == [bisect_right(part.array().to_pylist(), n) for n in range(63)]
    asked = pa.array(range(first, max(first, last)), pa.int64())
    assert found.rows(asked).to_pylist() == [n in whole for n in asked.to_pylist()]


def test_dense_sequences_take_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rising, "_CHUNK", 1 << 16)
    dense, even = (RisingSequences.of(pa.array(range(1, 1_000_000, step), pa.int64())) for step in (1, 2))
    assert len(pickle.dumps(dense)) < 1000
    assert len(pickle.dumps(even)) < 30_000
