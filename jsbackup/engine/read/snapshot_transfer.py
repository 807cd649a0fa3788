"""Capture a stream's snapshot, from the request to a proved end, into a sink of message batches.

The loop receives chunks, a worker thread decodes and stores them, and `SnapshotAcks` decides when a chunk is
acknowledged.

This proves contiguous chunks and a proper end (protocol/snapshot.py), checksums, structure and the archive's own end
(formats/), and that the archive covers the state that the server reported. Counts may differ: messages arrive and
expire while a snapshot runs.

**Acknowledgements** (`SnapshotAcks`) decide when the server may send more, and how much is in flight.

An acknowledgement is only flow-control credit: it is sent when a chunk has been admitted to the bounded queue between
the loop and the thread that stores it. If the sink is slower than the server, credit cannot simply be withheld, because
the server gives up after 5 s (2 s before 2.12.5) without any: one chunk a second keeps the transfer alive while the
sink catches up, at the price of memory for each. (Measured, 2.11: servers before 2.12.5 may have sent up to twice their
window, and only react to an acknowledgement when the unacknowledged bytes are below it; so as many chunks are
acknowledged as that takes.)
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from jsbackup.engine.link.bounded_queues import Intake
from jsbackup.engine.link.concurrency import in_thread
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.subscription import Subscription
from jsbackup.errors import ApiError, JsBackupError, NatsTimeout, StoreError, TransferError
from jsbackup.formats.archive.archive import ArchiveDecoder, ArchiveEnd, ArchiveItem, StreamMeta
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import ArchivedConsumer, JsonObject, StreamState
from jsbackup.progress import ignored
from jsbackup.protocol.dialogue import ChunkReceived, SnapshotStarted, window_for
from jsbackup.protocol.responses import is_unknown_field
from jsbackup.protocol.snapshot import DEFAULT_WINDOW_BYTES, SnapshotReceiver

__all__ = ["Advance", "Capture", "CaptureLimits", "Sink", "capture_opaque", "capture_snapshot"]

KIB, MIB = 1024, 1024 * 1024

_MIN_CHUNK_BYTES = 16 * KIB
_LEAST_CHUNKS = 2


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """Limits of one snapshot: sizes in bytes and times in seconds."""

    chunk_bytes: int = 128 * KIB
    window_share: float = 1.0  # of the window that suits the link
    queue_bytes: int = 2 * MIB  # admitted without delay; above it credit is slowed down
    queue_limit_bytes: int = 48 * MIB  # above it no credit is given
    trickle_seconds: float = 1.0  # less than the 2 s after which servers before 2.12.5 give up
    request_seconds: float = 15.0
    check_seconds: float = 3600.0  # with `check` a server before 2.15 answers only after its scan
    idle_seconds: float = 20.0  # no chunk although credit was given
    stall_seconds: float = 300.0  # the sink accepts nothing

    def beside(self, others: int) -> CaptureLimits:
        """Return limits for one of several snapshots at once: together they have no more in flight than two would."""
        share = 2 / max(2, others + 1)
        return replace(self, window_share=self.window_share * share, queue_bytes=int(self.queue_bytes * share))

    def reduced(self) -> CaptureLimits:
        """Return limits for another attempt after a broken transfer: less in flight is better for slow links and
        stores.
        """
        return replace(
            self,
            chunk_bytes=max(_MIN_CHUNK_BYTES, self.chunk_bytes // 2),
            window_share=self.window_share / 4,
        )

    def window_bytes(self, round_trip_seconds: float) -> int:
        """Return how much may be in flight on such a link: at least two chunks."""
        return max(_LEAST_CHUNKS * self.chunk_bytes, int(self.window_share * window_for(round_trip_seconds)))


class SnapshotAcks:
    """The chunks of a snapshot that are not acknowledged yet, and what acknowledges them."""

    def __init__(
        self, receiver: SnapshotReceiver, subscription: Subscription, intake: Intake, limits: CaptureLimits
    ) -> None:
        self._receiver = receiver
        self._subscription = subscription
        self._intake = intake
        self._limits = limits
        self._unacked: deque[ChunkReceived] = deque()
        self._something_to_do = asyncio.Event()

    @property
    def withheld(self) -> bool:
        """Whether there are chunks that are not acknowledged: no more may come because of that."""
        return bool(self._unacked)

    def admitted(self, chunk: ChunkReceived) -> None:
        """Note a chunk that was passed on."""
        self._unacked.append(chunk)
        self._something_to_do.set()

    def end(self) -> None:
        """Let `run` end: the receiver is done."""
        self._something_to_do.set()

    async def run(self) -> None:
        """Acknowledge until the receiver is done. Raises StoreError if the sink takes nothing for too long."""
        stalled_since: float | None = None
        acked_at = time.monotonic()
        while not self._receiver.done:
            if not self._unacked:
                self._something_to_do.clear()
                await self._something_to_do.wait()
                continue
            excess = 0  # bytes above which the server ignores an acknowledgement
            if self._intake.queued_bytes > self._limits.queue_bytes:
                trickle_seconds = self._limits.trickle_seconds
                if self._intake.queued_bytes <= self._limits.queue_limit_bytes:  # the rest of the interval
                    trickle_seconds = max(0.0, acked_at + trickle_seconds - time.monotonic())
                taken = await self._intake.wait_taken(trickle_seconds)
                now = time.monotonic()
                stalled_since = None if taken else (stalled_since or now)
                if stalled_since is not None and now - stalled_since > self._limits.stall_seconds:
                    raise StoreError(f"the store accepted no data for {self._limits.stall_seconds:.0f} s")
                over = self._intake.queued_bytes
                due = now - acked_at >= self._limits.trickle_seconds
                if over > self._limits.queue_bytes and not (due and over <= self._limits.queue_limit_bytes):
                    continue
                excess = max(0, self._receiver.unacked_bytes - DEFAULT_WINDOW_BYTES)
            while self._unacked and excess >= 0:
                chunk = self._unacked.popleft()
                excess -= len(chunk.data)
                self._receiver.release(chunk)
            for message in self._receiver.to_send():
                await self._subscription.publish(message.subject, message.payload)
            acked_at = time.monotonic()


Advance = Callable[[int, int], None]
"""Gets the bytes and messages of each processed piece."""


class Sink(Protocol):
    """Where captured messages go. All calls come from one worker thread, one at a time."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Add messages, in order."""


