"""Transmit an archive to a server's restore, chunk by chunk, from a worker thread that makes it.

Chunks are pipelined within a window, on a separate connection: a target that stores slowly stops reading it. The thread
works ahead before the restore is requested, because the server silently gives up 5 s after its answer, and 5 s after
any chunk. If the thread still falls behind (a slow store), the current chunk is sent byte by byte, one every two
seconds, until the next one is ready: that keeps the restore alive.

A restore begins and ends in its turn (`jetstream.py`): it takes a turn before it is requested, gives it back when
the server has read more than the first frame, and before its last chunk waits for another turn, sending byte by byte as
above.

**The archive** is made from the store while it is sent (`archive_of`).

Consumers with many pending messages have these in a separate object; everything else is in segments, or, for a stream
that was stored undecoded, in pieces of the snapshot.

**Attempts** (`deliver`): an archive is delivered completely, or nothing is left behind.

A restore that broke off is not retried; the user may want to know first. One that did not begin is: that happens in
clusters now and then, and another attempt does no harm. If a cluster assigned it to a server that is down, `NoLeader`
is raised: the name is free again, and the caller can retry when the cluster knows which servers are up.

**Sources** (`Supply`): a repository, or another server (`clone/stream_clone.py`).

A supply sends one stream at a time to the target, describes what was sent, and proves it there. The rest of a restore
(`execution.py`) is the same for all sources.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from jsbackup.config.connection import Connection
from jsbackup.engine.link.bounded_queues import Outlet, Relay
from jsbackup.engine.link.concurrency import in_thread
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.subscription import Subscription
from jsbackup.engine.read.snapshot_transfer import Advance
from jsbackup.engine.restore.proof import (
    Expected,
    Proof,
    ProofLevel,
    SentMarks,
    SubjectTally,
    Window,
    prove_stream,
    sample_agrees,
    state_agrees,
    subjects_agree,
    windows_of,
)
from jsbackup.engine.restore.remove_unfinished import abandon_restore
from jsbackup.errors import (
    ApiError,
    IntegrityError,
    JsBackupError,
    NatsTimeout,
    NoLeader,
    TargetConflict,
    TransferError,
)
from jsbackup.formats.archive.archive import ArchiveV2Writer, archive_batches
from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
from jsbackup.formats.digest import MessageBatch
from jsbackup.formats.s2 import S2Encoder, first_block_end
from jsbackup.model import ArchivedConsumer, ConsumerState, JsonObject, StreamState
from jsbackup.planning.interrupted import has_message_at
from jsbackup.planning.model import Action, PlannedConsumer, SendAs
from jsbackup.planning.preflight import LEFT
from jsbackup.planning.selection.kept_messages import reshaped_messages
from jsbackup.protocol.dialogue import Message, RestoreDone
from jsbackup.protocol.headers import NO_RESPONDERS, parse_status
from jsbackup.protocol.info import StreamInfo
from jsbackup.protocol.responses import ErrCode
from jsbackup.protocol.restore import RestoreSender, chunk_limit
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.segments import state_to_restore
from jsbackup.repository.write.stream_objects import load_consumer, read_opaque
from jsbackup.times import format_time

__all__ = [
    "PAUSE_SECONDS",
    "Delivery",
    "Origin",
    "Sent",
    "StoredSupply",
    "Supply",
    "TransmitLimits",
    "deliver_once",
    "did_not_begin",
    "writer_for",
]

_AHEAD_BYTES = 4 << 20  # one batch, as read from segments


def load_consumers(objects: Objects, action: Action) -> list[PlannedConsumer]:
    """Return the planned consumers with their complete state. Raises IntegrityError, KeyUnavailable, StoreError."""
    whole = []
    backups = {action.reshape.consumer_name(consumer.name): consumer for consumer in action.entry.consumers}
    for planned in action.consumers:
        if planned.pending is not None:
            loaded = load_consumer(objects, backups[planned.consumer.name])
            planned = replace(planned, consumer=replace(planned.consumer, state=loaded.state), pending=None)
        whole.append(planned)
    return whole


def archive_of(
    objects: Objects,
    action: Action,
    config: JsonObject,
    consumers: Sequence[PlannedConsumer],
    *,
    secret: bytes,
    advance: Advance,
    hurried: Callable[[], bool],
    watch: Callable[[Iterable[MessageBatch]], Iterable[MessageBatch]] = iter,
) -> Iterator[bytes]:
    """Yield the archive as the server reads it, in S2 frames; `secret` is the key for hashing values. What is sent
    passes `watch`.

    While it is `hurried`, nothing is compressed. Blocks: meant for a worker thread. Another one reads and decodes
    ahead.
    """
    if action.wire is SendAs.OPAQUE:
        for piece in read_opaque(objects, action.entry.opaque):
            yield piece
            advance(len(piece), 0)
        return
    writer = writer_for(action, config, state_to_restore(action.entry), consumers)
    batches = _read_ahead(reshaped_messages(objects, action.entry, action.reshape, secret))
    with closing(batches):
        yield from archive_batches(watch(batches), writer, advance, S2Encoder(hurried))


def _read_ahead(batches: Iterator[MessageBatch]) -> Generator[MessageBatch]:
    """Yield the same batches, made in a separate thread. Raises the errors of making them."""
    relay: Relay[MessageBatch] = Relay(_AHEAD_BYTES)

    def read() -> None:
        try:
            for batch in batches:
                relay.put(batch, batch.nbytes)
        finally:
            if isinstance(batches, Generator):  # it holds memory of the budget
                batches.close()

    def end(done: Future[None]) -> None:
        error = done.exception()
        if error is None:
            relay.close()
        else:
            relay.abort(error)

    pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
    pool.submit(read).add_done_callback(end)
    try:
        yield from relay
    finally:
        relay.abort(JsBackupError("the restore was given up"))
        pool.shutdown(wait=False)


def writer_for(
    action: Action, config: JsonObject, state: StreamState, consumers: Sequence[PlannedConsumer]
) -> ArchiveV1Writer | ArchiveV2Writer:
    """Return the writer for the archive of a stream with this state.

    A stream with altered messages gets a new creation time. An unaltered one keeps its own: by that servers of 2.15
    recognize it as the origin of its copies, and backups recognize that they have stored it.
    """
    archived = [planned.consumer for planned in consumers]
    if action.wire is SendAs.V1:
        created = format_time(time.time_ns()) if action.alters else action.entry.created
        writer = ArchiveV1Writer(config, created, state, archived)
        writer.set_sources(
            (" ".join(start.key), start.sequence, start.identity)
            for start in action.starts
            if start.told and start.sequence is not None
        )
        return writer
    # In v2 every consumer has a state. One that starts at the first message has delivered nothing; others are created
    # by the API after the messages.
    starting = ConsumerState()
    archived = [replace(c, state=c.state or starting) for c in archived if c.state or _starts_at_first(c)]
    return ArchiveV2Writer(state, archived)


def _starts_at_first(consumer: ArchivedConsumer) -> bool:
    return bool(consumer.config.get("deliver_policy", "all") == "all")


MIB = 1024 * 1024
_TAIL_BYTES = 1024  # of the last chunk, if it is that long: enough to keep the restore alive for half an hour
_KNOCK_SECONDS = 4.0  # less than the 5 s after which the server gives up
_KNOCK_PAUSE_SECONDS = 0.05

Make = Callable[[Callable[[], bool]], Iterable[bytes]]
"""Makes an archive. The argument tells whether the server could read faster: then it need not be compressed."""


@dataclass(frozen=True, slots=True)
class TransmitLimits:
    """Limits of one restore transfer: sizes in bytes and times in seconds."""

    ahead_bytes: int = 8 * MIB  # how far the thread works ahead
    keep_alive_seconds: float = 2.0  # well below the 5 s after which the server gives up
    request_seconds: float = 30.0  # in a cluster the answer comes when a leader has been elected
    acknowledge_seconds: float = 120.0  # the server accepts nothing because of its disk or a lock
    look_seconds: float = 5.0  # how often a silence is compared with its limit
    reason_seconds: float = 1.0  # for the reason why the server accepts no more chunks
    # After the end the server checks and indexes everything before it answers: 5 MB/s is a very slow disk.
    store_seconds: float = 300.0
    store_bytes_per_second: float = 5e6


def cut_chunks(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Cut `pieces` into chunks of `size` bytes, except for the last two: the last one is not too short."""
    tail = min(size, _TAIL_BYTES)
    pending: deque[memoryview] = deque()
    pending_bytes = 0

    def take(count: int) -> bytes:
        nonlocal pending_bytes
        pending_bytes -= count
        parts = []
        while count:
            part = pending.popleft()
            if len(part) > count:
                pending.appendleft(part[count:])
                part = part[:count]
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    for piece in pieces:
        pending.append(memoryview(piece))
        pending_bytes += len(piece)
        while pending_bytes >= size + tail:
            yield take(size)
    if pending_bytes > size:
        yield take(pending_bytes - tail)
    if pending_bytes:
        yield take(pending_bytes)


