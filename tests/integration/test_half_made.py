"""A stream whose restore was interrupted: what it is backed up as, and when it may be removed without a word."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from nats.errors import NoRespondersError

from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.engine.restore.remove_unfinished import abandon_restore
from jsbackup.protocol.restore import RestoreSender
from tests.engine.restores import CONFIG, MESSAGES, connection_to, state_of
from tests.harness.api import JSON
from tests.harness.commands import PATIENT, command_line, environment, jsbackup
from tests.harness.filling import publish
from tests.harness.proxy import Direction, Proxy
from tests.harness.servers import NEWEST, NatsServer, wait_until
from tests.trials.accounts import ask

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

MARK = {"jsbackup.restoring": "20261121T014500Z-000001"}
STREAM = {"name": "S", "subjects": ["s.>"], "storage": "file", "retention": "limits", "num_replicas": 1}
COUNT = 200


def send(url: str, messages: int, data: bytes = b"new") -> None:
    asyncio.run(publish(url, "s.{}", [data] * messages))


def takes(url: str) -> bool:
    """Whether a message is acknowledged."""
    try:
        send(url, 1)
    except NoRespondersError:
        return False
    return True


def state(url: str) -> JSON:
    return dict(ask(url, "STREAM.INFO.S")["state"])


def notes(document: dict[str, Any]) -> str:
    return "\n".join(document["streams"][0]["notes"])


def half_restored(server: NatsServer, repo: Path) -> int:
    """A restore of S is killed in the middle; how many messages there are then."""
    with Proxy(server.port) as proxy:
        line = command_line("restore", "latest", "-r", repo, "-s", proxy.url, wire="v2", window_bytes=64 << 10)
        process = subprocess.Popen(line, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        proxy.at(Direction.TO_SERVER, COUNT * 20_000 // 2, lambda: process.send_signal(signal.SIGKILL))
        assert process.wait(120) == -signal.SIGKILL
    left = int(state(server.url)["messages"])
    assert 0 < left < COUNT
    return left


def test_a_half_made_stream_that_is_written_to_is_not_removed_unasked(tmp_path: Path) -> None:
    restore = ("restore", "latest", "-r", tmp_path, *PATIENT)
    with NatsServer(NEWEST) as server:
        ask(server.url, "STREAM.CREATE.S", STREAM)
        send(server.url, COUNT, os.urandom(20_000))
        jsbackup("backup", "-r", tmp_path, "-s", server.url, *PATIENT).ok()
        ask(server.url, "STREAM.DELETE.S")
        half_restored(server, tmp_path)

        again = jsbackup(*restore, "-s", server.url).ok().document
        assert re.search("removed a leftover of [0-9]+ messages", notes(again))
        assert state(server.url)["messages"] == COUNT

        ask(server.url, "STREAM.DELETE.S")
        left = half_restored(server, tmp_path)
        wait_until(lambda: takes(server.url), "the server to give up what nobody goes on with", server)
        send(server.url, 49)  # all of them acknowledged
        refused = jsbackup(*restore, "-s", server.url)
        assert refused.code == 16 and "a leftover of an interrupted restore" in refused.document["error"]["message"]
        skipped = jsbackup(*restore, "-s", server.url, "--if-exists", "skip")
        assert skipped.code == 3 and "a leftover" in skipped.document["skipped"][0]["reason"]
        assert state(server.url)["messages"] == left + 50
        lacks = jsbackup(*restore, "-s", server.url, "--if-exists", "replace")
        assert lacks.code == 15 and "lacks 50 of" in lacks.document["error"]["message"]
        jsbackup(*restore, "-s", server.url, "--if-exists", "replace", "--replace-with-part").ok()
        assert state(server.url)["messages"] == COUNT
        assert "jsbackup.restoring" not in (ask(server.url, "STREAM.INFO.S")["config"].get("metadata") or {})


def test_what_came_since_is_noticed_whatever_the_clocks_say(tmp_path: Path) -> None:
    """The backup has later times than what was written to the half-made stream."""
    with NatsServer(NEWEST) as origin, NatsServer(NEWEST) as server:
        ask(origin.url, "STREAM.CREATE.S", STREAM)
        send(origin.url, 2, b"old")
        ask(server.url, "STREAM.CREATE.S", {**STREAM, "metadata": MARK})
        send(server.url, 1)
        send(origin.url, 2, b"old")
        jsbackup("backup", "-r", tmp_path, "-s", origin.url, *PATIENT).ok()
        for command in (
            ("restore", "latest", "-r", tmp_path, "-s", server.url),
            ("clone", "S", "-s", origin.url, "--to-server", server.url),
        ):
            refused = jsbackup(*command, *PATIENT)
            assert refused.code == 16 and "newer messages" in refused.document["failed"][0]["reason"]
            assert state(server.url)["messages"] == 1
        forced = jsbackup("restore", "latest", "-r", tmp_path, "-s", server.url, "--if-exists", "replace", *PATIENT)
        assert "removed a leftover of 1 message " in notes(forced.ok().document)


def test_a_half_made_stream_is_backed_up_as_incomplete_and_without_its_mark(tmp_path: Path) -> None:
    with NatsServer(NEWEST) as server:
        ask(server.url, "STREAM.CREATE.S", {**STREAM, "metadata": MARK | {"owner": "shop"}})
        send(server.url, 3)
        backup = jsbackup("backup", "-r", tmp_path, "-s", server.url, *PATIENT)
        assert backup.code == 3 and backup.document["result"] == "partial"
        assert "a restore of backup 20261121T014500Z-000001" in backup.document["streams"][0]["warnings"][0]
        follow = jsbackup("follow", "-r", tmp_path, "-s", server.url, "--for", "1s", *PATIENT)
        assert follow.code == 3 and follow.document["result"] == "partial"
        ask(server.url, "STREAM.DELETE.S")
        jsbackup("restore", "latest", "-r", tmp_path, "-s", server.url, *PATIENT)
        assert ask(server.url, "STREAM.INFO.S")["config"]["metadata"].get("owner") == "shop"
        assert "jsbackup.restoring" not in ask(server.url, "STREAM.INFO.S")["config"]["metadata"]


def test_without_marks_a_stream_that_somebody_made_meanwhile_stays(caplog: pytest.LogCaptureFixture) -> None:
    """A user who may not update streams sends no mark. The restore fails, and somebody has the name by then."""

    async def main(url: str) -> None:
        connection = connection_to(url)
        async with connect_jetstream(connection) as js:
            sender = RestoreSender(CONFIG, state_of(MESSAGES))
            request = sender.request(js.prefix)
            sender.receive_response((await js.link.request(request.subject, request.payload, 10)).data)
            await js.create_stream({"name": "ORDERS", "subjects": ["orders.>"], "num_replicas": 1})
            await js.link.request("orders.1", b"theirs")
            await asyncio.wait_for(abandon_restore(connection, sender), 120)
            assert (await js.stream("ORDERS")).state.messages == 1

    with NatsServer(NEWEST) as server, caplog.at_level(logging.WARNING):
        asyncio.run(main(server.url))
    assert "stream ORDERS exists; it may be half-restored" in caplog.text


def test_a_clone_of_a_half_made_stream_is_incomplete(tmp_path: Path) -> None:
    """The mark does not go along, so this is the last time that anybody is told."""
    with NatsServer(NEWEST) as source, NatsServer(NEWEST) as target:
        ask(source.url, "STREAM.CREATE.S", {**STREAM, "metadata": MARK})
        send(source.url, 3)
        done = jsbackup("clone", "S", "-s", source.url, "--to-server", target.url, *PATIENT)
        assert done.code == 3 and "a restore of backup 20261121T014500Z-000001 into it was interrupted" in notes(
            done.document
        )
        assert state(target.url)["messages"] == 3
