"""Checks of what a repository needs besides backups and their objects.

    keys/       records of writers (signed by the authority) and identities for readers (well-formed age files of the
                kind that the key names; only the reader can find out whether one opens)
    holds/      every hold can be read
    backups/    no manifest is stored in a form that this repository does not read

The descriptor was checked when the repository was opened; `evidence.py` checks catalogs. Leases are left to `jsbackup
unlock`. Lists of unused objects, receipts and records of what was verified are not checked: damage to them only costs
time, because something is stored or checked again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from jsbackup.errors import IntegrityError, ObjectNotFound, StoreError, UnsupportedError
from jsbackup.repository import layout
from jsbackup.repository.crypto.keys import list_identities
from jsbackup.repository.crypto.signing import read_signed
from jsbackup.repository.crypto.writers import decode_writer
from jsbackup.repository.document import MAX_DOCUMENT_BYTES
from jsbackup.repository.keep.holds import find_hold
from jsbackup.repository.layout import ObjectKind
from jsbackup.repository.repository import Repository

__all__ = ["Flaw", "check_own_documents"]

# An identity for an RSA key takes about 700 bytes.
_MAX_IDENTITY_BYTES = 64 << 10

# C2SP's age.md: version, stanzas, MAC; then a nonce of 16 bytes, and at least the 16 of one block's tag.
_AGE = re.compile(
    rb"age-encryption\.org/v1\n((?:-> [\x20-\x7e]+\n(?:[A-Za-z0-9+/]*\n)+)+)--- [A-Za-z0-9+/]{43}\n.{32,}", re.DOTALL
)
# The first bytes of the stanza for a reader, by the first characters of the object's name.
_STANZAS = {
    "age1": b"-> X25519 ",
    "passphrase-": b"-> scrypt ",
    "ssh-ed25519-": b"-> ssh-ed25519 ",
    "ssh-rsa-": b"-> ssh-rsa ",
}


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong with the object `key`."""

    key: str
    problem: str


def check_own_documents(repository: Repository) -> list[Flaw]:
    """List everything that is wrong. Objects that are removed meanwhile do not count.

    Raises `StoreError` if the store cannot be listed.
    """
    return [*_keys(repository), *_holds(repository), *_manifests(repository)]


def _keys(repository: Repository) -> Iterator[Flaw]:
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
    for identity in list_identities(store, descriptor) if descriptor.recipient else []:
        try:
            data = store.get_range(identity.key, 0, _MAX_IDENTITY_BYTES)
        except ObjectNotFound:
            continue
        except StoreError as error:
            yield Flaw(identity.key, error.message)
            continue
        if not _is_for(identity.whom, data):
            yield Flaw(identity.key, f"{identity.key} is damaged and can no longer open anything")


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


def _is_for(whom: str, data: bytes) -> bool:
    """Return whether this can be the identity that was encrypted for `whom`."""
    match = _AGE.fullmatch(data)
    wanted = next((stanza for start, stanza in _STANZAS.items() if whom.startswith(start)), b"-> ")
    return match is not None and match[1].startswith(wanted)


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
