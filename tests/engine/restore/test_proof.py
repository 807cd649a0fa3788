"""A restored stream is read back as often as it takes, and each reading counts alone."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.read.consume import read_messages
from jsbackup.engine.restore.proof import Expected, Proof, prove_stream
from jsbackup.errors import DigestMismatch, TransferError
from jsbackup.formats.digest import StreamDigester
from jsbackup.model import ArchivedConsumer, ConsumerState
from jsbackup.progress import ignored
from jsbackup.transforms.removal import Cause
from scripts.bench_load import request
from tests.engine.restores import connection_to
from tests.harness.api import JSON, call, connected
from tests.harness.batches import Message, batch_of
from tests.harness.filling import fill, publish
from tests.harness.servers import ENDS, NEWEST, NatsServer

pytestmark = pytest.mark.nats

MESSAGES = 20


async def _fill(url: str, **fields: Any) -> None:
    config: JSON = {"subjects": ["orders"], "storage": "file", "retention": "limits", "num_replicas": 1, **fields}
    await fill(url, "ORDERS", MESSAGES, subject="orders", **config)


async def _publish(url: str, count: int) -> None:
    async with connected(url) as nc:
        for number in range(count):
            await publish(nc, "orders", [b"%d" % (10 + number)], {"N": "1"} if number % 2 else None)


async def _expected(js: JetStream) -> Expected:
    info = await js.stream("ORDERS")
    batches = [batch async for batch in read_messages(js, info, lambda _bytes, _messages: None)]
    digester = StreamDigester()
    for batch in batches:
        digester.update(batch)
    last_seq = info.state.last_seq
    return Expected(digester.stream_digest, digester.messages, last_seq, info.config, (), lambda: batches)


@pytest.mark.parametrize("version", ENDS)
def test_what_a_broken_reading_got_is_not_counted(version: str) -> None:
    broken = [TransferError("broken off")]

    def advance(_bytes: int, messages: int) -> None:
        if messages and broken:
            raise broken.pop()

    async def main(url: str) -> tuple[Expected, Proof]:
        await _fill(url)
        async with connect_jetstream(connection_to(url)) as js:
            expected = await _expected(js)
            return expected, await prove_stream(js, "ORDERS", expected, advance=advance)

    with NatsServer(version) as server:
        expected, proof = asyncio.run(main(server.url))
    assert not broken
    assert (proof.digest, proof.messages, proof.gone.total()) == (expected.digest, MESSAGES, 0)


def test_what_is_left_and_what_is_gone_are_all_that_was_restored() -> None:
    """Consumers go on between the readings."""

    async def main(url: str) -> Proof:
        await _fill(url)
        async with connect_jetstream(connection_to(url)) as js:
            expected = await _expected(js)

            def take(*sequences: int) -> None:
                for sequence in sequences:
                    request(url, "STREAM.MSG.DELETE.ORDERS", {"seq": sequence})

            def read_again() -> Iterable[pa.RecordBatch]:
                take(3, 4, 5)
                return expected.messages_of()

            await asyncio.to_thread(take, 1, 2)
            ageing = replace(expected, config={**expected.config, "max_age": 1}, messages_of=read_again)
            return await prove_stream(js, "ORDERS", ageing, advance=lambda _bytes, _messages: None)

    with NatsServer(NEWEST) as server:
        proof = asyncio.run(main(server.url))
    assert (proof.messages, proof.gone) == (MESSAGES - 5, {Cause.EXPIRED: 5})
    assert proof.bytes is not None and proof.bytes > 0


# -------------------------------------------------------------------------------------------- streams at their limits


async def _proved(url: str, published: int, *lost: int, **config: Any) -> Proof:
    """The proof of a stream that lost messages, and to which others were published then."""
    await _fill(url, **config)
    async with connect_jetstream(connection_to(url)) as js:
        expected = await _expected(js)
        for sequence in lost:
            await asyncio.to_thread(request, url, "STREAM.MSG.DELETE.ORDERS", {"seq": sequence})
        await _publish(url, published)
        return await prove_stream(js, "ORDERS", expected, advance=ignored)


LIMITS = [
    ({"max_msgs": 30}, "max_msgs 30"),
    ({"max_msgs": 30, "storage": "memory"}, "max_msgs 30"),
    # Thirty messages without headers in a file, of "orders" and two digits: some of those published have headers.
    ({"max_bytes": 30 * 38}, "max_bytes 1140"),
    ({"max_bytes": 30 * 24, "storage": "memory"}, "max_bytes 720"),
    ({"max_msgs_per_subject": 30}, "max_msgs_per_subject 30"),
]


@pytest.mark.parametrize(("config", "limit"), LIMITS)
def test_what_a_stream_discards_for_newer_messages_is_not_missing(config: JSON, limit: str) -> None:
    with NatsServer(NEWEST) as server:
        proof = asyncio.run(_proved(server.url, 15, **config))
    assert 0 < proof.gone[Cause.DISCARDED] == proof.discarded.messages == MESSAGES - proof.messages
    assert (proof.discarded.limits, proof.discarded.published) == ((limit,), 15)
    assert "max_bytes" in limit or proof.gone.total() == 5


def test_a_stream_at_its_limit_that_lost_more_is_wrong() -> None:
    with NatsServer(NEWEST) as server, pytest.raises(DigestMismatch) as caught:
        asyncio.run(_proved(server.url, 15, MESSAGES, max_msgs=30))
    assert f"1 missing ({MESSAGES})" in caught.value.message


@contextlib.asynccontextmanager
async def _publishing(url: str, subject: Callable[[int], str] = lambda _number: "orders") -> AsyncIterator[None]:
    """Publish without a pause."""

    ended = asyncio.Event()  # a request may swallow that its task is cancelled

    async def publish() -> None:
        async with connected(url) as nc:
            for number in itertools.count():
                if ended.is_set():
                    break
                await nc.request(subject(number), bytes(1000), timeout=30)

    task = asyncio.create_task(publish())
    try:
        yield
    finally:
        ended.set()
        await task


def test_publishers_that_never_pause_do_not_keep_a_full_stream_from_its_proof() -> None:
    async def main(url: str) -> Proof:
        await _fill(url, max_msgs=3_000)
        async with connected(url) as nc:
            for _ in range(2_950):
                await nc.publish("orders", bytes(1000))
            await nc.flush()
        async with connect_jetstream(connection_to(url)) as js:
            while (await js.stream("ORDERS")).state.messages < MESSAGES + 2_950:
                await asyncio.sleep(0.01)
            expected = await _expected(js)
            async with _publishing(url):
                while (await js.stream("ORDERS")).state.first_seq < 100:
                    await asyncio.sleep(0.01)
                return await prove_stream(js, "ORDERS", expected, advance=ignored)

    with NatsServer(NEWEST) as server:
        proof = asyncio.run(main(server.url))
    assert proof.gone.total() == proof.discarded.messages > 90
    assert proof.messages + proof.gone.total() == MESSAGES + 2_950


# ------------------------------------------------------------------------------------------------------------- queues


async def _proved_queue(url: str, retention: str, *, taken: int, purged: str = "") -> Proof:
    """The proof of a queue with a consumer for each of two subjects: one takes some, and one subject is purged."""
    async with connected(url) as nc:
        await fill(nc, "ORDERS", 0, retention=retention)
        for one in "ab":
            consumer = {"durable_name": one, "ack_policy": "explicit", "filter_subject": f"orders.{one}"}
            await call(nc, f"CONSUMER.DURABLE.CREATE.ORDERS.{one}", {"stream_name": "ORDERS", "config": consumer})
        for number in range(MESSAGES):
            await nc.request(f"orders.{'ab'[number % 2]}", b"%d" % number)
    async with connect_jetstream(connection_to(url)) as js, connected(url) as nc:
        info = await js.stream("ORDERS")
        stored = [await js.message("ORDERS", number) for number in range(1, MESSAGES + 1)]
        batches = [batch_of([Message(m.sequence, m.timestamp_ns, m.subject, m.headers, m.data) for m in stored if m])]
        digester = StreamDigester()
        digester.update(batches[0])
        consumers = [
            ArchivedConsumer(name, one.config, ConsumerState())
            for name, one in (await js.consumers("ORDERS")).entries.items()
        ]
        expected = Expected(
            digester.stream_digest, digester.messages, info.state.last_seq, info.config, consumers, lambda: batches
        )
        if taken:
            inbox = await nc.subscribe("taken")
            await nc.publish("$JS.API.CONSUMER.MSG.NEXT.ORDERS.a", b'{"batch":%d}' % taken, reply="taken")
            for _ in range(taken):
                message = await inbox.next_msg(timeout=10)
                await nc.request(message.reply, b"+ACK", timeout=10)
        if purged:
            await call(nc, "STREAM.PURGE.ORDERS", {"filter": purged})
        return await prove_stream(js, "ORDERS", expected, advance=ignored)


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_what_consumers_of_a_queue_have_taken_is_not_missing(retention: str) -> None:
    with NatsServer(NEWEST) as server:
        proof = asyncio.run(_proved_queue(server.url, retention, taken=4))
    assert (proof.messages, proof.gone.total()) == (MESSAGES - 4, 4)


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_a_queue_lacks_what_no_consumer_can_have_taken(retention: str) -> None:
    with NatsServer(NEWEST) as server, pytest.raises(DigestMismatch) as caught:
        asyncio.run(_proved_queue(server.url, retention, taken=4, purged="orders.b"))
    assert "in 10 messages: 10 missing" in caught.value.message
