"""The manual's recipe for a stream that is half purged while publishers still write: all messages, each once."""

from __future__ import annotations

import asyncio
import base64
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.api import call, connected
from tests.harness.commands import jsbackup
from tests.harness.servers import MINORS, NatsServer
from tests.trials.accounts import ask

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

RECIPES = Path(__file__).parents[2] / "jsbackup" / "manual" / "recipes.md"
BACKED_UP, KEPT_FROM = 100, 61


def _commands(url: str, repo: Path) -> Iterator[list[str]]:
    """Yield the commands of the recipe, for this server and repository."""
    text = RECIPES.read_text().partition("## Half purged")[2].partition("\n## ")[0]
    for line in re.findall(r"^\$ jsbackup (.*)$", text, re.MULTILINE):
        here = line.replace("./repo", str(repo)).replace("nats://127.0.0.1:4224", url)
        yield shlex.split(re.sub(r"\S+Z-\S+", "latest", here).replace("20001", str(BACKED_UP + 1)))


async def _publish(url: str, first: int, last: int) -> None:
    async with connected(url) as nc:
        for number in range(first, last + 1):
            await nc.jetstream().publish(f"orders.{number % 3}", str(number).encode())


async def _purge(url: str) -> None:
    async with connected(url) as nc:
        await call(nc, "STREAM.PURGE.ORDERS", {"seq": KEPT_FROM})


async def _copied(url: str, last: int) -> None:
    async with connected(url) as nc:
        for _ in range(200):
            if (await call(nc, "STREAM.INFO.ORDERS_whole"))["state"]["last_seq"] == last:
                return
            await asyncio.sleep(0.1)
    raise AssertionError("ORDERS_whole does not keep up")


@pytest.mark.parametrize("version", MINORS)
def test_the_hole_is_filled_and_what_came_since_is_kept(version: str, tmp_path: Path) -> None:
    async def create(url: str) -> None:
        async with connected(url) as nc:
            await call(nc, "STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"]})

    with NatsServer(version) as server:
        asyncio.run(create(server.url))
        asyncio.run(_publish(server.url, 1, BACKED_UP))
        jsbackup("backup", "-s", server.url, "-r", tmp_path / "repo").ok()
        asyncio.run(_publish(server.url, 101, 110))
        asyncio.run(_purge(server.url))
        asyncio.run(_publish(server.url, 111, 120))
        beside, back = _commands(server.url, tmp_path / "repo")
        jsbackup(*beside).ok()
        asyncio.run(_publish(server.url, 121, 130))
        asyncio.run(_copied(server.url, 130))
        jsbackup(*back).ok()
        found = [ask(server.url, "STREAM.MSG.GET.ORDERS", {"seq": number})["message"] for number in range(1, 131)]
        assert [base64.b64decode(one["data"]) for one in found] == [str(number).encode() for number in range(1, 131)]
        assert ask(server.url, "STREAM.INFO.ORDERS")["state"]["messages"] == 130
