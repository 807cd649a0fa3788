"""Pages are markup in which text stays text, and which loads and runs nothing; charts are drawn in their view box."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from functools import cache
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from jsbackup.html.page import STYLE, environment
from tests.cli.pages import check_geometry, parsed, text_of

VALUES = st.integers(0, 100) | st.integers(0, (1 << 63) - 1)
PAGES = environment()
USED = '{% from "elements.html" import bar, columns, spark, state, table, tiles %}'


compiled = cache(PAGES.from_string)


def element(template: str, **values: object) -> ElementTree.Element:
    return ElementTree.fromstring(compiled(USED + template).render(values).strip())


def page(body: str, **values: object) -> bytes:
    blocks = '{% extends "page.html" %}{% block title %}{{ title }}{% endblock %}{% block body %}'
    return compiled(f"{blocks}{body}{{% endblock %}}").render(values).encode()


@given(st.text())
def test_any_text_comes_back_as_text(value: str) -> None:
    """Or as its escape, where it is invisible."""
    made = parsed(page('<p title="{{ title }}">{{ title }}</p>', title=value))
    (title,), (paragraph,) = made.iter("title"), made.iter("p")
    assert text_of(title) == text_of(paragraph) == paragraph.attrib.get("title", "")
    assert list(paragraph) == [] and text_of(title).isprintable()
    if value.isprintable():
        assert text_of(title) == value


@given(st.text(max_size=60))
def test_text_in_an_element_is_never_markup(value: str) -> None:
    made = element(
        """<div>{{ state(it, it) }}{{ tiles([(it, it, it, it)]) }}{{ spark(it, [1, 2]) }}
        {% call table(it, [it, ">" ~ it]) %}<tr><td>{{ it }}</td><td>{{ it|clip(20) }}</td></tr>{% endcall %}</div>""",
        it=value,
    )
    tags = {"div", "span", "dl", "dt", "dd", "svg", "polyline"}
    assert {one.tag for one in made.iter()} <= tags | {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    known = {"class", "tabindex", "role", "aria-label", "scope", "data-label", "viewBox", "points"}
    assert {name for one in made.iter() for name in one.attrib} <= known


def test_characters_that_are_not_seen_are_shown_and_long_texts_are_clipped() -> None:
    shown = text_of(element("<p>{{ it }}</p>", it="a\u202eb\x1b[31m\ud800"))
    assert shown == "a\\u202eb\\x1b[31m\\ud800"
    assert text_of(element("<p>{{ it|clip }}</p>", it="x" * 10_000)) == "x" * 119 + "…"
    with pytest.raises(UndefinedError):
        PAGES.from_string("{{ nothing }}").render()


def test_the_policy_of_a_page_allows_its_own_style_and_nothing_else() -> None:
    made = page("<p>body</p>", title="A <title>").decode()
    policy = parsed(made.encode()).find("head/meta[@http-equiv='Content-Security-Policy']")
    assert policy is not None
    (style,) = re.findall(r"<style>(.*?)</style>", made, re.DOTALL)
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert style == STYLE and policy.attrib["content"] == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert "<script" not in made and parsed(made.encode()).findtext("head/title") == "A <title>"


def test_each_cell_of_a_table_has_the_header_of_its_column() -> None:
    made = element(
        """{% call table("Streams", ["NAME", ">BYTES"]) %}
        {% for name in names %}<tr><td>{{ name }}</td><td class="number">5</td></tr>{% endfor %}{% endcall %}""",
        names=["<S>", "<td>"],
    )
    heads, cells = made.findall(".//th"), made.findall(".//td")
    assert [(head.get("class"), head.text) for head in heads] == [(None, "NAME"), ("number", "BYTES")]
    assert [(one.get("data-label"), one.text) for one in cells] == [
        ("NAME", "<S>"),
        ("BYTES", "5"),
        ("NAME", "<td>"),
        ("BYTES", "5"),
    ]
    assert (made.get("tabindex"), made.get("role"), made.get("aria-label")) == ("0", "region", "Streams")


def test_tiles_have_their_state_as_a_class() -> None:
    row = element("{{ tiles(them) }}", them=[("Age", "2 h", "allowed: 1 h", "bad"), ("Size", "5 MiB", "", "")])
    assert [str(one.get("class")).split() for one in row] == [["tile", "bad"], ["tile"]]
    assert [child.text for child in row[0]] == ["Age", "2 h", "allowed: 1 h"]


@given(st.lists(st.tuples(st.integers(0, 200), VALUES), min_size=1), st.integers(1, 10**15))
def test_columns_are_as_high_as_their_values(values: list[tuple[int, int]], width: int) -> None:
    by_slot = dict(sorted(values))
    bins = [{"start_ns": slot * width, "bytes": value} for slot, value in by_slot.items()]
    svg = element('{{ columns("about <it>", bins, width, "bytes") }}', bins=bins, width=width)
    check_geometry(svg)
    assert svg.attrib["aria-label"].startswith("about <it>. Most from ")
    drawn = [float(group[2].attrib["height"]) for group in svg.iter("g")]  # a title, what is hit, the column
    shown = [value for value in by_slot.values() if value]
    assert len(drawn) == len(shown) and all(1 <= height <= 148 for height in drawn)
    in_order = [height for _, height in sorted(zip(shown, drawn, strict=True))]
    assert in_order == sorted(in_order)


@given(st.lists(VALUES, min_size=2, max_size=60))
def test_a_small_line_goes_through_its_values(values: list[int]) -> None:
    svg = element('{{ spark("about", values) }}', values=values)
    check_geometry(svg)
    points = [tuple(map(float, point.split(","))) for point in svg[0].attrib["points"].split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points) and len(points) == len(values)
    in_order = [-y for _, (_, y) in sorted(zip(values, points, strict=True))]
    assert in_order == sorted(in_order)


@given(VALUES, VALUES)
def test_bars_fit_their_cell(one: int, other: int) -> None:
    check_geometry(element("{{ bar(value, most) }}", value=min(one, other), most=max(one, other)))
