"""`history` and `find`: each value once, where it is, and one sentence for what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli.commands.look.conftest import EVIL, Shelf
from tests.cli.test_json import check
from tests.cli.typed import Typed

Type = Callable[..., Typed]
pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]


def test_a_key_is_shown_with_each_of_its_values(shelf: Shelf, typed: Type) -> None:
    for stream in ("settings", "KV_settings"):
        document = check("history", typed("history", stream, "lang", "--json", "-r", shelf.repo))
        assert [(one["operation"], one["data"]) for one in document["messages"]] == [("put", "en"), ("delete", "")]
        assert {tuple(one["backups"]) for one in document["messages"]} == {(shelf.backup,)}
    done = typed("history", "settings", "theme", "-r", shelf.repo)
    assert done.code == 0 and "dark" in done.out and done.out.count(shelf.backup) == 4
    evil = typed("history", "settings", EVIL, "-r", shelf.repo)
    assert evil.code == 0 and "\\x1b[31mred" in evil.out and "\x1b" not in evil.out


def test_messages_are_found_in_all_streams(shelf: Shelf, typed: Type) -> None:
    document = check("find", typed("find", "--grep", "evil", "--json", "-r", shelf.repo))
    assert {one["stream"] for one in document["messages"]} == {"KV_settings", "OBJ_files", "ORDERS"}
    some = check("find", typed("find", "ORD*", "--subject", "orders.eu.*", "--limit", "3", "--json", "-r", shelf.repo))
    assert [one["sequence"] for one in some["messages"]] == [295, 297, 299] and some["more"]
    none = typed("find", "--header", "Nats-Msg-Id=none", "-r", shelf.repo)
    assert (none.code, none.out) == (0, "no backup has such a message\n")
    assert "the newest 3 messages" in typed("find", "--subject", "orders.>", "--limit", "3", "-r", shelf.repo).out


def test_a_stream_is_followed_over_backups(shelf: Shelf, typed: Type) -> None:
    document = check("history", typed("history", "ORDERS", "--json", "-r", shelf.repo))
    (one,) = document["changes"]
    assert (one["change"], one["messages"], one["last_seq"]) == ("came", 302, 303)
    assert "came" in typed("history", "ORDERS", "-r", shelf.repo).out


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["history", "NONE"], 2, "no backup has a stream NONE"),
        (["history", "NONE", "key"], 2, "no backup has a stream KV_NONE"),
        (["history", "settings", "none"], 1, "no backup has such a message"),
        (["history", "settings", "a.*"], 2, "not a key"),
        (["history", "settings", "lang", "--subject", "x"], 2, "contradict"),
        (["find"], 2, "nothing to find was named"),
        (["find", "NONE", "--grep", "x"], 2, "no backup has a stream NONE"),
        (["find", "--grep", "x", "--tag", "no=tag"], 0, ""),
    ],
)
def test_what_is_wrong_is_one_sentence(shelf: Shelf, typed: Type, words: list[str], *, code: int, text: str) -> None:
    done = typed(*words, "-r", shelf.repo)
    assert (done.code, text in done.err) == (code, True), done
