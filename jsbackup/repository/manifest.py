"""A manifest: what one backup holds. Writing it commits the backup; it is never overwritten.

The types here are the document, field by field; `manifest.schema.json` beside this module is the same as a JSON Schema.
In JSON, times are RFC 3339 in UTC; sizes are bytes; sequences are integers (of up to 64 bits: mind it in JavaScript).
`extra` (and `state_extra`, for the state inside) holds fields of a later version, which survive a rewrite by this one.

Words: *raw bytes* (`bytes`) are bytes of the canonical encoding (`formats/digest.py`), `size` is that of a stored
object, `sha256` is over the stored object, `digest` over messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from jsbackup.config import Glob, is_chosen
from jsbackup.formats.digest import StreamDigest
from jsbackup.model import ConsumerState, Fidelity, JsonObject, StreamState

__all__ = [
    "EMPTIED",
    "AnyRef",
    "ArchiveFormat",
    "Captured",
    "ConsumerBackup",
    "CopiedFrom",
    "Manifest",
    "ObjectRef",
    "OpaqueRef",
    "ReadAs",
    "Reading",
    "Result",
    "SegmentRef",
    "Selection",
    "SkippedStream",
    "Source",
    "StreamBackup",
    "Totals",
    "objects_named",
    "total_of",
]

Extra = Mapping[str, Any]

EMPTIED = "it has no messages any more, and had "  # so begins the warning of a stream that was purged


class Result(StrEnum):
    COMPLETE = "complete"
    PARTIAL = "partial"  # something is missing; `skipped` and warnings say what


class ArchiveFormat(StrEnum):
    """How a stream was read."""

    V1 = "v1"
    V2 = "v2"
    MESSAGES = "messages"  # message by message: what is new in it, or all where the server cannot snapshot it
    CONFIG = "config"  # no messages were asked for
    OPAQUE = "opaque"  # a format newer than this tool, kept verbatim


class ReadAs(StrEnum):
    """How much of a stream was read."""

    SNAPSHOT = "snapshot"  # all of it, from the server's archive
    MESSAGES = "messages"  # all of it, message by message
    INCREMENT = "increment"  # what has changed since an earlier backup, whose segments hold the rest


@dataclass(frozen=True, slots=True)
class Reading:
    """How a stream was read, and why so and not otherwise."""

    how: ReadAs
    why: str
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A stored object: its key, size and SHA-256 in hex."""

    key: str
    size: int
    sha256: str
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpaqueRef:
    """A piece of a verbatim snapshot, zstd-compressed; `bytes` are those before compression."""

    key: str
    size: int
    sha256: str
    bytes: int
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A stored segment. `min_ns` and `max_ns` bound its messages' timestamps (clocks step: they need not rise).

    `digest` is SHA-256 over the messages, `fingerprint` their part of the stream digest, `gaps` tells which sequences
    are missing in between (`formats/gaps.py`); "" where none is, or where an older jsbackup did not say.
    """

    key: str
    first_seq: int
    last_seq: int
    messages: int
    bytes: int
    min_ns: int
    max_ns: int
    size: int
    sha256: str
    digest: str
    fingerprint: StreamDigest
    gaps: str = ""
    extra: Extra = field(default_factory=dict)

    @property
    def dense(self) -> bool:
        """No sequence is missing in between."""
        return self.messages == self.last_seq - self.first_seq + 1


AnyRef = SegmentRef | ObjectRef | OpaqueRef


@dataclass(frozen=True, slots=True)
class ConsumerBackup:
    """A consumer. `state` is None if only the config is known; `reason` says what is not exact ("" if nothing).

    Of one known by its ack floor, `above_floor` is how many deliveries there were above it, None where nobody knows.

    Where the pending set is large, `pending` is the object that holds it and `state` has none
    (`repository/write/pending_acks.py` puts them together).
    """

    name: str
    config: JsonObject
    created: str | None
    fidelity: Fidelity
    state: ConsumerState | None = None
    reason: str = ""
    pending: ObjectRef | None = None
    above_floor: int | None = None
    state_extra: Extra = field(default_factory=dict)
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Captured:
    """What was captured, and from when to when (RFC 3339). Sequences are 0 if there is no message."""

    messages: int
    bytes: int
    first_seq: int
    last_seq: int
    begun: str
    ended: str
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CopiedFrom:
    """Up to which `sequence` of an origin the stream had copied when its capture began, whatever of that it still has.

    The source is named as in marks (`transforms/copy_positions.py`).
    """

    origin: str
    filter: str
    destination: str
    sequence: int

    @property
    def key(self) -> tuple[str, str, str]:
        return self.origin, self.filter, self.destination


@dataclass(frozen=True, slots=True)
class StreamBackup:
    """One stream. `state` is as the server reported it when the capture began; `captured` is what is stored.

    `created` is RFC 3339 as the server wrote it. `digest` is the stream digest over all segments. Counts need not equal
    the reported state: messages arrive and expire meanwhile. An opaque stream has pieces instead of segments. `read`
    is None where no server was read. `copied` has the sources of which the server said how far they had come.
    """

    name: str
    incarnation: str
    config: JsonObject
    created: str
    state: StreamState
    captured: Captured
    archive_format: ArchiveFormat
    digest: StreamDigest = field(default_factory=StreamDigest)
    segments: tuple[SegmentRef, ...] = ()
    consumers: tuple[ConsumerBackup, ...] = ()
    opaque: tuple[OpaqueRef, ...] = ()
    warnings: tuple[str, ...] = ()
    read: Reading | None = None
    copied: tuple[CopiedFrom, ...] = ()
    state_extra: Extra = field(default_factory=dict)
    extra: Extra = field(default_factory=dict)

    @property
    def refs(self) -> tuple[AnyRef, ...]:
        """All stored objects that it needs."""
        pending = (consumer.pending for consumer in self.consumers if consumer.pending is not None)
        return (*self.segments, *self.opaque, *pending)

    @property
    def emptied(self) -> str:
        """The warning that its messages are gone, and which backup had them; "" if there is none."""
        return next((warning for warning in self.warnings if warning.startswith(EMPTIED)), "")


@dataclass(frozen=True, slots=True)
class SkippedStream:
    name: str
    reason: str
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a backup comes from. Empty or None where the server did not say; never a URL or credentials.

    `account` and the three below it are as in `origin.py`; `profile` is the one that the command ran with.
    """

    server_version: str = ""
    cluster: str = ""
    account: str = ""
    domain: str | None = None
    context: str | None = None
    extra: Extra = field(default_factory=dict)
    account_name: str | None = None
    api_prefix: str | None = None
    login: str | None = None
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """What was asked for, whatever streams there were then: names and globs (none: all streams), and what of them.

    Backups of equal selections succeed each other (`retention.py`). `allow_empty`: that nothing is left of what there
    was before is as it should be.
    """

    streams: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    consumers: bool = True
    config_only: bool = False
    extra: Extra = field(default_factory=dict)
    allow_empty: bool = False

    def selects(self, name: str) -> bool:
        """Whether a stream of that name would be in such a backup."""
        return is_chosen(name, [Glob(text) for text in self.streams], [Glob(text) for text in self.exclude])


