"""Clone one stream from server to server: nothing is stored, and only digests are kept.

A capture at the source, a restore at the target, and a bounded relay of batches between their two worker threads, so
that the slower side sets the pace of both. If the target is slow, the capture gets little credit
(`snapshot_transfer.py`); if the source is slow, the restore is kept alive byte by byte (`send_archive.py`).

Some facts that a repository has in advance are only learnt during the transfer:

- **How the stream ends.** The archive begins with the source's state at the beginning of its snapshot, and ends where
  that ends.
- **Consumers.** A snapshot v2 has them first, v1 last, and so do the archives that are sent. So from v1 to v2 their
  states are those that the API reports, unless a small stream is read completely before anything is sent.
- **Overwritten messages.** If messages were overwritten before they were read, the source is read further
  (`read/whole_stream.py`). Which ones are deleted by then is only known afterwards.
- **Late deletions.** A snapshot v1 reports at its end which of its messages had been deleted (`late_deletions`). The
  target has them by then, so they are deleted there before the stream counts as complete. Until then it has a
  configuration that allows that (`LiveSupply.on_the_way`). Doubtful ones stay: those replaced by newer messages of a
  subject are removed by the target's own limit.

The end of a cut stream is only known when all of it was read: until then its state does not end later than it will.

**The newest messages** of each subject (`LiveNewest`), of a stream that is written to while it is cloned.

Which ones they are is found before the messages are sent, in a reading of its own: without payloads, unless these are
filtered. Of what comes after that reading all is sent. In the end, messages that are not the newest any more are
superseded, and deleted at the target. So the copy has the newest messages of the source as it was when it was read to
its end; except that one that was deleted meanwhile is not replaced by an older one.

All subjects are in memory, as they are in that of the servers.

A supply (`LiveSupply`) clones streams one by one, and repeats that if the source fails. A stream of which no snapshot
can be made, or decoded, is read message by message. To replace a stream, a copy is first made and proved beside it. The
replacement is then made from that copy, not from the source, which may have other messages by then.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.config.connection import Connection
from jsbackup.engine.clone.run_digests import CopyVerdict, Ledger, Rows, Run, RunDigests, judge
from jsbackup.engine.link.bounded_queues import Relay
from jsbackup.engine.link.concurrency import in_thread
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.read.consume import Row, read_messages, rows_as_batch, rows_of
from jsbackup.engine.read.consumers import as_backed_up, merge_consumers
from jsbackup.engine.read.increment import PresentSequences
from jsbackup.engine.read.snapshot_transfer import Advance, Capture, CaptureLimits
from jsbackup.engine.read.whole_stream import (
    REPEATABLE,
    SnapshotAttempts,
    WholeReading,
    WholeSource,
    check_count,
    describe_stream,
    read_whole,
)
from jsbackup.engine.restore.proof import Proof, about_lacking, consumers_of, excuses, read_back, server_clock, taken_by
from jsbackup.engine.restore.send_archive import (
    PAUSE_SECONDS,
    Delivery,
    Sent,
    Supply,
    deliver_once,
    did_not_begin,
    writer_for,
)
from jsbackup.errors import (
    ApiError,
    DigestMismatch,
    JsBackupError,
    NatsPermissionDenied,
    PlanRefused,
    TargetConflict,
    UnsupportedError,
)
from jsbackup.formats.archive.archive import archive_batches
from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
from jsbackup.formats.s2 import S2Encoder
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import Fidelity, JsonObject, StreamState
from jsbackup.planning.copies.copy_facts import sources_of
from jsbackup.planning.interrupted import about_mark
from jsbackup.planning.model import Action, PlannedConsumer, RestorePlan, SendAs
from jsbackup.planning.reshaping import about_markers
from jsbackup.planning.rules import Finding
from jsbackup.planning.selection.chosen_streams import against_missed
from jsbackup.planning.selection.masking import about_masks, about_nothing_kept
from jsbackup.progress import ignored
from jsbackup.protocol.info import ConsumerInfo, StreamInfo
from jsbackup.protocol.paging import Listing
from jsbackup.protocol.restore import RestoreSender
from jsbackup.readable import count_are, format_count
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
from jsbackup.repository.read.segments import state_to_restore
from jsbackup.server_state import clamp_state
from jsbackup.transforms.batches import SEQUENCE, with_column
from jsbackup.transforms.copied_from import Mend
from jsbackup.transforms.copy_positions import is_external, source_key
from jsbackup.transforms.cut import AtSequence, AtTime
from jsbackup.transforms.filters.newest import NewestFinder, rows_of_subjects
from jsbackup.transforms.filters.rising import RisingSequences
from jsbackup.transforms.removal import Cause
from jsbackup.transforms.renumber import renumbered_consumer, renumbered_state
from jsbackup.transforms.reshape import Reshape, ReshapeTally

__all__ = ["Ends", "LiveSupply"]

_ANY_SIZE = 1 << 62
_SIZE_HEADER = "nats-msg-size"  # added by servers where a consumer gets no payloads


class LiveNewest:
    """What is known of the newest messages. `chosen` grows with what comes after sequence `end`."""

    def __init__(self, finder: NewestFinder, keeping: Reshape, end: int) -> None:
        self._finder = finder
        self._keeping = keeping
        self._end = end
        self.chosen = RisingSequences.of(finder.sequences())

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages that are about to be sent; later ones than before are chosen too."""
        for batch in batches:
            if batch.num_rows and batch.column("sequence")[-1].as_py() > self._end:
                self._choose(batch.filter(pc.greater(batch.column("sequence"), self._end)))
            yield batch

    def superseded(self) -> SequenceSet:
        """Return the chosen messages that are not the newest any more."""
        newest, chosen = self._finder.sequences(), self.chosen.array()
        return SequenceSet(chosen.filter(pc.invert(pc.is_in(chosen, value_set=newest))).to_pylist())

    def _choose(self, later: pa.RecordBatch) -> None:
        for kept in self._keeping.apply([later], stream=""):
            self._finder.add(rows_of_subjects(kept, self._finder.rule))
            self.chosen.add(kept.column("sequence"))


