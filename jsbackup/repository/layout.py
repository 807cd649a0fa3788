"""The keys of a repository's objects. Only this module builds and parses them.

    jsbackup.json               the descriptor
    segments/<name>-<incarnation>/
        <first>-<last>-<digest>.<digits>.parquet     a segment
        pending-<sha256>.<digits>.parquet    a consumer's pending set, where it is large
        opaque-<sha256>.<digits>.zst         a piece of a snapshot that could not be decoded
        page-<sha256>.<digits>.json.zst      a part of a long list of segments (`pages/`)
    streams/page-<sha256>.<digits>.json.zst  a part of a long list of streams (`stream_pages.py`)
    backups/<backup id>.json    a manifest
    catalog/<10 digits>.json    a catalog of the manifests, by its generation
    catalog/<backup id>.committed        witness that there is such a backup, until another one or a catalog names it;
                                says the SHA-256 of a manifest that is not signed, in hex
    holds/<backup id>.json      keeps `forget` from the backup, see `holds.py`
    locks/<id>-<generation>-<shared|exclusive>-<seconds>.json            a lease, see `leases.py`
    pruning/<id>.json           what `prune` found unused, and when, see `prune.py`
    receipts/<id>-<generation>.json      what the run with this lease has stored so far, see `receipts.py`
    receipts/<verify|drill>-<time>-<6 digits>.json       what a verify or a drill came to, see `ledger.py`
    verified/<id>.json          what was verified, and when, see `ledger.py`; what is damaged in <id>-damaged.json
    keys/<whom>-<8 digits>-<digits>.age  the identity that opens the repository, encrypted for a reader, see `keys.py`
    keys/readers-<10 digits>.json        the list of these, by its generation, see `readers.py`
    keys/writer-<64 digits>.json         one who signs, by the public key, see `signing.py`
    probe/<id>                  left by an interrupted `init`; means nothing

`<first>`, `<last>`: sequences, 20 digits. `<digest>`: the segment digest; `<sha256>`: of an object's content; both hex.
`<digits>`: eight of the SHA-256 of the stored bytes (`stored_keys`). In an encrypted repository the digest, the
SHA-256, and a stream's name and incarnation are replaced by HMACs (`keys.py`), and the keys of these five kinds and
of all documents except leases and lists of unused objects end in `.age`. Signed documents have one more line
(`signing.py`); pages are not signed. `<backup id>`: the time it began and six random hex digits,
`20261121T014500Z-1a2b3c`; ids sort by time.

`<incarnation>` tells a recreated stream from its namesake: the first eight hex digits of SHA-256 over cluster, account,
name and creation time (decimal nanoseconds since the epoch), joined by NUL.

`<name>`: the stream's name, encoded (`encode_name`).
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from itertools import accumulate

from jsbackup.config import nearest
from jsbackup.errors import FormatError, UsageError
from jsbackup.times import parse_time

__all__ = [
    "BACKUPS",
    "CATALOGS",
    "CHECKS",
    "DAMAGED",
    "DESCRIPTOR",
    "HOLDS",
    "KEYS",
    "LATEST",
    "LOCKS",
    "MARKS",
    "PROBES",
    "READERS",
    "RECEIPTS",
    "SEALED_SUFFIX",
    "SEGMENTS",
    "STREAMS",
    "STREAMS_FOLDER",
    "VERIFIED",
    "WRITERS",
    "LeaseKey",
    "ObjectKind",
    "ReceiptKey",
    "SegmentKey",
    "backup_id",
    "backup_id_of",
    "begun_by",
    "begun_ns",
    "catalog_generation_of",
    "catalog_key",
    "content_key",
    "decode_name",
    "encode_name",
    "encode_name_with_digest",
    "folder_of",
    "held_backup_of",
    "hold_key",
    "identity_key",
    "incarnation",
    "is_backup_id",
    "is_damage_record",
    "is_hidden_folder",
    "is_stream_folder",
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
    "pending_key",
    "probe_key",
    "reader_of",
    "readers_generation_of",
    "readers_key",
    "receipt_key",
    "resolve_backup",
    "segment_key",
    "stored_digits",
    "stored_keys",
    "stream_folder",
    "unsealed",
    "verified_key",
    "witness_key",
    "witnessed_backup_of",
    "writer_key",
]


# --- backup ids ---
#
# Ids of backups: the time each began, and how people name one.

LATEST = "latest"  # accepted in place of a backup's id
_NEWEST = ("last", "newest", "current", "recent", "now", "head")  # typed in its place
_HOW_TO_NAME = "A backup is named before streams: by its id, the start of it, or `latest`. See `jsbackup list`."
_BACKUP_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}")
_SET_BACK_SECONDS = 2  # how far behind the newest backup a new one may seem to begin, and is put after it


def backup_id(created_ns: int, random: bytes, newest: str | None = None) -> str:
    """Return the id of a backup that began at this Unix time; `random` is three bytes.

    `newest` is the repository's newest so far. Ids sort by the time at which backups began, not by that of their
    commit: of two that run at once, the one begun later is the newer one, as its messages were read later. (The
    manifests' `previous` says in which order they were committed.) A backup dated far ahead stays ahead, and readers
    treat it as such.

    But if the newest began in the same second, or up to two seconds later, the new one gets the higher id, and may seem
    to have begun that much later. Then the clock was set back a little, or the numbers of that second had run out:
    `latest` should be the backup made last. Readers allow for more than two seconds (`is_dated_ahead`).
    """
    seconds, number = created_ns // 1_000_000_000, int.from_bytes(random[:3], "big")
    for later in range(seconds, seconds + _SET_BACK_SECONDS + 1):
        if newest is not None and newest.startswith(_moment(later)):
            step = int(newest[-6:], 16) + 1 + number % 1024
            seconds, number = (later, step) if step < 1 << 24 else (later + 1, number)
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
    try:
        return int(datetime.strptime(_checked_id(backup)[:16] + "+0000", "%Y%m%dT%H%M%SZ%z").timestamp()) * 10**9
    except ValueError as error:
        raise FormatError(f"not a backup id: {backup[:80]!r}") from error


def is_backup_id(text: str) -> bool:
    return _BACKUP_ID.fullmatch(text) is not None


def _checked_id(backup: str) -> str:
    if not is_backup_id(backup):
        raise FormatError(f"not a backup id: {backup[:80]!r}")
    return backup


def resolve_backup(text: str, backups: Iterable[str]) -> str:
    """Return the only id that starts with `text`. (`latest.py` decides what `latest` means.)

    Raises:
        UsageError: no id or several start with it.
    """
    ids = sorted(backups)
    if not ids:
        raise UsageError("the repository has no backup yet", hint="Make one with `jsbackup backup`.")
    matches = [candidate for candidate in ids if text and candidate.startswith(text)]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        near = f"Did you mean {LATEST}?" if text.casefold() in _NEWEST else nearest(text, [LATEST, *reversed(ids)])
        raise UsageError(f"no backup starts with {text[:80]!r}", hint=near or _HOW_TO_NAME)
    shown = ", ".join(matches[:5]) + (", …" if len(matches) > 5 else "")
    raise UsageError(f"{len(matches)} backups start with {text[:80]!r}: {shown}", hint="Give more of the id.")


# --- names ---
#
# Names of streams and consumers as parts of keys and of file names.
#
# A name is in UTF-8, percent-encoded but for `A–Z a–z 0–9 _ -`. File systems and S3 bound names in bytes, NATS bounds
# stream names at 255 bytes, three times as many here at worst: an encoding of more than 200 bytes is cut at a character
# to at most 160, followed by a dot (which no encoding contains) and the first 16 hex digits of SHA-256 of the whole
# name. On a file system that ignores case, the incarnation of a stream keeps `orders` and `ORDERS` apart.

_MAX_ENCODED = 200
_MAX_CUT = 160
_CUT_NAME = re.compile(r"(?:[A-Za-z0-9_-]|%[0-9A-F]{2})*\.[0-9a-f]{16}")
_SPELLED_AS_IS = re.compile(rf"[A-Za-z0-9_-]{{1,{_MAX_ENCODED}}}")
_WHOLE_NAME = re.compile(r"(?:[A-Za-z0-9_-]|%[0-9A-F]{2})+")


def decode_name(part: str) -> str | None:
    """Decode a part made by `encode_name`; None if the name was too long to be spelled out.

    Raises `FormatError` for anything else.
    """
    if _SPELLED_AS_IS.fullmatch(part):
        return part
    if _CUT_NAME.fullmatch(part) and len(part) <= _MAX_CUT + 17:
        return None
    if _WHOLE_NAME.fullmatch(part):
        data = re.sub(rb"%(..)", lambda m: bytes.fromhex(m[1].decode()), part.encode())
        try:
            name = data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            name = ""
        if name and encode_name(name) == part:
            return name
    raise FormatError(f"not a name as it is part of a key: {part[:300]!r}")


def encode_name(name: str) -> str:
    """Encode a name as a part of a key: safe in any file system, and never `.` or `..`."""
    if _SPELLED_AS_IS.fullmatch(name):
        return name
    encoded = [_encode_character(character) for character in name]
    if sum(map(len, encoded)) <= _MAX_ENCODED:
        return "".join(encoded)
    return _with_digest(name, encoded)


def encode_name_with_digest(name: str) -> str:
    """Encode a name as if it were too long to be spelled out: also where case is ignored, no two are the same."""
    return _with_digest(name, [_encode_character(character) for character in name])


def _with_digest(name: str, encoded: list[str]) -> str:
    count = bisect_right(list(accumulate(map(len, encoded))), _MAX_CUT)
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{''.join(encoded[:count])}.{digest}"


def _encode_character(character: str) -> str:
    if character.isascii() and (character.isalnum() or character in "_-"):
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


# --- record keys ---
#
# Keys of the descriptor, of manifests, and of what is recorded beside them: catalogs, holds, leases, receipts.

SEALED_SUFFIX = ".age"  # ends the keys of what is encrypted
_SEALED = f"(?:{re.escape(SEALED_SUFFIX)})?"
DESCRIPTOR = "jsbackup.json"
BACKUPS = "backups/"
CATALOGS = "catalog/"
HOLDS = "holds/"
LOCKS = "locks/"
MARKS = "pruning/"
RECEIPTS = "receipts/"
CHECKS = ("receipts/drill-", "receipts/restore-", "receipts/verify-")
VERIFIED = "verified/"
PROBES = "probe/"
KEYS = "keys/"
WRITERS = "keys/writer-"
READERS = "keys/readers-"
DAMAGED = "-damaged"  # ends the name of a record of damage
_COMMITTED = ".committed"

_CATALOG = re.compile(r"catalog/([0-9]{10})\.json")
_LEASE = re.compile(r"locks/([0-9a-f]{16})-([0-9]{8})-(shared|exclusive)-([1-9][0-9]{0,3})\.json")
_RECEIPT = re.compile(r"receipts/([0-9a-f]{16})-([0-9]{8})\.json")
_OUTCOME = re.compile(r"receipts/(?:drill|restore|verify)-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}\.json")
_WRITER = re.compile(r"keys/writer-[0-9a-f]{64}\.json")
_IDENTITY = re.compile(r"keys/([0-9a-z-]{1,80})-([0-9a-f]{8})-[0-9a-f]{8}" + re.escape(SEALED_SUFFIX))
_READERS = re.compile(r"keys/readers-([0-9]{10})\.json")


def unsealed(key: str) -> str:
    """Return the key of an object without what tells that it is encrypted."""
    return key.removesuffix(SEALED_SUFFIX)


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


def manifest_key(backup: str) -> str:
    """Return a manifest's key. Raises `FormatError` for an invalid backup id."""
    return f"{BACKUPS}{_checked_id(backup)}.json"


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
    return f"{CATALOGS}{_checked_id(backup)}{_COMMITTED}"


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
    return f"{HOLDS}{_checked_id(backup)}.json"


def held_backup_of(key: str) -> str | None:
    """Return the backup that the object with this key holds, encrypted or not; None for a foreign key."""
    backup = unsealed(key).removeprefix(HOLDS).removesuffix(".json")
    return backup if is_backup_id(backup) and unsealed(key) == hold_key(backup) else None


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
    """Return the prefix of the keys of outcomes of this kind: `drill`, `restore`, `verify`."""
    return f"{RECEIPTS}{kind}-"


def outcome_key(kind: str, begun_ns: int, random: bytes) -> str:
    """Build an outcome's key; within a kind they sort by start. `random` is three bytes.

    Raises `FormatError` for another kind.
    """
    key = f"{outcome_prefix(kind)}{backup_id(begun_ns, random)}.json"
    if _OUTCOME.fullmatch(key) is None:
        raise FormatError(f"not the key of an outcome: {key[:300]!r}")
    return key


def verified_key(record_id: str, *, damaged: bool = False) -> str:
    return f"{VERIFIED}{record_id}{DAMAGED if damaged else ''}.json"


def identity_key(whom: str, repository_id: str, sha256: str) -> str:
    """Build the key of a wrapped identity, whose stored bytes have this SHA-256. The first 8 digits come from the
    repository's id, so leftovers of an interrupted `init` are not taken for ours.
    """
    return f"{KEYS}{whom}-{_short_id(repository_id)}-{sha256[:8]}{SEALED_SUFFIX}"


def reader_of(key: str, repository_id: str) -> str | None:
    """Return whom the wrapped identity with this key is for; None if it is not one of this repository."""
    match = _IDENTITY.fullmatch(key)
    return match[1] if match is not None and match[2] == _short_id(repository_id) else None


def _short_id(repository_id: str) -> str:
    return hashlib.sha256(repository_id.encode()).hexdigest()[:8]


def readers_key(generation: int) -> str:
    """Build the key of a list of readers. Raises `FormatError` for an invalid generation."""
    key = f"{READERS}{generation:010}.json"
    if readers_generation_of(key) != generation:
        raise FormatError(f"not a generation of the list of readers: {generation}")
    return key


def readers_generation_of(key: str) -> int | None:
    """Return the generation of the list of readers with this key; None for a foreign key."""
    match = _READERS.fullmatch(key)
    return None if match is None else int(match[1])


def writer_key(signer: str) -> str:
    return f"{WRITERS}{signer}.json"


def probe_key(probe_id: str) -> str:
    return f"{PROBES}{probe_id}"


# --- stream keys ---
#
# Keys of what a stream has: its folder, and the segments and other objects there. Keys of pages of streams too.
#
# The key of such an object says what is in it, and then, in eight digits, which bytes these are (`stored_keys`). The
# same messages become other bytes if they are encrypted again, or encoded by another version of a library. So whatever
# was lost and is stored again, no key ever has other bytes than those that a manifest names with it.

SEGMENTS = "segments/"
STREAMS_FOLDER = "streams"
STREAMS = f"{STREAMS_FOLDER}/"
_MAX_SEQUENCE = (1 << 64) - 1
_FOLDER = r"segments/([A-Za-z0-9_%.-]+)-([0-9a-f]{8})"
_NAME = r"[0-9a-f]{64}(?:\.[0-9a-f]{8})?"
_SEGMENT = re.compile(
    rf"({_FOLDER})/([0-9]{{20}})-([0-9]{{20}})-([0-9a-f]{{64}})(?:\.([0-9a-f]{{8}}))?\.parquet{_SEALED}"
)
_PENDING = re.compile(rf"{_FOLDER}/pending-{_NAME}\.parquet{_SEALED}")
_OPAQUE = re.compile(rf"{_FOLDER}/opaque-{_NAME}\.zst{_SEALED}")
_PAGE = re.compile(rf"{_FOLDER}/page-{_NAME}\.json\.zst{_SEALED}")
_STREAM_PAGE = re.compile(rf"{STREAMS}page-{_NAME}\.json\.zst{_SEALED}")
_DIGITS = re.compile(rf"\.[0-9a-f]{{8}}(?=\.(?:parquet|zst|json\.zst){_SEALED}$)")
_HIDDEN = re.compile(r"segments/[0-9a-f]{32}-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """The parts of a segment's key; `digits` are those of the stored bytes."""

    folder: str
    first_seq: int
    last_seq: int
    digest: str
    digits: str | None = None


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


def is_stream_folder(folder: str) -> bool:
    """Return whether `stream_folder` returns this for any stream."""
    match = re.fullmatch(_FOLDER, folder)
    if match is None:
        return False
    try:
        decode_name(match[1])
    except FormatError:
        return False
    return True


def segment_key(folder: str, first_seq: int, last_seq: int, name: str, *, digits: str = "", suffix: str = "") -> str:
    """Build a segment's key. `name` is the digest, or its HMAC; `digits` are the 8 of the stored bytes, "" in the key
    of the content alone. Raises `FormatError` for invalid parts.
    """
    dotted = f".{digits}" if digits else ""
    key = f"{folder}/{first_seq:020}-{last_seq:020}-{name}{dotted}.parquet{suffix}"
    parse_segment_key(key)
    return key


def stored_keys(key: str, sha256: str) -> list[str]:
    """Return the keys under which an object with this SHA-256 may be stored; `key` is that of its content, or one of
    these.

    The second one is used if the object under the first is damaged, and so on.
    """
    folder, _, name = content_key(key).rpartition("/")
    stem, _, suffix = name.partition(".")
    return [f"{folder}/{stem}.{sha256[at : at + 8]}.{suffix}" for at in range(0, 32, 8)]


def content_key(key: str) -> str:
    """Return the key of an object's content alone, without the digits of its bytes."""
    return _DIGITS.sub("", key)


def stored_digits(key: str) -> str:
    """Return the 8 digits of the bytes of an object; "" in the key of a content alone."""
    match = _DIGITS.search(key)
    return match[0][1:] if match else ""


def parse_segment_key(key: str) -> SegmentKey:
    """Parse a segment's key. Raises `FormatError` for anything else."""
    parts = _segment_parts(key)
    if parts is None:
        raise FormatError(f"not a segment's key: {key[:300]!r}")
    return parts


def _segment_parts(key: str) -> SegmentKey | None:
    match = _SEGMENT.fullmatch(key)
    if match is None or not is_stream_folder(match[1]):
        return None
    parts = SegmentKey(match[1], int(match[4]), int(match[5]), match[6], match[7])
    return parts if 1 <= parts.first_seq <= parts.last_seq <= _MAX_SEQUENCE else None


def pending_key(folder: str, name: str, suffix: str = "") -> str:
    return f"{folder}/pending-{name}.parquet{suffix}"


def opaque_key(folder: str, name: str, suffix: str = "") -> str:
    return f"{folder}/opaque-{name}.zst{suffix}"


def page_key(folder: str, name: str, *, digits: str = "", suffix: str = "") -> str:
    """Build a page's key in the folder of its stream, or in `STREAMS_FOLDER`; `digits` and `suffix` as in a segment's,
    "" in the key that documents take. Raises `FormatError` for invalid parts.
    """
    dotted = f".{digits}" if digits else ""
    key = f"{folder}/page-{name}{dotted}.json.zst{suffix}"
    if kind_of(key) not in (ObjectKind.PAGE, ObjectKind.STREAM_PAGE):
        raise FormatError(f"not a page's key: {key[:300]!r}")
    return key


def folder_of(key: str) -> str:
    """Return the folder of an object, without a slash at the end."""
    return key.rpartition("/")[0]


# --- kinds ---
#
# The kind of an object, by its key.


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
    READERS = "list of readers"
    WRITER = "writer"
    FOREIGN = "foreign object"


_ID = r"[0-9A-Za-z-]{1,64}"
_KINDS = tuple(
    (re.compile(form), kind)
    for form, kind in (
        (_SEGMENT.pattern, ObjectKind.SEGMENT),
        (_PENDING.pattern, ObjectKind.PENDING),
        (_OPAQUE.pattern, ObjectKind.OPAQUE),
        (_PAGE.pattern, ObjectKind.PAGE),
        (_STREAM_PAGE.pattern, ObjectKind.STREAM_PAGE),
        (re.escape(DESCRIPTOR), ObjectKind.DESCRIPTOR),
        (rf"{BACKUPS}{_BACKUP_ID.pattern}\.json{_SEALED}", ObjectKind.MANIFEST),
        (_CATALOG.pattern + _SEALED, ObjectKind.CATALOG),
        (rf"{CATALOGS}{_BACKUP_ID.pattern}{re.escape(_COMMITTED)}", ObjectKind.WITNESS),
        (rf"{HOLDS}{_BACKUP_ID.pattern}\.json{_SEALED}", ObjectKind.HOLD),
        (_LEASE.pattern, ObjectKind.LEASE),
        (rf"{MARKS}{_ID}\.json", ObjectKind.MARKS),
        (_RECEIPT.pattern + _SEALED, ObjectKind.RECEIPT),
        (rf"{VERIFIED}{_ID}\.json{_SEALED}", ObjectKind.VERIFIED),
        (_OUTCOME.pattern + _SEALED, ObjectKind.CHECK),
        (rf"{PROBES}{_ID}", ObjectKind.PROBE),
        (_WRITER.pattern, ObjectKind.WRITER),
        (_IDENTITY.pattern, ObjectKind.IDENTITY),
        (_READERS.pattern, ObjectKind.READERS),
    )
)
_IN_FOLDERS = (ObjectKind.PENDING, ObjectKind.OPAQUE, ObjectKind.PAGE)


def is_damage_record(key: str) -> bool:
    return kind_of(key) is ObjectKind.VERIFIED and key.endswith(f"{DAMAGED}.json")


def kind_of(key: str) -> ObjectKind:
    """Return the kind of an object. Foreign ones are never read, counted or deleted."""
    kind = next((kind for form, kind in _KINDS if form.fullmatch(key)), ObjectKind.FOREIGN)
    if kind is ObjectKind.SEGMENT and _segment_parts(key) is None:
        return ObjectKind.FOREIGN
    if kind in _IN_FOLDERS and not is_stream_folder(folder_of(key)):
        return ObjectKind.FOREIGN
    return kind
