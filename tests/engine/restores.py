"""Restores: an archive of some messages, in parts or as a whole; and the server's side, said by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jsbackup.config.connection import Connection, ConnectionOptions, source_connection
from jsbackup.formats.archive.archive import ArchiveV2Writer
from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
from jsbackup.formats.s2 import S2Encoder
from jsbackup.model import JsonObject, StreamState
from tests.harness.batches import Message, batch_of, some_messages
from tests.harness.peer import Heard, ScriptedPeer

CONFIG: JsonObject = {"name": "ORDERS", "subjects": ["orders.>"], "retention": "limits", "storage": "file"}
DELIVER = "$JS.SNAPSHOT.RESTORE.ORDERS.id"
ANSWER = "io.nats.jetstream.api.v1."
NOBODY = b"NATS/1.0 503\r\n\r\n"
# More than the three blocks that a v1 archive is cut into.
MESSAGES = some_messages(1500, 16_000)


def state_of(messages: list[Message]) -> StreamState:
    return StreamState(
        messages=len(messages), bytes=1 << 25, first_seq=messages[0].sequence, last_seq=messages[-1].sequence
    )


def archive(wire: str, config: JsonObject, pause: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    """Of MESSAGES, with a pause in the middle."""
    writer: ArchiveV1Writer | ArchiveV2Writer = ArchiveV1Writer(config, None, state_of(MESSAGES))
    if wire == "v2":
        writer = ArchiveV2Writer(state_of(MESSAGES))
    encoder = S2Encoder()
    for piece in writer.begin():
        yield from encoder.feed(piece)
    for at in range(0, len(MESSAGES), 100):
        for piece in writer.write(batch_of(MESSAGES[at : at + 100])):
            yield from encoder.feed(piece)
        if at == 1000:
            pause()
    for piece in writer.finish():
        yield from encoder.feed(piece)
    yield from encoder.finish()


def connection_to(url: str) -> Connection:
    return source_connection(ConnectionOptions(server=url), {"HOME": "/nonexistent"})


class Restore:
    """The server's side of one restore, as the test says it."""

    def __init__(self, peer: ScriptedPeer, asked: Heard) -> None:
        self.peer = peer
        self.asked = asked
        self.stream = asked.subject.rpartition(".")[2]
        self.deliver = f"$JS.SNAPSHOT.RESTORE.{self.stream}.id"

    async def accept(self, deliver: str | None = None) -> None:
        deliver = self.deliver if deliver is None else deliver
        await self.peer.answer(self.asked, {"type": f"{ANSWER}stream_restore_response", "deliver_subject": deliver})

    async def refuse(self, heard: Heard, kind: str, code: int, description: str) -> None:
        error = {"code": 500, "err_code": code, "description": description}
        await self.peer.answer(heard, {"type": f"{ANSWER}{kind}", "error": error})

    async def knock(self) -> bytes:
        """The first byte, which is sent alone to see whether somebody listens."""
        heard = await self.chunk()
        assert len(heard.data) == 1
        await self.peer.answer(heard)
        return heard.data

    async def chunk(self) -> Heard:
        heard = await self.peer.expect(self.deliver)
        assert heard.reply
        return heard

    async def take_all(self) -> tuple[bytes, Heard]:
        """All chunks, acknowledged, and the end, which is not answered yet."""
        taken = b""
        while (heard := await self.chunk()).data:
            taken += heard.data
            await self.peer.answer(heard)
        return taken, heard

    async def take(self, size: int) -> bytes:
        """Chunks of so many bytes, acknowledged."""
        taken = b""
        while len(taken) < size:
            heard = await self.chunk()
            assert heard.data
            taken += heard.data
            await self.peer.answer(heard)
        return taken

    async def end(self) -> Heard:
        heard = await self.chunk()
        assert not heard.data
        return heard

    async def done(self, heard: Heard, name: str = "") -> None:
        state = {"messages": 1, "bytes": 1, "first_seq": 1, "last_seq": 1, "consumer_count": 0}
        state |= {"first_ts": "2026-01-01T00:00:00Z", "last_ts": "2026-01-01T00:00:00Z"}
        answer = {
            "type": f"{ANSWER}stream_create_response",
            "config": {**CONFIG, "name": name or self.stream},
            "state": state,
        }
        await self.peer.answer(heard, {**answer, "created": "2026-01-01T00:00:00Z"})
