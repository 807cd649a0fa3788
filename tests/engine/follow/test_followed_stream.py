"""A followed stream is its last backup and what came since; one that is another now, or shrinks, is read again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from jsbackup.engine.backup.run import BackupOptions, BackupRun
from jsbackup.engine.follow.followed_stream import Followed
from jsbackup.engine.follow.poll import Look
from jsbackup.engine.follow.tail import Backlog
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.engine.read.increment import UNCHANGED
from jsbackup.errors import TransferError
from jsbackup.protocol.info import stream_info
from jsbackup.repository.manifest import ArchiveFormat, Fact, FactKind, ReadAs, Reading, Source, StreamBackup
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.repository.write.receipts import Receipts
from jsbackup.stores.memory import MemoryStore
from tests.engine.restores import connection_to
from tests.engine.scripted_streams import CREATED, ScriptedConsumer, ScriptedStream
from tests.engine.snapshots import MESSAGES
from tests.harness.batches import Message, messages_of
from tests.harness.peer import ScriptedPeer

SECOND = 1_000_000_000
MIB = 1 << 20
OLD, NEW = MESSAGES[:20], MESSAGES[20:30]


@dataclass
class Following:
    """A followed stream at a scripted server."""

    stream: ScriptedStream
    followed: Followed
    repository: Repository

    def look(self, seconds: int = 0) -> Look:
        return Look(stream_info(self.stream.info), None, seconds * SECOND)

    def read_on(self, look: Look | None = None) -> asyncio.Task[StoredStream]:
        receipts = Receipts(self.repository.documents, "lease", CREATED, "tests")
        return asyncio.create_task(self.followed.read_on(look or self.look(), receipts))

    async def messages(self, reading: asyncio.Task[StoredStream]) -> list[Message]:
        """What is stored then, as of a backup that is committed."""
        result = await reading
        self.followed.committed(result.stream)
        reader = SegmentReader(self.repository.objects)
        return messages_of(batch for ref in result.stream.segments for batch in reader.prove(ref))

    async def begin(self) -> ScriptedConsumer:
        """The first backup is made, and the tail begun."""
        assert self.followed.has_changed(self.look())
        reading = self.read_on()
        await self.stream.give_snapshot()
        assert await self.messages(reading) == OLD
        return await self.begin_tail(OLD[-1])

    async def begin_tail(self, at: Message) -> ScriptedConsumer:
        tail = await self.stream.expect_consumer()
        assert tail.first == at.sequence
        await tail.say(at)
        return tail


Script = Callable[[Following], Awaitable[None]]


def play(script: Script) -> None:
    async def main() -> None:
        repository = Repository.create(MemoryStore(), repository_id="f00d", created=CREATED, tool="tests")
        async with ScriptedPeer() as peer:
            connection = connection_to(peer.url)
            async with connect_jetstream(connection) as js:
                stream = ScriptedStream(peer, OLD)
                run = BackupRun(connection, repository, BackupOptions(consumers=False))
                info = stream_info(stream.info)
                followed = Followed(js, run, Source(), Backlog(MIB, MIB), info=info, entry=None)
                try:
                    await asyncio.wait_for(script(Following(stream, followed, repository)), 60)
                finally:
                    await followed.close()

    asyncio.run(main())


def test_what_came_since_the_last_backup_is_that_of_the_tail() -> None:
    async def script(following: Following) -> None:
        tail = await following.begin()
        assert not following.followed.has_changed(following.look())
        for new in (NEW[:4], NEW[4:]):
            following.stream.write(new)
            assert following.followed.has_changed(following.look())
            reading = following.read_on()
            await tail.say_all(new)
            assert await following.messages(reading) == following.stream.present
        assert (await following.read_on()).stream.segments  # and nothing is asked of the server
        await following.stream.peer.silence(0.05)

    play(script)


def test_a_stream_at_rest_is_said_not_to_have_been_read() -> None:
    """However its messages were read before: manifests list each stream that is not described like the others."""

    async def script(following: Following) -> None:
        tail = await following.begin()
        assert (entry := following.followed.entry) is not None
        assert entry.read is not None
        assert entry.read.how is ReadAs.SNAPSHOT
        rested = [await following.read_on()]
        following.followed.committed(rested[0].stream)
        await following.followed.close()
        rested.append(following.followed.at_rest(following.look(5), CREATED) or rested[0])
        for result in rested:
            assert result.stream.read == Reading(ReadAs.INCREMENT, UNCHANGED)
            assert result.stream.archive_format is ArchiveFormat.MESSAGES
            assert result.stream.segments == entry.segments
        assert rested[1].stream.captured.ended == CREATED
        assert tail.first == OLD[-1].sequence

    play(script)


def test_a_stream_that_is_described_as_before_is_what_the_last_backup_says() -> None:
    """Whichever of its descriptions was committed, and also after one that was not."""

    async def script(following: Following) -> None:
        await following.begin()
        await following.followed.close()
        followed, look = following.followed, following.look(5)

        def rest(look: Look, now: str, *, committed: bool) -> StreamBackup:
            result = followed.at_rest(look, now)
            assert result is not None and not result.incomplete
            if committed:
                followed.committed(result.stream)
            return result.stream

        first = rest(look, "2026-03-01T00:00:00Z", committed=True)
        again = rest(replace(look, at_ns=6 * SECOND), "2026-03-02T00:00:00Z", committed=True)
        assert again.captured == replace(first.captured, begun="1970-01-01T00:00:06Z", ended="2026-03-02T00:00:00Z")
        assert replace(again, captured=first.captured) == first
        # Another configuration: not committed, then committed.
        other = replace(look, info=replace(look.info, config={**look.info.config, "description": "new"}))
        for committed in (False, True):
            for _ in range(2):
                assert rest(other, "2026-03-03T00:00:00Z", committed=committed).config["description"] == "new"
            if not committed:
                assert "description" not in rest(look, "2026-03-04T00:00:00Z", committed=False).config
        assert rest(other, "2026-03-05T00:00:00Z", committed=True).config["description"] == "new"
        # Something to say of it, which is over by the next look.
        result = followed.at_rest(other, "2026-03-06T00:00:00Z")
        assert result is not None
        facts = (Fact(FactKind.LOST_SINCE, detail="its end"),)
        followed.committed(replace(result.stream, warnings=("odd",), facts=facts))
        assert rest(other, "2026-03-07T00:00:00Z", committed=True).remarks == ()
        following.stream.write(NEW)
        assert followed.at_rest(following.look(8), CREATED) is None

    play(script)


def test_what_is_deleted_is_not_in_the_next_backup() -> None:
    async def script(following: Following) -> None:
        tail = await following.begin()
        following.stream.write(NEW)
        following.stream.delete(NEW[3].sequence)
        reading = following.read_on()
        await tail.say_all(NEW)  # the tail had it already
        assert await following.messages(reading) == following.stream.present

    play(script)


@pytest.mark.slow
def test_a_stream_that_was_made_anew_between_two_polls_is_read_whole() -> None:
    async def script(following: Following) -> None:
        await following.begin()
        following.stream.created = "2026-02-02T00:00:00Z"
        following.stream.write([one._replace(data=b"another") for one in OLD])
        assert following.followed.has_changed(following.look())
        reading = following.read_on()
        await following.stream.give_snapshot()
        assert await following.messages(reading) == following.stream.present
        result = await reading
        assert result.stream.read and result.stream.read.how is ReadAs.SNAPSHOT
        assert result.stream.created == "2026-02-02T00:00:00Z"

    play(script)


def test_a_stream_that_shrinks_is_not_believed_at_once() -> None:
    """A new leader may lack what the last one had, for a moment."""

    async def script(following: Following) -> None:
        tail = await following.begin()
        stream = following.stream
        lost = OLD[15:]
        stream.delete(*(one.sequence for one in lost))
        stream.last = OLD[14].sequence
        for seconds in (100, 105, 109):
            with pytest.raises(TransferError, match=f"ends at sequence {stream.last} and ended at {OLD[-1].sequence}"):
                await following.read_on(following.look(seconds))
        stream.write([*lost, *NEW])
        reading = following.read_on(following.look(112))
        await tail.say_all(NEW)
        assert await following.messages(reading) == [*OLD, *NEW]
        # The time before counts no more.
        stream.delete(*(one.sequence for one in NEW))
        stream.last = OLD[-1].sequence
        with pytest.raises(TransferError, match="before"):
            await following.read_on(following.look(113))

    play(script)


def test_a_stream_that_stays_shorter_than_it_was_is_read_whole_as_it_is() -> None:
    async def script(following: Following) -> None:
        await following.begin()
        stream = following.stream
        stream.delete(*(one.sequence for one in OLD[15:]))
        stream.last = OLD[14].sequence
        with pytest.raises(TransferError):
            await following.read_on(following.look(100))
        reading = following.read_on(following.look(111))
        await stream.give_snapshot()
        assert await following.messages(reading) == OLD[:15]
        tail = await following.begin_tail(OLD[14])
        stream.write(NEW)
        reading = following.read_on(following.look(113))
        await tail.say_all(NEW)
        assert await following.messages(reading) == [*OLD[:15], *NEW]

    play(script)


@pytest.mark.slow
def test_a_stream_that_lost_its_end_and_grew_again_is_found_out_by_its_next_tail() -> None:
    async def script(following: Following) -> None:
        await following.begin()
        await following.followed.close()  # as of a stream that nobody wrote to for long
        stream = following.stream
        stream.write([*(one._replace(data=b"another", timestamp_ns=one.timestamp_ns + 1) for one in OLD[15:]), *NEW])
        reading = following.read_on()
        await (await stream.expect_consumer()).say(stream.messages[OLD[-1].sequence])
        # Whole, and its end is compared first, as by a backup: to no use.
        await (await stream.expect_consumer()).say_all()
        await stream.give_snapshot()
        assert await following.messages(reading) == stream.present
        assert "has lost some of it" in (await reading).stream.remarks[0]

    play(script)


def test_a_tail_that_skips_a_message_is_replaced_and_the_backup_has_them_all() -> None:
    async def script(following: Following) -> None:
        tail = await following.begin()
        following.stream.write(NEW)
        reading = following.read_on()
        await tail.say_all(NEW[:3])
        await tail.say(NEW[4], delivery=6)
        another = await following.stream.expect_consumer()
        assert another.first == NEW[2].sequence
        await another.say_all()
        assert await following.messages(reading) == [*OLD, *NEW]

    play(script)


@pytest.mark.slow
def test_a_message_that_the_tail_never_had_is_not_taken_for_deleted() -> None:
    """Its numbers are in order, but the server says that the message is there: the stream is read as by a backup."""

    async def script(following: Following) -> None:
        tail = await following.begin()
        following.stream.write(NEW)
        reading = following.read_on()
        await tail.say_all([*NEW[:3], *NEW[4:]])
        await (await following.stream.expect_consumer()).say_all()
        assert await following.messages(reading) == [*OLD, *NEW]

    play(script)
