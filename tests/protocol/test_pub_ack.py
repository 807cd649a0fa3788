"""Answers to published messages, as servers give them, and what is none."""

from __future__ import annotations

import pytest

from jsbackup.errors import ApiError, FormatError
from jsbackup.protocol.responses import PubAck, decode_ack


def test_an_acknowledgement_says_where_the_message_is() -> None:
    assert decode_ack(b'{"stream":"S","seq":17}', "s.a") == PubAck("S", 17, duplicate=False)
    found = decode_ack(b'{"stream":"S","domain":"hub","seq":3,"duplicate":true}', "s.a")
    assert found == PubAck("S", 3, duplicate=True)


def test_an_error_has_its_code() -> None:
    answer = b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"},"stream":"S","seq":0}'
    with pytest.raises(ApiError, match=r"wrong last sequence: 5 \(10071\)") as raised:
        decode_ack(answer, "s.a")
    assert (raised.value.code, raised.value.err_code) == (400, 10071)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"+OK",
        b"[]",
        b"{}",
        b'{"stream":"S"}',
        b'{"stream":"S","seq":0}',
        b'{"stream":"a b","seq":1}',
        b'{"seq":1}',
    ],
)
def test_anything_else_is_no_acknowledgement(answer: bytes) -> None:
    with pytest.raises(FormatError, match=r"answer to a message on s\.a"):
        decode_ack(answer, "s.a")
