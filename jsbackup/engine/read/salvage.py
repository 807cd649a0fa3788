"""Read what can be read of a stream whose snapshot fails.

1. A snapshot all the same: servers before 2.15 send whole blocks, so everything that checksums prove is taken from a
   damaged one (`archive_v1_reader.py`); later ones pass over messages that they cannot read. If it breaks off, what
   came is kept. This comes first: a server that is asked for single messages cuts a block off at its first damage, on
   its disk.
2. What the stream has and the snapshot lacks is requested message by message (`AroundDamage`).
3. What is still lacking is taken from the last backup, if that has it: a message never changes under its sequence.

What is lost after that is known exactly: the server says which sequences it has, and which it has lost.

**Around damage** (`AroundDamage`). This reads messages around those that a server cannot read.

A consumer stops at a block that the server cannot read, so each message is requested by its sequence, many at once. One
that the server counts as present and does not return is unreadable: "no message found" is all that it says. It is
requested again, because a server that finds damage rebuilds what it knows of the block, and meanwhile denies others.

Where nothing can be read, this has to be fast:

- When a server has rebuilt a block, it counts the lost messages as deleted. So after some failures the stream is asked
  for again, and these are not requested one by one.
- Otherwise each request may cost as much as reading the block. If that is slow, the next readable message is looked for
  in growing steps, then between the last two. What was passed over is reported as not tried.

Where many messages in a row could be read, a consumer reads on, until it is stuck.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from copy import copy
from dataclasses import dataclass, field
from itertools import accumulate

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.engine.link.concurrency import in_thread
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.consume import Row, read_messages, rows_as_batch
from jsbackup.engine.read.increment import PresentSequences
from jsbackup.engine.read.snapshot_transfer import Advance, Capture, CaptureLimits, capture_snapshot
from jsbackup.engine.read.whole_stream import REPORTED, Ranges, SnapshotAttempts, Stored, describe_stream, spans_of
from jsbackup.errors import (
    ApiError,
    FormatError,
    IntegrityError,
    KeyUnavailable,
    NatsTimeout,
    SnapshotBusy,
    TransferError,
    UnsupportedError,
)
from jsbackup.formats.batch import BINARY_SUBJECT_SCHEMA, columns_from_batch
from jsbackup.formats.segment import drop_sequences
from jsbackup.formats.sequences import GivenSequences, SequenceSet, ranges_of
from jsbackup.model import StreamState
from jsbackup.protocol.info import StreamInfo
from jsbackup.readable import format_count
from jsbackup.repository.manifest import ArchiveFormat, Losses, LostSpan, ReadAs, Reading, SegmentRef, total_of
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.write.late_deletions import messages_to_remove
from jsbackup.repository.write.segment_writer import SegmentWriter

__all__ = ["SalvageRun"]

_AT_ONCE = 128
# A window of requests that all fail is slow if one of them takes longer than this on average.
_SLOW_SECONDS = 0.004
# After so many messages in a row a consumer reads on, if at least as many follow.
_SOUND = 5_000
_BATCH_BYTES = 4 << 20
_UNREADABLE = "the server cannot read them"
_DROPPED = "the server dropped them when it found the damage"
_NOT_TRIED = "the server cannot read messages around them; they were not tried one by one"


class SequenceRanges:
    """Sequences as ranges in rising order, counted. What is cut off the front is not copied."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges = ranges
        self._ends = list(accumulate(last - first + 1 for first, last in ranges))
        self._start = 0

    def __len__(self) -> int:
        return self._ends[-1] - self._start if self._ends else 0

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(index)
        at = bisect_right(self._ends, self._start + index)
        return self._ranges[at][1] - (self._ends[at] - 1 - self._start - index)

    def __iter__(self) -> Iterator[int]:
        return (sequence for first, last in self.between(0, len(self)) for sequence in range(first, last + 1))

    def from_index(self, index: int) -> SequenceRanges:
        """Return the sequences from the `index`-th on."""
        rest = copy(self)
        rest._start = min(self._start + index, self._ends[-1] if self._ends else 0)
        return rest

    def count_to(self, sequence: int) -> int:
        """Return how many of them are up to this sequence."""
        at = bisect_right(self._ranges, sequence, key=lambda span: span[0])
        if not at:
            return 0
        _, last = self._ranges[at - 1]
        return max(0, self._ends[at - 1] - max(0, last - sequence) - self._start)

    def between(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges from the `start`-th sequence to before the `stop`-th."""
        while start < stop:
            at = bisect_right(self._ends, self._start + start)
            first = self[start]
            last = min(self._ranges[at][1], first + stop - start - 1)
            yield first, last
            start += last - first + 1

    def without(self, deleted: SequenceSet) -> tuple[SequenceRanges, list[tuple[int, int]]]:
        """Return the sequences that are not deleted, and the ranges of those that are."""
        left: list[tuple[int, int]] = []
        removed: list[tuple[int, int]] = []
        for first, last in self.between(0, len(self)):
            at = first
            for sequence in deleted.within(first, last):
                if sequence > at:
                    left.append((at, sequence - 1))
                if removed and removed[-1][1] == sequence - 1:
                    removed[-1] = removed[-1][0], sequence
                else:
                    removed.append((sequence, sequence))
                at = sequence + 1
            if at <= last:
                left.append((at, last))
        return SequenceRanges(left), removed


class AroundDamage:
    """Reads a stream's messages by their sequences. `unread` are the ranges that could not be read, and why."""

    def __init__(
        self, js: JetStream, info: StreamInfo, advance: Advance, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._js = js
        self._info = info
        self._advance = advance
        self._clock = clock
        self._sound = 0  # messages in a row that could be read
        self._asked = False  # for the stream, since a message could be read
        self.unread: list[tuple[int, int, str]] = []

    async def read(self, wanted: SequenceRanges) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the messages of these sequences that can be read, in order. Raises NatsError if the server is gone."""
        rows: list[Row] = []
        size = 0
        while wanted:
            if self._sound >= _SOUND and _is_dense(wanted):
                if rows:
                    yield self._batch(rows)
                    rows, size = [], 0
                async with aclosing(self._read_on(wanted)) as batches:
                    async for batch, rest in batches:
                        wanted = rest
                        yield batch
                self._sound = 0
                continue
            read_now, wanted = await self._window(wanted)
            rows += read_now
            size += sum(len(row.data) + len(row.headers or b"") for row in read_now)
            if size >= _BATCH_BYTES:
                yield self._batch(rows)
                rows, size = [], 0
        if rows:
            yield self._batch(rows)

    def _batch(self, rows: list[Row]) -> pa.RecordBatch:
        batch = rows_as_batch(rows)
        self._advance(batch.nbytes, batch.num_rows)
        return batch

    async def _window(self, wanted: SequenceRanges) -> tuple[list[Row], SequenceRanges]:
        """Request the next messages; return those that came, and what is still wanted."""
        count = min(_AT_ONCE, len(wanted))
        sequences = [wanted[index] for index in range(count)]
        began = self._clock()
        rows = await self._get(sequences)
        seconds = self._clock() - began
        if rows:
            rows |= await self._get([sequence for sequence in sequences if sequence not in rows])
            self._note([sequence for sequence in sequences if sequence not in rows], _UNREADABLE)
            self._sound = self._sound + count if len(rows) == count else 0
            self._asked = False
            return [rows[sequence] for sequence in sorted(rows)], wanted.from_index(count)
        self._sound = 0
        if not self._asked:
            self._asked = True
            return [], await self._without_dropped(wanted)
        self._note(sequences, _UNREADABLE)
        if seconds < _SLOW_SECONDS * count:
            return [], wanted.from_index(count)
        return [], await self._skip(wanted, count)

    async def _get(self, sequences: Sequence[int]) -> dict[int, Row]:
        answers = await asyncio.gather(*map(self._one, sequences))
        return {row.sequence: row for row in answers if row is not None}

    async def _one(self, sequence: int) -> Row | None:
        try:
            message = await self._js.message(self._info.name, sequence)
        except (ApiError, FormatError, NatsTimeout):
            return None
        if message is None or "\ufffd" in message.subject:  # bytes that are not UTF-8 are not answered
            return None
        return Row(sequence, message.timestamp_ns, message.subject.encode(), message.headers, message.data)

    async def _without_dropped(self, wanted: SequenceRanges) -> SequenceRanges:
        """Ask for the stream, and do without what it calls deleted by now."""
        info = await describe_stream(self._js, self._info.name)
        if not info.deleted:
            return wanted
        left, deleted = wanted.without(SequenceSet(info.deleted or ()))
        self.unread += [(first, last, _DROPPED) for first, last in deleted]
        return left

    async def _skip(self, wanted: SequenceRanges, failed: int) -> SequenceRanges:
        """Look for the next readable message behind the `failed` ones; return what is wanted from there on."""
        low, step, end = failed - 1, _AT_ONCE, len(wanted)
        high = end
        while low + step < end:
            if await self._is_readable(wanted[low + step]):
                high = low + step
                break
            low, step = low + step, 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            if await self._is_readable(wanted[middle]):
                high = middle
            else:
                low = middle
        self.unread += [(first, last, _NOT_TRIED) for first, last in wanted.between(failed, high)]
        return wanted.from_index(high)

    async def _is_readable(self, sequence: int) -> bool:
        return await self._one(sequence) is not None

    def _note(self, sequences: Sequence[int], why: str) -> None:
        for sequence in sequences:
            if self.unread and self.unread[-1][1:] == (sequence - 1, why):
                self.unread[-1] = self.unread[-1][0], sequence, why
            else:
                self.unread.append((sequence, sequence, why))

    async def _read_on(self, wanted: SequenceRanges) -> AsyncGenerator[tuple[pa.RecordBatch, SequenceRanges], None]:
        """Yield what a consumer reads, with requests for what it passes over, and what is wanted behind that.

        Ends early if the consumer is stuck.
        """
        batches = read_messages(self._js, self._info, self._advance, first=wanted[0], last=wanted[len(wanted) - 1])
        with suppress(TransferError, NatsTimeout):
            async with aclosing(batches):
                async for batch in batches:
                    came = batch.column("sequence").to_pylist()
                    count = wanted.count_to(came[-1])
                    expected, wanted = [wanted[index] for index in range(count)], wanted.from_index(count)
                    passed = sorted(set(expected).difference(came))
                    kept = drop_sequences(batch, surplus) if (surplus := set(came).difference(expected)) else batch
                    yield await self._completed(kept, passed) if passed else kept, wanted

    async def _completed(self, batch: pa.RecordBatch, passed: Sequence[int]) -> pa.RecordBatch:
        rows = await self._get(passed)
        self._note([sequence for sequence in passed if sequence not in rows], _UNREADABLE)
        return merged([batch, self._batch([rows[row] for row in sorted(rows)])]) if rows else batch


def _is_dense(wanted: SequenceRanges) -> bool:
    """Return whether many of the next messages are wanted."""
    return len(wanted) > _SOUND and wanted[_SOUND] - wanted[0] < 8 * _SOUND


def merged(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the messages of all batches, in order of sequences."""
    if len({batch.schema for batch in batches}) > 1:
        batches = [batch.cast(BINARY_SUBJECT_SCHEMA) for batch in batches]
    table = pa.Table.from_batches(batches).combine_chunks()
    (batch,) = table.take(pc.sort_indices(table.column("sequence"))).combine_chunks().to_batches()
    return batch


async def fill_in(
    writer: SegmentWriter,
    segments: Sequence[SegmentRef],
    batches: AsyncGenerator[pa.RecordBatch, None],
    reader: SegmentReader,
) -> list[SegmentRef]:
    """Return the segments with the messages of `batches`, which come in order and are in none of them.

    `writer` continues the `segments`. One is read again only if messages come within it. Raises the errors of both.
    """
    more = _Ahead(batches)
    for ref in segments:
        for batch in await more.up_to(ref.first_seq - 1):
            await in_thread(writer.add, batch)
        within = await more.up_to(ref.last_seq)
        if within:
            stored = await in_thread(_read, reader, ref)
            await in_thread(writer.add, merged([*stored, *within]))
        else:
            await in_thread(writer.keep, ref)
    while rest := await more.next():
        await in_thread(writer.add, rest)
    return await in_thread(writer.finish)


def _read(reader: SegmentReader, ref: SegmentRef) -> list[pa.RecordBatch]:
    return list(reader.read(ref))


class _Ahead:
    """Batches, cut where they are needed."""

    def __init__(self, batches: AsyncGenerator[pa.RecordBatch, None]) -> None:
        self._batches = batches
        self._batch: pa.RecordBatch | None = None

    async def next(self) -> pa.RecordBatch | None:
        """Return the next batch, or the rest of one."""
        batch, self._batch = self._batch, None
        return batch if batch is not None else await anext(self._batches, None)

    async def up_to(self, last: int) -> list[pa.RecordBatch]:
        """Return what comes up to the sequence `last`."""
        batches: list[pa.RecordBatch] = []
        while (batch := await self.next()) is not None:
            sequences = memoryview(columns_from_batch(batch).sequences).cast("B").cast("q")
            count = sum(1 for sequence in sequences if sequence <= last) if sequences[-1] > last else len(sequences)
            if count:
                batches.append(batch.slice(0, count))
            if count < len(sequences):
                self._batch = batch.slice(count)
                break
        return batches


_STEP = 1 << 20  # sequences that are compared at once
_MOST_SUBJECTS = 10_000


@dataclass
class SalvageRun:
    """The salvage of the stream `name`; `why` says what is wrong with it. `flaws` are sentences about the server's
    store, `notes` about what was done instead.

    `new_writer` makes a writer that continues stored segments. `reusable` are such segments, `earlier` those of the
    last backup, `backup`.
    """

    js: JetStream
    name: str
    why: str
    new_writer: Callable[[Sequence[SegmentRef]], SegmentWriter]
    reader: SegmentReader
    reusable: Sequence[SegmentRef]
    earlier: Sequence[SegmentRef]
    consumers: bool
    limits: CaptureLimits
    advance: Advance
    given: GivenSequences = field(default_factory=GivenSequences)
    subjects: Counter[bytes] | None = None
    flaws: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    async def run(self) -> Stored:
        """Raises NatsError if the server does not answer, and StoreError."""
        info = await describe_stream(self.js, self.name)
        counts = await self._count_subjects(info)
        reported = SequenceSet(info.lost_sequences)
        writer = self.new_writer(self.reusable)
        capture = await self._snapshot(
            writer, SequenceSet(sequence for sequence in info.deleted or () if sequence not in reported)
        )
        segments: Sequence[SegmentRef] = await in_thread(writer.finish)
        reused = writer.reused
        segments = await self._without_deleted(writer, capture, segments, reported)
        around = AroundDamage(self.js, info, self.advance)
        if info.deleted is not None or not info.state.deleted:
            missing = self._missing(PresentSequences(info.state, info.deleted or ()))
            if missing:
                segments = await self._filled(segments, self._counted(around.read(missing)))
        now = await describe_stream(self.js, self.name)
        causes, lacking = self._lacking(around.unread, reported, now)
        if lacking and self.earlier:
            segments, lacking = await self._with_earlier(segments, lacking)
        lost = Losses(tuple(spans_of([*lacking.between(0, len(lacking))], causes)))
        if info.deleted is None and info.state.deleted:
            lost = self._not_counted(info, segments)
        elif lost and counts and _is_quiet(info, now):
            lost = Losses(lost.spans, self._lost_subjects(counts))
        archive_format = ArchiveFormat.MESSAGES if capture.end is None else ArchiveFormat(capture.end.format)
        return Stored(
            archive_format,
            info.state,
            Reading(ReadAs.MESSAGES, self.why),
            info.config,
            archived=tuple(capture.consumers),
            segments=tuple(segments),
            reused=reused,
            warnings=(self.why, *self.flaws, *self.notes),
        ).with_lost(lost)

    # --- the snapshot ---

    def add(self, writer: SegmentWriter, batch: pa.RecordBatch) -> None:
        """Take messages of the snapshot."""
        writer.add(batch)
        self.given.append(memoryview(columns_from_batch(batch).sequences).cast("B").cast("q"))
        self._count(batch)

    async def _snapshot(self, writer: SegmentWriter, deleted: SequenceSet) -> Capture:
        """Take a snapshot, as far as it goes."""
        begun = [Capture({}, StreamState())]
        attempts = SnapshotAttempts(self.js, self.name, self.limits, level=logging.INFO)
        while True:
            try:
                capture = await capture_snapshot(
                    self.js,
                    self.name,
                    _Sink(self, writer),
                    deleted=deleted,
                    consumers=self.consumers,
                    limits=self.limits,
                    advance=self.advance,
                    begun=begun.append,
                    lenient=True,
                )
            except SnapshotBusy as error:
                try:
                    await attempts.next(error)
                except SnapshotBusy:
                    self.flaws.append(f"it was read without a snapshot: {error.message}")
                    return begun[-1]
            except (ApiError, IntegrityError, NatsTimeout, TransferError, UnsupportedError) as error:
                self.flaws.append(f"its snapshot broke off: {error.message}")
                return begun[-1]
            else:
                self.flaws += capture.flaws
                return capture

    async def _without_deleted(
        self, writer: SegmentWriter, capture: Capture, segments: Sequence[SegmentRef], reported: SequenceSet
    ) -> Sequence[SegmentRef]:
        """Remove what an archive v1 says at its end to be deleted."""
        if capture.end is None or capture.end.format != "v1":
            return segments
        remove = await in_thread(messages_to_remove, capture.end, capture.config, segments, self.reader)
        remove = SequenceSet(sequence for sequence in remove if sequence not in reported)
        return await in_thread(writer.without, segments, remove) if remove else segments

    # --- what it lacks ---

    def _missing(self, present: PresentSequences) -> SequenceRanges:
        """Return what the stream has and has not been read."""
        ranges: Ranges = []
        for first in range(present.first, present.last + 1, _STEP):
            last = min(first + _STEP - 1, present.last)
            span = self.given.within(first, last)
            if len(span) < present.count(first, last):
                ranges += ranges_of(sorted({*present.within(first, last)}.difference(span)))
        return SequenceRanges(_joined(ranges))

    async def _filled(
        self, segments: Sequence[SegmentRef], batches: AsyncGenerator[pa.RecordBatch, None]
    ) -> Sequence[SegmentRef]:
        async with aclosing(batches):
            return await fill_in(self.new_writer(segments), segments, batches, self.reader)

    async def _counted(self, batches: AsyncGenerator[pa.RecordBatch, None]) -> AsyncGenerator[pa.RecordBatch, None]:
        async with aclosing(batches):
            async for batch in batches:
                self._count(batch)
                yield batch

    def _lacking(
        self, unread: Sequence[tuple[int, int, str]], reported: SequenceSet, now: StreamInfo
    ) -> tuple[Callable[[int], str], SequenceRanges]:
        """Return what could not be read, without what was deleted meanwhile; and a function that tells why."""
        reasons = {first: why for first, _, why in unread}
        starts = sorted(reasons)
        dropped = SequenceSet(sequence for sequence in now.lost_sequences if sequence not in reported)
        deleted = SequenceSet(sequence for sequence in now.deleted or () if sequence not in dropped)
        left, _ = SequenceRanges(_joined([(first, last) for first, last, _ in unread])).without(deleted)
        known = (sequence for sequence in reported if not self.given.within(sequence, sequence))

        def why(sequence: int) -> str:
            if sequence in reported or sequence in dropped:
                return REPORTED
            at = bisect_right(starts, sequence)
            return reasons[starts[at - 1]] if at else _UNREADABLE

        return why, SequenceRanges(_joined([*left.between(0, len(left)), *ranges_of(known)]))

    async def _with_earlier(
        self, segments: Sequence[SegmentRef], lacking: SequenceRanges
    ) -> tuple[Sequence[SegmentRef], SequenceRanges]:
        """Return the segments with messages of the last backup among theirs, and what is lacking after that."""
        sequences: list[int] = []
        try:
            batches = await in_thread(self._earlier, lacking)
        except KeyUnavailable as error:
            self.notes.append(f"the last backup may have some of what is lost, and cannot be read: {error.message}")
            return segments, lacking
        for batch in batches:
            sequences += batch.column("sequence").to_pylist()
        if not sequences:
            return segments, lacking
        self.notes.append(
            f"{format_count(len(sequences), 'message')} that the server cannot read any more were taken from the last "
            "backup"
        )
        left, _ = lacking.without(SequenceSet(sequences))
        return await self._filled(segments, self._counted(_each(batches))), left

    def _earlier(self, lacking: SequenceRanges) -> list[pa.RecordBatch]:
        """Return the messages of the last backup among these sequences."""
        batches = []
        for ref in self.earlier:
            start, stop = lacking.count_to(ref.first_seq - 1), lacking.count_to(ref.last_seq)
            if start == stop:
                continue
            wanted = {sequence for first, last in lacking.between(start, stop) for sequence in range(first, last + 1)}
            for batch in self.reader.read(ref):
                unwanted = set(batch.column("sequence").to_pylist()).difference(wanted)
                kept = drop_sequences(batch, sorted(unwanted))
                if kept.num_rows:
                    batches.append(kept)
        return batches

    # --- what is lost ---

    async def _count_subjects(self, info: StreamInfo) -> Mapping[bytes, int] | None:
        """Return how many messages each subject has, if there are not too many subjects."""
        if not 0 < info.subject_count <= _MOST_SUBJECTS:
            return None
        self.subjects = Counter()
        return {subject.encode(): count for subject, count in (await self.js.subjects(self.name, ">")).items()}

    def _count(self, batch: pa.RecordBatch) -> None:
        if self.subjects is None:
            return
        counts = pc.value_counts(batch.column("subject").cast(pa.binary()))
        for subject, count in zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True):
            self.subjects[subject] += count

    def _lost_subjects(self, counts: Mapping[bytes, int]) -> dict[str, int]:
        assert self.subjects is not None
        lost = {subject: count - self.subjects[subject] for subject, count in counts.items()}
        return {subject.decode(): count for subject, count in sorted(lost.items()) if count > 0}

    def _not_counted(self, info: StreamInfo, segments: Sequence[SegmentRef]) -> Losses:
        """Return the number of lost messages, of a stream with too many deleted ones to ask for."""
        count = info.state.messages - total_of(segments).messages
        span = LostSpan(info.state.first_seq, info.state.last_seq, count, True, _UNREADABLE)
        return Losses((span,) if count > 0 else ())


@dataclass(frozen=True, slots=True)
class _Sink:
    run: SalvageRun
    writer: SegmentWriter

    def add(self, batch: pa.RecordBatch) -> None:
        self.run.add(self.writer, batch)


def _is_quiet(before: StreamInfo, now: StreamInfo) -> bool:
    """Return whether nothing was stored or deleted meanwhile, except for what the server lost."""
    lost = now.lost - before.lost
    return (before.state.last_seq, before.state.messages) == (now.state.last_seq, now.state.messages + lost)


async def _each(batches: Iterable[pa.RecordBatch]) -> AsyncGenerator[pa.RecordBatch, None]:
    for batch in batches:
        yield batch


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return ranges in order, those that follow each other or overlap as one."""
    joined: Ranges = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined
