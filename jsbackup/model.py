"""Frozen value types that every layer shares. No behaviour beyond their own consistency, no third-party imports.

Stream and consumer *configs* stay plain JSON objects (`JsonObject`): they belong to the server, which adds fields with
each release, and a backup must carry fields that this version of the tool has never heard of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = [
    "ArchivedConsumer",
    "ConsumerState",
    "Fidelity",
    "JsonObject",
    "PendingAck",
    "S3Settings",
    "SequencePair",
    "StreamState",
]

JsonObject = dict[str, Any]


class Fidelity(StrEnum):
    """How faithful a stored consumer state is."""

    EXACT = "exact"  # delivered, ack floor, pending and redelivered as the server holds them
    FLOOR = "floor"  # only the ack floor: messages acknowledged above it are delivered again
    CONFIG_ONLY = "config only"  # no state: the consumer starts as its config says


@dataclass(frozen=True, slots=True)
class SequencePair:
    """A position: consumer sequence (deliveries) and stream sequence."""

    consumer: int = 0
    stream: int = 0


@dataclass(frozen=True, slots=True)
class PendingAck:
    """A delivered message that awaits its acknowledgement. `consumer` is its delivery sequence."""

    consumer: int
    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A consumer's stored state, in the server's terms. Keys of the maps are stream sequences."""

    delivered: SequencePair = SequencePair()
    ack_floor: SequencePair = SequencePair()
    pending: Mapping[int, PendingAck] = field(default_factory=dict)
    redelivered: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArchivedConsumer:
    """A consumer as an archive carries it. `created` is RFC 3339, or None where the format has no room for it (v2)."""

    name: str
    config: JsonObject
    state: ConsumerState | None
    created: str | None = None


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream's state. Timestamps are nanoseconds since the Unix epoch, 0 where there is none.

    An empty stream has `first_seq == last_seq + 1` (0 and 0 on one never used and without `first_seq`).
    """

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    first_ns: int = 0
    last_seq: int = 0
    last_ns: int = 0
    consumers: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class S3Settings:
    """How to reach S3 and how to store there. None leaves it to the AWS configuration. Credentials are never here."""

    endpoint: str | None = None  # URL of a store that is not Amazon's
    region: str | None = None
    profile: str | None = None
    path_style: bool | None = None  # None: where there is an endpoint
    ca: str | None = None  # file with certificate authorities
    sse: str | None = None  # AES256 or aws:kms
    sse_kms_key: str | None = None
    storage_class: str | None = None
    connect_seconds: float = 10.0
    read_seconds: float = 60.0
