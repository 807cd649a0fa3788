"""Transmit an archive to a server's restore, chunk by chunk, from a worker thread that makes it.

Chunks are pipelined within a window, on a separate connection: a target that stores slowly stops reading it. The thread
works ahead before the restore is requested, because the server silently gives up 5 s after its answer, and 5 s after
any chunk. If the thread still falls behind (a slow store), the current chunk is sent byte by byte, one every two
seconds, until the next one is ready: that keeps the restore alive.

A restore begins and ends in its turn (`jetstream.py`): it takes a turn before it is requested, gives it back when
the server has read more than the first frame, and before its last chunk waits for another turn, sending byte by byte as
above.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jsbackup.engine.link.bounded_queues import Outlet
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.subscription import Subscription
from jsbackup.engine.link.threads import in_thread
from jsbackup.errors import JsBackupError, NatsTimeout
from jsbackup.formats.s2 import first_block_end
from jsbackup.protocol.events import Message, RestoreDone
from jsbackup.protocol.headers import NO_RESPONDERS, parse_status
from jsbackup.protocol.info import StreamInfo
from jsbackup.protocol.restore import RestoreSender

__all__ = ["Make", "TransmitLimits", "cut_chunks", "transmit"]

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
