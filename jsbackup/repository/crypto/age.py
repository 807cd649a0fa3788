"""age, the encryption format of `age-encryption.org/v1`, with pyrage. The only module that uses the library.

An age file has a header, with one stanza for each recipient that holds the file's key, and the content in authenticated
blocks of 64 KiB. Decrypting never expands it. Errors are distinct: no stanza is for a given identity
(`KeyUnavailable`), or the file is damaged (`FormatError`). Files for a passphrase are opened by `keys.py`.

No error message of this module repeats its input: users may have passed a secret in place of a public key.

The public part of an SSH private key, with `cryptography`; pyrage does not tell it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyrage
from pyrage import passphrase as _passphrase
from pyrage import ssh, x25519

from jsbackup.errors import FormatError, KeyUnavailable, UsageError
from jsbackup.formats.paged import PagedFile
from jsbackup.stores.base import Data

__all__ = [
    "Identity",
    "Recipient",
    "age_identity",
    "decrypt",
    "encrypt",
    "encrypt_content",
    "encrypt_with_passphrase",
    "parse_identities",
    "parse_recipient",
    "random_identity",
]


def ssh_public_key(private: bytes) -> str | None:
    """Return the public key of a private one without passphrase, as `ssh-ed25519 …` or `ssh-rsa …`. `private` is the
    content of a file as OpenSSH writes it now, or in PEM. None if that cannot be read.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_private_key,
        load_ssh_private_key,
    )

    load = load_ssh_private_key if private.startswith(b"-----BEGIN OPENSSH ") else load_pem_private_key
    try:
        return load(private, None).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None


_SSH_KEY = "-----BEGIN "
_SECRET = "AGE-SECRET-KEY-1"
# The library's message if no stanza is for any of the identities; a test checks it.
_NO_MATCH = "No matching keys found"

# More than a header and 16 bytes for each block of 64 KiB.
_ROOM_BYTES = 1 << 20

_BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"


@dataclass(frozen=True, slots=True)
class Recipient:
    """Someone who can read. `label` names it in a key of the store: the recipient itself, or an SSH key's
    fingerprint.
    """

    label: str
    key: Any


@dataclass(frozen=True, slots=True, repr=False)
class Identity:
    """A private key. `text` is the secret itself, None for an SSH key; `recipient` is its public part, None if that is
    not known, as may be of an SSH key.
    """

    key: Any
    text: str | None = None
    recipient: Recipient | None = None


def age_identity(seed: bytes) -> Identity:
    """Return the X25519 identity made from 32 secret bytes."""
    return _x25519(_bech32("age-secret-key-", seed).upper())


def random_identity() -> Identity:
    """Return an identity for this process only."""
    return _x25519(str(x25519.Identity.generate()))


def _x25519(text: str) -> Identity:
    try:
        key = x25519.Identity.from_str(text)
    except pyrage.IdentityError:
        raise UsageError("the age identity is damaged", hint="It has 74 characters, AGE-SECRET-KEY-1 first.") from None
    public = key.to_public()
    return Identity(key, str(key), Recipient(str(public), public))


def parse_recipient(text: str) -> Recipient:
    """Parse `age1…`, or an SSH public key as `ssh-ed25519 …` or `ssh-rsa …`. Raises `UsageError` for anything else."""
    text = text.strip()
    try:
        if text.startswith(("ssh-ed25519 ", "ssh-rsa ")):
            kind, blob, *_ = text.split()
            digest = hashlib.sha256(base64.b64decode(blob, validate=True)).hexdigest()
            return Recipient(f"{kind}-{digest[:16]}", ssh.Recipient.from_str(text))
        public = x25519.Recipient.from_str(text)
    except (pyrage.RecipientError, ValueError):
        hint = (
            "A recipient is the age1… that age-keygen prints, or an SSH public key of type ssh-ed25519 or ssh-rsa; or "
            "name a file of them."
        )
        if text.upper().startswith(_SECRET):
            hint = "This is a secret identity. Give its public part, as `age-keygen -y` prints it."
        raise UsageError("not an age recipient", hint=hint) from None
    return Recipient(text, public)


