"""Read from a repository what `manifest_chain.py` checks."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from jsbackup.errors import IntegrityError, ObjectNotFound, UnsupportedError
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.catalog import CatalogEntry, entry_of
from jsbackup.repository.checks.manifest_chain import Evidence, Gap, check_chain
from jsbackup.repository.document import MAX_DOCUMENT_BYTES
from jsbackup.repository.documents import Documents
from jsbackup.repository.inventory import read_catalogs
from jsbackup.repository.manifest_json import decode_manifest
from jsbackup.repository.stored_catalogs import read_witnesses

__all__ = ["find_gaps", "find_missing"]

# Each thread holds one manifest, and mostly waits for the store.
_THREADS = 8


def find_gaps(documents: Documents, wanted: Collection[str] | None = None, expect: str | None = None) -> list[Gap]:
    """Return what is wrong with the chain of backups. Backups may be made and forgotten meanwhile.

    Reads all manifests; or, besides those of `wanted`, only those that the newest catalog does not cover.

    Raises:
        KeyUnavailable: no key that opens documents was given.
        StoreError: the store does not answer.
    """
    found = check_chain(_gather(documents, wanted), expect)
    if not found:
        return []
    # Manifests are added and removed between two listings, but the same one does not vanish twice.
    again = check_chain(_gather(documents, wanted), expect)
    return [gap for gap in again if gap.backup in {first.backup for first in found}]


def find_missing(documents: Documents) -> list[Gap]:
    """Return the backups whose manifests were removed or replaced by something else than jsbackup, oldest first.

    Raises as `find_gaps`.
    """
    return [gap for gap in find_gaps(documents, wanted=()) if gap.backup]


def _gather(documents: Documents, wanted: Collection[str] | None) -> Evidence:
    listed = _listed(documents)
    catalog, warnings, witnessed = read_catalogs(documents)
    named = {entry.id: entry for entry in catalog.entries} if catalog else {}
    known = {
        backup: entry
        for backup, size in listed.items()
        if (entry := named.get(backup)) and entry.size == size and wanted is not None and backup not in wanted
    }
    reads = [partial(_read, documents, backup, named.get(backup)) for backup in listed if backup not in known]
    found = list(in_order(reads, _THREADS))
    present = known | {entry.id: entry for entry in found if isinstance(entry, CatalogEntry)}
    damaged = frozenset(backup for backup in found if isinstance(backup, str))
    witnesses = read_witnesses(documents, witnessed & (present.keys() - named.keys()))
    return Evidence(present, damaged, catalog, warnings, witnessed, witnesses)


def _listed(documents: Documents) -> dict[str, int]:
    found = ((layout.backup_id_of(info.key), info.size) for info in documents.list(layout.BACKUPS))
    return {backup: size for backup, size in found if backup is not None}


def _read(documents: Documents, backup: str, entry: CatalogEntry | None) -> CatalogEntry | str | None:
    """Return the entry of a manifest; its id if it is damaged, None if it was removed since it was listed."""
    key = layout.manifest_key(backup)
    try:
        stored = documents.fetch(key, MAX_DOCUMENT_BYTES)
        if entry is not None and (entry.size, entry.sha256) == (stored.size, stored.sha256):
            return entry
        return entry_of(decode_manifest(stored.data, key), stored)
    except ObjectNotFound:
        return None
    except (IntegrityError, UnsupportedError):
        return backup
