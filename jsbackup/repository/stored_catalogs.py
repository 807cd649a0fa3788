"""The objects below `catalog/`: catalogs by their generation, and the witnesses of backups that no catalog covers yet.

`inventory.py` decides what is in a catalog, and when one is written.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from jsbackup.errors import JsBackupError, ObjectNotFound, StoreError
from jsbackup.repository import layout
from jsbackup.repository.catalog import MAX_CATALOG_BYTES, Catalog, decode_catalog
from jsbackup.repository.documents import Documents
from jsbackup.stores.base import ObjectInfo

__all__ = [
    "StoredCatalogs",
    "contradicted",
    "delete_catalogs",
    "delete_witnesses",
    "list_catalogs",
    "newest_of",
    "read_witnesses",
    "replace_witness",
]

_SHA256_DIGITS = 64

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredCatalogs:
    """The objects below `catalog/`: catalogs by their generation, and the backups that have a witness."""

    generations: Mapping[int, ObjectInfo]
    witnessed: frozenset[str]


def list_catalogs(documents: Documents) -> StoredCatalogs:
    """Return what is stored now. Raises StoreError."""
    stored, beside = documents.list_beside(layout.CATALOGS)
    found = ((layout.catalog_generation_of(info.key), info) for info in stored)
    witnessed = (layout.witnessed_backup_of(info.key) for info in beside)
    return StoredCatalogs(
        {generation: info for generation, info in found if generation is not None},
        frozenset(backup for backup in witnessed if backup is not None),
    )


def newest_of(
    documents: Documents, generations: Iterable[int], passed_over: tuple[type[JsBackupError], ...]
) -> tuple[Catalog | None, tuple[str, ...]]:
    """Return the newest catalog that does not raise one of these errors, and their messages."""
    warnings: list[str] = []
    for generation in sorted(generations, reverse=True):
        key = layout.catalog_key(generation)
        try:
            return decode_catalog(documents.get(key, MAX_CATALOG_BYTES), key), tuple(warnings)
        except ObjectNotFound:  # two newer ones were written since the listing
            continue
        except passed_over as error:
            warnings.append(error.message)
    return None, tuple(warnings)


def read_witnesses(documents: Documents, backups: Iterable[str]) -> dict[str, str]:
    """Return what the witnesses of backups say, by backup: the SHA-256 of a manifest that is not signed, in hex, or
    something else, if one is damaged. One that says nothing, as of a signed manifest or an older tool, is left out.

    Raises StoreError.
    """
    found: dict[str, str] = {}
    for backup in sorted(backups) if not documents.signs else ():
        try:
            said = documents.get_beside(layout.witness_key(backup), _SHA256_DIGITS + 1)
        except ObjectNotFound:
            continue
        if said:
            found[backup] = said.decode("ascii", "replace")
    return found


def contradicted(documents: Documents, manifests: Mapping[str, str]) -> frozenset[str]:
    """Return the backups whose witnesses name other manifests than these, given by their SHA-256 in hex. Each is asked
    for. Raises StoreError.
    """
    said = read_witnesses(documents, manifests)
    return frozenset(backup for backup, sha256 in said.items() if sha256 != manifests[backup])


def replace_witness(documents: Documents, backup: str, witness: bytes) -> None:
    """Store another witness of a backup in place of a wrong one. Raises StoreError."""
    documents.delete_beside(layout.witness_key(backup))
    documents.put_beside(layout.witness_key(backup), witness)


def delete_catalogs(documents: Documents, generations: Iterable[int]) -> None:
    """Remove catalogs that are not needed. The newest two stay, because readers list them before they read one."""
    for generation in generations:
        try:
            documents.delete(layout.catalog_key(generation))
        except StoreError as error:  # not allowed, or locked for a while: the next writer tries again
            _log.info("old catalog %d was not removed: %s", generation, error.message)
            return


def delete_witnesses(documents: Documents, backups: Collection[str]) -> None:
    """Remove witnesses that are not needed. They do no harm if that is not allowed."""
    for backup in sorted(backups):
        try:
            documents.delete_beside(layout.witness_key(backup))
        except StoreError as error:
            _log.info("the witness of backup %s was not removed: %s", backup, error.message)
            return
