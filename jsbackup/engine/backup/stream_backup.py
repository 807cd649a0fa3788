"""Store one stream: capture it, complete its consumers from the API, describe it for the manifest.

**Vanished** messages were there when the backup began, and are gone at its end, although no limit removes any.

A server that finds a block of its store damaged or missing while it makes a snapshot v2 lowers its own count and goes
on (measured on 2.15.2). In what it says then, these messages cannot be told from deleted ones.

**Undelivered** messages are those that a server has and did not deliver in a reading of the whole stream.

Seen with 2.12.8, a stream with schedules and roll-ups: a snapshot, and the number of messages, lacked a sequence that
was not among the deleted ones, and that STREAM.MSG.GET returned before and after. So what was delivered is compared
with the sequences that the server lists afterwards: what a stream has then, it had before.

What the server cannot read as a whole is read as far as possible (`read/salvage.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice

import pyarrow as pa

from jsbackup.engine.backup.run import BackupRun
from jsbackup.engine.link.concurrency import in_thread
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.consumers import KnownConsumer, as_backed_up, merge_consumers
from jsbackup.engine.read.increment import Incremental, PresentSequences, Whole, signs_of_loss
from jsbackup.engine.read.join import take_increment
from jsbackup.engine.read.snapshot_transfer import CaptureLimits, Sink, capture_opaque
from jsbackup.engine.read.whole_stream import (
    DAMAGE_HINT,
    CaughtUp,
    SnapshotAttempts,
    Stored,
    WholeReading,
    WholeSource,
    check_count,
    cut_down,
    describe_stream,
    gone_at,
    is_damage,
    is_salvageable,
    read_whole,
    reported_losses,
    spans_of,
)
from jsbackup.errors import (
    IntegrityError,
    JsBackupError,
    KeyUnavailable,
    NatsPermissionDenied,
    TransferError,
    UnsupportedError,
)
from jsbackup.formats.sequences import SequenceSet, ranges_of
from jsbackup.model import Fidelity
from jsbackup.planning.interrupted import about_leftover
from jsbackup.progress import ignored
from jsbackup.protocol.info import StreamInfo, stored_config
from jsbackup.readable import count_were
from jsbackup.repository.manifest import (
    ArchiveFormat,
    Captured,
    Fact,
    FactKind,
    Losses,
    LostSpan,
    ReadAs,
    Reading,
    SegmentRef,
    Source,
    StreamBackup,
    total_of,
)
from jsbackup.repository.origin import Origin, origin_of
from jsbackup.repository.pages.segment_list import SegmentList
from jsbackup.repository.read.losses import about_losses
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.write.late_deletions import messages_to_remove
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.repository.write.receipts import Receipts
from jsbackup.repository.write.segment_writer import SegmentWriter, stored_segments, untouched
from jsbackup.repository.write.stream_objects import OpaqueWriter, store_consumer
from jsbackup.times import format_time
from jsbackup.transforms.filters.rising import RisingSequences
from jsbackup.transforms.removal import removes_messages

__all__ = ["back_up_stream"]


_CAUSE = "they were there when the backup began, and not at its end"
_MANY = 10


def vanished(before: StreamInfo, after: StreamInfo, *, suspected: bool) -> Losses:
    """Return which messages of `before` the stream `after` does not have: lost, unless somebody has deleted them.

    Unless damage is `suspected`, nothing is said of streams that remove messages by themselves, nor of what looks like
    deleted messages. Where sequences were missing before, only the number of messages is known.
    """
    if before.created != after.created or (removes_messages(before.config) and not suspected):
        return Losses()
    then, now = before.state, after.state
    if then.messages == then.last_seq - then.first_seq + 1 and (after.deleted is not None or not now.deleted):
        first, last = (now.first_seq, now.last_seq) if now.messages else (then.last_seq + 1, then.last_seq)
        missing = [(then.first_seq, min(first - 1, then.last_seq)), (max(last + 1, then.first_seq), then.last_seq)]
        deleted = SequenceSet(after.deleted or ())
        missing[1:1] = ranges_of(deleted.within(max(first, then.first_seq), min(last, then.last_seq)))
        if not suspected:  # a purge takes the first ones, and who deletes messages rarely takes so many in a row
            missing = [(low, high) for low, high in missing if low > then.first_seq and high - low + 1 >= _MANY]
        return Losses(
            tuple(spans_of([span for span in missing if span[0] <= span[1]], lambda _: _CAUSE, certain=False))
        )
    count = then.messages - (now.messages - max(0, now.last_seq - then.last_seq))
    if count <= 0 or not suspected:
        return Losses()
    return Losses((LostSpan(then.first_seq, then.last_seq, min(count, then.messages), False, _CAUSE),))


_WINDOW = 1 << 20  # sequences
_MOST_ASKED = 100


class Seen:
    """A sink that passes messages on and remembers their `sequences`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.sequences = RisingSequences()

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self.sequences.add(batch.column("sequence"))
        self._sink.add(batch)


