from __future__ import annotations

import hashlib
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import IntegrityError, UsageError
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.keys import DocumentsSecret, RepositorySecret
from jsbackup.repository.crypto.signing import (
    Signatory,
    Signers,
    WriterKey,
    decode_writer_key,
    encode_writer_key,
    sign_document,
)

KEY = "backups/20261121T014500Z-000001.json"
DATA = b'{"id":"x"}\n'
WRITER = Signatory(bytes(range(32)))
STRANGER = Signatory(bytes(32))
SIGNED = sign_document(WRITER, "00ff", KEY, DATA)
SIGNERS = Signers("00ff", frozenset({WRITER.public}))


def test_a_signature_is_a_line_of_its_own_that_anybody_can_check() -> None:
    document, line = SIGNED.splitlines(keepends=True)
    assert document == DATA
    said = json.loads(line)
    assert said["signer"] == WRITER.public
    statement = f"jsbackup document 1\n00ff\n{KEY}\n{hashlib.sha256(DATA).hexdigest()}\n".encode()
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(said["signer"])).verify(
        bytes.fromhex(said["signature"]), statement
    )


@given(st.binary())
def test_any_document_comes_back(data: bytes) -> None:
    assert SIGNERS.read(KEY, sign_document(WRITER, "00ff", KEY, data + b"\n")) == data + b"\n"


@given(st.binary(max_size=600))
def test_foreign_bytes_are_signed_by_nobody(data: bytes) -> None:
    for foreign in (data, data + SIGNED[-221:]):
        with pytest.raises(IntegrityError):
            SIGNERS.read(KEY, foreign + b"x" if foreign == SIGNED else foreign)


def test_a_flipped_bit_anywhere_is_noticed() -> None:
    for at in range(len(SIGNED)):
        flipped = bytearray(SIGNED)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(IntegrityError, match=KEY):
            SIGNERS.read(KEY, bytes(flipped))


@pytest.mark.parametrize(("repository", "key"), [("00fe", KEY), ("00ff", KEY.replace("1.json", "2.json"))])
def test_a_signature_is_for_one_key_of_one_repository(repository: str, key: str) -> None:
    with pytest.raises(IntegrityError, match="put under this name by someone else"):
        Signers(repository, frozenset({WRITER.public})).read(key, SIGNED)


def test_a_stranger_signs_nothing() -> None:
    with pytest.raises(IntegrityError, match="does not belong to this repository"):
        SIGNERS.read(KEY, sign_document(STRANGER, "00ff", KEY, DATA))


def test_a_key_that_was_replaced_counts_for_what_there_was() -> None:
    signers = Signers("00ff", frozenset(), {WRITER.public: {KEY: hashlib.sha256(DATA).hexdigest()}})
    assert signers.read(KEY, SIGNED) == DATA
    for key, data in ((KEY, b"{}\n"), (KEY.replace("1.json", "0.json"), DATA)):
        with pytest.raises(IntegrityError, match="had been replaced before"):
            signers.read(key, sign_document(WRITER, "00ff", key, data))


# --- what comes from what ---


def test_derived_secrets_are_those_of_rfc_5869() -> None:
    secret = RepositorySecret(age.age_identity(bytes(range(32))))
    assert secret.identity.text is not None

    def hkdf(value: bytes, name: str) -> bytes:
        return HKDF(SHA256(), 32, None, f"jsbackup 1 {name}".encode()).derive(value)

    text = secret.identity.text.encode()
    assert secret.authority.public == Signatory(hkdf(text, "authority")).public
    assert secret.documents.value == hkdf(text, "documents")
    assert secret.documents.names == hkdf(secret.documents.value, "names")
    assert secret.documents.identity.text == age.age_identity(hkdf(secret.documents.value, "identity")).text


def test_secrets_are_not_in_a_repr() -> None:
    secret = RepositorySecret(age.age_identity(bytes(range(32))))
    key = WriterKey("00ff", WRITER.public, secret.documents.value, bytes(32))
    for one in (secret, secret.documents, secret.identity, key, DocumentsSecret(bytes(32)), WRITER):
        assert "AGE-SECRET" not in repr(one) and "\\x" not in repr(one)


# --- the writer key ---

KEYS = [
    WriterKey("00ff", WRITER.public, bytes(range(32)), bytes(32)),
    WriterKey("a-Z9", WRITER.public, None, b"\xff" * 32),
]


@pytest.mark.parametrize("key", KEYS)
def test_a_writer_key_is_one_line_beside_comments(key: WriterKey) -> None:
    text = encode_writer_key(key)
    assert text.count("\n") == 2 and text.isascii()
    assert decode_writer_key(text, "writer key") == key
    assert decode_writer_key(f"# mine\n\n  {text.splitlines()[1]}\r\n", "writer key") == key


def test_a_slip_in_a_writer_key_is_noticed() -> None:
    line = encode_writer_key(KEYS[0]).splitlines()[1]
    for at in range(len(line)):
        for other in ("0", "1", ""):
            wrong = line[:at] + other + line[at + 1 :]
            if wrong != line:
                with pytest.raises(UsageError) as caught:
                    decode_writer_key(wrong, "writer key")
                assert line[90:110] not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize(
    "text", ["", "# no key\n", "AGE-SECRET-KEY-1QQQ", "SUAML", "a\nb", "\ud800", "jsbackup-writer-2:x"]
)
def test_another_file_is_no_writer_key(text: str) -> None:
    with pytest.raises(UsageError, match=r"^the writer key is"):
        decode_writer_key(text, "writer key")
