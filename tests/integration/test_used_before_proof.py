"""Streams that are used between their restore and their proof: they may be full by then, and are not wrong for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.harness.commands import Ran, jsbackup
from tests.harness.filling import fill, publish
from tests.harness.proxy import Direction, Proxy
from tests.harness.servers import NEWEST, NatsServer
from tests.integration.large import MESSAGES, NAME, TOTAL_BYTES, make_large
from tests.trials.accounts import ask

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]


def restored(folder: Path, published: int, *lost: int) -> Ran:
    """Restore a stream of at most 100 messages, lose messages of it and publish to it while a large one is sent."""
    with NatsServer(NEWEST) as server:
        asyncio.run(fill(server.url, "A", 30, max_msgs=100))
        make_large(server.url)
        jsbackup("backup", "-s", server.url, "-r", folder / "repo").ok()
    with NatsServer(NEWEST) as server, Proxy(server.port) as proxy:

        def use() -> None:
            for sequence in lost:
                ask(server.url, "STREAM.MSG.DELETE.A", {"seq": sequence})
            asyncio.run(publish(server.url, "a.{}", published))

        proxy.at(Direction.TO_SERVER, TOTAL_BYTES // 2, use)
        return jsbackup("restore", "latest", "-s", proxy.url, "-r", folder / "repo", "--jobs", "1")


def test_a_stream_that_is_filled_before_its_proof_is_verified(tmp_path: Path) -> None:
    small, large = restored(tmp_path, 90).ok().document["streams"]
    assert (small["name"], small["messages"], small["verified"]) == ("A", 10, True)
    gone = "20 messages are gone already: 90 messages were published since"
    assert small["notes"] == [f"{gone}, and it discards the oldest at max_msgs 100"]
    assert (large["name"], large["messages"], large["verified"], large["notes"]) == (NAME, MESSAGES, True, [])


def test_a_stream_that_lost_messages_is_wrong_although_others_were_published(tmp_path: Path) -> None:
    done = restored(tmp_path, 60, 1, 2, 3)
    (failed,) = done.document["failed"]
    assert done.code == 3 and failed["name"] == "A" and failed["code"] == 14 and failed["usable_at"]
    assert "3 missing (1, 2, 3)" in failed["reason"]
