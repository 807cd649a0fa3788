from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import UsageError
from jsbackup.transforms.json_path import JsonPath, Step, StepKind

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
    assert JsonPath.parse(text) == JsonPath(text, steps)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a JSON path"),
        ("a.b", "not a JSON path"),
        ("$a", "not understood"),
        ("$.", "not understood"),
        ("$..", "not understood"),
        ("$...a", "not understood"),
        ("$.a[?(@.x)]", "a filter"),
        ("$.a[?@.x]", "a filter"),
        ("$[1:2]", "a slice"),
        ("$[:-1]", "a slice"),
        ("$[-1]", "an index from the end"),
        ("$['a','b']", "a union"),
        ("$[0,1]", "a union"),
        ("$..*", "'..' with anything but a name"),
        ("$..[*]", "'..' with anything but a name"),
        ("$..[0]", "'..' with anything but a name"),
        ("$[(@.length-1)]", "a script"),
        ("$[01]", "not understood"),
        ("$[9999999999]", "not understood"),
        (r"$['\u0041']", "not understood"),
        ("$['a'", "not understood"),
        ("$.a b", "not understood"),
        ("$" + ".a" * 65, "not understood"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace(".", r"\.")):
        JsonPath.parse(text)


@settings(deadline=None)
@given(st.one_of(st.text(max_size=30), st.from_regex(r"\$[.\[\]'\"*a0,:?@\\() -]{0,20}", fullmatch=True)))
def test_any_text_is_a_path_or_a_usage_error(text: str) -> None:
    try:
        path = JsonPath.parse(text)
    except UsageError:
        return
    assert path.text == text and len(path.steps) <= 64
