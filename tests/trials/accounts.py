"""Servers with several accounts, their streams, and commands that run in this process, as a user types them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from jsbackup.cli.main import run
from tests.harness.api import JSON, call, connected, until_stored
from tests.harness.servers import NatsServer

ACCOUNTS = ("SHOP", "PAY", "LOGS")

# As the manual lists them: a user who may not ask which account this is.
FEW = (
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.CONSUMER.LIST.*",
    "$JS.API.STREAM.SNAPSHOT.*",
    "$JS.SNAPSHOT.ACK.>",
)

CONFIG = "accounts {\n" + "".join(
    f" {name} {{ jetstream: enabled, users: [ {{ user: {name.lower()}, password: p }},"
    f" {{ user: {name.lower()}-few, password: p, permissions: {{ publish: {json.dumps(list(FEW))} }} }} ] }}\n"
    for name in ACCOUNTS
)
CONFIG += "}\n"


@dataclass(frozen=True, slots=True)
class Typed:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document


Type = Callable[..., Typed]


def typing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    """`typed("list", "-r", …)` in this process, which is quick; nothing of the developer's shell reaches it."""
    for name in ("JSBACKUP_REPO", "JSBACKUP_CONFIG", "JSBACKUP_PROFILE", "NATS_URL", "NATS_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("JSBACKUP_TRACEBACK", "1")

    def type_it(*arguments: str | Path) -> Typed:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Typed(code, printed.out, printed.err)

    return type_it


def url(server: NatsServer, account: str, *, few: bool = False) -> str:
    return f"nats://{account.lower()}{'-few' if few else ''}:p@127.0.0.1:{server.port}"


async def _publish(nc: Client, stream: str, messages: int, *, payload: bytes = b"text", **config: Any) -> None:
    await call(nc, f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{stream}.*"], **config})
    for number in range(messages):
        await nc.publish(f"{stream}.{number}", payload)
    if messages:
        await until_stored(nc, f"{stream}.0")


def fill(where: str, stream: str, messages: int, *, payload: bytes = b"text", **config: Any) -> None:
    """Make a stream with so many messages."""

    async def work() -> None:
        async with connected(where) as nc:
            await _publish(nc, stream, messages, payload=payload, **config)

    asyncio.run(work())


def fill_as(where: str, creds: Path, stream: str, messages: int) -> None:
    """The same, logged in with a credentials file."""

    async def work() -> None:
        nc = Client()
        await nc.connect(servers=[where], user_credentials=str(creds), allow_reconnect=False)
        try:
            await _publish(nc, stream, messages)
        finally:
            await nc.close()

    asyncio.run(work())


def ask(where: str, subject: str, request: JSON | None = None) -> JSON:
    """One request to the JetStream API."""

    async def work() -> JSON:
        async with connected(where) as nc:
            return await call(nc, subject, request)

    return asyncio.run(work())


def count(where: str, stream: str) -> int:
    """How many messages a stream has."""
    state = ask(where, f"STREAM.INFO.{stream}")["state"]
    return int(state["messages"])


def names(where: str) -> list[str]:
    """The streams that there are."""
    return list(ask(where, "STREAM.NAMES").get("streams") or [])


def delete(where: str, *streams: str) -> None:
    for stream in streams:
        ask(where, f"STREAM.DELETE.{stream}")


def backup_of(typed: Typed) -> str:
    """The id that a command told on stdout with --json."""
    return str(typed.document["backup"])


def profiles(path: Path, repo: Path, servers: Sequence[tuple[str, str]], more: str = "") -> Path:
    """A file with a profile for each name and URL."""
    text = f'[defaults]\nrepo = "{repo}"\n'
    text += "".join(f'[profiles.{name}]\nserver = "{where}"\n' for name, where in servers)
    path.write_text(text + more)
    path.chmod(0o600)
    return path
