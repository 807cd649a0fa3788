"""The bench on which awkward streams are built, and the register of their builders.

A builder is an async function `(bench) -> None` that makes one stream (and what it needs) on a real server through the
plain API. It is registered with the server version that brought the feature it is about. Contents are deterministic
apart from the times that servers set.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from tests.harness.api import JSON, PATIENCE_SECONDS, Refused, Wire, call

Version = tuple[int, int]
Storage = Literal["file", "memory"]

SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
# Beyond the life of any test run, within what an int64 of nanoseconds holds.
LONG_NS = 20_000 * HOUR_NS

V2_10: Version = (2, 10)
V2_11: Version = (2, 11)
V2_12: Version = (2, 12)
V2_14: Version = (2, 14)

# JetStream's "stream not found", "consumer not found", "temporarily unavailable" and "no suitable peers".
_NOT_KNOWN_YET = (10059, 10014, 10008, 10005)
_NO_SEQUENCE = (10043, 10057)

# Subjects' first token in the memory group, so that both groups can live on one server.
_MEMORY_PREFIX = "M_"


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """One stream that `fill` made: its name, since which server it can exist, what is awkward about it."""

    name: str
    since: Version
    what: str
    storage: Storage
    consumers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Builder:
    """`key` is what `only` selects; the stream's name is `name` (with a prefix in the memory group)."""

    key: str
    name: str
    since: Version
    what: str
    file_only: bool
    build: Callable[[Bench], Awaitable[None]]


BUILDERS: dict[str, Builder] = {}


