"""Keys of the descriptor, of manifests, and of what is recorded beside them: catalogs, holds, leases, receipts."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from jsbackup.errors import FormatError
from jsbackup.repository.layout.backup_ids import backup_id, is_backup_id

__all__ = [
    "BACKUPS",
    "CATALOGS",
    "CHECKS",
    "DAMAGED",
    "DESCRIPTOR",
    "HOLDS",
    "IDENTITY_KEY",
    "KEYS",
    "LOCKS",
    "MARKS",
    "OUTCOME_KEY",
    "PROBES",
    "READER_KEY",
    "RECEIPTS",
    "SEALED_SUFFIX",
    "VERIFIED",
    "WRITERS",
    "WRITER_KEY",
    "LeaseKey",
    "ReceiptKey",
    "backup_id_of",
    "catalog_generation_of",
    "catalog_key",
    "held_backup_of",
    "hold_key",
    "identity_key",
    "lease_key",
    "lease_prefix",
    "manifest_key",
    "mark_key",
    "outcome_key",
    "outcome_prefix",
    "parse_lease_key",
    "parse_receipt_key",
    "parse_removed_reader_key",
    "probe_key",
    "reader_key",
    "receipt_key",
    "recorded_identity",
    "removed_reader_key",
    "verified_key",
    "witness_key",
    "witnessed_backup_of",
    "writer_key",
]

SEALED_SUFFIX = ".age"  # ends the keys of what is encrypted
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
DAMAGED = "-damaged"  # ends the name of a record of damage
_COMMITTED = ".committed"

_CATALOG = re.compile(r"catalog/([0-9]{10})\.json")
_LEASE = re.compile(r"locks/([0-9a-f]{16})-([0-9]{8})-(shared|exclusive)-([1-9][0-9]{0,3})\.json")
_RECEIPT = re.compile(r"receipts/([0-9a-f]{16})-([0-9]{8})\.json")
OUTCOME_KEY = re.compile(r"receipts/(?:drill|restore|verify)-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}\.json")
WRITER_KEY = re.compile(r"keys/writer-[0-9a-f]{64}\.json")
IDENTITY_KEY = re.compile(r"keys/[0-9a-z-]{1,80}-[0-9a-f]{8}\.age")
READER_KEY = re.compile(r"keys/[0-9a-z-]{1,80}-[0-9a-f]{8}\.json")
_REMOVED_READER = re.compile(r"(keys/[0-9a-z-]{1,80}-[0-9a-f]{8})-([0-9a-f]{64})\.removed")


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
    """Return the prefix of the keys of outcomes of this kind: `drill`, `restore`, `verify`."""
    return f"{RECEIPTS}{kind}-"


def outcome_key(kind: str, begun_ns: int, random: bytes) -> str:
    """Build an outcome's key; within a kind they sort by start. `random` is three bytes.

    Raises `FormatError` for another kind.
    """
    key = f"{outcome_prefix(kind)}{backup_id(begun_ns, random)}.json"
    if OUTCOME_KEY.fullmatch(key) is None:
        raise FormatError(f"not the key of an outcome: {key[:300]!r}")
    return key


def verified_key(record_id: str, *, damaged: bool = False) -> str:
    return f"{VERIFIED}{record_id}{DAMAGED if damaged else ''}.json"


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


def removed_reader_key(identity: str, sha256: str) -> str:
    """Return the key of the record that the wrapped identity under this key, with this SHA-256, was removed."""
    return f"{identity.removesuffix('.age')}-{sha256}.removed"


def parse_removed_reader_key(key: str) -> tuple[str, str] | None:
    """Return the key and the SHA-256 of the removed wrapped identity; None for a foreign key."""
    match = _REMOVED_READER.fullmatch(key)
    return None if match is None else (f"{match[1]}.age", match[2])


def writer_key(signer: str) -> str:
    return f"{WRITERS}{signer}.json"


def probe_key(probe_id: str) -> str:
    return f"{PROBES}{probe_id}"
