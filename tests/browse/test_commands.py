"""Command lines that the pages show do what they say when they are pasted, whatever names they have."""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
import time
from html import unescape
from pathlib import Path

import pytest

from jsbackup.repository.crypto import age
from jsbackup.times import parse_time
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


def test_the_command_names_what_it_needs_and_no_secret(tmp_path: Path) -> None:
    me, vault = age.random_identity(), tmp_path / "vault"
    assert me.recipient is not None
    (tmp_path / "identity").write_text(f"{me.text}\n")
    writer = tmp_path / "writer.key"
    jsbackup("init", "-r", vault, "--encrypt-to", me.recipient.label, "--writer-key", writer).ok()
    with NatsServer(NEWEST) as server:
        asyncio.run(_make(server.url))
        backup = jsbackup("backup", "-s", server.url, "-r", vault, "--writer-key", writer).ok().document["backup"]
        login = server.url.replace("://", "://eve:s3cr3t@")
        line = ["-r", "vault", "-s", login, "--identity", "identity"]
        asked = {"backup": backup, "go": 1, "if_exists": "skip", "until": "0s", "streams": "A"}
        with Browsing(*line, folder=tmp_path) as page:
            target = re.findall(r"<option[^>]*>(nats:[^<]*)<", page.log_in().get("/plan").text)[0]
            shown = page.get("/plan", target=target, **asked)
        words = _command(shown)
        assert (
            "s3cr3t" not in shown.text and "User and password, or the token, of the server were left out" in shown.words
        )
        assert words[words.index("--identity") + 1] == str(tmp_path / "identity")
        assert words[words.index("-s") + 1] == server.url and words[words.index("-r") + 1] == str(vault)
        until = parse_time(words[words.index("--until") + 1])
        assert 0 < time.time_ns() - until < 60 * 10**9
        assert pasted(["jsbackup", "plan", *words[2:]]).returncode == 0
        with Browsing("-r", vault, "-s", server.url, JSBACKUP_IDENTITY=me.text) as page:
            shown = page.log_in().get("/plan", target=server.url, **asked)
        assert "The repository is encrypted: add --identity" in shown.words and me.text not in shown.text
        assert "were left out" not in shown.words


def test_long_and_odd_subjects_have_pages_or_no_links(tmp_path: Path) -> None:
    repo, long = tmp_path / "repo", "y" * 3000

    async def make(url: str) -> None:
        async with connected(url) as nc:
            await call(nc, "STREAM.CREATE.KV_b", {"name": "KV_b", "subjects": ["$KV.b.>"]})
            for key in (long, "wide\u00a0blank"):
                await nc.jetstream().publish(f"$KV.b.{key}", b"value")

    with NatsServer(NEWEST) as server:
        asyncio.run(make(server.url))
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=30) as raw:
            raw.sendall(b"CONNECT {}\r\nPUB $KV.b.odd\xff 1\r\nx\r\nPING\r\n")
            while b"PONG" not in raw.recv(65536):
                pass
        backup = jsbackup("backup", "-s", server.url, "-r", repo).ok().document["backup"]
    with Browsing("-r", repo) as page:
        page.log_in()
        for part in ("stream", "bucket"):
            shown = page.get(f"/backup/{backup}/{part}", name="KV_b")
            links = [one for one in shown.links if "/key?" in one or "subject=" in one]
            assert len(links) == 2 and "no subject: it has no page" in shown.words, (part, links)
            for one in links:
                answer = page.ask("GET", one)
                assert answer.status == 200 and "value" in answer.words, (part, one[:200], answer.problem)


def test_a_server_that_cannot_be_reached_gives_no_command(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    with NatsServer(NEWEST) as server:
        asyncio.run(_make(server.url))
        backup = jsbackup("backup", "-s", server.url, "-r", repo).ok().document["backup"]
    with Browsing("-r", repo, "-s", server.url) as page:
        shown = page.log_in().get("/plan", backup=backup, target=server.url, go=1)
    assert shown.problem and not _command(shown) and "jsbackup restore" not in shown.words
