"""The digest of gaps is the same from the messages that are there and from the sequences that are not."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.formats.digest import GapDigest, digest_of_missing


def of_messages(sequences: list[int], cuts: list[int] | None = None) -> str:
    digest = GapDigest()
    ends = sorted({min(cut, len(sequences)) for cut in cuts or ()} | {len(sequences)})
    for start, stop in zip([0, *ends], ends, strict=False):
        digest.update(memoryview(array("q", sequences[start:stop])))
    return digest.hex


def missing_from(sequences: list[int]) -> list[int]:
    there = set(sequences)
    return [s for s in range(sequences[0], sequences[-1] + 1) if s not in there]


SEQUENCES = st.sets(st.integers(1, 3000), min_size=1).map(sorted) | st.builds(
    lambda first, count, gone: sorted(set(range(first, first + count)) - gone) or [first],
    st.integers(1, 1 << 60),
    st.integers(1, 2000),
    st.sets(st.integers(1, 2000), max_size=5),
)


@given(SEQUENCES, st.lists(st.integers(0, 2000), max_size=5))
def test_both_ways_agree_however_the_messages_are_cut(sequences: list[int], cuts: list[int]) -> None:
    assert of_messages(sequences, cuts) == digest_of_missing(missing_from(sequences))


@given(SEQUENCES, SEQUENCES)
def test_other_messages_between_the_same_ends_have_another_digest(one: list[int], other: list[int]) -> None:
    other = sorted({s for s in other if one[0] < s < one[-1]} | {one[0], one[-1]})
    assert (of_messages(one) == of_messages(other)) == (one == other)


def test_what_is_published_of_the_format() -> None:
    assert of_messages([7, 8, 9]) == ""
    assert of_messages([1, 3, 4, 7]) == "c5845d99faa3cd426b7d8d533a5a3ccd"
