"""Encryption at rest of a server's store, to read it (nats-server `filestore.go` and `jetstream.go`; 2.10 to 2.15).

    key of an account   HMAC-SHA-256 with the server's key (`jetstream { key }`) of: account name + context
    context             stream: its name · block: `<stream>:<index>` · consumer: `<stream>.<consumer>`
    key file            nonce + AEAD of a random seed of 32 bytes, with the key of the context: `meta.key` of streams
                        and consumers, `<index>.key` of blocks
    meta.inf, index.db, o.dat
                        nonce + AEAD of the content, with the seed of their stream or consumer. The checksum of
                        `index.db` is behind that, and of the encrypted bytes; so is the one in `meta.sum`
    <index>.blk         the content in a stream cipher without authentication: with the seed, and the nonce of the key
                        file, from its first byte on. What it decrypts to is only proved by the checksums in it

ChaCha20-Poly1305 is the one with nonces of 24 bytes (draft-irtf-cfrg-xchacha-03, which has HChaCha20), its stream
cipher XChaCha20 with the counter at 0. AES is AES-256-GCM with nonces of 16 bytes, its stream cipher AES-256-CTR.
Files do not say which cipher they have: the one whose authentication succeeds.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from struct import Struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from jsbackup.errors import FormatError

__all__ = ["AssetKey", "StoreCipher", "StoreKeys"]

_SEED_BYTES = 32
_TAG_BYTES = 16
_WORDS = Struct("<16I")
_HCHACHA_OUT = Struct("<8I")
_CONSTANT = b"expand 32-byte k"
# A quarter round's four words: columns first, then diagonals.
_QUARTERS = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)
_M32 = 0xFFFFFFFF


class StoreCipher(Enum):
    """The ciphers by their names in the server's configuration, with the size of their nonces."""

    CHACHA = "chacha", 24
    AES = "aes", 16

    @property
    def nonce_bytes(self) -> int:
        return self.value[1]


@dataclass(frozen=True, slots=True)
class AssetKey:
    """The key of a stream, a consumer or a block, from its key file."""

    cipher: StoreCipher
    seed: bytes
    nonce: bytes

    def open(self, sealed: bytes) -> bytes:
        """Return an authenticated content. Raises `FormatError` if it is damaged, or of another key."""
        content = _opened(self.cipher, self.seed, sealed)
        if content is None:
            raise FormatError("its encryption does not prove it")
        return content

    def decrypt(self, block: bytes) -> bytes:
        """Return the content of a block, which nothing proves."""
        return _cipher_stream(self.cipher, self.seed, self.nonce).decryptor().update(block)


class StoreKeys:
    """The keys of a server for the assets of one account."""

    def __init__(self, keys: Iterable[bytes], account: str) -> None:
        self._keys: Sequence[bytes] = tuple(keys)
        self._account = account.encode("utf-8", "surrogateescape")

    def __bool__(self) -> bool:
        return bool(self._keys)

    def open(self, key_file: bytes, context: str) -> AssetKey | None:
        """Return the key in a key file, None if none of the server's keys opens it with any cipher."""
        for key in self._keys:
            derived = hmac.digest(key, self._account + context.encode("utf-8", "surrogateescape"), "sha256")
            for cipher in StoreCipher:
                if len(key_file) != cipher.nonce_bytes + _SEED_BYTES + _TAG_BYTES:
                    continue
                seed = _opened(cipher, derived, key_file)
                if seed is not None:
                    return AssetKey(cipher, seed, key_file[: cipher.nonce_bytes])
        return None


def _opened(cipher: StoreCipher, key: bytes, sealed: bytes) -> bytes | None:
    """Return the content of nonce and AEAD, None if it is not authentic."""
    nonce, content = sealed[: cipher.nonce_bytes], sealed[cipher.nonce_bytes :]
    if len(content) < _TAG_BYTES:
        return None
    try:
        if cipher is StoreCipher.AES:
            return AESGCM(key).decrypt(nonce, content, None)
        return ChaCha20Poly1305(_hchacha20(key, nonce[:16])).decrypt(bytes(4) + nonce[16:], content, None)
    except InvalidTag:
        return None


def _cipher_stream(cipher: StoreCipher, seed: bytes, nonce: bytes) -> Cipher[modes.CTR] | Cipher[None]:
    if cipher is StoreCipher.AES:
        return Cipher(algorithms.AES(seed), modes.CTR(nonce))
    # Here the nonce of ChaCha20 begins with the counter of 32 bits.
    return Cipher(algorithms.ChaCha20(_hchacha20(seed, nonce[:16]), bytes(8) + nonce[16:]), None)


def _hchacha20(key: bytes, nonce: bytes) -> bytes:
    """Derive the key for the last 8 bytes of a nonce of 24 from the key and the first 16."""
    words = list(_WORDS.unpack(_CONSTANT + key + nonce))
    for _ in range(10):
        for a, b, c, d in _QUARTERS:
            words[a] = words[a] + words[b] & _M32
            words[d] = _turned(words[d] ^ words[a], 16)
            words[c] = words[c] + words[d] & _M32
            words[b] = _turned(words[b] ^ words[c], 12)
            words[a] = words[a] + words[b] & _M32
            words[d] = _turned(words[d] ^ words[a], 8)
            words[c] = words[c] + words[d] & _M32
            words[b] = _turned(words[b] ^ words[c], 7)
    return _HCHACHA_OUT.pack(*words[:4], *words[12:])


def _turned(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _M32
