"""Filters and new sequences on real servers: what they mean for consumers, copies, buckets and streams that change.

`test_reshape.py` draws options at random; `tests/exchange/test_edited_alike.py` compares with `nats backup edit`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from tests.harness.api import PATIENCE_SECONDS, call, connected, keys_of
from tests.harness.commands import jsbackup
from tests.harness.filling import fill, publish
from tests.harness.oracle import ObservedStream, observe
from tests.harness.servers import NEWEST, NatsServer

pytestmark = pytest.mark.nats

Starter = Callable[..., NatsServer]


def observed(server: NatsServer, name: str) -> ObservedStream:
    async def look() -> ObservedStream:
        async with connected(server.url) as nc:
            return (await observe(nc, [name]))[name]

    return asyncio.run(look())


async def _fill(url: str) -> None:
    async with connected(url) as nc:
        js = nc.jetstream()
        await fill(nc, "ORDERS", 0, subjects=["orders.*"])
        for number in range(40):
            block = {"Kind": "test"} if number % 4 == 0 else None
            await js.publish(f"orders.{number % 5}", b"%d" % number, headers=block)
        sources = [{"name": "ORDERS", "filter_subject": "orders.1"}]
        await call(nc, "STREAM.CREATE.SUM", {"name": "SUM", "sources": sources})
        bucket = await js.create_key_value(bucket="cfg", history=5)
        for number in range(12):
            await bucket.put(f"k{number % 3}", b"%d" % number)
        await bucket.delete("k1")
        objects = await js.create_object_store(bucket="files")
        await objects.put("one.bin", bytes(300_000))
        last = await js.create_key_value(bucket="last", history=1)
        for key in ("a", "b", "a"):
            await last.put(key, b"")
        while (await call(nc, "STREAM.INFO.SUM"))["state"]["messages"] < 8:
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def source() -> Iterator[NatsServer]:
    with NatsServer(NEWEST) as server:
        asyncio.run(_fill(server.url))
        yield server


@pytest.fixture(scope="module")
def repository(source: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filters") / "repo"
    jsbackup("backup", "-s", source.url, "-r", folder).ok()
    return folder


@pytest.fixture(scope="module")
def target() -> Iterator[NatsServer]:
    with NatsServer(NEWEST) as server:
        yield server


def plan(repository: Path, target: NatsServer, *words: str | Path) -> dict[str, Any]:
    return jsbackup("plan", "latest", *words, "-r", repository, "-s", target.url).document


def rules(planned: dict[str, Any]) -> set[str]:
    return {found["rule"] for found in (*planned["refusals"], *planned["warnings"])}


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("OBJ_files", "--last-per-subject", "1"), "newest-of-objects"),
        (("ORDERS", "SUM", "--renumber"), "renumbers-origin"),
        (("KV_cfg", "--kv-compact", "--rename", "KV_cfg=KV_x"), ""),
        (("ORDERS", "--payload-match", "^1", "--header", "Kind", "--renumber"), "renumbered"),
        (("ORDERS", "SUM", "--renumber", "--set", "sources=null"), ""),
        (("OBJ_files", "--exclude-subject", "$O.files.M.>"), "objects-in-part"),
        (("OBJ_files", "--until", "2"), "objects-in-part"),
        (("KV_cfg", "--payload-match", "[0-9]"), "keys-return"),
        # At sequence 2 the bucket had a key that has been overwritten since.
        (("KV_last", "--until", "2"), "overwritten-since"),
        (("KV_last", "--subject", "$KV.last.a"), ""),
        (("ORDERS", "--header", "kinds"), "filter-missed"),
        # What the other options leave out is not what the header has missed.
        (("ORDERS", "--header", "kinds", "--since", "2090-01-01T00:00:00Z"), "keeps-nothing"),
        (("ORDERS", "--header", "kind", "--header", "kinds"), "filter-missed"),
        (("ORDERS", "--header", "kind", "--header", "kinds", "--allow-nothing"), ""),
        (("ORDERS", "--header", "kinds", "--allow-nothing"), "nothing-kept"),
    ],
)
def test_a_plan_tells_what_filters_mean(
    repository: Path, target: NatsServer, words: tuple[str, ...], rule: str
) -> None:
    found = rules(plan(repository, target, *words)) - {"copies-on", "origin-absent", "origin-renewed", "message-ttl"}
    assert (rule in found) if rule else not found, found


def test_a_bucket_is_compacted(repository: Path, source: NatsServer, target: NatsServer, tmp_path: Path) -> None:
    """By a restore and by a clone; clients find what they should."""
    where = ("-r", repository, "-s", target.url)
    jsbackup("restore", "latest", "KV_cfg", "--kv-compact", "--rename", "KV_cfg=KV_a", *where).ok()
    jsbackup("clone", "KV_cfg", "--kv-compact", "--renumber", "--rename", "KV_cfg=KV_b",
             "-s", source.url, "--to-server", target.url).ok()  # fmt: skip
    assert [(m.sequence, m.data) for m in observed(target, "KV_a").messages] == [(10, b"9"), (12, b"11")]
    assert [(m.sequence, m.data) for m in observed(target, "KV_b").messages] == [(1, b"9"), (2, b"11")]

    async def use() -> None:
        async with connected(target.url) as nc:
            for name, revision in (("a", 12), ("b", 2)):
                bucket = await nc.jetstream().key_value(name)
                assert await keys_of(bucket) == ["k0", "k2"]
                entry = await bucket.get("k2")
                assert (entry.value, entry.revision) == (b"11", revision)
                assert await bucket.update("k2", b"next", last=revision) > revision

    asyncio.run(use())


def test_a_part_does_not_replace_a_stream_that_has_more(repository: Path, target: NatsServer) -> None:
    where = ("-r", repository, "-s", target.url)
    again = ("ORDERS", "--rename", "ORDERS=MORE", "--map-subject", "orders.*=>more.$1", "--if-exists", "replace")
    jsbackup("restore", "latest", *again, *where).ok()
    for words in (["--exclude-subject", "orders.0"], ["--header", "kind"], ["--last-per-subject", "2"]):
        refused = jsbackup("restore", "latest", *again, *words, *where)
        assert refused.code == 15 and "of 40 messages at the target" in refused.out, refused.out
        assert len(observed(target, "MORE").messages) == 40
    done = jsbackup("restore", "latest", *again, "--last-per-subject", "2", "--replace-with-part", *where).ok()
    assert done.document["streams"][0]["messages"] == 10
    # All of the backup is kept by this one: it is no part.
    jsbackup("restore", "latest", *again, "--last-per-subject", "9", *where).ok()


def test_a_stream_numbered_anew_is_replaced_by_the_same_again(repository: Path, target: NatsServer) -> None:
    """Its messages have other sequences than in the backup, and the same times."""
    filters = ("--exclude-subject", "orders.0", "--map-subject", "orders.*=>half.$1", "--renumber")
    line = ("restore", "latest", "ORDERS", "--rename", "ORDERS=HALF", *filters, "-r", repository, "-s", target.url)
    for more in ((), ("--if-exists", "replace"), ("--if-exists", "replace")):
        done = jsbackup(*line, *more).ok()
        assert done.document["streams"][0]["messages"] == 32
    asyncio.run(publish(target.url, "half.1"))
    assert jsbackup(*line, "--if-exists", "replace").code == 15


@pytest.mark.parametrize(("storage", "renumber"), [("file", False), ("memory", True)])
def test_a_stream_that_is_written_to_is_cloned_with_its_newest_messages(
    nats_server: Starter, storage: str, renumber: bool
) -> None:
    origin, goal = nats_server(NEWEST), nats_server(NEWEST)
    written: dict[bytes, list[int]] = {}

    async def write(nc: Client, number: int) -> None:
        subject = f"busy.{number % 20}"
        reply = await nc.request(subject, bytes(3000), timeout=PATIENCE_SECONDS)
        written.setdefault(subject.encode(), []).append(json.loads(reply.data)["seq"])

    async def clone() -> dict[str, Any]:
        async with connected(origin.url) as nc:
            await fill(nc, "BUSY", 0, subjects=["busy.*"], storage=storage, max_msgs_per_subject=3)
            for number in range(400):
                await write(nc, number)
            words = ["clone", "BUSY", "--last-per-subject", "1", *(["--renumber"] if renumber else [])]
            line = [*words, "-s", origin.url, "--to-server", goal.url]
            cloning = asyncio.create_task(asyncio.to_thread(jsbackup, *line))
            while not cloning.done():
                await write(nc, sum(map(len, written.values())))
            document: dict[str, Any] = cloning.result().ok().document
            return document

    (stream,) = asyncio.run(clone())["streams"]
    assert stream["verified"]
    messages = observed(goal, "BUSY").messages
    assert sorted(one.subject for one in messages) == sorted(written)
    if renumber:
        gaps = any("its sequences have gaps" in note for note in stream["notes"])
        assert gaps or [one.sequence for one in messages] == list(range(1, 21))
    else:
        assert all(one.sequence in written[one.subject][19:] for one in messages)


def test_consumers_wait_for_the_same_messages_under_new_sequences(nats_server: Starter, tmp_path: Path) -> None:
    origin, goal = nats_server(NEWEST), nats_server(NEWEST)

    async def make() -> None:
        async with connected(origin.url) as nc:
            js = nc.jetstream()
            await fill(nc, "S", 0, subjects=["s.*"], first_seq=100)
            for number in range(30):
                await js.publish(f"s.{number % 3}", b"%d" % number)
            one = await js.pull_subscribe("s.*", "reader", stream="S")
            for message in (await one.fetch(12))[::2]:
                await message.ack_sync()
            start = {"durable_name": "later", "ack_policy": "explicit", "deliver_policy": "by_start_sequence"}
            request = {"stream_name": "S", "config": {**start, "opt_start_seq": 120}}
            await call(nc, "CONSUMER.DURABLE.CREATE.S.later", request)

    async def read(consumer: str) -> list[int]:
        async with connected(goal.url) as nc:
            subscription = await nc.jetstream().pull_subscribe_bind(consumer, "S")
            waiting = await subscription.consumer_info()
            batch = await subscription.fetch(waiting.num_pending, timeout=PATIENCE_SECONDS)
            return [int(message.data) for message in batch]

    asyncio.run(make())
    jsbackup("backup", "-s", origin.url, "-r", tmp_path / "r").ok()
    words = ("--exclude-subject", "s.0", "--renumber", "-r", tmp_path / "r", "-s", goal.url)
    done = jsbackup("restore", "latest", "S", *words).ok()
    after = observed(goal, "S")
    assert "first_seq" not in after.config
    kept = [number for number in range(30) if number % 3]
    assert [(one.sequence, int(one.data)) for one in after.messages] == list(enumerate(kept, start=1))
    told = {one["name"]: one["fidelity"] for one in done.document["streams"][0]["consumers"]}
    assert told["reader"] == "exact"
    waiting = after.consumers["reader"]
    assert waiting["num_ack_pending"] == len([n for n in range(1, 12, 2) if n % 3])
    assert waiting["delivered"]["stream_seq"] == len([n for n in range(12) if n % 3])
    assert asyncio.run(read("later")) == [number for number in kept if number >= 20]
    assert asyncio.run(read("reader"))[0] == 13
