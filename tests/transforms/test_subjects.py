from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import UsageError
from jsbackup.names import is_pattern
from jsbackup.transforms.subjects import check_pattern, contains, intersection, matcher, overlaps, tidy
from tests.transforms.messages import all_literals, patterns

UNIVERSE = all_literals()


@cache
def by_the_rule(pattern: str, subject: str) -> bool:
    want, have = pattern.split("."), subject.split(".")
    for at, token in enumerate(want):
        if token == ">":
            return len(have) > at
        if at >= len(have) or token not in ("*", have[at]):
            return False
    return len(want) == len(have)


@cache
def matching(pattern: str) -> frozenset[str]:
    return frozenset(subject for subject in UNIVERSE if by_the_rule(pattern, subject))


@settings(deadline=None)
@given(patterns())
def test_matching_follows_the_rule(pattern: str) -> None:
    assert {subject for subject in UNIVERSE if matcher(pattern).fullmatch(subject)} == matching(pattern)


@settings(deadline=None)
@given(patterns(), patterns())
def test_sets_are_compared_as_sets(one: str, other: str) -> None:
    # Patterns have up to three tokens: what tells two apart has one more at most, and a token that none has.
    assert contains(one, other) == (matching(other) <= matching(one))
    both = intersection(one, other)
    assert (matching(both) if both else frozenset()) == matching(one) & matching(other)
    assert overlaps(one, other) == overlaps(other, one) == bool(both)


def test_a_token_that_only_contains_a_wildcard_is_a_literal() -> None:
    assert not overlaps("a*", "ab")
    assert not overlaps("a>.b", "ac.b")
    assert overlaps("a*", "a*")


@settings(deadline=None)
@given(st.lists(patterns(), max_size=5))
def test_tidying_changes_nothing_but_the_number(some: list[str]) -> None:
    left = tidy(some)
    assert frozenset().union(*map(matching, left)) == frozenset().union(*map(matching, some))
    assert not any(one != other and contains(one, other) for one in left for other in left)


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", ">.a", "a b", "a\tb", "a\nb", "\udc80", "a" * 4097])
def test_what_no_server_takes_is_refused(text: str) -> None:
    assert not is_pattern(text)
    with pytest.raises(UsageError, match="--subject: not a subject"):
        check_pattern("--subject", text)


@pytest.mark.parametrize("text", [">", "*", "a*", "a.>b", "$KV.x.>", "ä.*.>", "a" * 4096])
def test_what_a_server_takes_is_taken(text: str) -> None:
    assert check_pattern("--subject", text) == text


def test_hostile_subjects_do_not_make_matching_slow() -> None:
    assert not matcher(".".join(["*"] * 30)).fullmatch("." * 60000)
    assert matcher("a.>").fullmatch("a." + "\n" * 1000)
