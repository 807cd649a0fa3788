"""Holds on backups, which `forget` does not remove, whatever a policy says, until the hold is released.

A hold is a document under a key made of the backup's id (`layout.hold_key`). The existence of the object is what holds:
a damaged or empty one, or one that is encrypted where it should not be, holds as well. Its content is for people: since
when, and why. Nothing is overwritten: to change the reason, release the backup and hold it again.

`forget` looks for a hold right before it deletes a manifest, and `put_hold` looks for the manifest after it has put the
hold. So if both run at once, one sees the other, unless the hold is put between the check and the deletion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jsbackup.errors import (
    IntegrityError,
    JsBackupError,
    KeyUnavailable,
    ObjectExists,
    ObjectNotFound,
    UnsupportedError,
    UsageError,
)
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import decode_document, encode_document
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Data
from jsbackup.times import parse_time

__all__ = ["Hold", "decode_hold", "encode_hold", "find_hold", "held_backups", "is_held", "put_hold", "release_hold"]

FORMAT_VERSION = 1
FEATURES: frozenset[str] = frozenset()

MAX_REASON_CHARACTERS = 4096
_MAX_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Hold:
    """`created` is RFC 3339, and None if the hold cannot be read; `reason` then says why. `tool` made it."""

    backup: str
    created: str | None
    tool: str = ""
    reason: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


def encode_hold(hold: Hold) -> bytes:
    """Encode as canonical JSON with a checksum. Raises UsageError for a reason that is too long."""
    if len(hold.reason) > MAX_REASON_CHARACTERS:
        raise UsageError(f"the reason has more than {MAX_REASON_CHARACTERS} characters", hint="Shorten it.")
    document: JsonObject = {
        **hold.extra,
        "format": FORMAT_VERSION,
        "required_features": [],
        "backup": hold.backup,
        "created": hold.created,
        "tool": hold.tool,
        "reason": hold.reason,
    }
    return encode_document(document, f"hold on {hold.backup}")


def decode_hold(data: Data, key: str) -> Hold:
    """The hold stored under `key`.

    Raises:
        FormatError: damaged, or on another backup.
        UnsupportedError: it has a later format.
    """
    fields = decode_document(data, f"hold {key}")
    fields.version(FORMAT_VERSION, FEATURES)
    created = fields.text("created")
    parse_time(created, f"{fields.where}: created")
    hold = Hold(fields.text("backup"), created, fields.text("tool"), fields.text("reason"), fields.rest())
    if layout.held_backup_of(key) != hold.backup:
        fields.wrong("backup", "the backup that its key names")
    return hold


def held_backups(repository: Repository) -> frozenset[str]:
    """Return the ids of the backups that are held. Reads no hold."""
    # Not with `documents`, which skips plain objects that should be encrypted: they hold too.
    keys = (info.key for info in repository.store.list(layout.HOLDS))
    return frozenset(backup for backup in map(layout.held_backup_of, keys) if backup is not None)


def is_held(repository: Repository, backup: str) -> bool:
    """Return whether one backup is held."""
    return any(layout.held_backup_of(info.key) for info in repository.store.list(layout.hold_key(backup)))


def find_hold(repository: Repository, backup: str) -> Hold | None:
    """Return the hold on a backup, None if it has none."""
    key = layout.hold_key(backup)
    try:
        return decode_hold(repository.documents.get(key, _MAX_BYTES), key)
    except ObjectNotFound:
        if is_held(repository, backup):
            return _unreadable(backup, IntegrityError(f"hold {key} is stored in another form than documents are here"))
        return None
    except (IntegrityError, KeyUnavailable, UnsupportedError) as error:
        return _unreadable(backup, error)


def _unreadable(backup: str, error: JsBackupError) -> Hold:
    return Hold(backup, None, reason=f"the hold cannot be read: {error.message}")


def put_hold(repository: Repository, hold: Hold) -> bool:
    """Hold a backup. Returns False if it is already held; that hold stays as it is.

    Raises:
        UsageError: there is no such backup.
        KeyUnavailable: documents are signed, and the key that signs was not given.
    """
    if is_held(repository, hold.backup):
        return False
    key = layout.hold_key(hold.backup)
    try:
        repository.documents.put(key, encode_hold(hold))
    except ObjectExists:
        return False
    if not any(repository.documents.list(layout.manifest_key(hold.backup))):
        repository.documents.delete(key)
        raise UsageError(f"no backup {hold.backup}", hint="See `jsbackup list` for those there are.")
    return True


def release_hold(repository: Repository, backup: str) -> bool:
    """Release a backup, even if its hold cannot be read. Returns False if it is not held."""
    infos = list(repository.store.list(layout.hold_key(backup)))
    keys = [info.key for info in infos if layout.held_backup_of(info.key) is not None]
    for key in keys:
        repository.store.delete(key)
    return bool(keys)
