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

**Digests of what was sent** (`Ledger`) are enough to prove the copy, and small for any size of stream.

A clone keeps no messages. It keeps runs: for each run of messages the first and last sequence, the number and the
digest. A copy is proved run by run, and a difference is narrowed down to a run, which is small enough to read again.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.engine.clone.live_source import CloneSource
from jsbackup.engine.link.bounded_queues import Relay
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.consume import Row, read_into, rows_as_batch
from jsbackup.engine.read.consumers import as_backed_up, merge_consumers
from jsbackup.engine.read.increment import PresentSequences
from jsbackup.engine.read.snapshot_transfer import Capture, CaptureLimits, capture_opaque
from jsbackup.engine.read.whole_stream import StreamReading, describe_stream, state_at_end
from jsbackup.engine.restore.send_archive import Delivery, Sent, deliver_once, writer_for
from jsbackup.errors import ApiError, JsBackupError, NatsPermissionDenied, PlanRefused
from jsbackup.formats.archive.archive import archive_batches, late_deletions
from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
from jsbackup.formats.digest import MessageBatch, StreamDigest, digest_rows, encode_rows
from jsbackup.formats.s2 import S2Encoder
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import ArchivedConsumer, JsonObject, StreamState
from jsbackup.planning.interrupted import about_mark
from jsbackup.planning.model import PlannedConsumer, SendAs
from jsbackup.planning.reshaping import about_markers
from jsbackup.planning.rules import Finding
from jsbackup.planning.selection.chosen_streams import against_missed
from jsbackup.planning.selection.masking import about_masks, about_nothing_kept
from jsbackup.progress import ignored
from jsbackup.protocol.info import ConsumerInfo, StreamInfo
from jsbackup.protocol.paging import Listing
from jsbackup.protocol.restore import RestoreSender
from jsbackup.readable import format_count
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
from jsbackup.repository.read.segments import state_to_restore
from jsbackup.transforms.filters.rising import RisingSequences
from jsbackup.transforms.removal import is_overwritten, is_queue, removal_of
from jsbackup.transforms.reshape import ReshapeTally

__all__ = ["Ledger", "LiveSent", "Passage", "Read", "Run", "RunDigests"]

# About 300 bytes each. If a stream has more, neighbours are joined in pairs.
MOST_RUNS = 16_384


@dataclass(frozen=True, slots=True)
class Run:
    """Messages from one sequence to another. `last_seq` may be beyond the last message if nothing follows. `removal_ns`
    is when the target removes the first of them by itself, in Unix nanoseconds; None if it keeps all.
    """

    first_seq: int
    last_seq: int
    messages: int
    digest: StreamDigest
    removal_ns: int | None = None

    def joined(self, following: Run) -> Run:
        return Run(
            self.first_seq,
            following.last_seq,
            self.messages + following.messages,
            self.digest + following.digest,
            min((moment for moment in (self.removal_ns, following.removal_ns) if moment is not None), default=None),
        )


