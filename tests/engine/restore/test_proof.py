"""A restored stream is read back as often as it takes, and each reading counts alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pytest

from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.read.consume import read_messages
from jsbackup.engine.restore.proof import Expected, Proof, prove_stream
from jsbackup.errors import TransferError
from jsbackup.formats.digest import StreamDigester
from scripts.bench_load import request
from tests.engine.restores import connection_to
from tests.harness.api import JSON, call, connected
from tests.harness.servers import NEWEST, NatsServer

pytestmark = pytest.mark.nats

V1 = "2.11.11"  # its snapshots are archives v1
MESSAGES = 20


async def _fill(url: str) -> None:
    config: JSON = {"name": "ORDERS", "subjects": ["orders"], "storage": "file", "retention": "limits"}
    async with connected(url) as nc:
        await call(nc, "STREAM.CREATE.ORDERS", {**config, "num_replicas": 1})
        for number in range(MESSAGES):
            await nc.request("orders", b"%d" % number)


async def _expected(js: JetStream) -> Expected:
    info = await js.stream("ORDERS")
    batches = [batch async for batch in read_messages(js, info, lambda _bytes, _messages: None)]
    digester = StreamDigester()
    for batch in batches:
        digester.update(batch)
    last_seq = info.state.last_seq
    return Expected(digester.stream_digest, digester.messages, last_seq, info.config, (), lambda: batches)


@pytest.mark.parametrize("version", [V1, NEWEST])
def test_what_a_broken_reading_got_is_not_counted(version: str) -> None:
    broken = [TransferError("broken off")]

    def advance(_bytes: int, messages: int) -> None:
        if messages and broken:
            raise broken.pop()

    async def main(url: str) -> tuple[Expected, Proof]:
        await _fill(url)
        async with connect_jetstream(connection_to(url)) as js:
            expected = await _expected(js)
            return expected, await prove_stream(js, "ORDERS", expected, now_ns=time.time_ns, advance=advance)

    with NatsServer(version) as server:
        expected, proof = asyncio.run(main(server.url))
    assert not broken
    assert (proof.digest, proof.messages, proof.gone) == (expected.digest, MESSAGES, 0)


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
            return await prove_stream(js, "ORDERS", ageing, now_ns=time.time_ns, advance=lambda _bytes, _messages: None)

    with NatsServer(NEWEST) as server:
        proof = asyncio.run(main(server.url))
    assert (proof.messages, proof.gone) == (MESSAGES - 5, 5)
