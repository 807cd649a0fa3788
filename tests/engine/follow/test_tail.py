"""The end of a stream as it grows: everything that comes, once and in order, within bounded memory, or an error."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from jsbackup.config.connection import ConnectionOptions, source_connection
from jsbackup.engine.follow import tail as module
from jsbackup.engine.follow.tail import Backlog, Tail
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.errors import ApiError, DigestMismatch, TransferError
from jsbackup.protocol.info import stream_info
from tests.engine.restores import connection_to
from tests.engine.scripted_streams import ScriptedConsumer, ScriptedStream, refusal
from tests.engine.snapshots import MESSAGES
from tests.harness.api import call, connected
from tests.harness.batches import Message
from tests.harness.peer import ScriptedPeer
from tests.harness.servers import NEWEST, NatsServer

MIB = 1 << 20


@asynccontextmanager
async def stream(server: NatsServer, **config: object) -> AsyncIterator[JetStream]:
    """An empty stream S of the subjects s.>, and a link to its server."""
    async with connected(server.url) as nc:
        await call(nc, "STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], **config})
    connection = source_connection(ConnectionOptions(server=server.url), {"HOME": "/nonexistent"})
    async with connect_jetstream(connection) as js:
        yield js


async def publish(js: JetStream, *payloads: bytes) -> None:
    for payload in payloads:
        await js.link.request("s.a", payload)


async def tail_of(js: JetStream, backlog: Backlog) -> Tail:
    """From the last message on."""
    state = (await js.stream("S")).state
    return Tail(js, "S", state.last_seq, state.last_ns, backlog=backlog)


async def read(js: JetStream, tail: Tail, first: int) -> list[tuple[int, bytes]]:
    """From `first` to the end that the server tells of."""
    info = await js.stream("S", deleted_details=True)
    batches = tail.read(info, first, info.state.last_seq)
    return [(row["sequence"], row["data"]) async for batch in batches for row in batch.to_pylist()]


@pytest.mark.nats
def test_what_comes_is_read_once_and_in_order(nats_server: Callable[..., NatsServer]) -> None:
    async def run() -> None:
        server = nats_server(NEWEST)
        async with stream(server) as js:
            await publish(js, b"1", b"2")
            tail = await tail_of(js, Backlog(MIB, MIB))
            await tail.begun()
            await publish(js, b"3", b"", b"5")
            assert await read(js, tail, 3) == [(3, b"3"), (4, b""), (5, b"5")]
            tail.settle(5, 5)
            await publish(js, b"6")
            # What a backup has may be asked for once more, and what was let go of comes from the server.
            assert await read(js, tail, 2) == [(2, b"2"), (3, b"3"), (4, b""), (5, b"5"), (6, b"6")]
            await tail.close()
            async with connected(server.url) as nc:
                assert (await call(nc, "CONSUMER.NAMES.S"))["total"] == 0

    asyncio.run(run())


@pytest.mark.nats
def test_what_went_before_it_came_is_not_waited_for(nats_server: Callable[..., NatsServer]) -> None:
    async def run() -> None:
        async with stream(nats_server(NEWEST)) as js:
            await publish(js, b"1", b"2")
            tail = await tail_of(js, Backlog(MIB, MIB))
            await tail.begun()
            await publish(js, b"3", b"4")
            await js.delete_message("S", 4)
            assert await read(js, tail, 3) in ([(3, b"3")], [(3, b"3"), (4, b"4")])
            await tail.close()

    asyncio.run(run())


@pytest.mark.nats
def test_a_stream_that_has_lost_its_end_is_noticed(nats_server: Callable[..., NatsServer]) -> None:
    async def run() -> None:
        async with stream(nats_server(NEWEST)) as js:
            await publish(js, b"1", b"2")
            state = (await js.stream("S")).state
            other = Tail(js, "S", 2, state.last_ns - 1, backlog=Backlog(MIB, MIB))
            with pytest.raises(DigestMismatch):
                await other.begun()
            await other.close()

    asyncio.run(run())


@pytest.mark.nats
def test_what_finds_no_room_stays_at_the_server(nats_server: Callable[..., NatsServer]) -> None:
    async def run() -> None:
        async with stream(nats_server(NEWEST)) as js:
            await publish(js, b"1")
            backlog = Backlog(4 * MIB, 2 * MIB)
            tail = await tail_of(js, backlog)
            payloads = [bytes([number]) * 1000 + os.urandom(500_000) for number in range(40)]
            await tail.begun()
            await publish(js, *payloads)
            await backlog.due.wait()
            assert tail.held_bytes < 7 * MIB
            assert [data for _, data in await read(js, tail, 2)] == payloads
            assert tail.held_bytes < 7 * MIB
            await tail.close()

    asyncio.run(run())


@pytest.mark.nats
def test_many_streams_share_the_room_and_none_of_their_messages_is_lost(nats_server: Callable[..., NatsServer]) -> None:
    """Less than a piece of each: what backups have is let go of first, and asked for again where it is needed."""

    async def run() -> None:
        server = nats_server(NEWEST)
        async with stream(server) as js:
            names = [f"T{number}" for number in range(30)]
            async with connected(server.url) as nc:
                for name in names:
                    await call(nc, f"STREAM.CREATE.{name}", {"name": name, "subjects": [name]})
            for name in names:
                await js.link.request(name, b"first")
            backlog = Backlog(MIB // 2, MIB // 4)
            tails = {}
            for name in names:
                state = (await js.stream(name)).state
                tails[name] = Tail(js, name, state.last_seq, state.last_ns, backlog=backlog)
                await tails[name].begun()
            payloads = {name: [os.urandom(8_000) for _ in range(12)] for name in names}  # 2.8 MB in all
            for some in range(0, 12, 4):
                backlog.due.clear()
                for name in names:
                    for payload in payloads[name][some : some + 4]:
                        await js.link.request(name, payload)
                await asyncio.wait_for(backlog.due.wait(), 20)
                for name, tail in tails.items():
                    last = some + 5
                    info = await js.stream(name, deleted_details=True)
                    batches = tail.read(info, 2, last)  # with what earlier ones have read
                    found = [row["data"] async for batch in batches for row in batch.to_pylist()]
                    assert found == payloads[name][: some + 4]
                    tail.settle(last, 2)
                assert sum(tail.held_bytes for tail in tails.values()) < MIB
            for tail in tails.values():
                await tail.close()
            assert not backlog.full and backlog.held_bytes == 0

    asyncio.run(run())


@pytest.mark.nats
def test_it_goes_on_where_it_was_when_the_server_is_back(nats_server: Callable[..., NatsServer]) -> None:
    async def run() -> None:
        server = nats_server(NEWEST)
        async with stream(server) as js:
            await publish(js, b"1")
            tail = await tail_of(js, Backlog(MIB, MIB))
            await tail.begun()
            await publish(js, b"2")
            assert await read(js, tail, 2) == [(2, b"2")]
            server.restart()
            with pytest.raises(TransferError):
                await publish(js, b"3")
            for _ in range(3):  # the loss may be noticed by the first of them only
                with suppress(TransferError):
                    await tail.begun()
                    await publish(js, b"last")
                    last = (await js.stream("S")).state.last_seq
                    assert (await read(js, tail, 2))[-1] == (last, b"last")
                    break
            else:
                pytest.fail("it does not go on")
            await tail.close()

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------ without a server

AT = MESSAGES[9]  # the last message of the last backup
AFTER = MESSAGES[10:20]

Script = Callable[[ScriptedStream, Tail], Awaitable[None]]


def play(script: Script) -> None:
    """A tail after AT, of a stream that holds AFTER too, at a server that follows the script."""

    async def main() -> None:
        async with ScriptedPeer() as peer, connect_jetstream(connection_to(peer.url)) as js:
            scripted = ScriptedStream(peer, MESSAGES[:20])
            tail = Tail(js, "ORDERS", AT.sequence, AT.timestamp_ns, backlog=Backlog(MIB, MIB))
            try:
                await asyncio.wait_for(script(scripted, tail), 60)
            finally:
                await tail.close()

    asyncio.run(main())


async def begin(scripted: ScriptedStream, tail: Tail) -> ScriptedConsumer:
    consumer = await scripted.expect_consumer()
    assert consumer.first == AT.sequence
    await consumer.say(AT)
    await tail.begun()
    return consumer


async def sequences(scripted: ScriptedStream, tail: Tail) -> list[int]:
    """What it reads, after AT, to the end that the server tells of."""
    info = stream_info(scripted.info)
    batches = tail.read(info, AT.sequence + 1, info.state.last_seq)
    return [sequence async for batch in batches for sequence in batch.column("sequence").to_pylist()]


def sequences_of(messages: list[Message]) -> list[int]:
    return [one.sequence for one in messages]


def test_a_tail_has_what_its_consumer_delivers_after_the_message_that_it_continues() -> None:
    async def script(scripted: ScriptedStream, tail: Tail) -> None:
        consumer = await begin(scripted, tail)
        await consumer.say_all(AFTER)
        assert await sequences(scripted, tail) == sequences_of(AFTER)

    play(script)


@pytest.mark.parametrize(
    "first", [AFTER[0], AT._replace(timestamp_ns=AT.timestamp_ns + 1), AT._replace(sequence=AT.sequence - 1)]
)
def test_a_tail_that_meets_another_message_where_it_begins_has_found_another_stream(first: Message) -> None:
    async def script(scripted: ScriptedStream, tail: Tail) -> None:
        await (await scripted.expect_consumer()).say(first)
        with pytest.raises(DigestMismatch, match="is not there, or not what it was"):
            await tail.begun()

    play(script)


def test_a_tail_whose_first_message_does_not_come_is_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BEGIN_SECONDS", 0.05)

    async def script(scripted: ScriptedStream, tail: Tail) -> None:
        await scripted.expect_consumer()
        with pytest.raises(DigestMismatch, match="was not delivered"):
            await tail.begun()

    play(script)


def test_a_tail_that_may_not_have_a_consumer_says_so() -> None:
    async def script(scripted: ScriptedStream, tail: Tail) -> None:
        heard = await scripted.peer.expect("$JS.API.CONSUMER.CREATE.ORDERS.*")
        await scripted.peer.answer(heard, refusal("consumer_create_response", 10026, "maximum consumers limit reached"))
        with pytest.raises(ApiError, match="10026"):
            await tail.begun()

    play(script)


@pytest.mark.parametrize(
    ("wrong", "delivery", "words"),
    [
        (AFTER[3], 4, "delivery 4 came as number 5"),  # the consumer was made again, or counts on
        (AFTER[4], 6, "delivery 6 came as number 5"),  # it left one out
        (AFTER[2], 5, f"sequence {AFTER[2].sequence} came after {AFTER[2].sequence}"),
        (AFTER[0], 5, f"sequence {AFTER[0].sequence} came after {AFTER[2].sequence}"),
    ],
)
def test_a_delivery_out_of_order_ends_the_consumer_and_another_one_goes_on_after_the_last_good_one(
    wrong: Message, delivery: int, words: str
) -> None:
    async def script(scripted: ScriptedStream, tail: Tail) -> None:
        consumer = await begin(scripted, tail)
        await consumer.say_all(AFTER[:3])
        await consumer.say(wrong, delivery=delivery)
        with pytest.raises(TransferError, match=words):
            await sequences(scripted, tail)
        resuming = asyncio.create_task(tail.begun())
        another = await scripted.expect_consumer()
        assert another.first == AFTER[2].sequence
        await another.say_all(AFTER[2:])
        await resuming
        assert await sequences(scripted, tail) == sequences_of(AFTER)

    play(script)


def test_a_consumer_that_goes_silent_is_given_up_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SILENT_SECONDS", 0.1)

    async def script(scripted: ScriptedStream, tail: Tail) -> None:
        consumer = await begin(scripted, tail)
        await consumer.say_all(AFTER[:3])
        with pytest.raises(TransferError, match=r"its consumer (went silent|has stopped)"):
            await sequences(scripted, tail)
        resuming = asyncio.create_task(tail.begun())
        another = await scripted.expect_consumer()
        monkeypatch.setattr(module, "_SILENT_SECONDS", 60.0)
        await another.say_all(AFTER[2:])
        await resuming
        assert await sequences(scripted, tail) == sequences_of(AFTER)

    play(script)


def test_a_message_that_is_gone_before_its_delivery_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ASK_SECONDS", 0.02)

    async def script(scripted: ScriptedStream, tail: Tail) -> None:
        consumer = await begin(scripted, tail)
        await consumer.say_all(AFTER[:-1])
        consumer.pending = 0
        assert await sequences(scripted, tail) == sequences_of(AFTER[:-1])

    play(script)


def test_a_tail_that_lost_its_connection_keeps_what_it_has_and_goes_on_from_there() -> None:
    async def script(scripted: ScriptedStream, tail: Tail) -> None:
        consumer = await begin(scripted, tail)
        await consumer.say_all(AFTER[:5])
        while tail.at < AFTER[4].sequence:
            await asyncio.sleep(0)
        scripted.peer.drop()
        with pytest.raises(TransferError, match="was lost"):
            await sequences(scripted, tail)
        resuming = asyncio.create_task(tail.begun())
        another = await scripted.expect_consumer()
        assert another.first == AFTER[4].sequence
        await another.say_all(AFTER[4:])
        await resuming
        assert await sequences(scripted, tail) == sequences_of(AFTER)

    play(script)
