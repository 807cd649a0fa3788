"""Maps of all subjects leave buckets to their names: what is restored works for clients (point 8)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from nats.js.api import ConsumerConfig

from tests.harness.api import call, connected, history_of
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import Type, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

_COPIES = (
    {"name": "KV_near", "mirror": {"name": "KV_cfg"}, "max_msgs_per_subject": 5, "mirror_direct": True},
    {
        "name": "KV_sum",
        "subjects": ["$KV.sum.>"],
        "max_msgs_per_subject": 5,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "sources": [{"name": "KV_cfg", "subject_transforms": [{"src": "$KV.cfg.>", "dest": "$KV.sum.>"}]}],
    },
    {"name": "AUDIT", "sources": [{"name": "KV_cfg"}, {"name": "ORDERS", "filter_subject": "orders.*"}]},
)


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


async def _fill(url: str) -> None:
    async with connected(url) as nc:
        js = nc.jetstream()
        config = {"name": "KV_cfg", "subjects": ["$KV.cfg.>"], "max_msgs_per_subject": 5, "allow_rollup_hdrs": True}
        republish = {"src": ">", "dest": "told.>"}
        await call(nc, "STREAM.CREATE.KV_cfg", {**config, "allow_direct": True, "republish": republish})
        await call(nc, "STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.*"]})
        bucket = await js.key_value("cfg")
        for value in (b"old", b"new"):
            await bucket.put("a.b", value)
        objects = await js.create_object_store("files")
        await objects.put("one", b"1" * 200_000)
        await js.publish("orders.1", b"text")
        for config in _COPIES:
            await call(nc, f"STREAM.CREATE.{config['name']}", config)
        for stream, wanted in (("KV_sum", 2), ("KV_near", 2), ("AUDIT", 3)):
            await _has(url, stream, wanted)
        await js.pull_subscribe("$KV.cfg.a.>", "reader", stream="KV_cfg", config=ConsumerConfig(ack_wait=600))
        await js.pull_subscribe("$KV.cfg.>", "auditor", stream="AUDIT", config=ConsumerConfig(ack_wait=600))


async def _has(url: str, stream: str, messages: int) -> None:
    async with connected(url) as nc:
        for _ in range(600):
            if (await call(nc, f"STREAM.INFO.{stream}"))["state"]["messages"] == messages:
                return
            await asyncio.sleep(0.05)
    raise AssertionError(f"{stream} never had {messages} messages")


async def _works(url: str, prefix: str, told: str) -> None:
    """Clients read what there was, write, and what copies and reads the bucket has it too."""
    async with connected(url) as nc:
        js = nc.jetstream()
        bucket, summed = await js.key_value(f"{prefix}cfg"), await js.key_value(f"{prefix}sum")
        assert (await bucket.get("a.b")).value == b"new" and (await summed.get("a.b")).value == b"new"
        assert [entry.value for entry in await history_of(bucket, "a.b")] == [b"old", b"new"]
        objects = await js.object_store(f"{prefix}files")
        assert (await objects.get("one")).data == b"1" * 200_000
        listening = await nc.subscribe(f"{told}.>")
        await bucket.put("a.b", b"newer")
        heard = await listening.next_msg(timeout=20)
        assert heard.subject == f"{told}.$KV.{prefix}cfg.a.b"
        assert (await bucket.get("a.b")).value == b"newer"
        for name, wanted in ((f"KV_{prefix}sum", 3), (f"KV_{prefix}near", 3), (f"{prefix}AUDIT", 4)):
            await _has(url, name, wanted)
        assert (await summed.get("a.b")).value == b"newer"
        for stream, consumer, wanted in ((f"KV_{prefix}cfg", "reader", 3), (f"{prefix}AUDIT", "auditor", 3)):
            reader = await js.pull_subscribe_bind(consumer, stream)
            assert len(await reader.fetch(wanted, timeout=20)) == wanted


def test_buckets_work_when_every_subject_is_mapped(typed: Type, tmp_path: Path) -> None:
    repo = ("-r", tmp_path / "repo")
    with NatsServer(NEWEST) as server:
        asyncio.run(_fill(server.url))
        where = ("-s", server.url, *repo)
        assert typed("backup", *where).code == 0
        done = typed("restore", "latest", *where, "--rename", "*=t_*", "--map-subject", ">=>t.>", "--json")
        assert done.code == 0, done.out
        asyncio.run(_works(server.url, "t_", "t.told"))
        asyncio.run(_works(server.url, "", "told"))

        named = ("--map-subject", "$KV.cfg.>=>$KV.new.>")
        refused = typed("restore", "latest", "KV_cfg", *where, "--if-exists", "replace", *named)
        assert refused.code == 15
        assert "the subjects of a bucket change with its name only" in refused.err
        done = typed("restore", "latest", "KV_cfg", *where, "--rename", "KV_cfg=KV_new", *named)
        assert done.code == 0, done.err
