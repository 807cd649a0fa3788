"""A server with streams and a repository with one backup of them, made once for each test process; and `typed`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jsbackup.cli.main import run
from tests.cli.typed import Shop, Typed
from tests.harness.api import JSON, call, connected
from tests.harness.commands import jsbackup
from tests.harness.servers import NEWEST, NatsServer

EVIL = "evil\x1b[31mred\x1b[0m\u202eabc\x9b2J"
WIDE = "注文-événements"


async def _fill(url: str) -> None:
    async with connected(url) as nc:
        for name, subject in (("ORDERS", "orders.*"), (EVIL, "evil"), (WIDE, "wide")):
            config: JSON = {"name": name, "subjects": [subject], "storage": "file", "retention": "limits"}
            await call(nc, f"STREAM.CREATE.{name}", {**config, "num_replicas": 1})
        for number in range(1000):
            await nc.publish(f"orders.{number % 3}", json.dumps({"order": number}).encode())
        await nc.publish("wide", "ñ".encode())
        for stream, consumer in (("ORDERS", "billing"), (EVIL, "worse\x1b]0;title\x07")):
            request = {"stream_name": stream, "config": {"durable_name": consumer, "ack_policy": "explicit"}}
            await call(nc, f"CONSUMER.DURABLE.CREATE.{stream}.{consumer}", request)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A server that stays, and a repository in which it was backed up. Tests change neither."""
    with NatsServer(NEWEST) as server:
        asyncio.run(_fill(server.url))
        repo = tmp_path_factory.mktemp("shop") / "repo"
        made = jsbackup("backup", "-s", server.url, "-r", repo, "--tag", "kind=test").ok()
        yield Shop(server.url, repo, made.document["backup"])


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Typed]:
    """`typed("list", "-r", …)` in this process, which is quick; nothing of the developer's shell reaches it."""
    for name in ("JSBACKUP_REPO", "NATS_URL", "NATS_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("JSBACKUP_TRACEBACK", "1")

    def type_it(*arguments: str | Path) -> Typed:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Typed(code, printed.out, printed.err)

    return type_it
