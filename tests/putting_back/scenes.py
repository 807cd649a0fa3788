"""Streams with messages of every kind, and what a put-back has to make of them, by rules of its own."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.js.errors import KeyNotFoundError

from tests.harness.api import JSON, Wire, call, connected, headers
from tests.harness.commands import Ran, jsbackup
from tests.harness.oracle import ObservedMessage, observe

T = TypeVar("T")

ORIGIN = b"Jsbackup-Origin: "

# The names of headers that may not be in a copy, as a server's source has them.
ACTING = (
    b"nats-expected-",
    b"nats-rollup",
    b"nats-batch-",
    b"nats-ttl",
    b"nats-trace-",
    b"nats-scheduler",
    b"nats-stream-source",
)


# As a client that publishes messages sees them: subject, header block, payload.
Messages = Sequence[tuple[str, bytes | None, bytes]]


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


async def make(url: str, name: str, **config: Any) -> None:
    async with connected(url) as nc:
        await call(nc, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name.lower()}.>"], **config})


async def held(url: str, stream: str) -> list[ObservedMessage]:
    """What the stream has, read by the harness alone."""
    async with connected(url) as nc:
        return list((await observe(nc, [stream]))[stream].messages)


async def last_sequence(url: str, stream: str) -> int:
    async with connected(url) as nc:
        found: int = (await call(nc, f"STREAM.INFO.{stream}"))["state"]["last_seq"]
        return found


async def delete(url: str, stream: str, sequences: Sequence[int]) -> None:
    async with connected(url) as nc:
        for sequence in sequences:
            await call(nc, f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})


async def publish(url: str, messages: Messages) -> list[JSON]:
    """Publish with these header blocks, byte for byte; return the acknowledgements."""
    wire = await Wire.open(url)
    try:
        for subject, block, data in messages:
            await wire.send(subject, data, block)
        return [json.loads(one.data) for one in await wire.replies()]
    finally:
        await wire.close()


def of_every_kind(chance: random.Random, stream: str, count: int) -> list[tuple[str, bytes | None, bytes]]:
    """Messages with no headers, an empty block, repeated names, odd spelling, and headers that act on publishing."""
    found: list[tuple[str, bytes | None, bytes]] = []
    for number in range(count):
        block = chance.choice(
            [
                None,
                headers(),
                headers(("A", "1"), ("B", "2"), ("A", "3"), ("a", "4")),
                b"NATS/1.0\r\nNo-Space:x\r\nMany-Blanks:   y  \r\nEmpty:\r\n\r\n",
                headers(("Nats-Msg-Id", f"{stream}-{number}"), ("Z", "last")),
                headers(("First", "1"), ("Nats-Expected-Stream", stream), ("Last", "2")),
                headers(("Traceparent", "00-x"), ("Umlaut", "äöü \N{SNOWMAN}")),
            ]
        )
        data = chance.randbytes(chance.choice([0, 1, 50, 5000]))
        found.append((f"{stream.lower()}.{chance.choice('abc')}.{number % 3}", block, data))
    return found


def is_copy_of(original: ObservedMessage, copy: ObservedMessage, stream: str) -> bool:
    """Whether the copy has what the original had, and says where it comes from."""
    assert copy.header_block is not None
    kept = [one for one in lines(original.header_block) if not one.lower().startswith(ACTING)]
    rest = [one for one in lines(copy.header_block) if not one.lower().startswith((*ACTING, ORIGIN.lower().strip()))]
    origin = f" {stream} {original.sequence} ".encode()
    said = [one for one in lines(copy.header_block) if one.startswith(ORIGIN)]
    same = (original.subject, original.data, kept) == (copy.subject, copy.data, rest)
    return same and len(said) == 1 and origin in said[0]


def lines(block: bytes | None) -> list[bytes]:
    return [] if block is None else block.removesuffix(b"\r\n\r\n").split(b"\r\n")[1:]


def back_up(url: str, repo: Path, *streams: str) -> str:
    made = jsbackup("backup", *streams, "-s", url, "-r", repo).ok()
    return str(made.document["backup"])


def lose(url: str, repo: Path, stream: str, messages: Messages, **config: Any) -> list[ObservedMessage]:
    """Publish to a new stream, back it up, and purge it; return what it had."""
    run(make(url, stream, **config))
    run(publish(url, messages))
    found = run(held(url, stream))
    back_up(url, repo)
    run(purge(url, stream))
    return found


async def purge(url: str, stream: str) -> None:
    async with connected(url) as nc:
        await call(nc, f"STREAM.PURGE.{stream}")


def put_back(url: str, repo: Path, *arguments: str) -> Ran:
    return jsbackup("put-back", *arguments, "-s", url, "-r", repo)


def actions(ran: Ran) -> dict[int, str]:
    return {row["sequence"]: row["action"] for row in ran.document["messages"]}


async def in_client(url: str, work: Any) -> Any:
    async with connected(url) as nc:
        return await work(nc)


async def keys_of(url: str, bucket: str, *keys: str) -> dict[str, bytes | None]:
    """The values of keys as a client reads them, None for a key without one."""

    async def read(nc: Client) -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {}
        kv = await nc.jetstream().key_value(bucket)
        for key in keys:
            try:
                found[key] = (await kv.get(key)).value
            except KeyNotFoundError:
                found[key] = None
        return found

    found: dict[str, bytes | None] = await in_client(url, read)
    return found
