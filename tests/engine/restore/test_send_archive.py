"""An archive goes into a server whole or fails loudly: servers take nothing, give up, lie; stores are slow or break."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.engine.link.jetstream import JetStream, Turn, connect_jetstream
from jsbackup.engine.restore.send_archive import Make, TransmitLimits, cut_chunks, transmit
from jsbackup.errors import (
    ApiError,
    JsBackupError,
    NatsTimeout,
    StoreError,
    TargetConflict,
    TransferError,
)
from jsbackup.model import JsonObject, StreamState
from jsbackup.protocol.info import StreamInfo
from jsbackup.protocol.restore import RestoreSender
from tests.engine.restores import (
    CONFIG,
    DELIVER,
    MESSAGES,
    NOBODY,
    Restore,
    archive,
    connection_to,
    state_of,
)
from tests.harness.peer import ScriptedPeer
from tests.harness.servers import ENDS, NEWEST, NatsServer

CHUNK = 1000
WINDOW = 4 * CHUNK
# No patience: a peer that keeps still is found out in a moment.
HURRIED = TransmitLimits(
    ahead_bytes=16 * CHUNK,
    keep_alive_seconds=0.05,
    request_seconds=0.5,
    acknowledge_seconds=0.3,
    look_seconds=0.05,
    reason_seconds=0.1,
    store_seconds=0.3,
)
PATIENT = replace(HURRIED, acknowledge_seconds=600, store_seconds=600, request_seconds=600)
FAR_SECONDS = 20.0
ARCHIVE = bytes(range(256)) * 30


@asynccontextmanager
async def jetstream(url: str) -> AsyncIterator[JetStream]:
    async with connect_jetstream(connection_to(url)) as js:
        js.timeout_seconds = 0.5
        yield js


Script = Callable[[Restore], Awaitable[None]]
Hurried = Callable[[], bool]


def new_sender(config: JsonObject = CONFIG, state: StreamState | None = None, **sizes: int) -> RestoreSender:
    return RestoreSender(config, state or StreamState(messages=1, first_seq=1, last_seq=1), **sizes)


async def play(script: Script, make: Make = lambda _: [ARCHIVE], limits: TransmitLimits = HURRIED) -> StreamInfo:
    """Restore into a server that follows the script; returns, or raises, what the transfer does."""
    async with ScriptedPeer() as peer, jetstream(peer.url) as js:
        task = asyncio.create_task(transmit(js, new_sender(max_chunk=CHUNK, window_size=WINDOW), make, limits))
        try:
            await script(Restore(peer, await peer.expect("$JS.API.STREAM.RESTORE.ORDERS")))
            return await asyncio.wait_for(task, FAR_SECONDS)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def failure_of(script: Script, make: Make = lambda _: [ARCHIVE], limits: TransmitLimits = HURRIED) -> JsBackupError:
    """What a transfer fails with; nothing of it may be left running."""
    threads = set(threading.enumerate())
    with pytest.raises(JsBackupError) as caught:
        asyncio.run(play(script, make, limits))
    assert set(threading.enumerate()) <= threads
    return caught.value


def _wait(event: threading.Event) -> None:
    assert event.wait(FAR_SECONDS)


def twice(archive: bytes, released: threading.Event) -> Make:
    """An archive of which only the first half comes until the rest is released."""

    def make(_hurried: Hurried) -> Iterator[bytes]:
        yield archive
        _wait(released)
        yield archive

    return make


# --------------------------------------------------------------------------------------------------- what goes well


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(1, 30), st.sampled_from([1, 60]))
def test_chunks_hold_every_byte_and_the_last_is_not_too_short(pieces: list[bytes], size: int, scale: int) -> None:
    pieces = [piece * scale for piece in pieces]
    size *= scale
    chunks = list(cut_chunks(pieces, size))
    whole = b"".join(pieces)
    assert b"".join(chunks) == whole
    assert all(len(chunk) == size for chunk in chunks[:-2])
    assert all(0 < len(chunk) <= size for chunk in chunks[-2:])
    assert not chunks or len(chunks[-1]) >= min(len(whole), size, 1024)


NO_PEERS = (10005, "no suitable peers for placement, peer offline")


def test_a_cluster_that_has_not_heard_of_its_servers_is_asked_again() -> None:
    async def script(restore: Restore) -> None:
        for _ in range(2):
            await restore.refuse(restore.asked, "stream_restore_response", *NO_PEERS)
            restore.asked = await restore.peer.expect("$JS.API.STREAM.RESTORE.ORDERS")
        await restore.accept()
        assert await restore.take(len(ARCHIVE)) == ARCHIVE
        await restore.done(await restore.end())

    assert asyncio.run(play(script)).name == "ORDERS"


def test_no_more_than_the_window_is_on_its_way() -> None:
    async def script(restore: Restore) -> None:
        await restore.accept()
        taken = await restore.knock()
        waiting = [await restore.chunk() for _ in range(WINDOW // CHUNK)]
        await restore.peer.silence(0.1)
        while len(taken) + sum(len(heard.data) for heard in waiting) < len(ARCHIVE):
            heard = waiting.pop(0)
            taken += heard.data
            await restore.peer.answer(heard)
            waiting.append(await restore.chunk())
        for heard in waiting:
            taken += heard.data
            await restore.peer.answer(heard)
        assert taken == ARCHIVE
        await restore.done(await restore.end())

    asyncio.run(play(script, limits=PATIENT))


def test_a_first_chunk_that_meets_nobody_is_sent_again() -> None:
    async def script(restore: Restore) -> None:
        await restore.accept()
        for _ in range(3):
            await restore.peer.answer(await restore.chunk(), headers=NOBODY)
        assert await restore.take(len(ARCHIVE)) == ARCHIVE
        await restore.done(await restore.end())

    assert asyncio.run(play(script)).name == "ORDERS"


def test_while_the_store_is_slow_the_restore_is_kept_alive_byte_by_byte() -> None:
    released = threading.Event()

    async def script(restore: Restore) -> None:
        await restore.accept()
        taken = await restore.take(len(ARCHIVE) - len(ARCHIVE) % CHUNK - 2 * CHUNK)
        for _ in range(5):  # of the last chunk that there is
            heard = await restore.chunk()
            assert len(heard.data) == 1
            taken += heard.data
            await restore.peer.answer(heard)
        released.set()
        taken += await restore.take(2 * len(ARCHIVE) - len(taken))
        assert taken == ARCHIVE * 2
        await restore.done(await restore.end())

    # What the thread makes before it gets stuck is enough for it to be ahead.
    asyncio.run(play(script, twice(ARCHIVE, released), replace(PATIENT, ahead_bytes=4 * CHUNK)))


# ------------------------------------------------------------------------------------------------------------ turns


TurnScript = Callable[[ScriptedPeer, JetStream, Turn], Awaitable[None]]


def play_with_turn(script: TurnScript, cluster: str | None = None) -> None:
    """A script with a turn that is taken, as by another restore of the same run."""

    async def run() -> None:
        async with ScriptedPeer(cluster=cluster) as peer, jetstream(peer.url) as js:
            js.timeout_seconds = FAR_SECONDS
            turn = Turn(needed=True)
            await turn.take()
            await script(peer, js, turn)

    asyncio.run(run())


async def free(turn: Turn) -> bool:
    """Whether others get a turn; it is given back at once."""
    try:
        async with asyncio.timeout(0.2), turn:
            return True
    except TimeoutError:
        return False


@pytest.mark.parametrize("cluster", [None, "C"])
def test_a_restore_waits_for_its_turn_except_in_a_cluster(cluster: str | None) -> None:
    async def script(peer: ScriptedPeer, js: JetStream, turn: Turn) -> None:
        task = asyncio.create_task(transmit(js, new_sender(), lambda _: [ARCHIVE], PATIENT))
        if cluster is None:
            await peer.silence(0.2)
            turn.give_back()
        restore = Restore(peer, await peer.expect("$JS.API.STREAM.RESTORE.ORDERS"))
        await restore.accept()
        assert await restore.take(len(ARCHIVE)) == ARCHIVE
        await restore.done(await restore.end())
        await task
        turn.give_back()
        assert await free(turn)

    play_with_turn(script, cluster)


def test_a_restore_that_fails_gives_its_turn_back() -> None:
    async def script(peer: ScriptedPeer, js: JetStream, turn: Turn) -> None:
        turn.give_back()
        task = asyncio.create_task(transmit(js, new_sender(), lambda _: [ARCHIVE], PATIENT))
        await peer.expect("$JS.API.STREAM.RESTORE.ORDERS")
        peer.drop()
        with pytest.raises(TransferError):
            await task
        assert await free(turn)

    play_with_turn(script)


# ------------------------------------------------------------------------------------------------ peers that go wrong


def test_a_server_that_does_not_answer_the_request_is_given_up() -> None:
    async def script(restore: Restore) -> None:
        pass

    assert isinstance(failure_of(script), NatsTimeout)


@pytest.mark.parametrize("stalls", [False, True])
def test_a_server_that_stops_acknowledging_is_given_up(stalls: bool) -> None:
    """It only keeps still, or hangs without closing its connection."""

    async def script(restore: Restore) -> None:
        await restore.accept()
        await restore.take(2 * CHUNK)
        if stalls:
            restore.peer.stall()

    error = failure_of(script)
    assert isinstance(error, NatsTimeout) and "an acknowledgement did not come in time" in error.message


def test_a_server_that_never_answers_the_end_is_given_up() -> None:
    async def script(restore: Restore) -> None:
        await restore.accept()
        await restore.take(len(ARCHIVE))
        await restore.end()

    error = failure_of(script)
    assert isinstance(error, NatsTimeout)
    assert "the final answer did not come in time" in error.message


@pytest.mark.parametrize("taken", [0, 2 * CHUNK])
def test_a_lost_connection_is_told_at_once_and_not_waited_for(taken: int) -> None:
    async def script(restore: Restore) -> None:
        await restore.accept()
        await restore.take(taken)
        restore.peer.drop()

    error = failure_of(script, limits=PATIENT)
    assert isinstance(error, TransferError)
    assert "was lost" in error.message


def test_a_server_that_has_given_up_is_told_at_once() -> None:
    async def script(restore: Restore) -> None:
        await restore.accept()
        await restore.take(CHUNK)
        await restore.peer.answer(await restore.chunk(), headers=NOBODY)

    error = failure_of(script, limits=PATIENT)
    assert isinstance(error, TransferError)
    assert "gave up" in error.message


def test_the_reason_why_a_server_has_given_up_may_come_after_the_fact() -> None:
    async def script(restore: Restore) -> None:
        await restore.accept()
        await restore.take(CHUNK)
        first, *others = [await restore.chunk() for _ in range(3)]
        for heard in others:
            await restore.peer.answer(heard, headers=NOBODY)
        await restore.refuse(first, "stream_create_response", 10047, "insufficient storage resources available")

    error = failure_of(script, limits=replace(PATIENT, reason_seconds=600))
    assert isinstance(error, TargetConflict)
    assert "insufficient storage resources available" in error.message


@pytest.mark.parametrize(
    ("code", "kind"), [(10058, TargetConflict), (10130, TargetConflict), (10005, ApiError), (10023, TargetConflict)]
)
def test_a_refused_request_sends_nothing_and_says_why(code: int, kind: type[JsBackupError]) -> None:
    async def script(restore: Restore) -> None:
        await restore.refuse(restore.asked, "stream_restore_response", code, "no")
        await restore.peer.silence(0.1)

    assert type(failure_of(script, limits=PATIENT)) is kind


# ----------------------------------------------------------------------------------------------- archives that go wrong


def test_an_archive_that_cannot_be_begun_is_not_even_asked_for() -> None:
    def make(_hurried: Hurried) -> Iterator[bytes]:
        raise StoreError("the segment is gone")
        yield b""

    async def main() -> None:
        async with ScriptedPeer() as peer, jetstream(peer.url) as js:
            with pytest.raises(StoreError, match="the segment is gone"):
                await asyncio.wait_for(transmit(js, new_sender(), make, HURRIED), FAR_SECONDS)
            await peer.silence(0.1)

    asyncio.run(main())


def test_an_archive_that_breaks_off_is_never_ended() -> None:
    released = threading.Event()

    def make(_hurried: Hurried) -> Iterator[bytes]:
        yield bytes(20 * CHUNK)
        _wait(released)
        raise StoreError("the segment is gone")

    async def script(restore: Restore) -> None:
        await restore.accept()
        await restore.take(5 * CHUNK)  # an empty chunk would tell the server that it has all
        restore.peer.always(DELIVER, lambda heard: seen.append(heard.data))
        released.set()

    seen: list[bytes] = []
    error = failure_of(script, make, PATIENT)
    assert (type(error), error.message) == (StoreError, "the segment is gone")
    assert all(seen)


def test_a_cancelled_transfer_has_ended_when_it_says_so() -> None:
    entered, released = threading.Event(), threading.Event()
    calls: list[str] = []

    def make(_hurried: Hurried) -> Iterator[bytes]:
        yield ARCHIVE
        entered.set()
        _wait(released)
        calls.append("made")
        yield ARCHIVE * 10
        calls.append("made after the end")

    async def main() -> None:
        async with ScriptedPeer() as peer, jetstream(peer.url) as js:
            limits = replace(PATIENT, ahead_bytes=2 * CHUNK)
            sender = new_sender(max_chunk=CHUNK, window_size=WINDOW)
            task = asyncio.create_task(transmit(js, sender, make, limits))
            restore = Restore(peer, await peer.expect("$JS.API.STREAM.RESTORE.ORDERS"))
            await restore.accept()
            await restore.take(5 * CHUNK)
            await asyncio.to_thread(_wait, entered)
            task.cancel()
            asyncio.get_running_loop().call_later(0.05, released.set)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, FAR_SECONDS)
            calls.append("ended")

    asyncio.run(main())
    assert calls == ["made", "ended"]


# ------------------------------------------------------------------------------------------------------ real servers


@pytest.mark.nats
@pytest.mark.parametrize(("version", "wire"), [(ENDS[0], "v1"), (NEWEST, "v2")])
def test_a_store_slower_than_the_patience_of_the_server_does_not_break_the_restore(version: str, wire: str) -> None:
    """Servers wait five seconds for a chunk."""
    paused: list[float] = []

    def pause() -> None:
        began = time.monotonic()
        time.sleep(5.5)
        paused.append(time.monotonic() - began)

    async def main(server: NatsServer) -> StreamInfo:
        async with connect_jetstream(connection_to(server.url)) as js:
            sender = new_sender(CONFIG, state_of(MESSAGES))
            return await transmit(js, sender, lambda _: archive(wire, CONFIG, pause))

    with NatsServer(version) as server:
        info = asyncio.run(main(server))
    assert paused
    assert (info.state.messages, info.state.last_seq) == (len(MESSAGES), MESSAGES[-1].sequence)
