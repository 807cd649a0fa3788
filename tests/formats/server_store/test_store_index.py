"""What an `index.db` says about single sequences and subjects, against sets."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError, JsBackupError
from jsbackup.formats.server_store import store_index
from jsbackup.formats.server_store.store_index import StoreIndex, read_index
from tests.formats.archive.test_index_db import STREAM, index_of, sealed

Block = tuple[int, int, list[int]]  # first and last sequence, deleted ones


@st.composite
def blocks(draw: st.DrawFn) -> list[Block]:
    """Some blocks in order, with gaps between them."""
    found: list[Block] = []
    at = draw(st.sampled_from([1, 2, 2048, 4095, 1 << 40]))
    for _ in range(draw(st.integers(0, 4))):
        first = at + draw(st.integers(0, 3000))
        last = first + draw(st.integers(0, 6000))
        count = draw(st.integers(0, min(60, last - first)))
        some = random.Random(draw(st.integers(0, 1000)))
        gone = sorted(some.sample(range(first + 1, last + 1), count)) if last > first else []
        found.append((first, last, [one for one in gone if one != last]))
        at = last + 1
    return found


def read(
    found: Sequence[Block], subjects: Sequence[tuple[str, int]] = (), version: int = 1, sets: int = 2
) -> StoreIndex:
    last = found[-1][1] if found else 0
    return read_index(index_of(version, found, last, subjects, sets), STREAM, None)


@settings(max_examples=150, deadline=None)
@given(blocks(), st.sampled_from([1, 2]), st.integers(0, 1 << 30))
def test_each_sequence_is_dead_or_alive(found: list[Block], sets: int, seed: int) -> None:
    index = read(found, sets=sets)
    living = {one for first, last, gone in found for one in range(first, last + 1)} - {
        one for _, _, gone in found for one in gone
    }
    alive = [one for block in index.blocks for first, last in index.alive(block) for one in range(first, last + 1)]
    assert alive == sorted(living)
    if not found:
        assert index.dead_among([5]) == []
        return
    lowest, highest = found[0][0] - 3, found[-1][1] + 3
    some = random.Random(seed)
    asked = sorted({max(1, lowest), highest, *(some.randrange(max(1, lowest), highest) for _ in range(200))})
    assert index.dead_among(asked) == [one for one in asked if one <= found[-1][1] and one not in living]


def test_subjects_have_their_numbers_of_messages() -> None:
    found = [(1, 9, [3])]
    assert read(found, [("a", 4), ("b.c", 3)]).subjects == {b"a": 4, b"b.c": 3}
    assert read(found, [("a", 4), ("b.c", 3)], version=4).subjects == {b"a": 4, b"b.c": 3}


def test_counts_that_the_server_lost_are_no_subjects() -> None:
    assert read([(1, 9, [3])], [("a", 5)]).subjects is None


def test_too_many_subjects_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_index, "_MOST_SUBJECTS", 1)
    assert read([(1, 9, [3])], [("a", 4), ("b.c", 3)]).subjects is None


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 30), st.binary(min_size=1, max_size=4))
def test_any_other_byte_is_an_error(seed: int, change: bytes) -> None:
    whole = index_of(1, [(1, 3000, [7, 2900]), (3001, 3100, [])], 3100, [("a", 3098)])
    at = random.Random(seed).randrange(len(whole))
    damaged = whole[:at] + change + whole[at + len(change) :]
    if damaged == whole:
        return
    with pytest.raises(FormatError):
        read_index(damaged, STREAM, None)
    with pytest.raises(FormatError):
        read_index(whole[:at], STREAM, None)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 30), st.binary(min_size=1, max_size=12))
def test_a_hostile_index_is_an_error_or_an_index(seed: int, change: bytes) -> None:
    """With a checksum that fits."""
    body = index_of(1, [(1, 3000, [7, 2900]), (3001, 3100, [])], 3100, [("a", 3098)])[:-8]
    at = random.Random(seed).randrange(len(body))
    try:
        index = read_index(sealed(body[:at] + change + body[at + len(change) :]), STREAM, None)
    except JsBackupError:
        return
    for block in index.blocks[:3]:
        next(iter(index.alive(block)), None)
    index.dead_among([1, 5, 1 << 50])


def test_the_index_of_another_stream_is_an_error() -> None:
    with pytest.raises(FormatError, match="checksum"):
        read_index(index_of(1, [(1, 9, [])], 9), "OTHER", None)
