"""The secrets of a new repository that is signed or encrypted, and the first objects below `keys/`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from jsbackup.errors import IntegrityError, KeyUnavailable, ObjectNotFound, UsageError
from jsbackup.repository import layout
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.access import NEEDS_WRITER
from jsbackup.repository.crypto.keys import needed, put_identity, put_passphrase
from jsbackup.repository.crypto.secret import RepositorySecret
from jsbackup.repository.crypto.signing import Signatory
from jsbackup.repository.crypto.writer_key import WriterKey
from jsbackup.repository.crypto.writers import Writer, load_signers, put_writer
from jsbackup.repository.descriptor import Descriptor
from jsbackup.repository.document import MAX_DOCUMENT_BYTES
from jsbackup.repository.documents import Documents
from jsbackup.stores.base import Store

__all__ = ["NewKeys", "make_new_keys", "put_keys", "replace_writer", "signed_documents"]

Random = Callable[[int], bytes]

# Where writers sign documents. Leases and lists of unused objects are not signed; the authority signs `keys/`.
_SIGNED = (layout.BACKUPS, layout.CATALOGS, layout.HOLDS, layout.VERIFIED, *layout.CHECKS)


@dataclass(frozen=True, slots=True, repr=False)
class NewKeys:
    """The keys of a new repository. `secret` is None if it is signed only; `writer_key` is for the user who makes it.

    `passphrase` comes with the three random bytes that name its object.
    """

    authority: Signatory
    writer_key: WriterKey
    secret: RepositorySecret | None
    recipients: tuple[age.Recipient, ...] = ()
    passphrase: tuple[str, bytes] | None = None

    @property
    def recipient(self) -> str | None:
        if self.secret is None:
            return None
        assert self.secret.identity.recipient is not None, "a repository's identity is an age identity"
        return self.secret.identity.recipient.label


def make_new_keys(
    repository_id: str, recipients: Sequence[age.Recipient], passphrase: str | None, random: Random
) -> NewKeys:
    """Make new secrets. Without recipients and passphrase nothing will be encrypted."""
    signing = random(32)
    if not recipients and passphrase is None:
        signatory = Signatory(signing)
        return NewKeys(signatory, WriterKey(repository_id, signatory.public, None, signing), None)
    if len({recipient.label for recipient in recipients}) < len(recipients):
        raise UsageError("a recipient is given twice")
    secret = RepositorySecret(age.age_identity(random(32)))
    writer_key = WriterKey(repository_id, secret.authority.public, secret.documents.value, signing)
    named = None if passphrase is None else (passphrase, random(3))
    return NewKeys(secret.authority, writer_key, secret, tuple(recipients), named)


def put_keys(store: Store, new_keys: NewKeys, created: str) -> None:
    """Store everything that belongs below `keys/`. The descriptor comes after it: until then there is no repository."""
    repository = new_keys.writer_key.repository
    if new_keys.secret is not None:
        for recipient in new_keys.recipients:
            put_identity(store, repository, new_keys.secret, recipient)
        if new_keys.passphrase is not None:
            passphrase, random = new_keys.passphrase
            put_passphrase(store, repository, new_keys.secret, passphrase, random=random)
    writer = Writer(repository, new_keys.recipient, new_keys.writer_key.signatory.public, created)
    put_writer(store, new_keys.authority, writer)


def replace_writer(
    store: Store,
    descriptor: Descriptor,
    documents: Documents,
    secret: RepositorySecret | None,
    *,
    writer_key: WriterKey | None,
    created: str,
    random: Random,
) -> tuple[WriterKey, Callable[[], None]]:
    """Make a new writer key that replaces all existing ones. Also returns the function that makes it valid.

    Call that function once the key is kept safe. Needs the secret of an encrypted repository, or the first writer key
    of a plain one. Everything that was signed before and can still be read stays valid.

    Raises:
        KeyUnavailable: the needed key was not given.
        UsageError: nothing is signed in this repository.
        IntegrityError, StoreError: the repository cannot be read.
    """
    if descriptor.authority is None:
        raise UsageError("the repository is neither encrypted nor signed, so it has no writer key")
    signing = random(32)
    if descriptor.recipient is not None:
        secret = needed(secret)
        authority, value = secret.authority, secret.documents.value
    else:
        authority, value = _first_writer(writer_key), None
    key = WriterKey(descriptor.id, descriptor.authority, value, signing)
    signed = dict(signed_documents(documents))
    replaces = dict.fromkeys(sorted(load_signers(store, descriptor).current), signed)
    writer = Writer(descriptor.id, descriptor.recipient, key.signatory.public, created, replaces)
    return key, lambda: put_writer(store, authority, writer)


def _first_writer(key: WriterKey | None) -> Signatory:
    if key is None:
        raise KeyUnavailable("only the first writer key of a plain repository can make another", hint=NEEDS_WRITER)
    if key.signatory.public != key.authority:
        raise KeyUnavailable("the writer key is not the first one of this repository", hint="Give that one.")
    return key.signatory


def signed_documents(documents: Documents, folders: Sequence[str] = _SIGNED) -> Iterator[tuple[str, str]]:
    """Yield the key and SHA-256 of every document that can be read. Raises KeyUnavailable, and StoreError."""
    for info in chain.from_iterable(map(documents.list, folders)):
        with suppress(IntegrityError, ObjectNotFound):
            data = documents.get(info.key, MAX_DOCUMENT_BYTES)
            yield info.key, hashlib.sha256(data).hexdigest()