async def transmit(
    js: JetStream,
    sender: RestoreSender,
    make: Make,
    limits: TransmitLimits | None = None,
) -> StreamInfo:
    """Restore what `make` yields (in a thread); return the stream of the server's answer.

    Raises TransferError, TargetConflict, ApiError, NatsError, and the errors of `make`. The server may then still be
    processing what it was sent: see `remove_unfinished.py`.
    """
    return await _Transmission(js, sender, limits or TransmitLimits()).run(make)


class _Transmission:
    def __init__(self, js: JetStream, sender: RestoreSender, limits: TransmitLimits) -> None:
        self._js = js
        self._sender = sender
        self._limits = limits
        self._outlet = Outlet(limits.ahead_bytes)
        self._inbox = js.link.new_inbox()
        self._room = asyncio.Event()
        self._replies = 0
        self._ended = False
        self._moved_at = 0.0  # when the server last answered, or the end was sent
        self._turn = js.turn()
        self._turn_bytes = 0  # how much of the archive the server must have read before others may begin
        self._ending = False  # or soon so: keep the turn

    async def run(self, make: Make) -> StreamInfo:
        def work() -> None:
            try:
                for chunk in cut_chunks(make(self._outlet.hurried), self._sender.max_chunk):
                    self._outlet.put(chunk)
            finally:
                self._outlet.close()

        worker = in_thread(work)
        tasks: list[asyncio.Task[Any]] = []
        try:
            await self._outlet.wait_filled()
            if self._outlet.closed:
                await worker  # it has ended, perhaps with an error
            await self._turn.take()
            async with self._js.link.subscribe(f"{self._inbox}.*") as subscription:
                await self._open(subscription)
                first = await self._outlet.next()
                self._turn_bytes = first_block_end(first or b"")
                if first is not None and len(first) > 1:
                    await self._knock(subscription, first[:1])
                    first = first[1:]
                receiving = asyncio.create_task(self._receive(subscription))
                sending = asyncio.create_task(self._send(subscription, worker, first))
                tasks = [receiving, sending]
                parts: list[asyncio.Future[Any]] = [worker, receiving, sending]
                await asyncio.wait(parts, return_when=asyncio.FIRST_EXCEPTION)
                for part in parts:
                    if part.done():
                        part.result()
                return await receiving
        finally:
            self._outlet.abort(JsBackupError("the transfer was given up"))
            for task in tasks:
                task.cancel()
            with suppress(JsBackupError, asyncio.CancelledError):
                await asyncio.shield(worker)
            await asyncio.gather(*tasks, return_exceptions=True)
            self._turn.give_back()

    async def _open(self, subscription: Subscription) -> None:
        request = self._sender.request(self._js.prefix)
        seconds = max(self._limits.request_seconds, self._js.timeout_seconds)
        while True:
            answer = await self._js.link.request(request.subject, request.payload, seconds)
            refusal = self._sender.refusal(answer.data)
            if refusal is None or not await self._js.gathers(refusal):
                break
        self._sender.receive_response(answer.data)
        if self._js.link.generation != subscription.generation:
            self._sender.reconnected()

    async def _knock(self, subscription: Subscription, first: bytes) -> None:
        """Send the first byte until someone listens, then continue after it.

        In a cluster the answer to the request can arrive before the listener for chunks is known (measured: once in
        some fifty restores of a busy cluster), and a chunk without a listener is lost.
        """
        subject = self._sender.deliver_subject
        assert subject is not None
        began = asyncio.get_running_loop().time()
        while True:
            await subscription.publish(subject, first, self._next_reply())
            try:
                reply = await subscription.next(self._limits.request_seconds)
            except NatsTimeout:
                self._sender.timed_out("an acknowledgement")
                raise
            if not reply.data and not reply.headers:
                return
            if not _met_nobody(reply) or asyncio.get_running_loop().time() - began > _KNOCK_SECONDS:
                self._sender.receive(reply)
            await asyncio.sleep(_KNOCK_PAUSE_SECONDS)

    async def _send(self, subscription: Subscription, worker: asyncio.Future[None], held: bytes | None) -> None:
        while held is not None:
            held, following = await self._next(subscription, held)
            if following is None:
                # The end tells the server that the archive is complete, so first check that the thread succeeded.
                await worker
                held = await self._wait_for_turn(subscription, held)
            if held:
                await self._send_chunk(subscription, held)
            held = following
        self._sender.finish(self._next_reply())
        self._ended = True
        self._moved_at = asyncio.get_running_loop().time()
        await self._publish(subscription)

    async def _next(self, subscription: Subscription, held: bytes) -> tuple[bytes, bytes | None]:
        """Return the rest of `held`, after sending parts of it to keep the restore alive, and the chunk after it."""
        while True:
            try:
                async with asyncio.timeout(self._limits.keep_alive_seconds if held else None):
                    return held, await self._outlet.next()
            except TimeoutError:
                held = await self._keep_alive(subscription, held)

    async def _wait_for_turn(self, subscription: Subscription, held: bytes) -> bytes:
        """Wait for the turn to end; return the rest of `held`, sent as by `_next`."""
        self._ending = True
        turn = asyncio.ensure_future(self._turn.take())  # keeps its place in the queue while we send
        try:
            while not (await asyncio.wait({turn}, timeout=self._limits.keep_alive_seconds if held else None))[0]:
                held = await self._keep_alive(subscription, held)
        finally:
            turn.cancel()
        return held

    async def _keep_alive(self, subscription: Subscription, held: bytes) -> bytes:
        await self._send_chunk(subscription, held[:1])
        return held[1:]

    async def _send_chunk(self, subscription: Subscription, chunk: bytes) -> None:
        while self._sender.room < len(chunk):
            self._room.clear()
            await self._room.wait()
        self._sender.send(chunk, self._next_reply())
        await self._publish(subscription)

    def _next_reply(self) -> str:
        self._replies += 1
        return f"{self._inbox}.{self._replies}"

    async def _publish(self, subscription: Subscription) -> None:
        for message in self._sender.to_send():
            await subscription.publish(message.subject, message.payload, message.reply)

    async def _receive(self, subscription: Subscription) -> StreamInfo:
        loop = asyncio.get_running_loop()
        self._moved_at = loop.time()
        nobody: Message | None = None
        while True:
            limits = self._limits
            try:
                message = await subscription.next(limits.look_seconds if nobody is None else limits.reason_seconds)
            except NatsTimeout:
                if nobody is not None:
                    self._sender.receive(nobody)
                if self._ended:
                    awaited, seconds = "the final answer", limits.store_seconds
                    seconds += self._sender.bytes_sent / limits.store_bytes_per_second
                elif self._sender.unacked_bytes:
                    awaited, seconds = "an acknowledgement", limits.acknowledge_seconds
                else:
                    continue  # nothing is in flight: we are the slow side
                if loop.time() - self._moved_at > seconds:
                    self._sender.timed_out(awaited)
                continue
            if _met_nobody(message):
                # The reply to an earlier chunk says why, and may arrive later (measured: 2.10 to 2.14, when a limit was
                # reached).
                nobody = nobody or message
                continue
            self._moved_at = loop.time()
            for event in self._sender.receive(message):
                if isinstance(event, RestoreDone):
                    return event.info
            self._room.set()
            if self._sender.bytes_acknowledged > self._turn_bytes and not self._ending:
                self._turn.give_back()


