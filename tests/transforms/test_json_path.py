from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import UsageError
from jsbackup.transforms.json_path import Step, StepKind, parse_path

MEMBER, ELEMENT, EVERY, ANYWHERE = StepKind.MEMBER, StepKind.ELEMENT, StepKind.EVERY, StepKind.ANYWHERE


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("$", ()),
        ("$.a.b", (Step(MEMBER, "a"), Step(MEMBER, "b"))),
        ("$.first-name", (Step(MEMBER, "first-name"),)),
        ("$.straße", (Step(MEMBER, "straße"),)),
        ("$.a[*].b", (Step(MEMBER, "a"), Step(EVERY), Step(MEMBER, "b"))),
        ("$.*", (Step(EVERY),)),
        ("$[0][12]", (Step(ELEMENT, index=0), Step(ELEMENT, index=12))),
        ("$..x", (Step(ANYWHERE, "x"),)),
        ("$.a..['b c'].d", (Step(MEMBER, "a"), Step(ANYWHERE, "b c"), Step(MEMBER, "d"))),
        ("$['a b']", (Step(MEMBER, "a b"),)),
        ('$["a\'b"]', (Step(MEMBER, "a'b"),)),
        (r"$['a\'b\\c']", (Step(MEMBER, r"a'b\c"),)),
        ("$['']", (Step(MEMBER, ""),)),
        ("$['a].b']", (Step(MEMBER, "a].b"),)),
    ],
)
def test_paths_are_understood(text: str, steps: tuple[Step, ...]) -> None:
    assert parse_path(text) == steps


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a JSON path"),
        ("a.b", "not a JSON path"),
        ("$a", "not supported"),
        ("$.", "not supported"),
        ("$..", "not supported"),
        ("$...a", "not supported"),
        ("$.a[?(@.x)]", "not supported"),
        ("$.a[?@.x]", "not supported"),
        ("$[1:2]", "not supported"),
        ("$[:-1]", "not supported"),
        ("$[-1]", "not supported"),
        ("$['a','b']", "not supported"),
        ("$[0,1]", "not supported"),
        ("$..*", "not supported"),
        ("$..[*]", "not supported"),
        ("$..[0]", "not supported"),
        ("$[(@.length-1)]", "not supported"),
        ("$[01]", "not supported"),
        ("$[9999999999]", "not supported"),
        (r"$['\u0041']", "not supported"),
        ("$['a'", "not supported"),
        ("$.a b", "not supported"),
        ("$" + ".a" * 65, "not supported"),
    ],
)
def test_what_is_not_supported_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace(".", r"\.")):
        parse_path(text)


@settings(deadline=None)
@given(st.one_of(st.text(max_size=30), st.from_regex(r"\$[.\[\]'\"*a0,:?@\\() -]{0,20}", fullmatch=True)))
def test_any_text_is_a_path_or_a_usage_error(text: str) -> None:
    try:
        path = parse_path(text)
    except UsageError:
        return
    assert len(path) <= 64
