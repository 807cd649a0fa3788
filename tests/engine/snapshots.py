"""The server's side of a snapshot, said by the test; and the archives that it sends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jsbackup.formats.archive.archive import ArchiveV2Writer
from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
from jsbackup.formats.s2 import S2Encoder
from jsbackup.model import JsonObject, StreamState
from tests.harness.batches import Message, batch_of, some_messages
from tests.harness.peer import JSON, Heard, ScriptedPeer

CONFIG: JsonObject = {"name": "ORDERS", "subjects": ["orders.>"], "retention": "limits", "storage": "file"}
MESSAGES = some_messages(60, 300)
ANSWER = "io.nats.jetstream.api.v1.stream_snapshot_response"


def encoded(pieces: Iterable[bytes]) -> bytes:
    encoder = S2Encoder()
    return b"".join([*(part for piece in pieces for part in encoder.feed(piece)), *encoder.finish()])


def state_of(messages: list[Message]) -> StreamState:
    return StreamState(messages=len(messages), first_seq=messages[0].sequence, last_seq=messages[-1].sequence)


def archive_v1(messages: list[Message], deleted: Iterable[int] = ()) -> bytes:
    """With records at its end by which these messages are deleted again, as of a stream that changes meanwhile."""
    writer = ArchiveV1Writer(CONFIG, None, state_of(messages))
    pieces = [*writer.begin(), *writer.write(batch_of(messages))]
    for sequence in deleted:
        writer._add(writer._tombstone(sequence, messages[-1].timestamp_ns))
    return encoded([*pieces, *writer.finish()])


def archive_v2(messages: list[Message]) -> bytes:
    writer = ArchiveV2Writer(state_of(messages))
    return encoded([*writer.begin(), *writer.write(batch_of(messages)), *writer.finish()])


class Snapshot:
    """One snapshot. Chunks have the size that was asked for; only full ones are acknowledged."""

    def __init__(self, peer: ScriptedPeer, asked: Heard) -> None:
        self.peer = peer
        self.asked = asked
        self.deliver: str = asked.json["deliver_subject"]
        self.chunk_bytes: int = asked.json["chunk_size"]

    async def accept(self, messages: list[Message] = MESSAGES, *, state: JSON | None = None, **config: Any) -> None:
        state = state or {
            "messages": len(messages),
            "bytes": 1,
            "first_seq": messages[0].sequence,
            "last_seq": messages[-1].sequence,
            "consumer_count": 0,
            "first_ts": "2026-01-01T00:00:00Z",
            "last_ts": "2026-01-01T00:00:00Z",
        }
        await self.peer.answer(self.asked, {"type": ANSWER, "config": {**CONFIG, **config}, "state": state})

    async def refuse(self, description: str, err_code: int) -> None:
        error = {"code": 500, "err_code": err_code, "description": description}
        await self.peer.answer(self.asked, {"type": ANSWER, "error": error})

    def ack_subject(self, data: bytes, index: int, *, stream: str = "", transfer: str = "id") -> str:
        stream = stream or self.asked.subject.rpartition(".")[2]
        return f"$JS.SNAPSHOT.ACK.{stream}.{transfer}.{len(data)}.{index}"

    async def chunk(self, data: bytes, index: int, **other: str) -> None:
        full = len(data) == self.chunk_bytes
        await self.peer.say(self.deliver, data, reply=self.ack_subject(data, index, **other) if full else "")

    async def chunks(self, archive: bytes, *, only: int | None = None) -> None:
        """All of it, or only its first chunks, taking acknowledgements as they come."""
        self.peer.always("$JS.SNAPSHOT.ACK.>", lambda heard: None)
        for index, at in enumerate(range(0, len(archive), self.chunk_bytes)[:only], 1):
            await self.chunk(archive[at : at + self.chunk_bytes], index)

    async def end(self, status: str = "204") -> None:
        await self.peer.say(self.deliver, headers=f"NATS/1.0 {status}\r\n\r\n".encode() if status else b"")
