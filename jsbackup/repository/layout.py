"""The keys of a repository's objects. Only this module builds and parses them.

    jsbackup.json               the descriptor
    jsbackup-2.json             the descriptor of an upgraded repository, which is used in place of the first
    segments/<name>-<incarnation>/
        <first>-<last>-<digest>.parquet      a segment
        <first>-<last>-<digest>.<8 digits of sha256>.parquet     the same messages stored once more, because the object
                                under the first name is damaged, or cannot be proved, and nothing is overwritten; or
                                stored in a place that would overwrite (the two below can have such a name too)
        pending-<sha256>.parquet             a consumer's pending set, where it is large
        opaque-<sha256>.zst     a piece of a snapshot that could not be decoded
        page-<sha256>.json      a part of a long list of segments (`pages/`)
    streams/page-<sha256>.json.zst       a part of a long list of streams (`stream_pages.py`)
    backups/<backup id>.json    a manifest
    catalog/<10 digits>.json    a catalog of the manifests, by its generation
    catalog/<backup id>.committed        witness that there is such a backup, until another one or a catalog names it;
                                says the SHA-256 of a manifest that is not signed, in hex
    holds/<backup id>.json      keeps `forget` from the backup, see `holds.py`
    locks/<id>-<generation>-<shared|exclusive>-<seconds>.json            a lease, see `leases.py`
    pruning/<id>.json           what `prune` found unused, and when, see `unused_objects.py`
    receipts/<id>-<generation>.json      what the run with this lease has stored so far, see `receipts.py`
    receipts/<verify|drill>-<time>-<6 digits>.json       what a verify or a drill came to, see `outcomes.py`
    verified/<id>.json          what was verified, and when, see `verified.py`; what is damaged in <id>-damaged.json
    keys/<whom>-<8 digits>.age  the identity that opens the repository, encrypted for one who may, see `keys.py`
    keys/<whom>-<8 digits>.json          says that there is such a key file, see `readers.py`
    keys/writer-<64 digits>.json         one who signs, by the public key, see `writers.py`
    probe/<id>                  left by an interrupted `init`; means nothing

`<first>`, `<last>`: sequences, 20 digits. `<digest>`: the segment digest; `<sha256>`: of an object's content; both hex.
In an encrypted repository both, and a stream's name and incarnation, are replaced by HMACs (`secret.py`), and the keys
of these five kinds and of all documents except leases and lists of unused objects end in `.age`. Signed documents have
one more line (`signing.py`); pages are not signed. `<backup id>`: the time it began and six random hex digits,
`20261121T014500Z-1a2b3c`; ids sort by time.

`<incarnation>` tells a recreated stream from its namesake: the first eight hex digits of SHA-256 over cluster, account,
name and creation time (decimal nanoseconds since the epoch), joined by NUL.

`<name>`: the stream's name, encoded (`names.py`).

The module is long so that each key is built and parsed in one place.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache

from jsbackup.config import nearest
from jsbackup.errors import FormatError, UsageError
from jsbackup.repository.names import decode_name, encode_name
from jsbackup.times import parse_time

__all__ = [
    "BACKUPS",
    "CATALOGS",
    "CHECKS",
    "DESCRIPTOR",
    "HOLDS",
    "KEYS",
    "LATEST",
    "LOCKS",
    "MARKS",
    "PROBES",
    "RECEIPTS",
    "SEALED_SUFFIX",
    "SEGMENTS",
    "STREAMS",
    "UPGRADED",
    "VERIFIED",
    "WRITERS",
    "LeaseKey",
    "ObjectKind",
    "ReceiptKey",
    "SegmentKey",
    "StreamFolder",
    "backup_id",
    "backup_id_of",
    "begun_by",
    "begun_ns",
    "catalog_generation_of",
    "catalog_key",
    "held_backup_of",
    "hold_key",
    "identity_key",
    "incarnation",
    "is_backup_id",
    "is_damage_record",
    "is_hidden_folder",
    "kind_of",
    "lease_key",
    "lease_prefix",
    "manifest_key",
    "mark_key",
    "opaque_key",
    "outcome_key",
    "outcome_prefix",
    "page_key",
    "parse_lease_key",
    "parse_receipt_key",
    "parse_segment_key",
    "parse_stream_folder",
    "pending_key",
    "probe_key",
    "reader_key",
    "receipt_key",
    "recorded_identity",
    "replaced_key",
    "replacement_keys",
    "replacement_of",
    "resolve_backup",
    "segment_key",
    "stream_folder",
    "stream_page_key",
    "verified_key",
    "witness_key",
    "witnessed_backup_of",
    "writer_key",
]

SEALED_SUFFIX = ".age"  # ends the keys of what is encrypted
LATEST = "latest"  # accepted in place of a backup's id
_NEWEST = ("last", "newest", "current", "recent", "now", "head")  # typed in its place
_HOW_TO_NAME = "A backup is named before streams: by its id, the start of it, or `latest`. See `jsbackup list`."
DESCRIPTOR = "jsbackup.json"
UPGRADED = "jsbackup-2.json"
SEGMENTS = "segments/"
STREAMS = "streams/"
BACKUPS = "backups/"
CATALOGS = "catalog/"
HOLDS = "holds/"
LOCKS = "locks/"
MARKS = "pruning/"
RECEIPTS = "receipts/"
CHECKS = ("receipts/drill-", "receipts/verify-")
VERIFIED = "verified/"
_COMMITTED = ".committed"
_DAMAGED = "-damaged"
PROBES = "probe/"
KEYS = "keys/"
WRITERS = "keys/writer-"

_MAX_SEQUENCE = (1 << 64) - 1

_FOLDER = r"segments/([A-Za-z0-9_%.-]+)-([0-9a-f]{8})"
_SEGMENT = re.compile(
    rf"({_FOLDER})/([0-9]{{20}})-([0-9]{{20}})-([0-9a-f]{{64}})(?:\.([0-9a-f]{{8}}))?\.parquet(?:\.age)?"
)
_PENDING = re.compile(rf"{_FOLDER}/pending-[0-9a-f]{{64}}(?:\.[0-9a-f]{{8}})?\.parquet(?:\.age)?")
_OPAQUE = re.compile(rf"{_FOLDER}/opaque-[0-9a-f]{{64}}(?:\.[0-9a-f]{{8}})?\.zst(?:\.age)?")
_PAGE = re.compile(rf"{_FOLDER}/page-[0-9a-f]{{64}}(?:\.[0-9a-f]{{8}})?\.json(?:\.age)?")
_STREAM_PAGE = re.compile(r"streams/page-[0-9a-f]{64}(?:\.[0-9a-f]{8})?\.json\.zst(?:\.age)?")
_REPLACEMENT = re.compile(r"\.[0-9a-f]{8}(?=\.(?:parquet|zst|json|json\.zst)(?:\.age)?$)")
_CHECK = re.compile(r"receipts/(?:drill|verify)-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}\.json")
_BACKUP_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}")
_CATALOG = re.compile(r"catalog/([0-9]{10})\.json")
_LEASE = re.compile(r"locks/([0-9a-f]{16})-([0-9]{8})-(shared|exclusive)-([1-9][0-9]{0,3})\.json")
_RECEIPT = re.compile(r"receipts/([0-9a-f]{16})-([0-9]{8})\.json")
_ID = re.compile(r"[0-9A-Za-z-]{1,64}")
_HIDDEN = re.compile(r"segments/[0-9a-f]{32}-[0-9a-f]{8}")
_WRITER = re.compile(r"keys/writer-[0-9a-f]{64}\.json")
_IDENTITY = re.compile(r"keys/[0-9a-z-]{1,80}-[0-9a-f]{8}\.age")
_READER = re.compile(r"keys/[0-9a-z-]{1,80}-[0-9a-f]{8}\.json")


class ObjectKind(Enum):
    """The kind of an object, by its key."""

    DESCRIPTOR = "descriptor"
    SEGMENT = "segment"
    PENDING = "pending set"
    OPAQUE = "opaque piece"
    PAGE = "page"
    STREAM_PAGE = "page of streams"
    MANIFEST = "manifest"
    CATALOG = "catalog"
    WITNESS = "witness of a backup"
    HOLD = "hold"
    LEASE = "lease"
    MARKS = "list of unused objects"
    RECEIPT = "receipt"
    VERIFIED = "record of what was verified"
    CHECK = "outcome of a check"
    PROBE = "probe"
    IDENTITY = "wrapped identity"
    READER = "record of a reader"
    WRITER = "writer"
    FOREIGN = "foreign object"


_CONTENT = (
    (_SEGMENT, ObjectKind.SEGMENT),
    (_PENDING, ObjectKind.PENDING),
    (_OPAQUE, ObjectKind.OPAQUE),
    (_PAGE, ObjectKind.PAGE),
)


@dataclass(frozen=True, slots=True)
class StreamFolder:
    """The parts of a stream's folder. `name` is None if it was too long to be spelled out."""

    name: str | None
    incarnation: str


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """The parts of a segment's key; `replacement` distinguishes a second copy from a damaged first one."""

    folder: str
    first_seq: int
    last_seq: int
    digest: str
    replacement: str | None = None


