"""Rows become messages, or are refused: what breaks those who read it after a restore. No Spark is needed."""

from __future__ import annotations

import pytest

from jsbackup.errors import UsageError
from jsbackup.pipeline.tasks.segment_sink import as_messages
from tests.harness.batches import Message, batch_of, messages_of

GOOD = [
    b"",  # as none
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\nA: b\r\n\r\n",
    b"NATS/1.0 204 Some Status\r\nAfter: status\r\n\r\n",
]
# Servers store these, and clients read on after them: what can be read of them is up to each.
ODD = [
    b"NATS/1.0\r\nno colon at all\r\n\r\n",
    b"NATS/1.0\r\nA: b\nc: d\r\n\r\n",
    b"NATS/1.0\r\nA b: c\r\n: d\r\n e\r\n\r\n",
    b"NATS/1.0\r\nA\x00: \x00\xff\r\n\r\n",
    b"NATS/1.0\r\nA: b\r\n\r\nC: d\r\n\r\n",
]
NO_BEGINNING = [
    b"x",
    b"A: b",
    b'{"A": "b"}',
    b"NATS/1.0",
    b"NATS/1.0\nA: b\n\n",
    b"NATS/2.0\r\n\r\n",
    b"\r\n\r\n",
    b"\xff",
]
NO_END = [b"NATS/1.0\r\n", b"NATS/1.0\r\nA: b", b"NATS/1.0\r\nA: b\r\n", b"NATS/1.0\r\nA: b\r\n\r\nmore"]


def _messages(block: bytes) -> list[Message]:
    return [Message(3, 0, "a", None, b""), Message(7, 0, "a", block, b"x"), Message(8, 0, "a", GOOD[2], b"")]


@pytest.mark.parametrize("block", [*GOOD, *ODD], ids=repr)
def test_blocks_of_headers_that_clients_live_with_are_taken(block: bytes) -> None:
    assert messages_of([as_messages(batch_of(_messages(block)))]) == _messages(block)


@pytest.mark.parametrize(
    ("block", "said"),
    [(block, r"do not begin with 'NATS/1.0\\r\\n'") for block in NO_BEGINNING]
    + [(block, r"do not end with '\\r\\n\\r\\n'") for block in NO_END],
    ids=repr,
)
def test_blocks_that_are_none_are_refused_unless_any_is_wanted(block: bytes, said: str) -> None:
    batch = batch_of(_messages(block))
    with pytest.raises(UsageError, match=f"^message 7 has headers that {said}: ") as caught:
        as_messages(batch)
    assert repr(block)[:40] in caught.value.message and "headers_base64" in (caught.value.hint or "")
    assert messages_of([as_messages(batch, any_headers=True)]) == _messages(block)


def test_a_long_block_is_shortened() -> None:
    with pytest.raises(UsageError) as caught:
        as_messages(batch_of(_messages(b"x" * 5000)))
    assert len(caught.value.message) < 200
