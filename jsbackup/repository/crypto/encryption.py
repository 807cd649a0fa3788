"""How objects and documents are sealed where the repository is encrypted, signed, or both.

Content (segments, pending sets, opaque pieces) is encrypted to the repository's recipient, so that writers cannot read
it; and to an identity of this process, because a backup may have to read what it has just stored. Documents are signed,
then encrypted to the repository's recipient and to that of the secret that writers have. `access.py` has checked the
keys before anything is read: an object that a fitting key does not open is damaged or foreign (`IntegrityError`).
`KeyUnavailable` means that the key was not given.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from functools import lru_cache
from typing import NoReturn

from jsbackup.errors import IntegrityError, KeyUnavailable
from jsbackup.repository import layout
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.access import NEEDS_IDENTITY, NEEDS_WRITER
from jsbackup.repository.crypto.secret import DocumentsSecret
from jsbackup.repository.crypto.signing import SIGNATURE_BYTES, Signatory, Signers, claimed_signer, sign_document
from jsbackup.repository.documents import Envelope
from jsbackup.stores.base import Data

__all__ = ["AgeSealing", "EncryptedEnvelope", "SignedEnvelope"]


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
    """Wraps documents in another envelope, which signs them, then encrypts them. `documents` is None without a key:
    `hint` then says which one to give.
    """

    suffix = layout.SEALED_SUFFIX

    def __init__(
        self, inner: Envelope, recipient: age.Recipient, documents: DocumentsSecret | None, hint: Callable[[], str]
    ) -> None:
        self._inner = inner
        self._hint = hint
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
            raise KeyUnavailable("the repository is encrypted, and no key was given", hint=self._hint())
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