@dataclass(frozen=True, slots=True)
class LeaseKey:
    """The parts of a lease's key: its id, the generation of this object, and for how long it is valid after its put."""

    id: str
    generation: int
    exclusive: bool
    duration_seconds: int


@dataclass(frozen=True, slots=True)
class ReceiptKey:
    """The parts of a receipt's key: the run, by the id of its lease, and the generation of this object."""

    run: str
    generation: int


# --- streams ---


def incarnation(cluster: str, account: str, name: str, created: str) -> str:
    """Return eight hex digits for one incarnation of a stream.

    `created` is RFC 3339 as the server writes it; raises `FormatError` for anything else.
    """
    parts = (cluster, account, name, str(parse_time(created, f"creation time of stream {name}")))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:8]


@lru_cache(maxsize=1 << 14)  # `follow` asks for the same ones every two seconds
def stream_folder(name: str, incarnation: str) -> str:
    """Return the folder of a stream's objects, without a slash at the end. Raises `FormatError` for invalid parts."""
    if not name or not re.fullmatch(r"[0-9a-f]{8}", incarnation):
        raise FormatError(f"not a stream's name and incarnation: {name[:80]!r}, {incarnation[:80]!r}")
    return f"{SEGMENTS}{encode_name(name)}-{incarnation}"


