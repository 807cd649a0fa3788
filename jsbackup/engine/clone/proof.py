"""Prove a clone: compare the digests of the target's messages with those of the sent ones, run by run.

Runs that differ are read again, message by message, from the target and from the source, which is still changing. If
the messages of the target, plus those that only the source has, have the run's digest, they are what was sent.
Otherwise both have lost messages since; then messages that both have must be equal, and one that only the target has
can no longer be compared, nor one that neither has, unless messages of the run have expired by now, or consumers had
acknowledged so many. Messages that only the source has must be excused by the target's own rules (`restore/proof.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

import pyarrow as pa

from jsbackup.engine.clone.live_source import CloneSource
from jsbackup.engine.clone.run_digests import Ledger, Run, RunDigests
from jsbackup.engine.link.jetstream import MAX_DELETED, JetStream
from jsbackup.engine.read.consume import Row, read_messages, rows_as_batch
from jsbackup.engine.read.removals import Missing, Taken
from jsbackup.engine.read.snapshot_transfer import Advance
from jsbackup.engine.restore.proof import Proof, about_lacking, consumers_of, excuses, read_back, server_clock, taken_by
from jsbackup.errors import DigestMismatch
from jsbackup.formats.digest import StreamDigest, digest_rows, encode_rows
from jsbackup.planning.model import Action, PlannedConsumer
from jsbackup.progress import ignored
from jsbackup.protocol.info import StreamInfo
from jsbackup.readable import count_are, format_count
from jsbackup.transforms.filters.rising import RisingSequences
from jsbackup.transforms.removal import Cause

__all__ = ["CopyVerdict", "judge", "prove_copy"]

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
        there, here = await _looked_at(source), await _looked_at(target)
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


async def _looked_at(source: CloneSource) -> StreamInfo:
    info = await source.js.stream(source.name)
    if 0 < info.state.deleted <= MAX_DELETED:
        return await source.js.stream(source.name, deleted_details=True)
    return info


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
