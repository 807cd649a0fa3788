"""Prove a clone: compare the digests of the target's messages with those of the sent ones, run by run.

**Digests of what was sent** (`Ledger`) are enough to prove the copy, and small for any size of stream.

A clone keeps no messages. It keeps runs: for each run of messages the first and last sequence, the number and the
digest. A copy is proved run by run, and a difference is narrowed down to a run, which is small enough to read again.

Runs that differ are read again, message by message, from the target and from the source, which is still changing. If
the messages of the target, plus those that only the source has, have the run's digest, they are what was sent.
Otherwise both have lost messages since; then messages that both have must be equal, and one that only the target has
can no longer be compared, nor one that neither has, unless messages of the run have expired by now, or consumers had
acknowledged so many. Messages that only the source has must be excused by the target's own rules (`restore/proof.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

from jsbackup import compute as pc
from jsbackup.engine.read.consume import Row, rows_as_batch
from jsbackup.engine.restore.compare import Taken
from jsbackup.formats.digest import MessageBatch, StreamDigest, digest_rows, encode_rows
from jsbackup.model import JsonObject
from jsbackup.transforms.filters.rising import RisingSequences
from jsbackup.transforms.removal import Cause, is_queue, removal_of

__all__ = ["CopyVerdict", "Ledger", "Rows", "Run", "RunDigests", "judge"]

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
        self._held = [Run(run.first_seq, run.last_seq, 0, StreamDigest()) for run in runs]
        self._at = 0
        self.messages = 0

    def add(self, batch: MessageBatch) -> None:
        """Add messages, in order."""
        sequences = batch.column("sequence")
        start = 0
        while start < batch.num_rows and self._at < len(self._runs):
            held = self._held[self._at]
            stop = pc.sum(pc.less_equal(sequences, held.last_seq)).as_py()
            if stop > start:
                rows = encode_rows(batch.slice(start, stop - start))
                digest = held.digest + digest_rows(rows)
                self._held[self._at] = replace(held, messages=held.messages + stop - start, digest=digest)
                self.messages += stop - start
                start = stop
            if start < batch.num_rows:
                self._at += 1

    @property
    def digest(self) -> StreamDigest:
        return sum((run.digest for run in self._held), StreamDigest())

    def differing(self) -> Iterator[Run]:
        """Yield the expected runs that differ on the server."""
        for expected, held in zip(self._runs, self._held, strict=True):
            if (expected.messages, expected.digest) != (held.messages, held.digest):
                yield expected


Rows = dict[int, Row]


@dataclass(slots=True)
class CopyVerdict:
    """The verdict on runs that differ: messages that are `wrong`, `gone` by rule (by the cause), or that cannot be
    compared.
    """

    wrong: list[str] = field(default_factory=list)
    gone: Counter[Cause] = field(default_factory=Counter)
    unsure: int = 0


def judge(
    run: Run,
    ours: Rows,
    theirs: Rows,
    excused: Callable[[Row], Cause | None],
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
        verdict.wrong += [f"{s} changed" for s in sorted(shared) if ours[s] != theirs[s]]
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
        if (cause := excused(row)) is not None:
            verdict.gone[cause] += 1
        elif taken is None or not taken.may_have(row):
            verdict.wrong.append(f"{sequence} missing")


def _digest(rows: Rows) -> StreamDigest:
    if not rows:
        return StreamDigest()
    return digest_rows(encode_rows(rows_as_batch([rows[sequence] for sequence in sorted(rows)])))
