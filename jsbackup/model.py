"""Frozen value types shared by all layers. No behaviour except their own consistency, no third-party imports.

Stream and consumer *configs* stay plain JSON objects (`JsonObject`): they belong to the server, which adds fields with
each release, and a backup must carry fields that this version of the tool has never heard of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from jsbackup.errors import JsBackupError

__all__ = [
    "ArchivedConsumer",
    "Check",
    "ConsumerState",
    "Fidelity",
    "JsonObject",
    "PendingAck",
    "S3Settings",
    "SequencePair",
    "StreamState",
    "Verdict",
]

JsonObject = dict[str, Any]


class Fidelity(StrEnum):
    """How faithful a stored consumer state is."""

    EXACT = "exact"  # delivered, ack floor, pending and redelivered as on the server
    FLOOR = "floor"  # only the ack floor: messages acknowledged above it are delivered again
    CONFIG_ONLY = "config only"  # no state: the consumer starts as its config says


@dataclass(frozen=True, slots=True)
class SequencePair:
    """A position: consumer sequence (deliveries) and stream sequence."""

    consumer: int = 0
    stream: int = 0


@dataclass(frozen=True, slots=True)
class PendingAck:
    """A delivered message that is not acknowledged yet. `consumer` is its delivery sequence."""

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
    """A consumer in an archive. `created` is RFC 3339, or None if the format does not have it (v2)."""

    name: str
    config: JsonObject
    state: ConsumerState | None
    created: str | None = None


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream's state. Timestamps are nanoseconds since the Unix epoch, 0 if there is none.

    An empty stream has `first_seq == last_seq + 1` (0 and 0 if it was never used and has no `first_seq`).
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
    """How to reach S3 and how to store there. None means the AWS configuration. Never contains credentials."""

    endpoint: str | None = None  # URL of a store that is not Amazon's
    region: str | None = None
    profile: str | None = None
    path_style: bool | None = None  # None: if there is an endpoint
    ca: str | None = None  # file with certificate authorities
    sse: str | None = None  # AES256 or aws:kms
    sse_kms_key: str | None = None
    storage_class: str | None = None
    connect_seconds: float = 10.0
    read_seconds: float = 60.0


class Verdict(StrEnum):
    """The result of checking a precondition."""

    OK = "ok"
    WARNING = "warning"  # works, but not as it should
    PROBLEM = "problem"  # something will fail
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class Check:
    """A checked precondition: the result, and a sentence that says how to fix it if it is not ok.

    `name` is for programs and never changes its meaning; `about` names the object if several have the same name.
    `code` is the exit code that belongs to a problem.
    """

    name: str
    verdict: Verdict
    found: str
    fix: str | None = None
    about: str | None = None
    code: int = 0

    @classmethod
    def fine(cls, name: str, found: str, *, about: str | None = None) -> Self:
        return cls(name, Verdict.OK, found, about=about)

    @classmethod
    def warning(cls, name: str, found: str, fix: str, *, about: str | None = None) -> Self:
        return cls(name, Verdict.WARNING, found, fix, about)

    @classmethod
    def problem(cls, name: str, found: str, fix: str, *, code: int = 1, about: str | None = None) -> Self:
        return cls(name, Verdict.PROBLEM, found, fix, about, code)

    @classmethod
    def not_tried(cls, name: str, why: str, fix: str, *, about: str | None = None) -> Self:
        return cls(name, Verdict.NOT_TRIED, why, fix, about)

    @classmethod
    def failed(cls, name: str, error: JsBackupError, fix: str, *, about: str | None = None) -> Self:
        """Return a problem from an error; `fix` is used if the error has no hint."""
        return cls(name, Verdict.PROBLEM, error.message, error.hint or fix, about, error.exit_code)