def is_hidden_folder(folder: str) -> bool:
    """Whether this can be a stream's folder in an encrypted repository."""
    return _HIDDEN.fullmatch(folder) is not None


def parse_stream_folder(folder: str) -> StreamFolder:
    """Parse what `stream_folder` returns. Raises `FormatError` for anything else."""
    match = re.fullmatch(_FOLDER, folder)
    if match is None:
        raise FormatError(f"not a stream's folder: {folder[:300]!r}")
    return StreamFolder(decode_name(match[1]), match[2])


# --- objects of a stream ---


def segment_key(folder: str, first_seq: int, last_seq: int, name: str, *, suffix: str = "") -> str:
    """Build a segment's key. `name` is the digest, or its HMAC. Raises `FormatError` for invalid parts."""
    key = f"{folder}/{first_seq:020}-{last_seq:020}-{name}.parquet{suffix}"
    parse_segment_key(key)
    return key


def replacement_keys(key: str, sha256: str) -> list[str]:
    """Return other keys for the content that belongs under `key`; `sha256` is that of the new stored object.

    The second one is used if the object under the first is damaged too, and so on.
    """
    folder, _, name = key.rpartition("/")
    stem, _, suffix = name.partition(".")
    return [f"{folder}/{stem}.{sha256[at : at + 8]}.{suffix}" for at in range(0, 32, 8)]


