"""Read what can be read of a stream whose snapshot fails.

1. A snapshot all the same: servers before 2.15 send whole blocks, so everything that checksums prove is taken from a
   damaged one (`archive_v1_reader.py`); later ones pass over messages that they cannot read. If it breaks off, what
   came is kept. This comes first: a server that is asked for single messages cuts a block off at its first damage, on
   its disk.
2. What the stream has and the snapshot lacks is requested message by message (`around_damage.py`).
3. What is still lacking is taken from the last backup, if that has it: a message never changes under its sequence.

What is lost after that is known exactly: the server says which sequences it has, and which it has lost.

Put messages between those of stored segments.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.threads import in_thread
from jsbackup.engine.read.catch_up import describe_stream
from jsbackup.engine.read.increment import PresentSequences
from jsbackup.engine.read.salvage.around_damage import AroundDamage, SequenceRanges, merged
from jsbackup.engine.read.salvage.damage import REPORTED, Ranges, spans_of
from jsbackup.engine.read.snapshot_acks import CaptureLimits
from jsbackup.engine.read.snapshot_attempts import SnapshotAttempts
from jsbackup.engine.read.snapshot_transfer import Advance, Capture, capture_snapshot
from jsbackup.errors import (
    ApiError,
    IntegrityError,
    KeyUnavailable,
    NatsTimeout,
    SnapshotBusy,
    TransferError,
    UnsupportedError,
)
from jsbackup.formats.batch import columns_from_batch
from jsbackup.formats.segment import drop_sequences
from jsbackup.formats.sequences import GivenSequences, SequenceSet, ranges_of
from jsbackup.model import ArchivedConsumer, JsonObject, StreamState
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.manifest import ArchiveFormat, Losses, LostSpan, SegmentRef, total_of
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.write.late_deletions import messages_to_remove
from jsbackup.repository.write.segment_writer import SegmentWriter

__all__ = ["SalvageRun"]


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
        found: list[pa.RecordBatch] = []
        while (batch := await self.next()) is not None:
            sequences = memoryview(columns_from_batch(batch).sequences).cast("B").cast("q")
            count = sum(1 for one in sequences if one <= last) if sequences[-1] > last else len(sequences)
            if count:
                found.append(batch.slice(0, count))
            if count < len(sequences):
                self._batch = batch.slice(count)
                break
        return found


_STEP = 1 << 20  # sequences that are compared at once
_MOST_SUBJECTS = 10_000
_UNREADABLE = "the server cannot read them"


@dataclass(frozen=True, slots=True)
class SalvagedStream:
    """What could be read. `flaws` are sentences about the server's store, `notes` about what was done instead."""

    segments: Sequence[SegmentRef]
    state: StreamState
    config: JsonObject
    archive_format: ArchiveFormat
    archived: tuple[ArchivedConsumer, ...]
    lost: Losses
    flaws: tuple[str, ...]
    notes: tuple[str, ...]
    reused: int


@dataclass
class SalvageRun:
    """The salvage of the stream `name`.

    `new_writer` makes a writer that continues stored segments. `reusable` are such segments, `earlier` those of the
    last backup, `backup`.
    """

    js: JetStream
    name: str
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

    async def run(self) -> SalvagedStream:
        """Raises NatsError if the server does not answer, and StoreError."""
        info = await describe_stream(self.js, self.name)
        counts = await self._count_subjects(info)
        reported = SequenceSet(info.lost_sequences)
        writer = self.new_writer(self.reusable)
        capture = await self._snapshot(writer, SequenceSet(one for one in info.deleted or () if one not in reported))
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
        return SalvagedStream(
            segments,
            info.state,
            info.config,
            archive_format,
            tuple(capture.consumers),
            lost,
            tuple(self.flaws),
            tuple(self.notes),
            reused,
        )

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
        remove = SequenceSet(one for one in remove if one not in reported)
        return await in_thread(writer.without, segments, remove) if remove else segments

    # --- what it lacks ---

    def _missing(self, present: PresentSequences) -> SequenceRanges:
        """Return what the stream has and has not been read."""
        ranges: Ranges = []
        for first in range(present.first, present.last + 1, _STEP):
            last = min(first + _STEP - 1, present.last)
            found = self.given.within(first, last)
            if len(found) < present.count(first, last):
                ranges += ranges_of(sorted({*present.within(first, last)}.difference(found)))
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
        dropped = SequenceSet(one for one in now.lost_sequences if one not in reported)
        gone = SequenceSet(one for one in now.deleted or () if one not in dropped)
        left, _ = SequenceRanges(_joined([(first, last) for first, last, _ in unread])).without(gone)
        known = (one for one in reported if not self.given.within(one, one))

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
        found: list[int] = []
        try:
            batches = await in_thread(self._earlier, lacking)
        except KeyUnavailable as error:
            self.notes.append(f"the last backup may have some of what is lost, and cannot be read: {error.message}")
            return segments, lacking
        for batch in batches:
            found += batch.column("sequence").to_pylist()
        if not found:
            return segments, lacking
        self.notes.append(
            f"{_messages(len(found))} that the server cannot read any more were taken from the last backup"
        )
        left, _ = lacking.without(SequenceSet(found))
        return await self._filled(segments, self._counted(_each(batches))), left

    def _earlier(self, lacking: SequenceRanges) -> list[pa.RecordBatch]:
        """Return the messages of the last backup among these sequences."""
        found = []
        for ref in self.earlier:
            start, stop = lacking.count_to(ref.first_seq - 1), lacking.count_to(ref.last_seq)
            if start == stop:
                continue
            wanted = {one for first, last in lacking.between(start, stop) for one in range(first, last + 1)}
            for batch in self.reader.read(ref):
                unwanted = set(batch.column("sequence").to_pylist()).difference(wanted)
                kept = drop_sequences(batch, sorted(unwanted))
                if kept.num_rows:
                    found.append(kept)
        return found

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
    found: Ranges = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"
