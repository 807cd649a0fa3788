"""A repository with three backups of a real server, which is still there to plan restores for."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.browse.client import Browsing
from tests.harness.api import connected
from tests.harness.commands import jsbackup
from tests.harness.servers import NEWEST, NatsServer
from tests.harness.shelf import fill_shelf

MARKUP = b"<script>alert(1)</script><img src=x onerror=alert(1)></pre></td>"
HUGE = b"long " * 200_000


@dataclass(frozen=True)
class Estate:
    url: str
    repo: Path
    backups: tuple[str, ...]

    @property
    def newest(self) -> str:
        return self.backups[-1]


async def _change(url: str, size: int) -> None:
    async with connected(url) as nc:
        js = nc.jetstream()
        for number in range(40):
            body = json.dumps({"order": number, "lines": [{"sku": f"A-{number}", "price": 1.10}], "of": "Müller"})
            await js.publish("orders.eu.9", body.encode(), headers={"Run": str(size)})
        await js.publish("orders.markup", MARKUP, headers={"X": "<b>&amp;"})
        await js.publish("orders.<script>alert(1)</script>", b"subject")
        await js.publish("orders.huge", HUGE)
        bucket = await js.key_value("settings")
        await bucket.put("theme", json.dumps({"name": "night", "size": size}).encode())
        await bucket.put(f"prices.p{size}", b"12.50")


@pytest.fixture(scope="session")
def estate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    """Tests do not change it."""
    folder = tmp_path_factory.mktemp("estate")
    repo, backups = folder / "repo", []
    with NatsServer(NEWEST) as server:
        asyncio.run(fill_shelf(server.url, folder))
        for size in (0, 20, 30):
            if size:
                time.sleep(1.1)  # moments of a bucket are chosen by the second
                asyncio.run(_change(server.url, size))
            backups.append(jsbackup("backup", "-s", server.url, "-r", repo).ok().document["backup"])
        yield Estate(server.url, repo, tuple(backups))


@pytest.fixture(scope="session")
def page(estate: Estate) -> Iterator[Browsing]:
    """With the cookie."""
    with Browsing("-r", estate.repo, "-s", estate.url) as started:
        yield started.log_in()
