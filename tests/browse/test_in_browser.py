"""The pages in headless Chromium: whole in wide and narrow windows, light and dark, and by keyboard alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jsbackup.stores.local import LocalStore
from tests.browse.client import Browsing
from tests.browse.conftest import HUGE, Estate
from tests.harness.axe import axe_script
from tests.harness.backups import FIRST, make_repository
from tests.harness.browser import Browser, Page
from tests.harness.many_streams import manifest_of, many_streams
from tests.harness.shelf import EVIL

pytestmark = [pytest.mark.nats, pytest.mark.browser, pytest.mark.xdist_group("browse")]

WINDOWS = [(1280, False), (390, True), (1280, True), (390, False)]


def _paths(estate: Estate) -> list[str]:
    a, b = estate.backups[1:]
    base = f"/backup/{b}"
    return [
        "/",
        "/backups",
        base,
        f"{base}/stream?name=ORDERS",
        f"{base}/messages?name=ORDERS&back=1",
        f"{base}/messages?name=ORDERS&subject=orders.markup",
        f"{base}/message?name=ORDERS&seq=301",
        f"{base}/message?name=ORDERS&seq=302",
        f"{base}/message?name=ORDERS&seq=310",
        f"{base}/message?name=ORDERS&seq=346",
        f"{base}/bucket?name=KV_settings&at=3",
        f"{base}/key?name=KV_settings&key=theme",
        f"{base}/key?name=KV_settings&key=lang",
        f"{base}/files?name=OBJ_files",
        f"/compare?a={a}&b={b}",
        f"/compare/stream?a={a}&b={b}&name=KV_settings",
        f"/compare/key?a={a}&b={b}&name=KV_settings&key=theme",
        f"/plan?backup={b}&target={estate.url}&go=1",
        f"/plan?backup={b}&target={estate.url}&go=1&streams=OBJ_files&if_exists=replace",
    ]


@pytest.fixture(scope="module")
def browser(page: Browsing) -> Iterator[Browser]:
    with Browser(reaches=page.address) as started:
        yield started


@contextmanager
def _opened(browser: Browser, page: Browsing, **how: Any) -> Iterator[Page]:
    """The home page, by the address that was printed."""
    with browser.visit(page.url, **how) as shown:
        browser.until(lambda: len(shown.told("Page.loadEventFired")) == 2)
        yield shown


def _colours(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


@pytest.mark.by_turns
@pytest.mark.parametrize(("width", "dark"), WINDOWS, ids=["wide", "narrow-dark", "wide-dark", "narrow"])
def test_pages_are_whole_and_ask_for_nothing_else(
    browser: Browser, page: Browsing, estate: Estate, width: int, dark: bool
) -> None:
    base = f"http://{page.address}"
    with _opened(browser, page, width=width, dark=dark) as shown:
        assert shown.evaluate("location.href") == f"{base}/"  # the token is gone
        assert shown.evaluate("document.cookie") == ""
        for path in _paths(estate):
            shown.go(base + path)
            shown.settle()
            assert _colours(shown) == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)"), path
            assert shown.evaluate("document.documentElement.scrollWidth") <= width, path
            # Nothing of a narrow page is cut off, but what can be scrolled by itself.
            cut = (
                "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1"
                " && !e.closest('pre') && getComputedStyle(e).position !== 'absolute'"
                " && !e.closest('thead')).map(e => e.outerHTML.slice(0, 80))"
            )
            if width < 600:
                assert shown.evaluate(cut) == [], path
            assert shown.evaluate("document.querySelectorAll('main script, img, iframe, object, style').length") == 0
        assert shown.complaints == []
        assert {url.split("/")[2] for url in shown.requests} == {page.address}
    assert browser.connections == 0


def test_hostile_content_runs_nothing(browser: Browser, page: Browsing, estate: Estate) -> None:
    """The markup, if it were markup, would open a dialog, which would keep the page from loading."""
    with _opened(browser, page) as shown:
        for name in ("<script>console.error('ran')</script>", "'\"><img src=x onerror=console.error(1)>", EVIL):
            for path in (
                "/backups?search=",
                f"/backup/{estate.newest}?search=",
                f"/backup/{estate.newest}/stream?name=",
            ):
                encoded = shown.evaluate(f"encodeURIComponent({json.dumps(name)})")
                shown.go(f"http://{page.address}{path}{encoded}")
                assert shown.evaluate("document.querySelectorAll('main script, main img').length") == 0
        assert [one for one in shown.complaints if "404" not in one] == []
        assert len(HUGE) > 10 * len(shown.evaluate("document.body.innerText"))


def test_by_keyboard_alone(browser: Browser, page: Browsing, estate: Estate) -> None:
    focused = "document.activeElement.textContent.trim() || document.activeElement.name"
    with _opened(browser, page) as shown:
        shown.press("Tab")
        assert shown.evaluate(focused) == "To the content"
        assert shown.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
        for name in ("Home", "Backups"):
            shown.press("Tab")
            assert shown.evaluate(focused) == name
        assert shown.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        shown.load_after(lambda: shown.press("Enter"))
        assert shown.evaluate("location.pathname") == "/backups"
        shown.press("/", "Slash", "/")
        assert shown.evaluate(focused) == "search"
        shown.call("Input.insertText", text=estate.newest)
        shown.load_after(lambda: shown.press("Enter"))
        assert shown.evaluate("document.querySelectorAll('main tbody tr').length") == 1
        shown.go(f"http://{page.address}/backup/{estate.newest}/messages?name=ORDERS")
        shown.load_after(lambda: shown.press("n", "KeyN", "n"))
        assert shown.evaluate("document.querySelector('tbody a').textContent") == "52"  # 7 was deleted
        shown.load_after(lambda: shown.press("p", "KeyP", "p"))
        assert shown.evaluate("document.querySelector('tbody a').textContent") == "1"
        shown.load_after(lambda: shown.press("h", "KeyH", "h"))
        assert shown.evaluate("location.pathname") == "/"


def test_an_id_is_copied(browser: Browser, page: Browsing, estate: Estate) -> None:
    with _opened(browser, page) as shown:
        origin = {"origin": f"http://{page.address}", "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
        browser.call("Browser.grantPermissions", **origin)
        shown.call("Page.bringToFront")
        copied = shown.evaluate(
            "(async () => { const b = document.querySelector('[data-copy]'); b.focus(); b.click();"
            " await new Promise(done => setTimeout(done, 300)); return navigator.clipboard.readText() })()"
        )
        assert copied == estate.newest


@pytest.mark.by_turns
@pytest.mark.parametrize(("width", "dark"), WINDOWS[:2], ids=["wide", "narrow-dark"])
def test_axe_finds_nothing_serious(browser: Browser, page: Browsing, estate: Estate, width: int, dark: bool) -> None:
    script = axe_script()
    with _opened(browser, page, width=width, dark=dark) as shown:
        for path in _paths(estate):
            shown.go(f"http://{page.address}{path}")
            shown.evaluate(f"{script}; 1")
            found = shown.evaluate(
                "axe.run().then(r => r.violations.map(v => [v.impact, v.id, v.nodes.slice(0, 3).map(n => n.html)]))"
            )
            assert [one for one in found if one[0] in ("serious", "critical")] == [], path


def test_a_thousand_streams_are_painted_from_little(tmp_path: Path) -> None:
    """The first paint needs a small page, its style and its script. `scripts/bench look` measures how long it takes."""
    make_repository(LocalStore(tmp_path / "repo")).commit(manifest_of(many_streams(1000)))
    with (
        Browsing("-r", tmp_path / "repo") as page,
        Browser(reaches=page.address) as browser,
        _opened(browser, page, width=1280) as shown,
    ):
        for path in ("/", f"/backup/{FIRST}", f"/plan?backup={FIRST}"):
            shown.go(f"http://{page.address}{path}")
            shown.settle()
            painted = "performance.getEntriesByName('first-contentful-paint').length"
            while not shown.evaluate(painted):
                shown.settle()
            sizes = "performance.getEntriesByType('navigation').map(one => one.decodedBodySize)"
            assert 1000 < shown.evaluate(sizes)[0] < 100_000, path
            names = "performance.getEntriesByType('resource').map(one => new URL(one.name).pathname).sort()"
            assert shown.evaluate(names) == ["/page.js", "/style.css"], path