def replaced_key(key: str) -> str:
    """Return the key that a replacement stands for; any other key unchanged."""
    return _REPLACEMENT.sub("", key)


def replacement_of(key: str) -> str:
    """Return the 8 digits that distinguish a replacement; "" for any other key."""
    match = _REPLACEMENT.search(key)
    return match[0][1:] if match else ""


def parse_segment_key(key: str) -> SegmentKey:
    """Parse a segment's key. Raises `FormatError` for anything else."""
    match = _SEGMENT.fullmatch(key)
    if match is None:
        raise FormatError(f"not a segment's key: {key[:300]!r}")
    folder, _, _, first, last, digest, replacement = match.groups()
    parse_stream_folder(folder)
    if not 1 <= int(first) <= int(last) <= _MAX_SEQUENCE:
        raise FormatError(f"not a segment's key: {key[:300]!r}")
    return SegmentKey(folder, int(first), int(last), digest, replacement)


def pending_key(folder: str, name: str, suffix: str = "") -> str:
    return f"{folder}/pending-{name}.parquet{suffix}"


def opaque_key(folder: str, name: str, suffix: str = "") -> str:
    return f"{folder}/opaque-{name}.zst{suffix}"


def page_key(folder: str, name: str) -> str:
    """Return the key of a page, without the suffix of encryption, as of all documents."""
    return f"{folder}/page-{name}.json"


# --- backups and other objects ---


def stream_page_key(name: str) -> str:
    """Return the key of a page of streams, without the suffix of encryption, as of all documents."""
    return f"{STREAMS}page-{name}.json.zst"


def backup_id(created_ns: int, random: bytes, newest: str | None = None) -> str:
    """Return the id of a backup that began at this Unix time; `random` is three bytes.

    `newest` is the repository's newest so far: if two began in the same second, the later one gets the higher id.
    """
    seconds, number = created_ns // 1_000_000_000, int.from_bytes(random[:3], "big")
    if newest is not None and newest.startswith(_moment(seconds)):
        step = int(newest[-6:], 16) + 1 + number % 1024
        seconds, number = (seconds, step) if step < 1 << 24 else (seconds + 1, number)
    return f"{_moment(seconds)}-{number:06x}"


def _moment(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%SZ}"


