"""Pages are markup in which text stays text, and which loads and runs nothing."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.html.page import STYLE, Markup, clipped, document, element, join, text
from jsbackup.html.page_parts import cell, folded, number_cell, table
from jsbackup.html.tiles import Tile, tile_row


@given(st.text(max_size=60))
def test_text_in_an_element_is_never_markup(found: str) -> None:
    made = element("p", found, title=found)
    parsed = ElementTree.fromstring(made)
    assert list(parsed) == [] and set(parsed.attrib) == {"title"}
    assert "<" not in text(found) and '"' not in text(found)


def test_markup_stays_markup_and_numbers_are_short() -> None:
    inner = element("b", "1 < 2")
    assert element("p", inner) == "<p><b>1 &lt; 2</b></p>"
    assert join("<", inner, Markup("<hr/>")) == "&lt;<b>1 &lt; 2</b><hr/>"
    assert element("rect", x=1.50, y=2.0, stroke_width=3) == '<rect x="1.5" y="2" stroke-width="3"/>'


def test_characters_that_are_not_seen_are_shown_and_long_texts_are_clipped() -> None:
    assert "\u202e" not in text("a\u202eb") and "\x1b" not in text("\x1b[31m")
    assert len(clipped("x" * 10_000)) <= 121


def test_the_policy_of_a_page_allows_its_own_style_and_nothing_else() -> None:
    page = document("A <title>", element("p", "body")).decode()
    (allowed,) = re.findall(r"style-src &#x27;sha256-([^&]*)&#x27;", page) or re.findall(r"sha256-([^'&]*)", page)
    assert allowed == b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    assert page.startswith("<!doctype html>\n") and "<script" not in page and "default-src" in page
    root = ElementTree.fromstring(page.removeprefix("<!doctype html>\n"))
    assert root.findtext("head/title") == "A <title>" and root.findtext("body/main/p") == "body"


def test_each_cell_of_a_table_has_the_header_of_its_column() -> None:
    made = ElementTree.fromstring(table("Streams", ["NAME", ">BYTES"], [[cell("<S>"), number_cell("5")]]))
    heads, cells = made.findall(".//th"), made.findall(".//td")
    assert [head.get("class") for head in heads] == [None, "number"]
    assert [(one.get("data-label"), one.text) for one in cells] == [("NAME", "<S>"), ("BYTES", "5")]
    assert made.get("tabindex") == "0"
    assert ElementTree.fromstring(folded("S", ["A"], [])).tag == "details"


def test_tiles_have_their_state_as_a_class() -> None:
    row = ElementTree.fromstring(tile_row([Tile("Age", "2 h", "allowed: 1 h", "bad"), Tile("Size", "5 MiB")]))
    assert [one.get("class") for one in row] == ["tile bad", "tile"]
    assert [child.text for child in row[0]] == ["Age", "2 h", "allowed: 1 h"]
