"""age files for a passphrase that cost no work to open, unlike those of the library, which take seconds each.

Made by the specification, C2SP's age.md: header, scrypt stanza, payload.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_BLOCK = 64 << 10


def _encode(data: bytes) -> bytes:
    return base64.b64encode(data).rstrip(b"=")


def _hkdf(secret: bytes, salt: bytes | None, info: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt, info).derive(secret)


def cheap_passphrase_file(data: bytes, passphrase: str, log_n: int = 2) -> bytes:
    """`data` encrypted with scrypt at a work of 2 to the `log_n`; written into it as `log_n`."""
    salt, file_key, nonce = bytes(range(16)), bytes(range(16, 32)), bytes(16)
    wrapping = hashlib.scrypt(
        passphrase.encode(), salt=b"age-encryption.org/v1/scrypt" + salt, n=1 << min(log_n, 2), r=8, p=1, dklen=32
    )
    wrapped = ChaCha20Poly1305(wrapping).encrypt(bytes(12), file_key, None)
    header = b"age-encryption.org/v1\n-> scrypt %s %d\n%s\n---" % (_encode(salt), log_n, _encode(wrapped))
    mac = hmac.digest(_hkdf(file_key, None, b"header"), header, hashlib.sha256)
    cipher = ChaCha20Poly1305(_hkdf(file_key, nonce, b"payload"))
    blocks = [data[at : at + _BLOCK] for at in range(0, len(data), _BLOCK)] or [b""]
    last = len(blocks) - 1
    payload = [cipher.encrypt(at.to_bytes(11, "big") + bytes([at == last]), one, None) for at, one in enumerate(blocks)]
    return header + b" " + _encode(mac) + b"\n" + nonce + b"".join(payload)
