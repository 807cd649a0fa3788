"""`history`: each value once, where it is, and one sentence for what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli.commands.look.conftest import Shelf
from tests.cli.test_json import check
from tests.cli.typed import Typed
from tests.harness.shelf import EVIL

Type = Callable[..., Typed]
pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]


def test_a_key_is_shown_with_each_of_its_values(shelf: Shelf, typed: Type) -> None:
    for stream in ("settings", "KV_settings"):
        document = check("history", typed("history", stream, "--key", "lang", "--json", "-r", shelf.repo))
        assert [(one["operation"], one["data"]) for one in document["messages"]] == [("put", "en"), ("delete", "")]
        assert {tuple(one["backups"]) for one in document["messages"]} == {(shelf.backup,)}
    done = typed("history", "settings", "--key", "theme", "-r", shelf.repo)
    assert done.code == 0 and "dark" in done.out and done.out.count(shelf.backup) == 4
    early = typed("history", "settings", "--key", "theme", "--until", "1", "--json", "-r", shelf.repo)
    assert [message["data"] for message in check("history", early)["messages"]] == ["dark"]
    evil = typed("history", "settings", "--key", EVIL, "-r", shelf.repo)
    assert evil.code == 0 and "\\x1b[31mred" in evil.out and "\x1b" not in evil.out


def test_messages_are_found_in_all_streams(shelf: Shelf, typed: Type) -> None:
    document = check("history", typed("history", "--grep", "evil", "--json", "-r", shelf.repo))
    assert {one["stream"] for one in document["messages"]} == {"KV_settings", "OBJ_files", "ORDERS"}
    line = ("history", "ORD*", "--subject", "orders.eu.*", "--limit", "3", "-r", shelf.repo)
    some = check("history", typed(*line, "--json"))
    assert [one["sequence"] for one in some["messages"]] == [295, 297, 299] and some["more"]
    assert "the newest 3 messages" in typed(*line).out
    none = typed("history", "--header", "Nats-Msg-Id:none", "-r", shelf.repo)
    assert (none.code, none.out) == (0, "no backup has a matching message\n")


def test_a_stream_is_followed_over_backups(shelf: Shelf, typed: Type) -> None:
    document = check("history", typed("history", "ORDERS", "--json", "-r", shelf.repo))
    (change,) = document["changes"]
    assert (change["change"], change["messages"], change["last_seq"]) == ("came", 302, 303)
    every = check("history", typed("history", "*", "--limit", "2", "--json", "-r", shelf.repo))
    assert [change["stream"] for change in every["changes"]] == ["OBJ_files", "ORDERS"] and every["more"]
    assert " appeared " in typed("history", "ORDERS", "-r", shelf.repo).out


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["history", "NONE"], 2, "no backup has a stream NONE"),
        (["history", "NONE", "--key", "key"], 2, "no backup has a stream KV_NONE"),
        (["history", "settings"], 2, "hint: Did you mean KV_settings?"),
        (["history", "ordres", "--grep", "x"], 2, "hint: Did you mean ORDERS?"),
        (["history", "settings", "--key", "none"], 1, "no backup has a matching message"),
        (["history", "settings", "--key", "a.*"], 2, "not a key"),
        (["history", "settings", "--key", "lang", "--subject", "x"], 2, "contradict"),
        (["history"], 2, "nothing to look for"),
        (["history", "--key", "lang"], 2, "--key is of one bucket"),
        (["history", "A", "B", "--object", "x"], 2, "--object is of one object store"),
        (["history", "NONE", "--grep", "x"], 2, "no backup has a stream NONE"),
        (["history", "--grep", "x", "--tag", "no=tag"], 0, ""),
    ],
)
def test_what_is_wrong_is_one_sentence(shelf: Shelf, typed: Type, words: list[str], *, code: int, text: str) -> None:
    done = typed(*words, "-r", shelf.repo)
    assert (done.code, text in done.err) == (code, True), done
