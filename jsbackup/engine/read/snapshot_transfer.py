"""Capture a stream's snapshot, from the request to a proved end, into a sink of message batches.

The loop receives chunks, a worker thread decodes and stores them, and `snapshot_acks.py` decides when a chunk is
acknowledged.

This proves contiguous chunks and a proper end (protocol/snapshot.py), checksums, structure and the archive's own end
(formats/), and that the archive covers the state that the server reported. Counts may differ: messages arrive and
expire while a snapshot runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from jsbackup.engine.link.bounded_queues import Intake
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.subscription import Subscription
from jsbackup.engine.link.threads import in_thread
from jsbackup.engine.read.snapshot_acks import CaptureLimits, SnapshotAcks
from jsbackup.errors import ApiError, JsBackupError, NatsTimeout, TransferError
from jsbackup.formats.archive.archive import ArchiveDecoder, ArchiveEnd, ArchiveItem, StreamMeta
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import ArchivedConsumer, JsonObject, StreamState
from jsbackup.progress import ignored
from jsbackup.protocol.events import ChunkReceived, SnapshotStarted
from jsbackup.protocol.responses import is_unknown_field
from jsbackup.protocol.snapshot import SnapshotReceiver

__all__ = ["Advance", "Capture", "Sink", "capture_opaque", "capture_snapshot"]

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
