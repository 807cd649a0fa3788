"""Keys of buckets on real servers: the values that clients read afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.js.api import KeyValueConfig

from jsbackup.config.connection import ConnectionOptions, source_connection
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.putting_back.chosen import ChosenMessages
from jsbackup.putting_back.model import Fate, PutBackOptions, PutBackReport, PutBackRun
from jsbackup.putting_back.plan import make_plan
from jsbackup.putting_back.run import write_messages
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.harness.api import call, connected, headers
from tests.harness.servers import NEWEST, NatsServer
from tests.putting_back.scenes import (
    back_up,
    held,
    in_client,
    is_copy_of,
    keys_of,
    last_sequence,
    lose,
    make,
    put_back,
    run,
)

pytestmark = pytest.mark.nats

Starter = Callable[..., NatsServer]


async def _bucket(nc: Client) -> None:
    kv = await nc.jetstream().create_key_value(KeyValueConfig(bucket="settings", history=3))
    for value in (b"light", b"dark", b"blue"):
        await kv.put("theme", value)
    await kv.put("lang", b"en")
    await kv.put("prices.eu", b"10")
    await kv.put("prices.us", b"\x00\xff binary")
    await kv.put("same", b"same")
    await kv.put("gone", b"x")
    await kv.delete("gone")


async def _change(nc: Client) -> None:
    kv = await nc.jetstream().key_value("settings")
    await kv.delete("theme")
    await kv.put("lang", b"de")
    await kv.purge("prices.eu")
    await kv.delete("prices.us")
    await kv.put("same", b"same")


def test_values_come_back_unless_a_newer_one_is_there(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    run(in_client(server.url, _bucket))
    back_up(server.url, repo)
    run(in_client(server.url, _change))
    names = ("theme", "lang", "prices.eu", "prices.us", "same", "gone")
    before = run(last_sequence(server.url, "KV_settings"))

    refused = put_back(server.url, repo, "latest", "settings", "--key", ">")
    assert (refused.code, refused.document["result"]) == (16, "refused")
    assert "lang" in refused.document["error"]["message"] and "newer" in refused.document["error"]["message"]
    assert run(last_sequence(server.url, "KV_settings")) == before

    dry = put_back(server.url, repo, "latest", "settings", "--key", "theme", "--dry-run").ok()
    assert dry.document["write"] == 1 and run(last_sequence(server.url, "KV_settings")) == before

    made = put_back(server.url, repo, "latest", "KV_settings", "--key", "theme", "--key", "prices.*").ok()
    assert made.document["written"] == 3
    assert run(keys_of(server.url, "settings", *names)) == {
        "theme": b"blue",
        "lang": b"de",
        "prices.eu": b"10",
        "prices.us": b"\x00\xff binary",
        "same": b"same",
        "gone": None,
    }
    part = put_back(server.url, repo, "latest", "settings", "--key", ">", "--partial")
    assert part.code == 3 and part.document["written"] == 0 and part.document["there"] == 4
    over = put_back(server.url, repo, "latest", "settings", "--key", "lang", "--overwrite").ok()
    assert over.document["messages"][0]["overwrites"]
    assert run(keys_of(server.url, "settings", "lang")) == {"lang": b"en"}
    assert put_back(server.url, repo, "latest", "settings", "--key", ">").ok().document["there"] == 5
    for key in ("gone", "never", "nothing.*"):
        assert put_back(server.url, repo, "latest", "settings", "--key", key).code == 1


def test_an_older_value_by_its_revision(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    run(in_client(server.url, _bucket))
    published = run(held(server.url, "KV_settings"))
    back_up(server.url, repo)
    chosen = ("latest", "settings", "--key", "theme", "--at", "2")
    assert put_back(server.url, repo, *chosen).code == 16  # the newest value is newer
    put_back(server.url, repo, *chosen, "--overwrite").ok()
    assert run(keys_of(server.url, "settings", "theme")) == {"theme": b"dark"}
    assert put_back(server.url, repo, *chosen).ok().document["there"] == 1
    assert is_copy_of(published[1], run(held(server.url, "KV_settings"))[-1], "KV_settings")
    assert put_back(server.url, repo, "latest", "settings", "--key", "theme", "--at", "99").code == 2


def test_a_writer_between_plan_and_write_is_not_lost(nats_server: Starter, tmp_path: Path) -> None:
    """For a key that was deleted, one that never was there, and one that would be overwritten."""
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    run(in_client(server.url, _bucket))
    back_up(server.url, repo)

    async def remove(nc: Client) -> None:
        kv = await nc.jetstream().key_value("settings")
        await kv.delete("theme")
        await call(nc, "STREAM.PURGE.KV_settings", {"filter": "$KV.settings.lang"})
        await kv.put("prices.eu", b"11")

    async def between(nc: Client) -> None:
        kv = await nc.jetstream().key_value("settings")
        for key in ("theme", "lang", "prices.eu"):
            await kv.put(key, b"from someone else")

    async def race() -> PutBackReport:
        opened = Repository.open(LocalStore(repo))
        manifest = opened.manifest(opened.backups()[-1])
        options = PutBackOptions("settings", keys=("theme", "lang", "prices.*"), overwrite=True)
        connection = source_connection(ConnectionOptions(server=server.url), {"HOME": "/nonexistent"})
        async with connect_jetstream(connection) as js, connected(server.url) as nc:
            await remove(nc)
            plan = await make_plan(js, opened.objects, manifest, options, now_ns=time.time_ns())
            assert [one.action for one in plan.messages].count("write") == 3
            await between(nc)
            chosen = ChosenMessages(opened.objects, manifest, plan.entry, options)
            return await write_messages(js, chosen, plan, PutBackRun(connection, options))

    report = run(race())
    assert report.code == 16 and not report.written
    assert {one.name for one in report.of(Fate.CONFLICT)} == {"theme", "lang", "prices.eu"}
    assert run(keys_of(server.url, "settings", "theme", "lang", "prices.eu")) == dict.fromkeys(
        ("theme", "lang", "prices.eu"), b"from someone else"
    )


def test_a_time_to_live_goes_on_where_it_was(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    run(make(server.url, "PLAIN", subjects=["plain"]))
    messages = [
        ("t.hour", headers(("A", "1"), ("Nats-TTL", "1h"), ("B", "2")), b"1"),
        ("t.never", headers(("Nats-TTL", "never")), b"2"),
        ("t.short", headers(("Nats-TTL", "5s")), b"3"),
    ]
    published = lose(server.url, repo, "T", messages, allow_msg_ttl=True)
    refused = put_back(server.url, repo, "latest", "T", "--subject", ">", "--dry-run")
    while refused.code == 0:  # until the time of the third is over
        time.sleep(2)
        refused = put_back(server.url, repo, "latest", "T", "--subject", ">", "--dry-run")
    assert refused.code == 15 and "time to live ended" in refused.document["error"]["message"]
    made = put_back(server.url, repo, "latest", "T", "--subject", ">", "--partial")
    assert (made.code, made.document["written"]) == (3, 2)
    hour, never = run(held(server.url, "T"))
    assert is_copy_of(published[0], hour, "T") and is_copy_of(published[1], never, "T")
    assert hour.header_block is not None and never.header_block is not None
    [line] = [one for one in hour.header_block.split(b"\r\n") if one.startswith(b"Nats-TTL: ")]
    assert 3000 < int(line.removeprefix(b"Nats-TTL: ").removesuffix(b"s")) < 3600
    assert b"Nats-TTL: never" in never.header_block
    elsewhere = put_back(server.url, repo, "latest", "T", "--subject", "t.hour", "--to", "PLAIN")
    assert elsewhere.code == 15 and run(last_sequence(server.url, "PLAIN")) == 0