def _met_nobody(reply: Message) -> bool:
    """Return whether this replies to a chunk, or an end, without a listener."""
    status = parse_status(reply.headers)
    return status is not None and status.code == NO_RESPONDERS


_log = logging.getLogger(__name__)

_ATTEMPTS = 4
PAUSE_SECONDS = 0.5  # for the servers to forget the last attempt


# Server source: `processServiceImport` adds the header Nats-Request-Info, and a restore takes it for archive data (up
# to 2.15).
_IMPORTED = (
    "Chunks must not pass a service import, where nats-server puts a header before them: "
    "connect with a user of the account that has the streams."
)


async def deliver(
    js: JetStream,
    connection: Connection,
    begin: Callable[[], RestoreSender],
    archive: Make,
    *,
    limits: TransmitLimits,
) -> None:
    """Send what `archive` makes, with a new sender from `begin` for each attempt.

    Raises TransferError, TargetConflict, ApiError, NatsError.
    """
    attempt = 1
    while True:
        sender = begin()
        try:
            await deliver_once(js, connection, sender, archive, limits=limits)
            return
        except JsBackupError as error:
            if not did_not_begin(error, sender, attempt):
                raise
            _log.info("%s; attempt %d", error, attempt + 1)
        attempt += 1
        await asyncio.sleep(PAUSE_SECONDS)


