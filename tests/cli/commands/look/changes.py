"""What happens between the backups of the fixture `changing`: things are replaced, deleted, compacted and purged."""

from __future__ import annotations

import json

from tests.harness.api import call, connected

REPORT = b"first report " * 20_000
SECOND_REPORT = b"second report"
DRAFT = b"a draft"


async def server_time(url: str) -> str:
    """A moment after all that was stored so far, by the server's clock."""
    async with connected(url) as nc:
        found: str = (await call(nc, "STREAM.INFO.KV_settings"))["ts"]
        return found


async def _begin(url: str) -> None:
    async with connected(url) as nc:
        js = nc.jetstream()
        await call(nc, "STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"]})
        for number in range(4700, 4721):
            data = json.dumps({"order": number, "state": "new"}).encode()
            await js.publish(f"orders.{'eu' if number % 2 else 'us'}", data)
        await js.add_consumer("ORDERS", durable_name="billing")
        settings = await js.create_key_value(bucket="settings")
        await js.create_key_value(bucket="copy")
        for key, value in (("theme", b"dark"), ("lang", b"en"), ("gone", b"here")):
            await settings.put(key, value)
        files = await js.create_object_store("files")
        await files.put("report", REPORT)
        await files.put("draft", DRAFT)


async def _change(url: str) -> None:
    async with connected(url) as nc:
        js = nc.jetstream()
        settings = await js.key_value("settings")
        await settings.put("theme", b"light")
        await settings.delete("gone")
        files = await js.object_store("files")
        await files.put("report", SECOND_REPORT)
        await files.delete("draft")
        await js.publish("orders.eu", b'{"order": 4711, "state": "paid"}')


async def _lose(url: str) -> None:
    async with connected(url) as nc:
        js = nc.jetstream()
        settings = await js.key_value("settings")
        await settings.put("theme", b"blue")
        await settings.purge_deletes(olderthan=0)
        await call(nc, "STREAM.PURGE.ORDERS", {"seq": 21})


CHANGES = (_begin, _change, _lose)
