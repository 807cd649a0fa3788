"""Names that servers take, with characters that are white space elsewhere: such streams are backed up like others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.harness.api import call, connected
from tests.harness.commands import PATIENT, jsbackup
from tests.harness.filling import publish
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import delete

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

NO_BREAK, LINE_END, CONTROLS = "a\u00a0b", "c\u2028d", "e\x0bf\x1cg\x85h"
STORAGES = {NO_BREAK: "file", LINE_END: "file", CONTROLS: "file", f"\u3000{CONTROLS}": "memory"}


async def _make(url: str) -> None:
    async with connected(url) as nc:
        for name, storage in STORAGES.items():
            config = {"name": name, "subjects": [f"{name}.>"], "storage": storage}
            await call(nc, f"STREAM.CREATE.{name}", config)
            durable = {"durable_name": name, "ack_policy": "explicit", "filter_subject": f"{name}.{name}"}
            await call(nc, f"CONSUMER.CREATE.{name}.{name}", {"stream_name": name, "config": durable})


def test_streams_with_blanks_that_servers_take_are_backed_up_and_restored(tmp_path: Path) -> None:
    with NatsServer(NEWEST) as server:
        where = ("-s", server.url, "-r", tmp_path / "repo", *PATIENT)
        asyncio.run(_make(server.url))
        for count in (1, 2):  # the second one is an increment, read by consumers
            for name in STORAGES:
                asyncio.run(publish(server.url, f"{name}.{name}"))
            made = jsbackup("backup", *where).ok().document
            assert {one["name"]: one["messages"] for one in made["streams"]} == dict.fromkeys(STORAGES, count)
        delete(server.url, *STORAGES)
        others = [name for name in STORAGES if name[0] not in "ac" and name != LINE_END]
        done = jsbackup("restore", "latest", LINE_END, "a*", *others, *where).ok().document
        assert {one["name"]: one["messages"] for one in done["streams"]} == dict.fromkeys(STORAGES, 2)
        assert all([consumer["name"] for consumer in one["consumers"]] == [one["name"]] for one in done["streams"])
        compared = jsbackup("diff", "latest", "live", *where).document["streams"]
        assert all((one["added"], one["removed"], one["changed"]) == (0, 0, 0) for one in compared)
