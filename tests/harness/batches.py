"""Messages for tests: as tuples, as batches, and drawn by hypothesis."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from jsbackup.formats.batch import BATCH_SCHEMA, BINARY_SUBJECT_SCHEMA


class Message(NamedTuple):
    sequence: int
    timestamp_ns: int = 0
    subject: str | bytes = "s"
    headers: bytes | None = None
    data: bytes = b""


def batch_of(messages: Iterable[Message]) -> pa.RecordBatch:
    """One batch, with a binary subject column if a subject is given as bytes."""
    rows = list(messages)
    schema = BATCH_SCHEMA
    if any(isinstance(row.subject, bytes) for row in rows):
        schema = BINARY_SUBJECT_SCHEMA
        rows = [row._replace(subject=_as_bytes(row.subject)) for row in rows]
    columns = list(zip(*rows, strict=True)) or [()] * 5
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def messages_of(batches: Iterable[pa.RecordBatch]) -> list[Message]:
    """Subjects come as text where the batch's column is text."""
    return [Message(*row) for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]


def cut_anywhere(batch: pa.RecordBatch, chance: random.Random) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of random sizes, some empty."""
    at = 0
    while at < batch.num_rows:
        rows = chance.choice([0, 1, 2, 7, 50, 1000])
        yield batch.slice(at, rows)
        at += rows


def some_messages(count: int, size: int, *, seed: int = 1, first: int = 1) -> list[Message]:
    """`count` messages with random payloads of `size` bytes, some with headers, some sequences missing."""
    chance = random.Random(seed)
    result = []
    sequence = first - 1
    for number in range(count):
        sequence += chance.choice([1, 1, 1, 2, 5])
        headers = b"NATS/1.0\r\nN: %d\r\n\r\n" % number if chance.random() < 0.3 else None
        result.append(
            Message(sequence, 10**18 + number * 1000, f"orders.{number % 7}", headers, chance.randbytes(size))
        )
    return result


def _as_bytes(subject: str | bytes) -> bytes:
    return subject.encode() if isinstance(subject, str) else subject


_SUBJECTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_MESSAGES = st.builds(
    Message,
    sequence=st.integers(1, 9),  # a step, until it is added up below
    timestamp_ns=st.integers(-(1 << 63), (1 << 63) - 1),
    subject=_SUBJECTS,
    headers=st.none() | st.binary(max_size=20),
    data=st.binary(max_size=40),
)
_ODD_SUBJECTS = st.sampled_from([b"\xff", b"a.\xc3", b"ok"])


@st.composite
def message_lists(draw: st.DrawFn, *, binary: bool = False, max_size: int = 40) -> list[Message]:
    """Messages in rising sequence with gaps; if `binary`, some subjects are bytes that are not UTF-8."""
    result = []
    sequence = draw(st.sampled_from([0, 1000, 1 << 40]))
    for message in draw(st.lists(_MESSAGES, max_size=max_size)):
        sequence += message.sequence
        message = message._replace(sequence=sequence)
        if binary and draw(st.integers(0, 4)) == 0:
            message = message._replace(subject=draw(_ODD_SUBJECTS))
        result.append(message)
    return result


def sendable(messages: Sequence[Message]) -> list[Message]:
    """The messages, each with a subject that a server could have."""
    return [one._replace(subject=_sendable(one.subject)) for one in messages]


def _sendable(subject: str | bytes) -> str | bytes:
    if isinstance(subject, bytes):
        return subject.translate(None, b" \t\n") or b"s"
    return subject.translate(dict.fromkeys(map(ord, " \t\n"))) or "s"
