"""Key files: written and read back, and what is no key file is refused in one sentence."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.transforms.obfuscate.names import ObfuscatedNames, decode_keys, encode_keys

SECRET = bytes(range(32))
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80)


@given(tokens=st.sets(texts, max_size=20), secret=st.binary(min_size=32, max_size=32))
def test_what_is_written_is_read(tokens: set[str], secret: bytes) -> None:
    read = decode_keys(encode_keys(ObfuscatedNames(secret, tokens)), "key file")
    assert (read.secret, read.hashes.keys()) == (secret, tokens)


def test_a_token_that_is_no_text_is_hashed_and_not_listed() -> None:
    names = ObfuscatedNames(SECRET)
    names.token(b"\xff\xfe".decode("utf-8", "surrogateescape"))
    assert json.loads(encode_keys(names))["map"] == {}


DAMAGED: dict[str, Any] = {
    "no JSON": b"{",
    "a list": [],
    "no version": {"secret": "x", "map": {}},
    "another version": {"version": 2},
    "a version that is true": {"version": True},
    "no secret": {"version": 1, "map": {}},
    "a short secret": {"version": 1, "secret": base64.b64encode(b"short").decode(), "map": {}},
    "no base64": {"version": 1, "secret": "!" * 44, "map": {}},
    "a map of numbers": {"version": 1, "secret": base64.b64encode(SECRET).decode(), "map": {"x": 1}},
    "a list as map": {"version": 1, "secret": base64.b64encode(SECRET).decode(), "map": []},
    "a foreign entry": {"version": 1, "secret": base64.b64encode(SECRET).decode(), "map": {"x" * 16: "CLEARNAME"}},
    "an empty name": {"version": 1, "secret": base64.b64encode(SECRET).decode(), "map": {"x" * 16: ""}},
}


@pytest.mark.parametrize("value", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_refused(value: Any) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    with pytest.raises(FormatError) as refused:
        decode_keys(data, "key file k")
    assert refused.value.exit_code == 14
    assert "key file k" in refused.value.message and "\n" not in refused.value.message
    assert "CLEARNAME" not in refused.value.message


@given(data=st.data())
def test_a_changed_byte_is_refused_or_harmless(data: st.DataObject) -> None:
    written = bytearray(encode_keys(ObfuscatedNames(SECRET, ["ORDERS", "eu"])))
    at = data.draw(st.integers(0, len(written) - 1))
    written[at] = data.draw(st.integers(0, 255))
    try:
        read = decode_keys(bytes(written), "key file")
    except FormatError:
        return
    assert read.secret == SECRET and read.hashes.keys() <= {"ORDERS", "eu"}
