"""A repository with a stream, a bucket and an object store, made by nats-py and by the nats CLI."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.commands.look.changes import CHANGES, server_time
from tests.harness.commands import jsbackup
from tests.harness.servers import NEWEST, NatsServer
from tests.harness.shelf import fill_shelf


@dataclass(frozen=True)
class Shelf:
    repo: Path
    backup: str


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    """Tests do not change it."""
    folder = tmp_path_factory.mktemp("shelf")
    with NatsServer(NEWEST) as server:
        asyncio.run(fill_shelf(server.url, folder))
        made = jsbackup("backup", "-s", server.url, "-r", folder / "repo").ok()
        yield Shelf(folder / "repo", made.document["backup"])


@dataclass(frozen=True)
class Changing:
    """A repository whose newest backup does not have any more what was there before.

    `backups` are three; `moments` are times (RFC 3339): in the first backup's state, before the second backup, and
    before the third. The server is still there.
    """

    url: str
    repo: Path
    backups: tuple[str, ...]
    moments: tuple[str, ...]


@pytest.fixture(scope="session")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Changing]:
    """Tests change nothing but the bucket `copy`."""
    repo = tmp_path_factory.mktemp("changing") / "repo"
    backups, moments = [], []
    with NatsServer(NEWEST) as server:
        for change in CHANGES:
            asyncio.run(change(server.url))
            moments.append(asyncio.run(server_time(server.url)))
            backups.append(jsbackup("backup", "-s", server.url, "-r", repo).ok().document["backup"])
        yield Changing(server.url, repo, tuple(backups), tuple(moments))
