"""Put the records of writers back that were removed or damaged, from another repository that has copies.

Without its record nothing that a writer has signed can be read (`crypto/writers.py`). A copy is taken only if the
authority of this repository has signed it, as every record that counts: who can change the copy cannot make one. Which
authority that is says the descriptor, which was compared with the user's keys when the repository was opened.

Only those are put back that are damaged, or that something here needs. If the writer key of the copy was replaced, its
record of that would make the writer key of this repository invalid.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from jsbackup.errors import (
    IntegrityError,
    JsBackupError,
    ObjectNotFound,
    UnsupportedError,
)
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.crypto.signing import Signers, read_signed
from jsbackup.repository.crypto.writers import MAX_WRITER_BYTES, Writer, decode_writer, load_signers
from jsbackup.repository.document import MAX_DOCUMENT_BYTES
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.repair import put_document
from jsbackup.stores.base import Store

__all__ = ["BrokenWriter", "WriterRepair"]

_THREADS = 8


@dataclass(frozen=True, slots=True)
class BrokenWriter:
    """The record `key` of a writer, which is missing or damaged. `certain`: it was there. Otherwise someone may only
    have put a manifest here that is signed with a key of another repository.
    """

    key: str
    problem: str
    certain: bool = True


class WriterRepair:
    """Repairs records that manifests need, and what else is damaged of them. Reads all manifests if they are signed.

    Raises IntegrityError if there are too many records, and StoreError if they cannot be listed.
    """

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        signed = repository.descriptor.authority is not None
        self._signers = load_signers(repository.store, repository.descriptor) if signed else Signers("")
        self._claimed = _claimed_signers(repository, repository.backups()) if signed else {}

    def find(self) -> list[BrokenWriter]:
        """Return the records that are missing or damaged, in the order of their keys. Raises StoreError."""
        store, descriptor = self._repository.store, self._repository.descriptor
        if descriptor.authority is None:
            return []
        found = {}
        for info in list(store.list(layout.WRITERS)):
            if layout.kind_of(info.key) is layout.ObjectKind.WRITER:
                try:
                    _read_record(self._repository, store, info.key)
                except ObjectNotFound:
                    continue
                except (IntegrityError, UnsupportedError) as error:
                    problem = f"{error.message}; nothing that this writer has signed can be read"
                    found[info.key] = BrokenWriter(info.key, problem)
        needed = set(self._claimed.values())
        if descriptor.recipient is None:
            needed.add(descriptor.authority)  # which is the first writer
        for signer in needed - self._signers.current - self._signers.replaced.keys():
            key = layout.writer_key(signer)
            problem = f"{key} is missing; nothing that this writer has signed can be read"
            found.setdefault(key, BrokenWriter(key, problem, signer == descriptor.authority))
        return [found[key] for key in sorted(found)]

    def mend(self, broken: BrokenWriter, other: Store) -> None:
        """Put a record back.

        Raises:
            IntegrityError: the other repository does not have it, or the authority has not signed what it has, or it
                would make a manifest invalid.
            StoreError: a store does not answer, or does not allow it.
        """
        key = broken.key
        try:
            data, writer = _read_record(self._repository, other, key)
        except ObjectNotFound:
            raise IntegrityError(f"{other.location} has no copy of it; {_by_hand(key)}") from None
        except (IntegrityError, UnsupportedError) as error:
            raise IntegrityError(f"{other.location} has no sound copy ({error.message}); {_by_hand(key)}") from error
        self._refuse_new_rule(writer, other)
        put_document(self._repository.store, key, data)

    def _refuse_new_rule(self, writer: Writer, other: Store) -> None:
        """Raise IntegrityError if the writer replaces one that has signed other backups here: then its record is not
        that of a replacement which was made here.
        """
        for backup, signer in self._claimed.items():
            replaced = writer.replaces.get(signer) if signer in self._signers.current else None
            if replaced is not None and layout.manifest_key(backup) not in replaced:
                raise IntegrityError(
                    f"the writer key was replaced in {other.location}, and by that record backup {backup} could not be "
                    "read any more"
                )


def _by_hand(key: str) -> str:
    return (
        f"copy {key} from where you keep the folder keys/, or from another copy: it counts only if the root signing "
        "key of this repository has signed it"
    )


def _read_record(repository: Repository, store: Store, key: str) -> tuple[bytes, Writer]:
    """Return a record as it is stored there, and what it says. Raises ObjectNotFound, StoreError,
    UnsupportedError, and IntegrityError if it is not one of this repository that its authority has signed.
    """
    descriptor = repository.descriptor
    data = store.get_range(key, 0, MAX_WRITER_BYTES + 1)
    document = read_signed(descriptor.id, key, data)
    if document.signer != descriptor.authority:
        raise IntegrityError(f"{key} was stored by someone who may not add writers")
    writer = decode_writer(document.data, key)
    # One that names another recipient keeps everybody from opening the repository (`load_writers`).
    if (layout.writer_key(writer.signer), writer.repository, writer.recipient) != (
        key,
        descriptor.id,
        descriptor.recipient,
    ):
        raise IntegrityError(f"{key} is not a record of this repository")
    return data, writer


def _claimed_signers(repository: Repository, backups: Sequence[str]) -> dict[str, str]:
    """Return who claims to have signed the manifests, by backup."""

    def signer_of(backup: str) -> str | None:
        key = layout.manifest_key(backup)
        with suppress(JsBackupError):  # missing or unreadable, which others report
            wrapped = repository.documents.stored_bytes(key, MAX_DOCUMENT_BYTES)
            return repository.documents.claimed_signer(key, wrapped)
        return None

    found = in_order([partial(signer_of, backup) for backup in backups], _THREADS)
    return {backup: signer for backup, signer in zip(backups, found, strict=True) if signer is not None}