def awkward(
    name: str, what: str, *, since: Version = V2_10, file_only: bool = False, key: str | None = None
) -> Callable[[Callable[[Bench], Awaitable[None]]], Callable[[Bench], Awaitable[None]]]:
    """Registers a builder of stream `name`; the function's docstring may say more."""

    def register(build: Callable[[Bench], Awaitable[None]]) -> Callable[[Bench], Awaitable[None]]:
        entry = Builder(key or name, name, since, what, file_only, build)
        if entry.key in BUILDERS:
            raise ValueError(f"two awkward streams of the name {entry.key}")
        BUILDERS[entry.key] = entry
        return build

    return register


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as a consumer delivered it."""

    reply: str
    subject: str
    stream_sequence: int
    consumer_sequence: int
    delivered: int


@dataclass(slots=True)
class Bench:
    """What a builder works with: its stream's name, a subject root of its own, and the API verbs."""

    nc: Client
    wire: Wire
    version: Version
    storage: Storage
    replicas: int
    prefix: str
    name: str
    root: str
    random: random.Random
    consumers: list[str] = field(default_factory=list)

    def sibling(self, name: str) -> str:
        """The name of another stream in this storage group."""
        return name if self.storage == "file" else _MEMORY_PREFIX + name

    async def call(self, subject: str, request: JSON | None = None) -> JSON:
        patience = 100 if self.replicas > 1 else 0
        while True:
            try:
                return await call(self.nc, subject, request, prefix=self.prefix)
            except Refused as error:
                # Servers of a cluster learn of a new stream or consumer one after the other.
                if error.err_code not in _NOT_KNOWN_YET or not patience:
                    raise
            patience -= 1
            await asyncio.sleep(0.05)

    async def create(self, **config: object) -> None:
        """Creates the stream with the subjects `<root>.>` unless `config` says otherwise."""
        base: JSON = {"name": self.name, "storage": self.storage, "retention": "limits", "num_replicas": self.replicas}
        if "mirror" not in config and "subjects" not in config:
            base["subjects"] = [f"{self.root}.>"]
        made = (await self.call(f"STREAM.CREATE.{self.name}", {**base, **config}))["config"]
        if self.replicas > 1:
            for subject in made.get("subjects") or ():
                probe = subject.replace("*", "probe").replace(">", "probe")
                await until(lambda probe=probe: self._listens(probe, made))  # type: ignore[misc]
            # A leader that steps down at once, as on a busy machine, would let the first messages go unheard.
            await until(self._settled)

    async def _settled(self) -> bool:
        cluster = (await self.call(f"STREAM.INFO.{self.name}"))["cluster"]
        return bool(cluster.get("leader")) and all(replica["current"] for replica in cluster.get("replicas") or ())

    async def _listens(self, subject: str, config: JSON) -> bool:
        # In a cluster the stream's leader may not be known yet to the server that is published to. The header makes
        # the leader refuse what it gets, so that the probe leaves no trace; a stream without acks does not answer.
        # Both connections are asked: they may be to different servers.
        try:
            await self.nc.request(subject, b"", timeout=2, headers={"Nats-Expected-Stream": "none"})
        except NoRespondersError:
            return False
        except NatsTimeoutError:
            return bool(config.get("no_ack"))
        if config.get("no_ack"):
            return True
        await self.wire.send(subject, b"", b"NATS/1.0\r\nNats-Expected-Stream: none\r\n\r\n")
        return not any(b" 503" in reply.header_block[:16] for reply in await self.wire.replies())

    async def update(self, **changes: object) -> None:
        config = (await self.call(f"STREAM.INFO.{self.name}"))["config"]
        await self.call(f"STREAM.UPDATE.{self.name}", {**config, **changes})

    async def publish(self, *messages: tuple[str | bytes, bytes, bytes | None]) -> list[JSON]:
        """Publishes (subject, data, header block or None), pipelined; returns the acks. Refused on the first error."""
        for subject, data, block in messages:
            await self.wire.send(subject, data, block)
        acks: list[JSON] = []
        for reply in await self.wire.replies():
            if b" 503" in reply.header_block[:16]:
                raise Refused(self.name, {"description": "no stream listens on a subject", "code": 503})
            ack: JSON = json.loads(reply.data) if reply.data else {}
            if error := ack.get("error"):
                raise Refused(self.name, error)
            acks.append(ack)
        return acks

    async def publish_numbered(self, count: int, *, subjects: int = 5, size_bytes: int = 40, start: int = 0) -> None:
        """`count` messages on `<root>.0` … `<root>.<subjects-1>` in turn, seeded payloads, every third with headers."""
        await self.publish(
            *(
                (
                    f"{self.root}.{number % subjects}",
                    self.payload(size_bytes),
                    f"NATS/1.0\r\nNumber: {number}\r\n\r\n".encode() if number % 3 == 0 else None,
                )
                for number in range(start, start + count)
            )
        )

    def payload(self, size_bytes: int) -> bytes:
        """Half compressible, half random bytes."""
        half = size_bytes // 2
        return b"jetstream " * (half // 10) + b"." * (half % 10) + self.random.randbytes(size_bytes - half)

    async def delete(self, *sequences: int, secure: bool = False) -> None:
        """Deletes messages; `secure` overwrites them in their block, otherwise they are only marked (`no_erase`)."""
        for sequence in sequences:
            try:
                await self.call(f"STREAM.MSG.DELETE.{self.name}", {"seq": sequence, "no_erase": not secure})
            except Refused as error:
                # A server that did not know the stream yet was quicker to answer than the one that deleted.
                if error.err_code not in _NO_SEQUENCE or self.replicas == 1:
                    raise

    async def purge(self, **request: object) -> None:
        await self.call(f"STREAM.PURGE.{self.name}", dict(request))

    async def last_sequence(self, stream: str | None = None) -> int:
        info = await self.call(f"STREAM.INFO.{stream or self.name}")
        sequence: int = info["state"]["last_seq"]
        return sequence

    async def reach(self, last_sequence: int) -> None:
        """Waits until the stream has got as far as that (mirrors and sources copy in the background)."""
        await until(lambda: self._reached(last_sequence))

    async def _reached(self, last_sequence: int) -> bool:
        return await self.last_sequence() >= last_sequence

    async def consumer(self, consumer: str, *, durable: bool = True, **config: object) -> None:
        """Creates a consumer on the stream; explicit acks unless `config` says otherwise."""
        base: JSON = {"name": consumer, "ack_policy": "explicit", "deliver_policy": "all", "replay_policy": "instant"}
        if durable:
            base["durable_name"] = consumer
        request = {"stream_name": self.name, "config": {**base, **config}, "action": "create"}
        await self.call(f"CONSUMER.CREATE.{self.name}.{consumer}", request)
        self.consumers.append(consumer)

    async def pull(self, consumer: str, count: int, **request: object) -> list[Delivery]:
        """Pulls until `count` messages have come; the pull's options (group, min_pending, …) go in `request`."""
        inbox = self.nc.new_inbox()
        subscription = await self.nc.subscribe(inbox)
        deliveries: list[Delivery] = []
        body = json.dumps({"batch": count, "expires": 30 * SECOND_NS, **request}).encode()
        await self.nc.publish(f"{self.prefix}.CONSUMER.MSG.NEXT.{self.name}.{consumer}", body, reply=inbox)
        patience = 100
        while len(deliveries) < count:
            message = await subscription.next_msg(timeout=PATIENCE_SECONDS)
            if message.reply.startswith("$JS.ACK."):
                deliveries.append(delivery(message.reply, message.subject))
            elif (message.headers or {}).get("Status") == "503" and patience:
                # In a cluster a new consumer's leader may not be known yet to the server that was asked.
                patience -= 1
                await asyncio.sleep(0.05)
                await self.nc.publish(f"{self.prefix}.CONSUMER.MSG.NEXT.{self.name}.{consumer}", body, reply=inbox)
            else:
                raise RuntimeError(f"pull from {self.name}/{consumer} ended after {len(deliveries)}: {message.headers}")
        await subscription.unsubscribe()
        return deliveries

    async def receive(self, deliver_subject: str, count: int, queue: str = "") -> list[Delivery]:
        """Binds to a push consumer's subject until `count` messages have come."""
        subscription = await self.nc.subscribe(deliver_subject, queue=queue)
        deliveries: list[Delivery] = []
        while len(deliveries) < count:
            message = await subscription.next_msg(timeout=PATIENCE_SECONDS)
            if message.reply.startswith("$JS.ACK."):
                deliveries.append(delivery(message.reply, message.subject))
            elif message.reply:
                await message.respond(b"")
        await subscription.unsubscribe()
        await self.nc.flush()
        return deliveries

    async def ack(self, *deliveries: Delivery, verb: bytes = b"+ACK") -> None:
        """Acknowledges and waits for the server to say that it has taken it."""
        for one in deliveries:
            await self.nc.request(one.reply, verb, timeout=PATIENCE_SECONDS)


def delivery(reply: str, subject: str) -> Delivery:
    """Parses an ack subject; with domain and account hash (11 or 12 tokens) or the short form of 9.

    After `<stream>.<consumer>.` come delivered count, stream sequence, consumer sequence, time and pending.
    """
    tokens = reply.split(".")
    at = 2 if len(tokens) == 9 else 4
    delivered, stream_sequence, consumer_sequence = (int(token) for token in tokens[at + 2 : at + 5])
    return Delivery(reply, subject, stream_sequence, consumer_sequence, delivered)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Polls a condition of the server for at most a minute; TimeoutError after.

    A mirror in a cluster that misses its origin tries again only every ten seconds or so.
    """
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.02)