async def deliver_once(
    js: JetStream,
    connection: Connection,
    sender: RestoreSender,
    archive: Make,
    *,
    limits: TransmitLimits,
) -> None:
    """Send what `archive` makes. After a failure, removes what is left, then raises as `transmit`."""
    try:
        await transmit(js, sender, archive, limits)
    except BaseException as error:
        refused = sender.deliver_subject is None and isinstance(error, (ApiError, TargetConflict))
        if not refused and not _is_name_taken(error):
            await asyncio.shield(abandon_restore(connection, sender))
        unanswered = sender.deliver_subject is None and isinstance(error, NatsTimeout)
        if unanswered and js.link.cluster_name is not None:
            raise NoLeader(f"{error}; the cluster placed the stream where no server answers") from error
        if isinstance(error, JsBackupError) and connection.js_api_prefix is not None:
            raise error.with_hint(_IMPORTED) from error.__cause__
        raise


def did_not_begin(error: JsBackupError, sender: RestoreSender, attempt: int) -> bool:
    """Return whether attempt `attempt` (from 1) failed before anything was sent, and another one makes sense."""
    # After the first attempt, our own stream, just deleted, may still have the name.
    passing = isinstance(error, TransferError) or (attempt > 1 and _is_name_taken(error))
    return sender.deliver_subject is None and passing and attempt < _ATTEMPTS


