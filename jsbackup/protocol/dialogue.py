"""The common part of the snapshot and restore dialogues: a state that only their table changes, messages to send,
events that say what a message meant, an end; and how much may be under way.

Rules of the dialogues:
- No I/O, no clock, no await. The driver sends what `to_send` returns, passes in what arrives, and owns all timers:
  after a timeout it calls `timed_out`, and after its connection was replaced `reconnected`.
- Only a table `(state, event type) → state` changes the state; a pair that is not in it violates the protocol.
- A fault of the peer or the network, or a timeout, fails the dialogue permanently: every further call that passes
  something in raises the same error, `to_send` returns nothing, and the driver starts a new dialogue.
- A mistake of the caller (a chunk too large, a release twice) is a UsageError and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NoReturn, TypeVar

from jsbackup.errors import JsBackupError, NatsTimeout, TransferError
from jsbackup.model import JsonObject, StreamState
from jsbackup.protocol.info import StreamInfo

__all__ = [
    "LEAST_WINDOW_BYTES",
    "ChunkAcknowledged",
    "ChunkReceived",
    "ChunkSent",
    "Dialogue",
    "EndSent",
    "Event",
    "LastChunkReceived",
    "Message",
    "Publish",
    "RestoreAccepted",
    "RestoreAnswered",
    "RestoreDone",
    "SnapshotEnded",
    "SnapshotStarted",
    "TransferFailed",
    "window_for",
]

# How many bytes of a transfer may be unacknowledged, in either direction, to hide the round trip. Both ends may have to
# hold that much, so it is not more than the link needs. The chunks of a snapshot are acknowledged in
# `engine/read/snapshot_transfer.py`, those of a restore are counted in `restore.py`.
#
# Measured, loopback: what restores need. Backups are not faster with twice as much.
LEAST_WINDOW_BYTES = 4 << 20
_MOST_WINDOW_BYTES = 16 << 20
_LINK_BYTES_PER_SECOND = 420e6


def window_for(round_trip_seconds: float) -> int:
    """Return the window for a link, enough to hide the round trip of a fast one: 4 MiB up to 10 ms, 16 MiB from
    40 ms.
    """
    return min(max(LEAST_WINDOW_BYTES, int(round_trip_seconds * _LINK_BYTES_PER_SECOND)), _MOST_WINDOW_BYTES)


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it arrived. `headers` is the raw block, empty if there is none."""

    subject: str
    reply: str | None
    headers: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Publish:
    """A message to send."""

    subject: str
    reply: str | None = None
    payload: bytes = b""


class Event:
    """Base of all events."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SnapshotStarted(Event):
    """The server's answer: the stream's config and state when the snapshot began."""

    config: JsonObject
    state: StreamState


@dataclass(frozen=True, slots=True)
class ChunkReceived(Event):
    """A chunk of the snapshot, number `index` from 1. `release` it when it is processed, to acknowledge it."""

    index: int
    data: bytes
    ack_subject: str | None


@dataclass(frozen=True, slots=True)
class LastChunkReceived(ChunkReceived):
    """The short chunk at the end, which needs no acknowledgement."""


@dataclass(frozen=True, slots=True)
class SnapshotEnded(Event):
    """Everything has arrived, as far as the dialogue knows; the archive inside has its own end to check."""


@dataclass(frozen=True, slots=True)
class RestoreAccepted(Event):
    """The server waits for chunks, five seconds for each."""


@dataclass(frozen=True, slots=True)
class ChunkSent(Event):
    """A chunk was queued."""


@dataclass(frozen=True, slots=True)
class ChunkAcknowledged(Event):
    """The server accepted a chunk, which frees that part of the window."""


@dataclass(frozen=True, slots=True)
class EndSent(Event):
    """The empty chunk that ends a restore was queued."""


@dataclass(frozen=True, slots=True)
class RestoreAnswered(Event):
    """The final answer arrived before outstanding acknowledgements."""


@dataclass(frozen=True, slots=True)
class RestoreDone(Event):
    """The stream exists. In a cluster its consumers and replicas may still be missing."""

    info: StreamInfo


@dataclass(frozen=True, slots=True)
class TransferFailed(Event):
    """The dialogue failed; its `failure` says why."""


S = TypeVar("S", bound=Enum)


class Dialogue(Generic[S]):
    """State, outgoing messages and failure of one transfer. `what` begins its error messages."""

    def __init__(self, what: str, transitions: Mapping[tuple[S, type[Event]], S], first: S, done: S) -> None:
        self.what = what
        self.failure: JsBackupError | None = None
        self._transitions = transitions
        self._done = done
        self._state = first
        self._outgoing: list[Publish] = []

    @property
    def state(self) -> S:
        return self._state

    @property
    def done(self) -> bool:
        """Whether the dialogue has ended successfully."""
        return self._state is self._done

    def to_send(self) -> list[Publish]:
        """Return the messages to send now, in this order; each is returned once."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def reconnected(self) -> None:
        """Note that the connection was replaced during the transfer, so that messages may be lost without a trace.

        (Measured: a snapshot whose client reconnects can end with status 204 and a gap.) Raises TransferError, unless
        the dialogue has ended successfully.
        """
        self._check_failure()
        if not self.done:
            self._fail(TransferError(f"{self.what}: the connection was lost on the way"))

    def timed_out(self, awaited: str) -> None:
        """Note that `awaited` did not arrive in time. Raises NatsTimeout, unless the dialogue has ended
        successfully.
        """
        self._check_failure()
        if not self.done:
            self._fail(NatsTimeout(f"{self.what}: {awaited} did not come in time"))

    def _check_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _advance(self, event: Event) -> None:
        following = self._transitions.get((self._state, type(event)))
        if following is None:
            self._breach(f"unexpected {type(event).__name__} in state {self._state.name}")
        self._state = following

    def _breach(self, problem: str) -> NoReturn:
        self._fail(TransferError(f"{self.what}: {problem}"))

    def _fail(self, error: JsBackupError) -> NoReturn:
        self._state = self._transitions[self._state, TransferFailed]
        self.failure = error
        self._outgoing.clear()
        raise error
