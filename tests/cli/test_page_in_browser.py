"""The pages of `stats` and `status` in headless Chromium: drawn, quiet, of hostile names nothing but text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jsbackup.cli.output.html_pages import stats_page, status_page
from jsbackup.html.page import environment
from tests.cli.pages import BACKUP, CREATED, HOSTILE, bare_stats, some_stats
from tests.cli.statuses import some_report
from tests.harness.browser import Browser

pytestmark = pytest.mark.browser

EVIL = (
    "<img src='http://outside.test/a.png' onerror=\"console.error('image')\">"
    "<script>console.error('script')</script><style>body { background: url(http://outside.test/b.png) }</style>"
    "<iframe src='http://outside.test/c'></iframe><link rel='stylesheet' href='http://outside.test/d.css'>"
    "<meta http-equiv='refresh' content='0; url=data:text/html,gone'>"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "stats.html"
    found = [some_stats("ORDERS"), *(some_stats(name, HOSTILE) for name in HOSTILE), bare_stats("EMPTY")]
    path.write_bytes(stats_page(BACKUP, CREATED, found))
    return path


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (360, True)], ids=["desktop", "dark-phone"])
def test_charts_are_drawn_and_nothing_leaves_the_page(browser: Browser, page: Path, width: int, dark: bool) -> None:
    before = browser.connections
    with browser.visit(page, width=width, dark=dark) as visit:
        visit.settle()
        boxes = "map(e => e.getBoundingClientRect()).map(b => [b.width, b.height])"
        charts = visit.evaluate(f"[...document.querySelectorAll('svg[role=img]')].{boxes}")
        assert len(charts) == 3 * (1 + len(HOSTILE)) and all(w > 200 and h > 40 for w, h in charts)
        columns = visit.evaluate(f"[...document.querySelectorAll('svg[role=img] rect.one')].{boxes}")
        assert len(columns) == 180 * (1 + len(HOSTILE)) and all(w > 1 and h >= 0.5 for w, h in columns)
        lines = visit.evaluate(f"[...document.querySelectorAll('svg[role=img] polyline')].{boxes}")
        assert len(lines) == 1 + len(HOSTILE) and all(w > 200 for w, _ in lines)
        painted = visit.evaluate("getComputedStyle(document.querySelector('rect.one')).fill")
        assert painted == ("rgb(110, 168, 254)" if dark else "rgb(37, 99, 201)")
        assert visit.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)"
        )
        texts = visit.evaluate(f"[...document.querySelectorAll('svg text')].{boxes}")
        assert min(h for _, h in texts) > 10
        inside = "b.left >= s.left && b.right <= s.right && b.top >= s.top && b.bottom <= s.bottom"
        pairs = "map(e => [e.getBoundingClientRect(), e.closest('svg').getBoundingClientRect()])"
        assert visit.evaluate(f"[...document.querySelectorAll('svg text')].{pairs}.every(([b, s]) => {inside})")
        # Nothing sticks out but what can be scrolled by itself.
        assert visit.evaluate("document.documentElement.scrollWidth") <= width
        assert visit.evaluate("document.querySelectorAll('script, img, iframe, link, object, [onerror]').length") == 0
        told = visit.evaluate("document.body.textContent")
        assert all(name in told for name in HOSTILE[:5])
        assert visit.requests == [page.as_uri()] and visit.complaints == []
    assert browser.connections == before


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (360, True)], ids=["desktop", "dark-phone"])
def test_the_page_of_status_is_drawn_and_nothing_leaves_it(
    browser: Browser, tmp_path: Path, width: int, dark: bool
) -> None:
    page = tmp_path / "status.html"
    page.write_bytes(status_page(some_report(), "s3://bucket/prefix"))
    before = browser.connections
    with browser.visit(page, width=width, dark=dark) as visit:
        visit.settle()
        boxes = "map(e => e.getBoundingClientRect()).map(b => [b.width, b.height])"
        charts = visit.evaluate(f"[...document.querySelectorAll('svg[role=img]')].{boxes}")
        assert len(charts) == 1 and all(w > 200 and h > 40 for w, h in charts)
        assert visit.evaluate("document.documentElement.scrollWidth") <= width
        assert visit.evaluate("document.querySelectorAll('script, img, iframe, link, object, [onerror]').length") == 0
        told = visit.evaluate("document.body.textContent")
        assert all(name in told for name in HOSTILE[:5])
        assert visit.requests == [page.as_uri()] and visit.complaints == []
    assert browser.connections == before


def test_markup_that_got_in_could_do_nothing(browser: Browser, tmp_path: Path) -> None:
    """The policy of the page; without it all of that is done, and seen here."""
    done = {}
    body = "{% block title %}page{% endblock %}{% block body %}{{ evil|safe }}{% endblock %}"
    guarded = environment().from_string(f'{{% extends "page.html" %}}{body}').render(evil=EVIL)
    for name, text in (("with", guarded), ("without", f"<!doctype html>{EVIL}")):
        path = tmp_path / f"{name}.html"
        path.write_text(text)
        before = browser.connections
        with browser.visit(path) as visit:
            visit.settle()
            done[name] = (browser.connections > before, " ".join(visit.complaints))
    reached, said = done["without"]
    assert reached and "'script'" in said and "'image'" in said
    reached, said = done["with"]
    assert not reached and "'script'" not in said and said.count("Content Security Policy") >= 4
