"""Continue reading a stream that was written to while it was read, until nothing is missing.

A reader that takes a stream's messages in order, up to the end at its beginning, misses messages that are overwritten
meanwhile: a key's old revision is deleted before it is reached, and the new one is after that end. So the key is read
with neither. This applies to snapshots v2 and to all reading message by message.

The missed messages come later in the stream. So the reader continues, and asks for the stream's state before each step:

    asked at t: the stream ends at E, and these sequences are deleted  ──▶  read on up to E

A message that exists at t, before the reader's position at that time, existed when the reader passed it, so it has been
read. If all messages that exist at t between that position and E arrive, then everything that the stream held at t has
been read, and any other message that was read had been deleted by t. Without the latter it is the stream as it was at t
(`gone_at`). If one did not arrive, it was overwritten between t and its reading, and the reader continues. The part to
read gets shorter each time, down to what is written between a request and its answer.

If more sequences are deleted than can be requested, none of those read last may be deleted, and other deletions are
known from the newer messages that replaced them (`repository/write/late_deletions.py`); messages deleted by a request
during the reading then stay in the backup.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from jsbackup.engine.link.jetstream import MAX_DELETED, JetStream
from jsbackup.engine.link.threads import in_thread
from jsbackup.engine.read.increment import PresentSequences
from jsbackup.errors import TransferError
from jsbackup.formats.segment import drop_sequences
from jsbackup.formats.sequences import SequenceSet
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.write.late_deletions import overwritten
from jsbackup.repository.write.segment_writer import SegmentWriter

__all__ = ["CaughtUp", "StreamReader", "catch_up", "cut_down", "describe_stream", "gone_at"]

# Each attempt reads what was written during the one before. Measured: a bucket of 3,000 keys with 6,000 writes a second
# takes two to four, one key written 1,000 times a second up to ten.
_ATTEMPTS = 40
# Up to this many deleted sequences, eight bytes of JSON each, are requested that often; with more, there are fewer
# attempts.
_ASKED_OFTEN = 200_000
_FEWER_ATTEMPTS = 8
# How many subjects are named if the reader does not catch up.
_SHOWN = 5


class StreamReader(Protocol):
    """Reads a stream in order, and continues from there."""

    def read(self, info: StreamInfo, first: int, last: int) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the messages from one sequence to another of the stream `info`."""

    def passed(self, last: int) -> int:
        """Return up to where, at most `last`, everything has arrived that existed when it was read up to `last`.

        A server may not know yet about messages stored just now, and seem to have no more.
        """


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """How far the reader got: everything that the stream held when it was `info` has been read.

    Except `missing` messages, which were overwritten faster than they could be read. `subjects` are some of those that
    were last written to.
    """

    info: StreamInfo
    missing: int = 0
    subjects: tuple[str, ...] = ()


async def describe_stream(js: JetStream, name: str) -> StreamInfo:
    """Return the stream with its deleted sequences, unless there are too many."""
    info = await js.stream(name)
    return await js.stream(name, deleted_details=True) if 0 < info.state.deleted <= MAX_DELETED else info


async def catch_up(
    js: JetStream, info: StreamInfo, at: int, reader: StreamReader, *, add: Callable[[pa.RecordBatch], None]
) -> CaughtUp:
    """Read on after the sequence `at`, up to which the stream `info` has been read; `add` is called in a thread.

    Raises:
        TransferError: it was recreated or lost its end meanwhile.
        NatsError, FormatError, and the errors of `add`.
    """
    attempt = 0
    while True:
        now = await describe_stream(js, info.name)
        if now.created != info.created or now.state.last_seq < at:
            raise TransferError(f"stream {info.name} was replaced while it was read")
        tail = _Tail(now, at + 1)
        async with aclosing(reader.read(now, at + 1, now.state.last_seq)) as batches:
            async for batch in batches:
                if kept := tail.kept(batch):
                    await in_thread(add, kept)
        at = max(at, reader.passed(now.state.last_seq))
        attempt += 1
        if not tail.missing:
            return CaughtUp(now)
        if attempt == (_ATTEMPTS if now.state.deleted <= _ASKED_OFTEN else _FEWER_ATTEMPTS):
            return CaughtUp(now, tail.missing, tuple(sorted(tail.subjects)[:_SHOWN]))


@dataclass(slots=True)
class _Tail:
    """The messages read from the sequence `first` to the end of a stream."""

    info: StreamInfo
    first: int
    came: int = 0
    subjects: set[str] = field(default_factory=set)
    present: PresentSequences = field(init=False)

    def __post_init__(self) -> None:
        self.present = PresentSequences(self.info.state, self.info.deleted or ())

    @property
    def missing(self) -> int:
        return self.present.count(self.first, self.present.last) - self.came

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the messages of a batch that exist, None if there are none. A replica that lags may have others."""
        sequences = batch.column("sequence")
        gone = self.present.deleted.within(sequences[0].as_py(), sequences[-1].as_py())
        kept = drop_sequences(batch, gone) if gone else batch
        self.came += kept.num_rows
        if kept.num_rows and len(self.subjects) < _SHOWN:
            self.subjects |= {str(subject) for subject in kept.column("subject").slice(0, 100 * _SHOWN).to_pylist()}
        return kept if kept.num_rows else None


async def cut_down(
    writer: SegmentWriter, segments: Sequence[SegmentRef], caught: CaughtUp, reader: SegmentReader, *, after: int
) -> list[SegmentRef]:
    """Return the segments without messages that were deleted in the state that was caught up with.

    They were first read up to the sequence `after`, then further.

    Raises:
        TransferError: existing messages have not been read.
        KeyUnavailable: a segment of an earlier backup would have to be read, and no key that opens it was given.
        IntegrityError, StoreError
    """
    info = caught.info
    if info.deleted is not None or not info.state.deleted:
        gone = gone_at(info, segments, info.state.last_seq)
    else:
        limit = info.config.get("max_msgs_per_subject") or 0
        gone = await in_thread(overwritten, segments, after, max(limit, 0), reader)
    refs = await in_thread(partial(writer.without, segments, gone, first=info.state.first_seq))
    lacking = info.state.messages - sum(ref.messages for ref in refs)
    if lacking > caught.missing:
        raise TransferError(f"{lacking} messages of {info.name} are there and were not read")
    return refs


def gone_at(info: StreamInfo, refs: Sequence[SegmentRef], last: int) -> SequenceSet:
    """Return the sequences of `refs`, up to `last`, that are deleted in `info`.

    `refs` hold all of the stream up to `last` and more. `info` has its deleted sequences. Sequences before its first
    message are not included.
    """
    present = PresentSequences(replace(info.state, last_seq=min(last, info.state.last_seq)), info.deleted or ())
    changed = (ref for ref in refs if present.count(ref.first_seq, ref.last_seq) < ref.messages)
    return SequenceSet(gone for ref in changed for gone in present.deleted.within(ref.first_seq, ref.last_seq))
