"""Capture: one stream's snapshot, from the request to a proved end, into a sink of message batches.

The loop receives chunks, a worker thread decodes and stores them. An acknowledgement is flow-control credit and
nothing else: it is sent when a chunk has been admitted to the hand-over queue, whose size is bounded. When the sink
is slower than the server, credit is not simply withheld, because the server gives up after 5 s (2 s before 2.12.5)
without any: a trickle of one chunk a second keeps the transfer alive while the sink catches up, at the price of one
chunk of memory each. (measured, 2.11: servers before 2.12.5 may have sent up to twice their window, and heed an
acknowledgement only once what is unacknowledged is below it; so the trickle is as many chunks as that takes.)

What is proved here: contiguous chunks and a proper end (protocol/snapshot.py), checksums, structure and the archive's
own end (formats/), and that what came covers what the server reported. Counts need not be equal: messages arrive and
expire while a snapshot runs.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from jsbackup.engine.link.bounded_queues import Intake
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.subscription import Subscription
from jsbackup.engine.link.threads import in_thread
from jsbackup.errors import ApiError, JsBackupError, NatsTimeout, StoreError, TransferError
from jsbackup.formats.archive.archive import ArchiveDecoder, ArchiveEnd, ArchiveItem, StreamMeta
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import ArchivedConsumer, JsonObject, StreamState
from jsbackup.protocol.events import ChunkReceived, SnapshotStarted
from jsbackup.protocol.responses import is_unknown_field
from jsbackup.protocol.snapshot import DEFAULT_WINDOW_BYTES, SnapshotReceiver
from jsbackup.protocol.window import window_for

__all__ = ["Advance", "Capture", "CaptureLimits", "Sink", "capture_opaque", "capture_snapshot"]

KIB, MIB = 1024, 1024 * 1024

_MIN_CHUNK_BYTES = 16 * KIB
_LEAST_CHUNKS = 2

Advance = Callable[[int, int], None]
"""Told of each piece that was dealt with: bytes, messages."""


def _nobody(_bytes: int, _messages: int) -> None:
    pass


def _unheeded(_capture: Capture) -> None:
    pass


class Sink(Protocol):
    """Where captured messages go. All calls come from one worker thread, one at a time."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Messages, in order."""


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """Sizes in bytes and times in seconds that bound one snapshot."""

    chunk_bytes: int = 128 * KIB
    window_share: float = 1.0  # of the window that suits the link
    queue_bytes: int = 2 * MIB  # admitted at once; above it credit trickles
    queue_limit_bytes: int = 48 * MIB  # where the trickle ends
    trickle_seconds: float = 1.0  # less than the 2 s after which servers before 2.12.5 give up
    request_seconds: float = 15.0
    check_seconds: float = 3600.0  # with `check` a server before 2.15 answers only after its scan
    idle_seconds: float = 20.0  # no chunk although credit was given
    stall_seconds: float = 300.0  # the sink takes nothing

    def beside(self, others: int) -> CaptureLimits:
        """For one of several snapshots at once: together they keep no more on the way than two would."""
        share = 2 / max(2, others + 1)
        return replace(self, window_share=self.window_share * share, queue_bytes=int(self.queue_bytes * share))

    def reduced(self) -> CaptureLimits:
        """For another attempt after a broken transfer: slow links and slow stores need little on the way."""
        return replace(
            self,
            chunk_bytes=max(_MIN_CHUNK_BYTES, self.chunk_bytes // 2),
            window_share=self.window_share / 4,
        )

    def window_bytes(self, round_trip_seconds: float) -> int:
        """What may be on its way over such a link: two chunks at least."""
        return max(_LEAST_CHUNKS * self.chunk_bytes, int(self.window_share * window_for(round_trip_seconds)))


@dataclass(slots=True)
class Capture:
    """What one snapshot brought. `config` and `state` are what the server reported when it began.

    `messages` have been given to the sink. `end` is None for an opaque capture.
    """

    config: JsonObject
    state: StreamState
    meta: StreamMeta | None = None
    consumers: list[ArchivedConsumer] = field(default_factory=list)
    end: ArchiveEnd | None = None
    messages: int = 0


async def capture_snapshot(
    js: JetStream,
    stream: str,
    sink: Sink,
    *,
    deleted: SequenceSet,
    consumers: bool = True,
    check: bool = False,
    limits: CaptureLimits | None = None,
    advance: Advance = _nobody,
    begun: Callable[[Capture], None] = _unheeded,
) -> Capture:
    """Take one snapshot of `stream` into `sink`. `deleted` are sequences known to be deleted (they are left out).

    `begun` is told of the capture when the server has answered, before anything comes: it fills from then on.

    Raises TransferError where another attempt may help, FormatError for damage, UnsupportedError for a stream that
    this server cannot snapshot or an archive that cannot be decoded (UnknownArchiveFormat), NatsError and ApiError for
    the rest, and whatever `sink` raises. When it returns or raises, nothing of it runs any more.
    """

    def decode(intake: Intake, capture: Capture) -> None:
        decoder = ArchiveDecoder(capture.state.first_seq, deleted)

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

    capture = await _capture(
        js, stream, decode, limits or CaptureLimits(), begun=begun, consumers=consumers, check=check
    )
    _check_coverage(stream, capture)
    return capture


async def capture_opaque(
    js: JetStream,
    stream: str,
    sink: Callable[[bytes], None],
    *,
    consumers: bool = True,
    limits: CaptureLimits | None = None,
    advance: Advance = _nobody,
    begun: Callable[[Capture], None] = _unheeded,
) -> Capture:
    """Take one snapshot of `stream` as the bytes it is, undecoded: for archive formats newer than this tool."""

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
    """Ask for the snapshot. Chunks that overtake the answer wait in the subscription."""
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
            # 2.12.0 to 2.12.4 are strict about JSON and do not know window_size yet.
            if window is not None and is_unknown_field(error, "window_size"):
                continue
            raise
        assert isinstance(started, SnapshotStarted)
        return receiver, started
    raise AssertionError


class _Transfer:
    """The loop's side of a running snapshot: receives, hands over, and pays for what was admitted."""

    def __init__(self, receiver: SnapshotReceiver, subscription: Subscription, limits: CaptureLimits) -> None:
        self._receiver = receiver
        self._subscription = subscription
        self._limits = limits
        self._intake = Intake()
        self._owed: deque[ChunkReceived] = deque()
        self._owing = asyncio.Event()

    async def run(self, work: Callable[[Intake], None]) -> None:
        """Run the transfer with `work` in a thread; raises whatever breaks first, when all of it has ended."""
        worker = in_thread(work, self._intake)
        receiving = asyncio.create_task(self._receive())
        paying = asyncio.create_task(self._pay())
        try:
            parts: list[asyncio.Future[Any]] = [worker, receiving, paying]
            await asyncio.wait(parts, return_when=asyncio.FIRST_EXCEPTION)
            for part in parts:
                if part.done():
                    part.result()
        finally:
            receiving.cancel()
            paying.cancel()
            self._intake.abort(JsBackupError("the transfer was given up"))
            # The thread must not outlive the call: it writes to the sink. Its own error, if any, was raised above.
            with suppress(JsBackupError, asyncio.CancelledError):
                await asyncio.shield(worker)
            await asyncio.gather(receiving, paying, return_exceptions=True)

    async def _receive(self) -> None:
        while not self._receiver.done:
            try:
                message = await self._subscription.next(self._limits.idle_seconds)
            except NatsTimeout:
                if self._owed:  # we hold the credit back, so the silence is ours
                    continue
                self._receiver.timed_out("the next chunk")
                raise
            for event in self._receiver.receive(message):
                if isinstance(event, ChunkReceived):
                    self._intake.offer(event.data)
                    self._owed.append(event)
                    self._owing.set()
        self._intake.close()
        self._owing.set()  # nothing more to pay: `_pay` sees that and ends

    async def _pay(self) -> None:
        stalled_since: float | None = None
        paid_at = time.monotonic()
        while not self._receiver.done:
            if not self._owed:
                self._owing.clear()
                await self._owing.wait()
                continue
            excess = 0  # bytes above which an acknowledgement is not heeded
            if self._intake.queued_bytes > self._limits.queue_bytes:
                trickle_seconds = self._limits.trickle_seconds
                if self._intake.queued_bytes <= self._limits.queue_limit_bytes:  # what is left since the last one
                    trickle_seconds = max(0.0, paid_at + trickle_seconds - time.monotonic())
                taken = await self._intake.wait_taken(trickle_seconds)
                now = time.monotonic()
                stalled_since = None if taken else (stalled_since or now)
                if stalled_since is not None and now - stalled_since > self._limits.stall_seconds:
                    raise StoreError(f"the store accepted no data for {self._limits.stall_seconds:.0f} s")
                over = self._intake.queued_bytes
                due = now - paid_at >= self._limits.trickle_seconds
                if over > self._limits.queue_bytes and not (due and over <= self._limits.queue_limit_bytes):
                    continue
                excess = max(0, self._receiver.unacked_bytes - DEFAULT_WINDOW_BYTES)
            while self._owed and excess >= 0:
                chunk = self._owed.popleft()
                excess -= len(chunk.data)
                self._receiver.release(chunk)
            for message in self._receiver.to_send():
                await self._subscription.publish(message.subject, message.payload)
            paid_at = time.monotonic()


def _until(batch: pa.RecordBatch, meta: StreamMeta | None) -> pa.RecordBatch:
    """What of a batch lies within the state that an archive v2 begins with.

    Server source (`streamSnapshotV2`): where the last message of that state is gone when its turn comes, the next one
    that is there is sent in its place, however far behind the state it lies.
    """
    if meta is None or meta.state is None or batch.column("sequence")[-1].as_py() <= meta.state.last_seq:
        return batch
    return batch.slice(0, batch.num_rows - 1)


def _check_coverage(stream: str, capture: Capture) -> None:
    """A proper end proves that nothing of the archive is missing; this proves that the archive reaches far enough."""
    end = capture.end
    if end is not None and end.last_seq < capture.state.last_seq and end.format == "v1":
        raise TransferError(
            f"the snapshot of {stream} ends at sequence {end.last_seq}, the server reported {capture.state.last_seq}"
        )
