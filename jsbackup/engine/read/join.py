"""Make an increment: read new messages from the server, join them to what is stored, and prove the join.

The messages must be exactly those that the server reported when reading began: every sequence that it had, up to its
last one. A sequence that did not arrive must have been removed meanwhile, which is checked with the server at the end;
this detects a replica that lags behind. And the anchor (`increment.py`) must have the stored digest. Any doubt is an
error, after which the caller reads the stream completely.

A message deleted meanwhile is not in the backup, as if that had been made a moment later. That would be wrong if a
newer message replaced it (a key's next revision, a roll-up): the newer one came after the end, and the backup would
have neither. Such a stream is read further until nothing is missing (`catch_up` in `whole_stream.py`).
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass

import pyarrow as pa

from jsbackup.engine.link.concurrency import in_thread
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.consume import open_reader, read_messages
from jsbackup.engine.read.increment import (
    UNCHANGED,
    Increment,
    Incremental,
    PresentSequences,
    SequenceSpan,
    Whole,
    accept_increment,
    plan_increment,
)
from jsbackup.engine.read.snapshot_transfer import Advance
from jsbackup.engine.read.whole_stream import CaughtUp, StreamReader, catch_up, cut_down, describe_stream
from jsbackup.errors import (
    DigestMismatch,
    FormatError,
    IntegrityError,
    KeyUnavailable,
    NatsError,
    NatsTimeout,
    TransferError,
    UnsupportedError,
)
from jsbackup.formats.digest import Digester
from jsbackup.formats.segment import drop_sequences
from jsbackup.protocol.info import ConsumerInfo, StreamInfo
from jsbackup.protocol.paging import Listing
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.pages.segment_list import ends_of, joined, split_at
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.transforms.removal import is_overwritten

__all__ = ["Joined", "ReadOn", "read_increment", "take_increment"]

_log = logging.getLogger(__name__)

_ATTEMPTS = 3
# How many sequences may be deleted while they are read; with more, the stream is being emptied rather than read.
_MAX_MISSING = 1_000_000

ReadOn = Callable[[StreamInfo, int], AbstractAsyncContextManager[StreamReader]]
"""Opens a reader of the stream that begins at a sequence."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A stored increment: all segments in order, `reused` of them unchanged.

    `info` is the stream as reported when reading began, `consumers` those at that time (None if not requested).
    """

    segments: Sequence[SegmentRef]
    info: StreamInfo
    consumers: Listing[ConsumerInfo] | None
    reused: int
    stored_bytes: int
    why: str


async def take_increment(
    js: JetStream,
    mode: Incremental,
    previous: StreamBackup,
    stored: Sequence[SegmentRef],
    *,
    new_writer: Callable[[], SegmentWriter],
    start: Callable[[int, int], None],
    advance: Advance,
    consumers: bool,
) -> Joined | Whole:
    """Store what is new since `previous` (`plan_increment` says what that has to be), or return why not.

    `stored` are the segments of `previous` that are in the store, in order; `new_writer` makes a writer that knows
    them; `start` gets the bytes and messages to come. Raises StoreError; any error of the server is a reason to read
    the stream completely.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            inventory = await js.consumers(previous.name) if consumers else None
            info = await describe_stream(js, previous.name)
            writer = new_writer()
            writer.cuts.losing_front = bool(stored) and info.state.first_seq > ends_of(stored)[0]
            plan = await in_thread(plan_increment, previous, stored, info, writer.cuts)
            if isinstance(plan, Increment):
                entries = inventory.entries.values() if inventory else ()
                plan = accept_increment(mode, plan, info, entries, version=js.link.server_version)
            if isinstance(plan, Whole):
                return plan
            start(plan.read_bytes, plan.read_messages)

            def read(info: StreamInfo, first: int, last: int) -> AsyncGenerator[pa.RecordBatch, None]:
                return read_messages(js, info, advance, first=first, last=last)

            def read_on(info: StreamInfo, first: int) -> AbstractAsyncContextManager[StreamReader]:
                return open_reader(js, info, advance, first=first)

            return await read_increment(js, info, plan, inventory, writer=writer, read=read, read_on=read_on)
        except (TransferError, NatsTimeout) as error:
            if attempt == _ATTEMPTS:
                return Whole(error.message)
            _log.info("stream %s: %s; once more", previous.name, error.message)
        except DigestMismatch as error:
            return Whole(error.message, lost=True)
        except (NatsError, IntegrityError, KeyUnavailable, UnsupportedError) as error:
            return Whole(error.message)
    raise AssertionError


