"""Configurations alone: backed up, restored, equal, and without a message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.api import connected
from tests.harness.awkward import fill, keys
from tests.harness.commands import jsbackup
from tests.harness.oracle import ObservedStream, compare, observe
from tests.harness.servers import VERSIONS, NatsServer

pytestmark = pytest.mark.nats


async def _fill(url: str, version: str) -> dict[str, ObservedStream]:
    async with connected(url) as nc:
        await fill(nc, version, [key for key in keys(version) if not key.startswith("BIG")])
        return await observe(nc)


async def _observe(url: str) -> dict[str, ObservedStream]:
    async with connected(url) as nc:
        return await observe(nc)


# A stream without messages has nothing but its configuration to compare; consumers begin anew.
NO_MESSAGES = [
    *("state.*", "deleted", "missing", "subjects", "messages", "message.*"),
    *(
        f"consumer.*.{field}"
        for field in ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending")
    ),
]


@pytest.mark.by_turns
@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_configurations_of_every_awkward_stream_come_back_without_messages(
    version: str, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    source, target = nats_server(version), nats_server(version)
    before = asyncio.run(_fill(source.url, version))
    backup = jsbackup("backup", "-s", source.url, "-r", tmp_path / "repo", "--config-only").ok().document
    assert {stream["archive_format"] for stream in backup["streams"]} == {"config"}
    assert {stream["messages"] for stream in backup["streams"]} == {0}
    restored = jsbackup("restore", "latest", "-s", target.url, "-r", tmp_path / "repo").ok().document
    assert all("restored without messages" in stream["notes"][0] for stream in restored["streams"])
    assert {stream["proof"] for stream in restored["streams"]} == {"full"}
    after = asyncio.run(_observe(target.url))
    unproved = nats_server(version)
    options = ("--verify", "none", "-s", unproved.url, "-r", tmp_path / "repo")
    restored = jsbackup("restore", "latest", *options).ok().document
    assert {(stream["proof"], stream["verified"]) for stream in restored["streams"]} == {("none", False)}
    copies = {name for name, stream in after.items() if stream.config.get("mirror") or stream.config.get("sources")}
    assert all(not stream.messages for name, stream in after.items() if name not in copies)
    assert compare(before, after, ignore=NO_MESSAGES) == []
