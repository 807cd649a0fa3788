"""A clone between two servers: a source that breaks is read again, a target that refuses is not asked twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from jsbackup.engine.clone.stream_clone import LiveSupply
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.engine.read import whole_stream
from jsbackup.engine.read.snapshot_transfer import CaptureLimits
from jsbackup.engine.restore import remove_unfinished
from jsbackup.engine.restore.execution import Execution
from jsbackup.engine.restore.run import RestoredStream, RestoreRun, RestoreSettings
from jsbackup.engine.restore.send_archive import TransmitLimits
from jsbackup.engine.restore.stream_restore import StartingPoint
from jsbackup.errors import IntegrityError, JsBackupError, TargetConflict, TransferError
from jsbackup.failure import Failure
from jsbackup.planning.interrupted import is_marked
from jsbackup.planning.model import Action, RestoreOptions, RestorePlan, SendAs, Target
from jsbackup.protocol.info import stream_info
from jsbackup.repository.manifest import ArchiveFormat, Captured, StreamBackup
from tests.engine.restore_scenes import NO_ROOM, Scene
from tests.engine.restores import connection_to
from tests.engine.scripted_streams import API, CREATED, ScriptedStream, refusal
from tests.engine.snapshots import archive_v1, archive_v2, encoded
from tests.harness.batches import Message, some_messages
from tests.harness.peer import ScriptedPeer
from tests.harness.sending import narrow

KIB = 1024
FAR_SECONDS = 100.0
LIMITS = CaptureLimits(chunk_bytes=128 * KIB, request_seconds=600, idle_seconds=600)


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow(monkeypatch, 256 * KIB)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_stream, "_FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(whole_stream, "_BUSY_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(remove_unfinished, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(remove_unfinished, "_APPEAR_SECONDS", 0.0)
    monkeypatch.setattr(remove_unfinished, "_SERVER_SECONDS", 3.0)  # only a test that fails takes so long


@cache
def messages() -> list[Message]:
    """More than the batches that are on their way between both ends: the target begins before the source ends."""
    return some_messages(400, 16_000)


@dataclass
class Clone:
    """Both ends of a clone of ORDERS."""

    source: ScriptedStream
    target: Scene


Script = Callable[[Clone], Awaitable[None]]
Outcome = tuple[list[RestoredStream], list[Failure]]


def cloned(script: Script, *, version: str = "2.15.1", count: int = 400, wire: SendAs = SendAs.V2) -> Outcome:
    """What a clone of the first `count` messages comes to."""

    async def main() -> Outcome:
        async with ScriptedPeer(version=version) as origin, ScriptedPeer() as peer:
            source = ScriptedStream(origin, messages()[:count])
            state = stream_info(source.info).state
            entry = StreamBackup(
                *("ORDERS", "00000000", source.config, CREATED, state),
                Captured(state.messages, state.bytes, state.first_seq, state.last_seq, CREATED, CREATED),
                ArchiveFormat.V2,
            )
            plan = RestorePlan("b", ((Action(entry, "ORDERS", wire, source.config, False),),))

            @asynccontextmanager
            async def supply() -> AsyncIterator[LiveSupply]:
                async with connect_jetstream(connection_to(origin.url)) as js:
                    yield LiveSupply(js, lambda entry, wire: plan, LIMITS)

            run = RestoreRun(
                connection_to(peer.url),
                RestoreOptions(),
                RestoreSettings(jobs=1, limits=TransmitLimits(ahead_bytes=256 * KIB)),
            )
            start = StartingPoint("clone", Target((2, 15), False, {}), marking=True)
            task = asyncio.create_task(Execution(run, supply, start).all(plan))
            try:
                await script(Clone(source, Scene(peer)))
                return await asyncio.wait_for(task, FAR_SECONDS)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    return asyncio.run(main())


def failure_of(script: Script, **options: Any) -> JsBackupError:
    results, failures = cloned(script, **options)
    assert (results, [failure.name for failure in failures]) == ([], ["ORDERS"])
    return failures[0].error


async def carry_out(clone: Clone, archive: bytes | None = None) -> ScriptedStream:
    """All goes well from here on: what the source gives is at the target, and proved."""
    (_, stream) = await asyncio.gather(clone.source.give_snapshot(archive), receive(clone))
    await stream.give_snapshot()
    return stream


async def receive(clone: Clone) -> ScriptedStream:
    held = clone.source.present
    return await clone.target.carry_out(await clone.target.expect_restore(), held)


# --------------------------------------------------------------------------------------------------- what goes well


def test_a_stream_goes_from_one_server_to_the_other_and_is_proved_there() -> None:
    async def script(clone: Clone) -> None:
        stream = await carry_out(clone)
        assert not is_marked(stream.config)

    (result,), failures = cloned(script)
    assert (result.verified, result.incomplete, result.messages, failures) == (True, False, 400, [])


# ----------------------------------------------------------------------------------------------------- the source


def test_a_source_that_breaks_before_the_target_was_asked_is_read_again_with_smaller_chunks() -> None:
    async def script(clone: Clone) -> None:
        first = await clone.source.expect_snapshot()
        await clone.source.accept(first)
        await first.end("408 No Flow Response")
        await clone.target.peer.silence(0.05)
        second = await clone.source.expect_snapshot()
        assert (first.chunk_bytes, second.chunk_bytes) == (128 * KIB, 64 * KIB)
        (_, stream) = await asyncio.gather(clone.source.answer_snapshot(second), receive(clone))
        await stream.give_snapshot()

    (result,), _ = cloned(script)
    assert result.verified


@pytest.mark.parametrize("how", ["the connection is lost", "500 the disk is gone"])
def test_what_reached_the_target_goes_again_before_the_source_is_read_another_time(how: str) -> None:
    async def script(clone: Clone) -> None:
        snapshot = await clone.source.expect_snapshot()
        await clone.source.accept(snapshot)
        await snapshot.chunks(archive_v2(messages()), only=40)
        restore = await clone.target.expect_restore()
        stream = clone.target.create(restore)
        await restore.accept()
        await restore.take(300 * KIB)
        if how.startswith("500"):
            await snapshot.end(how)
        else:
            clone.source.peer.drop()
        assert stream.removals == 0
        await clone.target.end_of(restore)
        again = await clone.source.expect_snapshot()
        assert stream.removals == 1
        await asyncio.gather(clone.source.answer_snapshot(again), receive(clone))
        await stream.give_snapshot()

    (result,), failures = cloned(script)
    assert (result.verified, failures) == (True, [])


def test_a_source_that_always_breaks_is_given_up_and_nothing_is_at_the_target() -> None:
    async def script(clone: Clone) -> None:
        for _ in range(4):
            snapshot = await clone.source.expect_snapshot()
            await clone.source.accept(snapshot)
            await snapshot.end("408 No Interest")
        await clone.source.peer.silence(0.05)
        await clone.target.peer.silence(0.05)

    error = failure_of(script)
    assert type(error) is TransferError and "408 No Interest" in error.message


def test_a_snapshot_that_cannot_be_decoded_leaves_reading_message_by_message() -> None:
    async def script(clone: Clone) -> None:
        await clone.source.give_snapshot(encoded([b"a new format".ljust(1024)]))
        reader = await clone.source.expect_consumer()
        assert reader.first == messages()[0].sequence
        (_, stream) = await asyncio.gather(reader.say_all(), receive(clone))
        await stream.give_snapshot()

    (result,), failures = cloned(script, count=20)
    assert (result.verified, result.incomplete, result.messages, failures) == (True, False, 20, [])


def test_a_source_that_gives_less_than_it_holds_leaves_nothing_at_the_target() -> None:
    streams: list[ScriptedStream] = []

    async def script(clone: Clone) -> None:
        await clone.source.give_snapshot(archive_v2(messages()[1:]))
        restore = await clone.target.expect_restore()
        streams.append(clone.target.create(restore))
        await restore.accept()
        await clone.target.end_of(restore)

    error = failure_of(script)
    assert type(error) is IntegrityError and "has 399 messages, the server reports 400" in error.message
    assert streams[0].removals == 1


# ----------------------------------------------------------------------------------------------------- the target


def test_a_target_that_refuses_is_not_asked_again_and_nor_is_the_source() -> None:
    async def script(clone: Clone) -> None:
        async def refuse() -> None:
            restore = await clone.target.expect_restore()
            await restore.refuse(restore.asked, "stream_restore_response", *NO_ROOM)

        await asyncio.gather(clone.source.give_snapshot(), refuse())
        await clone.source.peer.silence(0.05)
        await clone.target.peer.silence(0.05)
        assert clone.target.stream().removals == 0

    error = failure_of(script, count=10)
    assert type(error) is TargetConflict and NO_ROOM[1] in error.message


@pytest.mark.parametrize("how", ["there is no room", "the connection is lost"])
def test_of_a_clone_that_its_target_breaks_midway_nothing_is_left_and_the_source_is_not_read_again(how: str) -> None:
    streams: list[ScriptedStream] = []

    async def script(clone: Clone) -> None:
        snapshot = await clone.source.expect_snapshot()
        await clone.source.accept(snapshot)
        await snapshot.chunks(archive_v2(messages()), only=40)
        restore = await clone.target.expect_restore()
        streams.append(clone.target.create(restore))
        if how == "there is no room":
            await clone.target.refuse_a_chunk(restore, 300 * KIB)
        else:
            await restore.accept()
            await restore.take(300 * KIB)
            clone.target.peer.drop()
        await clone.target.end_of(restore)
        await clone.source.peer.silence(0.05)

    error = failure_of(script)
    assert type(error) is (TargetConflict if how == "there is no room" else TransferError)
    assert streams[0].removals == 1


# -------------------------------------------------------------------------------------------------- late deletions


def test_what_the_source_deleted_while_it_was_read_is_deleted_at_the_target() -> None:
    gone = [messages()[3].sequence, messages()[5].sequence]
    asked: list[int] = []

    async def script(clone: Clone) -> None:
        def delete(heard: Any) -> Any:
            asked.append(heard.json["seq"])
            clone.target.stream().delete(heard.json["seq"])
            return {"type": "io.nats.jetstream.api.v1.stream_msg_delete_response", "success": True}

        clone.target.peer.always(f"{API}.STREAM.MSG.DELETE.ORDERS", delete)
        stream = await with_late_deletions(clone, gone)
        await stream.give_snapshot()

    (result,), failures = cloned(script, version="2.12.8", count=10)
    assert (result.verified, result.incomplete, result.messages, failures) == (True, False, 8, [])
    assert sorted(asked) == gone


def test_what_the_target_does_not_delete_again_makes_the_clone_incomplete() -> None:
    gone = [messages()[3].sequence]

    async def script(clone: Clone) -> None:
        denied = refusal("stream_msg_delete_response", 10057, "message delete not permitted")
        clone.target.peer.always(f"{API}.STREAM.MSG.DELETE.ORDERS", lambda heard: denied)
        stream = await with_late_deletions(clone, gone)
        await stream.give_snapshot()

    (result,), _ = cloned(script, version="2.12.8", count=10)
    assert (result.verified, result.incomplete, result.messages) == (True, True, 10)
    assert "has messages that were deleted at the source while it was read" in result.notes[0]


async def with_late_deletions(clone: Clone, gone: list[int]) -> ScriptedStream:
    """The source tells at the end of its snapshot what is gone, when the target has it."""
    before = clone.source.present
    snapshot = await clone.source.expect_snapshot()
    await clone.source.accept(snapshot)
    clone.source.delete(*gone)
    await snapshot.chunks(archive_v1(before, gone))
    await snapshot.end()
    return await clone.target.carry_out(await clone.target.expect_restore(), before)