def begun_by(backup: str, moment_ns: int) -> bool:
    """Return whether a backup began at this Unix time or before, as its id says: to the second."""
    return backup.partition("-")[0] <= _moment(moment_ns // 1_000_000_000)


def begun_ns(backup: str) -> int:
    """Return the Unix time at which a backup began, as its id says, in nanoseconds. Raises FormatError for a text that
    is not an id.
    """
    if not is_backup_id(backup):
        raise FormatError(f"not the id of a backup: {backup[:40]!r}")
    try:
        return int(datetime.strptime(backup[:16] + "+0000", "%Y%m%dT%H%M%SZ%z").timestamp()) * 1_000_000_000
    except ValueError as error:
        raise FormatError(f"not the id of a backup: {backup[:40]!r}") from error


def is_backup_id(text: str) -> bool:
    return _BACKUP_ID.fullmatch(text) is not None


def manifest_key(backup: str) -> str:
    """Return a manifest's key. Raises `FormatError` for an invalid backup id."""
    if not is_backup_id(backup):
        raise FormatError(f"not a backup id: {backup[:80]!r}")
    return f"{BACKUPS}{backup}.json"


def backup_id_of(key: str) -> str | None:
    """Return the backup whose manifest has this key; None for a foreign key."""
    backup = key.removeprefix(BACKUPS).removesuffix(".json")
    return backup if is_backup_id(backup) and key == f"{BACKUPS}{backup}.json" else None


def catalog_key(generation: int) -> str:
    return f"{CATALOGS}{generation:010}.json"


def catalog_generation_of(key: str) -> int | None:
    """Return the generation of the catalog with this key; None for a foreign key."""
    match = _CATALOG.fullmatch(key)
    return None if match is None else int(match[1])


def witness_key(backup: str) -> str:
    """Return a witness's key. Raises `FormatError` for an invalid backup id."""
    if not is_backup_id(backup):
        raise FormatError(f"not a backup id: {backup[:80]!r}")
    return f"{CATALOGS}{backup}{_COMMITTED}"


def witnessed_backup_of(key: str) -> str | None:
    """Return the backup whose witness has this key; None for a foreign key."""
    backup = key.removeprefix(CATALOGS).removesuffix(_COMMITTED)
    return backup if is_backup_id(backup) and key == witness_key(backup) else None


def lease_key(lease: LeaseKey) -> str:
    """Build a lease's key; generations are in order in a listing. Raises `FormatError` for invalid parts."""
    mode = "exclusive" if lease.exclusive else "shared"
    key = f"{lease_prefix(lease.id)}{lease.generation:08}-{mode}-{lease.duration_seconds}.json"
    if parse_lease_key(key) != lease:
        raise FormatError(f"not a lease's key: {key[:300]!r}")
    return key


def lease_prefix(lease_id: str) -> str:
    """Return the prefix of the keys of all generations of a lease."""
    return f"{LOCKS}{lease_id}-"


def parse_lease_key(key: str) -> LeaseKey | None:
    """Parse a lease's key; None for a foreign key."""
    match = _LEASE.fullmatch(key)
    return None if match is None else LeaseKey(match[1], int(match[2]), match[3] == "exclusive", int(match[4]))


def hold_key(backup: str) -> str:
    """Return a hold's key. Raises `FormatError` for an invalid backup id."""
    if not is_backup_id(backup):
        raise FormatError(f"not a backup id: {backup[:80]!r}")
    return f"{HOLDS}{backup}.json"


def held_backup_of(key: str) -> str | None:
    """Return the backup that the object with this key holds, encrypted or not; None for a foreign key."""
    backup = key.removeprefix(HOLDS).removesuffix(".age").removesuffix(".json")
    return backup if is_backup_id(backup) and key in (hold_key(backup), f"{hold_key(backup)}.age") else None


def mark_key(mark_id: str) -> str:
    return f"{MARKS}{mark_id}.json"


def receipt_key(receipt: ReceiptKey) -> str:
    """Build a receipt's key; generations are in order in a listing. Raises `FormatError` for invalid parts."""
    key = f"{RECEIPTS}{receipt.run}-{receipt.generation:08}.json"
    if parse_receipt_key(key) != receipt:
        raise FormatError(f"not a receipt's key: {key[:300]!r}")
    return key


def parse_receipt_key(key: str) -> ReceiptKey | None:
    """Parse a receipt's key; None for a foreign key."""
    match = _RECEIPT.fullmatch(key)
    return None if match is None else ReceiptKey(match[1], int(match[2]))


def outcome_prefix(kind: str) -> str:
    """Return the prefix of the keys of outcomes of this kind: `drill`, `verify`."""
    return f"{RECEIPTS}{kind}-"


def outcome_key(kind: str, begun_ns: int, random: bytes) -> str:
    """Build an outcome's key; within a kind they sort by start. `random` is three bytes.

    Raises `FormatError` for another kind.
    """
    key = f"{outcome_prefix(kind)}{backup_id(begun_ns, random)}.json"
    if _CHECK.fullmatch(key) is None:
        raise FormatError(f"not the key of an outcome: {key[:300]!r}")
    return key


def verified_key(record_id: str, *, damaged: bool = False) -> str:
    return f"{VERIFIED}{record_id}{_DAMAGED if damaged else ''}.json"


def is_damage_record(key: str) -> bool:
    return kind_of(key) is ObjectKind.VERIFIED and key.endswith(f"{_DAMAGED}.json")


def identity_key(whom: str, repository_id: str) -> str:
    """Build an identity's key. Its 8 digits come from the repository's id, so leftovers of an interrupted `init` are
    not taken for ours.
    """
    return f"{KEYS}{whom}-{hashlib.sha256(repository_id.encode()).hexdigest()[:8]}.age"


def reader_key(identity: str) -> str:
    """Return the key of the record that there is a wrapped identity under this key."""
    return f"{identity.removesuffix('.age')}.json"


def recorded_identity(key: str) -> str:
    """Return the key of the wrapped identity that has its record under this key."""
    return f"{key.removesuffix('.json')}.age"


def writer_key(signer: str) -> str:
    return f"{WRITERS}{signer}.json"


def probe_key(probe_id: str) -> str:
    return f"{PROBES}{probe_id}"


def kind_of(key: str) -> ObjectKind:
    """Return the kind of an object. Foreign ones are never read, counted or deleted."""
    if key in (DESCRIPTOR, UPGRADED):
        return ObjectKind.DESCRIPTOR
    if backup_id_of(key.removesuffix(".age")) is not None:
        return ObjectKind.MANIFEST
    if catalog_generation_of(key.removesuffix(".age")) is not None:
        return ObjectKind.CATALOG
    if witnessed_backup_of(key) is not None:
        return ObjectKind.WITNESS
    if held_backup_of(key) is not None:
        return ObjectKind.HOLD
    if _WRITER.fullmatch(key) or _IDENTITY.fullmatch(key):
        return ObjectKind.WRITER if _WRITER.fullmatch(key) else ObjectKind.IDENTITY
    if _READER.fullmatch(key):
        return ObjectKind.READER
    for pattern, kind in _CONTENT:
        if pattern.fullmatch(key):
            try:
                parse_segment_key(key) if kind is ObjectKind.SEGMENT else parse_stream_folder(key.rpartition("/")[0])
            except FormatError:
                return ObjectKind.FOREIGN
            return kind
    if _STREAM_PAGE.fullmatch(key):
        return ObjectKind.STREAM_PAGE
    if parse_lease_key(key) is not None:
        return ObjectKind.LEASE
    if parse_receipt_key(key.removesuffix(".age")) is not None:
        return ObjectKind.RECEIPT
    if _CHECK.fullmatch(key.removesuffix(".age")):
        return ObjectKind.CHECK
    for prefix, suffix, kind in (
        (MARKS, ".json", ObjectKind.MARKS),
        (VERIFIED, ".json", ObjectKind.VERIFIED),
        (VERIFIED, ".json.age", ObjectKind.VERIFIED),
        (PROBES, "", ObjectKind.PROBE),
    ):
        if key.startswith(prefix) and key.endswith(suffix) and _ID.fullmatch(key[len(prefix) : len(key) - len(suffix)]):
            return kind
    return ObjectKind.FOREIGN


def resolve_backup(text: str, backups: Iterable[str]) -> str:
    """Return the only id that starts with `text`. (`latest.py` decides what `latest` means.)

    Raises:
        UsageError: no id or several start with it.
    """
    ids = sorted(backups)
    if not ids:
        raise UsageError("the repository has no backup yet", hint="Make one with `jsbackup backup`.")
    found = [candidate for candidate in ids if text and candidate.startswith(text)]
    if len(found) == 1:
        return found[0]
    if not found:
        near = f"Did you mean {LATEST}?" if text.casefold() in _NEWEST else nearest(text, [LATEST, *reversed(ids)])
        raise UsageError(f"no backup starts with {text[:80]!r}", hint=near or _HOW_TO_NAME)
    shown = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
    raise UsageError(f"{len(found)} backups start with {text[:80]!r}: {shown}", hint="Give more of the id.")
