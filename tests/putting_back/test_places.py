"""Put-back into a cluster, and into another JetStream domain."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.js.api import KeyValueConfig

from tests.harness.api import call
from tests.harness.clusters import NatsCluster
from tests.harness.commands import jsbackup
from tests.harness.servers import NEWEST, hub_and_leaf
from tests.putting_back.scenes import (
    back_up,
    delete,
    held,
    in_client,
    is_copy_of,
    make,
    of_every_kind,
    publish,
    put_back,
    run,
)

pytestmark = pytest.mark.nats


def test_a_cluster_takes_keys_and_messages_in_order(tmp_path: Path) -> None:
    repo, chance = tmp_path / "repo", random.Random(3)
    names = [f"k.{n}" for n in range(60)]
    with NatsCluster(NEWEST) as cluster:
        url = cluster.url

        async def fill(nc: Client) -> None:
            kv = await nc.jetstream().create_key_value(KeyValueConfig(bucket="b", replicas=3))
            for name in names:
                await kv.put(name, name.encode())

        async def empty(nc: Client) -> None:
            await call(nc, "STREAM.PURGE.KV_b", {"filter": "$KV.b.k.1"})
            kv = await nc.jetstream().key_value("b")
            for name in names[30:]:
                await kv.delete(name)

        run(in_client(url, fill))
        run(make(url, "ORDERS", num_replicas=3, duplicate_window=100_000_000))
        run(publish(url, of_every_kind(chance, "ORDERS", 60)))
        published = run(held(url, "ORDERS"))
        back_up(url, repo)
        run(in_client(url, empty))
        run(delete(url, "ORDERS", range(1, 41)))
        made = put_back(url, repo, "latest", "b", "--key", ">").ok().document
        assert (made["written"], made["there"]) == (31, 29)
        values = {one.subject: one.data for one in run(held(url, "KV_b"))}
        assert values == {f"$KV.b.{name}".encode(): name.encode() for name in names}
        put_back(url, repo, "latest", "ORDERS", "--subject", ">").ok()
        now = run(held(url, "ORDERS"))
        assert all(is_copy_of(one, copy, "ORDERS") for one, copy in zip(published[:40], now[20:], strict=True))
        assert put_back(url, repo, "latest", "ORDERS", "--subject", ">").ok().document["written"] == 0


def test_another_domain_is_reached_through_its_leaf(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    with hub_and_leaf(NEWEST) as (hub, leaf):
        run(make(leaf.url, "S"))
        run(publish(leaf.url, [("s.a", None, b"%d" % n) for n in range(10)]))
        through = ("-s", hub.url, "--js-domain", "leaf", "-r", repo)
        jsbackup("backup", *through).ok()
        run(delete(leaf.url, "S", [2, 4]))
        made = jsbackup("put-back", "latest", "S", "--subject", ">", *through).ok()
        assert made.document["written"] == 2
        assert [one.data for one in run(held(leaf.url, "S"))][-2:] == [b"1", b"3"]
