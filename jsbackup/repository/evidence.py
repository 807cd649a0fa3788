"""What `chain.py` judges, read from a repository."""

from __future__ import annotations

from collections.abc import Collection

from jsbackup.errors import IntegrityError, ObjectNotFound, UnsupportedError
from jsbackup.repository import layout
from jsbackup.repository.catalog import CatalogEntry, entry_of
from jsbackup.repository.chain import Evidence, Gap, check_chain
from jsbackup.repository.document import MAX_DOCUMENT_BYTES
from jsbackup.repository.documents import Documents
from jsbackup.repository.inventory import newest_catalog
from jsbackup.repository.manifest_json import decode_manifest

__all__ = ["find_gaps"]


def find_gaps(documents: Documents, wanted: Collection[str] | None = None, expect: str | None = None) -> list[Gap]:
    """What is wrong with the chain of backups. Backups may be made and forgotten meanwhile.

    Reads all manifests; or, beside those of `wanted`, only those that the newest catalog does not cover.

    Raises:
        KeyUnavailable: no key that opens documents was given.
        StoreError: the store does not answer.
    """
    found = check_chain(_gather(documents, wanted), expect)
    if not found:
        return []
    # Manifests come and go between one look and the next, but not the same one twice.
    again = check_chain(_gather(documents, wanted), expect)
    return [gap for gap in again if gap.backup in {first.backup for first in found}]


def _gather(documents: Documents, wanted: Collection[str] | None) -> Evidence:
    listed = _listed(documents)
    catalog, warnings = newest_catalog(documents)
    named = {entry.id: entry for entry in catalog.entries} if catalog else {}
    present: dict[str, CatalogEntry] = {}
    damaged = set()
    for backup, size in listed.items():
        entry = named.get(backup)
        if entry is not None and entry.size == size and wanted is not None and backup not in wanted:
            present[backup] = entry
            continue
        try:
            present[backup] = _read(documents, backup, entry)
        except ObjectNotFound:  # gone since it was listed
            continue
        except (IntegrityError, UnsupportedError):
            damaged.add(backup)
    return Evidence(present, frozenset(damaged), catalog, warnings)


def _listed(documents: Documents) -> dict[str, int]:
    found = ((layout.backup_id_of(info.key), info.size) for info in documents.list(layout.BACKUPS))
    return {backup: size for backup, size in found if backup is not None}


def _read(documents: Documents, backup: str, entry: CatalogEntry | None) -> CatalogEntry:
    key = layout.manifest_key(backup)
    stored = documents.fetch(key, MAX_DOCUMENT_BYTES)
    if entry is not None and (entry.size, entry.sha256) == (stored.size, stored.sha256):
        return entry
    return entry_of(decode_manifest(stored.data, key), stored)