def _is_name_taken(error: BaseException) -> bool:
    cause = error.__cause__ if isinstance(error, TargetConflict) else None
    return isinstance(cause, ApiError) and cause.err_code in (ErrCode.STREAM_NAME_IN_USE, ErrCode.RESTORE_NAME_IN_USE)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One stream to send over `js`, to be created with `config`. `window_bytes` may be unacknowledged.

    `start` gets bytes and messages each time sending begins; `advance` those of each piece that was sent.
    """

    js: JetStream
    connection: Connection
    action: Action
    config: JsonObject
    start: Callable[[int, int], None]
    advance: Advance
    window_bytes: int
    limits: TransmitLimits

    def sender(self, state: StreamState) -> RestoreSender:
        """Return a sender for one attempt at a stream with this state."""
        return RestoreSender(
            self.config,
            state,
            max_chunk=chunk_limit(self.js.link.max_payload_bytes),
            window_size=self.window_bytes,
        )


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of a delivery. `entry` has the state, numbers and digest of what was sent.

    `undecoded` says why nothing can be compared, "" if it can. `notes` are problems; then it is `incomplete`.
    """

    entry: StreamBackup
    consumers: tuple[PlannedConsumer, ...]
    wire: SendAs
    undecoded: str = ""
    notes: tuple[str, ...] = ()
    incomplete: bool = False


