"""The objects of a repository: named by their bytes, stored once, checked before use, encrypted if the repository is.

An object that a manifest names can be missing (`IntegrityError`), unreadable (`StoreError`), encrypted for another key
(`KeyUnavailable`) or changed (`DigestMismatch`): different errors, because the remedies differ.

Sizes and SHA-256 are always those of the stored bytes, so that they can be checked without a key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from jsbackup.errors import DigestMismatch, FormatError, IntegrityError, ObjectExists, ObjectNotFound
from jsbackup.formats.compression import ZSTD, Compression
from jsbackup.formats.digest import StreamDigest
from jsbackup.repository import layout
from jsbackup.repository.memory_budget import Room
from jsbackup.stores.base import Data, Store

__all__ = [
    "ID_BYTES",
    "MAX_OBJECT_BYTES",
    "MAX_SEGMENT_BYTES",
    "MIN_SEGMENT_BYTES",
    "PLAIN",
    "SEGMENT_BYTES",
    "AnyRef",
    "Extra",
    "ObjectRef",
    "Objects",
    "OpaqueRef",
    "PageRef",
    "PlainSealing",
    "Sealing",
    "SegmentRef",
    "StoredObject",
    "StreamPageRef",
    "fitting_bytes",
    "folder_of",
    "has_bytes",
    "id_of",
    "is_segment_size",
    "put_named",
    "sha256_of",
]


# --- segment size ---
#
# How many bytes of messages a segment takes: the usual size, and which sizes a repository may have instead.
#
# Bytes are raw: those of the messages in the encoding that digests are made of. A larger single message makes a segment
# by itself.
#
# The limits have reasons. A segment is in memory as a whole while it is stored and while it is read, and no object may
# have more than 256 MiB; older versions read no larger ones either. Below 4 KiB the object, its requests and its entry
# in each manifest cost more than the messages.

# Large enough that the latency of a request does not matter and a terabyte has thirty thousand objects; small enough
# that one fits into memory, and that a rewrite or a damaged object costs little. Measured: 64 MiB are no faster,
# neither to store nor to restore, and take 32 MiB more at the peak if nothing can be compressed.
SEGMENT_BYTES = 32 << 20

MIN_SEGMENT_BYTES = 4 << 10
MAX_SEGMENT_BYTES = 256 << 20

# What Parquet and encryption may add to messages that cannot be compressed: at most 128 row groups with up to 20 KB
# each in the footer, and 16 bytes to 64 KiB. So an object stays below the limit of 256 MiB.
_AROUND_BYTES = 4 << 20


def is_segment_size(size: int) -> bool:
    """Return whether a repository may have segments of so many raw bytes."""
    return MIN_SEGMENT_BYTES <= size <= MAX_SEGMENT_BYTES


def fitting_bytes(size: int) -> int:
    """Return where to cut for segments of `size` raw bytes, so that each makes an object of at most
    `MAX_SEGMENT_BYTES`.
    """
    return min(size, MAX_SEGMENT_BYTES - _AROUND_BYTES)


# --- refs ---
#
# References to stored objects, as manifests and pages name them, and a short id for each.
#
# Words: *raw bytes* (`bytes`) are bytes of the canonical encoding (`formats/digest.py`), `size` is that of a stored
# object, `sha256` is over the stored object, `digest` over messages.

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
    sequences in between (`formats/digest.py`); "" if there are none.
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
    return layout.folder_of(ref.key)


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


# --- sealing ---
#
# How the content of objects becomes the bytes that are stored: as it is, or encrypted (`opening.py`).
#
# A sealing decides three things: the names of objects (a digest or a stream's name in a key would reveal to anybody who
# can list keys what is stored), the stored bytes, and how they are read again.


class Sealing(Protocol):
    """`suffix` ends the keys of sealed objects; `reads` says whether a key that opens all of them was given."""

    @property
    def suffix(self) -> str: ...

    @property
    def reads(self) -> bool: ...

    def name(self, digest: str) -> str:
        """Return the name that stands for a digest in a key. Both are 64 hex digits; equal digests have equal names.

        Raises `KeyUnavailable` without the key that is needed to write.
        """

    def folder(self, name: str, incarnation: str) -> str:
        """Return the folder of a stream's objects, without a slash at the end. Errors as `layout.stream_folder` and
        `name`.
        """

    def seal(self, data: Data) -> Data:
        """Return the bytes to store. They may differ each time. Errors as `name`."""

    def unseal(self, key: str, data: bytes) -> bytes:
        """Return the content of the object under `key`.

        Raises:
            KeyUnavailable: the needed key was not given, or does not fit.
            IntegrityError: it is damaged.
        """


class PlainSealing:
    """Stores content as it is."""

    suffix = ""
    reads = True

    def name(self, digest: str) -> str:
        return digest

    def folder(self, name: str, incarnation: str) -> str:
        return layout.stream_folder(name, incarnation)

    def seal(self, data: Data) -> Data:
        return data

    def unseal(self, key: str, data: bytes) -> bytes:
        return data


PLAIN = PlainSealing()


# At least as large as any object that we store: the largest segment, or one message of at most 96 MiB, uncompressible.
MAX_OBJECT_BYTES = MAX_SEGMENT_BYTES

_COMPARED_BYTES = 4 << 20  # held of an object that is there already


def sha256_of(data: Data) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in the store; `added` says whether this put stored it."""

    key: str
    size: int
    sha256: str
    added: bool


