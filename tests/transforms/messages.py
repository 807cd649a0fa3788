"""Messages for tests: as plain values, as batches, and how hypothesis makes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from jsbackup.formats.batch import BATCH_SCHEMA, BINARY_SUBJECT_SCHEMA


class Message(NamedTuple):
    sequence: int
    timestamp_ns: int
    subject: str
    headers: bytes | None
    data: bytes


def batch_of(messages: Sequence[Message]) -> pa.RecordBatch:
    columns = list(zip(*messages, strict=True)) if messages else [()] * 5
    try:
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, BATCH_SCHEMA, strict=True)],
            schema=BATCH_SCHEMA,
        )
    except UnicodeEncodeError:
        columns[2] = tuple(subject.encode("utf-8", "surrogateescape") for subject in columns[2])
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, BINARY_SUBJECT_SCHEMA, strict=True)],
            schema=BINARY_SUBJECT_SCHEMA,
        )


def messages_of(batches: Iterable[pa.RecordBatch]) -> list[Message]:
    found = []
    for batch in batches:
        for row in batch.to_pylist():
            subject = row["subject"]
            text = subject if isinstance(subject, str) else subject.decode("utf-8", "surrogateescape")
            found.append(Message(row["sequence"], row["timestamp_ns"], text, row["headers"], row["data"]))
    return found


tokens = st.sampled_from(["a", "b", "c"])
literals = st.lists(tokens, min_size=1, max_size=4).map(".".join)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    parts = draw(st.lists(st.one_of(tokens, st.just("*")), max_size=2))
    if not parts or draw(st.booleans()):
        parts.append(draw(st.one_of(tokens, st.sampled_from(["*", ">"]))))
    return ".".join(parts)


@cache
def all_literals(longest: int = 4, alphabet: str = "abcx") -> list[str]:
    """Every subject of up to so many tokens."""
    found = [""]
    subjects = []
    for _ in range(longest):
        found = [f"{one}.{token}" if one else token for one in found for token in alphabet]
        subjects += found
    return subjects
