"""Masks of whole payloads on real servers: buckets stay usable, counters count on, and what would break is refused."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.api import call, connected, keys_of
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import Type, ask, names, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

CONTENT = {"one.bin": bytes(range(256)) * 1200, "two.txt": b"SECRET two"}
REPLACE = ("--if-exists", "replace")


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer(NEWEST) as server:
        asyncio.run(_fill(server.url))
        yield server


def payloads(url: str, stream: str) -> list[bytes]:
    last = ask(url, f"STREAM.INFO.{stream}")["state"]["last_seq"]
    found = (ask(url, f"STREAM.MSG.GET.{stream}", {"seq": number}) for number in range(1, last + 1))
    return [base64.b64decode(one["message"].get("data", "")) for one in found]


async def _fill(url: str) -> None:
    async with connected(url) as nc:
        js = nc.jetstream()
        await call(nc, "STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"]})
        for number in range(20):
            data = b"" if number == 7 else f"SECRET {number}".encode()
            await js.publish(f"orders.{number % 3}", data, headers={"X-User": "SECRET"})
        bucket = await js.create_key_value(bucket="cfg", history=3)
        for number in range(9):
            await bucket.put(f"k{number % 4}", b"SECRET%d" % number)
        await bucket.delete("k3")
        files = await js.create_object_store(bucket="files")
        for name, content in CONTENT.items():
            await files.put(name, content)
        await files.put("gone.txt", b"SECRET gone")
        await files.delete("gone.txt")
        config = {"name": "COUNTS", "subjects": ["counts.>"], "allow_msg_counter": True, "allow_direct": True}
        await call(nc, "STREAM.CREATE.COUNTS", config)
        for number in range(6):
            await js.publish(f"counts.{number % 2}", b"", headers={"Nats-Incr": "+5"})
        # Copies what is counted, word for word.
        await call(nc, "STREAM.CREATE.MIRROR", {"name": "MIRROR", "mirror": {"name": "COUNTS"}})
        while (await call(nc, "STREAM.INFO.MIRROR"))["state"]["messages"] < 6:
            await asyncio.sleep(0.05)


async def _use(url: str, sizes: dict[str, int]) -> None:
    """Reads keys and files as clients do, which compare digests."""
    async with connected(url) as nc:
        js = nc.jetstream()
        bucket = await js.key_value("cfg")
        assert await keys_of(bucket) == ["k0", "k1", "k2"]
        assert (await bucket.get("k0")).value == bytes(7) and (await bucket.get("k0")).revision == 9
        await bucket.put("k0", b"new")
        files = await js.object_store("files")
        assert {one.name for one in await files.list() if not one.deleted} == sizes.keys()
        for name, size in sizes.items():
            assert (await files.get(name)).data == bytes(size)
        await files.put("three.txt", b"three")


async def _count_on(url: str) -> None:
    async with connected(url) as nc:
        answer = json.loads((await nc.request("counts.0", b"", headers={"Nats-Incr": "+2"}, timeout=20)).data)
        assert answer["val"] == "17", answer


def test_all_payloads_of_an_account_become_zeros_and_all_goes_on(
    server: NatsServer, typed: Type, tmp_path: Path
) -> None:
    repo, mask = ("-r", tmp_path / "repo"), ("--mask", ">:payload=zero")
    assert typed("backup", "-s", server.url, *repo, "-q").code == 0
    planned = typed("plan", "latest", *mask, *REPLACE, "-s", server.url, *repo, "--json")
    notes = {action["stream"]: "; ".join(action["notes"]) for action in planned.document["actions"]}
    assert planned.code == 0
    assert ">:payload=zero masks 19 payloads in the 19 messages that it applies to" in notes["ORDERS"]
    assert "not masked although a mask applies: " in notes["OBJ_files"]
    with NatsServer(NEWEST) as target:
        done = typed("restore", "latest", *mask, "-s", target.url, *repo, "--json")
        assert done.code == 0, done
        assert payloads(target.url, "ORDERS") == [bytes(len(data)) for data in payloads(server.url, "ORDERS")]
        asyncio.run(_use(target.url, {name: len(content) for name, content in CONTENT.items()}))
        asyncio.run(_count_on(target.url))
        assert payloads(target.url, "MIRROR")[:6] == payloads(server.url, "MIRROR")
        told = {stream["name"]: "; ".join(stream["notes"]) for stream in done.document["streams"]}
        assert all("not masked although a mask applies: 6 messages" in told[name] for name in ("COUNTS", "MIRROR"))
        both = ("-s", server.url, "--to-server", target.url)
        cloned = typed("clone", "ORDERS", "OBJ_files", *mask, *REPLACE, "--replace-with-part", *both, "-q")
        assert cloned.code == 0
        assert payloads(target.url, "ORDERS") == [bytes(len(data)) for data in payloads(server.url, "ORDERS")]


def test_payloads_are_dropped_except_where_files_would_be_lost(server: NatsServer, typed: Type, tmp_path: Path) -> None:
    repo, drop = ("-r", tmp_path / "repo"), ("--mask", ">:payload=drop")
    assert typed("backup", "-s", server.url, *repo, "-q").code == 0
    refused = typed("restore", "latest", "OBJ_files", *drop, *REPLACE, "-s", server.url, *repo, "--json")
    assert refused.code == 15
    assert "files of a bucket cannot be opened without their content" in str(refused.document), refused.document
    done = typed("restore", "latest", "ORDERS", "KV_cfg", *drop, *REPLACE, "-s", server.url, *repo, "--json")
    assert done.code == 0, done
    assert payloads(server.url, "ORDERS") == [b""] * 20

    async def read() -> None:
        async with connected(server.url) as nc:
            bucket = await nc.jetstream().key_value("cfg")
            assert ((await bucket.get("k0")).value or b"") == b""
            assert await keys_of(bucket) == ["k0", "k1", "k2"]

    asyncio.run(read())


def test_a_path_never_changes_a_counter(server: NatsServer, typed: Type, tmp_path: Path) -> None:
    repo = ("-r", tmp_path / "repo")
    assert typed("backup", "-s", server.url, *repo, "-q").code == 0
    for stream, path in (("COUNTS", "$.val"), ("MIRROR", "$..val")):
        line = ("restore", "latest", stream, "--mask", f"counts.>:{path}=redact", *REPLACE, *repo)
        done = typed(*line, "-s", server.url, "--json")
        assert done.code == 15 and "is a counter, and a mask would change its value" in str(done.document), done
    cloning = ("clone", "COUNTS", "--rename", "COUNTS=C", "--map-subject", "counts.>=>c.>")
    done = typed(*cloning, "--mask", "counts.>:$.val=redact", "-s", server.url, "--to-server", server.url)
    assert done.code == 15 and "C" not in names(server.url)
    # A path that is not in it changes nothing.
    line = ("COUNTS", "--mask", "counts.>:$.who=redact", "--allow-nothing", *REPLACE)
    assert typed("restore", "latest", *line, "-s", server.url, *repo, "-q").code == 0
    asyncio.run(_count_on(server.url))
