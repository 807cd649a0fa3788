from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import PlanRefused, UsageError
from jsbackup.names import is_pattern
from jsbackup.transforms.subject_map import SubjectMap, SubjectMaps
from jsbackup.transforms.subjects import overlaps
from tests.transforms.messages import all_literals, patterns, tokens
from tests.transforms.test_subjects import by_the_rule

UNIVERSE = all_literals(3, "abc")


@st.composite
def maps(draw: st.DrawFn) -> SubjectMap:
    source = draw(patterns())
    wildcards = source.split(".").count("*")
    parts = draw(st.lists(st.one_of(tokens, *[st.just(f"${n + 1}") for n in range(wildcards)]), max_size=3))
    if source.endswith(">"):
        parts.append(">")
    elif not parts:
        parts.append("c")
    return SubjectMap(source, ".".join(parts))


def by_hand(one: SubjectMap, subject: str) -> str | None:
    """The rule, in words of its own."""
    if not by_the_rule(one.source, subject):
        return None
    source, have = one.source.split("."), subject.split(".")
    wild = [have[at] for at, token in enumerate(source) if token == "*"]
    out: list[str] = []
    for token in one.dest.split("."):
        if token == ">":
            out += have[len(source) - 1 :]
        else:
            out.append(wild[int(token[1:]) - 1] if token[1:].isdigit() else token)
    return ".".join(out)


@settings(deadline=None)
@given(st.lists(maps(), max_size=3))
def test_the_first_map_that_matches_is_used_once(some: list[SubjectMap]) -> None:
    mapped = SubjectMaps(tuple(some))
    for subject in UNIVERSE:
        candidates = [by_hand(one, subject) for one in some]
        assert mapped.map(subject) == next((c for c in candidates if c is not None), subject)
    assert SubjectMaps.parse([str(one) for one in some]) == mapped


@settings(deadline=None)
@given(st.lists(maps(), min_size=1, max_size=3), st.lists(patterns(), min_size=1, max_size=3))
def test_streams_cover_what_they_covered(some: list[SubjectMap], stream: list[str]) -> None:
    mapped = SubjectMaps(tuple(some))
    try:
        covered = mapped.cover(stream)
    except PlanRefused:
        return
    assert all(map(is_pattern, covered))
    assert not any(overlaps(one, other) for one in covered for other in covered if one != other)
    for subject in UNIVERSE:
        if any(by_the_rule(p, subject) for p in stream):
            assert any(by_the_rule(p, mapped.map(subject)) for p in covered)


@settings(deadline=None)
@given(st.lists(maps(), min_size=1, max_size=2), patterns(), st.lists(patterns(), min_size=1, max_size=2))
def test_filters_select_what_they_selected(some: list[SubjectMap], pattern: str, stream: list[str]) -> None:
    mapped = SubjectMaps(tuple(some))
    try:
        selected = mapped.select([pattern], stream)
    except PlanRefused:
        return
    own = [s for s in UNIVERSE if any(by_the_rule(p, s) for p in stream)]
    meant = {mapped.map(s) for s in own if by_the_rule(pattern, s)}
    for subject in own:
        after = mapped.map(subject)
        was, becomes = by_the_rule(pattern, subject), any(by_the_rule(p, after) for p in selected)
        # What stays as it is can be where others come to; `may_merge` tells of that. It is never lost, though.
        assert becomes if was else (not becomes or after == subject or after in meant)


@settings(deadline=None)
@given(st.lists(maps(), max_size=2), st.lists(patterns(), min_size=1, max_size=2))
def test_subjects_that_become_one_are_announced(some: list[SubjectMap], stream: list[str]) -> None:
    mapped = SubjectMaps(tuple(some))
    own = [s for s in UNIVERSE if any(by_the_rule(p, s) for p in stream)]
    if len({mapped.map(s) for s in own}) < len(own):
        assert mapped.may_merge(stream)


