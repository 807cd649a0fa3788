"""`restore` without a backup asks on a terminal, and only there: answers, mistakes, and an end at any question."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jsbackup.cli.guided.same_line import same_line
from tests.cli.typed import Shop, Typed, in_shell, in_terminal
from tests.harness.api import call, connected
from tests.harness.dialogue import Dialogue, dialogue
from tests.harness.servers import NatsServer

Type = Callable[..., Typed]

pytestmark = pytest.mark.nats

REPOSITORY = "Repository (a folder, or s3://bucket/prefix): "
BACKUP, STREAMS, MOMENT, SERVER = "Backup (", "Streams (", "Moment (", "Server ("
NOW, WORD = "Restore now? (y/n) [n]: ", "Type 'replace' to go on, anything else stops: "
UNCHANGED = "nothing was restored, nothing was changed"


@pytest.fixture(params=["2.10.26", "2.15.3"])
def target(request: pytest.FixtureRequest) -> Iterator[NatsServer]:
    with NatsServer(request.param) as server:
        yield server


def streams_of(server: NatsServer) -> dict[str, int]:
    """Name and messages of each stream on a server."""

    async def look() -> dict[str, Any]:
        async with connected(server.url) as nc:
            return await call(nc, "STREAM.LIST")

    return {one["config"]["name"]: one["state"]["messages"] for one in asyncio.run(look())["streams"] or ()}


def publish(server: NatsServer, subject: str) -> None:
    async def one() -> None:
        async with connected(server.url) as nc:
            await nc.jetstream().publish(subject, b"newer")

    asyncio.run(one())


def line_of(asking: Dialogue) -> list[str]:
    """The command line that was printed, as a shell understands it, without the program's name."""
    lines = asking.drawn.splitlines()
    words = shlex.split(lines[lines.index("The same without questions:") + 1])
    assert words[0] == "jsbackup"
    return words[1:]


def test_everything_is_asked_for_and_mistakes_are_said(shop: Shop, target: NatsServer, tmp_path: Path) -> None:
    with dialogue("restore", folder=tmp_path) as asking:
        asking.answer(REPOSITORY, "nothing-here")
        asking.expect("no repository at")
        asking.answer(REPOSITORY, str(shop.repo))
        asking.answer(BACKUP, "1999")
        asking.expect("error: ")
        asking.answer(BACKUP, "")
        asking.answer(STREAMS, "ORDRES")
        asking.expect("Did you mean ORDERS?")
        asking.answer(STREAMS, "ORDERS")
        asking.answer(MOMENT, "yesterdy")
        asking.expect("error: not a time, a duration or a sequence")
        asking.answer(MOMENT, "12")
        asking.expect("sequence 12 of each stream")
        asking.answer(SERVER, "prod")
        asking.expect("neither a URL nor a context")
        asking.answer(SERVER, "nats://127.0.0.1:1")
        asking.expect("error: ")
        asking.answer(SERVER, target.url)
        asking.expect("1 stream can be restored")
        asking.answer(NOW, "y")
        asking.expect("restored 1 stream, 0 failed, 0 skipped")
        assert asking.end() == 0
    assert streams_of(target) == {"ORDERS": 12}
    line = line_of(asking)
    assert line == ["restore", "-r", str(shop.repo), "--server", target.url, "--until", "12", shop.backup, "ORDERS"]
    # The line does the same: everything is there by now.
    assert in_shell(*line).code == 16


def test_only_what_is_missing_is_asked_for(shop: Shop, target: NatsServer) -> None:
    arguments = ("-r", shop.repo, "restore", "--rename-prefix", "old_", "--until", "5", "-s", target.url)
    with dialogue(*arguments) as asking:
        asking.answer(BACKUP, "1")
        asking.answer(STREAMS, "ORDERS")
        asking.answer(NOW, "yes")
        assert asking.end() == 0
        assert MOMENT not in asking.drawn and SERVER not in asking.drawn
    assert streams_of(target) == {"old_ORDERS": 5}
    assert line_of(asking) == [*map(str, arguments), shop.backup, "ORDERS"]


def test_what_the_environment_says_is_in_the_line(shop: Shop, target: NatsServer) -> None:
    with dialogue("restore", "--dry-run", JSBACKUP_REPO=str(shop.repo), NATS_URL=target.url) as asking:
        asking.answer(BACKUP, "")
        asking.answer(STREAMS, "ORDERS")
        asking.answer(MOMENT, "")
        asking.answer(f"[{target.url}]: ", "")
        assert asking.end() == 0
    assert line_of(asking) == ["restore", "-r", str(shop.repo), "-s", target.url, shop.backup, "ORDERS"]


