"""How a manifest names the one before it: by id and SHA-256, so that neither can be removed or replaced unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from jsbackup.errors import IntegrityError, ObjectNotFound
from jsbackup.repository import layout
from jsbackup.repository.document import MAX_DOCUMENT_BYTES, decode_document
from jsbackup.repository.documents import Documents
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.stored_catalogs import contradicted

__all__ = ["ManifestLinks"]


class ManifestLinks:
    """The links from manifests of one repository to those before them. `signed`: its documents are signed."""

    def __init__(self, documents: Documents, *, signed: bool) -> None:
        self._documents = documents
        self._signed = signed
        self._sha256: dict[str, str] = {}  # of manifests that were read or stored, by backup

    def note(self, backup: str, sha256: str) -> None:
        """Note the SHA-256 of a manifest that was read."""
        self._sha256[backup] = sha256

    def note_committed(self, backup: str, sha256: str) -> None:
        """Note the SHA-256 of the newest manifest: no earlier one is named again."""
        self._sha256 = {backup: sha256}

    def linked(self, manifest: Manifest, backups: Callable[[], list[str]]) -> Manifest:
        """Return the manifest with the SHA-256 of the one before it. `backups` returns all that there are, in order: a
        signed manifest names the newest that can be read.
        """
        if not self._signed:
            if manifest.previous is None:
                return manifest
            return replace(manifest, previous_sha256=self._sha256_of(manifest.previous))
        for previous in reversed([backup for backup in backups() if backup != manifest.id]):
            with suppress(ObjectNotFound, IntegrityError):  # forgotten just now, or damaged, which `verify` reports
                stored = self._documents.fetch(layout.manifest_key(previous), MAX_DOCUMENT_BYTES)
                return replace(manifest, previous=previous, previous_sha256=stored.sha256)
        return replace(manifest, previous=None, previous_sha256=None)

    def _sha256_of(self, backup: str) -> str | None:
        """Return the SHA-256 of a plain manifest as it is stored; None if it is damaged, forgotten, or not the one that
        its witness names: then naming it would hide that.
        """
        if backup not in self._sha256:
            with suppress(ObjectNotFound, IntegrityError):
                key = layout.manifest_key(backup)
                stored = self._documents.fetch(key, MAX_DOCUMENT_BYTES)
                decode_document(stored.data, f"manifest {key}")  # whose checksum may be wrong
                self._sha256[backup] = stored.sha256
        found = self._sha256.get(backup)
        return found if found is None or not contradicted(self._documents, {backup: found}) else None
