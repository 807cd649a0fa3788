"""Holds: marks on backups that `forget` never removes, whatever a policy says, until somebody releases them.

A hold is a document under a key made of the backup's id (`layout.hold_key`). That the object is there is what holds:
one that is damaged, empty, or encrypted where it should not be holds as well, because nobody knows what it said. Its
content is for people: since when, and why. Nothing is overwritten: another reason takes a release and a new hold.

`forget` looks for a hold right before it deletes a manifest, and `put_hold` looks for the manifest after the hold is
there. So of both at once, one sees the other, unless the hold comes between that look and the deletion after it.
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
    """`created` is RFC 3339, and None if the hold cannot be read; `reason` then says why not. `tool` made it."""

    backup: str
    created: str | None
    tool: str = ""
    reason: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


def encode_hold(hold: Hold) -> bytes:
    """Canonical JSON, sealed. Raises UsageError for a reason that is too long."""
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
        UnsupportedError: of a later format.
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
    """The backups that are held. Reads no hold."""
    # Not by `documents`, which passes over what should be encrypted and is not: that holds too.
    keys = (info.key for info in repository.store.list(layout.HOLDS))
    return frozenset(backup for backup in map(layout.held_backup_of, keys) if backup is not None)


def is_held(repository: Repository, backup: str) -> bool:
    """The same for one backup."""
    return any(layout.held_backup_of(info.key) for info in repository.store.list(layout.hold_key(backup)))


def find_hold(repository: Repository, backup: str) -> Hold | None:
    """The hold on a backup, None if it has none."""
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
    """Hold a backup; False if it is held already, which leaves that hold as it is.

    Raises:
        UsageError: there is no such backup.
        KeyUnavailable: documents are signed here, and the key that signs was not given.
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
    """Release a backup, also from a hold that cannot be read; False if it is not held."""
    infos = list(repository.store.list(layout.hold_key(backup)))
    keys = [info.key for info in infos if layout.held_backup_of(info.key) is not None]
    for key in keys:
        repository.store.delete(key)
    return bool(keys)