def test_what_a_profile_says_is_not_asked_for(shop: Shop, target: NatsServer, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f'[profiles.shop]\nrepo = "{shop.repo}"\nserver = "{target.url}"\n[profiles.shop.restore]\nuntil = "3"\n'
    )
    arguments = ("restore", "--config", config, "--profile", "shop")
    with dialogue(*arguments) as asking:
        asking.answer(BACKUP, "")
        asking.answer(STREAMS, "ORD*")
        asking.answer(NOW, "y")
        assert asking.end() == 0
    assert streams_of(target) == {"ORDERS": 3}
    assert line_of(asking) == [*map(str, arguments), shop.backup, "ORD*"]


def test_what_is_there_is_replaced_only_after_the_word(shop: Shop, target: NatsServer) -> None:
    assert in_shell("restore", shop.backup, "ORDERS", "-r", shop.repo, "-s", target.url).code == 0
    publish(target, "orders.new")
    there = streams_of(target)

    def up_to_the_word(asking: Dialogue, moment: str) -> None:
        asking.answer(BACKUP, "latest")
        asking.answer(STREAMS, "ORDERS")
        asking.answer(MOMENT, moment)
        asking.expect("These streams already exist at the target: ORDERS")
        asking.answer("or stop [stop]: ", "replce")
        asking.answer("or stop [stop]: ", "replace")
        if moment:
            asking.answer("with this part anyway? (y/n) [n]: ", "y")
        asking.expect("will be deleted: ORDERS")

    for answer in ("y", "", "REPLACE"):
        with dialogue("restore", "-r", shop.repo, "-s", target.url) as asking:
            up_to_the_word(asking, "")
            asking.answer(WORD, answer)
            assert asking.end() == 130 and UNCHANGED in asking.drawn
        assert streams_of(target) == there
    with dialogue("restore", "-r", shop.repo, "-s", target.url) as asking:
        asking.answer(BACKUP, "")
        asking.answer(STREAMS, "ORDERS")
        asking.answer(MOMENT, "")
        asking.answer("or stop [stop]: ", "")
        assert asking.end() == 130 and UNCHANGED in asking.drawn
    with dialogue("restore", "-r", shop.repo, "-s", target.url) as asking:
        up_to_the_word(asking, "7")
        asking.answer(WORD, "replace")
        assert asking.end() == 0
    assert streams_of(target) == {"ORDERS": 7}
    line = line_of(asking)
    assert line[-5:] == ["--if-exists", "replace", "--replace-with-part", shop.backup, "ORDERS"]
    assert in_shell(*line).code == 0


def test_the_target_must_not_change_after_the_plan_was_shown(shop: Shop, target: NatsServer) -> None:
    assert in_shell("restore", shop.backup, "ORDERS", "-r", shop.repo, "-s", target.url).code == 0
    with dialogue("restore", "-r", shop.repo, "-s", target.url, "--if-exists", "replace") as asking:
        asking.answer(BACKUP, "")
        asking.answer(STREAMS, "ORDERS")
        asking.answer(MOMENT, "")
        asking.expect(WORD)
        publish(target, "orders.new")
        there = streams_of(target)
        asking.answer("", "replace")
        assert asking.end() == 15 and "has changed since the plan was made" in asking.drawn
    assert streams_of(target) == there


