"""Input and output of the dialogues: messages, and events that say what a message meant."""

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
