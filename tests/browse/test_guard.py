"""Who sees the pages: nobody without the token, no other site, and browsers may do nothing with what they show."""

from __future__ import annotations

import re
import socket

import pytest

from tests.browse.client import Browsing
from tests.browse.conftest import Estate

pytestmark = [pytest.mark.nats, pytest.mark.xdist_group("browse")]


def test_without_the_token_nothing_is_shown(page: Browsing) -> None:
    cookie, page.cookie = page.cookie, ""
    try:
        for path in ("/", "/backups", "/style.css", "/page.js", "/nothing", "/?token=", "/?token=wrong", "/?token=%ff"):
            answer = page.ask("GET", path)
            assert (answer.status, answer.headers["content-type"]) == (403, "text/plain; charset=utf-8")
            assert "jsbackup browse" in answer.text and "repo" not in answer.text
        name = cookie.partition("=")[0]
        for wrong in (
            f"{name}=",
            f"{name}=wrong",
            f"{name}={page.token}",
            f"jsbackup={page.token}",
            f'{name}="',
            "\xe4=1",
        ):
            assert page.ask("GET", "/", {"Cookie": wrong}).status == 403
        assert page.ask("GET", "/", {"Cookie": f"other=1; {cookie}; a[b]=2"}).status == 200
    finally:
        page.cookie = cookie


def test_the_token_becomes_a_cookie_and_leaves_the_address(page: Browsing) -> None:
    answer = page.ask("GET", f"/backups?token={page.token}&search=a%26b")
    assert answer.status == 200 and page.token not in answer.text
    assert '<meta http-equiv="refresh" content="0; url=/backups?search=a%26b">' in answer.text
    cookie = answer.headers["set-cookie"]
    found = re.fullmatch(r"jsbackup-[0-9a-f]{8}=([\w-]{43}); HttpOnly; Path=/; SameSite=strict", cookie)
    # Other servers of this machine get the cookie too: it is no token, and is another one each time.
    assert found is not None and page.token not in cookie and cookie.partition(";")[0] != page.cookie
    assert "set-cookie" not in page.ask("GET", f"/?token={found[1]}").headers
    assert page.ask("GET", f"/?token={found[1]}", {"Cookie": "a=b"}).status == 403
    # It leads nowhere else.
    for path in ("//evil.test/", "/\\evil.test/", "///evil.test", "/%22%3E%3Cscript%3E", "/;url=http:%2F%2Fevil.test"):
        led = re.findall(r'url=(.*?)">|href="(.*?)"', page.ask("GET", f"{path}?token={page.token}").text)
        assert len(led) == 2 and all(re.fullmatch(r"/(?![/\\])[\w./%=-]*", one or other) for one, other in led)


def test_what_other_pages_lead_to_needs_the_token(page: Browsing) -> None:
    for site, status in (("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403), ("x", 403)):
        for path in ("/", "/backups", "/style.css"):
            assert page.ask("GET", path, {"Sec-Fetch-Site": site}).status == status, (site, path)
        welcome = page.ask("GET", f"/?token={page.token}", {"Sec-Fetch-Site": site, "Cookie": "a=b"})
        assert welcome.status == 200 and "set-cookie" in welcome.headers


def test_a_cookie_ends_with_the_process(estate: Estate) -> None:
    with Browsing("-r", estate.repo) as first:
        cookie = first.log_in().cookie
        number = first.port
    with Browsing("-r", estate.repo, "--port", str(number)) as second:
        assert second.ask("GET", "/", {"Cookie": cookie}).status == 403
        name = second.log_in().cookie.partition("=")[0]
        assert second.ask("GET", "/", {"Cookie": f"{name}={cookie.partition('=')[2]}"}).status == 403


@pytest.mark.parametrize(
    "path", ["/", "/backups", "/style.css", "/page.js", "/nothing", "/backup/20990101T000000Z-000000"]
)
def test_headers_of_all_answers(page: Browsing, path: str) -> None:
    answers = [page.ask("GET", path), page.ask("POST", path), page.ask("GET", path, {"Cookie": "a=b"})]
    nonces = set()
    for answer in answers:
        headers = answer.headers
        assert headers["cache-control"] == "no-store" and headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-resource-policy"] == headers["cross-origin-opener-policy"] == "same-origin"
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        assert policy["form-action"] == policy["img-src"] == "'self'"
        assert re.fullmatch(r"'nonce-[\w-]{22}'", policy["script-src"]) and policy["style-src"] == policy["script-src"]
        nonces.add(policy["script-src"])
        assert "unsafe" not in headers["content-security-policy"] and "server" not in headers
    assert len(nonces) == len(answers)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_what_shows_is_answered(page: Browsing, method: str) -> None:
    answer = page.ask(method, "/")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    assert page.ask("HEAD", "/").status == 200


def _raw(page: Browsing, head: str) -> int:
    with socket.create_connection(("127.0.0.1", page.port), timeout=30) as connection:
        connection.sendall(f"{head}\r\nCookie: {page.cookie}\r\nConnection: close\r\n\r\n".encode("latin-1"))
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return int(answer.split()[1])


def test_another_host_is_refused(page: Browsing) -> None:
    for host in (
        "evil.test",
        f"evil.test:{page.port}",
        "127.0.0.1.evil.test",
        "localhost.evil.test",
        "",
        "a@127.0.0.1",
    ):
        assert page.ask("GET", f"/?token={page.token}", {"Host": host}).status == 421, host
    # A tunnel has another port.
    for host in (page.address, "localhost:9999", "LOCALHOST", "127.0.0.1", "[::1]:80"):
        assert page.ask("GET", "/backups", {"Host": host}).status == 200, host
    assert _raw(page, "GET /backups HTTP/1.0") == 421
    assert _raw(page, "GET /backups HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.test") in (400, 421)
    assert _raw(page, f"GET /backups?search={'x' * 25_000} HTTP/1.1\r\nHost: localhost") == 414


def test_it_listens_on_loopback_unless_told(estate: Estate, page: Browsing) -> None:
    assert page.host == "127.0.0.1"
    with Browsing("-r", estate.repo, "--bind", "0.0.0.0") as wide:
        assert wide.host == socket.gethostname() and wide.log_in().get("/").status == 200
        assert wide.ask("GET", "/", {"Host": "10.1.2.3:80"}).status == 200
        assert wide.ask("GET", "/", {"Host": socket.gethostname()}).status == 200
        assert wide.ask("GET", "/", {"Host": "evil.test"}).status == 421
        code, err = wide.stop()
    assert code == 0 and "warning: other machines can reach this page" in err and "not encrypted" in err
