"""Put manifests back that were removed, replaced or damaged, from another repository that has copies.

Nothing names the digest of a manifest, as manifests name those of objects. So the bytes of the copy are taken only if
something here proves that they are the ones that were stored:

- the newest catalog, a backup that follows this one, or the witness of the newest one names their SHA-256
  (`checks/manifest_chain.py`). Older tools recorded it in signed repositories and in catalogs only.
- they are signed by a writer of this repository. A signed manifest belongs to one id, and is made once.
- the damaged manifest still has the checksum of its content (`document.py`), and the copy has that content. This is
  against accidents, as all of a repository without signatures is.
- the user says that the copy is right (`trust_copy`), in a repository without signatures. This is no stronger than
  putting the file there by hand, except that a damaged one, or one of another backup, is refused. If the witness says
  something else, that is said, and the witness names the copy from then on.

If a manifest and its copy are the same, and only the witness differs, it is the witness that is damaged, if that of the
copy, or the user, says so. Then it is replaced.

A copy that was signed again, or whose objects have other keys, has other bytes, and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jsbackup.errors import (
    IntegrityError,
    KeyUnavailable,
    ObjectNotFound,
    UnsupportedError,
)
from jsbackup.repository import layout
from jsbackup.repository.checks.manifest_chain import Gap
from jsbackup.repository.document import MAX_DOCUMENT_BYTES, seal_in
from jsbackup.repository.documents import Documents
from jsbackup.repository.inventory import newest_catalog
from jsbackup.repository.manifest_json import decode_manifest
from jsbackup.repository.objects import sha256_of
from jsbackup.repository.repository import Repository
from jsbackup.repository.stored_catalogs import read_witnesses, replace_witness
from jsbackup.repository.write.repair import put_document
from jsbackup.stores.base import Store

__all__ = ["BrokenManifest", "ManifestRepair", "broken_manifests"]

_SEALS = re.compile(rb'"sha256":"([0-9a-f]{64})"')


@dataclass(frozen=True, slots=True)
class BrokenManifest:
    """A manifest that is missing or damaged, or not the one that was stored; or a damaged catalog, with "" as `backup`.
    `key` is that of the stored object.
    """

    backup: str
    key: str
    problem: str


def broken_manifests(
    repository: Repository, beyond: Iterable[tuple[str, str]], gaps: Sequence[Gap]
) -> list[BrokenManifest]:
    """Return the manifests among what is `beyond` repair (key and problem), and those that the chain misses."""
    suffix = repository.documents.stored_key("")
    found = {}
    for key, problem in beyond:
        backup = layout.backup_id_of(key.removesuffix(suffix))
        if backup is not None and key == repository.documents.stored_key(layout.manifest_key(backup)):
            found[backup] = BrokenManifest(backup, key, problem)
    for gap in gaps:
        text = f"{gap.backup}: {gap.problem}"
        found.setdefault(gap.backup, BrokenManifest(gap.backup, repository.documents.stored_key(gap.key), text))
    return [found[backup] for backup in sorted(found)]


class ManifestRepair:
    """Repairs manifests of `repository` from the store `other`, of another repository.

    Raises KeyUnavailable and StoreError if the backups of `repository` cannot be listed.
    """

    def __init__(self, repository: Repository, other: Store, *, trust_copy: bool = False) -> None:
        self._repository = repository
        self._other = other
        self._trust_copy = trust_copy
        self._named: dict[str, dict[str, str]] = {}  # who names which SHA-256, by backup
        catalog, _ = newest_catalog(repository.documents)
        for entry in catalog.entries if catalog else ():
            self._named.setdefault(entry.id, {})[entry.sha256] = "the catalog of backups"
        for entry in repository.inventory().entries:
            if entry.previous is not None and entry.previous_sha256 is not None:
                self._named.setdefault(entry.previous, {})[entry.previous_sha256] = f"backup {entry.id}"

    def mend(self, broken: BrokenManifest) -> str:
        """Put the right bytes of a manifest back. Return what else there is to say, "" for nothing.

        Raises:
            IntegrityError: the other repository does not have them, or nothing proves that these are the right ones.
            KeyUnavailable: no key that opens them was given, and nothing else proves them.
            StoreError: a store does not answer, or does not allow it.
        """
        key = layout.manifest_key(broken.backup)
        try:
            data = self._repository.documents.stored_bytes(key, MAX_DOCUMENT_BYTES, self._other)
        except ObjectNotFound:
            raise IntegrityError(f"{self._other.location} has no manifest of backup {broken.backup}") from None
        damaged = self._damaged(key)
        if data == damaged and (note := self._mend_witness(broken.backup, data)):
            return note
        if data == damaged:
            signer = self._repository.documents.claimed_signer(key, data)
            lacks = f", and no sound {layout.writer_key(signer)}" if signer and "keys/writer-" in broken.problem else ""
            raise IntegrityError(f"{self._other.location} has the same bytes{lacks}")
        self._prove(broken.backup, data, damaged)
        put_document(self._repository.store, broken.key, data)
        return self._align_witness(broken.backup, sha256_of(data))

    def _mend_witness(self, backup: str, data: bytes) -> str:
        """Replace a witness that contradicts a manifest and its copy, which are the same. Return what was wrong with
        it; "" if that is not the case, or not known to be.
        """
        sha256, named = sha256_of(data), self._named.get(backup, {})
        if self._witnessed(backup) in (None, sha256) or self._repository.documents.signs:
            return ""
        try:
            self._seal_of(backup, data)
        except (IntegrityError, UnsupportedError):
            return ""
        if named and set(named) != {sha256}:
            return ""
        if not (named or self._trust_copy or self._witnessed(backup, self._other) == sha256):
            raise IntegrityError(
                f"{self._other.location} has the same manifest, and {layout.witness_key(backup)} names another one; if "
                "you trust this copy, give --trust-copy: then the witness names it"
            )
        return self._align_witness(backup, sha256)

    def _align_witness(self, backup: str, sha256: str) -> str:
        """Let a witness that names another manifest name the one that is here now; return that it did not."""
        if self._witnessed(backup) in (None, sha256) or self._repository.documents.signs:
            return ""
        replace_witness(self._repository.documents, backup, sha256.encode())
        return f"its witness {layout.witness_key(backup)} named another manifest, and names this one from now on"

    def _damaged(self, key: str) -> bytes:
        try:
            return self._repository.documents.stored_bytes(key, MAX_DOCUMENT_BYTES)
        except ObjectNotFound:
            return b""

    def _prove(self, backup: str, data: bytes, damaged: bytes) -> None:
        named, sha256 = self._named.get(backup, {}), sha256_of(data)
        if len(named) > 1:
            raise IntegrityError(f"{' and '.join(named.values())} name different manifests of backup {backup}")
        if named and sha256 not in named:
            (who,) = named.values()
            raise IntegrityError(
                f"{self._other.location} has a manifest of backup {backup} that differs from the one that {who} names"
            )
        try:
            seal = self._seal_of(backup, data)
        except KeyUnavailable:
            if not named:
                raise
            return
        except (IntegrityError, UnsupportedError) as error:
            raise IntegrityError(
                f"{self._other.location} has a manifest of backup {backup} that does not belong to this repository: "
                f"{error.message}"
            ) from error
        if named or self._repository.descriptor.authority is not None:
            return
        # A witness has no checksum: one that says something else may be damaged itself.
        witnessed = self._witnessed(backup)
        if self._trust_copy or sha256 == witnessed or seal in _SEALS.findall(damaged):
            return
        witness = "its witness names another one" if witnessed else "no witness names its SHA-256"
        raise IntegrityError(
            f"nothing proves that the manifest of backup {backup} in {self._other.location} is the right one: no "
            f"catalog and no later backup names its SHA-256, {witness}, and it is not signed; if you trust this copy, "
            "give --trust-copy"
        )

    def _witnessed(self, backup: str, store: Store | None = None) -> str | None:
        """Return what the witness of a plain backup says, here or in another repository: the SHA-256 of the manifest,
        or something else, if it is damaged; None if it says nothing.
        """
        documents = self._repository.documents if store is None else Documents(store)
        return read_witnesses(documents, [backup]).get(backup)

    def _seal_of(self, backup: str, data: bytes) -> bytes:
        """Check a manifest; return the checksum of its content."""
        key = layout.manifest_key(backup)
        plain = self._repository.documents.unwrapped(key, data)
        decode_manifest(plain, key)
        return seal_in(plain, f"manifest {key}").encode()
