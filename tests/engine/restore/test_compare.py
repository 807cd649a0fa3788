"""What a comparison finds is what two lists of messages, laid side by side, differ in."""

from __future__ import annotations

import random
from collections.abc import Set

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.engine.restore.compare import Comparison
from tests.harness.batches import Message, batch_of, cut_anywhere

SEQUENCES = st.sets(st.integers(1, 40), max_size=40)


def _messages(sequences: Set[int], changed: Set[int] = frozenset()) -> list[Message]:
    return [Message(s, s * 1000, "a", None, b"new" if s in changed else b"old") for s in sorted(sequences)]


@given(SEQUENCES, SEQUENCES, SEQUENCES, st.integers(0, 45), st.integers())
def test_missing_added_and_changed_are_told_apart_up_to_the_last_sequence(
    ours: set[int], theirs: set[int], changed: set[int], last_seq: int, seed: int
) -> None:
    ours = {s for s in ours if s <= last_seq}  # what a backup holds never goes beyond its last sequence
    comparison = Comparison([batch_of(_messages(ours))] if ours else [], last_seq)
    if theirs:
        for piece in cut_anywhere(batch_of(_messages(theirs, changed)), random.Random(seed)):
            comparison.add(piece)
    comparison.finish()
    seen = {s for s in theirs if s <= last_seq}
    assert comparison.missing == sorted(ours - seen)
    assert comparison.added == sorted(seen - ours)
    assert comparison.changed == sorted(ours & seen & changed)
    assert comparison.count == len(ours - seen) + len(seen - ours) + len(ours & seen & changed)


def test_each_kind_is_counted_although_only_the_first_are_kept() -> None:
    ours, theirs = set(range(1, 701)), {*range(301, 701), *range(1_001, 1_151)}
    comparison = Comparison([batch_of(_messages(ours))], 2_000)
    comparison.add(batch_of(_messages(theirs, set(range(301, 501)))))
    comparison.finish()
    assert (comparison.missing_count, comparison.added_count, comparison.changed_count) == (300, 150, 200)
    assert comparison.count == 650
    assert [len(kept) for kept in (comparison.missing, comparison.added, comparison.changed)] == [100, 100, 100]


def test_headers_subjects_and_times_count_as_content() -> None:
    ours = [Message(1, 5, "a", b"NATS/1.0\r\nA: 1\r\n\r\n", b""), Message(2, 5, "a"), Message(3, 5, "a")]
    theirs = [Message(1, 5, "a", b"NATS/1.0\r\nA: 2\r\n\r\n", b""), Message(2, 6, "a"), Message(3, 5, "b")]
    comparison = Comparison([batch_of(ours)], 3)
    comparison.add(batch_of(theirs))
    comparison.finish()
    assert comparison.changed == [1, 2, 3]


def test_an_empty_header_block_and_none_are_the_same_to_a_server() -> None:
    comparison = Comparison([batch_of([Message(1, headers=None)])], 1)
    comparison.add(batch_of([Message(1, headers=b"")]))
    comparison.finish()
    assert comparison.count == 0
