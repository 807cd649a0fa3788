"""Snapshots and restores by hand, over nats-py's core client: nothing of the product's own protocol code."""

from __future__ import annotations

import asyncio
import json
from typing import NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.harness.api import JSON, call

_CHUNK_BYTES = 100_000
_STALL_SECONDS = 20.0


class Snapshot(NamedTuple):
    state: JSON
    config: JSON
    raw: bytes


async def snapshot(nc: Client, stream: str) -> Snapshot:
    """The whole S2 stream of a snapshot with consumers, and what the server answered to the request."""
    inbox = nc.new_inbox()
    arrived: asyncio.Queue[Msg] = asyncio.Queue()

    async def on_message(message: Msg) -> None:
        arrived.put_nowait(message)

    subscription = await nc.subscribe(inbox, cb=on_message)
    answer = await call(nc, f"STREAM.SNAPSHOT.{stream}", {"deliver_subject": inbox, "no_consumers": False})
    chunks: list[bytes] = []
    while (message := await asyncio.wait_for(arrived.get(), _STALL_SECONDS)).data:
        chunks.append(message.data)
        if message.reply:
            await nc.publish(message.reply)
    if message.headers and message.headers.get("Status", "204") != "204":
        raise RuntimeError(f"snapshot of {stream} failed: {message.headers}")
    await subscription.unsubscribe()
    return Snapshot(answer["state"], answer["config"], b"".join(chunks))


async def restore(nc: Client, config: JSON, raw: bytes) -> None:
    """Sends an S2 stream as the restore of the stream `config` describes. RuntimeError with the server's words."""
    state: JSON = dict.fromkeys(("messages", "bytes", "first_seq", "last_seq", "consumer_count"), 0)
    state |= dict.fromkeys(("first_ts", "last_ts"), "0001-01-01T00:00:00Z")
    answer = await call(nc, f"STREAM.RESTORE.{config['name']}", {"config": config, "state": state})
    for at in range(0, len(raw), _CHUNK_BYTES):
        reply = await nc.request(answer["deliver_subject"], raw[at : at + _CHUNK_BYTES], timeout=_STALL_SECONDS)
        if reply.data:
            raise RuntimeError(f"restore of {config['name']} failed: {reply.data!r}")
    reply = await nc.request(answer["deliver_subject"], b"", timeout=_STALL_SECONDS)
    if error := json.loads(reply.data).get("error"):
        raise RuntimeError(f"restore of {config['name']} failed: {error}")
