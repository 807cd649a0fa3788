from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyrage import x25519

from jsbackup.errors import FormatError, KeyUnavailable, UsageError
from jsbackup.repository.crypto import age

ME = age.age_identity(bytes(range(32)))
OTHER = age.age_identity(bytes(32))
DATA = bytes(range(256)) * 300  # more than one block


def recipient(identity: age.Identity) -> age.Recipient:
    assert identity.recipient is not None
    return identity.recipient


SEALED = age.encrypt(DATA, [recipient(ME)])


def test_each_recipient_reads_and_nobody_else() -> None:
    sealed = age.encrypt(memoryview(DATA), [recipient(ME), recipient(OTHER)])
    assert DATA[:64] not in sealed
    for identity in (ME, OTHER):
        assert age.decrypt(sealed, [age.random_identity(), identity], "it") == DATA
    with pytest.raises(KeyUnavailable, match="it is encrypted for other keys") as caught:
        age.decrypt(sealed, [age.random_identity()], "it")
    assert caught.value.exit_code == 12


@given(st.binary(max_size=300_000))
@settings(max_examples=30)
def test_any_bytes_come_back(data: bytes) -> None:
    assert age.decrypt(age.encrypt(data, [recipient(ME)]), [ME], "it") == data


def test_a_flipped_bit_anywhere_is_an_error() -> None:
    sealed = age.encrypt(b"hello", [recipient(ME)])
    for at in range(len(sealed)):
        flipped = bytearray(sealed)
        flipped[at] ^= 1 << at % 8
        with pytest.raises((FormatError, KeyUnavailable)):
            age.decrypt(bytes(flipped), [ME], "it")


def test_what_is_cut_anywhere_is_damaged() -> None:
    sealed = age.encrypt(b"hello", [recipient(ME)])
    for length in range(len(sealed)):
        with pytest.raises(FormatError, match=r"^it is damaged or not an age file"):
            age.decrypt(sealed[:length], [ME], "it")
    with pytest.raises(FormatError):
        age.decrypt(SEALED[: -(1 << 14)], [ME], "it")
    with pytest.raises(FormatError):
        age.decrypt(SEALED + b"x", [ME], "it")


# --- identities and recipients ---


def test_an_identity_made_of_bytes_is_one_that_age_knows() -> None:
    for seed in (bytes(32), bytes(range(32)), b"\xff" * 32):
        identity = age.age_identity(seed)
        assert identity.text is not None
        assert identity.text == str(x25519.Identity.from_str(identity.text))
        assert identity.text == str(age.age_identity(seed).text)
    # The test vector of C2SP/CCTV's age: one secret key and its recipient.
    secret = "AGE-SECRET-KEY-1XMWWC06LY3EE5RYTXM9MFLAZ2U56JJJ36S0MYPDRWSVLUL66MV4QX3S7F6"
    (known,) = age.parse_identities(secret, "identity")
    assert recipient(known).label == str(x25519.Identity.from_str(secret).to_public())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "hunter2",
        "AGE-SECRET-KEY-1QQQ",
        "AGE-PLUGIN-YUBIKEY-1QQQ",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n-----END OPENSSH PRIVATE KEY-----\n",
        f"{ME.text}\nhunter2\n",
        "\ud800",
    ],
)
def test_what_is_no_identity_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        age.parse_identities(text, "identity")
    said = f"{caught.value.message} {caught.value.hint}"
    assert "hunter2" not in said and str(ME.text) not in said


@pytest.mark.parametrize(
    "text", ["", "me", "age1", "age1qqq", "ssh-ed25519 AAAA", "ssh-ed25519 ?", "ssh-rsa", "\ud800", "é"]
)
def test_what_is_no_recipient_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^not an age recipient$"):
        age.parse_recipient(text)


def test_a_secret_given_as_a_recipient_is_told_and_not_repeated() -> None:
    assert ME.text is not None
    with pytest.raises(UsageError) as caught:
        age.parse_recipient(ME.text)
    assert "secret identity" in str(caught.value.hint) and ME.text not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(("kind", "bits"), [("ed25519", "256"), ("rsa", "2048")])
def test_ssh_keys_read_too(tmp_path: Path, kind: str, bits: str) -> None:
    file = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-b", bits, "-N", "", "-f", str(file)], check=True)
    public = age.parse_recipient(file.with_suffix(".pub").read_text())
    assert public.label.startswith(f"ssh-{kind}-")
    (identity,) = age.parse_identities(file.read_text(), "identity")
    assert age.decrypt(age.encrypt(b"hello", [public]), [identity], "it") == b"hello"
    assert identity.recipient is not None and identity.recipient.label == public.label
    if kind == "rsa":  # in the older form, too
        subprocess.run(["ssh-keygen", "-q", "-p", "-m", "PEM", "-N", "", "-f", str(file)], check=True)
        assert file.read_text().startswith("-----BEGIN RSA ")
        (identity,) = age.parse_identities(file.read_text(), "identity")
        assert identity.recipient is not None and identity.recipient.label == public.label