class Ledger:
    """Written batch by batch, in order; `runs`, `messages`, `raw_bytes` and `digest` cover everything so far. `config`
    is that of the target. `sent` are the sequences of a queue, also of messages that were removed.
    """

    def __init__(self, config: JsonObject | None = None, most_runs: int = MOST_RUNS) -> None:
        self._config = config or {}
        self.sent = RisingSequences()
        self._most = most_runs
        self._batches_per_run = 1
        self._open = 0  # batches in the last run
        self.runs: list[Run] = []
        self.raw_bytes = 0

    @property
    def messages(self) -> int:
        return sum(run.messages for run in self.runs)

    @property
    def digest(self) -> StreamDigest:
        return sum((run.digest for run in self.runs), StreamDigest())

    @property
    def first_seq(self) -> int:
        return self.runs[0].first_seq if self.runs else 0

    @property
    def last_seq(self) -> int:
        return self.runs[-1].last_seq if self.runs else 0

    def add(self, batch: MessageBatch) -> None:
        """Count messages. Raises FormatError for an invalid batch."""
        if not batch.num_rows:
            return
        rows = encode_rows(batch)
        sequences = batch.column("sequence")
        first, last, removal_ns = sequences[0].as_py(), sequences[-1].as_py(), _first_removal_ns(batch, self._config)
        run = Run(first, last, batch.num_rows, digest_rows(rows), removal_ns)
        self.raw_bytes += rows.size
        if is_queue(self._config):
            self.sent.add(sequences)
        if self._open and self._open < self._batches_per_run:
            self.runs[-1] = self.runs[-1].joined(run)
            self._open += 1
            return
        if len(self.runs) == self._most:
            pairs = range(0, len(self.runs) - 1, 2)
            odd = self.runs[len(self.runs) // 2 * 2 :]
            self.runs = [self.runs[at].joined(self.runs[at + 1]) for at in pairs] + odd
            self._batches_per_run *= 2
        self.runs.append(run)
        self._open = 1

    def remove(self, message: MessageBatch) -> None:
        """Remove a message, given as a batch of one."""
        rows = encode_rows(message)
        at = bisect_left(self.runs, message.column("sequence")[0].as_py(), key=lambda run: run.last_seq)
        run = self.runs[at]
        self.runs[at] = replace(run, messages=run.messages - 1, digest=run.digest - digest_rows(rows))
        self.raw_bytes -= rows.size

    def until(self, last_seq: int) -> list[Run]:
        """Return the runs, contiguous from sequence 1 to `last_seq`."""
        if not self.runs:
            return [Run(1, last_seq, 0, StreamDigest())]
        ends = [*(run.first_seq - 1 for run in self.runs[1:]), max(last_seq, self.last_seq)]
        closed = [replace(run, last_seq=end) for run, end in zip(self.runs, ends, strict=True)]
        closed[0] = replace(closed[0], first_seq=1)
        return closed


def _first_removal_ns(batch: MessageBatch, config: JsonObject) -> int | None:
    """Return when a stream with this configuration removes the first message of a batch by itself; None if never."""
    if not any(config.get(name) for name in ("max_age", "allow_msg_ttl", "allow_msg_schedules")):
        return None
    rows = zip(batch.column("timestamp_ns").to_pylist(), batch.column("headers").to_pylist(), strict=True)
    removals = (removal_of(timestamp_ns, headers or b"", config) for timestamp_ns, headers in rows)
    return min((removal[0] for removal in removals if removal is not None), default=None)


class RunDigests:
    """A sink for the messages of a server: computes the digests of the same runs. Later messages are ignored."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._found = [Run(run.first_seq, run.last_seq, 0, StreamDigest()) for run in runs]
        self._at = 0
        self.messages = 0

    def add(self, batch: MessageBatch) -> None:
        """Add messages, in order."""
        sequences = batch.column("sequence")
        start = 0
        while start < batch.num_rows and self._at < len(self._runs):
            found = self._found[self._at]
            stop = pc.sum(pc.less_equal(sequences, found.last_seq)).as_py()
            if stop > start:
                rows = encode_rows(batch.slice(start, stop - start))
                digest = found.digest + digest_rows(rows)
                self._found[self._at] = replace(found, messages=found.messages + stop - start, digest=digest)
                self.messages += stop - start
                start = stop
            if start < batch.num_rows:
                self._at += 1

    @property
    def digest(self) -> StreamDigest:
        return sum((run.digest for run in self._found), StreamDigest())

    def differing(self) -> Iterator[Run]:
        """Yield the expected runs that differ on the server."""
        for expected, found in zip(self._runs, self._found, strict=True):
            if (expected.messages, expected.digest) != (found.messages, found.digest):
                yield expected


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


@dataclass(frozen=True, slots=True)
class CloneOutcome:
    """What the source reported by the end of the reading; `amiss` says what is missing.

    `late` messages have to be deleted again; or, if `held` is known, all that the source no longer holds.
    """

    state: StreamState
    archive_format: ArchiveFormat
    archived: tuple[ArchivedConsumer, ...] = ()
    late: SequenceSet = field(default_factory=SequenceSet)
    held: PresentSequences | None = None
    amiss: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSent(Sent):
    """Also has the digests for the proof, and all planned consumers, even if the stream is sent without them.

    `source` is where it comes from, as it was reshaped; `numbers` are the messages with new sequences, None without.
    `matched` are those that met conditions of filters (`ReshapeTally`).
    """

    source: CloneSource
    ledger: Ledger = field(default_factory=Ledger)
    known: Mapping[str, PlannedConsumer] = field(default_factory=dict)
    numbers: RisingSequences | None = None
    matched: Counter[str] = field(default_factory=Counter)


class Passage:
    """One attempt. `source_failed`: the source failed, not the target."""

    def __init__(self, source: CloneSource, delivery: Delivery, limits: CaptureLimits) -> None:
        self.source = source
        self.delivery = delivery
        self.limits = limits
        self.sender: RestoreSender | None = None
        self.source_failed = False
        self._action = delivery.action
        # Progress is that of sending.
        self._reading = StreamReading(source.js, source.name)
        self._relay: Relay[pa.RecordBatch | bytes] = Relay(_RELAY_BYTES)
        self._ledger = Ledger(self._action.config)
        self._tally = ReshapeTally()
        self._began: asyncio.Future[StreamState] = asyncio.get_running_loop().create_future()
        self._capture: Capture | None = None
        self._outcome: CloneOutcome | None = None
        self._inventory: Listing[ConsumerInfo] = Listing({}, (), {})
        self._consumers: dict[str, PlannedConsumer] = {}
        self._about_mark: tuple[str, ...] = ()

    async def run(self, read: Read) -> LiveSent:
        """Send the stream. Raises the first error; then everything has stopped, and nothing is left behind."""
        reading = asyncio.create_task(self._read(read))
        sending = asyncio.create_task(self._send(reading))
        try:
            # Do not await `sending` directly: it waits for its thread, which may wait for the source.
            await asyncio.wait({sending})
            await sending
            outcome = await reading
        except BaseException:
            self._relay.abort(JsBackupError("the clone of the stream was given up"))
            for task in (reading, sending):
                task.cancel()
            await asyncio.gather(reading, sending, return_exceptions=True)
            raise
        js, name = self.delivery.js, self._action.name
        late = await self._late(outcome)
        return self._sent(outcome, outcome.amiss or await take_out(js, name, late, self._ledger), bool(late))

    async def _late(self, outcome: CloneOutcome) -> SequenceSet:
        """Return the messages to be deleted at the target, by their sequences there."""
        numbers = self._numbers
        if outcome.held is None:
            late = outcome.late
        elif numbers is None:
            late = await find_not_held(self.delivery.js, self._action.name, outcome.held)
        else:
            late = not_held(numbers, outcome.held)
        if self.source.newest is not None:
            late = late | self.source.newest.superseded()
        return late if numbers is None else SequenceSet(numbers.rank(one) for one in late if one in numbers)

    @property
    def _numbers(self) -> RisingSequences | None:
        return self._tally.numbered if self.source.reshape.renumber else None

    async def _send(self, reading: asyncio.Task[CloneOutcome]) -> None:
        parts: set[asyncio.Future[Any]] = {reading, self._began}
        await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        if not self._began.done():
            await reading
        delivery = self.delivery
        self.sender = delivery.sender(self._began.result())
        archive = self._archive_as_it_comes if self._action.wire is SendAs.OPAQUE else self._archive
        await deliver_once(delivery.js, delivery.connection, self.sender, archive, limits=delivery.limits)

    async def _read(self, read: Read) -> CloneOutcome:
        try:
            outcome = await read(self)
        except BaseException as error:
            self.source_failed = self._relay.error is None and isinstance(error, JsBackupError)
            self._relay.abort(error if isinstance(error, Exception) else JsBackupError("the clone was given up"))
            raise
        self._outcome = outcome
        self._relay.close()
        return outcome

    # --- the source, on the loop

    async def read_snapshot(self) -> CloneOutcome:
        """Read the stream from a snapshot."""
        info = await self._look()
        consumers = bool(self._action.consumers) or self.source.consumers is None
        capture = await self._reading.snapshot(info, self, limits=self.limits, consumers=consumers, begun=self._begin)
        end = capture.end
        assert end is not None
        archive_format, archived = ArchiveFormat(end.format), tuple(capture.consumers)
        if archive_format is ArchiveFormat.V2:
            outcome = await self._read_on(info, capture.state, capture.messages)
            return replace(outcome, archive_format=archive_format, archived=archived)
        late = late_deletions(end).certain
        await self._reading.check_count(capture.state, end.messages - len(late))
        return CloneOutcome(state_at_end(capture), archive_format, archived, late)

    async def read_messages(self) -> CloneOutcome:
        """Read the stream message by message."""
        info = await self._look()
        self._began.set_result(info.state)
        messages = await read_into(self.source.js, info, self.add, ignored)
        return await self._read_on(info, info.state, messages)

    async def _read_on(self, info: StreamInfo, then: StreamState, messages: int) -> CloneOutcome:
        """Read further if any message of the state `then` is missing and may have been overwritten; `messages` were
        read.
        """
        if messages == then.messages or not is_overwritten(info.config):
            return CloneOutcome(then, ArchiveFormat.MESSAGES)
        try:
            caught = await self._reading.read_on(info, then.last_seq, self.add)
        except NatsPermissionDenied as error:
            amiss = f"lacks messages that were overwritten while it was read: {error.message}"
            return CloneOutcome(then, ArchiveFormat.MESSAGES, amiss=amiss)
        amiss = f"lacks {format_count(caught.missing, 'message')} overwritten too fast" if caught.missing else ""
        now = caught.info
        listed = now.deleted is not None or not now.state.deleted
        held = PresentSequences(now.state, now.deleted or ()) if listed else None
        return CloneOutcome(now.state, ArchiveFormat.MESSAGES, held=held, amiss=amiss)

    async def read_as_it_comes(self) -> CloneOutcome:
        """Read the stream's snapshot without decoding it."""
        await self._look()
        capture = await capture_opaque(
            self.source.js,
            self.source.name,
            lambda chunk: self._relay.put(chunk, len(chunk)),
            limits=self.limits,
            begun=self._begin,
        )
        return CloneOutcome(capture.state, ArchiveFormat.OPAQUE)

    async def _look(self) -> StreamInfo:
        info = await self.source.js.stream(self.source.name)
        self._about_mark = about_mark(info.config)
        self.delivery.start(info.state.bytes, info.state.messages)
        if self.source.consumers is None and info.state.consumers:
            # Before the messages: what a consumer gets meanwhile is redelivered instead of being left out.
            self._inventory = await self.source.js.consumers(self.source.name)
        return info

    def _begin(self, capture: Capture) -> None:
        self._capture = capture
        self._began.set_result(capture.state)

    # --- between two threads

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch; called by the capture."""
        self._relay.put(batch, batch.nbytes)

    def _archive_as_it_comes(self, _hurried: Callable[[], bool]) -> Iterator[bytes]:
        for chunk in self._relay:
            assert isinstance(chunk, bytes)
            yield chunk
            self.delivery.advance(len(chunk), 0)

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
                self._ledger.add(batch)
                yield batch
            if isinstance(writer, ArchiveV1Writer):
                assert self._outcome is not None
                last_seq = self._state(self._outcome).last_seq
                writer.extend(last_seq)
                writer.set_consumers(planned.consumer for planned in self._plan_consumers(last_seq))

        yield from archive_batches(outgoing(), writer, self.delivery.advance, S2Encoder(hurried))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self.source.reshaped(map(_as_batch, self._relay), self._tally):
            if batch.num_rows:
                yield batch
        self._refuse_what_missed()

    def _refuse_what_missed(self) -> None:
        """Raise PlanRefused if a mask matched nothing, or no message is left, before the stream counts as complete."""
        action, tally = self._action, self._tally
        found = list(self._about_masks())
        if not action.filters_may_miss and (tally.kept.messages or not action.may_be_empty):
            found += against_missed(self.source.reshape.filters, tally.matched)
        # A stream that was planned as an empty one may have got messages since, which its cut leaves out.
        planned = action.entry.captured.messages or tally.cut.messages
        if tally.came.messages and not tally.kept.messages and planned:
            found.append(about_nothing_kept(self.source.name, tally.came.messages, may_be_empty=action.may_be_empty))
        for refusal in found:
            if refusal.code:
                raise PlanRefused(refusal.sentence, hint=refusal.hint)

    def _about_masks(self) -> Iterator[Finding]:
        masks = self.source.reshape.masks.masks
        return about_masks(
            self.source.name, self._action.entry.config, masks, self._tally.masked, may_miss=self._action.may_miss
        )

    def _state_to_begin_with(self, first: pa.RecordBatch | None) -> StreamState:
        if first is None:
            assert self._outcome is not None
            return state_to_restore(self._entry(self._outcome))
        state = self.source.state_before(self._began.result())
        sequences = first.column("sequence")
        first_seq, last_seq = sequences[0].as_py(), max(state.last_seq, sequences[-1].as_py())
        # 2.15 does not accept more messages than sequences; how many are sent depends on what is dropped.
        messages = min(state.messages, last_seq - first_seq + 1)
        return replace(state, first_seq=first_seq, last_seq=last_seq, messages=messages)

    def _state(self, outcome: CloneOutcome) -> StreamState:
        """Return the state of the sent stream, after everything was sent."""
        return self.source.state_after(outcome.state, self._tally, self._ledger.raw_bytes, self._action.wire)

    def _plan_consumers(self, last_seq: int) -> list[PlannedConsumer]:
        """Return the planned consumers, with the best state that is known by now."""
        if self.source.consumers is None:
            outcome, capture = self._outcome, self._capture
            archived = outcome.archived if outcome else tuple(capture.consumers) if capture else ()
            if self.source.reshape.renumber and outcome is not None:  # positions are at the source
                last_seq = max(outcome.state.last_seq, self._tally.came.last_seq)
            known = map(as_backed_up, merge_consumers(archived, self._inventory, last_seq))
            plan = self.source.replan(replace(self._action.entry, consumers=tuple(known)), self._action.wire)
            planned = (one for action in plan.actions for one in action.consumers)
            wire, tally = self._action.wire, self._tally
            self._consumers = {one.consumer.name: self.source.placed(one, wire, last_seq, tally) for one in planned}
        else:
            self._consumers = dict(self.source.consumers)
        return self._chosen()

    def _chosen(self) -> list[PlannedConsumer]:
        """Return the consumers of the action that still exist."""
        wanted = [planned.consumer.name for planned in self._action.consumers]
        return [self._consumers[name] for name in wanted if name in self._consumers]

    # --- after the transfer ---

    def _sent(self, outcome: CloneOutcome, amiss: str, late: bool) -> LiveSent:
        opaque = self._action.wire is SendAs.OPAQUE
        notes = [*([amiss] if amiss else []), *self._about_mark]
        notes += [found.reason for found in self._about_masks()]
        if self._action.wire is SendAs.V2 and self._state(outcome).last_seq > self._ledger.last_seq:
            notes.append("its last message was deleted; an archive v2 cannot store the time of that message")
        if self._numbers is not None and late:
            notes.append("its sequences have gaps: messages were deleted or overwritten at the source meanwhile")
        if self._tally.markers and self._tally.kept.messages:
            notes.append(about_markers(self.source.name, self._tally.markers).reason)
        return LiveSent(
            entry=self._entry(outcome),
            consumers=tuple(self._action.consumers if opaque else self._chosen()),
            wire=self._action.wire,
            undecoded="it was sent unchanged, not decoded" if opaque else "",
            notes=tuple(notes),
            incomplete=bool(amiss or self._about_mark),
            source=self.source,
            ledger=self._ledger,
            known=self._consumers,
            numbers=self._numbers,
            matched=self._tally.matched,
        )

    def _entry(self, outcome: CloneOutcome) -> StreamBackup:
        ledger, entry = self._ledger, self._action.entry
        captured = replace(
            entry.captured,
            messages=outcome.state.messages if outcome.archive_format is ArchiveFormat.OPAQUE else ledger.messages,
            bytes=ledger.raw_bytes,
            first_seq=ledger.first_seq,
            last_seq=ledger.last_seq,
        )
        return replace(
            entry,
            state=self._state(outcome),
            captured=captured,
            archive_format=outcome.archive_format,
            digest=ledger.digest,
            segments=(),
        )


def _as_batch(thing: pa.RecordBatch | bytes) -> pa.RecordBatch:
    assert isinstance(thing, pa.RecordBatch)
    return thing


Read = Callable[[Passage], Coroutine[Any, Any, CloneOutcome]]
"""How the source is read: a method of `Passage`."""
