"""A stream is described as it was when its messages were read, not as it was when the backup listed it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from nats.aio.client import Client

from jsbackup.config.connection import Connection
from jsbackup.engine.backup.run import BackupOptions, BackupRun
from jsbackup.engine.backup.stream_backup import back_up_stream
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.protocol.info import stored_config
from jsbackup.repository.manifest import Source
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.repository.write.receipts import Receipts
from jsbackup.stores.memory import MemoryStore
from tests.engine.restores import connection_to
from tests.harness.api import call, connected
from tests.harness.servers import NatsServer

pytestmark = pytest.mark.nats

CREATED = "2026-01-01T00:00:00Z"
OLD: dict[str, Any] = {"name": "S", "subjects": ["S.old.>"], "max_msgs": 2}
NEW: dict[str, Any] = {"name": "S", "subjects": ["S.new.>"], "max_msgs": 100}


async def edited(nc: Client, storage: str) -> None:
    await call(nc, "STREAM.UPDATE.S", {**NEW, "storage": storage})


async def created_again(nc: Client, storage: str) -> None:
    await call(nc, "STREAM.DELETE.S")
    await call(nc, "STREAM.CREATE.S", {**NEW, "storage": storage})


@pytest.mark.parametrize("change", [edited, created_again])
@pytest.mark.parametrize(("version", "storage"), [("2.10.26", "memory"), ("2.10.26", "file"), ("2.15.3", "memory")])
def test_what_changed_since_the_list_is_in_the_backup(
    version: str, storage: str, change: Callable[[Client, str], Any], nats_server: Callable[..., NatsServer]
) -> None:
    server = nats_server(version)
    repository = Repository.create(MemoryStore(), repository_id="f00d", created=CREATED, tool="tests")

    async def script(connection: Connection) -> StoredStream:
        run = BackupRun(connection, repository, BackupOptions())
        async with connected(server.url) as nc, connect_jetstream(connection) as js:
            await call(nc, "STREAM.CREATE.S", {**OLD, "storage": storage})
            await nc.request("S.old.x", b"old")
            listed = await js.stream("S")
            await change(nc, storage)
            for number in range(20):
                await nc.request(f"S.new.{number}", b"new")
            receipts = Receipts(repository.documents, "lease", CREATED, "tests")
            found = await back_up_stream(run, js, listed, source=Source(), previous=None, receipts=receipts)
            now = await js.stream("S")
            kept = 0 if change is created_again else 1
            assert found.stream.captured.messages == now.state.messages == 20 + kept
            assert found.stream.created == now.created
            assert {key: found.stream.config[key] for key in NEW} == NEW
            assert found.stream.config.keys() <= stored_config(now.config).keys()
            assert found.stream.incarnation == Source().incarnation("S", now.created)
            return found

    asyncio.run(script(connection_to(server.url)))
