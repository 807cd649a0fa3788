"""The page of `stats`: complete, well-formed, and of hostile names nothing but text."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.cli.output.html_pages import stats_page
from jsbackup.pipeline.queries.stats import TimeBin
from tests.cli.pages import (
    BACKUP,
    CREATED,
    HOSTILE,
    SECOND,
    Element,
    bare_stats,
    check_geometry,
    parsed,
    some_stats,
    text_of,
)

ALLOWED = {"html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "h3", "p", "a", "section", "div"}
ALLOWED |= {"figure", "figcaption", "table", "caption", "thead", "tbody", "tr", "th", "td"}
ALLOWED |= {"dl", "dt", "dd"}
ALLOWED |= {"svg", "g", "rect", "line", "polyline", "text"}


def _tables(page: Element) -> dict[str, list[list[str]]]:
    """The rows of each table, by its caption; of equal ones the last."""
    return {
        text_of(table.find("caption") or table[0]): [[text_of(cell) for cell in row] for row in table.iter("tr")]
        for table in page.iter("table")
    }


def test_the_page_tells_what_was_found() -> None:
    page = parsed(stats_page(BACKUP, CREATED, [some_stats("ORDERS"), bare_stats("EMPTY")]))
    told = " ".join(text_of(page).split())
    assert f"Backup {BACKUP}" in told and "90 % up to 900 B" in told and "no messages" in told
    assert next(text_of(tile) for tile in page.iter("dd") if tile.get("class") == "value") == "2"
    tables = _tables(page)
    assert [row[0] for row in tables["Streams, the largest first"]] == ["Stream", "ORDERS", "EMPTY"]
    assert tables["Largest subjects, 2 of 5"][1][:3] == ["orders.new", "90", "8.79 KiB"]
    assert tables["Largest messages"][1] == ["7", "orders.new", "68.4 KiB", "2026-11-18 11:00:00 Z"]
    assert tables["Messages by size"][1:] == [
        ["128 B to 256 B", "700", "", "97.7 KiB"],
        ["512 B to 1.00 KiB", "90", "", "58.6 KiB"],
        ["64.0 KiB to 128 KiB", "1", "", "68.4 KiB"],
    ]
    assert [row[1] for row in tables["Backups of the stream"]] == ["Messages", "0", "100", "200", "300", "400"]
    assert [text_of(title) for title in page.iter("h3")] == ["Messages per h", "Bytes per h"]


def test_each_chart_has_words_and_each_table_a_caption() -> None:
    page = parsed(stats_page(BACKUP, CREATED, [some_stats("ORDERS")]))
    charts = [svg for svg in page.iter("svg") if svg.attrib.get("role") == "img"]
    assert len(charts) == 3 and all(len(svg.attrib["aria-label"]) > 20 for svg in charts)
    assert charts[0].attrib["aria-label"].endswith("Most from 2026-11-19 10:00:00 Z: 33 messages.")
    for svg in page.iter("svg"):
        check_geometry(svg)
    gaps = list(charts[0].iter("g"))
    assert len(gaps) == 90 and "2026-11-18 11:00:00 Z: 10 messages" in text_of(gaps[0])
    for table in page.iter("table"):
        assert table.find("caption") is not None and all(head.attrib["scope"] == "col" for head in table.iter("th"))
    ids = [one.attrib["id"] for one in page.iter("h2")]
    links = [one.attrib["href"].removeprefix("#") for one in page.iter("a")]
    assert ids == links == ["stream-1"]


def test_hostile_names_are_text() -> None:
    found = [some_stats(name, HOSTILE) for name in HOSTILE]
    data = stats_page(BACKUP, CREATED, found)
    page = parsed(data)
    assert {found.tag for found in page.iter()} <= ALLOWED
    names = {name for found in page.iter() for name in found.attrib}
    assert not [name for name in names if name.startswith("on") or name in ("src", "style", "xlink:href")]
    assert {found.attrib["href"] for found in page.iter("a")} == {f"#stream-{n + 1}" for n in range(len(HOSTILE))}
    told = text_of(page)
    assert HOSTILE[0] in told and HOSTILE[4] in told and "\\x1b[31m\\u202egnp.exe\\ud800\\x0a" in told
    assert "x" * 119 + "…" in told and "x" * 121 not in told
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", data.decode())
    assert b"http" not in data.replace(b"http-equiv", b"")


@pytest.mark.slow
def test_many_streams_make_a_page_of_bounded_size() -> None:
    found = [replace(some_stats(f"S{number}"), bytes=number) for number in range(1100)]
    data = stats_page(BACKUP, CREATED, found)
    page = parsed(data)
    assert len(_tables(page)["Streams, the largest first"]) == 1001 and len(data) < 4 << 20
    assert [text_of(title) for title in page.iter("h2")] == [f"S{number}" for number in range(1099, 1049, -1)]
    assert "Only the 1,000 largest of 1,100 streams are listed." in text_of(page)
    assert "Details follow for 50 of them" in text_of(page)


@pytest.mark.parametrize("found", [[], [bare_stats("A")]], ids=["none", "empty"])
def test_nothing_makes_a_page_too(found: list[Any]) -> None:
    page = parsed(stats_page(BACKUP, CREATED, found))
    assert f"Streams{len(found)}" in text_of(page) and not list(page.iter("figure"))


@given(st.lists(st.tuples(st.integers(-58, 58), st.integers(1, 1 << 62), st.integers(1, 1 << 62)), min_size=1))
def test_any_buckets_can_be_drawn(drawn: list[tuple[int, int, int]]) -> None:
    width = 3650 * 86_400 * SECOND
    buckets = {number: TimeBin(number // 2 * width, messages, size) for number, messages, size in drawn}
    by_start = {bucket.start_ns: bucket for bucket in buckets.values()}
    ordered = tuple(bucket for _, bucket in sorted(by_start.items()))
    stats = some_stats("S")
    for svg in parsed(stats_page(BACKUP, CREATED, [replace(stats, bucket_ns=width, buckets=ordered)])).iter("svg"):
        check_geometry(svg)
