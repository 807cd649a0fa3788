"""Overlap of subjects, against matching literal subjects one by one."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.engine.subjects import first_overlap, overlaps

# Literals of up to four tokens of an alphabet with one token more than patterns use: "any token" has an instance then.
LITERALS = [".".join(tokens) for length in range(1, 5) for tokens in itertools.product("abz", repeat=length)]


def matches(pattern: str, subject: str) -> bool:
    """Matching as the NATS documentation tells it, one token at a time."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        return len(tokens) >= len(wanted) and matches(
            ".".join([*wanted[:-1], *["*"] * (len(tokens) - len(wanted) + 1)]), subject
        )
    return len(wanted) == len(tokens) and all(w in ("*", t) for w, t in zip(wanted, tokens, strict=True))


@st.composite
def patterns(draw: st.DrawFn) -> str:
    tokens = draw(st.lists(st.sampled_from(["a", "b", "*"]), max_size=3))
    if not tokens or draw(st.booleans()):
        tokens.append(draw(st.sampled_from(["a", "*", ">"])))
    return ".".join(tokens)


@given(patterns(), patterns())
def test_patterns_overlap_if_and_only_if_a_subject_matches_both(one: str, other: str) -> None:
    common = any(matches(one, subject) and matches(other, subject) for subject in LITERALS)
    assert overlaps(one, other) == common
    assert overlaps(other, one) == common


def test_a_token_that_only_contains_a_wildcard_is_a_literal() -> None:
    assert not overlaps("a*", "ab")
    assert not overlaps("a>.b", "ac.b")
    assert overlaps("a*", "a*")


def test_the_first_pair_that_overlaps_is_named() -> None:
    assert first_overlap(["x", "orders.>"], ["y", "orders.new", "orders.*"]) == ("orders.>", "orders.new")
    assert first_overlap(["x"], ["y"]) is None
    assert first_overlap([], ["y"]) is None
