"""Status lines are read, and nothing that a peer writes there does harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.protocol.headers import HeaderStatus, parse_status
from jsbackup.readable import one_line


@pytest.mark.parametrize(
    ("block", "status"),
    [
        (b"", None),
        (b"NATS/1.0\r\n\r\n", None),
        (b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n", None),
        (b"NATS/1.0 204\r\n\r\n", HeaderStatus(204, "")),
        (b"NATS/1.0 408 No Interest\r\n\r\n", HeaderStatus(408, "No Interest")),
        (b"NATS/1.0 408 No Flow Response\r\n\r\n", HeaderStatus(408, "No Flow Response")),
        (b"NATS/1.0 500 \r\n\r\n", HeaderStatus(500, "")),
        (b"NATS/1.0 500 read: a\nb\x1b[31m\r\n\r\n", HeaderStatus(500, "read: a b [31m")),
        (b"NATS/1.0 500 \xff\r\n\r\n", HeaderStatus(500, "\ufffd")),
        (b"NATS/1.0 503\r\nNats-Subject: x\r\n\r\n", HeaderStatus(503, "")),
    ],
)
def test_the_status_of_a_block(block: bytes, status: HeaderStatus | None) -> None:
    assert parse_status(block) == status


@pytest.mark.parametrize(
    "block",
    [
        b"NATS/1.0",
        b"NATS/1.0 204",
        b"NATS/2.0 204\r\n\r\n",
        b"HTTP/1.1 204\r\n\r\n",
        b"NATS/1.0 20\r\n\r\n",
        b"NATS/1.0 2040\r\n\r\n",
        b"NATS/1.0 \xb2\xb2\xb2\r\n\r\n",
        b"NATS/1.0 -12\r\n\r\n",
        b"NATS/1.0204\r\n\r\n",
        b"NATS/1.0 500 " + b"x" * 10_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_status_line_is_a_format_error(block: bytes) -> None:
    with pytest.raises(FormatError):
        parse_status(block)


@given(st.one_of(st.binary(max_size=60), st.binary(max_size=40).map(lambda tail: b"NATS/1.0" + tail + b"\r\n\r\n")))
def test_no_block_makes_another_error_than_a_format_error(block: bytes) -> None:
    try:
        status = parse_status(block)
    except FormatError:
        return
    assert status is None or (0 <= status.code <= 999 and status.description.isprintable())


@given(st.text(max_size=400), st.integers(1, 50))
def test_one_line_is_printable_and_bounded(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert line.isprintable() and len(line) <= limit


def test_a_status_reads_as_code_and_text() -> None:
    assert str(HeaderStatus(408, "No Interest")) == "408 No Interest"
    assert str(HeaderStatus(500, "")) == "500"
