"""What goes into and comes out of the dialogues: messages, and events that say what a message meant."""

from __future__ import annotations

from dataclasses import dataclass

from jsbackup.model import JsonObject, StreamState
from jsbackup.protocol.info import StreamInfo

__all__ = [
    "ChunkAcknowledged",
    "ChunkReceived",
    "ChunkSent",
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
]


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
    """A chunk of the snapshot, number `index` from 1. `release` it when it is dealt with: that earns its ack."""

    index: int
    data: bytes
    ack_subject: str | None


@dataclass(frozen=True, slots=True)
class LastChunkReceived(ChunkReceived):
    """The short chunk at the end, which asks for no acknowledgement."""


@dataclass(frozen=True, slots=True)
class SnapshotEnded(Event):
    """All of it arrived, as far as the dialogue can tell; the archive inside has an end of its own to check."""


@dataclass(frozen=True, slots=True)
class RestoreAccepted(Event):
    """The server waits for chunks, for five seconds at a time."""


@dataclass(frozen=True, slots=True)
class ChunkSent(Event):
    """A chunk was queued."""


@dataclass(frozen=True, slots=True)
class ChunkAcknowledged(Event):
    """The server took a chunk: as much of the window is free again."""


@dataclass(frozen=True, slots=True)
class EndSent(Event):
    """The empty chunk that ends a restore was queued."""


@dataclass(frozen=True, slots=True)
class RestoreAnswered(Event):
    """The final answer overtook acknowledgements that are still to come."""


@dataclass(frozen=True, slots=True)
class RestoreDone(Event):
    """The stream exists. In a cluster its consumers and replicas may still be on their way."""

    info: StreamInfo


@dataclass(frozen=True, slots=True)
class TransferFailed(Event):
    """The dialogue broke; `failure` of the machine says why."""
