"""References to stored objects, as manifests and pages name them, and a short id for each.

Words: *raw bytes* (`bytes`) are bytes of the canonical encoding (`formats/digest.py`), `size` is that of a stored
object, `sha256` is over the stored object, `digest` over messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jsbackup.formats.digest import StreamDigest

__all__ = [
    "ID_BYTES",
    "AnyRef",
    "Extra",
    "ObjectRef",
    "OpaqueRef",
    "PageRef",
    "SegmentRef",
    "StreamPageRef",
    "folder_of",
    "id_of",
]

Extra = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A stored object: its key, size and SHA-256 in hex."""

    key: str
    size: int
    sha256: str
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpaqueRef:
    """A piece of a verbatim snapshot, zstd-compressed; `bytes` is its size before compression."""

    key: str
    size: int
    sha256: str
    bytes: int
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A stored segment. `min_ns` and `max_ns` bound its messages' timestamps, which need not rise, since clocks step.

    `digest` is SHA-256 over the messages, `fingerprint` their part of the stream digest, `gaps` a digest of the missing
    sequences in between (`formats/gaps.py`); "" if there are none, or an older jsbackup did not record them.
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
        """Whether no sequence is missing in between."""
        return self.messages == self.last_seq - self.first_seq + 1


@dataclass(frozen=True, slots=True)
class PageRef:
    """A stored page: a document that lists consecutive segments of a stream (`level` 0), or pages of the level below.

    `name` identifies its content: SHA-256 of the document, or its HMAC in an encrypted repository. The rest are totals
    over its segments: their number, messages, raw bytes, stored bytes, first and last sequence, bounds of the times,
    and the sum of the fingerprints.
    """

    key: str
    size: int
    sha256: str
    level: int
    name: str
    segments: int
    messages: int
    bytes: int
    stored_bytes: int
    first_seq: int
    last_seq: int
    min_ns: int
    max_ns: int
    fingerprint: StreamDigest

    @property
    def dense(self) -> bool:
        """Whether no sequence is missing in between."""
        return self.messages == self.last_seq - self.first_seq + 1


@dataclass(frozen=True, slots=True)
class StreamPageRef:
    """A stored page that lists streams of a backup, from the one named `first`; see `stream_pages.py`.

    `name` is the SHA-256 of the document as it is stored, or its HMAC in an encrypted repository. `messages` and
    `bytes` are those captured of its streams.
    """

    key: str
    size: int
    sha256: str
    name: str
    first: str
    streams: int
    messages: int
    bytes: int


AnyRef = SegmentRef | ObjectRef | OpaqueRef | PageRef | StreamPageRef


def folder_of(ref: AnyRef) -> str:
    """Return the folder that holds the object: that of its stream, or that of all pages of streams."""
    return ref.key.rpartition("/")[0]


# Bytes of SHA-256: collisions among a million objects are unlikely.
ID_BYTES = 12


def id_of(ref: AnyRef) -> bytes:
    """Return `ID_BYTES` bytes that identify key, size, SHA-256 and the stated content."""
    said: tuple[object, ...] = (ref.key, ref.size, ref.sha256)
    if isinstance(ref, SegmentRef):
        said += (ref.first_seq, ref.last_seq, ref.messages, ref.bytes, ref.digest, ref.fingerprint.hex)
    elif isinstance(ref, PageRef):
        said += (ref.level, ref.segments, ref.first_seq, ref.last_seq, ref.messages, ref.bytes, ref.fingerprint.hex)
    elif isinstance(ref, OpaqueRef):
        said += (ref.bytes,)
    return hashlib.sha256("\0".join(map(str, said)).encode()).digest()[:ID_BYTES]
