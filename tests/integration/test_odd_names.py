"""Names that servers take, with characters that are white space elsewhere: such streams are backed up like others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.harness.api import call, connected
from tests.harness.commands import PATIENT, jsbackup
from tests.harness.servers import NEWEST, NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

NO_BREAK, LINE_END, CONTROLS = "a\u00a0b", "c\u2028d", "e\x0bf\x1cg\x85h"
STORAGES = {NO_BREAK: "file", LINE_END: "file", CONTROLS: "file", f"\u3000{CONTROLS}": "memory"}


async def _publish(url: str) -> None:
    async with connected(url) as nc:
        for name in STORAGES:
            await nc.request(f"{name}.{name}", b"1", timeout=30)


async def _make(url: str) -> None:
    async with connected(url) as nc:
        for name, storage in STORAGES.items():
            config = {"name": name, "subjects": [f"{name}.>"], "storage": storage}
            await call(nc, f"STREAM.CREATE.{name}", config)
            durable = {"durable_name": name, "ack_policy": "explicit", "filter_subject": f"{name}.{name}"}
            await call(nc, f"CONSUMER.CREATE.{name}.{name}", {"stream_name": name, "config": durable})


async def _delete(url: str) -> None:
    async with connected(url) as nc:
        for name in STORAGES:
            await call(nc, f"STREAM.DELETE.{name}")


@pytest.mark.parametrize("version", [NEWEST, "2.10.26"])
def test_streams_with_blanks_that_servers_take_are_backed_up_and_restored(version: str, tmp_path: Path) -> None:
    with NatsServer(version) as server:
        where = ("-s", server.url, "-r", tmp_path / "repo", *PATIENT)
        asyncio.run(_make(server.url))
        for count in (1, 2):  # the second one is an increment, read by consumers
            asyncio.run(_publish(server.url))
            made = jsbackup("backup", *where).ok().document
            assert {one["name"]: one["messages"] for one in made["streams"]} == dict.fromkeys(STORAGES, count)
        asyncio.run(_delete(server.url))
        others = [name for name in STORAGES if name[0] not in "ac" and name != LINE_END]
        chosen = (LINE_END, "a*", *others, "--set", "storage=file")  # 2.10 restores none into memory
        done = jsbackup("restore", "latest", *chosen, *where).ok().document
        assert {one["name"]: one["messages"] for one in done["streams"]} == dict.fromkeys(STORAGES, 2)
        assert all([consumer["name"] for consumer in one["consumers"]] == [one["name"]] for one in done["streams"])
        compared = jsbackup("diff", "latest", "live", *where).document["streams"]
        assert all((one["added"], one["removed"], one["changed"]) == (0, 0, 0) for one in compared)


def test_a_permission_for_such_a_name_is_missed_at_once(tmp_path: Path) -> None:
    denied = [f"$JS.API.STREAM.INFO.{name}" for name in (NO_BREAK, LINE_END, "S\U000e0001t")]
    quoted = ", ".join(f'"{subject}"' for subject in denied)
    user = f"{{ user: u, password: p, permissions: {{ publish: {{ deny: [{quoted}] }} }} }}"
    with NatsServer(NEWEST, config=f"accounts {{ A {{ jetstream: enabled, users: [{user}] }} }}") as server:
        url = server.url.replace("://", "://u:p@")
        asyncio.run(_make(url))
        # It would wait for an answer for the whole time, were the denial not understood.
        done = jsbackup("backup", "-s", url, "-r", tmp_path / "repo", "--timeout", "300s", seconds=60)
        assert done.code == 3
        reasons = {one["name"]: one["reason"] for one in done.document["skipped"]}
        assert set(reasons) == {NO_BREAK, LINE_END}
        assert all("does not allow publishing to $JS.API.STREAM.INFO." in reason for reason in reasons.values())