@dataclass(frozen=True, slots=True)
class Manifest:
    """One backup. `tool` is name and version of the writer; `previous` the backup before it in the repository.

    `previous_sha256` is over that one's manifest as it is stored, where manifests are signed (`manifest_chain.py`),
    else None.

    `selection` is None where nothing was selected: an import takes in what there is. `ended` is RFC 3339, and
    `stored_bytes` what was added to the repository by making it; None where that was not noted.
    """

    id: str
    created: str
    tool: str
    source: Source
    result: Result
    streams: tuple[StreamBackup, ...] = ()
    skipped: tuple[SkippedStream, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    previous: str | None = None
    previous_sha256: str | None = None
    selection: Selection | None = None
    ended: str | None = None
    stored_bytes: int | None = None
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Totals:
    """What a run of segments comes to. Sequences are 0 if there is no message."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    digest: StreamDigest = field(default_factory=StreamDigest)

    def captured(self, begun: str, ended: str) -> Captured:
        """As what was captured of a stream, between two times (RFC 3339)."""
        return Captured(self.messages, self.bytes, self.first_seq, self.last_seq, begun, ended)


def total_of(segments: Iterable[SegmentRef]) -> Totals:
    """Add segments up: the numbers that `Captured` and `StreamBackup.digest` hold."""
    refs = list(segments)
    digest = StreamDigest()
    for ref in refs:
        digest += ref.fingerprint
    return Totals(
        messages=sum(ref.messages for ref in refs),
        bytes=sum(ref.bytes for ref in refs),
        first_seq=min((ref.first_seq for ref in refs), default=0),
        last_seq=max((ref.last_seq for ref in refs), default=0),
        digest=digest,
    )


def objects_named(manifest: Manifest) -> Iterator[str]:
    """The keys of everything that a backup needs beside its manifest."""
    return (ref.key for stream in manifest.streams for ref in stream.refs)
