"""age files for a passphrase: what they hold, and that nothing else opens."""

from __future__ import annotations

import base64

import pytest
from pyrage import passphrase as library

from jsbackup.errors import FormatError, KeyUnavailable
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.keys import ARMOR, decrypt_passphrase_file, is_passphrase_file
from tests.harness.age_files import cheap_passphrase_file

FOR_A_KEY = age.encrypt(b"hello", [age.age_identity(bytes(32)).recipient])  # type: ignore[list-item]


def armoured(data: bytes, width: int = 64, end: str = "\n") -> bytes:
    text = base64.b64encode(data).decode()
    lines = [ARMOR.decode(), *(text[at : at + width] for at in range(0, len(text), width))]
    return (end.join([*lines, "-----END AGE ENCRYPTED FILE-----"]) + end).encode()


@pytest.mark.parametrize("size", [0, 65535, 65536, 200_001])
def test_the_library_opens_the_same_files_to_the_same_bytes(size: int) -> None:
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    sealed = cheap_passphrase_file(data, "pässword")
    assert library.decrypt(sealed, "pässword") == data
    for form in (sealed, armoured(sealed), armoured(sealed, end="\r\n")):
        assert is_passphrase_file(form)
        assert decrypt_passphrase_file(form, "pässword", "it") == data


def test_a_machine_that_is_slow_just_now_opens_them(monkeypatch: pytest.MonkeyPatch) -> None:
    # The library takes a file for too much work by the time that a small one takes just then.
    def refused(*_: object) -> bytes:
        raise AssertionError("Excessive work parameter for passphrase. Decryption would take around 64 seconds.")

    monkeypatch.setattr(library, "decrypt", refused)
    assert decrypt_passphrase_file(cheap_passphrase_file(b"hello", "p"), "p", "it") == b"hello"


def test_another_passphrase_does_not_open_it() -> None:
    sealed = cheap_passphrase_file(b"hello", "correct horse")
    with pytest.raises(KeyUnavailable, match=r"^the passphrase does not open it$"):
        decrypt_passphrase_file(sealed, "battery staple", "it")
    with pytest.raises(KeyUnavailable):
        age.decrypt(sealed, [age.random_identity()], "it")


@pytest.mark.parametrize("size", [5, 70_000])
def test_a_flipped_bit_or_a_missing_end_is_an_error(size: int) -> None:
    sealed = cheap_passphrase_file(bytes(size), "p")
    for at in [*range(min(len(sealed), 220)), *range(220, len(sealed), 3001), len(sealed) - 1]:
        flipped = bytearray(sealed)
        flipped[at] ^= 1 << at % 8
        for damaged in (bytes(flipped), sealed[:at]):
            with pytest.raises((FormatError, KeyUnavailable)):
                decrypt_passphrase_file(damaged, "p", "it")


def test_blocks_that_are_left_out_exchanged_or_added_are_an_error() -> None:
    sealed = cheap_passphrase_file(bytes(200_000), "p")
    block = 65536 + 16
    start = len(sealed) - (200_000 + 4 * 16)
    head, rest = sealed[:start], sealed[start:]
    blocks = [rest[at : at + block] for at in range(0, len(rest), block)]
    empty = cheap_passphrase_file(b"", "p")[-16:]
    for order in (blocks[:-1], blocks[1:], [blocks[1], blocks[0], *blocks[2:]], [*blocks, blocks[0]], [*blocks, empty]):
        with pytest.raises(FormatError, match="it is damaged or cut off"):
            decrypt_passphrase_file(head + b"".join(order), "p", "it")


@pytest.mark.parametrize("work", [23, 99])
def test_a_file_that_asks_for_hours_of_work_is_refused(work: int) -> None:
    with pytest.raises(FormatError, match=f"asks for too much work: 2\\^{work}, "):
        decrypt_passphrase_file(cheap_passphrase_file(b"hello", "p", work), "p", "it")


@pytest.mark.parametrize(
    "data",
    [b"", FOR_A_KEY, ARMOR + b"\n?\n", ARMOR, ARMOR + b"\n?\n-----END AGE ENCRYPTED FILE-----", bytes(1000)],
    ids=["empty", "for a key", "no end", "cut off", "bad armour", "zeros"],
)
def test_what_takes_no_passphrase_is_an_error_of_ours(data: bytes) -> None:
    assert not is_passphrase_file(data)
    with pytest.raises(FormatError):
        decrypt_passphrase_file(data, "p", "it")
