"""age files that are encrypted with a passphrase, decrypted by the specification (C2SP's age.md).

pyrage measures at each run how fast the machine is just then, and refuses a file that would take it 16 times as long as
one that it would make: whoever restores on a small or a busy machine would be refused their own key. Here a file may
ask for as much as the `age` command allows.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final

from jsbackup.errors import FormatError, KeyUnavailable

__all__ = ["ARMOR", "decrypt_passphrase_file", "is_passphrase_file"]

ARMOR: Final = b"-----BEGIN AGE ENCRYPTED FILE-----"
_ARMOR_END: Final = b"-----END AGE ENCRYPTED FILE-----"
_BEGINNING: Final = b"age-encryption.org/v1\n-> scrypt "

# The only stanza: 16 bytes of salt, the work as a power of two, and the file's key of 16 bytes, encrypted.
_HEADER: Final = re.compile(
    rb"(age-encryption\.org/v1\n-> scrypt ([\w+/]{22}) ([1-9]\d?)\n([\w+/]{43})\n---) ([\w+/]{43})\n", re.ASCII
)
_SALT_LABEL: Final = b"age-encryption.org/v1/scrypt"
_NONCE_BYTES: Final = 16
_CHUNK_BYTES: Final = (64 << 10) + 16

# The bound of the `age` command: 4 GiB of memory, and some 15 s.
_MOST_WORK: Final = 22


def is_passphrase_file(data: bytes) -> bool:
    """Return whether this is an age file encrypted with a passphrase."""
    try:
        return _binary(data).startswith(_BEGINNING)
    except binascii.Error:
        return False


def decrypt_passphrase_file(data: bytes, passphrase: str, what: str) -> bytes:
    """Decrypt with a passphrase; `what` names the file in errors.

    Raises `KeyUnavailable` if the passphrase is wrong, or this machine lacks the memory that the file asks for;
    `FormatError` if the file is damaged or asks for too much work. A damaged stanza looks like a wrong passphrase.
    """
    try:
        data = _binary(data)
        found = _HEADER.match(data)
        if found is None:
            raise FormatError(f"{what} is damaged, or no age file for a passphrase")
        header, salt, work, wrapped, mac = found[1], _decode(found[2]), int(found[3]), _decode(found[4]), found[5]
        checked = _decode(mac)
    except binascii.Error:
        raise FormatError(f"{what} is damaged: its header is not base64") from None
    if work > _MOST_WORK:
        raise FormatError(f"{what} is damaged, or asks for too much work: 2^{work}, and at most 2^{_MOST_WORK} is done")
    file_key = _open(_stretched(passphrase, salt, work, what), bytes(12), wrapped)
    if file_key is None:
        raise KeyUnavailable(f"the passphrase does not open {what}")
    if not hmac.compare_digest(hmac.digest(_derived(file_key, b"", b"header"), header, hashlib.sha256), checked):
        raise FormatError(f"{what} is damaged: its header is not what was written")
    return _content(data[found.end() :], file_key, what)


def _content(sealed: bytes, file_key: bytes, what: str) -> bytes:
    nonce, sealed = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    key = _derived(file_key, nonce, b"payload")
    chunks = [sealed[at : at + _CHUNK_BYTES] for at in range(0, len(sealed), _CHUNK_BYTES)]
    content = []
    for number, chunk in enumerate(chunks):
        is_last = number == len(chunks) - 1
        opened = _open(key, number.to_bytes(11, "big") + bytes([is_last]), chunk)
        if opened is None or (not opened and number):
            break
        content.append(opened)
    if len(content) < max(len(chunks), 1):
        raise FormatError(f"{what} is damaged or cut off")
    return b"".join(content)


def _stretched(passphrase: str, salt: bytes, work: int, what: str) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    try:
        return Scrypt(salt=_SALT_LABEL + salt, length=32, n=1 << work, r=8, p=1).derive(passphrase.encode())
    except MemoryError:
        raise KeyUnavailable(f"to open {what} takes {1 << work >> 10} MiB of memory, which are not free") from None


def _derived(secret: bytes, salt: bytes, info: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length=32, salt=salt, info=info).derive(secret)


def _open(key: bytes, nonce: bytes, sealed: bytes) -> bytes | None:
    """Return what was sealed; None if it was not sealed so."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(nonce, sealed, None)
    except InvalidTag:
        return None


def _binary(data: bytes) -> bytes:
    """Return a file without its armour, if it has one. Raises binascii.Error."""
    if not data.startswith(ARMOR):
        return data
    lines = data.split()
    begin = len(ARMOR.split())
    end = len(_ARMOR_END.split())
    if lines[-end:] != _ARMOR_END.split():
        raise binascii.Error("the armour has no end")
    return base64.b64decode(b"".join(lines[begin:-end]), validate=True)


def _decode(text: bytes) -> bytes:
    """Decode base64 without padding, whose unused bits must be zero. Raises binascii.Error."""
    data = base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    if base64.b64encode(data).rstrip(b"=") != text:
        raise binascii.Error("not the only form of these bytes")
    return data
