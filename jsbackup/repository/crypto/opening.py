"""What the given keys open in a repository, and whether its descriptor can be trusted.

Like everything else, the descriptor comes from the store. So it is compared with what does not come from the store:

    a writer key        names the repository and its authority, and whether it is encrypted; the writer's record,
                        signed by the authority, names the recipient
    an identity         leads to the repository's secret, and from there to recipient and authority
    an expected signer  is the authority

If they differ, nothing is read or written. A key for a repository that claims to be plain is refused too: a store that
shows a plain repository in place of an encrypted one must not get plain messages.

How objects and documents are sealed where the repository is encrypted, signed, or both.

Content (segments, pending sets, opaque pieces) is encrypted to the repository's recipient, so that writers cannot read
it; and to an identity of this process, because a backup may have to read what it has just stored. Documents are signed,
then encrypted to the repository's recipient and to that of the secret that writers have. `access.py` has checked the
keys before anything is read: an object that a fitting key does not open is damaged or foreign (`IntegrityError`).
`KeyUnavailable` means that the key was not given.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache
from typing import NoReturn

from jsbackup.errors import IntegrityError, KeyUnavailable, UsageError
from jsbackup.repository import layout
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.access import NEEDS_IDENTITY, NEEDS_KEY, NEEDS_WRITER, Access, GivenKeys
from jsbackup.repository.crypto.keys import DocumentsSecret, open_secret
from jsbackup.repository.crypto.signing import (
    SIGNATURE_BYTES,
    Signatory,
    Signers,
    WriterKey,
    claimed_signer,
    load_signers,
    sign_document,
)
from jsbackup.repository.descriptor import Descriptor
from jsbackup.repository.document import BARE, Envelope
from jsbackup.repository.objects import PLAIN
from jsbackup.stores.base import Data, Store

__all__ = ["open_access"]


class AgeSealing:
    """Encrypts content. `names` is None without any key, `identity` without one that reads."""

    suffix = layout.SEALED_SUFFIX

    def __init__(self, recipient: age.Recipient, names: bytes | None, identity: age.Identity | None, *, writes: bool):
        run = age.random_identity()
        assert run.recipient is not None
        self._recipients = [recipient, run.recipient]
        self._identities = [identity or run, run]
        self.reads = identity is not None
        self._names = names
        self._writes = writes
        # As `follow` asks for the same names every two seconds.
        self._hidden = lru_cache(maxsize=1 << 14)(self._hide)

    def name(self, digest: str) -> str:
        return self._hmac(f"digest\0{digest}")

    def folder(self, name: str, incarnation: str) -> str:
        return layout.stream_folder(*self._hidden(name, incarnation))

    def _hide(self, name: str, incarnation: str) -> tuple[str, str]:
        return self._hmac(f"stream\0{name}")[:32], self._hmac(f"incarnation\0{name}\0{incarnation}")[:8]

    def seal(self, data: Data) -> Data:
        if not self._writes:
            _no_writer()
        return age.encrypt_content(data, self._recipients)

    def unseal(self, key: str, data: bytes) -> bytes:
        try:
            return age.decrypt(data, self._identities, f"object {key}")
        except KeyUnavailable:
            if self.reads:
                raise _foreign(f"object {key}") from None
            raise KeyUnavailable(
                f"object {key} is encrypted, and no key that reads messages was given", hint=NEEDS_IDENTITY
            ) from None

    def _hmac(self, text: str) -> str:
        if self._names is None:
            _no_writer()
        return hmac.new(self._names, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


class SignedEnvelope:
    """Signs documents. `signatory` is None if documents cannot be signed; `why` is the reason."""

    suffix = ""

    def __init__(self, signers: Signers, signatory: Signatory | None, why: KeyUnavailable | None = None) -> None:
        self._signers = signers
        self._signatory = signatory
        self._why = why

    def ensure_writable(self) -> None:
        self._signs()

    def wrap(self, key: str, data: Data) -> Data:
        return sign_document(self._signs(), self._signers.repository, key, data)

    def _signs(self) -> Signatory:
        if self._signatory is None:
            raise self._why or KeyUnavailable(
                "what is written to this repository is signed, and no writer key was given", hint=NEEDS_WRITER
            )
        return self._signatory

    def unwrap(self, key: str, data: bytes) -> bytes:
        return self._signers.read(key, data)

    def claimed_signer(self, key: str, data: bytes) -> str | None:
        return claimed_signer(data[-SIGNATURE_BYTES:])


class EncryptedEnvelope:
    """Wraps documents in another envelope, which signs them, then encrypts them. `documents` is None without a key."""

    suffix = layout.SEALED_SUFFIX

    def __init__(self, inner: Envelope, recipient: age.Recipient, documents: DocumentsSecret | None) -> None:
        self._inner = inner
        self._identity = documents.identity if documents else None
        self._recipient = recipient

    def ensure_writable(self) -> None:
        self._inner.ensure_writable()

    def wrap(self, key: str, data: Data) -> Data:
        wrapped = self._inner.wrap(key, data)
        if self._identity is None or self._identity.recipient is None:
            _no_writer()
        return age.encrypt(wrapped, [self._recipient, self._identity.recipient])

    def unwrap(self, key: str, data: bytes) -> bytes:
        if self._identity is None:
            raise KeyUnavailable("the repository is encrypted, and no key was given", hint=NEEDS_KEY)
        return self._inner.unwrap(key, self._opened(key, data, self._identity))

    def claimed_signer(self, key: str, data: bytes) -> str | None:
        if self._identity is None:
            return None
        try:
            return self._inner.claimed_signer(key, self._opened(key, data, self._identity))
        except IntegrityError:
            return None

    def _opened(self, key: str, data: bytes, identity: age.Identity) -> bytes:
        try:
            return age.decrypt(data, [identity], f"{key}{layout.SEALED_SUFFIX}")
        except KeyUnavailable:
            raise _foreign(f"{key}{layout.SEALED_SUFFIX}") from None


def _foreign(what: str) -> IntegrityError:
    return IntegrityError(f"{what} is damaged, or was not encrypted for this repository")


def _no_writer() -> NoReturn:
    raise KeyUnavailable("nothing can be written to this repository without its writer key", hint=NEEDS_WRITER)


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
        return Access(PLAIN, signed)
    recipient = age.parse_recipient(descriptor.recipient)
    documents = secret.documents if secret else _documents(given.writer)
    sealing = AgeSealing(
        recipient,
        None if documents is None else documents.names,
        None if secret is None else secret.identity,
        writes=writer is not None,
    )
    envelope, page_envelope = (EncryptedEnvelope(inner, recipient, documents) for inner in (signed, BARE))
    return Access(sealing, envelope, page_envelope, secret)


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
