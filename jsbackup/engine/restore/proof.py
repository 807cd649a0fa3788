"""Prove a restore: read the server's messages back and compare them with the backup.

The stream's digest over the restored messages decides. If it differs, the messages are compared one by one. A missing
message is excused by a fact about it alone: by the server's clock it has expired or its schedule was due
(`transforms/removal.py`); or consumers that exist can have taken it, or the stream has discarded it for newer ones
because it is at a limit (`compare.py`). Messages beyond the backup's last sequence arrived after the restore:
they are not compared, but may explain what was discarded.

**In part** (`ProofLevel`): that costs a server less than reading everything back.

What the server reports is compared always: the first and the last sequence and the number of messages.

    quick     also how many messages each subject has, where a stream has at most 100,000 subjects
    sample    also a random tenth of its messages, in runs of adjacent ones

Where anything differs, or less than this can be compared, everything is read back as above: that tells what the
stream's own rules have removed, and what publishers have added.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from typing import TypeVar

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.engine.link.concurrency import in_thread
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.consume import Row, read_into
from jsbackup.engine.read.snapshot_transfer import Advance, Sink
from jsbackup.engine.read.whole_stream import WholeSource, describe_stream, read_with_attempts
from jsbackup.engine.restore.compare import Comparison, Discarded, Discards, Taken
from jsbackup.errors import DigestMismatch, NatsPermissionDenied
from jsbackup.formats.batch import columns_from_batch, typed_buffer
from jsbackup.formats.digest import StreamDigest, StreamDigester
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import ArchivedConsumer, JsonObject, StreamState
from jsbackup.progress import ignored
from jsbackup.protocol.info import ConsumerInfo, StreamInfo
from jsbackup.readable import count_were, format_count
from jsbackup.transforms.removal import Cause, discards_oldest, is_queue, removal_of

__all__ = [
    "Expected",
    "Proof",
    "ProofLevel",
    "SentMarks",
    "SubjectTally",
    "Window",
    "about_lacking",
    "consumers_of",
    "excuses",
    "prove_stream",
    "read_back",
    "sample_agrees",
    "server_clock",
    "state_agrees",
    "subjects_agree",
    "taken_by",
    "windows_of",
]

Window = tuple[int, int]
"""The first and the last sequence of adjacent ones."""

_MOST_SUBJECTS = 100_000  # of a page of stream info
_WORTH = 10_000  # messages; fewer are read completely
_WINDOWS = (2, 20)  # at least, at most
_WINDOW_BYTES = 32 << 20  # about a segment: what is between windows need not be read from the store either
_PART = 10  # one of so many is read
_SAMPLE_READINGS = 3
_PAUSE_SECONDS = 0.5
_MOST_MARKS = 8192  # then every other is forgotten


class ProofLevel(StrEnum):
    """How a restored stream is compared with the backup."""

    FULL = "full"
    SAMPLE = "sample"
    QUICK = "quick"
    NONE = "none"


class SubjectTally:
    """Counts the messages of each subject while they are sent."""

    def __init__(self) -> None:
        self._counts: Counter[str | bytes] = Counter()

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Yield the batches of one attempt to send a stream, and count them from zero."""
        self._counts.clear()
        for batch in batches:
            if len(self._counts) <= _MOST_SUBJECTS:
                for count in pc.value_counts(batch.column("subject")).to_pylist():
                    self._counts[count["values"]] += count["counts"]
            yield batch

    @property
    def counts(self) -> Counter[str | bytes] | None:
        """The counts, None if there are too many subjects."""
        return self._counts if len(self._counts) <= _MOST_SUBJECTS else None


class SentMarks:
    """Remembers while a stream is sent which sequences its messages have: those of messages at equal distances.

    Sequences alone do not tell: nearly all messages of a bucket may be among its first sequences.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._marks: list[int] = []
        self._step = 1
        self._messages = 0

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Yield the batches of one attempt to send a stream, and mark them anew."""
        self._begin()
        for batch in batches:
            first = -self._messages % self._step
            sequences = typed_buffer(columns_from_batch(batch).sequences, "q", batch.num_rows)
            self._marks += sequences[first :: self._step].tolist()
            self._messages += batch.num_rows
            while len(self._marks) > _MOST_MARKS:
                self._marks, self._step = self._marks[::2], self._step * 2
            yield batch

    @property
    def marks(self) -> list[int]:
        """Their sequences, from that of the first message on."""
        return self._marks


