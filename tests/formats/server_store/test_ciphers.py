"""Encryption at rest. That real servers encrypt so is shown by `tests/exchange/server_store/test_damage.py`."""

from __future__ import annotations

import hmac
import os

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from jsbackup.errors import FormatError
from jsbackup.formats.server_store import ciphers
from jsbackup.formats.server_store.ciphers import AssetKey, StoreCipher, StoreKeys

KEY, ACCOUNT, CONTEXT = b"secret of the server", "$G", "ORDERS:17"


def sealed(cipher: StoreCipher, key: bytes, content: bytes) -> bytes:
    """Nonce and AEAD, made the other way round."""
    nonce = os.urandom(cipher.nonce_bytes)
    if cipher is StoreCipher.AES:
        return nonce + AESGCM(key).encrypt(nonce, content, None)
    derived = ciphers._hchacha20(key, nonce[:16])
    return nonce + ChaCha20Poly1305(derived).encrypt(bytes(4) + nonce[16:], content, None)


def test_the_derivation_is_that_of_the_draft() -> None:
    """draft-irtf-cfrg-xchacha-03, 2.2.1."""
    nonce = bytes.fromhex("000000090000004a0000000031415927")
    derived = ciphers._hchacha20(bytes(range(32)), nonce)
    assert derived.hex() == "82413b4227b27bfed30e42508a877d73a0f9e4d58a74a853c12ec41326d3ecdc"


def test_the_key_stream_is_that_of_the_draft() -> None:
    """draft-irtf-cfrg-xchacha-03, A.2.1, whose counter begins with 0."""
    key = bytes(range(0x80, 0xA0))
    nonce = bytes.fromhex("404142434445464748494a4b4c4d4e4f5051525354555658")
    text = b'The dhole (pronounced "dole") is also known as the Asiatic wild dog, red dog, and whistling dog.'
    found = AssetKey(StoreCipher.CHACHA, key, nonce).decrypt(text)
    assert found.hex().startswith("4559abba4e48c16102e8bb2c05e6947f50a786de162f9b0b7e592a9b53d0d4e9")


@pytest.mark.parametrize("cipher", StoreCipher)
def test_a_key_file_is_opened_with_the_key_account_and_context_it_was_made_for(cipher: StoreCipher) -> None:
    seed = os.urandom(32)
    file = sealed(cipher, hmac.digest(KEY, (ACCOUNT + CONTEXT).encode(), "sha256"), seed)
    found = StoreKeys([b"another one", KEY], ACCOUNT).open(file, CONTEXT)
    assert found == AssetKey(cipher, seed, file[: cipher.nonce_bytes])
    assert StoreKeys([b"another one"], ACCOUNT).open(file, CONTEXT) is None
    assert StoreKeys([KEY], "ACME").open(file, CONTEXT) is None
    assert StoreKeys([KEY], ACCOUNT).open(file, "ORDERS:18") is None
    assert StoreKeys([], ACCOUNT).open(file, CONTEXT) is None
    for size in range(len(file)):
        assert StoreKeys([KEY], ACCOUNT).open(file[:size], CONTEXT) is None
        changed = file[:size] + bytes([file[size] ^ 1]) + file[size + 1 :]
        assert StoreKeys([KEY], ACCOUNT).open(changed, CONTEXT) is None


@pytest.mark.parametrize("cipher", StoreCipher)
def test_a_content_proves_itself(cipher: StoreCipher) -> None:
    seed = os.urandom(32)
    key = AssetKey(cipher, seed, os.urandom(cipher.nonce_bytes))
    file = sealed(cipher, seed, b"the content")
    assert key.open(file) == b"the content"
    for size in range(len(file)):
        with pytest.raises(FormatError):
            key.open(file[:size])
        with pytest.raises(FormatError):
            key.open(file[:size] + bytes([file[size] ^ 0x80]) + file[size + 1 :])


@pytest.mark.parametrize("cipher", StoreCipher)
def test_a_block_is_decrypted_from_its_first_byte_on(cipher: StoreCipher) -> None:
    key = AssetKey(cipher, os.urandom(32), os.urandom(cipher.nonce_bytes))
    content = os.urandom(5000)
    block = key.decrypt(content)
    assert block != content and key.decrypt(block) == content
    assert key.decrypt(block[:1234]) == content[:1234]
