"""Prove a restore in part, which costs a server less than reading everything back.

What the server reports is compared always: the first and the last sequence and the number of messages.

    quick     also how many messages each subject has, where a stream has at most 100,000 subjects
    sample    also a random tenth of its messages, in runs of adjacent ones

Where anything differs, or less than this can be compared, everything is read back (`proof.py`): that tells what the
stream's own rules have removed, and what publishers have added.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import reduce

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.threads import in_thread
from jsbackup.engine.read.consume import read_into
from jsbackup.engine.read.snapshot_transfer import Advance
from jsbackup.errors import NatsPermissionDenied
from jsbackup.formats.batch import columns_from_batch
from jsbackup.formats.column_reader import typed_buffer
from jsbackup.formats.digest import StreamDigester
from jsbackup.model import StreamState
from jsbackup.protocol.info import StreamInfo

__all__ = [
    "ProofLevel",
    "SentMarks",
    "SubjectTally",
    "Window",
    "sample_agrees",
    "state_agrees",
    "subjects_agree",
    "windows_of",
]

Window = tuple[int, int]
"""The first and the last sequence of adjacent ones."""

_MOST_SUBJECTS = 100_000  # of a page of stream info
_WORTH = 10_000  # messages; fewer are read completely
_WINDOWS = (2, 20)  # at least, at most
_WINDOW_BYTES = 32 << 20  # about a segment: what is between windows need not be read from the store either
_PART = 10  # one of so many is read
_READINGS = 3
_PAUSE_SECONDS = 0.5
_MOST_MARKS = 8192  # then every other is forgotten


class ProofLevel(StrEnum):
    """How a restored stream is compared with the backup."""

    FULL = "full"
    SAMPLE = "sample"
    QUICK = "quick"
    NONE = "none"


class SubjectTally:
    """Counts the messages of each subject while they are sent."""

    def __init__(self) -> None:
        self._counts: Counter[str | bytes] = Counter()

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Yield the batches of one attempt to send a stream, and count them from zero."""
        self._counts.clear()
        for batch in batches:
            if len(self._counts) <= _MOST_SUBJECTS:
                for found in pc.value_counts(batch.column("subject")).to_pylist():
                    self._counts[found["values"]] += found["counts"]
            yield batch

    @property
    def counts(self) -> Counter[str | bytes] | None:
        """The counts, None if there are too many subjects."""
        return self._counts if len(self._counts) <= _MOST_SUBJECTS else None


class SentMarks:
    """Remembers while a stream is sent which sequences its messages have: those of messages at equal distances.

    Sequences alone do not tell: nearly all messages of a bucket may be among its first sequences.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._marks: list[int] = []
        self._step = 1
        self._messages = 0

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Yield the batches of one attempt to send a stream, and mark them anew."""
        self._begin()
        for batch in batches:
            first = -self._messages % self._step
            sequences = typed_buffer(columns_from_batch(batch).sequences, "q", batch.num_rows)
            self._marks += sequences[first :: self._step].tolist()
            self._messages += batch.num_rows
            while len(self._marks) > _MOST_MARKS:
                self._marks, self._step = self._marks[::2], self._step * 2
            yield batch

    @property
    def marks(self) -> list[int]:
        """Their sequences, from that of the first message on."""
        return self._marks


def state_agrees(info: StreamInfo, expected: StreamState) -> bool:
    """Return whether the server reports the expected messages and sequences."""
    state = info.state
    first = state.first_seq == expected.first_seq or not expected.messages
    return first and (state.messages, state.last_seq) == (expected.messages, expected.last_seq)


async def subjects_agree(js: JetStream, info: StreamInfo, tally: SubjectTally) -> bool:
    """Return whether the server reports the counted subjects. Raises NatsError."""
    counts = tally.counts
    if counts is None or info.subject_count != len(counts):
        return False
    return await js.subjects(info.name, ">") == counts


def windows_of(state: StreamState, marks: Sequence[int], chance: random.Random) -> list[Window]:
    """Return sequences that have a random tenth of a stream's messages, in order; none if all of it is to be read.

    `marks` are those of `SentMarks`.
    """
    if state.messages < _WORTH or not marks:
        return []
    least, most = _WINDOWS
    windows = min(max(least, state.bytes // _PART // _WINDOW_BYTES), most)
    count = windows * _PART
    edges = [marks[len(marks) * number // count] for number in range(count)] + [state.last_seq + 1]
    return [(edges[number], edges[number + 1] - 1) for number in sorted(chance.sample(range(count), windows))]


async def sample_agrees(
    js: JetStream,
    info: StreamInfo,
    windows: list[Window],
    messages_of: Callable[[list[Window]], Iterable[pa.RecordBatch]],
    *,
    advance: Advance,
) -> bool:
    """Return whether the messages in these windows are the same. `messages_of` reads those of the backup, and perhaps
    others. Raises NatsError, and the errors of `read_into` and `messages_of`.
    """

    def read() -> StreamDigester:
        ours = StreamDigester()
        for batch in messages_of(windows):
            inside = _inside(batch, windows)
            if inside.num_rows:
                ours.update(inside)
        return ours

    ours = await in_thread(read)
    for reading in range(1, _READINGS + 1):
        theirs = StreamDigester()
        try:
            for first, last in windows:
                await read_into(js, info, theirs.update, advance, first=first, last=last)
        except NatsPermissionDenied:
            return False  # a snapshot may be allowed
        if theirs.messages >= ours.messages or reading == _READINGS:
            break
        # The consumer may be on a replica that does not have all yet, although the leader has.
        await asyncio.sleep(_PAUSE_SECONDS * reading)
    return (ours.stream_digest, ours.messages) == (theirs.stream_digest, theirs.messages)


def _inside(batch: pa.RecordBatch, windows: list[Window]) -> pa.RecordBatch:
    """Return the rows of a batch that are in a window."""
    if not batch.num_rows:
        return batch
    sequences = batch.column("sequence")
    begun, ended = sequences[0].as_py(), sequences[-1].as_py()
    rows = [
        pc.and_(pc.greater_equal(sequences, first), pc.less_equal(sequences, last))
        for first, last in windows
        if first <= ended and last >= begun
    ]
    return batch.filter(reduce(pc.or_, rows)) if rows else batch.slice(0, 0)
