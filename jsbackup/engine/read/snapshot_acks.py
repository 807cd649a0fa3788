"""Acknowledge the chunks of a snapshot: when the server is allowed to send more, and how much is in flight.

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
from dataclasses import dataclass, replace

from jsbackup.engine.link.bounded_queues import Intake
from jsbackup.engine.link.subscription import Subscription
from jsbackup.errors import StoreError
from jsbackup.protocol.events import ChunkReceived
from jsbackup.protocol.snapshot import DEFAULT_WINDOW_BYTES, SnapshotReceiver
from jsbackup.protocol.window import window_for

__all__ = ["CaptureLimits", "SnapshotAcks"]

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
