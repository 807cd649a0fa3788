"""A store that is damaged under a running server: its backup says what is gone, whatever the server says of it then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.harness.api import connected
from tests.harness.commands import jsbackup
from tests.harness.servers import NEWEST, VERSIONS, NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

COUNT = 300


async def _fill(url: str) -> None:
    async with connected(url) as nc:
        js = nc.jetstream()
        for name in ("HALF", "NONE", "WHOLE"):
            await js.add_stream(name=name, subjects=[f"{name}.>"])
            for number in range(COUNT):
                await js.publish(f"{name}.{number % 7}", b"x" * 100)


async def _counts(url: str) -> dict[str, int]:
    async with connected(url) as nc:
        js = nc.jetstream()
        return {name: (await js.stream_info(name)).state.messages for name in ("HALF", "NONE", "WHOLE")}


@pytest.mark.parametrize("more", [(), ("--salvage",)], ids=["plain", "salvage"])
@pytest.mark.parametrize("version", [one for one in VERSIONS if one.startswith("2.15")] or [NEWEST])
def test_what_a_server_forgets_during_a_backup_is_told(version: str, more: tuple[str, ...], tmp_path: Path) -> None:
    with NatsServer(version, directory=tmp_path / "server") as server:
        asyncio.run(_fill(server.url))
    with NatsServer(version, directory=tmp_path / "server") as server:  # which has read no block yet
        streams = Path(server.directory) / "store/jetstream/$G/streams"
        half = streams / "HALF/msgs/1.blk"
        half.write_bytes(half.read_bytes()[: half.stat().st_size * 2 // 3])
        (streams / "NONE/msgs/1.blk").unlink()
        done = jsbackup("backup", *more, "-s", server.url, "-r", tmp_path / "repo")
        left = asyncio.run(_counts(server.url))
    found = {one["name"]: one for one in done.document["streams"]}
    assert found["WHOLE"]["messages"] == COUNT and not found["WHOLE"]["warnings"]
    assert left["HALF"] < COUNT or left["NONE"] < COUNT  # the server says nothing of what it has lost
    failed = {one["name"] for one in done.document["skipped"]}
    for name in ("HALF", "NONE"):
        if name not in failed and found[name]["messages"] < COUNT:
            assert any("lost" in text for text in found[name]["warnings"]), done
            assert done.code == 3
    assert done.code != 0 and done.document["result"] != "complete"