@pytest.mark.parametrize("question", [REPOSITORY, BACKUP, STREAMS, MOMENT, SERVER, NOW])
@pytest.mark.parametrize("keys", [b"\x03", b"\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_an_end_at_any_question_changes_nothing(shop: Shop, question: str, keys: bytes, tmp_path: Path) -> None:
    answers = {REPOSITORY: str(shop.repo), BACKUP: "", STREAMS: "ORDERS", MOMENT: "", SERVER: ""}
    with NatsServer("2.15.3") as server:
        with dialogue("restore", folder=tmp_path, NATS_URL=server.url) as asking:
            for before, answer in answers.items():
                if before == question:
                    break
                asking.answer(before, answer)
            asking.press(question, keys)
            assert asking.end() == 130
            assert UNCHANGED in asking.drawn
        assert streams_of(server) == {}


def test_a_name_is_completed(shop: Shop, target: NatsServer) -> None:
    pytest.importorskip("readline")
    with dialogue("restore", "--dry-run", "-r", shop.repo, "-s", target.url) as asking:
        asking.answer(BACKUP, "")
        asking.press(STREAMS, b"ORD\t\n")
        asking.answer(MOMENT, "")
        asking.expect("1 stream can be restored")
        assert asking.end() == 0
    assert line_of(asking)[-1] == "ORDERS" and "--dry-run" not in line_of(asking)
    assert streams_of(target) == {}


def test_a_context_is_offered_and_a_secret_is_not_printed(shop: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "home" / ".config" / "nats" / "context"
    folder.mkdir(parents=True)
    users = 'authorization { users: [ { user: me, password: "open-sesame" } ] }'
    with NatsServer("2.15.3", config=users) as server:
        plain = server.url.rpartition("@")[2].removeprefix("nats://")
        context = {"url": f"nats://{plain}", "user": "me", "password": "open-sesame"}
        (folder / "shop.json").write_text(json.dumps(context))
        home = {"HOME": str(tmp_path / "home")}
        for named in ("shop", f"nats://me:open-sesame@{plain}"):
            with dialogue("restore", "--dry-run", "-r", shop.repo, **home) as asking:
                asking.answer(BACKUP, "")
                asking.answer(STREAMS, "ORDERS")
                asking.answer(MOMENT, "end")
                asking.expect("contexts: shop")
                asking.answer("[", named)
                assert asking.end() == 0
            line = shlex.join(line_of(asking))
            assert "sesame" not in line
            assert ("--context shop" in line) == (named == "shop")
            assert (f"--server nats://{plain}" in line and "without the login" in asking.drawn) == (named != "shop")
        # NATS_URL would win over the context's server: said, not done.
        with dialogue("restore", "-r", shop.repo, NATS_URL="nats://127.0.0.1:1", **home) as asking:
            asking.answer(BACKUP, "")
            asking.answer(STREAMS, "")
            asking.answer(MOMENT, "")
            asking.answer(SERVER, "shop")
            asking.expect("NATS_URL is set, and wins")
            asking.press(SERVER, b"\x04")
            assert asking.end() == 130


def test_without_a_terminal_it_is_the_usage_error_as_ever(shop: Shop) -> None:
    for more in ((), ("-r", shop.repo), ("--dry-run",)):
        done = in_shell("restore", *more)
        assert done.code == 2 and "BACKUP" in done.err.upper(), done
    # stdin and stderr are a terminal, stdout is not.
    done = in_terminal("restore", "-r", shop.repo)
    assert done.code == 2 and "Backup (" not in done.out + done.err
    for option in ("--json", "-q", "--log-format=json", "--tag=a=b"):
        done = in_terminal("restore", "-r", shop.repo, option, out_too=True)
        assert done.code == 2, (option, done)


def test_the_line_is_quoted_and_without_secrets() -> None:
    typed = ["restore", "--password", "x", "--token=y", "-s", "nats://me:pw@a:4222,nats://you@b", "--dry-run"]
    line, hidden = same_line(typed, [("-r", "my repo"), ("--until", "-1"), ("--flag", "")], ("ID", "A*", "-B"))
    assert hidden and shlex.split(line) == [
        *("jsbackup", "restore", "-s", "nats://a:4222,nats://b"),
        *("-r", "my repo", "--until=-1", "--flag", "--", "ID", "A*", "-B"),
    ]
    assert same_line(["restore"], [], ("ID",)) == ("jsbackup restore ID", False)


def test_what_an_older_server_does_not_know_can_be_left_out(tmp_path: Path) -> None:
    async def bucket(url: str) -> None:
        async with connected(url) as nc:
            subjects = {"subjects": ["$KV.b.>"], "allow_msg_ttl": True, "max_msgs_per_subject": 1}
            await call(nc, "STREAM.CREATE.KV_b", {"name": "KV_b", **subjects})
            await nc.jetstream().publish("$KV.b.k", b"v")

    repo = tmp_path / "repo"
    with NatsServer("2.15.3") as server:
        asyncio.run(bucket(server.url))
        made = in_shell("backup", "-s", server.url, "-r", repo)
        assert made.code == 0
    question = "Leave out such settings where no message needs them? (y/n) [n]: "
    with NatsServer("2.10.26") as old:
        with dialogue("restore", "-r", repo, "-s", old.url) as asking:
            for each in (BACKUP, STREAMS, MOMENT):
                asking.answer(each, "")
            asking.expect("KV_b: allow_msg_ttl needs nats-server 2.11")
            asking.answer(question, "n")
            assert asking.end() == 130 and UNCHANGED in asking.drawn
        assert streams_of(old) == {}
        with dialogue("restore", "-r", repo, "-s", old.url) as asking:
            for each in (BACKUP, STREAMS, MOMENT):
                asking.answer(each, "")
            asking.answer(question, "y")
            asking.expect("allow_msg_ttl is left out")
            asking.answer(NOW, "y")
            assert asking.end() == 0
        assert streams_of(old) == {"KV_b": 1}
        line = line_of(asking)
        assert line[-2] == "--adapt" and "the one that" not in asking.drawn
        assert in_shell(*line, "--if-exists", "skip").code == 0
