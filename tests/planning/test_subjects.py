"""Overlap of subjects among many, against comparing each with each (`tests/transforms` has what overlaps)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.planning.subjects import SubjectIndex, first_overlap
from jsbackup.transforms.subjects import overlaps

PATTERNS = st.builds(
    lambda tokens, rest: ".".join([*tokens, *([">"] if rest or not tokens else [])]),
    st.lists(st.sampled_from(["a", "b", "*", "a*", ""]), max_size=3),
    st.booleans(),
)
SUBJECTS = st.lists(PATTERNS, max_size=3)


@given(st.lists(SUBJECTS, max_size=8), SUBJECTS)
def test_the_index_finds_whose_subjects_overlap(streams: list[list[str]], ours: list[str]) -> None:
    index = SubjectIndex()
    for subjects in streams:
        index.add(subjects)
    expected = {n for n, theirs in enumerate(streams) if any(overlaps(one, other) for one in ours for other in theirs)}
    found = list(index.overlaps(ours))
    assert [number for number, _ in found] == sorted(expected)
    assert all(pair == first_overlap(ours, streams[number]) for number, pair in found)


def test_subjects_of_very_many_tokens_are_found() -> None:
    index = SubjectIndex()
    index.add([long := "a." * 50_000 + ">"])
    assert list(index.overlaps(["*." * 50_000 + "b"])) == [(0, ("*." * 50_000 + "b", long))]
    assert list(index.overlaps([">"])) == [(0, (">", long))]
    assert list(index.overlaps(["b.>"])) == []


def test_the_first_pair_that_overlaps_is_named() -> None:
    assert first_overlap(["x", "orders.>"], ["y", "orders.new", "orders.*"]) == ("orders.>", "orders.new")
    assert first_overlap(["x"], ["y"]) is None
    assert first_overlap([], ["y"]) is None
