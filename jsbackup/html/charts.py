"""SVG charts for a page (`page.py`), which has the colours: columns over time or classes, lines, bars in tables,
calendars.

Values are counts or bytes and never negative. Each chart has a text alternative, and the page has a table of the same
numbers beside it. The view box is narrow enough for text to be readable on a phone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from jsbackup.html.page import Markup, element, join

__all__ = [
    "CALENDAR_HEIGHT",
    "CALENDAR_WEEKS",
    "HEIGHT",
    "WIDTH",
    "ChartLine",
    "ChartScale",
    "Day",
    "Slot",
    "bar",
    "calendar",
    "columns",
    "legend",
    "lines",
    "spark",
    "ticks",
]

WIDTH, HEIGHT = 480, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 68, 472, 12, 172
_CHARACTER = 10  # about as wide as one of the axis is on a phone, where the style makes them larger
_CLASSES = ("one", "two")

CALENDAR_WEEKS = 53
_CELL = 9  # with a gap of one; 53 of them are as wide as the other charts
_MONTH_HEIGHT = 14
CALENDAR_HEIGHT = _MONTH_HEIGHT + 7 * _CELL

_SPARK_WIDTH, _SPARK_HEIGHT = 240, 48

_UNITS = {1000: ("", " k", " M", " G", " T", " P", " E"), 1024: (" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB")}
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_GAPS = 4


class ChartScale(IntEnum):
    """The units of an axis: thousands, or powers of 1024 for bytes."""

    COUNT = 1000
    BYTES = 1024


@dataclass(frozen=True, slots=True)
class Slot:
    """A column and its text; `mark` is below it on the axis, if there is room."""

    value: int
    tip: str
    mark: str = ""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """Values at the moments of a chart, one each, and their texts."""

    name: str
    values: Sequence[int]
    tips: Sequence[str]


@dataclass(frozen=True, slots=True)
class Day:
    """A day of a calendar. `class_` is one of the style's: `one`, `two`, `none` for nothing. `mark` names a month."""

    weekday: int  # 0 is Monday
    class_: str
    tip: str
    mark: str = ""


def columns(about: str, slots: Sequence[Slot], scale: ChartScale) -> Markup:
    """Draw columns of the same width side by side; those of 0 are left out."""
    top, axis = _value_axis(max((slot.value for slot in slots), default=0), scale)
    wide = (_RIGHT - _LEFT) / max(1, len(slots))
    # Gaps are a fifth of a column, and omitted if they would not be visible.
    gap = wide / 5 if wide >= 3 else 0.0
    drawn, marks = [], []
    for number, slot in enumerate(slots):
        left = _LEFT + number * wide
        if slot.mark:
            marks.append(_mark(left + wide / 2, slot.mark))
        if not slot.value:
            continue
        high = max(1.0, _height(slot.value, top))
        drawn.append(
            element(
                "g",
                element("title", slot.tip),
                element("rect", class_="hit", x=left, y=_TOP, width=wide, height=_BOTTOM - _TOP),
                element("rect", class_="one", x=left + gap / 2, y=_BOTTOM - high, width=wide - gap, height=high),
            )
        )
    return _chart(about, axis, *drawn, *marks)


def lines(
    about: str, moments: Sequence[int], marks: Sequence[str], given: Sequence[ChartLine], *, scale: ChartScale
) -> Markup:
    """Draw up to two lines through values at `moments`, in ascending order; `marks` are those of the first and the
    last.
    """
    top, axis = _value_axis(max((value for line in given for value in line.values), default=0), scale)
    span = moments[-1] - moments[0] if moments else 0
    places = [_LEFT + 6 + (_RIGHT - _LEFT - 12) * ((moment - moments[0]) / span if span else 0.5) for moment in moments]
    drawn = []
    for class_, line in zip(_CLASSES, given, strict=False):
        points = [(x, _BOTTOM - _height(value, top)) for x, value in zip(places, line.values, strict=True)]
        path = " ".join(f"{'L' if index else 'M'}{x:.2f} {y:.2f}" for index, (x, y) in enumerate(points))
        drawn.append(element("path", class_=class_, d=path))
        for (x, y), tip in zip(points, line.tips, strict=True):
            drawn.append(element("g", element("title", tip), element("circle", class_=class_, cx=x, cy=y, r=3)))
    ends = [_mark(places[index], mark) for index, mark in zip((0, -1), marks, strict=False)] if places else []
    return _chart(about, axis, *drawn, *(ends if span else ends[:1]))