async def read_increment(
    js: JetStream,
    info: StreamInfo,
    plan: Increment,
    consumers: Listing[ConsumerInfo] | None,
    *,
    writer: SegmentWriter,
    read: Callable[[StreamInfo, int, int], AsyncGenerator[pa.RecordBatch, None]],
    read_on: ReadOn,
) -> Joined:
    """Keep and read what the plan says, and prove that it is everything in `info`.

    If messages are overwritten meanwhile, the reader of `read_on` continues, and the result is a later state.

    Raises:
        TransferError: reading failed, or messages next to the join were deleted; another try may succeed.
        IntegrityError, UnsupportedError: an increment is not possible.
        NatsError, StoreError
    """
    present = PresentSequences(info.state, info.deleted or ())
    missing: list[int] = []
    head, between = await in_thread(_split, plan)
    await in_thread(writer.pass_over, head)
    parts: list[SegmentRef | SequenceSpan] = [*between, *plan.spans]
    for part in sorted(parts, key=_first):
        if isinstance(part, SegmentRef):
            await in_thread(writer.keep, part)
            continue
        sink = _SpanSink(writer, present, part, plan.anchor if part == plan.spans[-1] else None)
        async with aclosing(read(info, part.first, part.last)) as batches:
            async for batch in batches:
                await in_thread(sink.add, batch)
        sink.finish()
        missing += sink.missing
    caught = CaughtUp(info)
    if missing:
        await _excuse(js, info, missing)
        if is_overwritten(info.config):
            caught = await _catch_up(js, info, read_on, writer)
    segments: Sequence[SegmentRef] = joined(head, await in_thread(writer.finish))
    reused = writer.reused + len(head)
    if caught.info is not info:
        every = await in_thread(list, segments)
        segments = await cut_down(writer, every, caught, SegmentReader(writer.objects), after=info.state.last_seq)
    return Joined(segments, caught.info, consumers, reused, writer.stored_bytes, _summary(plan))


def _split(plan: Increment) -> tuple[Sequence[SegmentRef], Sequence[SegmentRef]]:
    """Return the kept segments before the first span, and the others."""
    if not plan.spans:
        return plan.kept, ()
    head, others = split_at(plan.kept, plan.spans[0].first)
    return head, tuple(others)


async def _catch_up(js: JetStream, info: StreamInfo, read_on: ReadOn, writer: SegmentWriter) -> CaughtUp:
    at = info.state.last_seq
    async with read_on(info, at + 1) as reader:
        caught = await catch_up(js, info, at, reader, add=writer.add)
    if caught.missing:
        raise TransferError(f"messages of {info.name} are overwritten faster than they can be read")
    return caught


def _first(part: SegmentRef | SequenceSpan) -> int:
    return part.first_seq if isinstance(part, SegmentRef) else part.first


def _summary(plan: Increment) -> str:
    if not plan.spans:
        return UNCHANGED
    return f"{plan.read_messages} of {plan.whole_messages} messages had to be read"


async def _excuse(js: JetStream, info: StreamInfo, missing: list[int]) -> None:
    """Check that messages that did not arrive are deleted by now."""
    now = await describe_stream(js, info.name)
    if now.created != info.created or (now.state.deleted and now.deleted is None):
        raise IntegrityError(f"it is not known which messages of {info.name} were deleted while it was read")
    present = PresentSequences(now.state, now.deleted or ())
    for sequence in missing:
        if sequence in present:
            raise IntegrityError(f"sequence {sequence} of {info.name} exists and was not delivered")


class _SpanSink:
    """Passes the messages of one span to a writer and accounts for them."""

    def __init__(
        self, writer: SegmentWriter, present: PresentSequences, span: SequenceSpan, anchor: SegmentRef | None
    ) -> None:
        self._writer = writer
        self._present = present
        self._span = span
        self._anchor = anchor
        self._digester = Digester()
        self._at = span.first  # the first sequence that is not accounted for
        self.missing: list[int] = []

    def add(self, batch: pa.RecordBatch) -> None:
        sequences = batch.column("sequence").to_pylist()
        unwanted = self._present.deleted.within(sequences[0], sequences[-1])
        if unwanted:  # a replica that lags still has them
            batch = drop_sequences(batch, unwanted)
            sequences = batch.column("sequence").to_pylist()
        if not sequences:
            return
        self._account(sequences, sequences[-1])
        self._prove(batch, sequences)
        self._writer.add(batch)

    def finish(self) -> None:
        """Account for the rest of the span."""
        self._account([], self._span.last)
        if self._anchor is not None:
            self._compare(self._anchor)

    def _account(self, sequences: list[int], last: int) -> None:
        """Note the missing sequences from the end of the last batch up to `last`."""
        missing = self._present.count(self._at, last) - len(sequences)
        if missing < 0 or (sequences and not self._at <= sequences[0] <= sequences[-1] <= self._span.last):
            raise FormatError("the server delivered more messages than it reported")
        if len(self.missing) + missing > _MAX_MISSING:
            raise UnsupportedError("messages are deleted faster than they can be read")
        if missing:
            came = set(sequences)
            self.missing += [s for s in self._present.within(self._at, last) if s not in came]
        self._at = last + 1

    def _prove(self, batch: pa.RecordBatch, sequences: list[int]) -> None:
        if self._anchor is None:
            return
        first = bisect_left(sequences, self._anchor.first_seq)
        end = bisect_right(sequences, self._anchor.last_seq)
        if first < end:
            self._digester.update(batch.slice(first, end - first))
        if sequences[-1] >= self._anchor.last_seq:
            self._compare(self._anchor)
            self._anchor = None

    def _compare(self, anchor: SegmentRef) -> None:
        if self._digester.segment_digest == anchor.digest:
            return
        if self._digester.messages < anchor.messages:
            raise TransferError("messages next to the join were deleted while they were read")
        raise DigestMismatch(
            f"sequences {anchor.first_seq} to {anchor.last_seq} are not those of the last backup: the stream has lost "
            "its end, and other messages took their place"
        )