class Supply(Protocol):
    """The source of streams for one worker of a restore. Not shared between workers."""

    @property
    def connected(self) -> bool:
        """Whether it can send another stream."""

    @property
    def proves_later(self) -> bool:
        """Whether a proof of a stream does not suffer from waiting, and another supply of the origin can make it."""

    def on_the_way(self, config: JsonObject) -> JsonObject:
        """Return the stream's configuration until it is complete."""

    async def has_last(self, action: Action, state: StreamState) -> bool:
        """Return whether the last message of a stream in `state` is one of those to be restored. Raises NatsError."""

    async def send(self, delivery: Delivery) -> Sent:
        """Send the stream. If this raises, everything that could be removed at the target was removed."""

    async def prove(self, js: JetStream, action: Action, sent: Sent, *, advance: Advance) -> tuple[Proof | None, str]:
        """Read the stream back, or return why that proves nothing. Raises DigestMismatch and NatsError.

        If the user may not read it, NatsPermissionDenied has the reason.
        """

    def after_staging(self, connection: Connection, staged: str, sent: Sent) -> AbstractAsyncContextManager[Supply]:
        """Return the supply for the stream after a proved copy of it was made at the target as `staged`."""


Origin = Callable[[], AbstractAsyncContextManager[Supply]]
"""Opens a supply for a worker."""


