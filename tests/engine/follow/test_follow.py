"""Backups go on while streams are made anew, do not answer or go: each has what there was, and says what it has not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from jsbackup.engine.backup.run import BackupOptions, BackupRun
from jsbackup.engine.follow import follow, poll
from jsbackup.engine.follow.follow import FollowOptions, follow_streams
from jsbackup.repository.manifest import BackupResult, Manifest, StreamBackup
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.engine.restores import connection_to
from tests.engine.scripted_streams import ANSWER, CREATED, ScriptedStream, list_streams
from tests.engine.snapshots import MESSAGES, Snapshot
from tests.harness.batches import Message, messages_of
from tests.harness.held import held
from tests.harness.peer import JSON, ScriptedPeer

OLD = MESSAGES[:20]
LIMITS = dict.fromkeys(
    [
        *("max_memory", "max_storage", "max_streams", "max_consumers", "max_ack_pending"),
        *("memory_max_stream_bytes", "storage_max_stream_bytes"),
    ],
    -1,
)
ACCOUNT: JSON = {"type": f"{ANSWER}account_info_response", "memory": 0, "storage": 0, "streams": 1, "consumers": 0}


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll, "_ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(follow, "_FIRST_PAUSE_SECONDS", 0.01)


@dataclass
class Followed:
    """Two streams, which are followed."""

    a: ScriptedStream
    b: ScriptedStream
    repository: Repository

    async def until(self, what: Callable[[Manifest], bool]) -> Manifest:
        """The newest backup, when it is such a one."""
        while not (found := self.repository.backups()) or not what(self.repository.manifest(found[-1])):
            await asyncio.sleep(0.005)
        return self.repository.manifest(found[-1])

    def messages(self, stream: StreamBackup) -> list[Message]:
        reader = SegmentReader(self.repository.objects)
        return messages_of(batch for ref in stream.segments for batch in reader.prove(ref))

    async def begin(self) -> Manifest:
        """The first backup, of both, and their tails."""
        for _ in range(2):
            asked = await self.a.peer.expect("$JS.API.STREAM.SNAPSHOT.*")
            await self.named(asked.subject).answer_snapshot(Snapshot(self.a.peer, asked))
        for _ in range(2):
            asked = await self.a.peer.expect("$JS.API.CONSUMER.CREATE.*.*")
            stream = self.named(asked.subject.rpartition(".")[0])
            await (await stream.make_consumer(asked)).say(stream.present[-1])
        return await self.until(lambda manifest: len(manifest.streams) == 2)

    def named(self, subject: str) -> ScriptedStream:
        return {"A": self.a, "B": self.b}[subject.rpartition(".")[2]]


Script = Callable[[Followed], Awaitable[None]]


def play(script: Script) -> None:
    async def main() -> None:
        repository = Repository.create(MemoryStore(), repository_id="f00d", created=CREATED, tool="tests")
        lease, stopping = held(repository.store), asyncio.Event()
        had = list[int]()  # how many backups there were when the first was said to be done
        async with ScriptedPeer() as peer:
            a, b = ScriptedStream(peer, OLD, "A"), ScriptedStream(peer, OLD, "B")
            list_streams(peer, a, b)
            peer.always("$JS.API.INFO", lambda heard: {**ACCOUNT, "limits": LIMITS, "api": {"total": 0, "errors": 0}})
            peer.always("$SYS.>", lambda heard: {})
            run = BackupRun(connection_to(peer.url), repository, BackupOptions(consumers=False))
            task = asyncio.create_task(
                follow_streams(
                    run,
                    FollowOptions(every_seconds=0.02),
                    hold=lambda: contextmanager(lambda: iter([lease]))(),
                    stopping=stopping,
                    first_done=lambda: had.append(len(repository.backups())),
                )
            )
            try:
                async with asyncio.timeout(60):
                    await script(Followed(a, b, repository))
                assert had == [1]
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_a_stream_made_anew_between_two_polls_is_a_new_life_of_which_the_backup_has_all() -> None:
    async def script(followed: Followed) -> None:
        first = await followed.begin()
        a = followed.a
        a.messages.clear()
        a.created, a.last = "2026-02-02T00:00:00Z", 0
        a.write(OLD[:3])
        await a.give_snapshot()
        then = await followed.until(lambda manifest: manifest.streams[0].created == a.created)
        assert followed.messages(then.streams[0]) == OLD[:3]
        assert then.streams[0].incarnation != first.streams[0].incarnation
        assert (then.result, then.streams[1].segments) == (BackupResult.COMPLETE, first.streams[1].segments)
        tail = await a.expect_consumer()
        await tail.say(OLD[2])
        a.write(MESSAGES[20:22])
        await tail.say_all(MESSAGES[20:22])
        last = await followed.until(lambda manifest: manifest.streams[0].state.last_seq == a.last)
        assert followed.messages(last.streams[0]) == [*OLD[:3], *MESSAGES[20:22]]
        assert last.streams[0].incarnation == then.streams[0].incarnation

    play(script)


def test_a_stream_that_does_not_answer_a_poll_stays_as_it_was_and_the_backup_says_so() -> None:
    async def script(followed: Followed) -> None:
        first = await followed.begin()
        followed.b.silent = True
        then = await followed.until(lambda manifest: bool(manifest.streams[1].warnings))
        assert [stream.segments for stream in then.streams] == [stream.segments for stream in first.streams]
        assert then.streams[1].warnings[-1].endswith("because it could not be read: no answer within 0.3 s")
        assert then.streams[0].warnings == ()

    play(script)


def test_a_stream_that_shrinks_stays_as_it_was_for_a_while_and_the_backup_says_so() -> None:
    async def script(followed: Followed) -> None:
        first = await followed.begin()
        b = followed.b
        b.delete(*(one.sequence for one in OLD[15:]))
        b.last = OLD[14].sequence
        then = await followed.until(lambda manifest: manifest.result is BackupResult.PARTIAL)
        assert then.streams[1].segments == first.streams[1].segments
        words = f"it ends at sequence {b.last} and ended at {OLD[-1].sequence} before, which is believed after 10 s"
        assert words in then.streams[1].warnings[-1]

    play(script)


def test_a_deleted_stream_is_in_the_backups_no_more() -> None:
    async def script(followed: Followed) -> None:
        await followed.begin()
        followed.b.gone = True
        then = await followed.until(lambda manifest: len(manifest.streams) == 1)
        assert (then.streams[0].name, then.result) == ("A", BackupResult.COMPLETE)

    play(script)