@pytest.mark.parametrize(
    ("one", "stream", "said"),
    [
        ("orders.>=>old.>", ["orders.>"], False),
        ("orders.>=>orders.eu.>", ["orders.>"], False),
        ("orders.*.eu=>eu.$1", ["orders.>"], False),
        ("orders.*=>orders", ["orders.*"], True),
        ("orders.*=>orders", ["orders.x"], False),
        ("a=>b", ["a", "b"], True),
        ("a.*=>b.$1", ["a.x", "b.y"], False),
    ],
)
def test_merging_is_announced_where_it_can_be(one: str, stream: list[str], said: bool) -> None:
    assert bool(SubjectMaps.parse([one]).may_merge(stream)) == said


@pytest.mark.parametrize(
    ("maps", "patterns", "selected"),
    [
        (["orders.>=>staging.orders.>"], ["orders.*.eu"], ["staging.orders.*.eu"]),
        (["orders.>=>staging.orders.>"], [">"], [">"]),
        (["orders.>=>staging.orders.>"], ["bills.>"], ["bills.>"]),
        (["orders.*.eu=>eu.$1"], ["orders.>"], ["eu.*", "orders.>"]),
        (["orders.*.*=>$2.orders.$1"], ["orders.7.*"], ["*.orders.7"]),
        (["a=>b", "b=>a"], ["a"], ["b"]),
        (["orders.*.eu=>eu.{{wildcard(1)}}", "orders.>=>o.>"], ["orders.*.eu"], ["eu.*"]),
        (["a.*=>b.$1.$1"], ["a.*"], None),
        (["a.*=>b.$1.$1"], [">"], [">"]),
        (["a.*=>b"], ["a.x"], None),
        (["a.*=>b"], ["a.*"], ["b"]),
        (["*.x=>y.$1"], ["a.*"], None),
        (["c.*=>a.$1"], ["a.*"], None),
    ],
)
def test_filters_follow_or_are_refused(maps: list[str], patterns: list[str], selected: list[str] | None) -> None:
    mapped = SubjectMaps.parse(maps)
    if selected is None:
        with pytest.raises(PlanRefused, match="cannot follow its messages"):
            mapped.select(patterns)
    else:
        assert mapped.select(patterns) == selected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "not a map"),
        ("a=>b=>c", "not a map"),
        ("=>b", "not a subject"),
        ("a=>", "not a subject"),
        ("a..b=>c", "not a subject"),
        ("a.*=>b.$2", "no wildcard number 2"),
        ("a.*=>b.$0", "no wildcard number 0"),
        ("a=>b.$1", "no wildcard number 1"),
        ("a.>=>b.$1.>", "no wildcard number 1"),
        ("a.*=>b.*", "a wildcard in"),
        ("a.>=>b", "do not both end"),
        ("a=>b.>", "do not both end"),
        ("a.*=>b.{{partition(5,1)}}", "partition is not supported"),
        ("a.*=>b.{{ SplitFromLeft(1,2) }}", "SplitFromLeft is not supported"),
        ("a.*=>b.{{split(1,-)}}", "split is not supported"),
        ("a.*=>b.{{random(5)}}", "random is not supported"),
        ("a.*=>b.{{wildcard(x)}}", "not a token to map to"),
        ("a.*=>b.{{wildcard(1)}}x", "not a token to map to"),
        ("a.*=>b.$+1", "not a token to map to"),
        ("a.*=>b.$99999999999999999999", ""),
        ("a=>b c", "not a subject"),
    ],
)
def test_no_map_is_a_usage_error(text: str, said: str) -> None:
    if not said:  # too many digits for a wildcard: the server takes it for a token of its own
        assert SubjectMap.parse(text).map("a.x") == "b.$99999999999999999999"
        return
    with pytest.raises(UsageError, match=said.replace("(", r"\(").replace("+", r"\+")):
        SubjectMap.parse(text)


@settings(deadline=None)
@given(st.one_of(st.text(max_size=30), st.from_regex(r"[a.*>$12{}()w=]{0,20}=>[a.*>$12{}()w =]{0,20}", fullmatch=True)))
def test_any_text_is_a_map_or_a_usage_error(text: str) -> None:
    try:
        one = SubjectMap.parse(text)
    except UsageError:
        return
    assert SubjectMap.parse(str(one)) == one
    for subject in UNIVERSE[:20]:
        assert (one.map(subject) is None) == (not by_the_rule(one.source, subject))
