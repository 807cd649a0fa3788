"""The sources of restored streams: a repository, or (`live.py`) another server.

A supply sends one stream at a time to the target, describes what was sent, and proves it there. The rest of a restore
(`execution.py`) is the same for all sources.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from jsbackup.config import Connection
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.threads import in_thread
from jsbackup.engine.read.snapshot_transfer import Advance
from jsbackup.engine.restore.attempts import deliver
from jsbackup.engine.restore.partial_proof import (
    ProofLevel,
    SentMarks,
    SubjectTally,
    Window,
    sample_agrees,
    state_agrees,
    subjects_agree,
    windows_of,
)
from jsbackup.engine.restore.proof import Expected, Proof, prove_stream
from jsbackup.engine.restore.restore_transfer import TransmitLimits
from jsbackup.engine.restore.stored_archive import archive_of, load_consumers
from jsbackup.errors import IntegrityError
from jsbackup.model import JsonObject, StreamState
from jsbackup.planning.interrupted import has_message_at
from jsbackup.planning.model import Action, PlannedConsumer, SendAs
from jsbackup.planning.preflight import LEFT
from jsbackup.planning.selection.kept_messages import reshaped_messages
from jsbackup.protocol.restore import RestoreSender, chunk_limit
from jsbackup.protocol.window import LEAST_WINDOW_BYTES
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.segments import state_to_restore

__all__ = ["Delivery", "Origin", "Sent", "StoredSupply", "Supply", "Transfer"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """How a stream is sent. `window_bytes` may be unacknowledged."""

    connection: Connection
    window_bytes: int = LEAST_WINDOW_BYTES
    limits: TransmitLimits = field(default_factory=TransmitLimits)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One stream to send over `js`, to be created with `config`.

    `start` gets bytes and messages each time sending begins; `advance` those of each piece that was sent.
    """

    js: JetStream
    transfer: Transfer
    action: Action
    config: JsonObject
    start: Callable[[int, int], None]
    advance: Advance

    def sender(self, state: StreamState) -> RestoreSender:
        """Return a sender for one attempt at a stream with this state."""
        return RestoreSender(
            self.config,
            state,
            max_chunk=chunk_limit(self.js.link.max_payload_bytes),
            window_size=self.transfer.window_bytes,
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
        """Return whether the last message of a stream in `state` is one of those to be restored. Raises as `send`."""

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
            delivery.transfer.connection,
            lambda: delivery.sender(state_to_restore(entry)),
            archive,
            limits=delivery.transfer.limits,
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