async def find_undelivered(
    js: JetStream, now: StreamInfo, seen: RisingSequences, last_seq: int, *, removed: Iterable[int] = ()
) -> list[int]:
    """Return sequences up to `last_seq`, the first ones, that a reading has not `seen`, or `removed` as deleted,
    although the stream has them `now`: by its list of deleted ones, and by a request for each.
    """
    if now.deleted is None and now.state.deleted:
        return []
    present = PresentSequences(now.state, now.deleted or ())
    undelivered: list[int] = []
    again = (sequence for sequence in removed if sequence <= last_seq and sequence in present)
    for sequence in islice(chain(again, _lacking(present, seen, last_seq)), _MOST_ASKED):
        try:
            message = await js.message(now.name, sequence)
        except NatsPermissionDenied:
            break
        undelivered += [sequence] if message is not None else []
    return undelivered


def _lacking(present: PresentSequences, seen: RisingSequences, last_seq: int) -> Iterator[int]:
    """Yield the sequences that are present and were not seen."""
    for first in range(max(present.first, 1), min(present.last, last_seq) + 1, _WINDOW):  # of an unused stream it is 0
        last = min(first + _WINDOW - 1, present.last, last_seq)
        if seen.rank(last) - seen.rank(first - 1) < last - first + 1 - len(present.deleted.within(first, last)):
            held = set(seen.within(first, last).array().to_pylist())
            yield from (sequence for sequence in present.within(first, last) if sequence not in held)


_log = logging.getLogger(__name__)


async def salvage(capture: StreamCapture, why: str) -> Stored:
    """Store what can be read of a stream; `why` says what is wrong with it.

    What the last backup has need not be read again, so that this may be everything. Raises NatsError and StoreError.
    """
    from jsbackup.engine.read.salvage import SalvageRun  # few backups need it

    _log.warning("stream %s: %s; reading what can be read", capture.name, why)
    info = await capture.js.stream(capture.name)
    capture.run.progress.start(capture.name, info.state.bytes, info.state.messages)
    earlier: Sequence[SegmentRef] = ()
    if capture.previous is not None and capture.previous.created == info.created:
        earlier = await capture.still_stored(capture.previous.segments)
        if (stored := await _increment(capture, earlier, why)) is not None:
            return stored
    salvaged = await SalvageRun(
        capture.js,
        capture.name,
        why,
        capture.new_writer,
        SegmentReader(capture.run.repository.objects),
        await capture.reusable(),
        earlier,
        capture.run.options.consumers,
        capture.run.options.limits,
        capture.advance,
    ).run()
    return replace(salvaged, stored_bytes=capture.stored_bytes)


async def _increment(capture: StreamCapture, earlier: Sequence[SegmentRef], why: str) -> Stored | None:
    """Read only what is new, if all that the server cannot read is in the last backup; None if it is not."""
    try:
        stored = await capture.take_increment(Incremental.ALWAYS, earlier, earlier, ignored)
    except JsBackupError as error:
        if not is_salvageable(error):
            raise
        return None
    if isinstance(stored, Whole):
        return None
    assert stored.read is not None
    return replace(
        stored,
        read=Reading(ReadAs.INCREMENT, f"{why}; {stored.read.why}"),
        warnings=(why, "what was stored before the last backup is taken from that"),
    )


# How often a snapshot is repeated if messages are missing that the user may not read one by one.
_DENIALS = 2
_SHOWN = 5  # sequences in a warning
_BY_MESSAGES = "read message by message: this server cannot make snapshots of streams kept in memory"


