"""Streams that are used between their restore and their proof: they may be full by then, and are not wrong for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import call, connected
from tests.harness.commands import Ran, jsbackup
from tests.harness.proxy import Direction, Proxy
from tests.harness.servers import NEWEST, NatsServer
from tests.integration.large import MESSAGES, NAME, TOTAL_BYTES, make_large

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

V1 = "2.11.11"
COUNT = 30


def publish(url: str, count: int) -> None:
    async def run() -> None:
        async with connected(url) as nc:
            for number in range(count):
                await nc.request(f"a.{number % 4}", b"%03d" % number, timeout=30)

    asyncio.run(run())


def ask(url: str, subject: str, request: dict[str, Any]) -> None:
    async def run() -> None:
        async with connected(url) as nc:
            await call(nc, subject, request)

    asyncio.run(run())


def restored(folder: Path, version: str, config: dict[str, Any], published: int, *lost: int) -> Ran:
    """Restore a stream, lose messages of it and publish to it while a large one is sent, before it is proved."""
    with NatsServer(version) as server:
        ask(server.url, "STREAM.CREATE.A", {"name": "A", "subjects": ["a.*"], "storage": "file", **config})
        publish(server.url, COUNT)
        make_large(server.url)
        jsbackup("backup", "-s", server.url, "-r", folder / "repo").ok()
    used: list[int] = []
    with NatsServer(version) as server, Proxy(server.port) as proxy:

        def use() -> None:
            for sequence in lost:
                ask(server.url, "STREAM.MSG.DELETE.A", {"seq": sequence})
            publish(server.url, published)
            used.append(published)

        proxy.at(Direction.TO_SERVER, TOTAL_BYTES // 2, use)
        done = jsbackup("restore", "latest", "-s", proxy.url, "-r", folder / "repo", "--jobs", "1")
        assert used == [published]
    return done


@pytest.mark.by_turns
@pytest.mark.parametrize("version", [V1, NEWEST])
@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"max_msgs": 100}, "max_msgs 100"),
        ({"max_bytes": 100 * 36}, "max_bytes 3600"),  # a message of "a.0" and three digits has 36
    ],
)
def test_a_stream_that_is_filled_before_its_proof_is_verified(
    version: str, config: dict[str, Any], limit: str, tmp_path: Path
) -> None:
    done = restored(tmp_path, version, config, 90).ok()
    small, large = done.document["streams"]
    assert (small["name"], small["messages"], small["verified"]) == ("A", 10, True)
    gone = "20 messages are gone already: 90 messages were published since"
    assert small["notes"] == [f"{gone}, and it discards the oldest at {limit}"]
    assert (large["name"], large["messages"], large["verified"], large["notes"]) == (NAME, MESSAGES, True, [])


def test_a_stream_that_lost_messages_is_wrong_although_others_were_published(tmp_path: Path) -> None:
    done = restored(tmp_path, NEWEST, {"max_msgs": 100}, 60, 1, 2, 3)
    (failed,) = done.document["failed"]
    assert done.code == 3 and failed["name"] == "A" and failed["code"] == 14 and failed["usable_at"]
    assert "3 missing (1, 2, 3)" in failed["reason"] and "60 messages were published to it since" in failed["reason"]
