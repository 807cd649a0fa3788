"""Whatever is overwritten while a stream is read, in the end it has been read as it was at one moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read import whole_stream
from jsbackup.engine.read.whole_stream import CaughtUp, catch_up, cut_down, gone_at
from jsbackup.errors import TransferError
from jsbackup.model import StreamState
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.stores.memory import MemoryStore
from tests.harness.batches import Message, batch_of

CREATED = "2026-11-21T01:45:00Z"
LIMIT = 2


@dataclass
class Stream:
    """A stream that keeps `LIMIT` messages of each subject; `waiting` is written to it in between everything else."""

    waiting: list[list[str]]
    messages: dict[int, str] = field(default_factory=dict)
    last: int = 0
    lists: bool = True  # whether the server lists deleted sequences
    asked: list[tuple[StreamInfo, dict[int, str]]] = field(default_factory=list)

    def write(self, subjects: list[str]) -> None:
        for subject in subjects:
            self.last += 1
            self.messages[self.last] = subject
            for old in [s for s in sorted(self.messages) if self.messages[s] == subject][:-LIMIT]:
                del self.messages[old]

    def step(self) -> None:
        if self.waiting:
            self.write(self.waiting.pop())

    @property
    def info(self) -> StreamInfo:
        first = min(self.messages, default=self.last + 1)
        gone = tuple(s for s in range(first, self.last + 1) if s not in self.messages)
        state = StreamState(len(self.messages), 0, first, 1, self.last, 1, 0, len(gone))
        return StreamInfo(
            name="S",
            config={"name": "S", "max_msgs_per_subject": LIMIT},
            created=CREATED,
            created_ns=0,
            state=state,
            deleted=gone if self.lists else None if gone else (),
            subjects=None,
            lost=0,
            cluster=None,
            mirror=None,
            sources=(),
            now_ns=0,
        )

    async def stream(self, _name: str, *, deleted_details: bool = False) -> StreamInfo:
        """As `JetStream.stream`; something may be written just before and just after."""
        self.step()
        info = self.info
        if deleted_details or not info.state.deleted or not self.lists:
            self.asked.append((info, dict(self.messages)))
        self.step()
        return info


class SlowReader:
    """Reads one message after the other while others write. Sometimes it does not hear of the newest ones."""

    def __init__(self, stream: Stream, deaf: list[bool]) -> None:
        self.stream = stream
        self.deaf = deaf
        self.at = 0

    async def read(self, _info: StreamInfo, first: int, last: int) -> AsyncGenerator[pa.RecordBatch, None]:
        self.at = max(self.at, first - 1)
        while self.at < last:
            self.stream.step()
            if self.deaf and self.deaf.pop():
                return
            self.at += 1
            if self.at in self.stream.messages:
                yield batch_of([Message(self.at, subject=self.stream.messages[self.at])])

    def passed(self, last: int) -> int:
        return min(self.at, last)


SUBJECTS = st.lists(st.sampled_from("abcdefgh"), max_size=12)
WRITES = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=4), max_size=60)


async def _read(stream: Stream, reader: SlowReader, writer: SegmentWriter) -> tuple[CaughtUp, int]:
    """What a reader makes of the stream that reads it to the end it had, and then on."""
    info = stream.info
    async for batch in reader.read(info, 1, info.state.last_seq):
        writer.add(batch)
    at = reader.at
    return await catch_up(cast(JetStream, stream), info, at, reader, add=writer.add), at


def _stored(stream: Stream, deaf: list[bool]) -> tuple[CaughtUp, dict[int, str]]:
    objects = Objects(MemoryStore())
    writer = SegmentWriter(objects, "segments/S-00000000", segment_bytes=60)
    reader = SegmentReader(objects)

    async def run() -> tuple[CaughtUp, dict[int, str]]:
        caught, at = await _read(stream, SlowReader(stream, deaf), writer)
        refs = await cut_down(writer, writer.finish(), caught, reader, after=at)
        rows = [batch.to_pydict() for ref in refs for batch in reader.prove(ref)]
        return caught, {s: t for row in rows for s, t in zip(row["sequence"], row["subject"], strict=True)}

    return asyncio.run(run())


@given(SUBJECTS, WRITES, st.lists(st.booleans(), max_size=20))
def test_what_was_read_is_the_stream_as_it_was_when_the_server_described_it(
    there: list[str], writes: list[list[str]], deaf: list[bool]
) -> None:
    stream = Stream(writes)
    stream.write(there)
    caught, stored = _stored(stream, deaf)
    assert not caught.missing
    assert stored == next(messages for info, messages in reversed(stream.asked) if info is caught.info)


@given(SUBJECTS, WRITES)
def test_without_a_list_of_deleted_sequences_newer_messages_explain_what_is_gone(
    there: list[str], writes: list[list[str]]
) -> None:
    stream = Stream(writes, lists=False)
    stream.write(there)
    caught, stored = _stored(stream, [])
    assert not caught.missing
    assert stored == next(messages for info, messages in reversed(stream.asked) if info is caught.info)


class RestlessReader(SlowReader):
    """Somebody is always faster."""

    async def read(self, info: StreamInfo, first: int, last: int) -> AsyncGenerator[pa.RecordBatch, None]:
        for _ in range(LIMIT):
            self.stream.write(["hot"])
        async for batch in super().read(info, first, last):
            yield batch


def test_what_is_always_overwritten_first_is_counted() -> None:
    stream = Stream([])
    stream.write(["a", "b", "hot"])
    reader = RestlessReader(stream, [])
    caught = asyncio.run(catch_up(cast(JetStream, stream), stream.info, 1, reader, add=lambda _batch: None))
    assert caught.missing
    assert len(stream.asked) == whole_stream._READINGS


def test_a_stream_that_was_made_again_meanwhile_is_an_error() -> None:
    stream = Stream([])
    stream.write(["a", "b"])
    info = replace(stream.info, created="2026-11-20T00:00:00Z")
    with pytest.raises(TransferError, match="replaced while it was read"):
        asyncio.run(catch_up(cast(JetStream, stream), info, 2, SlowReader(stream, []), add=lambda _batch: None))


def test_a_stream_that_lost_its_end_meanwhile_is_an_error() -> None:
    stream = Stream([])
    stream.write(["a", "b"])
    with pytest.raises(TransferError, match="replaced while it was read"):
        asyncio.run(catch_up(cast(JetStream, stream), stream.info, 3, SlowReader(stream, []), add=lambda _batch: None))


def test_only_segments_that_hold_more_than_is_there_lose_something() -> None:
    objects = Objects(MemoryStore())
    writer = SegmentWriter(objects, "segments/S-00000000", segment_bytes=60)
    for sequence in (1, 3, 5, 6, 8):
        writer.add(batch_of([Message(sequence, subject="abcdefgh"[sequence - 1])]))
    refs = writer.finish()
    stream = Stream([])
    stream.write(list("abcdefgh"))
    for sequence in (2, 4, 6, 7):
        del stream.messages[sequence]
    assert 6 in gone_at(stream.info, refs, 8)
    whole = [ref for ref in refs if not ref.first_seq <= 6 <= ref.last_seq]
    assert not any(gone_at(stream.info, refs, 8).within(ref.first_seq, ref.last_seq) for ref in whole)