@dataclass(slots=True)
class Capture:
    """The result of one snapshot. `config` and `state` are what the server reported when it began.

    `messages` is how many the sink got. `end` is None for an opaque capture. `flaws` are what a lenient one left out.
    """

    config: JsonObject
    state: StreamState
    meta: StreamMeta | None = None
    consumers: list[ArchivedConsumer] = field(default_factory=list)
    end: ArchiveEnd | None = None
    messages: int = 0
    flaws: Sequence[str] = ()


async def capture_snapshot(
    js: JetStream,
    stream: str,
    sink: Sink,
    *,
    deleted: SequenceSet,
    consumers: bool = True,
    check: bool = False,
    limits: CaptureLimits | None = None,
    advance: Advance = ignored,
    begun: Callable[[Capture], None] = ignored,
    lenient: bool = False,
) -> Capture:
    """Take one snapshot of `stream` into `sink`. `deleted` are sequences known to be deleted, which are left out.

    `lenient`: damage in an archive v1 is no error, nor is an archive that ends too early; what of it is proved is
    taken. `begun` gets the capture when the server has answered, before any data; it is filled from then on. Raises
    TransferError if another attempt may help, FormatError for damage, UnsupportedError for a stream that this server
    cannot snapshot or an archive that cannot be decoded (UnknownArchiveFormat), NatsError and ApiError otherwise, and
    the errors of `sink`. Nothing of it runs after it returns or raises.
    """

    def decode(intake: Intake, capture: Capture) -> None:
        decoder = ArchiveDecoder(capture.state.first_seq, deleted, lenient=lenient)

        def take(items: Iterable[ArchiveItem]) -> None:
            for item in items:
                if isinstance(item, pa.RecordBatch):
                    batch = _until(item, capture.meta)
                    if batch.num_rows:
                        sink.add(batch)
                    capture.messages += batch.num_rows
                    advance(item.nbytes, item.num_rows)
                elif isinstance(item, ArchivedConsumer):
                    capture.consumers.append(item)
                else:
                    capture.meta = item

        while (chunk := intake.take()) is not None:
            take(decoder.feed(chunk))
        items, capture.end = decoder.finish()
        take(items)
        capture.flaws = tuple(decoder.flaws)

    capture = await _capture(
        js, stream, decode, limits or CaptureLimits(), begun=begun, consumers=consumers, check=check
    )
    if not lenient:
        _check_coverage(stream, capture)
    return capture


async def capture_opaque(
    js: JetStream,
    stream: str,
    sink: Callable[[bytes], None],
    *,
    consumers: bool = True,
    limits: CaptureLimits | None = None,
    advance: Advance = ignored,
    begun: Callable[[Capture], None] = ignored,
) -> Capture:
    """Take one snapshot of `stream` without decoding it: for archive formats newer than this tool."""

    def keep(intake: Intake, _capture: Capture) -> None:
        while (chunk := intake.take()) is not None:
            sink(chunk)
            advance(len(chunk), 0)

    return await _capture(js, stream, keep, limits or CaptureLimits(), begun=begun, consumers=consumers, check=False)


