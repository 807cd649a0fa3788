from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.formats import sequences as sequence_sets
from jsbackup.formats.sequences import GivenSequences, SequenceSet, sequence_set


@st.composite
def runs(draw: st.DrawFn) -> list[list[int]]:
    """Rising sequences in runs, with steps of very different sizes."""
    step = st.sampled_from([1, 1, 1, 2, 255, 256, 70_000, 1 << 33])
    result, last = [], draw(st.sampled_from([0, 5, 1 << 40]))
    for steps in draw(st.lists(st.lists(step, max_size=12), max_size=8)):
        run = []
        for one in steps:
            last += one
            run.append(last)
        result.append(run)
    return result


def collect(all_runs: list[list[int]]) -> GivenSequences:
    found = GivenSequences()
    for run in all_runs:
        found.append(memoryview(array("q", run)))
    return found


@settings(max_examples=200, deadline=None)
@given(runs(), st.data())
def test_it_holds_what_was_appended(all_runs: list[list[int]], data: st.DataObject) -> None:
    members = [sequence for run in all_runs for sequence in run]
    found = collect(all_runs)
    assert len(found) == len(members)
    assert found.last == (members[-1] if members else 0)
    around = st.sampled_from([m + d for m in members for d in (-1, 0, 1)] or [0]) | st.integers(0, 1 << 45)
    low, high = sorted((data.draw(around), data.draw(around)))
    assert list(found.within(low, high)) == [m for m in members if low <= m <= high]
    asked = set(data.draw(st.lists(around, max_size=10)))
    assert sorted(found.intersection(asked)) == sorted(asked & set(members))


def test_every_run_can_be_asked_for_again() -> None:
    all_runs = [[base, base + 3] for base in range(1, 1001, 100)]
    found = collect(all_runs)
    for run in [*all_runs, *all_runs[::-1]]:
        assert list(found.within(run[0], run[1])) == run
    assert list(found.within(0, 2000)) == [sequence for run in all_runs for sequence in run]


@pytest.mark.parametrize("few", [-1, sequence_sets._FEW])
@given(sequences=st.lists(st.integers(0, (1 << 64) - 1) | st.integers(0, 5)))
def test_sequences_in_any_order_make_a_set(few: int, sequences: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequence_sets, "_FEW", few)
        assert sequence_set(array("Q", sequences)) == SequenceSet(sorted(set(sequences)))