def calendar(about: str, days: Sequence[Day]) -> Markup:
    """Draw weeks side by side, Monday at the top, for consecutive days of at most `CALENDAR_WEEKS` weeks."""
    first = days[0].weekday if days else 0
    drawn = []
    for number, day in enumerate(days, first):
        x, y = number // 7 * _CELL + 1, number % 7 * _CELL + _MONTH_HEIGHT
        cell = element("rect", class_=day.class_, x=x, y=y, width=_CELL - 1, height=_CELL - 1)
        drawn.append(element("g", element("title", day.tip), cell))
        if day.mark and x + _CELL * 3 < WIDTH:
            drawn.append(element("text", day.mark, x=x, y=_MONTH_HEIGHT - 4, text_anchor="start", class_="small"))
    return element("svg", *drawn, viewBox=f"0 0 {WIDTH} {CALENDAR_HEIGHT}", role="img", aria_label=about)


def legend(given: Sequence[ChartLine]) -> Markup:
    """Return the legend."""
    parts = [
        join(_svg(element("path", class_=class_, d="M0 4H24"), width=24, height=8, class_="legend"), line.name, " ")
        for class_, line in zip(_CLASSES, given, strict=False)
    ]
    return element("p", *parts, class_="quiet")


def bar(value: int, most: int) -> Markup:
    """Return a bar for a cell of a table that contains the value too."""
    wide = 100 * value / most if most else 0.0
    return _svg(element("rect", class_="one", x=0, y=2, width=wide, height=6), width=100, height=10, stretched=True)


def spark(about: str, values: Sequence[int]) -> Markup:
    """Draw a small line through values, from left to right, that fills a cell or tile; nothing for less than two."""
    if len(values) < 2:
        return Markup("")
    top = max(*values, 1)
    step = (_SPARK_WIDTH - 6) / (len(values) - 1)
    points = [
        (3 + number * step, _SPARK_HEIGHT - 3 - (_SPARK_HEIGHT - 6) * value / top)
        for number, value in enumerate(values)
    ]
    path = " ".join(f"{'L' if index else 'M'}{x:.2f} {y:.2f}" for index, (x, y) in enumerate(points))
    last = element("circle", class_="one", cx=points[-1][0], cy=float(points[-1][1]), r=2.5)
    area = f"{path} L{points[-1][0]:.2f} {_SPARK_HEIGHT - 1} L{points[0][0]:.2f} {_SPARK_HEIGHT - 1}"
    drawn = join(element("path", class_="area", d=area), element("path", class_="one", d=path))
    view = f"0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}"
    return element("svg", drawn, last, class_="spark", viewBox=view, role="img", aria_label=about)


def ticks(most: int, scale: ChartScale) -> list[tuple[int, str]]:
    """Return round values from 0 to the first that is not below `most`, at least 1, with their texts."""
    power = 0
    while _STEPS[-1] * _GAPS * scale**power < most:
        power += 1
    step = next(step for step in _STEPS if step * _GAPS * scale**power >= most) * scale**power
    count = max(1, -(-most // step))
    return [(number * step, _written(number * step, step, scale)) for number in range(count + 1)]


def _written(value: int, step: int, scale: ChartScale) -> str:
    if not value:
        return "0"
    units = _UNITS[scale]
    # `1.5 M` is exact, and `1.46 MiB` would not be.
    unit, measured = 0, value if scale is ChartScale.COUNT else step
    while unit + 1 < len(units) and measured >= scale ** (unit + 1):
        unit += 1
    return f"{value / scale**unit:,.10g}{units[unit]}"


def _value_axis(most: int, scale: ChartScale) -> tuple[int, Markup]:
    """Return the value at the top, and horizontal lines with their values."""
    marks = ticks(most, scale)
    top = marks[-1][0]
    drawn = []
    for value, written in marks:
        y = _BOTTOM - _height(value, top)
        drawn.append(element("line", class_="rule", x1=_LEFT, y1=y, x2=_RIGHT, y2=y))
        drawn.append(element("text", written, x=_LEFT - 6, y=y + 4, text_anchor="end"))
    return top, join(*drawn)


def _height(value: int, top: int) -> float:
    return (_BOTTOM - _TOP) * (value / top)


def _mark(x: float, written: str) -> Markup:
    half = _CHARACTER * len(written) / 2
    inside = max(half, min(WIDTH - half, x))
    return element("text", written, x=float(inside), y=_BOTTOM + 18, text_anchor="middle")


def _chart(about: str, *drawn: str) -> Markup:
    return element("svg", *drawn, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=about)


def _svg(*drawn: str, width: int, height: int, class_: str = "bar", stretched: bool = False) -> Markup:
    kept = "none" if stretched else "xMidYMid"
    view = f"0 0 {width} {height}"
    return element("svg", *drawn, class_=class_, viewBox=view, preserveAspectRatio=kept, aria_hidden="true")