async def capture_stream(
    run: BackupRun,
    js: JetStream,
    folder: str,
    name: str,
    *,
    origin: Origin,
    previous: StreamBackup | None,
    receipts: Receipts,
) -> Stored:
    """Store what the last backup, `previous`, lacks, or everything. Raises the error if that is impossible.

    What the server has lost since makes the result incomplete: it may be the only notice of that. What a restore took
    back is not lost.
    """
    capture = StreamCapture(run, js, folder, name, origin=origin, previous=previous, receipts=receipts)
    with closing(capture):
        stored = await capture.increment()
        if isinstance(stored, Whole):
            why, lost = stored.why, stored.why if stored.lost else ""
            stored = await capture.store_whole(why)
            if lost := lost or capture.loss:
                stored = replace(stored, goes_back=True)
                if not await in_thread(capture.was_restored):
                    facts = (Fact(FactKind.LOST_SINCE, detail=lost),)
                    stored = replace(stored, facts=facts, incomplete=True)
    return replace(stored, created=capture.created)


class StreamCapture:
    """The capture of one stream, for any number of attempts."""

    def __init__(
        self,
        run: BackupRun,
        js: JetStream,
        folder: str,
        name: str,
        *,
        origin: Origin,
        previous: StreamBackup | None,
        receipts: Receipts,
    ) -> None:
        self.run = run
        self.js = js
        self._origin = origin
        self.folder = folder
        self.name = name
        self.previous = previous
        self.receipts = receipts
        self.created = ""  # of the stream that was read
        self._first: StreamInfo | None = None  # before it was first read completely
        self._last: StreamInfo | None = None  # after the last one, of an archive v2
        self._contradicted = False  # whether messages were not delivered that the server has
        self._denials = 0  # how often messages were missing that the user may not read
        self._shunned: set[str] = set()  # unreadable segments that hold messages to be removed
        self._writers_bytes = 0  # stored by all attempts except the last
        self._last_writer: SegmentWriter | None = None

    def advance(self, byte_count: int, messages: int) -> None:
        self.run.progress.advance(self.name, byte_count, messages)

    async def still_stored(self, *lists: Sequence[SegmentRef]) -> list[SegmentRef]:
        segments = await in_thread(stored_segments, self.run.repository.objects, self.folder, *lists)
        return [ref for ref in segments if ref.key not in self._shunned]

    async def _kept(self, segments: Sequence[SegmentRef]) -> Sequence[SegmentRef]:
        """Return the segments of the previous backup that can be kept.

        A long list is not looked for, nor those of many streams: no prune removes what its manifest names while this
        run has its lease.
        """
        trusted = isinstance(segments, SegmentList) or self.run.many
        if trusted and not (self.run.repository.objects.damaged_in(self.folder) or self._shunned):
            return segments
        return await self.still_stored(segments)

    async def reusable(self) -> list[SegmentRef]:
        """Return the stored segments: of the previous backup, and those that later runs and attempts have left."""
        if self._last_writer is not None:  # it may still be storing a segment
            await in_thread(self._last_writer.settle)
        return await self.still_stored(*self.receipts.candidates(self.folder, self.previous))

    def new_writer(self, reusable: Sequence[SegmentRef]) -> SegmentWriter:
        self._writers_bytes = self.stored_bytes
        self.close()
        self._last_writer = SegmentWriter(self.run.repository.objects, self.folder, reusable, note=self.receipts.note)
        return self._last_writer

    def close(self) -> None:
        """Release what the last attempt still holds, if it failed."""
        if self._last_writer is not None:
            self._last_writer.close()

    @property
    def stored_bytes(self) -> int:
        """Bytes added to the store in all attempts; each continues with the segments of the one before."""
        return self._writers_bytes + (self._last_writer.stored_bytes if self._last_writer else 0)

    def was_restored(self) -> bool:
        """Return whether the stream was restored to an earlier state since the previous backup, by our records."""
        assert self.previous is not None
        return self.run.restores.took_back(self._origin, self.name, self.previous.captured.begun)

    @property
    def loss(self) -> str:
        """What shows that the stream has lost messages of the previous backup, when it began to be read completely; ""
        if nothing does. What was listed before does not count: another backup may have stored more since.
        """
        if self.previous is None or self._first is None:
            return ""
        return signs_of_loss(self.previous, self._first)

    async def increment(self) -> Stored | Whole:
        """Capture what is new since the previous backup, or return why the stream has to be read completely."""
        if self.run.options.incremental is Incremental.NEVER:
            return Whole("it was asked for")
        if self.run.options.check:
            return Whole("the server checks its store when it makes a snapshot")
        if self.previous is None:
            return Whole("there is no earlier backup of it")
        # Receipts prove nothing: segments that are kept unread must be from the previous backup. The others only save
        # storing.
        kept = await self._kept(self.previous.segments)
        since = self.receipts.candidates(self.folder, None)
        reusable = await self.still_stored(kept, *since) if since else kept
        stored = await self.take_increment(
            self.run.options.incremental,
            kept,
            reusable,
            lambda byte_count, messages: self.run.progress.start(self.name, byte_count, messages),
        )
        if isinstance(stored, Stored):
            self.created = stored.created
        return stored

    async def take_increment(
        self,
        mode: Incremental,
        kept: Sequence[SegmentRef],
        reusable: Sequence[SegmentRef],
        start: Callable[[int, int], None],
    ) -> Stored | Whole:
        """Store what is new since the previous backup, of which `kept` is in the store.

        Raises NatsError, IntegrityError, StoreError.
        """
        assert self.previous is not None
        joined = await take_increment(
            self.js,
            mode,
            self.previous,
            kept,
            new_writer=lambda: self.new_writer(reusable),
            start=start,
            advance=self.advance,
            consumers=self.run.options.consumers,
        )
        if isinstance(joined, Whole):
            return joined
        try:
            segments = await in_thread(self.run.repository.listed, joined.segments)
        except (IntegrityError, UnsupportedError) as error:  # a page of the last backup; the server has the messages
            return Whole(error.message)
        return Stored(
            ArchiveFormat.MESSAGES,
            joined.info.state,
            Reading(ReadAs.INCREMENT, joined.why),
            joined.info.config,
            joined.consumers,
            segments=segments,
            reused=joined.reused,
            stored_bytes=self.stored_bytes,
            created=joined.info.created,
        )

    async def store_whole(self, why: str) -> Stored:
        """Capture the whole stream; `why` is the reason for that. What is damaged is salvaged, if so asked."""
        attempts = SnapshotAttempts(self.js, self.name, self.run.options.limits)
        suspected = False  # whether a snapshot failed by damage

        async def attempt(limits: CaptureLimits, unsupported: UnsupportedError | None) -> Stored:
            nonlocal suspected
            try:
                return await self._attempt(why, limits, unsupported)
            except JsBackupError as error:
                suspected = suspected or (unsupported is None and is_damage(error))
                raise

        try:
            return await self._with_vanished(await attempts.run(attempt), suspected=suspected)
        except JsBackupError as error:
            if self.run.options.salvage and is_salvageable(error):
                return await salvage(self, f"its snapshot fails: {error.message}")
            raise error.with_more_hint(DAMAGE_HINT) if is_damage(error) else error from error.__cause__

    async def _attempt(self, why: str, limits: CaptureLimits, unsupported: UnsupportedError | None) -> Stored:
        """Capture the stream from a snapshot. If none can be made (`unsupported`), message by message; or undecoded, if
        it cannot be decoded.
        """
        info = await self.js.stream(self.name)
        self._first, self.created = self._first or info, info.created
        if unsupported is not None and info.config.get("storage") != "memory":
            return await self._opaque(info, limits, why, unsupported.message)
        options = self.run.options
        self.run.progress.start(self.name, info.state.bytes, info.state.messages)
        reusable = await self.reusable()
        writer = self.new_writer(reusable)
        seen, remove = Seen(writer), SequenceSet()
        source = WholeSource(self.js, self.name, self.advance, consumers=options.consumers, check=options.check)
        reading = await read_whole(source, info, seen, limits, by_messages=unsupported is not None)
        capture, then = reading.capture, reading.state
        touched = {ref.key for ref in reusable}
        try:
            if reading.archive_format is ArchiveFormat.V1:
                assert capture is not None and capture.end is not None
                segments = await in_thread(writer.finish)
                reader = SegmentReader(self.run.repository.objects)
                remove = await in_thread(messages_to_remove, capture.end, capture.config, segments, reader)
                touched -= {ref.key for ref in untouched(reusable, remove)}
                stored = Stored(ArchiveFormat.V1, then, segments=await in_thread(writer.without, segments, remove))
                then = capture.state
            else:
                stored = await self._complete(writer, reading)
        except (KeyUnavailable, IntegrityError) as error:
            # Segments of an earlier run that are encrypted or damaged had to be read: do not build on them.
            if not touched:
                raise
            self._shunned |= touched
            _log.info("stream %s: %s; trying again without it", self.name, error.message)
            return await self._attempt(why, limits, unsupported)
        if reading.archive_format is ArchiveFormat.V1:
            await check_count(self.js, self.name, then, total_of(stored.segments).messages)
        notes = () if capture is not None else (_BY_MESSAGES,)
        stored = replace(
            stored,
            archive_format=reading.archive_format,
            read=Reading(ReadAs.MESSAGES if capture is None else ReadAs.SNAPSHOT, why),
            config=stored.config or (info if capture is None else capture).config,
            archived=() if capture is None else tuple(capture.consumers),
            segments=tuple(stored.segments),
            reused=writer.reused,
            stored_bytes=self.stored_bytes,
            warnings=(*notes, *stored.warnings),
            incomplete=bool(stored.warnings),
        )
        before, now = reading.before, await describe_stream(self.js, self.name)
        if reading.archive_format is ArchiveFormat.V2:  # the server may have found damage while it read its messages
            before = self._last = now
        stored = await self._without_undelivered(stored, now, seen, then.last_seq, removed=remove)
        lost = reported_losses(before, stored.segments)
        if lost and options.salvage:
            return await salvage(self, f"the server has lost {about_losses(lost)}")
        return stored.with_lost(lost)

    async def _without_undelivered(
        self, stored: Stored, now: StreamInfo, seen: Seen, last_seq: int, *, removed: Iterable[int] = ()
    ) -> Stored:
        """Return the result, incomplete if the server has messages up to `last_seq` that it did not deliver. Raises
        TransferError for the first time.
        """
        if now.created != self.created:
            return stored
        undelivered = await find_undelivered(self.js, now, seen.sequences, last_seq, removed=removed)
        if not undelivered:
            return stored
        shown = ", ".join(map(str, undelivered[:_SHOWN])) + (", …" if len(undelivered) > _SHOWN else "")
        problem = f"the server has messages that it does not deliver with the others: {shown}"
        if not self._contradicted:
            self._contradicted = True
            raise TransferError(f"stream {self.name}: {problem}")
        return replace(stored, warnings=(*stored.warnings, problem), incomplete=True)

    async def _with_vanished(self, stored: Stored, *, suspected: bool) -> Stored:
        """Return the result with what is gone since the first snapshot began. `suspected`: one failed by damage."""
        if self._first is None or stored.lost or not (suspected or self._last):
            return stored
        then = self._first.state
        new = max(0, stored.state.last_seq - then.last_seq)
        if total_of(stored.segments).messages - new >= then.messages:  # salvage took what is gone from the last backup
            return stored
        after = self._last or await describe_stream(self.js, self.name)
        return stored.with_lost(vanished(self._first, after, suspected=suspected))

    async def _complete(self, writer: SegmentWriter, reading: WholeReading) -> Stored:
        """Return the segments, and a state that the stream really had; warnings say what is missing.

        If some of its messages were deleted before they were read, that is the state of now.
        """
        if reading.denied and self._denials < _DENIALS:  # another attempt may be made at a moment without writes
            self._denials += 1
            raise TransferError(f"messages of {self.name} were overwritten while it was read")
        segments = await in_thread(writer.finish)
        stored = Stored(ArchiveFormat.MESSAGES, reading.state, segments=segments)
        if reading.denied:
            note = "messages that were overwritten while it was read are missing, because the user may not read on"
            return replace(stored, warnings=(f"{note}: {reading.denied}",))
        if (caught := reading.caught) is not None:
            reader = SegmentReader(self.run.repository.objects)
            segments = await cut_down(writer, segments, caught, reader, after=reading.state.last_seq)
            state, config, warnings = caught.info.state, caught.info.config, _about_missing(caught)
            return Stored(ArchiveFormat.MESSAGES, state, config=config, segments=segments, warnings=warnings)
        if reading.messages == reading.state.messages:
            return stored
        now = await describe_stream(self.js, self.name)
        if now.deleted is None and now.state.deleted:
            return stored
        deleted = gone_at(now, segments, reading.state.last_seq)
        with suppress(KeyUnavailable):  # messages deleted since they were read stay
            cut = partial(writer.without, segments, deleted, first=now.state.first_seq)
            stored = replace(stored, segments=await in_thread(cut))
        return stored

    async def _opaque(self, info: StreamInfo, limits: CaptureLimits, why: str, unsupported: str) -> Stored:
        self.run.progress.start(self.name, info.state.bytes, 0)
        writer = OpaqueWriter(self.run.repository.objects, self.folder)
        capture = await capture_opaque(
            self.js, self.name, writer.feed, consumers=self.run.options.consumers, limits=limits, advance=self.advance
        )
        pieces = await in_thread(writer.finish)
        note = f"stored in the server's format, not decoded and not verified: {unsupported}"
        return Stored(
            ArchiveFormat.OPAQUE,
            capture.state,
            Reading(ReadAs.SNAPSHOT, why),
            capture.config,
            opaque=tuple(pieces),
            stored_bytes=writer.stored_bytes,
            warnings=(note,),
        )


