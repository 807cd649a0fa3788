"""A snapshot is taken whole or not at all: servers stall, lie and hang up, sinks are slow or break."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pyarrow as pa
import pytest

from jsbackup.config.connection import ConnectionOptions, source_connection
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.link import Link
from jsbackup.engine.read.snapshot_transfer import Capture, CaptureLimits, capture_opaque, capture_snapshot
from jsbackup.errors import (
    ApiError,
    FormatError,
    JsBackupError,
    NatsTimeout,
    SnapshotBusy,
    StoreError,
    TransferError,
    UnsupportedError,
)
from jsbackup.formats.sequences import SequenceSet
from jsbackup.protocol.api import ApiPrefix
from jsbackup.protocol.dialogue import LEAST_WINDOW_BYTES
from jsbackup.repository import layout
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.objects import Objects
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.stores.memory import MemoryStore
from tests.engine.snapshots import CONFIG, MESSAGES, Snapshot, archive_v1, archive_v2
from tests.harness.api import Wire, call, connected
from tests.harness.batches import Message, messages_of, some_messages
from tests.harness.peer import ScriptedPeer
from tests.harness.servers import NatsServer
from tests.harness.stores import FaultStore

CHUNK = 1024
# Sizes as small as they may be, and no patience: a peer that keeps still is found out in a moment.
HURRIED = CaptureLimits(
    chunk_bytes=CHUNK,
    window_share=8 * CHUNK / LEAST_WINDOW_BYTES,
    queue_bytes=4 * CHUNK,
    queue_limit_bytes=12 * CHUNK,
    trickle_seconds=0.02,
    request_seconds=0.5,
    idle_seconds=0.3,
    stall_seconds=0.3,
)
# For what goes well, however slow the machine is.
PATIENT = replace(HURRIED, request_seconds=600, idle_seconds=600, stall_seconds=600)
# Above all that a test waits for on purpose.
FAR_SECONDS = 100.0


class Taken:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    @property
    def messages(self) -> list[Message]:
        return messages_of(self.batches)


def chunks_of(archive: bytes) -> list[bytes]:
    return [archive[at : at + CHUNK] for at in range(0, len(archive), CHUNK)]


@asynccontextmanager
async def jetstream(url: str) -> AsyncIterator[JetStream]:
    connection = source_connection(ConnectionOptions(server=url), {"HOME": "/nonexistent"})
    async with await Link.connect(connection, name="test") as link:
        yield JetStream(link, ApiPrefix(), 0.5)


Script = Callable[[Snapshot], Awaitable[None]]


async def play(script: Script, sink: Taken | Callable[[bytes], None], limits: CaptureLimits = PATIENT) -> Capture:
    """Capture from a server that follows the script; returns, or raises, what the capture does.

    A sink that is a function takes the chunks as they are, at once: an opaque capture.
    """
    async with ScriptedPeer() as peer, jetstream(peer.url) as js:
        if isinstance(sink, Taken):
            capture = capture_snapshot(js, "ORDERS", sink, deleted=SequenceSet(), limits=limits)
        else:
            capture = capture_opaque(js, "ORDERS", sink, limits=limits)
        task = asyncio.create_task(capture)
        try:
            snapshot = Snapshot(peer, await peer.expect("$JS.API.STREAM.SNAPSHOT.ORDERS"))
            await script(snapshot)
            return await asyncio.wait_for(task, FAR_SECONDS)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def failure_of(
    script: Script, sink: Taken | Callable[[bytes], None] | None = None, limits: CaptureLimits = HURRIED
) -> JsBackupError:
    """What a capture fails with; nothing of it may be left running."""
    threads = set(threading.enumerate())
    with pytest.raises(JsBackupError) as caught:
        asyncio.run(play(script, sink or Taken(), limits))
    assert set(threading.enumerate()) <= threads
    return caught.value


# ----------------------------------------------------------------------------------------------------- what goes well


@pytest.mark.parametrize("archive", [archive_v1, archive_v2])
@pytest.mark.parametrize("status", ["204", ""])
def test_a_snapshot_arrives_whole(archive: Callable[[list[Message]], bytes], status: str) -> None:
    async def script(snapshot: Snapshot) -> None:
        await snapshot.accept()
        await snapshot.chunks(archive(MESSAGES))
        await snapshot.end(status)

    sink = Taken()
    capture = asyncio.run(play(script, sink))
    assert sink.messages == MESSAGES
    assert capture.config == CONFIG


def test_chunks_and_even_the_end_may_overtake_the_answer() -> None:
    small = MESSAGES[:3]  # fits into the window, as all that comes before an acknowledgement has to

    async def script(snapshot: Snapshot) -> None:
        await snapshot.chunks(archive_v2(small))
        await snapshot.end()
        await snapshot.accept(small)

    sink = Taken()
    asyncio.run(play(script, sink))
    assert sink.messages == small


def test_each_full_chunk_is_acknowledged_once_and_nothing_else_is() -> None:
    archive = archive_v2(MESSAGES)
    full = [data for data in chunks_of(archive) if len(data) == CHUNK]

    async def script(snapshot: Snapshot) -> None:
        await snapshot.accept()
        for index, data in enumerate(full, 1):
            await snapshot.chunk(data, index)
            heard = await snapshot.peer.expect(snapshot.ack_subject(data, index))
            assert (heard.data, heard.reply) == (b"", "")
        await snapshot.chunk(archive[len(full) * CHUNK :], len(full) + 1)
        await snapshot.end()

    asyncio.run(play(script, Taken()))


def test_the_window_is_what_suits_the_link_and_is_shared_by_all_that_run() -> None:
    limits = CaptureLimits()
    far = limits.window_bytes(1.0)
    assert limits.window_bytes(0.0) == LEAST_WINDOW_BYTES < far == 4 * LEAST_WINDOW_BYTES
    assert limits.beside(1).window_bytes(1.0) == far
    assert 7 * limits.beside(6).window_bytes(1.0) <= 2 * far < 7 * (limits.beside(6).window_bytes(1.0) + 1)
    least = limits.reduced().reduced().reduced().beside(63)
    assert least.window_bytes(0.0) == 2 * least.chunk_bytes


def test_a_server_that_does_not_know_the_window_is_asked_without_it() -> None:
    # Two chunks, over whatever link.
    limits = replace(PATIENT, window_share=0.0)

    async def script(snapshot: Snapshot) -> None:
        assert snapshot.asked.json["window_size"] == 2 * CHUNK
        await snapshot.refuse('invalid JSON: json: unknown field "window_size"', 10025)
        again = Snapshot(snapshot.peer, await snapshot.peer.expect("$JS.API.STREAM.SNAPSHOT.ORDERS"))
        assert "window_size" not in again.asked.json
        await again.accept()
        await again.chunks(archive_v2(MESSAGES))
        await again.end()

    sink = Taken()
    asyncio.run(play(script, sink, limits))
    assert sink.messages == MESSAGES


def test_an_opaque_capture_keeps_the_bytes_as_they_come() -> None:
    archive = b"of a format that nobody knows yet " * 200
    kept = bytearray()

    async def script(snapshot: Snapshot) -> None:
        await snapshot.accept()
        await snapshot.chunks(archive)
        await snapshot.end()

    capture = asyncio.run(play(script, kept.extend))
    assert bytes(kept) == archive
    assert capture.end is None


# ------------------------------------------------------------------------------------------------ peers that go wrong


def test_a_server_that_does_not_answer_the_request_is_given_up() -> None:
    async def script(snapshot: Snapshot) -> None:
        pass

    assert isinstance(failure_of(script), NatsTimeout)


def test_a_server_that_answers_and_sends_nothing_is_given_up() -> None:
    async def script(snapshot: Snapshot) -> None:
        await snapshot.accept()

    error = failure_of(script)
    assert isinstance(error, NatsTimeout)
    assert "the next chunk did not come in time" in error.message


def test_a_server_that_stops_after_some_chunks_is_given_up() -> None:
    async def script(snapshot: Snapshot) -> None:
        await snapshot.accept()
        for index, data in enumerate(chunks_of(archive_v2(MESSAGES))[:3], 1):
            await snapshot.chunk(data, index)
            await snapshot.peer.expect("$JS.SNAPSHOT.ACK.>")

    assert isinstance(failure_of(script), NatsTimeout)


def test_a_server_that_hangs_without_closing_its_connection_is_given_up() -> None:
    async def script(snapshot: Snapshot) -> None:
        await snapshot.accept()
        await snapshot.chunk(chunks_of(archive_v2(MESSAGES))[0], 1)
        snapshot.peer.stall()

    assert isinstance(failure_of(script), NatsTimeout)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_lost_connection_is_told_at_once_and_not_waited_for(after: int) -> None:
    async def script(snapshot: Snapshot) -> None:
        await snapshot.accept()
        for index, data in enumerate(chunks_of(archive_v2(MESSAGES))[:after], 1):
            await snapshot.chunk(data, index)
            await snapshot.peer.expect("$JS.SNAPSHOT.ACK.>")
        snapshot.peer.drop()

    error = failure_of(script, limits=replace(HURRIED, idle_seconds=600))
    assert isinstance(error, TransferError)
    assert "was lost" in error.message


def test_after_a_lost_connection_the_next_attempt_makes_a_new_one() -> None:
    async def main() -> list[Message]:
        async with ScriptedPeer() as peer, jetstream(peer.url) as js:
            for attempt in (1, 2):
                sink = Taken()
                task = asyncio.create_task(capture_snapshot(js, "ORDERS", sink, deleted=SequenceSet(), limits=HURRIED))
                snapshot = Snapshot(peer, await peer.expect("$JS.API.STREAM.SNAPSHOT.ORDERS"))
                await snapshot.accept()
                if attempt == 1:
                    peer.drop()
                    with pytest.raises(TransferError):
                        await task
                else:
                    await snapshot.chunks(archive_v2(MESSAGES))
                    await snapshot.end()
                    await asyncio.wait_for(task, FAR_SECONDS)
            assert peer.connections == 2
            return sink.messages

    assert asyncio.run(main()) == MESSAGES


@pytest.mark.parametrize("missing", [1, 2, 5])
def test_a_hole_is_never_passed_over(missing: int) -> None:
    async def script(snapshot: Snapshot) -> None:
        await snapshot.accept()
        snapshot.peer.always("$JS.SNAPSHOT.ACK.>", lambda heard: None)
        for index, data in enumerate(chunks_of(archive_v2(MESSAGES)), 1):
            if index != missing:
                await snapshot.chunk(data, index)
        await snapshot.end()

    error = failure_of(script)
    assert isinstance(error, TransferError)
    assert f"expected chunk {missing}, got {missing + 1}" in error.message


@pytest.mark.parametrize("archive", [archive_v1, archive_v2])
def test_an_archive_that_is_cut_at_any_chunk_is_never_taken_for_whole(
    archive: Callable[[list[Message]], bytes],
) -> None:
    data = archive(MESSAGES[:20])
    for kept in range(len(chunks_of(data))):

        async def script(snapshot: Snapshot, kept: int = kept) -> None:
            await snapshot.accept(MESSAGES[:20])
            await snapshot.chunks(data[: kept * CHUNK])
            await snapshot.end()

        assert isinstance(failure_of(script), (FormatError, TransferError))


def test_a_well_formed_archive_that_does_not_reach_as_far_as_reported_is_refused() -> None:
    async def script(snapshot: Snapshot) -> None:
        await snapshot.accept(MESSAGES)
        await snapshot.chunks(archive_v1(MESSAGES[:-1]))
        await snapshot.end()

    error = failure_of(script, limits=PATIENT)
    assert isinstance(error, TransferError)
    assert f"the server reported {MESSAGES[-1].sequence}" in error.message


@pytest.mark.parametrize("status", ["408 No Interest", "408 No Flow Response", "500 the disk is gone", "500"])
@pytest.mark.parametrize("after", [0, 2])
def test_an_end_with_a_bad_status_is_a_failure_that_names_it(status: str, after: int) -> None:
    async def script(snapshot: Snapshot) -> None:
        await snapshot.accept()
        for index, data in enumerate(chunks_of(archive_v2(MESSAGES))[:after], 1):
            await snapshot.chunk(data, index)
        await snapshot.end(status)

    error = failure_of(script, limits=PATIENT)
    assert isinstance(error, TransferError)
    assert status in error.message


def test_the_answer_about_another_stream_is_refused() -> None:
    async def script(snapshot: Snapshot) -> None:
        await snapshot.accept(name="OTHER")

    error = failure_of(script)
    assert isinstance(error, FormatError)
    assert "OTHER" in error.message


@pytest.mark.parametrize("other", [{"stream": "OTHER"}, {"transfer": "another"}])
def test_chunks_of_another_snapshot_are_refused(other: dict[str, str]) -> None:
    async def script(snapshot: Snapshot) -> None:
        await snapshot.accept()
        first, second, *_ = chunks_of(archive_v2(MESSAGES))
        await snapshot.chunk(first, 1)
        await snapshot.chunk(second, 2, **other)

    assert isinstance(failure_of(script), TransferError)


@pytest.mark.parametrize("answer", [b"", b"{", b"[]", b"null", b'{"type": 1}', b"\xff", b'{"type":"x"}'])
def test_an_answer_that_is_none_is_refused(answer: bytes) -> None:
    async def script(snapshot: Snapshot) -> None:
        await snapshot.peer.answer(snapshot.asked, answer)

    assert isinstance(failure_of(script), FormatError)


@pytest.mark.parametrize(
    ("description", "err_code", "kind"),
    [
        ("snapshot failed: snapshot in progress", 10064, SnapshotBusy),
        ("snapshot failed: no impl", 10064, UnsupportedError),
        ("stream not found", 10059, ApiError),
    ],
)
def test_a_refusal_says_what_it_is(description: str, err_code: int, kind: type[JsBackupError]) -> None:
    async def script(snapshot: Snapshot) -> None:
        await snapshot.refuse(description, err_code)

    assert type(failure_of(script)) is kind


def test_a_server_that_sends_without_waiting_for_credit_is_stopped() -> None:
    released = threading.Event()

    async def script(snapshot: Snapshot) -> None:
        await snapshot.accept()
        snapshot.peer.always("$JS.SNAPSHOT.ACK.>", lambda heard: None)
        # More than the windows of all servers come to (16 MiB), while the sink takes nothing.
        for index in range(1, 18 * 1024):
            await snapshot.chunk(bytes(CHUNK), index)
        released.set()

    error = failure_of(script, lambda chunk: _wait(released), replace(HURRIED, stall_seconds=600))
    assert isinstance(error, TransferError)
    assert "without waiting for acknowledgements" in error.message


# ------------------------------------------------------------------------------------------------ sinks that go wrong


def _wait(event: threading.Event) -> None:
    assert event.wait(FAR_SECONDS)


def test_what_the_sink_raises_ends_the_capture_at_once() -> None:
    def full(chunk: bytes) -> None:
        raise StoreError("no space left")

    async def script(snapshot: Snapshot) -> None:
        await snapshot.accept()
        snapshot.peer.always("$JS.SNAPSHOT.ACK.>", lambda heard: None)
        await snapshot.chunk(bytes(CHUNK), 1)

    error = failure_of(script, full, replace(HURRIED, idle_seconds=600))
    assert (type(error), error.message) == (StoreError, "no space left")


def test_while_the_sink_is_stuck_credit_trickles_up_to_the_limit_and_flows_again_afterwards() -> None:
    released = threading.Event()
    kept: list[bytes] = []
    limits = replace(HURRIED, queue_bytes=2 * CHUNK, queue_limit_bytes=6 * CHUNK, trickle_seconds=0.01)

    def stuck(chunk: bytes) -> None:
        _wait(released)
        kept.append(chunk)

    async def script(snapshot: Snapshot) -> None:
        await snapshot.accept()
        # The sink has one in hand, six may be queued: two at once, four more for the sake of the server's patience.
        for index in range(1, 8):
            await snapshot.chunk(bytes(CHUNK), index)
            await snapshot.peer.expect(f"$JS.SNAPSHOT.ACK.*.*.*.{index}")
        await snapshot.chunk(bytes(CHUNK), 8)
        await snapshot.peer.silence(10 * limits.trickle_seconds)
        released.set()
        await snapshot.peer.expect("$JS.SNAPSHOT.ACK.*.*.*.8")
        await snapshot.end()

    asyncio.run(play(script, stuck, replace(limits, stall_seconds=600)))
    assert kept == [bytes(CHUNK)] * 8


def test_credit_trickles_in_time_although_the_sink_takes_a_chunk_now_and_then() -> None:
    """A chunk that is taken does not put off the acknowledgement that the server waits for."""
    taking = threading.Semaphore(0)
    limits = replace(PATIENT, queue_bytes=2 * CHUNK, trickle_seconds=2.0)
    waited: list[float] = []

    def slow(chunk: bytes) -> None:
        assert taking.acquire(timeout=FAR_SECONDS)

    async def script(snapshot: Snapshot) -> None:
        await snapshot.accept()
        for index in range(1, 4):  # one in hand, two queued
            await snapshot.chunk(bytes(CHUNK), index)
            await snapshot.peer.expect(f"$JS.SNAPSHOT.ACK.*.*.*.{index}")
        paid_at = time.monotonic()
        for index in range(4, 7):
            await snapshot.chunk(bytes(CHUNK), index)
        asyncio.get_running_loop().call_later(0.9 * limits.trickle_seconds, taking.release)
        await snapshot.peer.expect("$JS.SNAPSHOT.ACK.*.*.*.4")
        waited.append(time.monotonic() - paid_at)
        taking.release(20)
        await snapshot.end()

    asyncio.run(play(script, slow, limits))
    assert waited[0] < 1.7 * limits.trickle_seconds


def test_a_sink_that_takes_nothing_for_too_long_is_given_up() -> None:
    released = threading.Event()

    async def script(snapshot: Snapshot) -> None:
        await snapshot.accept()
        snapshot.peer.always("$JS.SNAPSHOT.ACK.>", lambda heard: None)
        for index in range(1, 30):  # so many that some stay without credit
            await snapshot.chunk(bytes(CHUNK), index)
        # A thread cannot be stopped: the capture ends when the call returns in which it waits.
        asyncio.get_running_loop().call_later(2 * HURRIED.stall_seconds, released.set)

    error = failure_of(script, lambda chunk: _wait(released), replace(HURRIED, idle_seconds=600))
    assert isinstance(error, StoreError)
    assert "the store accepted no data" in error.message


def test_a_cancelled_capture_has_ended_when_it_says_so() -> None:
    entered, released = threading.Event(), threading.Event()
    calls: list[str] = []

    def slow(chunk: bytes) -> None:
        entered.set()
        _wait(released)
        calls.append("sink")

    async def main() -> None:
        async with ScriptedPeer() as peer, jetstream(peer.url) as js:
            peer.always("$JS.SNAPSHOT.ACK.>", lambda heard: None)
            task = asyncio.create_task(capture_opaque(js, "ORDERS", slow, limits=PATIENT))
            snapshot = Snapshot(peer, await peer.expect("$JS.API.STREAM.SNAPSHOT.ORDERS"))
            await snapshot.accept()
            await snapshot.chunk(bytes(CHUNK), 1)
            await snapshot.chunk(bytes(CHUNK), 2)
            await asyncio.to_thread(_wait, entered)
            task.cancel()
            asyncio.get_running_loop().call_later(0.05, released.set)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, FAR_SECONDS)
            calls.append("ended")

    asyncio.run(main())
    assert calls == ["sink", "ended"]  # and the second chunk was dropped


# ------------------------------------------------------------------------------------------------------ real servers


async def fill(url: str, count: int, size: int) -> list[bytes]:
    payloads = [message.data for message in some_messages(count, size)]
    async with connected(url) as nc:
        await call(nc, "STREAM.CREATE.ORDERS", {**CONFIG, "num_replicas": 1})
    wire = await Wire.open(url)
    for payload in payloads:
        await wire.send("orders.new", payload)
    await wire.replies()
    await wire.close()
    return payloads


@pytest.mark.nats
@pytest.mark.parametrize(
    ("version", "patience_seconds"),
    [("2.11.11", 2.0), ("2.15.1", 5.0)],
)
def test_a_store_slower_than_the_patience_of_the_server_does_not_break_the_snapshot(
    version: str, patience_seconds: float
) -> None:
    """One put lasts longer than the server waits for an acknowledgement.

    A machine that stalls as long by itself proves nothing of it: then it is tried again.
    """
    slow_seconds = 1.5 * patience_seconds
    margin_seconds = (patience_seconds - CaptureLimits().trickle_seconds) / 2
    with NatsServer(version) as server:
        # Several times what the server has on the way without an acknowledgement (8 MiB, twice that before 2.12.5).
        payloads = asyncio.run(fill(server.url, 2500, 16 * 1024))
        while True:
            stalls: list[float] = []
            try:
                capture, refs, seconds = _captured_slowly(server, slow_seconds, stalls)
                break
            except TransferError:
                if max(stalls, default=0) < margin_seconds:
                    raise
    assert seconds > slow_seconds
    assert sum(ref.messages for ref in refs) == len(payloads)
    assert (refs[0].first_seq, refs[-1].last_seq) == (1, len(payloads))
    assert capture.state.messages == len(payloads)


def _captured_slowly(
    server: NatsServer, slow_seconds: float, stalls: list[float]
) -> tuple[Capture, list[SegmentRef], float]:
    """With how long it took. Times in which this process got no processor are added to `stalls`."""
    puts: list[str] = []

    def before(operation: str, key: str) -> None:
        if operation == "put":
            puts.append(key)
            if len(puts) == 2:
                time.sleep(slow_seconds)

    folder = layout.stream_folder("ORDERS", "1a2b3c4d")
    writer = SegmentWriter(Objects(FaultStore(MemoryStore(), before=before)), folder, segment_bytes=2 << 20)

    async def watch() -> None:
        while True:
            began = time.monotonic()
            try:
                await asyncio.sleep(0.02)
            finally:
                stalls.append(time.monotonic() - began)

    async def main() -> tuple[Capture, float]:
        watching = asyncio.create_task(watch())
        try:
            async with jetstream(server.url) as js:
                began = time.monotonic()
                limits = CaptureLimits(queue_bytes=1 << 20)
                capture = await capture_snapshot(js, "ORDERS", writer, deleted=SequenceSet(), limits=limits)
                return capture, time.monotonic() - began
        finally:
            watching.cancel()

    capture, seconds = asyncio.run(main())
    assert len(puts) > 2
    return capture, writer.finish(), seconds
