"""Statistics to draw, and what a page is made of."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from xml.etree import ElementTree

from jsbackup.pipeline.queries.stats import LargeMessage, SizeClass, Sizes, StreamStats, SubjectStats, TimeBin
from jsbackup.repository.read.growth import GrowthPoint

Element = ElementTree.Element

SECOND = 10**9
START = 1_794_999_600 * SECOND  # 2026-11-18T11:00:00Z
CREATED = "2026-11-21T01:45:00Z"
BACKUP = "20261121T014500Z-000001"

HOSTILE = (
    "</script><img/src=x/onerror=console.error('ran')>",
    "'\"><svg/onload=console.error('ran')>",
    "</title></style><script>console.error('ran')</script>",
    "javascript:console.error('ran')",
    "]]><!--&lt;b&gt;&#60;",
    "\x00\x08\x1b[31m\u202egnp.exe\ud800\n",
    "x" * 5000,
)


def some_stats(stream: str, subjects: tuple[str, ...] = ("orders.new", "orders.old"), *, days: int = 5) -> StreamStats:
    """A stream of 100 hours, with a gap, that grew over `days` backups."""
    hours = [hour for hour in range(100) if not 30 <= hour < 40]
    buckets = tuple(TimeBin(START + 3600 * SECOND * hour, 10 + hour % 24, 5000 * (1 + hour % 24)) for hour in hours)
    messages, size = sum(one.messages for one in buckets), sum(one.bytes for one in buckets)
    sizes = Sizes(300, 900, 4000, 70_000)
    return StreamStats(
        stream=stream,
        messages=messages,
        bytes=size,
        oldest_ns=buckets[0].start_ns,
        newest_ns=buckets[-1].start_ns + 5,
        sizes=sizes,
        subject_count=len(subjects) + 3,
        subjects=tuple(
            SubjectStats(name, 90 - number, 9000 - 800 * number, START, START + number)
            for number, name in enumerate(subjects)
        ),
        duplicates=None,
        bucket_ns=3600 * SECOND,
        buckets=buckets,
        classes=(SizeClass(128, 700, 100_000), SizeClass(512, 90, 60_000), SizeClass(65536, 1, 70_000)),
        largest=tuple(LargeMessage(70_000 - n, 7 + n, START + n, name) for n, name in enumerate(subjects[:5])),
        growth=tuple(
            GrowthPoint(
                f"202611{17 + day}T014500Z-00000{day}", f"2026-11-{17 + day}T01:45:00Z", 100 * day, 9000 * day, 400
            )
            for day in range(days)
        ),
    )


def bare_stats(stream: str) -> StreamStats:
    """A stream without messages."""
    return replace(some_stats(stream, (), days=1), messages=0, bytes=0, subject_count=0, buckets=(), classes=())


def parsed(page: bytes) -> Element:
    """A page as XML, which it is too; nothing in it is expanded or fetched."""
    start = b"<!doctype html>\n"
    assert page.startswith(start)
    return ElementTree.fromstring(page.removeprefix(start))


def text_of(element: Element) -> str:
    return "".join(element.itertext())


def check_geometry(svg: Element) -> None:
    """All of a drawing is numbers, and inside its view box."""
    _, _, wide, high = map(float, svg.attrib["viewBox"].split())
    assert (wide, high) in ((480, 200), (100, 10), (240, 48))
    for element in svg.iter():
        for x, y in _corners(element):
            assert math.isfinite(x) and math.isfinite(y)
            assert -0.01 <= x <= wide + 0.01 and -0.01 <= y <= high + 0.01


def _corners(element: Element) -> Iterator[tuple[float, float]]:
    found = element.attrib
    number = {name: float(value) for name, value in found.items() if re.fullmatch(r"[xy][12]?|width|height", name)}
    if element.tag == "rect":
        assert number["width"] >= 0 and number["height"] >= 0
        yield number["x"], number["y"]
        yield number["x"] + number["width"], number["y"] + number["height"]
    elif element.tag == "line":
        yield number["x1"], number["y1"]
        yield number["x2"], number["y2"]
    elif element.tag == "text":
        wide = 8 * len(text_of(element))
        yield number["x"], number["y"]
        yield number["x"] + (wide if found["text-anchor"] == "start" else -wide), number["y"]
    elif element.tag == "polyline":
        for x, y in re.findall(r"([^ ,]+),([^ ,]+)", found["points"]):
            yield float(x), float(y)