def _about_missing(caught: CaughtUp) -> tuple[str, ...]:
    count = count_were(caught.missing, "message")
    return (f"{count} overwritten faster than they could be read and are missing",) if caught.missing else ()


async def back_up_stream(
    run: BackupRun,
    js: JetStream,
    info: StreamInfo,
    *,
    source: Source,
    previous: StreamBackup | None,
    receipts: Receipts,
    attempts: int = 3,
) -> StoredStream:
    """Store one stream, whose last backup is `previous`; `receipts` know what was stored since.

    One that was created again since `info` is read anew, in that many attempts. Raises the error if it fails; objects
    stored by then are unused.
    """
    repository, options = run.repository, run.options
    incarnation = source.incarnation(info.name, info.created)
    folder = repository.objects.sealing.folder(info.name, incarnation)
    begun_ns = run.clock_ns()
    if options.config_only:
        stored = Stored(ArchiveFormat.CONFIG, info.state)
    else:
        origin = origin_of(source)
        stored = await capture_stream(run, js, folder, info.name, origin=origin, previous=previous, receipts=receipts)
        assert stored.read is not None
        if stored.created != info.created:
            if attempts == 1:
                raise TransferError(f"stream {info.name} was deleted and created again while it was read")
            now = await js.stream(info.name)
            return await back_up_stream(
                run, js, now, source=source, previous=None, receipts=receipts, attempts=attempts - 1
            )
        _log.info("stream %s: %s: %s", info.name, stored.read.how, stored.read.why)
    marked = about_leftover(info.config)
    warnings = [*marked, *stored.warnings]
    known: list[KnownConsumer] = []
    lost: set[str] = set()
    if options.consumers:
        inventory = stored.inventory or await js.consumers(info.name)
        known = merge_consumers(stored.archived, inventory, stored.state.last_seq)
        lost = {*inventory.missing, *inventory.offline} - {item.consumer.name for item in known}
        warnings += [f"consumer {name} did not answer and is not in the backup" for name in sorted(lost)]
        if options.config_only:
            known = [KnownConsumer(replace(item.consumer, state=None), Fidelity.CONFIG_ONLY) for item in known]
        if stored.archive_format is ArchiveFormat.OPAQUE:
            inside = "its state is inside the snapshot, which was stored undecoded"
            known = [replace(item, reason=inside) if item.reason else item for item in known]
    totals = total_of(stored.segments)
    config = stored_config(info.config if stored.config is None else stored.config)
    stream = StreamBackup(
        name=info.name,
        incarnation=incarnation,
        config=config,
        created=info.created,
        state=stored.state,
        captured=Captured.of(totals, format_time(begun_ns), format_time(run.clock_ns())),
        archive_format=stored.archive_format,
        digest=totals.digest,
        segments=stored.segments,
        consumers=tuple(store_consumer(repository.objects, folder, as_backed_up(item)) for item in known),
        opaque=stored.opaque,
        warnings=tuple(warnings),
        facts=stored.facts,
        read=stored.read,
        lost=stored.lost,
        life=format_time(begun_ns) if stored.goes_back else previous.life if previous is not None else "",
    )
    incomplete = bool(lost or marked) or stored.incomplete or stored.archive_format is ArchiveFormat.OPAQUE
    return StoredStream(stream, stored.reused, stored.stored_bytes, incomplete=incomplete)
