"""Signatures of documents (Ed25519) and derived secrets (HKDF), with `cryptography`.

It is imported where it is used: plain repositories have no signatures, and every command imports this module.

A signed document is its bytes, which end with a newline, and one more line:

    {"signature":"<128 hex digits>","signer":"<64 hex digits: the public key>"}

What is signed is not the document itself but these four lines, each with a newline at its end:

    jsbackup document 1
    <id of the repository>
    <key of the document, without the suffix of encryption>
    <SHA-256 of the document in hex>

So a signature is bound to its document: for the same bytes under another key, or in another repository, it is invalid.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from jsbackup.errors import IntegrityError
from jsbackup.repository import layout
from jsbackup.stores.base import Data

__all__ = [
    "SIGNATURE_BYTES",
    "Signatory",
    "SignedDocument",
    "Signers",
    "claimed_signer",
    "derive",
    "read_signed",
    "sign_document",
]

# Every signed document ends with this many bytes.
_TAIL = re.compile(rb'\{"signature":"([0-9a-f]{128})","signer":"([0-9a-f]{64})"\}\n')
SIGNATURE_BYTES = 221


class Signatory:
    """A signer, who has the 32 secret bytes `seed`. `public` is the public key, 64 hex digits."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self._key.public_key().public_bytes_raw().hex()

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


@dataclass(frozen=True, slots=True)
class SignedDocument:
    """A document whose signature is valid. Whether `signer` may sign it is not checked yet."""

    data: bytes
    signer: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, slots=True)
class Signers:
    """Who may sign in the repository `repository`.

    `replaced` has the writers that were replaced. Their signatures are valid for the documents that existed then:
    document key → SHA-256 of the document.
    """

    repository: str
    current: frozenset[str] = frozenset()
    replaced: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def read(self, key: str, data: bytes) -> bytes:
        """Return the document in `data`. Raises `IntegrityError` unless someone who may sign has signed it as
        `key`.
        """
        document = read_signed(self.repository, key, data)
        if document.signer in self.current:
            return document.data
        if document.signer not in self.replaced:
            raise IntegrityError(
                f"{key} is signed by a key that does not belong to this repository, or whose "
                f"{layout.writer_key(document.signer)} is missing or damaged",
                hint="'jsbackup repair --from COPY' puts that object back from a copy of the repository.",
            )
        if self.replaced[document.signer].get(key) != document.sha256:
            raise IntegrityError(f"{key} is signed by a key that had been replaced before: {document.signer}")
        return document.data


def sign_document(signatory: Signatory, repository: str, key: str, data: Data) -> bytes:
    """Return `data` with its signature. It must end with a newline, as JSON documents do here."""
    whole = bytes(data)
    assert whole.endswith(b"\n"), "a signature is a line of its own"
    signature = signatory.sign(_statement(repository, key, whole)).hex()
    return whole + f'{{"signature":"{signature}","signer":"{signatory.public}"}}\n'.encode()


def read_signed(repository: str, key: str, data: bytes) -> SignedDocument:
    """Return the document in `data`, if anybody at all has signed it as `key`. Raises `IntegrityError`."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    match = _TAIL.fullmatch(data, max(0, len(data) - SIGNATURE_BYTES))
    if match is None:
        raise IntegrityError(f"{key} is not signed, or damaged")
    document = data[: match.start()]
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(match[2].decode()))
        public.verify(bytes.fromhex(match[1].decode()), _statement(repository, key, document))
    except (InvalidSignature, ValueError):
        raise IntegrityError(
            f"{key} is not what was signed: it was changed, or put under this name by someone else"
        ) from None
    return SignedDocument(document, match[2].decode())


def claimed_signer(tail: bytes) -> str | None:
    """Return who claims to have signed a document that ends with these `SIGNATURE_BYTES`; nothing is checked."""
    match = _TAIL.fullmatch(tail)
    return match[2].decode() if match else None


def _statement(repository: str, key: str, data: bytes) -> bytes:
    return f"jsbackup document 1\n{repository}\n{key}\n{hashlib.sha256(data).hexdigest()}\n".encode()


def derive(secret: bytes, info: str) -> bytes:
    """Derive 32 bytes from a secret: HKDF with SHA-256 (RFC 5869), no salt."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length=32, salt=None, info=info.encode()).derive(secret)
