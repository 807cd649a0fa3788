"""What the given keys open in a repository, and whether its descriptor can be trusted.

Like everything else, the descriptor comes from the store. So it is compared with what does not come from the store:

    a writer key        names the repository and its authority, and whether it is encrypted; the writer's record,
                        signed by the authority, names the recipient
    an identity         leads to the repository's secret, and from there to recipient and authority
    an expected signer  is the authority

If they differ, nothing is read or written. A key for a repository that claims to be plain is refused too: a store that
shows a plain repository in place of an encrypted one must not get plain messages.
"""

from __future__ import annotations

from functools import cache, partial

from jsbackup.errors import IntegrityError, KeyUnavailable, UsageError
from jsbackup.repository import layout
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.access import Access, GivenKeys
from jsbackup.repository.crypto.encryption import AgeSealing, EncryptedEnvelope, SignedEnvelope
from jsbackup.repository.crypto.keys import hint_of_keys, open_secret
from jsbackup.repository.crypto.sealing import PLAIN
from jsbackup.repository.crypto.secret import DocumentsSecret
from jsbackup.repository.crypto.signing import Signers
from jsbackup.repository.crypto.writer_key import WriterKey
from jsbackup.repository.crypto.writers import load_signers
from jsbackup.repository.descriptor import Descriptor
from jsbackup.repository.documents import BARE
from jsbackup.stores.base import Store

__all__ = ["open_access"]


def open_access(store: Store, descriptor: Descriptor, given: GivenKeys) -> Access:
    """Return what `given` opens. Reading without the needed key raises `KeyUnavailable` later.

    Raises:
        KeyUnavailable: a given key belongs to another repository.
        IntegrityError: the descriptor is not what the keys say it should be.
        UsageError: an identity was given for a plain repository.
        StoreError: the store does not answer.
    """
    _believe(descriptor, given)
    if descriptor.authority is None:
        return Access()
    secret = open_secret(store, descriptor, given) if descriptor.recipient and given.reads else None
    signers = load_signers(store, descriptor)
    why = None if given.writer is None else _why_not(given.writer, signers)
    writer = given.writer if why is None else None
    signatory = None if writer is None else writer.signatory
    signed = SignedEnvelope(signers, signatory, why)
    if descriptor.recipient is None:
        return Access(PLAIN, signed, signers=signers, signatory=signatory)
    recipient = age.parse_recipient(descriptor.recipient)
    documents = secret.documents if secret else _documents(given.writer)
    sealing = AgeSealing(
        recipient,
        None if documents is None else documents.names,
        None if secret is None else secret.identity,
        writes=writer is not None,
    )
    hint = cache(partial(hint_of_keys, store, descriptor))  # many documents may be tried, and it lists the store
    envelope, page_envelope = (EncryptedEnvelope(inner, recipient, documents, hint) for inner in (signed, BARE))
    return Access(sealing, envelope, page_envelope, secret, signers, signatory)


def _believe(descriptor: Descriptor, given: GivenKeys) -> None:
    writer = given.writer
    if writer is not None and writer.repository != descriptor.id:
        raise KeyUnavailable(
            f"the writer key is that of the repository {writer.repository}, and this one is {descriptor.id[:64]}",
            hint="Give the key that was made with this repository.",
        )
    expected = {given.expect_signer, writer.authority if writer else None} - {None}
    if expected - {descriptor.authority}:
        raise IntegrityError(
            f"{layout.DESCRIPTOR} names another authority for signatures than the one expected",
            hint="Do not write to it or restore from it before you know why.",
        )
    if writer is not None and (writer.documents is None) != (descriptor.recipient is None):
        raise IntegrityError(f"{layout.DESCRIPTOR} has been replaced: its encryption setting is not the original one")
    if given.reads and descriptor.recipient is None:
        raise UsageError(
            "an identity or a passphrase was given, and the repository is not encrypted",
            hint="If it should not be, leave them out (see JSBACKUP_IDENTITY and JSBACKUP_PASSPHRASE, too).",
        )


def _documents(writer: WriterKey | None) -> DocumentsSecret | None:
    return DocumentsSecret(writer.documents) if writer and writer.documents else None


def _why_not(writer: WriterKey, signers: Signers) -> KeyUnavailable | None:
    """Return why nothing can be signed with this key, None if it can."""
    signer = writer.signatory.public
    if signer in signers.current:
        return None
    if signer in signers.replaced:
        return KeyUnavailable("the writer key has been replaced by another one", hint="Give the new one.")
    return KeyUnavailable(
        f"the repository does not know the writer key: {layout.writer_key(signer)} is missing or damaged",
        hint="Restore the object from a copy with `jsbackup repair --from`. If no copy has it, make a new key with "
        "`jsbackup key replace-writer`; what the lost one has signed stays unreadable.",
    )
