"""A supply that reads another server while it sends (`stream_clone.py`), and repeats that if the source fails.

To replace a stream, a copy is first made and proved beside it. The replacement is then made from that copy, not from
the source, which may have other messages by then.

Prove a clone: compare the digests of the target's messages with those of the sent ones, run by run.

Runs that differ are read again, message by message, from the target and from the source, which is still changing. If
the messages of the target, plus those that only the source has, have the run's digest, they are what was sent.
Otherwise both have lost messages since; then messages that both have must be equal, and one that only the target has
can no longer be compared, nor one that neither has, unless messages of the run have expired by now, or consumers had
acknowledged so many. Messages that only the source has must be excused by the target's own rules (`restore/proof.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from jsbackup.config.connection import Connection
from jsbackup.engine.clone.live_source import CloneSource, Replan, look_for_newest
from jsbackup.engine.clone.stream_clone import Ledger, LiveSent, Passage, Read, Run, RunDigests
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.read.consume import Row, read_messages, rows_as_batch
from jsbackup.engine.read.snapshot_transfer import Advance, CaptureLimits
from jsbackup.engine.read.whole_stream import REPEATABLE, SnapshotAttempts, describe_stream
from jsbackup.engine.restore.compare import Missing, Taken
from jsbackup.engine.restore.proof import Proof, about_lacking, consumers_of, excuses, read_back, server_clock, taken_by
from jsbackup.engine.restore.send_archive import PAUSE_SECONDS, Delivery, Sent, Supply, did_not_begin
from jsbackup.errors import DigestMismatch, NatsPermissionDenied, PlanRefused, TargetConflict, UnsupportedError
from jsbackup.formats.digest import StreamDigest, digest_rows, encode_rows
from jsbackup.model import JsonObject, StreamState
from jsbackup.planning.copies.copy_facts import sources_of
from jsbackup.planning.model import Action, PlannedConsumer, SendAs
from jsbackup.progress import ignored
from jsbackup.protocol.info import StreamInfo
from jsbackup.readable import count_are, format_count
from jsbackup.repository.manifest import ArchiveFormat
from jsbackup.repository.read.segments import state_to_restore
from jsbackup.transforms.copied_from import Mend
from jsbackup.transforms.copy_positions import is_external, source_key
from jsbackup.transforms.filters.rising import RisingSequences
from jsbackup.transforms.removal import Cause

__all__ = ["CopyVerdict", "Ends", "LiveSupply", "judge"]

_SHOWN = 5

Rows = dict[int, Row]


@dataclass(slots=True)
class CopyVerdict:
    """The verdict on runs that differ: messages that are `wrong`, `gone` by rule (by the cause), or that cannot be
    compared.
    """

    wrong: list[str] = field(default_factory=list)
    gone: Counter[Cause] = field(default_factory=Counter)
    unsure: int = 0


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
        target = CloneSource(js, name, source.replan)
        there, here = await describe_stream(source.js, source.name), await describe_stream(js, name)
        for run in differing:
            # The source first: messages that both expire are then missing in the target rather than in the source.
            theirs = await _rows(source, there, run, numbers)
            ours = await _rows(target, here, run, None)
            sent = set(ledger.sent.within(run.first_seq, run.last_seq).array().to_pylist())
            judge(run, ours, theirs, excused, now_ns=now_ns(), verdict=verdict, taken=taken, sent=sent)
        if taken is not None:
            gone, left, wrong = taken.decide(await consumers_of(js, name, action.config) or {})
            verdict.gone[Cause.TAKEN] += gone
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


def judge(
    run: Run,
    ours: Rows,
    theirs: Rows,
    excused: Callable[[Missing], Cause | None],
    *,
    now_ns: int,
    verdict: CopyVerdict,
    taken: Taken | None = None,
    sent: Set[int] = frozenset(),
) -> None:
    """Add to `verdict` the result of one run, of which the target has `ours` and the source `theirs`. Missing messages
    that consumers may have taken are left to `taken`. `now_ns` is the target's clock; `sent` are the sequences of the
    run in a queue.
    """
    lacking = {sequence: row for sequence, row in theirs.items() if sequence not in ours}
    whole = ours | lacking
    as_sent = len(whole) == run.messages and _digest(whole) == run.digest
    if not as_sent:
        shared = ours.keys() & theirs.keys()
        verdict.wrong += [f"{s} changed" for s in sorted(shared) if _plain(ours[s]) != _plain(theirs[s])]
        if len(whole) > run.messages:
            verdict.wrong += [f"{s} added" for s in sorted(ours.keys() - theirs.keys())]
        else:
            in_neither = run.messages - len(whole)
            verdict.unsure += len(ours) - len(shared)
            if run.removal_ns is not None and run.removal_ns <= now_ns:
                verdict.gone[Cause.EXPIRED] += in_neither
            elif taken is not None and in_neither <= sum(map(taken.had, sent - whole.keys())):
                verdict.gone[Cause.TAKEN] += in_neither
            else:
                verdict.unsure += in_neither
    for sequence, row in sorted(lacking.items()):
        missing = Missing(sequence, row.timestamp_ns, row.subject, row.headers or b"")
        if (cause := excused(missing)) is not None:
            verdict.gone[cause] += 1
        elif taken is None or not taken.may_have(missing):
            verdict.wrong.append(f"{sequence} missing")


def _plain(row: Row) -> tuple[int, bytes, bytes, bytes]:
    # A server treats no header block and an empty one alike.
    return row.timestamp_ns, row.subject, row.headers or b"", row.data


def _digest(rows: Rows) -> StreamDigest:
    if not rows:
        return StreamDigest()
    return digest_rows(encode_rows(rows_as_batch([rows[sequence] for sequence in sorted(rows)])))


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
            rows.update(_rows_of(sent))
    return rows


def _rows_of(batch: pa.RecordBatch) -> Rows:
    columns = (column.to_pylist() for column in batch.columns)
    return {
        sequence: Row(sequence, time, subject.encode() if isinstance(subject, str) else subject, headers, data)
        for sequence, time, subject, headers, data in zip(*columns, strict=True)
    }


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
        self.matched += sent.matched

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

    def _source(self, action: Action) -> CloneSource:
        if self._staged is not None:
            return self._staged
        return CloneSource(self._js, action.entry.name, self._replan, reshape=action.reshape, secret=self._secret)

    async def _looked_at(self, action: Action) -> CloneSource:
        """Return the source with what its reshaping keeps, if that has to be found out before."""
        source = self._source(action)
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
        read: Read = Passage.read_messages if by_messages else Passage.read_snapshot
        while True:
            passage = Passage(await self._looked_at(delivery.action), delivery, attempts.limits)
            try:
                return await passage.run(read)
            except UnsupportedError as error:
                if not passage.source_failed or read is not Passage.read_snapshot:
                    raise
                if delivery.action.entry.config.get("storage") == "memory":
                    read = Passage.read_messages
                else:
                    as_it_comes = self._as_it_comes(delivery.action, error)
                    if _is_fitted(delivery.action):
                        read = Passage.read_messages
                    else:
                        read = Passage.read_as_it_comes
                        delivery = replace(delivery, action=as_it_comes)
            except (*REPEATABLE, TargetConflict) as error:
                if passage.source_failed:
                    await attempts.next(error)
                elif passage.sender is not None and did_not_begin(error, passage.sender, attempts.number):
                    await attempts.repeat(error, PAUSE_SECONDS)
                else:
                    raise

    def _as_it_comes(self, action: Action, unsupported: UnsupportedError) -> Action:
        """Return the action for a snapshot that cannot be decoded. Raises PlanRefused if it cannot be passed on."""
        plan = self._replan(replace(action.entry, archive_format=ArchiveFormat.OPAQUE), SendAs.AUTO)
        reason, hint = "cannot be proved undecoded, so it does not replace a stream", ""
        if plan.refusals:
            reason, hint = plan.refusals[0].reason, plan.refusals[0].hint
        elif [one.name for one in plan.actions] == [action.name]:
            return replace(action, wire=SendAs.OPAQUE)
        raise PlanRefused(f"stream {action.entry.name}: {unsupported.message}: {reason}", hint=hint or None)

    async def prove(self, js: JetStream, action: Action, sent: Sent, *, advance: Advance) -> tuple[Proof | None, str]:
        assert isinstance(sent, LiveSent)
        action = action if self._ends is None else self._ends.bound(action)
        return await prove_copy(
            js,
            sent.source,
            action,
            sent.ledger,
            last_seq=state_to_restore(sent.entry).last_seq,
            numbers=sent.numbers,
            consumers=sent.consumers,
            advance=advance,
        )

    @asynccontextmanager
    async def after_staging(self, connection: Connection, staged: str, sent: Sent) -> AsyncIterator[Supply]:
        assert isinstance(sent, LiveSent)
        # Not the connection used for the restore: deliveries on that one wait while the target is slow.
        async with connect_jetstream(connection) as js:
            copy = CloneSource(js, staged, self._replan, sent.known)
            yield LiveSupply(js, self._replan, self._limits, staged=copy)


def _is_fitted(action: Action) -> bool:
    """Return whether it is a copy that is cut at its end before its origins were read, or whose marks are changed.

    As it comes, it would be ahead of them.
    """
    return bool(action.reshape.drops or action.reshape.marks or action.reshape.renumber)