def put_named(store: Store, key: str, data: Data) -> StoredObject:
    """Store bytes under a key that names them: that of their content, and digits of their SHA-256
    (`layout.stored_keys`). What is under it already is used if it is the same; else it is damaged, and the bytes are
    stored beside it.

    So nothing else ever gets the key of an object, even if that was lost; and two who put the same at the same moment
    do no harm in a store in which the later put wins.

    Raises:
        IntegrityError: all objects under its keys are damaged.
        StoreError: it cannot be stored.
    """
    view = memoryview(data).cast("B")
    sha256 = sha256_of(view)
    for name in layout.stored_keys(key, sha256):
        try:
            store.put(name, view)
        except ObjectExists:
            if has_bytes(store, name, view):
                return StoredObject(name, len(view), sha256, added=False)
        else:
            return StoredObject(name, len(view), sha256, added=True)
    raise IntegrityError(
        f"object {key} is damaged, and so are those that replace it", hint="Remove them and run the command again."
    )


def has_bytes(store: Store, key: str, data: memoryview) -> bool:
    """Return whether the object under `key` has exactly these bytes. Raises StoreError."""
    places = range(0, max(len(data), 1), _COMPARED_BYTES)
    lengths = (_COMPARED_BYTES + (at == places[-1]) for at in places)  # at the end one byte more than there should be
    return all(store.get_range(key, at, n) == data[at : at + n] for at, n in zip(places, lengths, strict=True))


class Objects:
    """A store with a sealing, and a memory budget for objects. May be used from several threads.

    `damaged` returns the ids of objects known to be damaged, with their folders (`ledger.py`); it is called once, when
    needed, and by `look_for_damage`. `found_damaged` has the same of objects that were found damaged here.

    `segment_bytes` is the size of new segments, raw; `compression` is theirs.
    """

    def __init__(
        self,
        store: Store,
        sealing: Sealing = PLAIN,
        *,
        damaged: Callable[[], Mapping[bytes, str]] = dict,
        segment_bytes: int = SEGMENT_BYTES,
        compression: Compression = ZSTD,
    ) -> None:
        self.store = store
        self.sealing = sealing
        self.room = Room()
        self.segment_bytes = fitting_bytes(segment_bytes)
        self.compression = compression
        self.found_damaged: dict[bytes, str] = {}
        self._read_damaged = damaged
        self._damaged: Mapping[str, frozenset[bytes]] | None = None  # by folder; those of "" are in each

    def is_damaged(self, ref: AnyRef) -> bool:
        """Return whether the object was found damaged. Then it is neither kept nor named again."""
        damaged = self.damaged_in(folder_of(ref))
        return bool(damaged) and id_of(ref) in damaged

    def damaged_in(self, folder: str) -> frozenset[bytes]:
        """Return the ids of the objects in this folder that were found damaged, and of those whose folder is not
        recorded.
        """
        if self._damaged is None:
            self.look_for_damage()
        assert self._damaged is not None
        return self._damaged.get(folder, self._damaged[""])

    def look_for_damage(self) -> None:
        """Read again which objects were found damaged. For commands that store for days."""
        damaged: dict[str, set[bytes]] = {"": set()}
        for name, folder in self._read_damaged().items():
            damaged.setdefault(folder, set()).add(name)
        self._damaged = {folder: frozenset(names | damaged[""]) for folder, names in damaged.items()}

    def note_damaged(self, ref: AnyRef) -> None:
        """Note that an object was found damaged, for those who record it."""
        self.found_damaged[id_of(ref)] = folder_of(ref)

    def put_once(self, key: str, data: Data) -> StoredObject:
        """Store `data`, sealed, under a key that names it; `key` is that of its content.

        Raises IntegrityError, StoreError.
        """
        return put_named(self.store, key, self.sealing.seal(data))

    def fetch_stored(self, key: str, size: int, sha256: str) -> bytes:
        """Return the stored bytes of an object, checked against size and SHA-256, not unsealed.

        Raises:
            IntegrityError: it is missing.
            DigestMismatch: it is not the object that was stored.
            StoreError: it cannot be read.
        """
        if size > MAX_OBJECT_BYTES:
            raise FormatError(f"object {key} is said to have {size} bytes, more than any object has")
        try:
            # One byte more than expected: a longer object is noticed, and a huge one is not fetched.
            data = self.store.get_range(key, 0, size + 1)
        except ObjectNotFound as error:
            raise IntegrityError(f"object {key} is missing") from error
        if len(data) != size:
            received = f"only {len(data)}" if len(data) < size else "more"
            raise DigestMismatch(f"object {key} should have {size} bytes and has {received}")
        if sha256_of(data) != sha256:
            raise DigestMismatch(f"object {key} has changed since it was stored (SHA-256 differs)")
        return data

    def fetch_sealed(self, ref: AnyRef) -> bytes:
        """Do `fetch_stored` for a reference, and remember a damaged object."""
        try:
            return self.fetch_stored(ref.key, ref.size, ref.sha256)
        except DigestMismatch:
            self.note_damaged(ref)
            raise

    def fetch(self, ref: AnyRef) -> bytes:
        """Return the content of the object that a reference names, checked before it is used.

        Raises:
            KeyUnavailable: it is encrypted, and no key that opens it was given.
            IntegrityError, StoreError: as `fetch_stored`.
        """
        return self.sealing.unseal(ref.key, self.fetch_sealed(ref))
