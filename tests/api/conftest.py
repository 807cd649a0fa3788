"""A server with known messages, and an environment in which nothing of the developer's shell counts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import jsbackup
from tests.api.shop import Shop, fill
from tests.harness.servers import NEWEST, NatsServer


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("NATS_", "JSBACKUP_", "XDG_", "AWS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nonexistent")


@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Tests leave the server and the repository as they are."""
    with NatsServer(NEWEST) as server:
        published = asyncio.run(fill(server.url))
        repository = jsbackup.open(tmp_path_factory.mktemp("shop") / "repo", create=True)
        made = jsbackup.backup(server.url, repository, tags={"kind": "test"})
        yield Shop(server.url, published, Path(repository.location), made.id)


@pytest.fixture
def target() -> Iterator[NatsServer]:
    with NatsServer(NEWEST) as server:
        yield server