async def look_for_newest(js: JetStream, stream: str, reshape: Reshape) -> LiveNewest | None:
    """Read a stream, and return what `reshape.newest` keeps of it; None if all is kept.

    Raises NatsError, FormatError and UnsupportedError.
    """
    if reshape.newest is None:
        return None
    keeping = replace(reshape.keeping, newest=None)
    finder = NewestFinder(reshape.newest, most_bytes=_ANY_SIZE)
    info = await js.stream(stream, deleted_details=True)
    async for batch in read_messages(js, info, ignored, only=_only(keeping)):
        for kept in keeping.apply([batch], stream=stream):
            await in_thread(finder.add, rows_of_subjects(kept, reshape.newest))
    return LiveNewest(finder, keeping, info.state.last_seq)


def _only(keeping: Reshape) -> dict[str, bool]:
    """Return what the reading can do without."""
    filters = keeping.filters
    named = any(rule.name.lower() == _SIZE_HEADER for rule in filters.header)
    return {} if named or "data" in filters.columns else {"headers_only": True}


Replan = Callable[[StreamBackup, SendAs], RestorePlan]
"""Makes a plan for one stream as it was found, to be sent in this way."""


@dataclass(frozen=True, slots=True)
class CloneSource:
    """The stream `name` of the server behind `js`, reshaped by `reshape`.

    `consumers` are those that are already known, by name. `secret` is the key for hashing values. `newest` knows what
    `reshape` keeps, if that are the newest messages of each subject.
    """

    js: JetStream
    name: str
    replan: Replan
    consumers: Mapping[str, PlannedConsumer] | None = None
    reshape: Reshape = field(default_factory=Reshape)
    secret: bytes = field(default=b"", repr=False)
    newest: LiveNewest | None = None

    def reshaped(
        self, batches: Iterable[pa.RecordBatch], tally: ReshapeTally | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Return the messages as they are sent. Raises PlanRefused, UsageError, FormatError."""
        if not self.reshape:
            return iter(batches)
        if self.newest is not None:
            batches = self.newest.watch(batches)
        return self.reshape.apply(batches, stream=self.name, secret=self.secret, tally=tally)

    def reshaped_again(
        self, batches: Iterable[pa.RecordBatch], numbers: RisingSequences | None
    ) -> Iterator[pa.RecordBatch]:
        """Return messages that are read once more as they were sent; `numbers` are those with new sequences."""
        if numbers is None:
            yield from self.reshape.apply(batches, stream=self.name, secret=self.secret) if self.reshape else batches
            return
        again = replace(self.reshape, renumber=False)
        for batch in again.apply(batches, stream=self.name, secret=self.secret):
            kept = batch.filter(numbers.rows(batch.column(SEQUENCE)))
            ranks = [numbers.rank(sequence) for sequence in kept.column(SEQUENCE).to_pylist()]
            yield with_column(kept, SEQUENCE, pa.array(ranks, pa.int64()))

    def state_before(self, state: StreamState) -> StreamState:
        """Return the state at the beginning, as far as it is known; later messages move its end."""
        if self.reshape.renumber:
            return replace(state, first_seq=1, last_seq=0, last_ns=0)
        until = self.reshape.cut.until
        if isinstance(until, AtSequence) and until.sequence < state.last_seq:
            return replace(state, last_seq=until.sequence, last_ns=0)
        if isinstance(until, AtTime) and not 0 < state.last_ns <= until.time_ns:
            return replace(state, last_seq=0, last_ns=0)
        return state

    def state_after(self, state: StreamState, tally: ReshapeTally, size: int, wire: SendAs) -> StreamState:
        """Return the state after everything was sent, in `size` bytes, of a stream that had `state`.

        In v2 the state comes first. So with a cut in time, whose end is not known before, the stream ends with its last
        message.
        """
        if self.reshape.renumber:
            count, times = tally.kept.messages, (tally.kept.first_ns, tally.kept.last_ns)
            first_ns, last_ns = times if count else (0, 0)
            renumbered = replace(state, messages=count, bytes=size, first_seq=1 if count else 0, last_seq=count)
            return replace(renumbered, first_ns=first_ns, last_ns=last_ns, deleted=0)
        if not self.reshape.drops:
            return state
        came = tally.came
        before = replace(
            state, first_seq=came.first_seq or state.first_seq, last_seq=max(state.last_seq, came.last_seq)
        )
        kept = tally.kept
        after = self.reshape.cut.state_after(before, came.last_seq, tally.cut, kept, size=size)
        if wire is not SendAs.V2 or not isinstance(self.reshape.cut.until, AtTime) or not kept.messages:
            return after
        fewer = after.last_seq - kept.last_seq
        return replace(after, last_seq=kept.last_seq, last_ns=kept.last_ns, deleted=after.deleted - fewer)

    def placed(self, planned: PlannedConsumer, wire: SendAs, last_seq: int, tally: ReshapeTally) -> PlannedConsumer:
        """Return a consumer as it can be sent, given the end of the stream at the source.

        In v2 states come first, when the sequence of a cut in time and new sequences are not known yet.
        """
        if wire is SendAs.V2 and (self.reshape.renumber or isinstance(self.reshape.cut.until, AtTime)):
            what = "--renumber its new position" if self.reshape.renumber else "--until TIME the end of the stream"
            note = f"starts from its beginning: with {what} is not known before"
            # From the first message on, so that none is left out.
            start = {"opt_start_seq": 1} if planned.consumer.config.get("opt_start_seq") else {}
            config = {**planned.consumer.config, **start} if self.reshape.renumber else planned.consumer.config
            consumer = replace(planned.consumer, config=config, state=None)
            return replace(planned, consumer=consumer, fidelity=Fidelity.CONFIG_ONLY, note=note)
        if not self.reshape.renumber:
            return planned
        state = planned.consumer.state
        if state is not None:
            state = renumbered_state(clamp_state(state, last_seq, tally.numbered), tally.numbered)
        config = renumbered_consumer(planned.consumer.config, tally.numbered)
        return replace(planned, consumer=replace(planned.consumer, config=config, state=state))


_DELETES_AT_ONCE = 64


async def find_not_held(js: JetStream, name: str, held: PresentSequences) -> SequenceSet:
    """Return the messages of the target that the source did not hold in the end."""
    info = await describe_stream(js, name)
    ours = PresentSequences(info.state, info.deleted or ())
    before = ours.within(ours.first, held.first - 1)
    return SequenceSet([*before, *(s for s in held.deleted.within(held.first, held.last) if s in ours)])


def not_held(numbers: RisingSequences, held: PresentSequences) -> SequenceSet:
    """Return the numbered messages that the source did not hold in the end, by their sequences there."""
    before = numbers.within(1, held.first - 1).array().to_pylist()
    return SequenceSet([*before, *(s for s in held.deleted.within(held.first, held.last) if s in numbers)])


async def take_out(js: JetStream, name: str, late: SequenceSet, ledger: Ledger) -> str:
    """Delete these messages from the target and from the ledger; return what prevents it, "" if nothing."""

    async def take(sequence: int) -> None:
        message = await js.message(name, sequence)
        if message is None:
            return
        await js.delete_message(name, sequence)
        row = Row(sequence, message.timestamp_ns, message.subject.encode(), message.headers, message.data)
        ledger.remove(rows_as_batch([row]))

    waiting = iter(late)
    failures: list[JsBackupError] = []

    async def work() -> None:
        try:
            for sequence in waiting:
                await take(sequence)
        except (ApiError, NatsPermissionDenied) as error:
            failures.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(_DELETES_AT_ONCE, len(late))):
            group.create_task(work())
    if not failures:
        return ""
    return f"has messages that were deleted at the source while it was read: {failures[0].message}"


_RELAY_BYTES = 2 << 20  # batches have 1 MiB: enough that neither side waits for the next one


class Passage:
    """One attempt to clone a stream. `source_failed`: the source failed, not the target.

    `ledger` and `tally` have what was sent, `consumers` all planned ones by name, even if the stream is sent without
    them; `numbers` are the messages with new sequences, None without.
    """

    def __init__(self, source: CloneSource, delivery: Delivery, limits: CaptureLimits) -> None:
        self.source = source
        self.delivery = delivery
        self.sender: RestoreSender | None = None
        self.source_failed = False
        self.ledger = Ledger(delivery.action.config)
        self.tally = ReshapeTally()
        self.consumers: dict[str, PlannedConsumer] = {}
        self._limits = limits
        self._action = delivery.action
        self._relay: Relay[pa.RecordBatch] = Relay(_RELAY_BYTES)
        self._began: asyncio.Future[StreamState] = asyncio.get_running_loop().create_future()
        self._capture: Capture | None = None
        self._reading: WholeReading | None = None  # once the source was read to its end
        self._inventory: Listing[ConsumerInfo] = Listing({}, (), {})
        self._about_mark: tuple[str, ...] = ()

    @property
    def numbers(self) -> RisingSequences | None:
        return self.tally.numbered if self.source.reshape.renumber else None

    async def run(self, *, by_messages: bool) -> LiveSent:
        """Send the stream. Raises the first error; then everything has stopped, and nothing is left behind."""
        reading = asyncio.create_task(self._read(by_messages=by_messages))
        sending = asyncio.create_task(self._send(reading))
        try:
            # Do not await `sending` directly: it waits for its thread, which may wait for the source.
            await asyncio.wait({sending})
            await sending
            whole = await reading
        except BaseException:
            self._relay.abort(JsBackupError("the clone of the stream was given up"))
            for task in (reading, sending):
                task.cancel()
            await asyncio.gather(reading, sending, return_exceptions=True)
            raise
        late = await self._late(whole)
        missing = _about_missing(whole) or await take_out(self.delivery.js, self._action.name, late, self.ledger)
        return self._sent(whole, missing, bool(late))

    async def _late(self, whole: WholeReading) -> SequenceSet:
        """Return the messages to be deleted at the target, by their sequences there."""
        numbers, late = self.numbers, whole.late.certain
        now = whole.caught.info if whole.caught is not None else None
        if now is not None and (now.deleted is not None or not now.state.deleted):
            held = PresentSequences(now.state, now.deleted or ())
            if numbers is None:
                late = await find_not_held(self.delivery.js, self._action.name, held)
            else:
                late = not_held(numbers, held)
        if self.source.newest is not None:
            late = late | self.source.newest.superseded()
        if numbers is None:
            return late
        return SequenceSet(numbers.rank(sequence) for sequence in late if sequence in numbers)

    async def _send(self, reading: asyncio.Task[WholeReading]) -> None:
        parts: set[asyncio.Future[Any]] = {reading, self._began}
        await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        if not self._began.done():
            await reading
        delivery = self.delivery
        self.sender = delivery.sender(self._began.result())
        await deliver_once(delivery.js, delivery.connection, self.sender, self._archive, limits=delivery.limits)

    # --- the source, on the loop

    async def _read(self, *, by_messages: bool) -> WholeReading:
        try:
            whole = await self._read_whole(by_messages=by_messages)
        except BaseException as error:
            self.source_failed = self._relay.error is None and isinstance(error, JsBackupError)
            self._relay.abort(error if isinstance(error, Exception) else JsBackupError("the clone was given up"))
            raise
        self._reading = whole
        self._relay.close()
        return whole

    async def _read_whole(self, *, by_messages: bool) -> WholeReading:
        js, name = self.source.js, self.source.name
        info = await js.stream(name)
        self._about_mark = about_mark(info.config)
        self.delivery.start(info.state.bytes, info.state.messages)
        if self.source.consumers is None and info.state.consumers:
            # Before the messages: what a consumer gets meanwhile is redelivered instead of being left out.
            self._inventory = await js.consumers(name)
        if by_messages:
            self._began.set_result(info.state)
        consumers = bool(self._action.consumers) or self.source.consumers is None
        source = WholeSource(js, name, consumers=consumers, begun=self._begin)  # progress is that of sending
        whole = await read_whole(source, info, self, self._limits, by_messages=by_messages)
        if whole.capture is not None and whole.archive_format is ArchiveFormat.V1:
            await check_count(js, name, whole.capture.state, whole.messages - len(whole.late.certain))
        return whole

    def _begin(self, capture: Capture) -> None:
        self._capture = capture
        self._began.set_result(capture.state)

    # --- between two threads

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch; called by the capture."""
        self._relay.put(batch, batch.nbytes)

    def _archive(self, hurried: Callable[[], bool]) -> Iterator[bytes]:
        if self._action.wire is SendAs.V2:
            self._relay.wait_filled()
        batches = self._batches()
        first = next(batches, None)
        state = self._state_to_begin_with(first)
        consumers = self._plan_consumers(state.last_seq) if self._action.wire is SendAs.V2 else ()
        writer = writer_for(self._action, self.delivery.config, state, consumers)

        def outgoing() -> Iterator[pa.RecordBatch]:
            for batch in chain([] if first is None else [first], batches):
                writer.extend(batch.column("sequence")[-1].as_py())
                self.ledger.add(batch)
                yield batch
            if isinstance(writer, ArchiveV1Writer):
                assert self._reading is not None
                last_seq = self._state(self._reading).last_seq
                writer.extend(last_seq)
                writer.set_consumers(planned.consumer for planned in self._plan_consumers(last_seq))

        yield from archive_batches(outgoing(), writer, self.delivery.advance, S2Encoder(hurried))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self.source.reshaped(self._relay, self.tally):
            if batch.num_rows:
                yield batch
        self._refuse_what_missed()

    def _refuse_what_missed(self) -> None:
        """Raise PlanRefused if a mask matched nothing, or no message is left, before the stream counts as complete."""
        action, tally = self._action, self.tally
        findings = list(self._about_masks())
        if not action.filters_may_miss and (tally.kept.messages or not action.may_be_empty):
            findings += against_missed(self.source.reshape.filters, tally.matched)
        # A stream that was planned as an empty one may have got messages since, which its cut leaves out.
        planned = action.entry.captured.messages or tally.cut.messages
        if tally.came.messages and not tally.kept.messages and planned:
            findings.append(about_nothing_kept(self.source.name, tally.came.messages, may_be_empty=action.may_be_empty))
        for refusal in findings:
            if refusal.code:
                raise PlanRefused(refusal.sentence, hint=refusal.hint)

    def _about_masks(self) -> Iterator[Finding]:
        masks = self.source.reshape.masks.masks
        return about_masks(
            self.source.name, self._action.entry.config, masks, self.tally.masked, may_miss=self._action.may_miss
        )

    def _state_to_begin_with(self, first: pa.RecordBatch | None) -> StreamState:
        if first is None:
            assert self._reading is not None
            return state_to_restore(self._entry(self._reading))
        state = self.source.state_before(self._began.result())
        sequences = first.column("sequence")
        first_seq, last_seq = sequences[0].as_py(), max(state.last_seq, sequences[-1].as_py())
        # 2.15 does not accept more messages than sequences; how many are sent depends on what is dropped.
        messages = min(state.messages, last_seq - first_seq + 1)
        return replace(state, first_seq=first_seq, last_seq=last_seq, messages=messages)

    def _state(self, whole: WholeReading) -> StreamState:
        """Return the state of the sent stream, after everything was sent."""
        return self.source.state_after(whole.reached, self.tally, self.ledger.raw_bytes, self._action.wire)

    def _plan_consumers(self, last_seq: int) -> list[PlannedConsumer]:
        """Return the planned consumers, with the best state that is known by now."""
        if self.source.consumers is None:
            archived = self._capture.consumers if self._capture is not None else ()
            if self.source.reshape.renumber and self._reading is not None:  # positions are at the source
                last_seq = max(self._reading.reached.last_seq, self.tally.came.last_seq)
            known = map(as_backed_up, merge_consumers(archived, self._inventory, last_seq))
            plan = self.source.replan(replace(self._action.entry, consumers=tuple(known)), self._action.wire)
            planned = (consumer for action in plan.actions for consumer in action.consumers)
            wire, tally = self._action.wire, self.tally
            self.consumers = {plan.consumer.name: self.source.placed(plan, wire, last_seq, tally) for plan in planned}
        else:
            self.consumers = dict(self.source.consumers)
        return self._chosen()

    def _chosen(self) -> list[PlannedConsumer]:
        """Return the consumers of the action that still exist."""
        wanted = [planned.consumer.name for planned in self._action.consumers]
        return [self.consumers[name] for name in wanted if name in self.consumers]

    # --- after the transfer ---

    def _sent(self, whole: WholeReading, missing: str, late: bool) -> LiveSent:
        notes = [*([missing] if missing else []), *self._about_mark]
        notes += [finding.reason for finding in self._about_masks()]
        if self._action.wire is SendAs.V2 and self._state(whole).last_seq > self.ledger.last_seq:
            notes.append("its last message was deleted; an archive v2 cannot store the time of that message")
        if self.numbers is not None and late:
            notes.append("its sequences have gaps: messages were deleted or overwritten at the source meanwhile")
        if self.tally.markers and self.tally.kept.messages:
            notes.append(about_markers(self.source.name, self.tally.markers).reason)
        return LiveSent(
            entry=self._entry(whole),
            consumers=tuple(self._chosen()),
            wire=self._action.wire,
            notes=tuple(notes),
            incomplete=bool(missing or self._about_mark),
            passage=self,
        )

    def _entry(self, whole: WholeReading) -> StreamBackup:
        ledger, entry = self.ledger, self._action.entry
        captured = replace(
            entry.captured,
            messages=ledger.messages,
            bytes=ledger.raw_bytes,
            first_seq=ledger.first_seq,
            last_seq=ledger.last_seq,
        )
        return replace(
            entry,
            state=self._state(whole),
            captured=captured,
            archive_format=whole.archive_format,
            digest=ledger.digest,
            segments=(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSent(Sent):
    """Also has the passage by which it was sent."""

    passage: Passage


def _about_missing(whole: WholeReading) -> str:
    """Return what is missing, "" if nothing is."""
    if whole.denied:
        return f"lacks messages that were overwritten while it was read: {whole.denied}"
    if whole.caught is not None and whole.caught.missing:
        return f"lacks {format_count(whole.caught.missing, 'message')} overwritten too fast"
    return ""


_SHOWN = 5


async def prove_copy(
    js: JetStream,
    source: CloneSource,
    action: Action,
    ledger: Ledger,
    *,
    last_seq: int,
    numbers: RisingSequences | None,
    consumers: Sequence[PlannedConsumer],
    advance: Advance,
) -> tuple[Proof | None, str]:
    """Read the stream back and compare it, up to `last_seq`, with what the ledger says was sent; returns the reason if
    that is not possible. `numbers` are the messages of the source that were sent with new sequences, None if they have
    their own.

    Raises DigestMismatch and NatsError.
    """
    name, runs = action.name, ledger.until(last_seq)
    info, sink = await read_back(js, name, lambda: RunDigests(runs), advance)
    if info.state.last_seq < runs[-1].last_seq:
        raise DigestMismatch(f"stream {name} ends at sequence {info.state.last_seq}, not at {runs[-1].last_seq}")
    verdict = CopyVerdict()
    differing = list(sink.differing())
    if differing:
        now_ns = await server_clock(js, name)
        listed = await consumers_of(js, name, action.config)
        taken = taken_by(action.config, [planned.consumer for planned in consumers], listed)
        excused = excuses(action.config, taken, now_ns)
        target = replace(source, js=js, name=name, reshape=Reshape())
        theirs_now, ours_now = await describe_stream(source.js, source.name), await describe_stream(js, name)
        for run in differing:
            # The source first: messages that both expire are then missing in the target rather than in the source.
            theirs = await _rows(source, theirs_now, run, numbers)
            ours = await _rows(target, ours_now, run, None)
            sent = set(ledger.sent.within(run.first_seq, run.last_seq).array().to_pylist())
            judge(run, ours, theirs, excused, now_ns=now_ns(), verdict=verdict, taken=taken, sent=sent)
        if taken is not None:
            taken_count, left, wrong = taken.decide(await consumers_of(js, name, action.config) or {})
            verdict.gone[Cause.TAKEN] += taken_count
            named = [f"{sequence} missing" for sequence in wrong[:left]]
            verdict.wrong += named + ["another missing"] * (left - len(named))
    if verdict.wrong:
        shown = ", ".join(verdict.wrong[:_SHOWN]) + (", …" if len(verdict.wrong) > _SHOWN else "")
        raise DigestMismatch(
            f"stream {name} does not hold what was sent, in {format_count(len(verdict.wrong), 'message')}: {shown}",
            hint=about_lacking(action.config),
        )
    if verdict.unsure:
        return None, f"{count_are(verdict.unsure, 'message')} gone from the source since, and cannot be compared"
    return Proof(info, sink.digest, sink.messages, verdict.gone), ""


async def _rows(source: CloneSource, info: StreamInfo, run: Run, numbers: RisingSequences | None) -> Rows:
    first, last = run.first_seq, run.last_seq
    if numbers is not None:
        if first > len(numbers):
            return {}
        first, last = numbers.at(first), numbers.at(min(last, len(numbers)))
    rows: Rows = {}
    reading = read_messages(source.js, info, ignored, first=first, last=last)
    async for batch in reading:
        for sent in source.reshaped_again([batch], numbers):
            rows.update((row.sequence, row) for row in rows_of(sent))
    return rows


# Settings that would prevent late deletions, or would remove such messages before they are accounted for.
_NOT_YET = frozenset({"deny_delete", "discard_new_per_subject", "max_msgs_per_subject"})


class Ends:
    """Where the streams of one clone ended, by their names at the source; `growing` are the copies concerned.

    `matched` are the messages of all of them that met conditions of filters (`ReshapeTally`).
    """

    def __init__(self, growing: Collection[str]) -> None:
        self._growing = growing
        self._last: dict[str, int] = {}
        self.matched: Counter[str] = Counter()

    def note(self, sent: LiveSent) -> None:
        self._last[sent.entry.name] = state_to_restore(sent.entry).last_seq
        self.matched += sent.passage.tally.matched

    def bound(self, action: Action) -> Action:
        """Return the action, with marks limited to what was sent of its origins."""
        entry = action.entry
        if entry.name not in self._growing:
            return action
        sources = sources_of(entry.config)
        known = [mark.mend for mark in action.reshape.marks] or [Mend()] * len(sources)
        mends = {
            source_key(source): replace(mend, most=self._last[source["name"]])
            for source, mend in zip(sources, known, strict=True)
            if not is_external(source) and source["name"] in self._last
        }
        return replace(action, reshape=action.reshape.of_copy(entry.config, mends)) if mends else action


class LiveSupply:
    """Streams of the server behind `js`; or only one, `staged`, a proved copy at the target that is already reshaped.

    `secret` is the key for hashing values. What was sent is noted in `ends`, for the copies that are cloned later.
    """

    def __init__(
        self,
        js: JetStream,
        replan: Replan,
        limits: CaptureLimits,
        secret: bytes = b"",
        *,
        ends: Ends | None = None,
        staged: CloneSource | None = None,
    ) -> None:
        self._js = js
        self._replan = replan
        self._limits = limits
        self._secret = secret
        self._ends = ends
        self._staged = staged

    @property
    def connected(self) -> bool:
        return self._js.link.connected

    @property
    def proves_later(self) -> bool:
        return False  # what the source loses meanwhile cannot be compared

    def on_the_way(self, config: JsonObject) -> JsonObject:
        return {key: value for key, value in config.items() if key not in _NOT_YET}

    async def has_last(self, action: Action, state: StreamState) -> bool:
        if action.reshape.renumber:  # which message of the source that is, is not known
            return not state.messages
        try:
            last = await self._js.message(action.entry.name, state.last_seq)
        except NatsPermissionDenied:
            last = None
        return not state.messages or (last is not None and last.timestamp_ns == state.last_ns)

    async def _source(self, action: Action) -> CloneSource:
        """Return the source with what its reshaping keeps, if that has to be found out before."""
        if self._staged is not None:
            return self._staged
        source = CloneSource(self._js, action.entry.name, self._replan, reshape=action.reshape, secret=self._secret)
        newest = await look_for_newest(self._js, source.name, source.reshape)
        if newest is None:
            return source
        return replace(source, reshape=replace(source.reshape, chosen=newest.chosen), newest=newest)

    async def send(self, delivery: Delivery) -> Sent:
        """Send the stream. Begins again if the source fails."""
        if self._ends is None:
            return await self._send(delivery)
        sent = await self._send(replace(delivery, action=self._ends.bound(delivery.action)))
        self._ends.note(sent)
        return sent

    async def _send(self, delivery: Delivery) -> LiveSent:
        attempts = SnapshotAttempts(self._js, delivery.action.name, self._limits)
        by_messages = delivery.action.entry.archive_format is ArchiveFormat.MESSAGES and self._staged is None
        while True:
            passage = Passage(await self._source(delivery.action), delivery, attempts.limits)
            try:
                return await passage.run(by_messages=by_messages)
            except UnsupportedError:
                if by_messages or not passage.source_failed:
                    raise
                by_messages = True
            except (*REPEATABLE, TargetConflict) as error:
                if passage.source_failed:
                    await attempts.next(error)
                elif passage.sender is not None and did_not_begin(error, passage.sender, attempts.number):
                    await attempts.repeat(error, PAUSE_SECONDS)
                else:
                    raise

    async def prove(self, js: JetStream, action: Action, sent: Sent, *, advance: Advance) -> tuple[Proof | None, str]:
        assert isinstance(sent, LiveSent)
        action = action if self._ends is None else self._ends.bound(action)
        return await prove_copy(
            js,
            sent.passage.source,
            action,
            sent.passage.ledger,
            last_seq=state_to_restore(sent.entry).last_seq,
            numbers=sent.passage.numbers,
            consumers=sent.consumers,
            advance=advance,
        )

    @asynccontextmanager
    async def after_staging(self, connection: Connection, staged: str, sent: Sent) -> AsyncIterator[Supply]:
        assert isinstance(sent, LiveSent)
        # Not the connection used for the restore: deliveries on that one wait while the target is slow.
        async with connect_jetstream(connection) as js:
            copy = CloneSource(js, staged, self._replan, sent.passage.consumers)
            yield LiveSupply(js, self._replan, self._limits, staged=copy)
