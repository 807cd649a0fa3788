"""Overlap of subjects among many, against comparing each with each (`tests/transforms` has what overlaps)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.engine.subjects import SubjectIndex, first_overlap
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
    for number, subjects in enumerate(streams):
        index.add(number, subjects)
    expected = {n for n, theirs in enumerate(streams) if any(overlaps(one, other) for one in ours for other in theirs)}
    assert index.overlapping(ours) == expected


def test_subjects_of_very_many_tokens_are_found() -> None:
    index = SubjectIndex()
    index.add(0, ["a." * 50_000 + ">"])
    assert index.overlapping(["*." * 50_000 + "b"]) == {0}
    assert index.overlapping([">"]) == {0}
    assert index.overlapping(["b.>"]) == set()


def test_the_first_pair_that_overlaps_is_named() -> None:
    assert first_overlap(["x", "orders.>"], ["y", "orders.new", "orders.*"]) == ("orders.>", "orders.new")
    assert first_overlap(["x"], ["y"]) is None
    assert first_overlap([], ["y"]) is None
