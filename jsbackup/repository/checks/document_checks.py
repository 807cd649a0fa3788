"""Checks of what a repository needs besides backups and their objects.

    keys/       records of writers (signed by the authority), and identities for readers, as their records say, or,
                without one, well-formed age files of the kind that the key names (`readers.py`)
    holds/      every hold can be read
    backups/    no manifest is stored in a form that this repository does not read

The descriptor was checked when the repository was opened; `evidence.py` checks catalogs. Leases are left to `jsbackup
unlock`. Lists of unused objects, receipts and records of what was verified are not checked: damage to them only costs
time, because something is stored or checked again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from jsbackup.errors import IntegrityError, ObjectNotFound, StoreError, UnsupportedError
from jsbackup.repository import layout
from jsbackup.repository.crypto.readers import AGAIN_FROM_COPY, Readers, examine_readers, record_readers
from jsbackup.repository.crypto.signing import read_signed
from jsbackup.repository.crypto.writers import decode_writer
from jsbackup.repository.document import MAX_DOCUMENT_BYTES
from jsbackup.repository.keep.holds import find_hold
from jsbackup.repository.layout import ObjectKind
from jsbackup.repository.repository import Repository

__all__ = ["Flaw", "check_own_documents", "check_readers", "check_writers", "lost_readers", "tend_readers"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong with the object `key`."""

    key: str
    problem: str


def check_own_documents(repository: Repository) -> list[Flaw]:
    """List everything that is wrong. Objects that are removed meanwhile do not count.

    Raises `StoreError` if the store cannot be listed.
    """
    return [*check_writers(repository), *check_readers(repository), *_holds(repository), *_manifests(repository)]


def check_readers(repository: Repository) -> list[Flaw]:
    """List the key files of readers that are missing or damaged. Raises `StoreError` if the store cannot be listed."""
    found = examine_readers(repository.store, repository.descriptor, repository.signers).broken
    return [Flaw(one.key, f"{one.problem}; {AGAIN_FROM_COPY}") for one in found]


def tend_readers(repository: Repository) -> tuple[str, ...]:
    """Return the same as `lost_readers`, and record the key files that an interrupted `key add` has made."""
    readers = _readers(repository)
    record_readers(repository.store, repository.descriptor.id, repository.signatory, readers)
    return _sentences(readers)


def lost_readers(repository: Repository) -> tuple[str, ...]:
    """Return a sentence for each key file of a reader that is missing or damaged, for commands that store backups.

    Raises no StoreError: the backup matters more.
    """
    return _sentences(_readers(repository))


def _readers(repository: Repository) -> Readers:
    try:
        return examine_readers(repository.store, repository.descriptor, repository.signers)
    except StoreError as error:
        _log.warning("whether someone can read the repository is not known: %s", error.message)
        return Readers()


def _sentences(readers: Readers) -> tuple[str, ...]:
    return tuple(f"{one.problem}; {AGAIN_FROM_COPY}" for one in readers.broken)


def check_writers(repository: Repository) -> Iterator[Flaw]:
    """Yield the records of writers that are missing or damaged. Raises `StoreError` if the store cannot be listed."""
    store, descriptor = repository.store, repository.descriptor
    if descriptor.authority is not None:
        if flaw := _without_writer(repository):
            yield flaw
        for info in list(store.list(layout.WRITERS)):
            if layout.kind_of(info.key) is ObjectKind.WRITER:
                try:
                    document = read_signed(descriptor.id, info.key, store.get_range(info.key, 0, MAX_DOCUMENT_BYTES))
                    decode_writer(document.data, info.key)
                except ObjectNotFound:
                    continue
                except StoreError as error:
                    yield Flaw(info.key, error.message)
                except (IntegrityError, UnsupportedError) as error:
                    yield Flaw(info.key, f"{error.message}; nothing that this writer has signed can be read")
                else:
                    if document.signer != descriptor.authority:
                        yield Flaw(info.key, f"{info.key} was stored by someone who may not add writers")


def _without_writer(repository: Repository) -> Flaw | None:
    """Return what is wrong if a record of a writer that there was from the beginning is missing. (Of others it is known
    from what they have signed, and each such manifest is reported.)
    """
    store, descriptor = repository.store, repository.descriptor
    stored = {i.key for i in store.list(layout.WRITERS) if layout.kind_of(i.key) is ObjectKind.WRITER}
    if descriptor.recipient is not None:  # the first one may have any name
        missing = None if stored else Flaw(layout.WRITERS, f"no {layout.WRITERS}….json is there any more")
    else:
        first = layout.writer_key(descriptor.authority or "")
        missing = None if first in stored else Flaw(first, f"{first} is missing")
    more = "; nothing that this writer has signed can be read"
    return missing and Flaw(missing.key, missing.problem + more)


def _holds(repository: Repository) -> Iterator[Flaw]:
    for info in list(repository.store.list(layout.HOLDS)):
        backup = layout.held_backup_of(info.key)
        try:
            hold = None if backup is None else find_hold(repository, backup)
        except StoreError as error:
            yield Flaw(info.key, error.message)
            continue
        if hold is not None and hold.created is None:
            yield Flaw(info.key, f"{hold.reason}; backup {backup} stays held")


def _manifests(repository: Repository) -> Iterator[Flaw]:
    stored = [info.key for info in repository.store.list(layout.BACKUPS)]
    ending = repository.documents.stored_key("")
    for key in stored:
        if layout.kind_of(key) is ObjectKind.MANIFEST and key.endswith(".age") != ending.endswith(".age"):
            yield Flaw(key, f"{key} is a manifest of a kind that this repository does not have, and is not read")