def parse_identities(text: str, what: str) -> list[Identity]:
    """Parse the identities of an age identity file (one a line, `#` begins a comment), or an SSH private key.

    `what` names the file's role in errors. Raises `UsageError` if there is no identity, or one that cannot be used.
    """
    if text.lstrip().startswith(_SSH_KEY):
        return [_ssh_identity(text.lstrip(), what)]
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if any(line.startswith("AGE-PLUGIN-") for line in lines):
        raise UsageError(f"the {what} is for a plugin of age, which jsbackup does not run")
    if not lines or not all(line.upper().startswith(_SECRET) for line in lines):
        raise UsageError(
            f"the {what} holds no identity", hint="An identity is the AGE-SECRET-KEY-1… that age-keygen makes."
        )
    return [_x25519(line) for line in lines]


def _ssh_identity(text: str, what: str) -> Identity:
    try:
        return Identity(ssh.Identity.from_buffer(text.encode()), recipient=_ssh_recipient(text.encode()))
    except pyrage.IdentityError as error:
        hint = "Take an age identity." if "must be decrypted" in str(error) else "It has to be an ed25519 or RSA key."
        reason = "is an SSH key with a passphrase" if "must be decrypted" in str(error) else "is not a usable SSH key"
        raise UsageError(f"the {what} {reason}", hint=hint) from None


def _ssh_recipient(private: bytes) -> Recipient | None:
    public = ssh_public_key(private)
    try:
        return None if public is None else parse_recipient(public)
    except UsageError:  # of a kind that age does not know
        return None


def encrypt(data: Data, recipients: Sequence[Recipient]) -> bytes:
    """Encrypt `data` for all of `recipients`. Holds both in memory."""
    sealed: bytes = pyrage.encrypt(bytes(data), [recipient.key for recipient in recipients])
    return sealed


def encrypt_content(data: Data, recipients: Sequence[Recipient]) -> memoryview:
    """Encrypt large `data` without a copy, into memory that is returned to the system at once."""
    sealed = PagedFile(memoryview(data).nbytes + _ROOM_BYTES)
    pyrage.encrypt_io(_Reader(data), sealed, [recipient.key for recipient in recipients])
    return sealed.content()


class _Reader:
    """Reads bytes as the library asks for them, a few KiB at a time."""

    def __init__(self, data: Data) -> None:
        self._rest = memoryview(data).cast("B")

    def read(self, size: int) -> bytes:
        piece, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return piece


def decrypt(data: bytes, identities: Sequence[Identity], what: str) -> bytes:
    """Decrypt an age file.

    Raises `KeyUnavailable` if it is for none of `identities`, `FormatError` if it is damaged or not an age file.
    """
    try:
        opened: bytes = pyrage.decrypt(data, [identity.key for identity in identities])
    except pyrage.DecryptError as error:
        raise _wrong(error, what) from None
    return opened


def encrypt_with_passphrase(data: bytes, passphrase: str) -> bytes:
    """Encrypt with a passphrase. Takes a second or two, which makes guessing slow."""
    sealed: bytes = _passphrase.encrypt(data, passphrase)
    return sealed


def _wrong(error: pyrage.DecryptError, what: str) -> KeyUnavailable | FormatError:
    if str(error) == _NO_MATCH:
        return KeyUnavailable(f"{what} is encrypted for other keys")
    return FormatError(f"{what} is damaged or not an age file: {' '.join(str(error).split())[:100]}")


def _bech32(prefix: str, data: bytes) -> str:
    """Encode as Bech32 (BIP 173), the form of age's keys."""
    bits = "".join(f"{byte:08b}" for byte in data)
    bits += "0" * (-len(bits) % 5)
    values = [int(bits[at : at + 5], 2) for at in range(0, len(bits), 5)]
    expanded = [ord(c) >> 5 for c in prefix] + [0] + [ord(c) & 31 for c in prefix]
    check = 1
    for value in [*expanded, *values, *bytes(6)]:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ value
        for bit, generator in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            check ^= generator if top >> bit & 1 else 0
    check ^= 1
    values += [check >> 5 * (5 - at) & 31 for at in range(6)]
    return f"{prefix}1{''.join(_BECH32[value] for value in values)}"
