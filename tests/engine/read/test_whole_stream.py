"""A stream is read as often as it takes, each time into a new sink, and without snapshots where there are none."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.engine.read.whole_stream import WholeReading, WholeSource, read_with_attempts
from jsbackup.errors import TransferError
from tests.engine.restores import connection_to
from tests.harness.api import JSON, call, connected
from tests.harness.batches import messages_of
from tests.harness.servers import NEWEST, NatsServer

pytestmark = pytest.mark.nats

MESSAGES = 20


class _Sink:
    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    @property
    def sequences(self) -> list[int]:
        return [message.sequence for message in messages_of(self.batches)]


def _read(version: str, storage: str, broken: list[TransferError]) -> tuple[list[_Sink], _Sink, WholeReading]:
    """Read a stream; the first attempts raise what is `broken`. Returns all sinks, and what was returned."""
    sinks: list[_Sink] = []

    def new() -> _Sink:
        sinks.append(_Sink())
        return sinks[-1]

    def advance(_bytes: int, messages: int) -> None:
        if messages and broken:
            raise broken.pop()

    async def main(url: str) -> tuple[_Sink, WholeReading]:
        config: JSON = {"name": "S", "subjects": ["s"], "storage": storage, "retention": "limits", "num_replicas": 1}
        async with connected(url) as nc, connect_jetstream(connection_to(url)) as js:
            await call(nc, "STREAM.CREATE.S", config)
            for _ in range(MESSAGES):
                await nc.request("s", b"data")
            source = WholeSource(js, "S", advance, exact=False)
            return await read_with_attempts(source, await js.stream("S"), new)

    with NatsServer(version) as server:
        sink, whole = asyncio.run(main(server.url))
    return sinks, sink, whole


@pytest.mark.parametrize("version", ["2.11.11", NEWEST])
def test_after_a_broken_attempt_a_new_sink_gets_everything(version: str) -> None:
    sinks, sink, whole = _read(version, "file", [TransferError("broken off")])
    assert len(sinks) == 2 and sinks[0].batches and sink is sinks[1]
    assert sink.sequences == list(range(1, MESSAGES + 1))
    assert whole.capture is not None and whole.messages == MESSAGES


def test_a_stream_that_has_no_snapshot_is_read_message_by_message() -> None:
    sinks, sink, whole = _read("2.11.11", "memory", [])
    assert whole.capture is None and sink is sinks[-1]
    assert sink.sequences == list(range(1, MESSAGES + 1))
