"""Store folders of real servers, with streams of several small blocks, and ways to damage them.

    with made_store(version, "aes", directory) as made: …

A server makes blocks of 32 KB where `max_bytes` is small. What it held is told by the witness.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nats.aio.client import Client

from tests.harness.api import JSON, call, connected
from tests.harness.oracle import ObservedStream, observe
from tests.harness.servers import VERSIONS, NatsServer

KEY = "a key of the server"
# The cipher of the server (None: plain text) and the compression of the streams.
KINDS: Mapping[str, tuple[str | None, str]] = {
    "plain": (None, "none"),
    "aes": ("aes", "none"),
    "chacha": ("chacha", "none"),
    "s2": (None, "s2"),
    "s2-aes": ("aes", "s2"),
}
# The oldest and the newest server have all formats of blocks and indexes. Nothing of ciphers and compression changed
# between them: each is on one server.
STORES = [
    (VERSIONS[0], "plain"),
    ("2.12.8", "chacha"),
    ("2.14.6", "s2"),
    *((VERSIONS[-1], kind) for kind in ("plain", "s2-aes")),
]
# Those on the oldest and the newest server.
STORES_AT_ENDS = [(version, kind) for version, kind in STORES if version in (VERSIONS[0], VERSIONS[-1])]
_BLOCKS_BYTES = 127_000


@dataclass(frozen=True, slots=True)
class MadeStore:
    """The store of a server that has been stopped, and what it held."""

    version: str
    kind: str
    directory: Path
    held: Mapping[str, ObservedStream]

    @property
    def streams(self) -> Path:
        return self.directory / "store" / "jetstream" / "$G" / "streams"

    @property
    def keys(self) -> tuple[bytes, ...]:
        return (KEY.encode(),) if KINDS[self.kind][0] else ()


def server_of(version: str, kind: str, directory: Path) -> NatsServer:
    """A server whose store is, or will be, of this kind."""
    cipher = KINDS[kind][0]
    if cipher is None:
        return NatsServer(version, directory=directory)
    return NatsServer(version, directory=directory, key=KEY, cipher=cipher)


def make_store(version: str, kind: str, directory: Path, *, kill: bool = False) -> MadeStore:
    """A store with a stream `ORDERS` and its consumers, and a bucket `settings`.

    Servers write the state of a consumer a while later, and a 2.10 that ends meanwhile may leave an empty file: then
    another store is made.
    """
    for attempt in range(5):
        where = directory / str(attempt)
        where.mkdir(parents=True)
        with server_of(version, kind, where) as server:
            held = asyncio.run(_fill(server.url, KINDS[kind][1]))
            _wait_for_consumer(where)
            if kill:
                server.kill()
        if all(_size(file) for file in _consumer_files(where)):
            break
    return MadeStore(version, kind, where, held)


def _consumer_files(directory: Path) -> list[Path]:
    return sorted((directory / "store/jetstream/$G/streams/ORDERS/obs").glob("*/o.dat"))


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _wait_for_consumer(directory: Path) -> None:
    """Wait until the state of the consumer that works is in its file, and nothing more is written to it."""
    until, before = time.monotonic() + 10, 0
    while time.monotonic() < until:
        time.sleep(0.3)
        file = directory / "store/jetstream/$G/streams/ORDERS/obs/worker/o.dat"
        now = file.stat().st_mtime_ns if _size(file) else 0
        if now and now == before:
            return
        before = now


async def _fill(url: str, compression: str) -> Mapping[str, ObservedStream]:
    async with connected(url) as nc:
        common = {"storage": "file", "max_bytes": _BLOCKS_BYTES, "compression": compression}
        await call(nc, "STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"], **common})
        await call(nc, "STREAM.CREATE.KV_settings", {**_bucket("settings"), **common})
        some = random.Random(7)
        for number in range(360):
            block = {"Nats-Msg-Id": str(number), "By": "tests"} if number % 3 == 0 else None
            data = some.randbytes(100) + b"%d" % number * some.randrange(20, 60)
            await nc.request(f"orders.{number % 7}", data, timeout=60, headers=block)
            key = number if number % 3 else number % 30
            await nc.request(f"$KV.settings.key{key}", some.randbytes(200), timeout=60)
        for sequence in (3, 100, 101, 250):
            await call(nc, "STREAM.MSG.DELETE.ORDERS", {"seq": sequence, "no_erase": True})
        for name in ("worker", "unused"):
            await _consumer(nc, name)
        await _work(nc)
        return await observe(nc)


def _bucket(name: str) -> JSON:
    return {
        "name": f"KV_{name}",
        "subjects": [f"$KV.{name}.>"],
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
    }


async def _consumer(nc: Client, name: str) -> None:
    config = {"name": name, "durable_name": name, "ack_policy": "explicit", "ack_wait": 3600 * 10**9}
    request = {"stream_name": "ORDERS", "config": config, "action": ""}
    await call(nc, f"CONSUMER.CREATE.ORDERS.{name}", request)


async def _work(nc: Client) -> None:
    """Deliver forty messages; acknowledge the first ten, and some of the others."""
    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox)
    await nc.publish("$JS.API.CONSUMER.MSG.NEXT.ORDERS.worker", json.dumps({"batch": 40}).encode(), reply=inbox)
    for number in range(40):
        message = await subscription.next_msg(timeout=60)
        if number < 10 or number % 4 == 0:
            await nc.request(message.reply, b"+ACK", timeout=60)
    await subscription.unsubscribe()


# --- damage ---


@dataclass(frozen=True, slots=True)
class Damage:
    """What was done to a file: `content` is what it holds now (None: it is gone), `lost` the bytes that differ."""

    name: str
    content: bytes | None
    lost: range


def damages(content: bytes, seed: int = 1) -> Iterator[Damage]:
    """Each kind of damage to a file, at several places."""
    some, size = random.Random(seed), len(content)
    yield Damage("missing", None, range(size))
    yield Damage("empty", b"", range(size))
    for keep in sorted({size // 2, max(0, size - 5), some.randrange(size)}):
        yield Damage(f"cut to {keep} of {size} bytes", content[:keep], range(keep, size))
    for at in sorted({0, size // 3, size - 1, *(some.randrange(size) for _ in range(3))}):
        changed = bytes([content[at] ^ 1 << some.randrange(8)])
        yield Damage(f"byte {at} flipped", content[:at] + changed + content[at + 1 :], range(at, at + 1))
    start = some.randrange(size)
    stop = min(size, start + 700)
    yield Damage(
        f"bytes {start} to {stop} zeroed", content[:start] + bytes(stop - start) + content[stop:], range(start, stop)
    )


def applied(path: Path, damage: Damage) -> Callable[[], None]:
    """Damage a file; return what makes it whole again."""
    before = path.read_bytes()
    if damage.content is None:
        path.unlink()
    else:
        path.write_bytes(damage.content)
    return lambda: path.write_bytes(before) and None
