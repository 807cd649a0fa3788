from __future__ import annotations

import json
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.formats.json_text import MAX_TEXT_DEPTH, canonical, decode_text, find_spans, splice
from jsbackup.formats.mask_rules import Step, StepKind
from jsbackup.transforms.json_path import parse_path

names = st.sampled_from(["a", "b", "c d", "é", 'q"\\', ""])
numbers = st.sampled_from(
    ["0", "-0", "1", "1.0", "10e-1", "1E5", "-12.50", "9007199254740993", "1" * 5000, "1e999999999"]
)
strings = st.sampled_from(['""', '"x"', '"\\u0078"', '"\\ud800"', '"é"', '"\\n"', '"{"', '"[[["'])
scalars = st.one_of(numbers, strings, st.sampled_from(["true", "false", "null", "NaN", "-Infinity"]))
space = st.sampled_from(["", " ", "\n\t"])


@st.composite
def quoted(draw: st.DrawFn, text: str) -> str:
    """A name as it may be written."""
    if draw(st.booleans()):
        return json.dumps(text, ensure_ascii=draw(st.booleans()))
    return '"' + "".join(f"\\u{ord(character):04x}" for character in text) + '"'


class Node:
    """A value as it is written, and what is within."""

    def __init__(self, text: str, members: list[tuple[str, Node]] | None = None, elements: list[Node] | None = None):
        self.text, self.members, self.elements = text, members or [], elements or []


@st.composite
def documents(draw: st.DrawFn, depth: int = 3) -> Node:
    kind = draw(st.sampled_from(["scalar", "object", "array"])) if depth else "scalar"
    if kind == "scalar":
        return Node(draw(scalars))
    inner = draw(st.lists(st.tuples(names, documents(depth - 1)), max_size=3))
    if kind == "array":
        parts = [draw(space) + node.text + draw(space) for _, node in inner]
        return Node(
            "[" + draw(space if not parts else st.just("")) + ",".join(parts) + "]", elements=[n for _, n in inner]
        )
    parts = [
        draw(space) + draw(quoted(name)) + draw(space) + ":" + draw(space) + node.text + draw(space)
        for name, node in inner
    ]
    return Node("{" + ",".join(parts) + "}", members=inner)


steps = st.one_of(
    st.builds(Step, st.sampled_from([StepKind.MEMBER, StepKind.ANYWHERE]), names),
    st.builds(Step, st.just(StepKind.ELEMENT), index=st.integers(0, 2)),
    st.just(Step(StepKind.EVERY)),
)
paths = st.lists(steps, max_size=3).map(lambda s: tuple(s))


def meant(node: Node, path: tuple[Step, ...]) -> set[int]:
    """The nodes that a path means, by the rule and step by step; as their identities."""
    at = [node]
    for step in path:
        below: list[Node] = []
        for one in at:
            if step.kind is StepKind.ANYWHERE:
                pool = [one]
                for other in pool:
                    pool += [n for _, n in other.members] + other.elements
                below += [n for other in pool for name, n in other.members if name == step.name]
            elif step.kind is StepKind.MEMBER:
                below += [n for name, n in one.members if name == step.name]
            elif step.kind is StepKind.ELEMENT:
                below += one.elements[step.index : step.index + 1]
            else:
                below += [n for _, n in one.members] + one.elements
        at = below
    return {id(n) for n in at}


def exchanged(node: Node, wanted: set[int]) -> Any:
    """The document with every meant node, and all within, read as None."""
    if id(node) in wanted:
        return "MASKED"
    if node.text[0] == "{":
        return [[name, exchanged(inner, wanted)] for name, inner in node.members]
    if node.text[0] == "[":
        return {"elements": [exchanged(inner, wanted) for inner in node.elements]}
    return node.text


def read(text: str) -> Any:
    """A text in the form of `exchanged`, by the library and with numbers as they are written."""

    def shape(value: Any) -> Any:
        if isinstance(value, Pairs):
            return [[name, shape(inner)] for name, inner in value]
        if isinstance(value, list):
            return {"elements": [shape(inner) for inner in value]}
        if isinstance(value, Text):
            return str(value)
        return value if value == "MASKED" else json.dumps(value)

    class Text(str):
        pass

    class Pairs(list[Any]):
        pass

    return shape(json.loads(text, parse_int=Text, parse_float=Text, parse_constant=Text, object_pairs_hook=Pairs))


def plain(value: Any) -> Any:
    """Strings of the document as the library writes them."""
    if isinstance(value, list):
        return [[name, plain(inner)] for name, inner in value]
    if isinstance(value, dict):
        return {"elements": [plain(inner) for inner in value["elements"]]}
    return json.dumps(json.loads(value)) if value.startswith('"') else value