class StoredSupply:
    """Streams of a backup in a repository, reshaped as planned; `secret` is the key for hashing values. They are proved
    as `level` says, with a sample chosen by `chance`.
    """

    def __init__(
        self,
        objects: Objects,
        secret: bytes = b"",
        level: ProofLevel = ProofLevel.FULL,
        chance: random.Random | None = None,
    ) -> None:
        self._objects = objects
        self._secret = secret
        self._level = level
        self._chance = chance or random.Random()
        self._sent_as = ""  # the stream that was sent last, and what was noted of it for its proof:
        self._noted: SubjectTally | SentMarks | None = None

    connected = True

    @property
    def proves_later(self) -> bool:
        # Counts are only compared while nobody publishes to the stream. They are cheap, so that nothing waits for them.
        return self._level is ProofLevel.FULL

    def on_the_way(self, config: JsonObject) -> JsonObject:
        return config

    async def has_last(self, action: Action, state: StreamState) -> bool:
        renumbered = action.reshape.renumber
        return await in_thread(partial(has_message_at, self._objects, action.entry, state, renumbered=renumbered))

    async def send(self, delivery: Delivery) -> Sent:
        try:
            return await self._send(delivery)
        except IntegrityError as error:
            raise error.with_hint(error.hint or LEFT) from error.__cause__

    async def _send(self, delivery: Delivery) -> Sent:
        action, entry = delivery.action, delivery.action.entry
        consumers = await in_thread(load_consumers, self._objects, action)
        opaque = sum(piece.bytes for piece in entry.opaque)
        delivery.start(opaque or entry.captured.bytes, entry.captured.messages)
        watch = self._watch(action.name)

        def archive(hurried: Callable[[], bool]) -> Iterable[bytes]:
            return archive_of(
                self._objects,
                action,
                delivery.config,
                consumers,
                secret=self._secret,
                advance=delivery.advance,
                hurried=hurried,
                watch=watch,
            )

        await deliver(
            delivery.js,
            delivery.connection,
            lambda: delivery.sender(state_to_restore(entry)),
            archive,
            limits=delivery.limits,
        )
        return self._sent(action, consumers)

    def _watch(self, name: str) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
        """Return what notes of the batches of stream `name` that is sent what its proof needs."""
        self._sent_as, self._noted = name, None
        if self._level is ProofLevel.QUICK:
            self._noted = SubjectTally()
        elif self._level is ProofLevel.SAMPLE:
            self._noted = SentMarks()
        return self._noted.watch if self._noted else iter

    async def sent_before(self, action: Action) -> Sent:
        """Return the result of `send` in another process. Raises IntegrityError and StoreError."""
        return self._sent(action, await in_thread(load_consumers, self._objects, action))

    def _sent(self, action: Action, consumers: Iterable[PlannedConsumer]) -> Sent:
        undecoded = "it is stored undecoded" if action.wire is SendAs.OPAQUE else ""
        return Sent(action.entry, tuple(consumers), action.wire, undecoded)

    async def prove(self, js: JetStream, action: Action, sent: Sent, *, advance: Advance) -> tuple[Proof | None, str]:
        entry, config = sent.entry, action.config
        if sent.wire is SendAs.V2:
            # Server source (`RestoreStreamV2`): it leaves out what has outlived its `Nats-TTL` in any stream.
            config = {**config, "allow_msg_ttl": True}
        expected = Expected(
            entry.digest,
            entry.captured.messages,
            state_to_restore(entry).last_seq,
            config,
            [planned.consumer for planned in sent.consumers],
            lambda: reshaped_messages(self._objects, entry, action.reshape, self._secret),
        )
        if await self._agrees(js, action, sent, advance):
            info = await js.stream(action.name)
            if state_agrees(info, state_to_restore(entry)):  # still: what was not read may be overwritten meanwhile
                return Proof(info, entry.digest, entry.captured.messages, level=self._level), ""
        return await prove_stream(js, action.name, expected, advance=advance), ""

    async def _agrees(self, js: JetStream, action: Action, sent: Sent, advance: Advance) -> bool:
        """Return whether all that is compared is the same, if that is not everything. Raises NatsError."""
        if self._sent_as != action.name or self._noted is None:
            return False
        info, state = await js.stream(action.name), state_to_restore(sent.entry)
        if not state_agrees(info, state):
            return False
        if isinstance(self._noted, SubjectTally):
            return await subjects_agree(js, info, self._noted)
        windows = windows_of(state, self._noted.marks, self._chance)
        read = partial(self._messages_in, action, sent.entry)
        return bool(windows) and await sample_agrees(js, info, windows, read, advance=advance)

    def _messages_in(self, action: Action, entry: StreamBackup, windows: Sequence[Window]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of some windows as they were sent, and others."""
        if not action.reshape:
            refs = (ref for ref in entry.segments if any(ref.first_seq <= b and ref.last_seq >= a for a, b in windows))
            entry = replace(entry, segments=tuple(refs))
        return reshaped_messages(self._objects, entry, action.reshape, self._secret)

    @asynccontextmanager
    async def after_staging(self, connection: Connection, staged: str, sent: Sent) -> AsyncIterator[Supply]:
        yield self
