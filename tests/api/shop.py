"""What the tests of the public face publish, and how they look at servers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from tests.harness.api import call, connected
from tests.harness.oracle import ObservedStream, observe

COUNT = 300

Row = tuple[int, int, str, bytes | None, bytes]
"""Sequence, time in nanoseconds, subject, headers, payload."""


@dataclass(frozen=True)
class Shop:
    """A server, the messages of its stream ORDERS, and a repository with a backup of it."""

    url: str
    published: list[Row]
    folder: Path
    backup: str


async def fill(url: str, *, count: int = COUNT, size: int = 10) -> list[Row]:
    """Streams ORDERS and EMPTY, a bucket, a consumer. The messages of ORDERS, as the server tells of them."""
    async with connected(url) as nc:
        await call(nc, "STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"]})
        await call(nc, "STREAM.CREATE.EMPTY", {"name": "EMPTY", "subjects": ["empty"]})
        js = nc.jetstream()
        bucket = await js.create_key_value(bucket="settings")
        await bucket.put("theme", b"dark")
        for number in range(1, count + 1):
            where = "eu" if number % 3 else "us"
            extra = {"Shop": str(number)} if number % 2 else None
            await nc.publish(f"orders.{where}.{number % 7}", b"order %d " % number * size, headers=extra)
        await _stored(nc, "ORDERS", count)
        await call(nc, "STREAM.MSG.DELETE.ORDERS", {"seq": 10})
        request = {"stream_name": "ORDERS", "config": {"durable_name": "packing", "ack_policy": "explicit"}}
        await call(nc, "CONSUMER.DURABLE.CREATE.ORDERS.packing", request)
        for message in await (await js.pull_subscribe_bind("packing", "ORDERS")).fetch(5):
            await message.ack_sync()
        stream = (await observe(nc))["ORDERS"]
    return [(one.sequence, one.time_ns, one.subject.decode(), one.header_block, one.data) for one in stream.messages]


async def _stored(nc: Client, stream: str, count: int) -> None:
    """Until the server has stored so many messages: they were published without waiting for it."""
    while (await call(nc, f"STREAM.INFO.{stream}"))["state"]["messages"] < count:
        await asyncio.sleep(0.01)


async def fill_small(url: str) -> None:
    async with connected(url) as nc:
        await call(nc, "STREAM.CREATE.SMALL", {"name": "SMALL", "subjects": ["small"]})
        await nc.publish("small", b"message")
        await _stored(nc, "SMALL", 1)


def look(url: str) -> dict[str, ObservedStream]:
    async def observed() -> dict[str, ObservedStream]:
        async with connected(url) as nc:
            return await observe(nc)

    return asyncio.run(observed())


def rows(batches: Any) -> list[Row]:
    """The messages of Arrow batches."""
    names = ("sequence", "timestamp_ns", "subject", "headers", "data")
    return [tuple(row[name] for name in names) for batch in batches for row in batch.to_pylist()]
