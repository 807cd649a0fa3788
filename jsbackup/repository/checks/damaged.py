"""Which objects the last `verify` found damaged, so that backups do not build on them.

Like all records of what was verified (`verified.py`) this is a hint: with it, a backup stores again what may be intact;
without it, a backup goes on as if nothing were damaged. Only `forget`, which deletes, insists on it (`keep/damage.py`).
Damaged objects have a record of their own, so that a backup reads nothing here while all objects are sound. It says in
which folders they are: other streams go on as if nothing were damaged.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Collection, Mapping
from heapq import nlargest

from jsbackup.errors import FormatError, IntegrityError, JsBackupError, ObjectNotFound
from jsbackup.repository import layout
from jsbackup.repository.document import DocumentFields, decode_document
from jsbackup.repository.documents import Documents
from jsbackup.repository.refs import ID_BYTES

__all__ = [
    "MAX_RECORD_BYTES",
    "MOST_RECORDS",
    "RECORD_FEATURES",
    "RECORD_VERSION",
    "damage_on_record",
    "objects_of",
    "read_damaged",
]

_log = logging.getLogger(__name__)

# What `verified.py` writes.
RECORD_VERSION = 1
RECORD_FEATURES: frozenset[str] = frozenset()
MAX_RECORD_BYTES = 64 << 20
# Limits how much a hostile store can make us read.
MOST_RECORDS = 100
_MOST_TRIES = 5


def read_damaged(documents: Documents, known: dict[str, Mapping[bytes, str]] | None = None) -> Mapping[bytes, str]:
    """Return the ids of objects (`refs.py`) that were found damaged, and not sound since, with the folder of each.

    The folder is "" if an older version did not record it. Raises nothing.

    `known` holds the content of records that were read before, by key: records never change.
    """
    known = {} if known is None else known
    try:
        infos = [info for info in documents.list(layout.VERIFIED) if layout.is_damage_record(info.key)]
        return {
            name: folder
            for info in nlargest(MOST_RECORDS, infos, key=lambda info: info.modified_seconds)
            for name, folder in _damaged_in(documents, info.key, known).items()
        }
    except JsBackupError as error:
        _log.warning("the list of damaged objects cannot be read: %s", error.message)
        return {}


def _damaged_in(documents: Documents, key: str, known: dict[str, Mapping[bytes, str]]) -> Mapping[bytes, str]:
    if key not in known:
        try:
            known[key] = _decode(documents, key)
        except JsBackupError as error:  # another run has replaced it, or it cannot be read
            _log.info("ignored: %s", error.naming(key))
    return known.get(key, {})


def damage_on_record(documents: Documents) -> Mapping[bytes, str]:
    """Return the same as `read_damaged`, for commands that delete: what cannot be read is an error.

    Raises:
        IntegrityError, UnsupportedError: a record is damaged, or needs a newer tool.
        KeyUnavailable: it cannot be read without a key that was not given.
        StoreError: the store does not answer.
    """
    for _ in range(_MOST_TRIES):
        keys = [info.key for info in documents.list(layout.VERIFIED) if layout.is_damage_record(info.key)]
        try:
            return {name: folder for key in keys for name, folder in _decode(documents, key).items()}
        except ObjectNotFound:  # a run of `verify` has replaced it
            continue
        except IntegrityError as error:
            raise error.with_more_hint("'jsbackup verify' writes the list of damaged objects anew.") from error
    return {}


def _decode(documents: Documents, key: str) -> Mapping[bytes, str]:
    fields = decode_document(documents.get(key, MAX_RECORD_BYTES), key)
    fields.version(RECORD_VERSION, RECORD_FEATURES)
    rows = [row for row in fields.each("found") if not row.boolean("sound")]
    return {name: row.optional_text("folder") or "" for row in rows for name in objects_of(row)}


def objects_of(row: DocumentFields) -> Collection[bytes]:
    """Return the ids of the objects in a row of a record. Raises FormatError."""
    try:
        joined = base64.b64decode(row.text("objects"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise FormatError(f"{row.where}: objects is not base64") from error
    if len(joined) % ID_BYTES:
        row.wrong("objects", f"ids of {ID_BYTES} bytes")
    return [joined[place : place + ID_BYTES] for place in range(0, len(joined), ID_BYTES)]