async def _capture(
    js: JetStream,
    stream: str,
    work: Callable[[Intake, Capture], None],
    limits: CaptureLimits,
    *,
    begun: Callable[[Capture], None],
    consumers: bool,
    check: bool,
) -> Capture:
    inbox = js.link.new_inbox()
    async with js.link.subscribe(inbox) as subscription:
        receiver, started = await _start(js, stream, inbox, limits, consumers=consumers, check=check)
        if js.link.generation != subscription.generation:
            receiver.reconnected()
        capture = Capture(started.config, started.state)
        begun(capture)
        await _Transfer(receiver, subscription, limits).run(lambda intake: work(intake, capture))
    return capture


async def _start(
    js: JetStream, stream: str, inbox: str, limits: CaptureLimits, *, consumers: bool, check: bool
) -> tuple[SnapshotReceiver, SnapshotStarted]:
    """Request the snapshot. Chunks that arrive before the answer wait in the subscription."""
    seconds = limits.check_seconds if check else max(limits.request_seconds, js.timeout_seconds)
    for window in (limits.window_bytes(await js.link.round_trip()), None):
        receiver = SnapshotReceiver(
            stream,
            inbox,
            chunk_size=limits.chunk_bytes,
            window_size=window,
            include_consumers=consumers,
            check=check,
        )
        request = receiver.request(js.prefix)
        answer = await js.link.request(request.subject, request.payload, seconds)
        try:
            started = receiver.receive_response(answer.data)[0]
        except ApiError as error:
            # 2.12.0 to 2.12.4 are strict about JSON and do not know window_size.
            if window is not None and is_unknown_field(error, "window_size"):
                continue
            raise
        assert isinstance(started, SnapshotStarted)
        return receiver, started
    raise AssertionError


class _Transfer:
    """The loop's side of a running snapshot: receives chunks, passes them on, and has those admitted acknowledged."""

    def __init__(self, receiver: SnapshotReceiver, subscription: Subscription, limits: CaptureLimits) -> None:
        self._receiver = receiver
        self._subscription = subscription
        self._idle_seconds = limits.idle_seconds
        self._intake = Intake()
        self._acks = SnapshotAcks(receiver, subscription, self._intake, limits)

    async def run(self, work: Callable[[Intake], None]) -> None:
        """Run the transfer with `work` in a thread; raises the first error, after all parts have ended."""
        worker = in_thread(work, self._intake)
        receiving = asyncio.create_task(self._receive())
        acknowledging = asyncio.create_task(self._acks.run())
        try:
            parts: list[asyncio.Future[Any]] = [worker, receiving, acknowledging]
            await asyncio.wait(parts, return_when=asyncio.FIRST_EXCEPTION)
            for part in parts:
                if part.done():
                    part.result()
        finally:
            receiving.cancel()
            acknowledging.cancel()
            self._intake.abort(JsBackupError("the transfer was given up"))
            # The thread must not outlive the call, because it writes to the sink. Its own error, if any, was raised
            # above.
            with suppress(JsBackupError, asyncio.CancelledError):
                await asyncio.shield(worker)
            await asyncio.gather(receiving, acknowledging, return_exceptions=True)

    async def _receive(self) -> None:
        while not self._receiver.done:
            try:
                message = await self._subscription.next(self._idle_seconds)
            except NatsTimeout:
                if self._acks.withheld:  # no chunks, because we withhold credit
                    continue
                self._receiver.timed_out("the next chunk")
                raise
            for event in self._receiver.receive(message):
                if isinstance(event, ChunkReceived):
                    self._intake.offer(event.data)
                    self._acks.admitted(event)
        self._intake.close()
        self._acks.end()


def _until(batch: pa.RecordBatch, meta: StreamMeta | None) -> pa.RecordBatch:
    """Return the part of a batch that belongs to the initial state of an archive v2.

    Server source (`streamSnapshotV2`): if the last message of that state is deleted when its turn comes, the next
    existing one is sent instead, however far after the state it is.
    """
    if meta is None or meta.state is None or batch.column("sequence")[-1].as_py() <= meta.state.last_seq:
        return batch
    return batch.slice(0, batch.num_rows - 1)


def _check_coverage(stream: str, capture: Capture) -> None:
    """Check that the archive reaches far enough; its proper end only proves that nothing of it is missing."""
    end = capture.end
    if end is not None and end.last_seq < capture.state.last_seq and end.format == "v1":
        raise TransferError(
            f"the snapshot of {stream} ends at sequence {end.last_seq}, the server reported {capture.state.last_seq}"
        )
