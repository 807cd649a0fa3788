"""The kind of an object, by its key."""

from __future__ import annotations

import re
from enum import Enum

from jsbackup.errors import FormatError
from jsbackup.repository.layout.record_keys import (
    DAMAGED,
    DESCRIPTOR,
    IDENTITY_KEY,
    MARKS,
    OUTCOME_KEY,
    PROBES,
    READER_KEY,
    VERIFIED,
    WRITER_KEY,
    backup_id_of,
    catalog_generation_of,
    held_backup_of,
    parse_lease_key,
    parse_receipt_key,
    parse_removed_reader_key,
    witnessed_backup_of,
)
from jsbackup.repository.layout.stream_keys import (
    OPAQUE_KEY,
    PAGE_KEY,
    PENDING_KEY,
    SEGMENT_KEY,
    STREAM_PAGE_KEY,
    parse_segment_key,
    parse_stream_folder,
)

__all__ = ["ObjectKind", "is_damage_record", "kind_of"]

_ID = re.compile(r"[0-9A-Za-z-]{1,64}")


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
    REMOVED_READER = "record of a removed reader"
    WRITER = "writer"
    FOREIGN = "foreign object"


_CONTENT = (
    (SEGMENT_KEY, ObjectKind.SEGMENT),
    (PENDING_KEY, ObjectKind.PENDING),
    (OPAQUE_KEY, ObjectKind.OPAQUE),
    (PAGE_KEY, ObjectKind.PAGE),
)


def is_damage_record(key: str) -> bool:
    return kind_of(key) is ObjectKind.VERIFIED and key.endswith(f"{DAMAGED}.json")


def kind_of(key: str) -> ObjectKind:
    """Return the kind of an object. Foreign ones are never read, counted or deleted."""
    if key == DESCRIPTOR:
        return ObjectKind.DESCRIPTOR
    if backup_id_of(key.removesuffix(".age")) is not None:
        return ObjectKind.MANIFEST
    if catalog_generation_of(key.removesuffix(".age")) is not None:
        return ObjectKind.CATALOG
    if witnessed_backup_of(key) is not None:
        return ObjectKind.WITNESS
    if held_backup_of(key) is not None:
        return ObjectKind.HOLD
    if WRITER_KEY.fullmatch(key) or IDENTITY_KEY.fullmatch(key):
        return ObjectKind.WRITER if WRITER_KEY.fullmatch(key) else ObjectKind.IDENTITY
    if READER_KEY.fullmatch(key):
        return ObjectKind.READER
    if parse_removed_reader_key(key) is not None:
        return ObjectKind.REMOVED_READER
    for pattern, kind in _CONTENT:
        if pattern.fullmatch(key):
            try:
                parse_segment_key(key) if kind is ObjectKind.SEGMENT else parse_stream_folder(key.rpartition("/")[0])
            except FormatError:
                return ObjectKind.FOREIGN
            return kind
    if STREAM_PAGE_KEY.fullmatch(key):
        return ObjectKind.STREAM_PAGE
    if parse_lease_key(key) is not None:
        return ObjectKind.LEASE
    if parse_receipt_key(key.removesuffix(".age")) is not None:
        return ObjectKind.RECEIPT
    if OUTCOME_KEY.fullmatch(key.removesuffix(".age")):
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
