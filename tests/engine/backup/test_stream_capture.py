"""A stream is stored whole although its server breaks off, is busy or deletes meanwhile; or the backup says why not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jsbackup.engine.backup.run import BackupOptions, BackupRun
from jsbackup.engine.backup.stream_backup import back_up_stream
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.engine.read import consume, whole_stream
from jsbackup.engine.read.increment import Incremental
from jsbackup.engine.read.snapshot_transfer import CaptureLimits
from jsbackup.errors import ApiError, FormatError, IntegrityError, JsBackupError, SnapshotBusy, TransferError
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.manifest import ArchiveFormat, ReadAs, Source, StreamBackup
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.repository.write.receipts import Receipts
from jsbackup.stores.memory import MemoryStore
from tests.engine.restores import connection_to
from tests.engine.scripted_streams import NOT_FOUND, ScriptedStream, consumer_info
from tests.engine.snapshots import archive_v1, archive_v2, encoded
from tests.harness.batches import Message, messages_of, some_messages
from tests.harness.peer import ScriptedPeer

KIB = 1024
FAR_SECONDS = 100.0
MESSAGES = some_messages(300, 300)  # random data: 90 kB however they are compressed
# No patience is needed: whoever breaks off says so.
LIMITS = CaptureLimits(chunk_bytes=64 * KIB, request_seconds=600, idle_seconds=600)

Script = Callable[[ScriptedStream], Awaitable[None]]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_stream, "_FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(whole_stream, "_BUSY_PAUSE_SECONDS", 0.0)


class Backup:
    """A repository in memory, and what was stored there."""

    def __init__(self, **options: Any) -> None:
        self.repository = Repository.create(
            MemoryStore(), repository_id="f00d", created="2026-01-01T00:00:00Z", tool="tests"
        )
        self.options = BackupOptions(**{"limits": LIMITS, "consumers": False, **options})
        self.stored: StoredStream | None = None
        self.listed: StreamInfo | None = None  # what the next backup knows of the stream; None: what is true

    @property
    def stream(self) -> StreamBackup:
        assert self.stored is not None
        return self.stored.stream

    @property
    def messages(self) -> list[Message]:
        reader = SegmentReader(self.repository.objects)
        return messages_of(batch for ref in self.stream.segments for batch in reader.prove(ref))

    async def take(self, peer: ScriptedPeer, script: Script, stream: ScriptedStream) -> None:
        connection = connection_to(peer.url)
        run = BackupRun(connection, self.repository, self.options)
        receipts = Receipts(self.repository.documents, "lease", "2026-01-01T00:00:00Z", "tests")
        async with connect_jetstream(connection) as js:
            info = self.listed or await js.stream(stream.name)
            previous = self.stored.stream if self.stored else None
            task = asyncio.create_task(
                back_up_stream(run, js, info, source=Source(), previous=previous, receipts=receipts)
            )
            try:
                await script(stream)
                self.stored = await asyncio.wait_for(task, FAR_SECONDS)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def backed_up(
    *scripts: Script, messages: list[Message] = MESSAGES, version: str = "2.15.1", config: Any = None, **options: Any
) -> Backup:
    """What is in the repository after a backup for each script, of a stream that begins with `messages`."""
    backup = Backup(**options)

    async def main() -> None:
        async with ScriptedPeer(version=version) as peer:
            stream = ScriptedStream(peer, messages, **(config or {}))
            for script in scripts:
                await backup.take(peer, script, stream)

    asyncio.run(main())
    return backup


def failure_of(*scripts: Script, **options: Any) -> JsBackupError:
    with pytest.raises(JsBackupError) as caught:
        backed_up(*scripts, **options)
    return caught.value


async def whole(stream: ScriptedStream) -> None:
    await stream.give_snapshot()


# --------------------------------------------------------------------------------------------------------- attempts


@pytest.mark.parametrize("how", ["the connection is lost", "408 No Flow Response"])
def test_a_transfer_that_breaks_midway_is_repeated_with_smaller_chunks_and_a_smaller_window(how: str) -> None:
    async def script(stream: ScriptedStream) -> None:
        first = await stream.expect_snapshot()
        await stream.accept(first)
        await first.chunks(archive_v2(MESSAGES), only=1)
        if how.startswith("408"):
            await first.end(how)
        else:
            stream.peer.drop()
        second = await stream.give_snapshot()
        assert second.chunk_bytes == first.chunk_bytes // 2
        assert second.asked.json["window_size"] == first.asked.json["window_size"] // 4

    backup = backed_up(script)
    assert backup.messages == MESSAGES
    assert (backup.stream.warnings, backup.stored and backup.stored.incomplete) == ((), False)


def test_a_transfer_that_always_breaks_is_given_up_after_four_attempts() -> None:
    """The last chunk is there each time, but the server says that it failed."""
    sizes = []

    async def script(stream: ScriptedStream) -> None:
        for _ in range(4):
            snapshot = await stream.expect_snapshot()
            sizes.append(snapshot.chunk_bytes)
            await stream.accept(snapshot)
            await snapshot.chunks(archive_v2(MESSAGES))
            await snapshot.end("500 the disk is gone")
        await stream.peer.silence(0.05)

    error = failure_of(script)
    assert type(error) is TransferError
    assert "500 the disk is gone" in error.message
    assert sizes == [64 * KIB, 32 * KIB, 16 * KIB, 16 * KIB]


def test_an_archive_that_lacks_its_end_is_not_believed_although_the_server_calls_it_whole() -> None:
    async def script(stream: ScriptedStream) -> None:
        for _ in range(4):
            await stream.give_snapshot(archive_v2(MESSAGES)[:-20])

    assert type(failure_of(script)) is FormatError


def test_a_busy_stream_is_waited_for_and_that_is_no_failed_attempt() -> None:
    async def script(stream: ScriptedStream) -> None:
        for _ in range(5):  # more often than a broken transfer is repeated
            snapshot = await stream.expect_snapshot()
            await snapshot.refuse("snapshot failed: snapshot in progress", 10064)
        last = await stream.give_snapshot(archive_v1(MESSAGES))
        assert last.chunk_bytes == 64 * KIB

    assert backed_up(script, version="2.12.8").messages == MESSAGES


def test_a_stream_that_stays_busy_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_stream, "_BUSY_SECONDS", -1.0)

    async def script(stream: ScriptedStream) -> None:
        await (await stream.expect_snapshot()).refuse("snapshot failed: snapshot in progress", 10064)
        await stream.peer.silence(0.05)

    error = failure_of(script)
    assert type(error) is SnapshotBusy
    assert "another snapshot of this stream is running" in error.message


def test_a_stream_that_is_gone_before_its_snapshot_is_an_error_at_once() -> None:
    async def script(stream: ScriptedStream) -> None:
        await (await stream.expect_snapshot()).refuse(NOT_FOUND[1], NOT_FOUND[0])
        await stream.peer.silence(0.05)

    error = failure_of(script)
    assert isinstance(error, ApiError)
    assert error.err_code == 10059


def test_a_stream_that_is_gone_when_its_broken_transfer_is_repeated_is_an_error() -> None:
    async def script(stream: ScriptedStream) -> None:
        snapshot = await stream.expect_snapshot()
        await stream.accept(snapshot)
        stream.gone = True
        await snapshot.end("408 No Interest")
        await stream.peer.silence(0.05)

    error = failure_of(script)
    assert isinstance(error, ApiError)
    assert error.err_code == 10059


# ------------------------------------------------------------------------------------------------- late deletions


def test_messages_deleted_while_a_snapshot_runs_are_not_in_the_backup() -> None:
    """One goes before it is read, so that the count is short, and one after."""

    async def script(stream: ScriptedStream) -> None:
        snapshot = await stream.expect_snapshot()
        await stream.accept(snapshot)
        before, after = MESSAGES[20].sequence, MESSAGES[10].sequence
        stream.delete(before)
        await snapshot.chunks(archive_v2(stream.present))
        stream.delete(after)
        await snapshot.end()

    backup = backed_up(script)
    assert backup.messages == [one for one in MESSAGES if one not in (MESSAGES[10], MESSAGES[20])]
    assert backup.stream.state.messages == len(MESSAGES)  # as the server said it
    assert backup.stream.warnings == ()


def test_what_an_older_server_calls_deleted_at_the_end_of_a_snapshot_is_taken_out_again() -> None:
    gone = [MESSAGES[10].sequence, MESSAGES[299].sequence]

    async def script(stream: ScriptedStream) -> None:
        snapshot = await stream.expect_snapshot()
        await stream.accept(snapshot)
        stream.delete(*gone)
        await snapshot.chunks(archive_v1(MESSAGES, gone))
        await snapshot.end()

    backup = backed_up(script, version="2.12.8")
    assert backup.messages == [one for one in MESSAGES if one.sequence not in gone]


def test_what_was_overwritten_before_it_was_read_is_read_in_its_new_revision() -> None:
    new = [MESSAGES[20]._replace(sequence=5000), MESSAGES[21]._replace(sequence=5001)]

    async def script(stream: ScriptedStream) -> None:
        snapshot = await stream.expect_snapshot()
        await stream.accept(snapshot)
        stream.delete(MESSAGES[20].sequence)
        await snapshot.chunks(archive_v2(stream.present))
        stream.delete(MESSAGES[21].sequence)
        stream.write(new)
        await snapshot.end()
        reader = await stream.expect_consumer()
        assert reader.first == MESSAGES[-1].sequence + 1
        await reader.say_all()

    backup = backed_up(script, config={"max_msgs_per_subject": 100})
    assert backup.messages == [*MESSAGES[:20], *MESSAGES[22:], *new]
    assert (backup.stream.state.messages, backup.stream.state.last_seq) == (300, 5001)
    assert backup.stream.warnings == ()


@pytest.mark.parametrize("version", ["2.15.1", "2.12.8"])
def test_a_snapshot_that_lacks_messages_of_a_quiet_stream_is_refused(version: str) -> None:
    archive = archive_v2 if version == "2.15.1" else archive_v1

    async def script(stream: ScriptedStream) -> None:
        await stream.give_snapshot(archive([*MESSAGES[:7], *MESSAGES[8:]]))
        await stream.peer.silence(0.05)

    error = failure_of(script, version=version)
    assert type(error) is IntegrityError
    assert "has 299 messages, the server reports 300" in error.message


def test_a_snapshot_that_lacks_messages_is_not_taken_again_because_of_late_deletions() -> None:
    """The segments of the backup before, which have what was deleted, are not to blame."""
    late = MESSAGES[10].sequence

    async def script(stream: ScriptedStream) -> None:
        snapshot = await stream.expect_snapshot()
        stream.delete(late)
        await stream.accept(snapshot)
        await snapshot.chunks(archive_v1([*MESSAGES[:50], *MESSAGES[51:]], [late]))
        await snapshot.end()
        await stream.peer.silence(0.05)

    error = failure_of(whole_v1, script, version="2.12.8", incremental=Incremental.NEVER)
    assert "has 298 messages, the server reports 299" in error.message


async def whole_v1(stream: ScriptedStream) -> None:
    await stream.give_snapshot(archive_v1(stream.present))


# ------------------------------------------------------------------------------------- what no snapshot is made of


async def no_snapshot(stream: ScriptedStream) -> None:
    await (await stream.expect_snapshot()).refuse("snapshot failed: no impl", 10064)


def test_a_reader_that_goes_silent_is_replaced_and_all_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume, "IDLE_SECONDS", 0.02)

    async def script(stream: ScriptedStream) -> None:
        await no_snapshot(stream)
        silent = await stream.expect_consumer()
        await silent.say_all(MESSAGES[:100])
        talking = await stream.expect_consumer()
        assert (talking.first, talking.deliver != silent.deliver) == (silent.first, True)
        await talking.say_all()

    backup = backed_up(script, config={"storage": "memory"}, version="2.12.8")
    assert backup.messages == MESSAGES
    assert (backup.stream.archive_format, backup.stream.read and backup.stream.read.how) == (
        ArchiveFormat.MESSAGES,
        ReadAs.MESSAGES,
    )


def test_a_stream_whose_readers_all_go_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume, "IDLE_SECONDS", 0.01)

    async def script(stream: ScriptedStream) -> None:
        await no_snapshot(stream)
        for _ in range(4):
            await stream.expect_consumer()

    error = failure_of(script, config={"storage": "memory"}, version="2.12.8")
    assert isinstance(error, TransferError)
    assert "its consumer went silent" in error.message


def test_a_reader_that_is_refused_leaves_one_request_for_each_message() -> None:
    async def script(stream: ScriptedStream) -> None:
        await no_snapshot(stream)
        heard = await stream.peer.expect("$JS.API.CONSUMER.CREATE.ORDERS.*")
        error = {"code": 400, "err_code": 10026, "description": "maximum consumers limit reached"}
        await stream.peer.answer(heard, {"type": "io.nats.jetstream.api.v1.consumer_create_response", "error": error})
        await stream.peer.silence(0.05)

    backup = backed_up(script, config={"storage": "memory"}, version="2.12.8", messages=MESSAGES[:150])
    assert backup.messages == MESSAGES[:150]


def test_an_archive_of_an_unknown_format_is_kept_as_it_comes() -> None:
    async def script(stream: ScriptedStream) -> None:
        for _ in range(2):  # to be decoded, then as it is
            await stream.give_snapshot(encoded([b"of a format that nobody knows yet " * 2000]))

    stream = backed_up(script).stream
    assert (stream.archive_format, stream.segments) == (ArchiveFormat.OPAQUE, ())
    assert "not decoded and not verified: unknown archive format" in stream.warnings[0]


# --------------------------------------------------------------------------------------------------------- consumers


def test_a_consumer_that_does_not_answer_is_named_and_the_backup_is_partial() -> None:
    async def script(stream: ScriptedStream) -> None:
        stream.consumers = [consumer_info("ORDERS", {"name": "here", "durable_name": "here"})]
        stream.missing = ["away"]
        await stream.give_snapshot()

    backup = backed_up(script, consumers=True)
    assert [one.name for one in backup.stream.consumers] == ["here"]
    assert backup.stream.warnings == ("consumer away did not answer and is not in the backup",)
    assert backup.stored and backup.stored.incomplete


# --------------------------------------------------------------------------------------------------------- increments


def test_after_an_increment_that_fails_the_stream_is_read_whole() -> None:
    new = some_messages(5, 300, seed=2, first=5000)

    async def script(stream: ScriptedStream) -> None:
        stream.write(new)
        for _ in range(3):
            reader = await stream.expect_consumer()
            first, second, *_ = reader.waiting
            await reader.say_all([second, first])
        await stream.give_snapshot()

    backup = backed_up(whole, script, incremental=Incremental.ALWAYS)
    assert backup.messages == [*MESSAGES, *new]
    reading = backup.stream.read
    assert reading and reading.how is ReadAs.SNAPSHOT
    assert reading.why.endswith(f"sequence {MESSAGES[0].sequence} came after {MESSAGES[1].sequence}")


def test_a_stream_that_lost_its_end_and_has_others_there_is_read_whole_with_a_warning() -> None:
    others = [one._replace(data=b"another") for one in MESSAGES[200:]]
    new = some_messages(5, 300, seed=2, first=5000)

    async def script(stream: ScriptedStream) -> None:
        stream.write([*others, *new])
        await (await stream.expect_consumer()).say_all()
        await stream.give_snapshot()

    backup = backed_up(whole, script, incremental=Incremental.ALWAYS)
    assert backup.messages == [*MESSAGES[:200], *others, *new]
    assert "the server has lost some of it since the last backup" in backup.stream.remarks[0]


@pytest.mark.parametrize("incremental", [Incremental.ALWAYS, Incremental.NEVER])
def test_what_another_backup_has_stored_since_the_stream_was_listed_is_not_lost(incremental: Incremental) -> None:
    new = some_messages(5, 300, seed=2, first=5000)
    backup = Backup(incremental=incremental)

    async def main() -> None:
        async with ScriptedPeer(version="2.15.1") as peer:
            stream = ScriptedStream(peer, MESSAGES)
            async with connect_jetstream(connection_to(peer.url)) as js:
                listed = await js.stream(stream.name)
            stream.write(new)
            await backup.take(peer, whole, stream)
            backup.listed = listed
            await backup.take(peer, nothing if incremental is Incremental.ALWAYS else whole, stream)

    async def nothing(_: ScriptedStream) -> None:
        pass

    asyncio.run(main())
    assert backup.messages == [*MESSAGES, *new]
    assert backup.stored and backup.stream.warnings == () and not backup.stored.incomplete


# ------------------------------------------------------------------------------------------- servers that contradict


@pytest.mark.parametrize("version", ["2.12.8", "2.15.1"])
@pytest.mark.parametrize("hidden", [(7,), (1, 300)])
def test_what_the_server_has_and_does_not_deliver_is_missing_in_the_backup(
    hidden: tuple[int, ...], version: str
) -> None:
    """Neither its snapshot nor its count has the messages, nor its list of deleted ones."""
    delivered = [message for message in MESSAGES if message.sequence not in hidden]

    async def script(stream: ScriptedStream) -> None:
        for _ in range(2):
            snapshot = await stream.expect_snapshot()
            state = {**stream.state, "messages": len(delivered)}
            await snapshot.accept(state=state, **stream.config)
            archive = archive_v2(delivered) if version == "2.15.1" else archive_v1(delivered)
            await snapshot.chunks(archive)
            await snapshot.end()

    backup = backed_up(script, version=version)
    assert backup.stored is not None and backup.stored.incomplete
    assert f"does not deliver with the others: {', '.join(map(str, hidden))}" in backup.stream.warnings[-1]
    assert backup.messages == delivered
