"""A stream, a bucket and an object store with what is awkward in them, made by nats-py and by the nats CLI."""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64encode
from pathlib import Path

from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig

from tests.harness.api import call, connected
from tests.harness.natscli import run_nats

EVIL = "evil\x1b[31mred\x1b[0m\u202e"
BINARY = bytes(range(256))
LARGE = bytes(range(251)) * 2000  # several chunks


async def _describe(nc: Client, name: str, **more: object) -> None:
    encoded = urlsafe_b64encode(name.encode()).decode()
    about = {"name": name, "bucket": "files", "size": 0, "chunks": 0, **more}
    await nc.jetstream().publish(f"$O.files.M.{encoded}", json.dumps(about).encode())


async def fill_shelf(url: str, folder: Path) -> None:
    async with connected(url) as nc:
        js = nc.jetstream()
        await call(nc, "STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"]})
        for number in range(1, 301):
            headers = {"Nats-Msg-Id": f"order-{number}"} if number % 3 == 0 else None
            data = json.dumps({"order": number}).encode()
            await js.publish(f"orders.{'eu' if number % 2 else 'us'}.{number % 5}", data, headers=headers)
        await js.publish(f"orders.{EVIL}", f"{EVIL}\n{EVIL}".encode(), headers={"Evil": EVIL.replace("\x1b", "\x9b")})
        await js.publish("orders.binary", BINARY)
        await js.publish("orders.empty", b"")
        await js.add_consumer("ORDERS", ConsumerConfig(durable_name="billing", ack_policy=AckPolicy.EXPLICIT))
        billing = await js.pull_subscribe_bind("billing", stream="ORDERS")
        for message in await billing.fetch(6):
            if message.metadata.sequence.stream in (1, 2, 5):
                await message.ack_sync()
        await call(nc, "STREAM.MSG.DELETE.ORDERS", {"seq": 7})
        bucket = await js.create_key_value(bucket="settings", history=3)
        await bucket.put("theme", b"dark")
        await bucket.put("theme", BINARY)
        await bucket.put("lang", b"en")
        await bucket.delete("lang")
        await js.publish(f"$KV.settings.{EVIL}", EVIL.encode())
        store = await js.create_object_store("files")
        await store.put("a/large", LARGE)
        await store.put("twice", b"old")
        await store.put("twice", b"new")
        await store.put("gone", b"gone")
        await store.delete("gone")
        await store.put("empty", b"")
        await store.put(f"../{EVIL}", b"evil")
        (folder / "by-cli").write_bytes(LARGE[:200_000])
        run_nats("object", "put", "files", folder / "by-cli", "--name", "by-cli", "--no-progress", "--force", url=url)
        await _describe(nc, "link", options={"link": {"bucket": "files", "name": "a/large"}})
        await _describe(nc, "to-bucket", options={"link": {"bucket": "settings"}})
        await _describe(nc, "to-nothing", options={"link": {"bucket": "missing", "name": "x"}})
        await _describe(nc, "to-link", options={"link": {"bucket": "files", "name": "link"}})
        await _describe(nc, "short", nuid="nothing", chunks=2, size=9)
        await _describe(nc, "wild", nuid=">", chunks=2, size=9)
        wrong = urlsafe_b64encode(hashlib.sha256(b"other").digest()).decode()
        await js.publish("$O.files.C.mine", b"mine")
        await _describe(nc, "wrong", nuid="mine", chunks=1, size=4, digest=f"SHA-256={wrong}")
        await js.publish("$O.files.M.bm9qc29u", b"no json")
