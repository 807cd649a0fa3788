"""A part of a backup does not replace a living stream that has more, unless that is meant."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from jsbackup.times import format_time
from tests.harness.filling import publish
from tests.harness.servers import NEWEST, NatsServer, wait_until
from tests.trials.accounts import Type, ask, count, delete, fill, names, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

BUCKET = {"name": "KV_config", "subjects": ["$KV.config.>"], "max_msgs_per_subject": 1, "allow_rollup_hdrs": True}
KEYS = {"prices.eu": b"1", "prices.us": b"2", "users.max": b"3", "users.min": b"4"}
EU = ("--subject", "$KV.config.prices.eu")
REPLACE = ("--if-exists", "replace")
CONSENT = "--replace-with-part"
READERS = "brings back at most 0 consumers; the replaced stream has 1"


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


@pytest.fixture(scope="module")
def started() -> Iterator[NatsServer]:
    with NatsServer(NEWEST, name="C1") as server:
        yield server


@pytest.fixture
def server(started: NatsServer) -> Iterator[str]:
    """The URL of a server without streams."""
    yield started.url
    delete(started.url, *names(started.url))


def put(where: str, bucket: str = "config", **keys: bytes) -> None:
    for key, value in keys.items():
        asyncio.run(publish(where, f"$KV.{bucket}.{key}", [value]))


def read(where: str, stream: str) -> None:
    """Give the stream a consumer."""
    config = {"durable_name": "later", "ack_policy": "explicit"}
    ask(where, f"CONSUMER.DURABLE.CREATE.{stream}.later", {"stream_name": stream, "config": config})


def keys(where: str, stream: str = "KV_config") -> dict[str, int]:
    """The messages of each subject."""
    state = ask(where, f"STREAM.INFO.{stream}", {"subjects_filter": ">"})["state"]
    return dict(state.get("subjects") or {})


def copying(where: str, stream: str, messages: int) -> None:
    """Make a stream that copies so many messages from S."""
    ask(where, f"STREAM.CREATE.{stream}", {"name": stream, "sources": [{"name": "S"}]})
    wait_until(lambda: count(where, stream) == messages, f"{messages} copies in {stream}")


def planned(typed: Type, *arguments: str | Path, code: int = 15) -> dict[str, Any]:
    """The document of a plan."""
    told = typed("plan", "latest", *arguments, "--json")
    assert told.code == code, told
    return told.document


def refused(document: dict[str, Any]) -> str:
    (one,) = [found for found in document["refusals"] if found["rule"] == "part-replaces"]
    assert "--replace-with-part" in one["hint"]
    return str(one["reason"])


def test_one_key_does_not_replace_a_bucket(server: str, typed: Type, tmp_path: Path) -> None:
    where = ("-s", server, "-r", tmp_path / "repo")
    ask(server, "STREAM.CREATE.KV_config", BUCKET)
    put(server, **KEYS)
    assert typed("backup", *where, "-q").code == 0
    put(server, **{"prices.eu": b"wrong", "users.new": b"5"})
    before = keys(server)

    document = planned(typed, "KV_config", *EU, *REPLACE, *where)
    said = "left out by --subject: 4 of 5 messages at the target (4 of 5 subjects), which would be deleted"
    assert said in refused(document)
    gone = document["actions"][0]["destroys"]["left_out"]
    assert gone == {"messages": 4, "exact": True, "subjects": 4, "by": "--subject"}
    done = typed("restore", "latest", "KV_config", *EU, *REPLACE, *where, "-q")
    assert done.code == 15 and said in done.err
    assert keys(server) == before
    clone = ("clone", "KV_config", *EU, *REPLACE, "-s", server, "--to-server", server)
    renamed = ("--rename", "KV_config=KV_other")
    assert typed(*clone, *renamed, "-q").code == 0  # where nothing is, nothing goes
    assert keys(server, "KV_other") == {"$KV.other.prices.eu": 1}
    assert typed(*clone, *renamed, "-q").code == 0  # and again: it has nothing but that

    done = typed("restore", "latest", "KV_config", *EU, *REPLACE, CONSENT, *where, "--json")
    assert done.code == 0
    assert "left out by --subject: 4 of 5 messages" in "; ".join(done.document["streams"][0]["notes"])
    assert keys(server) == {"$KV.config.prices.eu": 1}


def test_messages_that_the_backup_lacks_are_only_replaced_with_consent(
    server: str, typed: Type, tmp_path: Path
) -> None:
    where = ("-s", server, "-r", tmp_path / "repo")
    fill(server, "S", 3)
    assert typed("backup", *where, "-q").code == 0
    fill(server, "S", 2)
    read(server, "S")
    said = "lacks 2 of 5 messages at the target, which would be deleted"
    assert said in refused(planned(typed, "S", *REPLACE, *where))
    done = typed("restore", "latest", "S", *REPLACE, *where)
    assert done.code == 15 and said in done.err
    assert count(server, "S") == 5
    lost = said.replace("would be", "are")
    done = typed("restore", "latest", "S", *REPLACE, CONSENT, *where, "--json")
    assert (done.code, done.document["streams"][0]["notes"]) == (0, [READERS, lost])
    done = typed("restore", "latest", "S", *REPLACE, *where, "--json")
    assert (done.code, done.document["streams"][0]["notes"]) == (0, [])  # as it was in the backup


def test_a_cut_does_not_replace_what_lies_outside_of_it(server: str, typed: Type, tmp_path: Path) -> None:
    where = ("-s", server, "-r", tmp_path / "repo")
    fill(server, "S", 10)
    middle = format_time(time.time_ns())
    fill(server, "S", 10)
    assert typed("backup", *where, "-q").code == 0
    ask(server, "STREAM.MSG.DELETE.S", {"seq": 20})
    fill(server, "S", 5)
    for cut, said in (
        (("--until", "10"), "left out by --until: 14 of 24 messages at the target"),
        (("--since", "11"), "left out by --since: 10 of 24 messages at the target"),
        (("--until", middle), "left out by --until: 14 of 24 messages at the target"),
        (
            ("--since", middle, "--until", "19"),
            "left out by --since and --until: 15 of 24 messages at the target",
        ),
    ):
        assert said in refused(planned(typed, "S", *cut, *REPLACE, *where))
        assert typed("restore", "latest", "S", *cut, *REPLACE, *where, "-q").code == 15
    assert count(server, "S") == 24
    done = typed("restore", "latest", "S", "--until", "10", *REPLACE, CONSENT, *where, "-q")
    assert done.code == 0 and count(server, "S") == 10


def test_what_is_left_of_a_damaged_backup_does_not_replace_more(server: str, typed: Type, tmp_path: Path) -> None:
    where = ("-s", server, "-r", tmp_path / "repo")
    fill(server, "S", 10)
    assert typed("backup", *where, "-q").code == 0
    fill(server, "S", 10)
    assert typed("backup", *where, "-q").code == 0
    repository = Repository.open(LocalStore(tmp_path / "repo"))
    newest = repository.manifest(repository.backups()[-1])
    lost = newest.streams[0].segments[-1]
    (tmp_path / "repo" / lost.key).unlink()
    done = typed("restore", "latest", "S", "--partial", *REPLACE, *where)
    assert done.code == 15 and f"lacks {lost.messages} of 20 messages" in done.err, done
    assert count(server, "S") == 20
    done = typed("restore", "latest", "S", "--partial", *REPLACE, CONSENT, *where, "-q")
    assert done.code == 3 and count(server, "S") == 20 - lost.messages


def test_a_clone_does_not_replace_what_only_an_earlier_clone_has(server: str, typed: Type) -> None:
    """The clone and its source have gone on, each by itself."""
    clone = ("clone", "KV_config", "--rename", "KV_config=KV_T", *REPLACE, "-s", server, "--to-server", server)
    ask(server, "STREAM.CREATE.KV_config", BUCKET)
    put(server, **KEYS)
    assert typed(*clone, "-q").code == 0
    assert typed(*clone, "-q").code == 0  # as it was
    put(server, **{"users.new": b"5"})
    assert typed(*clone, "-q").code == 0  # the source has more, and all that the clone has
    put(server, "T", **{"users.mine": b"5"})
    for line in ((*clone, "--dry-run"), clone):
        done = typed(*line)
        assert done.code == 15 and "lacks 1 of 6 messages at the target" in done.out + done.err, done
    put(server, **{"users.newer": b"6", "users.newest": b"7"})
    done = typed(*clone)
    assert done.code == 15 and "lacks 1 of 6 messages at the target" in done.err, done


def test_a_clone_numbered_anew_is_replaced_by_the_same_again(server: str, typed: Type) -> None:
    fill(server, "S", 9)
    ask(server, "STREAM.MSG.DELETE.S", {"seq": 4})
    clone = ("clone", "S", "--rename", "S=T", "--map-subject", "S.*=>T.$1", "--renumber", *REPLACE)
    for _ in range(2):
        assert typed(*clone, "-q", "-s", server, "--to-server", server).code == 0
    fill(server, "T", 1)
    assert typed(*clone, "-q", "-s", server, "--to-server", server).code == 15


def test_a_stream_does_not_replace_a_later_one_of_the_name_that_it_copied_from(server: str, typed: Type) -> None:
    clone = ("clone", "WHOLE", "--rename", "WHOLE=S", "--set", "sources=null", "--set", 'subjects=["S.*"]', *REPLACE)
    clone = (*clone, "--allow-nothing", "-q", "-s", server, "--to-server", server)
    fill(server, "S", 4)
    copying(server, "WHOLE", 4)
    ask(server, "STREAM.UPDATE.WHOLE", {"name": "WHOLE"})
    done = typed(*clone, "--dry-run")
    assert done.code == 0, done.err  # it has all of it
    delete(server, "S")
    fill(server, "S", 4)
    done = typed(*clone)
    assert done.code == 15 and "lacks 4 of 4 messages at the target" in done.err, done


def test_a_backup_of_copies_does_not_replace_those_of_other_messages(server: str, typed: Type, tmp_path: Path) -> None:
    where = ("-s", server, "-r", tmp_path / "repo")
    fill(server, "S", 50)
    copying(server, "AGG", 50)
    assert typed("backup", *where, "-q").code == 0
    assert typed("restore", "latest", "AGG", *REPLACE, *where, "-q").code == 0  # as it was
    delete(server, "AGG", "S")
    fill(server, "S", 50, payload=b"other")
    copying(server, "AGG", 50)
    config = ("--set", "sources=null", "--set", 'subjects=["S.*"]')
    for line in (("AGG",), ("AGG", "--rename", "AGG=S", *config)):
        done = typed("restore", "latest", *line, *REPLACE, "--allow-nothing", *where, "-q")
        assert done.code == 15 and "lacks 50 of 50 messages at the target" in done.err, done
    ask(server, "STREAM.PURGE.S", {})
    done = typed("restore", "latest", "AGG", *REPLACE, *where, "-q")
    assert done.code == 15 and "lacks 50 of 50 messages at the target" in done.err, done
