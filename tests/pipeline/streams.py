"""Many small streams on a server, for what is spread over executors."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.harness.api import JSON, Wire, call, connected


async def make_streams(url: str, count: int, *, messages: int, size_bytes: int) -> None:
    """`S000`, `S001` … of so many messages each, JSON with a value `secret` and some filling."""
    chance = random.Random(count)
    async with connected(url) as nc:
        for number in range(count):
            name = f"S{number:03}"
            config: JSON = {"name": name, "subjects": [f"{name}.*"], "storage": "file", "retention": "limits"}
            await call(nc, f"STREAM.CREATE.{name}", config | {"num_replicas": 1})
    wire = await Wire.open(url)
    for sequence in range(messages):
        for number in range(count):
            data = {"secret": f"{number}-{sequence % 3}", "filling": chance.randbytes(size_bytes // 2).hex()}
            await wire.send(f"S{number:03}.{sequence % 5}", json.dumps(data).encode())
    for reply in await wire.replies():
        assert b'"error"' not in reply.data, reply
    await wire.close()


def account(password: str, *, denied: str) -> str:
    """Configuration of a server with two users: `all`, and `some`, who may not read the stream `denied`."""
    deny = f'permissions: {{ publish: {{ deny: ["$JS.API.STREAM.SNAPSHOT.{denied}"] }} }}'
    users = f"users: [{{ user: all, password: {password} }}, {{ user: some, password: {password}, {deny} }}]"
    return f"accounts {{ A {{ jetstream: enabled, {users} }} }}"


def digests(document: dict[str, Any]) -> dict[str, str]:
    """Of the document of a backup or a restore, by stream."""
    return {stream["name"]: stream["digest"] for stream in document["streams"]}


async def make_empty(url: str, *names: str) -> None:
    """Streams without messages, with subjects that begin with their names."""
    async with connected(url) as nc:
        for name in names:
            await call(nc, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "storage": "file"})
