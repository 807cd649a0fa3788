"""The end of a stream as it grows: everything that comes, once and in order, within bounded memory, or an error."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from jsbackup.config import ConnectionOptions, source_connection
from jsbackup.engine.follow.tail import Backlog, Tail
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.errors import DigestMismatch, TransferError
from tests.harness.api import call, connected
from tests.harness.servers import NEWEST, NatsServer

pytestmark = pytest.mark.nats

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
