"""Every page on a repository of a real server: what it shows is what the backup has, and hostile content is text."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from html import unescape
from importlib.resources import files
from pathlib import Path

import pytest

from jsbackup.config import format_bytes
from jsbackup.transforms.cut import parse_edge
from tests.browse.client import Browsing, Elements, pasted, rows
from tests.browse.conftest import HUGE, MARKUP, Estate
from tests.harness.commands import jsbackup
from tests.harness.shelf import BINARY, EVIL, LARGE

pytestmark = [pytest.mark.nats, pytest.mark.xdist_group("browse")]

TAGS = {
    "html",
    "head",
    "meta",
    "title",
    "link",
    "script",
    "body",
    "a",
    "header",
    "nav",
    "span",
    "main",
    "footer",
    "kbd",
}
TAGS |= {"h1", "h2", "h3", "p", "div", "section", "ul", "li", "strong", "dl", "dt", "dd", "br", "mark", "pre"}
TAGS |= {"table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "details", "summary"}
TAGS |= {"form", "label", "input", "select", "option", "datalist", "button"}
TAGS |= {"svg", "g", "rect", "line", "polyline", "text"}


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.rglob("*")) if p.is_file()}


def test_all_pages_can_be_walked_and_nothing_is_written(page: Browsing, estate: Estate) -> None:
    before = _listing(estate.repo)
    todo, seen = ["/", f"/plan?backup={estate.newest}&go=1&target={estate.url}"], set[str]()
    kinds: dict[str, int] = {}
    while todo:
        path = todo.pop()
        kind = re.sub(r"/backup/[^/?]+", "/backup", path.partition("?")[0])
        if path in seen or kinds.get(kind, 0) >= 25:
            continue
        seen.add(path)
        kinds[kind] = kinds.get(kind, 0) + 1
        answer = page.ask("GET", path)
        if "file=short" in path or "file=wrong" in path:
            assert answer.status == 422 and answer.problem.endswith(".")
            continue
        assert answer.status == 200, (path, answer.problem)
        if not answer.headers["content-type"].startswith("text/html"):
            assert answer.headers["content-disposition"].startswith("attachment; ")
            continue
        _check_inert(answer.text)
        assert all(link.startswith("/") or link == "#main" for link in answer.links)
        todo += [link for link in answer.links if link != "#main"]
    wanted = {"/", "/backup", "/backup/stream", "/backup/messages", "/backup/message", "/backup/payload"}
    wanted |= {"/backup/bucket", "/backup/key", "/backup/value", "/backup/files", "/backup/file", "/backups"}
    assert kinds.keys() >= wanted | {"/compare", "/plan"}
    assert _listing(estate.repo) == before


def _check_inert(text: str) -> None:
    """No markup, script or sign that is not ours."""
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    found = Elements()
    found.feed(text)
    assert found.tags <= TAGS, found.tags - TAGS
    assert text.count("<script") == 1 and re.search(r'<script src="/page.js" nonce="[\w-]+" defer></script>', text)
    assert not [name for name, _ in found.attributes if name.startswith("on") or name == "style"]
    links = {value for name, value in found.attributes if name in ("href", "src", "action")}
    assert all((value.startswith("/") and not value.startswith("//")) or value == "#main" for value in links)


def test_home_says_how_backups_stand(page: Browsing, estate: Estate) -> None:
    home = page.get("/", fresh=1)
    assert "All is well." in home.words and "Recovery time (RTO) unknown" in home.words
    assert [row[0].removesuffix(" copy") for row in rows(home)] == list(reversed(estate.backups))
    show = jsbackup("show", estate.newest, "-r", estate.repo).ok().document
    shared = re.search(r"The newest one uses (\S+ \S+) of storage; (\S+ \S+) of that was new\.", home.words)
    assert shared is not None and shared[2] == format_bytes(show["stored_bytes_added"]) != shared[1]
    listed = page.get("/backups", search=estate.backups[0])
    assert len(rows(listed)) == 1 and not rows(page.get("/backups", search="no such"))


def _messages(page: Browsing, estate: Estate, **query: object) -> list[int]:
    answer = page.get(f"/backup/{estate.newest}/messages", name="ORDERS", **query)
    assert answer.status == 200, answer.problem
    return [int(row[0]) for row in rows(answer)]


def _viewed(estate: Estate, *options: str) -> list[int]:
    done = jsbackup("view", estate.newest, "ORDERS", "-r", estate.repo, *options)
    return [json.loads(line)["sequence"] for line in done.out.splitlines()]


def test_pages_of_messages_are_all_of_them_in_both_directions(page: Browsing, estate: Estate) -> None:
    truth = _viewed(estate)
    for query, rel in (({}, "next"), ({"back": 1}, "prev")):
        found: list[int] = []
        answer = page.get(f"/backup/{estate.newest}/messages", name="ORDERS", **query)
        while True:
            here = [int(row[0]) for row in rows(answer)]
            found = found + here if rel == "next" else here + found
            link = re.search(rf'rel="{rel}" href="([^"]+)"', answer.text)
            if link is None:
                break
            answer = page.ask("GET", link[1].replace("&amp;", "&"))
        assert found == truth
    assert _messages(page, estate, from_=100)[0] == 100
    assert _messages(page, estate, from_=100, back=1)[-1] == 100


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ({"subject": "orders.us.>"}, ["--subject", "orders.us.>"]),
        ({"header": "Run:20"}, ["--header", "Run:20"]),
        ({"grep": "Müller"}, []),
        ({"since": "310", "until": "320"}, ["--since", "310", "--until", "320"]),
        ({"until": "99999h"}, ["--until", "99999h"]),
        ({"subject": "orders.eu.9", "grep": "A-7"}, ["--subject", "orders.eu.9", "--grep", "A-7"]),
    ],
    ids=str,
)
def test_filters_are_those_of_view(page: Browsing, estate: Estate, query: dict[str, str], options: list[str]) -> None:
    wanted = _viewed(estate, *options)[:50] if options else []  # json.dumps writes ü as an escape
    assert _messages(page, estate, **query) == wanted


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"subject": "a..b"}, "--subject"),
        ({"since": "yesterday"}, "--since"),
        ({"from_": "x"}, "not a number"),
        ({"from_": "9" * 30}, "not a number"),
        ({"header": ":"}, "not a header"),
        ({"grep": "x" * 5000}, "too long"),
    ],
    ids=str,
)
def test_what_is_wrong_in_an_address_is_one_sentence(
    page: Browsing, estate: Estate, query: dict[str, str], said: str
) -> None:
    answer = page.get(f"/backup/{estate.newest}/messages", name="ORDERS", **query)
    assert answer.status == 404 and said in answer.problem


def test_names_that_do_not_exist_are_one_sentence(page: Browsing, estate: Estate) -> None:
    base = f"/backup/{estate.newest}"
    for path, query in [
        ("/backup/20990101T000000Z-000000", {}),
        ("/backup/../../etc/passwd", {}),
        (f"{base}/stream", {"name": "ORDER"}),
        (f"{base}/stream", {}),
        (f"{base}/message", {"name": "ORDERS", "seq": 7}),
        (f"{base}/bucket", {"name": "ORDERS"}),
        (f"{base}/key", {"name": "KV_settings", "key": "none"}),
        (f"{base}/key", {"name": "KV_settings", "key": "*"}),
        (f"{base}/file", {"name": "OBJ_files", "file": "none"}),
        (f"{base}/file", {"name": "OBJ_files", "file": "link"}),
        ("/compare", {"a": "20990101T000000Z-000000", "b": estate.newest}),
        ("/compare/stream", {"a": estate.newest, "b": estate.newest, "name": "NONE"}),
        ("/nothing", {}),
    ]:
        answer = page.get(path, **query)
        assert answer.status in (404, 422) and len(answer.problem) > 10, path
        assert "Traceback" not in answer.text


def test_a_message_is_shown_as_it_is(page: Browsing, estate: Estate) -> None:
    base = f"/backup/{estate.newest}"
    (markup,) = _messages(page, estate, subject="orders.markup", since="1", until="350")
    shown = page.get(f"{base}/message", name="ORDERS", seq=markup)
    assert MARKUP.decode() in shown.words and "<b>&amp;" in shown.words
    (binary,) = _messages(page, estate, subject="orders.binary")
    assert "00000010  10 11 12" in page.get(f"{base}/message", name="ORDERS", seq=binary).text
    assert page.get(f"{base}/payload", name="ORDERS", seq=binary).body == BINARY
    pretty = page.get(f"{base}/message", name="ORDERS", seq=310)
    assert '"price": 1.1\n' in unescape(pretty.text)
    huge = page.get(f"{base}/message", name="ORDERS", seq=_messages(page, estate, subject="orders.huge")[0])
    assert "text, 977 KiB; only the first 64.0 KiB are shown" in huge.words and len(huge.body) < 100_000
    assert len(
        page.get(f"{base}/payload", name="ORDERS", seq=_messages(page, estate, subject="orders.huge")[0]).body
    ) == len(HUGE)
    evil = page.get(f"{base}/messages", name="ORDERS", subject=f"orders.{EVIL}")
    assert "orders.evil\\x1b[31mred\\x1b[0m\\u202e" in evil.words


def test_a_stream_has_its_numbers(page: Browsing, estate: Estate) -> None:
    stream = page.get(f"/backup/{estate.newest}/stream", name="ORDERS")
    known = jsbackup("show", estate.newest, "ORDERS", "--subjects", "100", "-r", estate.repo).ok().document
    counts = known["streams"][0]["subjects"]
    shown = rows(stream, "Subject")
    assert len(shown) == len(counts) and [int(row[1]) for row in shown] == [one["messages"] for one in counts]
    assert "billing" in stream.words and '"max_age": 0' in stream.words and "Messages over time" in stream.words


def test_a_bucket_is_as_it_was(page: Browsing, estate: Estate) -> None:
    for at in (None, "1", "2", "5", "6"):
        options = [] if at is None else ["--at", at]
        listed = jsbackup("kv", estate.newest, "settings", "-r", estate.repo, *options)
        answer = page.get(f"/backup/{estate.newest}/bucket", name="KV_settings", at=at or "")
        assert [(row[0], int(row[3])) for row in rows(answer)] == [
            (one["key"].replace("\x1b", "\\x1b").replace("\u202e", "\\u202e"), one["revision"])
            for one in listed.document["keys"]
        ]
        # Its first revision was pushed out: what the bucket was then is not known.
        assert (listed.code == 3) == (at is not None) == ("Other keys may have existed" in answer.words)
        assert ("cannot say what these keys were" in answer.words) == bool(listed.document["unknown"])
    first = page.get(f"/backup/{estate.newest}/bucket", name="KV_settings", at="1970-01-02T00:00Z")
    assert "had no keys then" in first.words
    only = rows(page.get(f"/backup/{estate.newest}/bucket", name="KV_settings", keys="prices.*"))
    assert [row[:2] for row in only] == [["prices.p20", "12.50"], ["prices.p30", "12.50"]]


@pytest.mark.parametrize(("query", "said"), [({"at": "9999"}, "not at sequence 9999"), ({"keys": "a..b"}, "a..b")])
def test_what_a_bucket_cannot_show_is_said_beside_its_form(
    page: Browsing, estate: Estate, query: dict[str, str], said: str
) -> None:
    answer = page.get(f"/backup/{estate.newest}/bucket", name="KV_settings", **query)
    assert answer.status == 200 and said in answer.problem and 'name="keys"' in answer.text


def test_revisions_of_a_key_are_side_by_side(page: Browsing, estate: Estate) -> None:
    key = page.get(f"/backup/{estate.newest}/key", name="KV_settings", key="theme")
    marks = re.findall(r"<mark>(.*?)</mark>", key.text)
    assert marks == ["20", "30"] and '"name": "night"' in key.words
    deleted = page.get(f"/backup/{estate.newest}/key", name="KV_settings", key="lang")
    assert deleted.status == 200 and "is a delete" in deleted.problem and "delete" in deleted.words
    revision = int(rows(key)[0][0])
    value = page.get(f"/backup/{estate.newest}/value", name="KV_settings", key="theme", revision=revision)
    assert json.loads(value.body) == {"name": "night", "size": 30}


def test_files_are_downloaded_if_they_are_whole(page: Browsing, estate: Estate) -> None:
    files = rows(page.get(f"/backup/{estate.newest}/files", name="OBJ_files"))
    assert "a/large" in {row[0] for row in files} and "gone" not in {row[0] for row in files}
    large = page.get(f"/backup/{estate.newest}/file", name="OBJ_files", file="a/large")
    assert hashlib.sha256(large.body).digest() == hashlib.sha256(LARGE).digest()
    assert large.headers["content-type"] == "application/octet-stream"
    assert large.headers["content-disposition"] == "attachment; filename=\"large\"; filename*=UTF-8''large"
    odd = page.get(f"/backup/{estate.newest}/file", name="OBJ_files", file=f"../{EVIL}")
    assert odd.body == b"evil" and re.fullmatch(
        r'attachment; filename="[\w\[]+"; .*', odd.headers["content-disposition"]
    )
    wrong = page.get(f"/backup/{estate.newest}/file", name="OBJ_files", file="wrong")
    assert (wrong.status, b"mine" in wrong.body) == (422, False) and "digest" in wrong.problem


def test_two_backups_side_by_side(page: Browsing, estate: Estate) -> None:
    a, b = estate.backups[1:]
    both = {"a": a, "b": b}
    truth = jsbackup("diff", a, b, "-r", estate.repo).document["streams"]
    differ = rows(page.get("/compare", **both))
    assert {row[0] for row in differ} == {one["stream"] for one in truth if one["added"] or one["removed"]}
    assert "All 3 streams are equal" in page.get("/compare", a=a, b=a).words
    bucket = page.get("/compare/stream", name="KV_settings", **both)
    assert [row[0] for row in rows(bucket, "keys that differ")] == ["prices.p30", "theme"]
    values = page.get("/compare/key", name="KV_settings", key="theme", **both)
    assert re.findall(r"<mark>(.*?)</mark>", values.text) == ["20", "30"]
    missing = page.get("/compare/key", name="KV_settings", key="prices.p30", **both)
    assert "has no revision of key prices.p30" in missing.words and "12.50" in missing.words
    orders = page.get("/compare/stream", name="ORDERS", **both)
    assert "43 messages added, 0 removed, 0 changed." in orders.words
    assert "All is equal" in page.get("/compare/stream", name="OBJ_files", **both).words


def test_a_plan_has_the_findings_and_the_command_line(page: Browsing, estate: Estate) -> None:
    asked = {"backup": estate.newest, "target": estate.url, "go": 1}
    refused = page.get("/plan", **asked)
    assert "Refused: nothing can be restored" in refused.words and "exists" in refused.words
    renamed = page.get("/plan", **asked, streams="ORDERS", until="10", prefix="COPY_", if_exists="skip")
    assert "overlap" in renamed.words  # as with the command
    good = page.get("/plan", **asked, streams="OBJ_files", if_exists="replace")
    command = re.search(r'<pre class="command" tabindex="0">(.*?)</pre>', good.text)
    assert "1 stream can be restored" in good.words and command is not None
    words = shlex.split(unescape(command[1]))
    expected = ["--if-exists", "replace", "-s", estate.url, "-r", str(estate.repo), "--", "OBJ_files"]
    assert words == ["jsbackup", "restore", estate.newest, *expected]
    assert pasted(["jsbackup", "plan", *words[2:]]).returncode == 0
    for query, said in (
        ({"target": "elsewhere"}, "choose a server"),
        ({"until": "soon"}, "--until"),
        ({"if_exists": "x"}, "fail, skip, replace"),
        ({"streams": "NOTHING_*"}, "NOTHING_*"),
        ({"streams": "ORDERS --if-exists=replace"}, "--if-exists=replace"),
        ({"streams": "--partial"}, "--partial"),
    ):
        answer = page.get("/plan", **{**asked, **query})
        assert answer.status == 200 and said in answer.words and "jsbackup restore" not in answer.words


def test_what_a_field_for_a_moment_suggests_is_understood() -> None:
    fields = re.compile(r'name="(?:at|since|until)"[^>]*placeholder="([^"]+)"')
    templates = files("jsbackup").joinpath("browse", "templates").iterdir()
    shown = [text for one in templates for text in fields.findall(one.read_text())]
    assert len(shown) == 3
    for text in shown:
        for moment in re.split(", | or ", text):
            assert parse_edge("at", moment, 10**18)


def test_commands_in_sentences_are_quoted(page: Browsing, estate: Estate) -> None:
    shown = page.get(f"/backup/{estate.newest}/key", name="KV_settings", key="theme")
    assert "'jsbackup history KV_settings --key theme' shows those of all backups." in shown.words
    none = page.get(f"/backup/{estate.newest}/key", name="KV_settings", key="$(touch x)".replace(" ", "_"))
    assert "jsbackup history KV_settings --key '$(touch_x)'." in none.words


def test_what_was_read_stays_small(page: Browsing) -> None:
    """After all of the above."""
    assert page.memory_bytes() < 300 << 20


def test_the_command_line_of_a_plan_works_in_any_folder(estate: Estate) -> None:
    folder = estate.repo.parent
    with Browsing("-r", estate.repo.name, "-s", estate.url, folder=folder) as page:
        query = {"backup": estate.newest, "target": estate.url, "go": 1, "streams": "OBJ_files"}
        shown = page.log_in().get("/plan", **query)
    assert f"-r {estate.repo}" in shown.words
    # A sentence ends before the hint begins.
    assert "exists at the target. Choose --if-exists" in shown.words
