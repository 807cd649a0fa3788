"""Command lines that the pages show do what they say when they are pasted, whatever names they have."""

from __future__ import annotations

import asyncio
import re
import shlex
from html import unescape
from pathlib import Path

import pytest

from tests.browse.client import Answer, Browsing, pasted
from tests.harness.api import call, connected
from tests.harness.commands import jsbackup
from tests.harness.servers import NEWEST, NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.xdist_group("browse")]

OPTION = "--if-exists=replace"


def _command(answer: Answer) -> list[str]:
    found = re.search(r'<pre class="command" tabindex="0">(.*?)</pre>', answer.text)
    return shlex.split(unescape(found[1])) if found else []


async def _make(url: str) -> None:
    async with connected(url) as nc:
        for name in (OPTION, "A"):
            await call(nc, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.x"]})
            await nc.jetstream().publish(f"{name}.x", b"old")


async def _publish(url: str) -> None:
    async with connected(url) as nc:
        await nc.jetstream().publish("A.x", b"new")


async def _messages(url: str, name: str) -> int:
    async with connected(url) as nc:
        found = await call(nc, f"STREAM.INFO.{name}", {})
        return int(found["state"]["messages"])


def test_a_stream_that_is_called_as_an_option_is_a_stream(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    with NatsServer(NEWEST) as server:
        asyncio.run(_make(server.url))
        backup = jsbackup("backup", "-s", server.url, "-r", repo).ok().document["backup"]
        asyncio.run(_publish(server.url))
        with Browsing("-r", repo, "-s", server.url) as page:
            shown = page.log_in().get("/plan", backup=backup, target=server.url, go=1, streams=f"A {OPTION}")
        words = _command(shown)
        assert words[:3] == ["jsbackup", "restore", backup] and words[-3:] == ["--", "A", OPTION]
        done = pasted(words)  # both are there
        assert done.returncode == 16 and f"streams {OPTION}, A: exists" in done.stderr, done
        assert asyncio.run(_messages(server.url, "A")) == 2


def test_a_server_that_cannot_be_reached_gives_no_command(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    with NatsServer(NEWEST) as server:
        asyncio.run(_make(server.url))
        backup = jsbackup("backup", "-s", server.url, "-r", repo).ok().document["backup"]
    with Browsing("-r", repo, "-s", server.url) as page:
        shown = page.log_in().get("/plan", backup=backup, target=server.url, go=1)
    assert shown.problem and not _command(shown) and "jsbackup restore" not in shown.words
