"""The target of a restore or a clone, said by the test: whole streams rather than single chunks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.engine.restores import NOBODY, Restore
from tests.engine.scripted_streams import API, ScriptedStream
from tests.engine.snapshots import CONFIG, MESSAGES
from tests.harness.batches import Message
from tests.harness.peer import ScriptedPeer

NO_ROOM = (10047, "insufficient storage resources available")


@dataclass
class Scene:
    """The target of a restore. Its streams do not exist in the beginning."""

    peer: ScriptedPeer
    streams: dict[str, ScriptedStream] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stream()

    def stream(self, name: str = "ORDERS") -> ScriptedStream:
        if name not in self.streams:
            self.streams[name] = ScriptedStream(self.peer, name=name)
            self.streams[name].gone = True
        return self.streams[name]

    async def expect_restore(self, name: str = "ORDERS") -> Restore:
        self.stream(name)
        return Restore(self.peer, await self.peer.expect(f"{API}.STREAM.RESTORE.{name}"))

    def create(self, restore: Restore, *, somebody_else: bool = False) -> ScriptedStream:
        """The stream appears as the restore makes it, or as another client does."""
        stream = self.stream(restore.stream)
        stream.gone = False
        stream.config = {**CONFIG, "name": restore.stream} if somebody_else else restore.asked.json["config"]
        return stream

    async def carry_out(self, restore: Restore, messages: Iterable[Message] = MESSAGES) -> ScriptedStream:
        """All goes well; the stream has these messages then."""
        await restore.accept()
        _, end = await restore.take_all()
        stream = self.create(restore)
        stream.write(messages)
        await restore.done(end)
        return stream

    async def end_of(self, restore: Restore) -> None:
        """Who gives a restore up sends the end of it, on a connection of its own. Nobody takes it any more.

        Chunks that are on their way are acknowledged, if anybody still wants to know.
        """
        while (heard := await restore.chunk()).data:
            if self.peer.listens(heard.reply):
                await self.peer.answer(heard)
        await self.peer.answer(heard, headers=NOBODY)

    async def refuse_a_chunk(self, restore: Restore, after: int) -> None:
        """There is no more room after so many bytes."""
        await restore.accept()
        await restore.take(after)
        await restore.refuse(await restore.chunk(), "stream_create_response", *NO_ROOM)