@settings(deadline=None, max_examples=200)
@given(documents(), paths)
def test_what_a_path_means_is_exchanged_and_nothing_else(document: Node, path: tuple[Step, ...]) -> None:
    text = decode_text(f" {document.text}\n".encode())
    spans = find_spans(text, path)
    assert all(one[1] <= other[0] for one, other in pairwise(spans))
    after = splice(text, spans, ['"MASKED"'] * len(spans))
    assert read(after) == plain(exchanged(document, meant(document, path)))
    kept, at = [], 0
    for start, stop in spans:
        kept.append(text[at:start])
        at = stop
    assert after == '"MASKED"'.join([*kept, text[at:]])


@pytest.mark.parametrize(
    "text",
    [
        *["", " ", "{", "}", "[", "[1", "[1,", "[1,]", "[1 2]", "{,}", '{"a"}', '{"a":}', '{"a":1,}', '{"a":1 "b":2}'],
        *["{a:1}", "{'a':1}", "{1:2}", "01", "1 2", '"a', '"\\x"', '"\n"', "nul", "-", "1.", ".5", "+1", "[1]]"],
        *["\ufeff{}", "{}{}", "// x\n1"],
    ],
)
@pytest.mark.parametrize("path", ["$", "$.a", "$..b", "$[*]", "$[7].x"])
def test_what_is_not_json_is_a_format_error_whatever_is_looked_for(text: str, path: str) -> None:
    with pytest.raises(FormatError):
        find_spans(decode_text(text.encode()), parse_path(path))


def test_every_cut_of_a_text_is_refused() -> None:
    text = '{"a": [1, {"b": "x\\n", "c": null}], "d": true}'
    assert len(find_spans(text, parse_path("$..b"))) == 1
    for at in range(len(text)):
        for path in ("$..b", "$.d", "$.a[1]", "$"):
            with pytest.raises(FormatError):
                find_spans(text[:at], parse_path(path))


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
def test_deep_nesting_is_refused_before_anything_goes_down_it(opening: str) -> None:
    closing = {"[": "]", '{"a":': "}", '[{"a":': "}]"}[opening]
    levels = MAX_TEXT_DEPTH // len(closing)
    deepest = opening * levels + "1" + closing * levels
    assert find_spans(decode_text(deepest.encode()), parse_path("$..b")) == []
    assert canonical(deepest) == deepest
    for text in (opening * (levels + 1) + "1" + closing * (levels + 1), opening * 1_000_000):
        with pytest.raises(FormatError, match="nested deeper"):
            decode_text(text.encode())


def test_brackets_in_strings_are_not_depth() -> None:
    text = json.dumps(["[" * 1000, '\\"{' * 1000])
    assert decode_text(text.encode()) == text
    wide = "[" + "[]," * 1000 + "1]"
    assert len(find_spans(decode_text(wide.encode()), parse_path("$[*]"))) == 1001


def test_other_encodings_are_refused() -> None:
    for data in ('{"a":1}'.encode("utf-16"), b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}'):
        with pytest.raises(FormatError):
            find_spans(decode_text(data), parse_path("$.a"))


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("1.0", "1"),
        ("10e-1", "1"),
        ("100", "100"),
        ("1E2", "100"),
        ("-0.0", "0"),
        ("0e5", "0"),
        ("0.5", "0.5"),
        ("-12.50", "-12.5"),
        ("0.00120", "0.0012"),
        ("9007199254740993", "9007199254740993"),
        ("1e999999999", "1e999999999"),
        ("10e999999998", "1e999999999"),
        ("1e9999999999999999999999", "1e9999999999999999999999"),
        ("NaN", "NaN"),
        ("true", "true"),
        ('"\\u00e9\\n\\/"', '"é\\n/"'),
        ('{ "b" : [1.0, {}], "a":null }', '{"a":null,"b":[1,{}]}'),
        ('{"a":2,"a":1}', '{"a":2,"a":1}'),
    ],
)
def test_equal_values_have_one_form(text: str, form: str) -> None:
    assert canonical(text) == form


@settings(deadline=None)
@given(documents())
def test_the_one_form_is_json_of_the_same_value_and_its_own_form(document: Node) -> None:
    form = canonical(document.text)
    assert canonical(form) == form
    find_spans(form, parse_path("$"))


@settings(deadline=None)
@given(st.integers(-(10**60), 10**60).filter(bool), st.integers(0, 12))
def test_numbers_keep_what_they_are_worth(digits: int, shift: int) -> None:
    text = f"{digits}e-{shift}"
    assert Fraction(canonical(text)) == Fraction(digits, 10**shift)
    assert canonical(f"{digits}00e-{shift + 2}") == canonical(text)
