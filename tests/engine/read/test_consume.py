"""What a server delivers, taken apart: positions, flow control, and what only looks like it."""

from __future__ import annotations

import pytest

from jsbackup.engine.read.consume import Row, _row_of, is_control, rows_as_batch
from jsbackup.errors import FormatError, TransferError
from jsbackup.formats.batch import BATCH_SCHEMA, BINARY_SUBJECT_SCHEMA
from jsbackup.protocol.dialogue import Message

SHORT = "$JS.ACK.S.c.1.{seq}.7.{time}.3"
LONG = "$JS.ACK.hub.ACCOUNT.S.c.1.{seq}.7.{time}.3.token"


def ack(text: str, seq: object = 5, time: object = 17) -> str:
    return text.format(seq=seq, time=time)


@pytest.mark.parametrize("reply", [ack(SHORT), ack(LONG), ack(LONG).rpartition(".")[0]])
def test_the_position_is_in_the_subject_for_acknowledgements(reply: str) -> None:
    row, left = _row_of("S", Message("a.b", reply, b"NATS/1.0\r\n\r\n", b"x"), 4)
    assert (row, left) == (Row(5, 17, b"a.b", b"NATS/1.0\r\n\r\n", b"x"), 3)


@pytest.mark.parametrize("reply", [None, "", "$JS.ACK.S.c.1.5.7.17", ack(SHORT, "five"), ack(SHORT, time="")])
def test_a_message_without_a_position_is_an_error(reply: str | None) -> None:
    with pytest.raises(FormatError):
        _row_of("S", Message("a", reply, b"", b""), 0)


def test_a_position_that_goes_back_is_an_error() -> None:
    with pytest.raises(TransferError, match="5 came after 5"):
        _row_of("S", Message("a", ack(SHORT), b"", b""), 5)


@pytest.mark.parametrize(
    ("message", "control"),
    [
        (Message("inbox", "$JS.FC.S.c.abcd", b"NATS/1.0 100 FlowControl Request\r\n\r\n", b""), True),
        (Message("inbox", None, b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Stream: 9\r\n\r\n", b""), True),
        (Message("a", ack(SHORT), b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", b""), False),
        (Message("a", ack(SHORT), b"NATS/1.0 204 Some Status\r\n\r\n", b""), False),
        (Message("a", ack(SHORT), b"", b""), False),
        (Message("a", None, b"NATS/1.0 100 FlowControl Request\r\n\r\n", b"x"), False),
    ],
)
def test_a_stored_message_that_looks_like_flow_control_is_a_message(message: Message, control: bool) -> None:
    assert is_control(message) is control


def test_subjects_that_are_not_utf8_make_a_batch_of_their_own_kind() -> None:
    assert rows_as_batch([Row(1, 1, b"a", None, b"")]).schema == BATCH_SCHEMA
    assert rows_as_batch([Row(1, 1, b"a", None, b""), Row(2, 1, b"\xff", None, b"")]).schema == BINARY_SUBJECT_SCHEMA


@pytest.mark.parametrize("row", [Row(1 << 63, 1, b"a", None, b""), Row(1, 1 << 63, b"a", None, b"")])
def test_numbers_beyond_63_bits_are_an_error(row: Row) -> None:
    with pytest.raises(FormatError):
        rows_as_batch([row])
