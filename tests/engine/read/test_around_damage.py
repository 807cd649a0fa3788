"""Counted ranges of sequences. Reading around damage is tested on real servers: `tests/integration/test_salvage.py`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.engine.read.salvage import SequenceRanges
from jsbackup.formats.sequences import SequenceSet

SEQUENCES = st.sets(st.integers(1, 300), max_size=120).map(sorted)


def ranges_of(sequences: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for one in sequences:
        if found and found[-1][1] == one - 1:
            found[-1] = found[-1][0], one
        else:
            found.append((one, one))
    return found


@given(SEQUENCES, st.integers(0, 130), st.integers(0, 320), SEQUENCES)
def test_ranges_are_the_sequences_they_stand_for(sequences: list[int], cut: int, upto: int, deleted: list[int]) -> None:
    ranges = SequenceRanges(ranges_of(sequences)).from_index(cut)
    left = sequences[cut:]
    assert len(ranges) == len(left)
    assert [ranges[index] for index in range(len(ranges))] == left == list(ranges)
    assert ranges.count_to(upto) == sum(1 for one in left if one <= upto)
    kept, gone = ranges.without(SequenceSet(deleted))
    assert list(kept) == [one for one in left if one not in deleted]
    assert gone == ranges_of([one for one in left if one in deleted])
    middle = len(left) // 2
    assert [one for first, last in ranges.between(1, middle) for one in range(first, last + 1)] == left[1:middle]