def state_agrees(info: StreamInfo, expected: StreamState) -> bool:
    """Return whether the server reports the expected messages and sequences."""
    state = info.state
    first = state.first_seq == expected.first_seq or not expected.messages
    return first and (state.messages, state.last_seq) == (expected.messages, expected.last_seq)


async def subjects_agree(js: JetStream, info: StreamInfo, tally: SubjectTally) -> bool:
    """Return whether the server reports the counted subjects. Raises NatsError."""
    counts = tally.counts
    if counts is None or info.subject_count != len(counts):
        return False
    return await js.subjects(info.name, ">") == counts


def windows_of(state: StreamState, marks: Sequence[int], chance: random.Random) -> list[Window]:
    """Return sequences that have a random tenth of a stream's messages, in order; none if all of it is to be read.

    `marks` are those of `SentMarks`.
    """
    if state.messages < _WORTH or not marks:
        return []
    least, most = _WINDOWS
    windows = min(max(least, state.bytes // _PART // _WINDOW_BYTES), most)
    count = windows * _PART
    edges = [marks[len(marks) * number // count] for number in range(count)] + [state.last_seq + 1]
    return [(edges[number], edges[number + 1] - 1) for number in sorted(chance.sample(range(count), windows))]


async def sample_agrees(
    js: JetStream,
    info: StreamInfo,
    windows: list[Window],
    messages_of: Callable[[list[Window]], Iterable[pa.RecordBatch]],
    *,
    advance: Advance,
) -> bool:
    """Return whether the messages in these windows are the same. `messages_of` reads those of the backup, and perhaps
    others. Raises NatsError, and the errors of `read_into` and `messages_of`.
    """

    def read() -> StreamDigester:
        ours = StreamDigester()
        for batch in messages_of(windows):
            inside = _inside(batch, windows)
            if inside.num_rows:
                ours.update(inside)
        return ours

    ours = await in_thread(read)
    for reading in range(1, _SAMPLE_READINGS + 1):
        theirs = StreamDigester()
        try:
            for first, last in windows:
                await read_into(js, info, theirs.update, advance, first=first, last=last)
        except NatsPermissionDenied:
            return False  # a snapshot may be allowed
        if theirs.messages >= ours.messages or reading == _SAMPLE_READINGS:
            break
        # The consumer may be on a replica that does not have all yet, although the leader has.
        await asyncio.sleep(_PAUSE_SECONDS * reading)
    return (ours.stream_digest, ours.messages) == (theirs.stream_digest, theirs.messages)


def _inside(batch: pa.RecordBatch, windows: list[Window]) -> pa.RecordBatch:
    """Return the rows of a batch that are in a window."""
    if not batch.num_rows:
        return batch
    sequences = batch.column("sequence")
    begun, ended = sequences[0].as_py(), sequences[-1].as_py()
    rows = [
        pc.and_(pc.greater_equal(sequences, first), pc.less_equal(sequences, last))
        for first, last in windows
        if first <= ended and last >= begun
    ]
    return batch.filter(reduce(pc.or_, rows)) if rows else batch.slice(0, 0)


_READINGS = 5
_SHOWN = 5
_ASKED_SUBJECTS = 1000
_WRITTEN = "Something else may be writing to it, or its limits remove messages; look at 'nats stream info'."
_ROLLED_UP = (
    "A client may have rolled up a subject, as the purge of a key does (Nats-Rollup), or have purged or written to the "
    "stream, or its limits remove messages; look at 'nats stream info'."
)
_TAKEN = (
    "Its consumers have acknowledged fewer since. Something else may have purged it, or deleted a consumer that had "
    "taken some; look at 'nats stream info'."
)

S = TypeVar("S", bound=Sink)


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected content of a restored stream, the rules by which it removes messages, and the positions of its
    consumers.

    `messages_of` reads the backup's messages again, if that is needed.
    """

    digest: StreamDigest
    messages: int
    last_seq: int
    config: JsonObject
    consumers: Sequence[ArchivedConsumer]
    messages_of: Callable[[], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Proof:
    """The result. `gone` messages were removed by the stream's own rules, by the cause; `discarded` says more of those
    that made room for newer ones. `level` says how much was compared.
    """

    info: StreamInfo
    digest: StreamDigest
    messages: int
    gone: Counter[Cause] = field(default_factory=Counter)
    level: ProofLevel = ProofLevel.FULL
    discarded: Discarded = field(default_factory=Discarded)
    bytes: int | None = None  # of the messages that are left, if some are gone


class _DigestSink:
    def __init__(self, last_seq: int) -> None:
        self._last_seq = last_seq
        self.digester = StreamDigester()

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows and batch.column("sequence")[-1].as_py() > self._last_seq:
            batch = batch.filter(pc.less_equal(batch.column("sequence"), self._last_seq))
        self.digester.update(batch)


async def prove_stream(js: JetStream, name: str, expected: Expected, *, advance: Advance) -> Proof:
    """Read `name` back and compare it. Raises DigestMismatch, listing messages, and NatsError."""
    info, sink = await read_back(js, name, lambda: _DigestSink(expected.last_seq), advance)
    digester = sink.digester
    if digester.stream_digest == expected.digest and digester.messages == expected.messages:
        _check_last(info, expected)
        return Proof(info, digester.stream_digest, digester.messages)
    now_ns = await server_clock(js, name)
    listed = await consumers_of(js, name, expected.config)

    def compare() -> Comparison:
        discards = Discards(expected.config, expected.last_seq)
        taken = taken_by(expected.config, expected.consumers, listed)
        excused = excuses(expected.config, taken, now_ns)
        return Comparison(
            expected.messages_of(), expected.last_seq, excused, discards if discards.limited else None, taken
        )

    info, comparison = await read_back(js, name, compare, ignored)
    await in_thread(comparison.finish)
    if comparison.undecided:
        if comparison.discards is not None:
            await _explain_subjects(js, name, comparison.discards, expected.last_seq)
        info = await js.stream(name)
        comparison.decide(info, await consumers_of(js, name, expected.config) or {})
    if comparison.count:
        since = info.state.last_seq - expected.last_seq
        raise DigestMismatch(
            f"stream {name} does not hold what was restored, in {format_count(comparison.count, 'message')}: "
            + ", ".join(
                [
                    _list("missing", comparison.missing_count, comparison.missing),
                    _list("added", comparison.added_count, comparison.added),
                    _list("changed", comparison.changed_count, comparison.changed),
                ]
            )
            + (f"; {count_were(since, 'message')} published to it since" if since > 0 else ""),
            hint=_TAKEN if is_queue(expected.config) else about_lacking(expected.config),
        )
    _check_last(info, expected)
    # Consumers may have taken more since the first reading.
    left = expected.messages - comparison.gone.total()
    size = digester.raw_bytes if left else 0
    return Proof(info, digester.stream_digest, left, comparison.gone, discarded=comparison.discarded, bytes=size)


def about_lacking(config: JsonObject) -> str:
    """Return the hint on a stream that lacks messages."""
    return _ROLLED_UP if config.get("allow_rollup_hdrs") else _WRITTEN


def taken_by(
    config: JsonObject, consumers: Sequence[ArchivedConsumer], listed: Mapping[str, ConsumerInfo] | None
) -> Taken | None:
    """Return what decides whether consumers have taken messages; None unless the stream is a queue."""
    return Taken(config, consumers, listed) if is_queue(config) else None


def excuses(config: JsonObject, taken: Taken | None, now_ns: Callable[[], int]) -> Callable[[Row], Cause | None]:
    """Return a function: why the stream has removed a message by its own rules, whatever else has happened. None if it
    should have it. `now_ns` is the server's clock.
    """

    def excused(missing: Row) -> Cause | None:
        removal = removal_of(missing.timestamp_ns, missing.headers or b"", config)
        if removal is not None and removal[0] <= now_ns():
            return removal[1]
        return Cause.TAKEN if taken is not None and taken.is_unwanted(missing) else None

    return excused


async def server_clock(js: JetStream, name: str) -> Callable[[], int]:
    """Return the clock of the server that leads a stream, in Unix nanoseconds, ahead by a round trip at most."""
    began_ns = time.monotonic_ns()
    ahead_ns = (await js.stream(name)).now_ns - began_ns
    return lambda: time.monotonic_ns() + ahead_ns


async def consumers_of(js: JetStream, name: str, config: JsonObject) -> Mapping[str, ConsumerInfo] | None:
    """Return the consumers of a queue; None if they may not be listed, or the stream is none."""
    if not is_queue(config):
        return None
    try:
        return (await js.consumers(name)).entries
    except NatsPermissionDenied:
        return None


async def _explain_subjects(js: JetStream, name: str, discards: Discards, last_seq: int) -> None:
    """Ask the server about subjects of which a reading shows too few newer messages: some may have been removed while
    it was read, and even newer ones published.
    """
    if not discards.per_subject:
        return
    for subject, newest_missing in discards.subjects[:_ASKED_SUBJECTS]:
        try:
            text = subject.decode()
            held = (await js.subjects(name, text)).get(text, 0)
            first, last = await js.next_message(name, 1, text), await js.last_message(name, text)
        except (UnicodeDecodeError, NatsPermissionDenied):
            return
        if first is None or last is None:
            continue
        if held >= discards.per_subject and first.sequence > newest_missing and last.sequence > last_seq:
            discards.explain(subject)


def _check_last(info: StreamInfo, expected: Expected) -> None:
    if info.state.last_seq < expected.last_seq:
        raise DigestMismatch(
            f"stream {info.name} ends at sequence {info.state.last_seq}, the backup at {expected.last_seq}"
        )


def _list(what: str, count: int, sequences: Sequence[int]) -> str:
    shown = ", ".join(map(str, sequences[:_SHOWN]))
    return f"{count:,} {what}" + (f" ({shown}{', …' if count > _SHOWN else ''})" if sequences else "")


async def read_back(js: JetStream, name: str, make_sink: Callable[[], S], advance: Advance) -> tuple[StreamInfo, S]:
    """Read everything that the stream holds into a new sink, or held when the reading began.

    Raises DigestMismatch if clients delete so much meanwhile that this cannot be told, and the errors of
    `read_with_attempts`.
    """
    # Messages deleted before the backup have no record here, so no deletions have to be known in advance.
    deleted = SequenceSet()
    for reading in range(1, _READINGS + 1):
        info = await describe_stream(js, name)
        deleted = deleted | SequenceSet(info.deleted or ())
        source = WholeSource(js, name, advance, exact=False)
        sink, whole = await read_with_attempts(source, replace(info, deleted=tuple(deleted)), make_sink)
        since = whole.late.certain | whole.late.doubtful
        # What is deleted now was there when the reading began, if all that was not is known.
        if not since or info.deleted is not None or await _are_discarded(js, info, since):
            return info, sink
        # Messages were deleted since the restore: again, without those.
        deleted = deleted | since
        await asyncio.sleep(_PAUSE_SECONDS * reading)
    raise DigestMismatch(
        f"stream {name} is restored but not verified: "
        "other clients delete or overwrite its messages while it is read back",
        hint="Nothing of it was removed by jsbackup. To verify it, restore while no client writes to it.",
    )


async def _are_discarded(js: JetStream, before: StreamInfo, deleted: SequenceSet) -> bool:
    """Return whether only the oldest messages were deleted while the stream was read, and its limits may have done so.
    `before` describes it before it was read.
    """
    if not discards_oldest(before.config):
        return False
    state = (await js.stream(before.name)).state
    return max(deleted) < state.first_seq
