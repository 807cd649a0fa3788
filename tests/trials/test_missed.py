"""A mask that masks nothing, and a filter or a cut that keeps nothing, is no success (point 7)."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jsbackup.planning import stored_facts
from jsbackup.planning.selection.masking import NO_MASK
from tests.harness.api import connected
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import Type, ask, count, delete, names, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

MISSPELT = ("--mask", "users.>:$.mail=redact")
RIGHT = ("--mask", "users.>:$.email=redact")
REPLACE = ("--if-exists", "replace")


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[NatsServer, NatsServer]]:
    with NatsServer(NEWEST, name="C1") as source, NatsServer("2.12.8", name="C2") as target:
        yield source, target


@pytest.fixture
def pair(started: tuple[NatsServer, NatsServer]) -> Iterator[tuple[str, str]]:
    """A server with two streams of users, and an empty one."""
    source, target = (server.url for server in started)
    asyncio.run(_fill(source))
    yield source, target
    for url in (source, target):
        delete(url, *names(url))


async def _fill(url: str) -> None:
    async with connected(url) as nc:
        for name, subjects in (("USERS", ["users.>"]), ("ALL", ["all.>", "orders.>"]), ("NONE", ["none.>"])):
            config = json.dumps({"name": name, "subjects": subjects}).encode()
            await nc.request(f"$JS.API.STREAM.CREATE.{name}", config, timeout=20)
        for number in range(20):
            user = json.dumps({"email": f"u{number}@example.org"}).encode()
            await nc.request(
                f"users.{number % 3 if number != 9 else 'nine'}", user, timeout=20, headers={"X-User": "me"}
            )
        await nc.request("users.empty", b"", timeout=20)
        await nc.request("all.1", b"no JSON", timeout=20)


def first(url: str, stream: str) -> bytes:
    return base64.b64decode(ask(url, f"STREAM.MSG.GET.{stream}", {"seq": 1})["message"]["data"])


def rules(document: dict[str, Any], kind: str = "refusals") -> set[str]:
    return {found["rule"] for found in document[kind]}


def test_a_mask_that_masks_nothing_is_refused_before_anything_is_restored(
    pair: tuple[str, str], typed: Type, tmp_path: Path
) -> None:
    source, target = pair
    repo = ("-r", tmp_path / "repo")
    assert typed("backup", "-s", source, *repo, "-q").code == 0
    where = ("-s", target, *repo)
    said = "--mask users.>:$.mail=redact masks nothing in the 20 messages that it applies to"
    for masks in (MISSPELT, (*RIGHT, *MISSPELT)):
        planned = typed("plan", "latest", "USERS", *masks, *where, "--json")
        assert planned.code == 15 and rules(planned.document) == {"mask-missed"}
        for quiet in ((), ("-q",)):
            done = typed("restore", "latest", "USERS", *masks, *where, *quiet)
            assert done.code == 15 and said in done.err and "--allow-nothing" in done.err
    header = ("--mask", "users.>:header(X-Usr)=redact")
    assert typed("restore", "latest", "USERS", *header, *where, "-q").code == 15
    # Of another stream's subjects: no message of the whole restore is one that it could mask.
    lost = ("--mask", "orders.>:$.email=redact")
    for command in ("plan", "restore"):
        done = typed(command, "latest", *RIGHT, *lost, *where)
        assert done.code == 15 and "it applies to none of the kept messages" in done.out + done.err
    assert names(target) == []
    done = typed("restore", "latest", *RIGHT, *where, "--json")  # of all streams: each for its own
    assert done.code == 0 and b"***" in first(target, "USERS")
    done = typed("restore", "latest", "USERS", *MISSPELT, "--allow-nothing", *REPLACE, *where, "--json")
    assert done.code == 0 and "masks nothing in" in "; ".join(done.document["streams"][0]["notes"])


def test_a_clone_whose_mask_masks_nothing_leaves_nothing_at_the_target(pair: tuple[str, str], typed: Type) -> None:
    source, target = pair
    clone = ("clone", "USERS", "-s", source, "--to-server", target)
    for quiet in ((), ("-q",)):
        done = typed(*clone, *MISSPELT, *quiet, "--json")
        (failed,) = done.document["failed"]
        assert done.code == 15 and failed["code"] == 15 and "masks nothing in the" in failed["reason"]
        assert names(target) == []
    dry = typed(*clone, *MISSPELT, "--dry-run", "--json")
    notes = dry.document["actions"][0]["notes"]
    assert any("masks nothing in the 20 messages that it applies to" in note for note in notes), notes
    lost = ("--mask", "orders.>:$.email=redact")
    for more in ((), ("--dry-run",)):
        done = typed("clone", "*", *RIGHT, *lost, *more, "-s", source, "--to-server", target)
        assert done.code == 15 and "it applies to none of the kept messages" in done.out + done.err
    assert names(target) == []
    assert typed(*clone, *RIGHT, "-q").code == 0 and b"***" in first(target, "USERS")
    # What is there stays as it is.
    assert typed(*clone, *MISSPELT, *REPLACE, "-q").code == 15
    assert names(target) == ["USERS"] and b"***" in first(target, "USERS")
    assert typed(*clone, *MISSPELT, "--allow-nothing", *REPLACE, "-q").code == 0 and b"u0@" in first(target, "USERS")


def test_a_hash_without_a_key_names_the_option(pair: tuple[str, str], typed: Type) -> None:
    done = typed("clone", "--mask", "users.>:$.email=hash", "-s", pair[0], "--to-server", pair[1])
    assert done.code == 2 and "name it with --mask-key-file" in done.err


def test_after_a_mistyped_mask_no_stream_is_left_that_the_next_try_meets(pair: tuple[str, str], typed: Type) -> None:
    source, target = pair
    clone = ("clone", "-s", source, "--to-server", target)
    done = typed(*clone, *MISSPELT, "--json")
    failed = {one["name"]: one["reason"] for one in done.document["failed"]}
    assert done.code == 15 and names(target) == [] and "masks nothing in the" in failed["USERS"]
    assert failed["ALL"] == failed["NONE"] == "it was not begun, because stream USERS was refused"
    assert typed(*clone, *RIGHT, "-q").code == 0 and names(target) == ["ALL", "NONE", "USERS"]


def test_a_selection_that_keeps_nothing_is_refused(pair: tuple[str, str], typed: Type, tmp_path: Path) -> None:
    source, target = pair
    repo = ("-r", tmp_path / "repo")
    assert typed("backup", "-s", source, *repo, "-q").code == 0
    where, to = ("-s", target, *repo), ("-s", source, "--to-server", target)
    for selection in (
        ("--subject", "users.nobody"),
        ("--since", "2090-01-01T00:00:00Z"),
        ("--since", "3", "--subject", "users.empty", "--until", "5"),
    ):
        for command in (("plan", "latest"), ("restore", "latest"), ("restore", "latest", "-q")):
            done = typed(*command, "USERS", *selection, *where)
            assert done.code == 15 and "would keep none of its 21 messages" in done.out + done.err, done
        done = typed("clone", "USERS", *selection, *to)
        assert done.code == 15 and "would keep none of its" in done.out + done.err, done
        assert names(target) == []
    # A stream without messages has none to keep, and one that is emptied may be meant.
    assert typed("restore", "latest", "NONE", "--subject", "none.x", *where, "-q").code == 0
    for line in (("restore", "latest", "USERS", *where), ("clone", "USERS", *to, *REPLACE)):
        assert typed(*line, "--subject", "user.>", "--allow-nothing", "-q").code == 0
        assert count(target, "USERS") == 0


def test_a_plan_of_a_long_stream_says_what_a_sample_of_it_shows(
    pair: tuple[str, str], typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = pair
    repo = ("-r", tmp_path / "repo")
    assert typed("backup", "-s", source, *repo, "-q").code == 0
    monkeypatch.setattr(stored_facts, "_WHOLE_BYTES", 1)
    monkeypatch.setattr(stored_facts, "_ALL_BYTES", 1)
    monkeypatch.setattr(stored_facts, "_MESSAGES", 5)
    where = ("-s", target, *repo)
    for masks, says in (
        (
            RIGHT,
            "in a sample of 5 of 21 messages: users.>:$.email=redact masks 5 values in the 5 messages",
        ),
        (MISSPELT, "in a sample of 5 of 21 messages: --mask users.>:$.mail=redact masks nothing in the 5 messages"),
    ):
        planned = typed("plan", "latest", "USERS", *masks, *where, "--json")
        assert planned.code == 0
        assert says in "; ".join(planned.document["actions"][0]["notes"]), planned.document["actions"][0]["notes"]
        assert "sampled" in rules(planned.document, "warnings")
    unreadable = typed("plan", "latest", "ALL", "--mask", "all.>:$.x=redact", *where, "--json")
    assert unreadable.code == 15 and rules(unreadable.document) == {"mask-unreadable"}
    said = "message 1 of stream ALL cannot be masked: not JSON"
    assert unreadable.document["refusals"][0]["reason"] == said
    monkeypatch.setattr(stored_facts, "_WHOLE_BYTES", 1 << 20)
    for command in (("plan", "latest"), ("restore", "latest")):
        done = typed(*command, "ALL", "--mask", "all.>:$.x=redact", *where)
        assert done.code == 15 and f"{said}; in all, 1 of 1 message cannot be masked" in done.out + done.err, done
    cloning = ("clone", "ALL", "--mask", "all.>:$.x=redact", "-s", source, "--to-server", target, "--dry-run")
    assert typed(*cloning).code == 15


def test_messages_that_no_mask_is_for_are_counted(pair: tuple[str, str], typed: Type, tmp_path: Path) -> None:
    source, target = pair
    asyncio.run(_publish_deeper(source))
    repo = ("-r", tmp_path / "repo")
    assert typed("backup", "-s", source, *repo, "-q").code == 0
    masks = ("--mask", "users.*:$.email=redact", "--mask", "users.a.*:$.email=redact")
    where, to = ("-s", target, *repo), ("-s", source, "--to-server", target)
    for line in (("restore", "latest", "USERS", "ALL", *where), ("clone", "USERS", "ALL", *REPLACE, *to)):
        done = typed(*line, *masks, "--json")
        assert done.code == 0
        same = [data for data in payloads(target, "USERS") if b"@example.org" in data]
        assert len(same) == 7 and len(payloads(target, "USERS")) == 32
        notes = {stream["name"]: stream["notes"] for stream in done.document["streams"]}
        assert "7 messages stay unmasked: no mask applies to their subjects" in notes["USERS"]
        assert [note for note in notes["ALL"] if "mask" in note] == [NO_MASK]
    planned = typed("plan", "latest", "USERS", *masks, *REPLACE, *where, "--json")
    assert planned.code == 0 and "unmasked" in rules(planned.document, "warnings")
    whole = ("--mask", "users.>:$.email=redact")
    planned = typed("plan", "latest", "USERS", *whole, *REPLACE, *where, "--json")
    assert planned.code == 0 and "unmasked" not in rules(planned.document, "warnings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_facts, "_WHOLE_BYTES", 1)
        patch.setattr(stored_facts, "_ALL_BYTES", 1)
        patch.setattr(stored_facts, "_MESSAGES", 50)
        planned = typed("plan", "latest", "USERS", *masks, *REPLACE, *where, "--json")
    says = "; ".join(planned.document["actions"][0]["notes"])
    assert "in a sample of 32 of 32 messages: 7 messages stay unmasked: no mask applies to their subjects" in says


async def _publish_deeper(url: str) -> None:
    """Four users that a mask of two is for, and seven that it is not."""
    async with connected(url) as nc:
        for number in range(11):
            subject = f"users.a.{number}" if number < 4 else f"users.b.{number}"
            await nc.request(subject, b'{"email": "deep@example.org"}', timeout=20)


def payloads(url: str, stream: str) -> list[bytes]:
    last = ask(url, f"STREAM.INFO.{stream}")["state"]["last_seq"]
    messages = [ask(url, f"STREAM.MSG.GET.{stream}", {"seq": number}) for number in range(1, last + 1)]
    return [base64.b64decode(one["message"].get("data", "")) for one in messages if "message" in one]
