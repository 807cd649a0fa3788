"""Charts: whatever the numbers, all is drawn inside the view box and in proportion."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.html.charts import ChartLine, ChartScale, Slot, bar, columns, legend, lines, ticks
from tests.cli.pages import check_geometry, text_of

_VALUES = st.integers(0, 100) | st.integers(0, (1 << 63) - 1)
_SCALES = st.sampled_from(ChartScale)


@given(st.lists(_VALUES, max_size=120), st.text("0123456789-: ", max_size=16), _SCALES)
def test_columns_are_as_high_as_their_values(values: list[int], mark: str, scale: ChartScale) -> None:
    chart = columns("about it", [Slot(value, str(value), mark) for value in values], scale)
    svg = ElementTree.fromstring(chart)
    check_geometry(svg)
    drawn = {
        int(text_of(group[0])): float(group[2].attrib["height"])
        for group in svg.iter("g")  # a title, what is hit, the column
    }
    assert set(drawn) == {value for value in values if value}
    heights = [drawn[value] for value in sorted(drawn)]
    assert heights == sorted(heights) and all(1 <= height <= 160 for height in heights)


@given(st.data(), st.integers(0, 40), _SCALES)
def test_lines_go_through_their_values(data: st.DataObject, count: int, scale: ChartScale) -> None:
    moments = sorted(data.draw(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=count, max_size=count)))
    drawn = [
        ChartLine(name, data.draw(st.lists(_VALUES, min_size=count, max_size=count)), [name] * count)
        for name in ("raw", "stored")
    ]
    svg = ElementTree.fromstring(
        lines("about it", moments, ("first", "last"), drawn, scale=scale) if count else "<svg/>"
    )
    if count:
        check_geometry(svg)
    for class_, line in zip(("one", "two"), drawn, strict=True):
        circles = [circle for circle in svg.iter("circle") if circle.attrib["class"] == class_]
        places = [(float(circle.attrib["cx"]), -float(circle.attrib["cy"])) for circle in circles]
        assert [x for x, _ in places] == sorted(x for x, _ in places)
        in_order = [y for _, (_, y) in sorted(zip(line.values, places, strict=True))]
        assert in_order == sorted(in_order)


def test_a_chart_of_nothing_has_an_axis() -> None:
    for chart in (
        columns("nothing", [], ChartScale.COUNT),
        lines("nothing", [], (), [ChartLine("raw", [], [])], scale=ChartScale.BYTES),
    ):
        svg = ElementTree.fromstring(chart)
        assert svg.attrib["aria-label"] == "nothing"
        assert [text_of(found) for found in svg.iter("text")] in (["0", "1"], ["0", "1 B"])


@given(_VALUES, _SCALES)
def test_an_axis_has_few_round_marks_that_hold_the_value(most: int, scale: ChartScale) -> None:
    values = [value for value, _ in ticks(most, scale)]
    assert values[0] == 0 and values[-1] >= most and 2 <= len(values) <= 5
    assert len({high - low for low, high in pairwise(values)}) == 1
    assert most <= 1 or values[-2] < most
    assert len({written for _, written in ticks(most, scale)}) == len(values)


def test_marks_are_written_in_units() -> None:
    assert [written for _, written in ticks(1800, ChartScale.COUNT)] == ["0", "500", "1 k", "1.5 k", "2 k"]
    assert [written for _, written in ticks(70_000, ChartScale.BYTES)] == ["0", "20 KiB", "40 KiB", "60 KiB", "80 KiB"]
    assert [written for _, written in ticks(1 << 30, ChartScale.BYTES)][-1] == "1,500 MiB"


@given(_VALUES, _VALUES)
def test_bars_fit_their_cell(one: int, other: int) -> None:
    check_geometry(ElementTree.fromstring(bar(min(one, other), max(one, other))))


def test_lines_have_a_key_and_names_are_escaped() -> None:
    told = ElementTree.fromstring(legend([ChartLine("<raw>", [], []), ChartLine("a & b", [], [])]))
    assert text_of(told).split() == ["<raw>", "a", "&", "b"]
