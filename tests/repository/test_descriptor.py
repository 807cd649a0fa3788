from __future__ import annotations

from typing import Any

import pytest

from jsbackup.errors import FormatError, UnsupportedError
from jsbackup.repository.crypto import age
from jsbackup.repository.descriptor import Descriptor, decode_descriptor, encode_descriptor
from jsbackup.repository.document import encode_document
from tests.harness.backups import CREATED, FIRST

IDENTITY = age.age_identity(bytes(32))
assert IDENTITY.recipient is not None
RECIPIENT = IDENTITY.recipient.label
SIGNED = {"scheme": "ed25519", "authority": "0a" * 32}
ENCRYPTED = {"scheme": "age", "recipient": RECIPIENT}


@pytest.mark.parametrize(
    ("authority", "recipient", "features"),
    [(None, None, []), ("0a" * 32, None, ["signatures"]), ("0a" * 32, RECIPIENT, ["encryption", "signatures"])],
)
def test_a_descriptor_says_what_it_takes_to_read_the_repository(
    authority: str | None, recipient: str | None, features: list[str]
) -> None:
    descriptor = Descriptor("00ff", CREATED, "t", authority, recipient)
    data = encode_descriptor(descriptor)
    assert decode_descriptor(data) == descriptor
    assert all(f'"{feature}"' in data.decode() for feature in features)
    assert ("signatures" in data.decode()) == bool(features)


@pytest.mark.parametrize(
    ("features", "fields"),
    [
        (["signatures"], {}),
        ([], {"signatures": SIGNED}),
        (["signatures"], {"signatures": []}),
        (["signatures"], {"signatures": SIGNED | {"authority": "x"}}),
        (["signatures"], {"signatures": SIGNED | {"scheme": 1}}),
        (["encryption"], {"encryption": ENCRYPTED}),
        (["encryption", "signatures"], {"signatures": SIGNED}),
        (["signatures"], {"signatures": SIGNED, "encryption": ENCRYPTED}),
        (["encryption", "signatures"], {"signatures": SIGNED, "encryption": ENCRYPTED | {"recipient": "age1"}}),
        (["encryption", "signatures"], {"signatures": SIGNED, "encryption": ENCRYPTED | {"recipient": None}}),
    ],
)
def test_a_descriptor_that_contradicts_itself_is_refused(features: list[str], fields: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="repository descriptor"):
        decode_descriptor(_document(features, fields))


@pytest.mark.parametrize(
    "fields", [{"id": FIRST}, {"id": ""}, {"id": "0" * 66}, {"id": 7}, {"created": "yesterday"}], ids=str
)
def test_another_document_is_no_descriptor(fields: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="repository descriptor"):
        decode_descriptor(_document([], fields))


def test_another_scheme_takes_a_later_tool() -> None:
    with pytest.raises(UnsupportedError, match="unknown scheme 'ed448'"):
        decode_descriptor(_document(["signatures"], {"signatures": SIGNED | {"scheme": "ed448"}}))


def _document(features: list[str], fields: dict[str, Any]) -> bytes:
    whole = {"format": 1, "required_features": features, "id": "00ff", "created": CREATED, "tool": "t", **fields}
    return encode_document(whole, "repository descriptor")
