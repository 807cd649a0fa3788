"""Compare a backup's messages with those of a server, one by one.

Only used if the digests differ, to find out where.

A message that is missing may have been removed by the rules of the stream: discarded at a limit, or taken by the
consumers of a queue.

**Discarded**, because others were published to it and it is at a limit. Three limits remove messages to make room for a
new one: `max_msgs` and `max_bytes` the oldest of the stream, unless it discards new ones; `max_msgs_per_subject` the
oldest of a subject, unless new ones of it are refused. A missing message was discarded if the stream would not hold it
either if nothing else had happened to it:

- by a limit of the stream: everything older is missing too, something was published since, and the stream is full. It
  has `max_msgs` messages, or more than `max_bytes` with the newest one that is missing.
- by the limit of a subject: the stream holds as many newer messages of the subject, at least one of them published
  since. Those are counted while the stream is read: memory grows with the messages that are missing.

A limit that was changed since, or that is lower than what was restored, explains nothing.

**Taken**: a queue removes a message when its consumers have acknowledged it, one of them (`workqueue`) or all that it
is for (`interest`). A server does not say which messages those were. So no more of a consumer's messages may be missing
than it can have acknowledged: those that it had not when it was restored, and those that were delivered to it since,
less those that it has yet to acknowledge. That is an upper bound, since what is delivered again counts again. A purge
moves the positions of consumers, but delivers nothing. A consumer that is gone explains nothing, since nobody knows
what it took.

Server source: an `interest` stream keeps what is for no consumer until all its consumers are beyond that
(`checkInterestState`), and everything while it has none. Bytes are counted per message, see `_stored_bytes`;
`consumer.purge` leaves the number of deliveries as it is. Not known here: a stream at `max_bytes` may have room again
if it also has `max_msgs_per_subject` and large messages were replaced by small ones; and which messages a consumer took
that no longer exists.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa

from jsbackup.engine.read.consume import Row, rows_of
from jsbackup.model import ArchivedConsumer, ConsumerState, JsonObject
from jsbackup.protocol.info import ConsumerInfo, StreamInfo
from jsbackup.transforms.removal import Cause, RemovalLimits
from jsbackup.transforms.subjects import overlaps

__all__ = ["Comparison", "Discarded", "Discards", "Taken"]

KEPT = 100
"""How many sequences are kept of each kind of difference; more are only counted."""

# Subjects whose consumers are remembered.
_SUBJECTS = 1 << 14


@dataclass(frozen=True, slots=True)
class Discarded:
    """How many messages limits have removed, which limits (`max_msgs 100`), and how many were published since."""

    messages: int = 0
    limits: tuple[str, ...] = ()
    published: int = 0


@dataclass(slots=True)
class _Subject:
    """A subject with missing messages: their sequences, whether everything older is missing too, and how many newer
    messages were seen before. `seen` were seen so far.
    """

    seen: int = 0
    missing: deque[tuple[int, bool, int]] = field(default_factory=deque)


class Discards:
    """Decides which missing messages were discarded by a stream with this planned configuration.

    `has` and `lacks` are called in order of sequences, then `decide`. Messages after `last_seq` were published since.
    """

    def __init__(self, config: JsonObject, last_seq: int) -> None:
        limits = RemovalLimits.of(config)
        of_stream = (("max_msgs", limits.messages), ("max_bytes", limits.bytes))
        self._limits = {name: limit for name, limit in of_stream if limit}
        self._per_subject = limits.per_subject
        self._in_memory = config.get("storage") == "memory"
        self._last_seq = last_seq
        self._first = 0  # the first message that the stream has
        self._restored = self._restored_bytes = 0  # what was restored, missing or not
        self._newest_bytes = 0  # of the newest missing message before the first
        self._most_bytes = 0  # of any message
        self._oldest = 0  # missing before the first, which a limit of the stream may explain:
        self._oldest_kept: list[int] = []
        self._subjects: dict[bytes, _Subject] = {}
        self._of_subjects = 0  # missing messages that the limit of a subject explains

    def has(self, row: Row) -> None:
        """Take a message that the stream has."""
        sequence, size = row.sequence, self._stored_bytes(row)
        self._first = self._first or sequence
        self._most_bytes = max(self._most_bytes, size)
        if sequence <= self._last_seq:
            self._restored += 1
            self._restored_bytes += size
        if (subject := self._subjects.get(row.subject)) is None:
            return
        subject.seen += 1
        if sequence <= self._last_seq:
            return
        while subject.missing and subject.seen - subject.missing[0][2] >= self._per_subject:
            subject.missing.popleft()
            self._of_subjects += 1
        if not subject.missing:
            del self._subjects[row.subject]

    def lacks(self, row: Row, *, excused: bool) -> bool:
        """Take a restored message that the stream lacks, `excused` if that is explained. Returns whether `decide` will
        say if a limit explains it.
        """
        size, oldest = self._stored_bytes(row), not self._first
        self._restored += 1
        self._restored_bytes += size
        self._most_bytes = max(self._most_bytes, size)
        if oldest:
            self._newest_bytes = size
        if excused:
            return False
        if self._per_subject:
            subject = self._subjects.setdefault(row.subject, _Subject())
            subject.missing.append((row.sequence, oldest, subject.seen))
            return True
        if oldest and self._limits:
            self._oldest += 1
            if len(self._oldest_kept) < KEPT:
                self._oldest_kept.append(row.sequence)
            return True
        return False

    @property
    def subjects(self) -> list[tuple[bytes, int]]:
        """Subjects with missing messages that nothing explains yet, and the newest such message of each."""
        return [(subject, counts.missing[-1][0]) for subject, counts in self._subjects.items()]

    def explain(self, subject: bytes) -> None:
        """Take it that the limit of the subject has removed all of its missing messages."""
        self._of_subjects += len(self._subjects.pop(subject).missing)

    @property
    def per_subject(self) -> int:
        """How many messages of a subject the stream keeps, 0 if it keeps all."""
        return self._per_subject

    @property
    def limited(self) -> bool:
        """Whether the stream has any of these limits."""
        return bool(self._limits or self._per_subject)

    def decide(self, info: StreamInfo) -> tuple[Discarded, list[int]]:
        """Return what was discarded, and the first sequences of the others of which that was not known.

        `info` describes the stream after it was read.
        """
        full = list(self._reached(info))
        waiting = sorted(
            (sequence, oldest) for subject in self._subjects.values() for sequence, oldest, _ in subject.missing
        )
        left = [sequence for sequence, oldest in waiting if not (full and oldest)]
        of_stream = len(waiting) - len(left) + (self._oldest if full else 0)
        kept = left[:KEPT] if full or waiting else self._oldest_kept
        limits = [f"{name} {self._limits[name]}" for name in full if of_stream]
        if self._of_subjects:
            limits.append(f"max_msgs_per_subject {self._per_subject}")
        published = max(0, info.state.last_seq - self._last_seq)
        return Discarded(of_stream + self._of_subjects, tuple(limits), published), kept

    def _reached(self, info: StreamInfo) -> Iterable[str]:
        """Yield the limits of the stream that keep it from holding the newest missing message, too."""
        state = info.state
        if state.last_seq <= self._last_seq:
            return
        # If more was removed after the stream was read, or of what was published since, the size of the last one that
        # was removed is not known.
        known = 0 < self._first <= self._last_seq + 1 and state.first_seq <= self._first
        held = {
            "max_msgs": (self._restored, state.messages + 1),
            "max_bytes": (self._restored_bytes, state.bytes + (self._newest_bytes if known else self._most_bytes)),
        }
        for name, limit in self._limits.items():
            restored, with_one_more = held[name]
            if info.config.get(name) == limit and restored <= limit < with_one_more:
                yield name

    def _stored_bytes(self, row: Row) -> int:
        """Return what a server counts for a message."""
        size = len(row.subject) + len(row.headers or b"") + len(row.data)
        if self._in_memory:
            return size + 16
        return size + 30 + (4 if row.headers else 0)


class Taken:
    """Decides how many missing messages the consumers of a queue can have taken.

    `consumers` are those that were restored, with their states; `listed` are those that the stream has now, None if
    that is not known. `may_have` is called for each missing message, then `decide`.
    """

    def __init__(
        self, config: JsonObject, consumers: Sequence[ArchivedConsumer], listed: Mapping[str, ConsumerInfo] | None
    ) -> None:
        self._listed = listed
        self._shared = config.get("retention") == "interest"  # a message is for all consumers instead of one
        self._restored = {consumer.name: consumer for consumer in consumers}
        configs = {consumer.name: consumer.config for consumer in consumers}
        self._configs = {**configs, **{name: info.config for name, info in (listed or {}).items()}}
        self._missing: dict[frozenset[str], int] = {}  # by the consumers that may have taken them
        self._kept: dict[frozenset[str], list[int]] = {}
        self._consumers_of = lru_cache(_SUBJECTS)(self._find_consumers)

    def is_unwanted(self, missing: Row) -> bool:
        """Return whether a queue removes the message as soon as it has been restored: each consumer of it had
        acknowledged it, or it is for none of the consumers, which are all beyond it.

        Replicas of older servers, and snapshots of them, hold such messages a little longer (measured: 2.11).
        """
        here = self._restored.keys() if self._listed is None else self._restored.keys() & self._listed.keys()
        wanting = self._consumers_of(missing.subject) & here
        if wanting or not self._shared:
            return bool(wanting) and not self._waiting(wanting, missing.sequence)
        return bool(here) and all(self._floor(name) >= missing.sequence for name in here)

    def had(self, sequence: int) -> bool:
        """Return whether a consumer had acknowledged a sequence when it was restored."""
        return any(_has(consumer.state, sequence) for consumer in self._restored.values())

    def _floor(self, name: str) -> int:
        state = self._restored[name].state
        floor = 0 if state is None else state.ack_floor.stream
        return floor if self._listed is None else max(floor, self._listed[name].ack_floor.stream)

    def may_have(self, missing: Row) -> bool:
        """Count a missing message. Returns whether there is a consumer that may have taken it."""
        waiting = self._waiting(self._consumers_of(missing.subject), missing.sequence)
        if not waiting or self._listed is None:
            return False
        self._missing[waiting] = self._missing.get(waiting, 0) + 1
        kept = self._kept.setdefault(waiting, [])
        if len(kept) < KEPT:
            kept.append(missing.sequence)
        return True

    def decide(self, listed: Mapping[str, ConsumerInfo]) -> tuple[int, int, list[int]]:
        """Return how many of the counted messages were taken, and of the others the number and first sequences.

        `listed` are the consumers after the stream was read.
        """
        room = {name: self._acknowledged(name, info) for name, info in listed.items()}
        taken = left = 0
        kept: list[int] = []
        for consumers, count in sorted(self._missing.items(), key=lambda group: len(group[0])):
            here = consumers & room.keys()
            rooms = [room[name] for name in here]
            explained = min(count, min(rooms, default=0) if self._shared else sum(rooms))
            due = explained
            for name in here:
                step = explained if self._shared else min(due, room[name])
                room[name] -= step
                due -= step
            taken += explained
            left += count - explained
            if explained < count:
                kept += self._kept[consumers]
        return taken, left, sorted(kept)[:KEPT]

    def _find_consumers(self, subject: bytes) -> frozenset[str]:
        text = subject.decode("utf-8", "replace")
        return frozenset(name for name, config in self._configs.items() if _is_for(config, text))

    def _waiting(self, consumers: Set[str], sequence: int) -> frozenset[str]:
        """Return those that had not acknowledged a message when they were restored. Others, which were created since,
        can have taken one that is for any of them, and do not keep one that is for all.
        """
        restored = self._restored
        waiting = (name for name in consumers & restored.keys() if not _has(restored[name].state, sequence))
        return frozenset(waiting) if self._shared else frozenset(waiting) | (consumers - restored.keys())

    def _acknowledged(self, name: str, info: ConsumerInfo) -> int:
        """Return how many messages a consumer has acknowledged since it was restored, at most."""
        state = self._restored[name].state if name in self._restored else None
        if state is None or info.delivered.consumer < state.delivered.consumer:  # it was created again since
            state = ConsumerState()
        delivered = info.delivered.consumer - state.delivered.consumer
        return max(0, len(state.pending) + delivered - info.num_ack_pending)


def _has(state: ConsumerState | None, sequence: int) -> bool:
    """Return whether a consumer in this state has acknowledged a message."""
    return state is not None and (
        sequence <= state.ack_floor.stream or (sequence <= state.delivered.stream and sequence not in state.pending)
    )


def _is_for(consumer: JsonObject, subject: str) -> bool:
    filters = [consumer.get("filter_subject"), *(consumer.get("filter_subjects") or [])]
    wanted = [pattern for pattern in filters if isinstance(pattern, str) and pattern]
    return not wanted or any(overlaps(pattern, subject) for pattern in wanted)


@dataclass(slots=True)
class Comparison:
    """A sink for the server's messages that compares them with the backup's. Call `finish` at the end.

    `missing`, `added` and `changed` keep the sequences of the first differences of each kind; all are counted. Missing
    messages that are `excused` are only counted in `gone`, by the cause, and so are those that the stream has discarded
    or its consumers have taken: that is for `decide` to find out after `finish`, if it is `undecided`.
    """

    ours: Iterable[pa.RecordBatch]
    last_seq: int  # later messages of the server are not compared: they arrived after the restore
    excused: Callable[[Row], Cause | None] = lambda _missing: None
    discards: Discards | None = None
    taken: Taken | None = None
    missing: list[int] = field(default_factory=list)
    added: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    missing_count: int = 0
    added_count: int = 0
    changed_count: int = 0
    gone: Counter[Cause] = field(default_factory=Counter)
    discarded: Discarded = field(default_factory=Discarded)
    _undecided: int = 0
    _rows: Iterator[Row] = field(init=False)
    _next: Row | None = field(init=False)

    def __post_init__(self) -> None:
        self._rows = (row for batch in self.ours for row in rows_of(batch))
        self._next = next(self._rows, None)

    @property
    def count(self) -> int:
        """The number of all differences."""
        return self.missing_count + self.added_count + self.changed_count

    def add(self, batch: pa.RecordBatch) -> None:
        """Add messages of the server, in order."""
        for row in rows_of(batch):
            if row.sequence > self.last_seq and self.discards is None:
                return
            while self._next is not None and self._next.sequence < row.sequence:
                self._miss()
            if self.discards is not None:
                self.discards.has(row)
            if row.sequence > self.last_seq:
                continue
            if self._next is None or self._next.sequence > row.sequence:
                self.added_count += 1
                _keep(self.added, row.sequence)
                continue
            if self._next != row:
                self.changed_count += 1
                _keep(self.changed, row.sequence)
            self._next = next(self._rows, None)

    def finish(self) -> None:
        """Count the rest of the backup as missing: the server has no more messages."""
        while self._next is not None:
            self._miss()

    @property
    def undecided(self) -> bool:
        """Whether the stream may have discarded missing messages, or its consumers may have taken them."""
        return self._undecided > 0

    def decide(self, info: StreamInfo, consumers: Mapping[str, ConsumerInfo]) -> None:
        """Count what the stream has discarded, or its consumers have taken, as `gone`, the rest as missing. `info` and
        `consumers` describe it after it was read.
        """
        taken, wrong = 0, list[int]()
        if self.discards is not None:
            self.discarded, wrong = self.discards.decide(info)
        if self.taken is not None:
            taken, _, more = self.taken.decide(consumers)
            wrong = [*wrong, *more]
        # Some may be explained in both ways: then it is enough if both together explain all of them.
        explained = min(self._undecided, self.discarded.messages + taken)
        self.gone[Cause.DISCARDED] += (discarded := min(explained, self.discarded.messages))
        self.gone[Cause.TAKEN] += explained - discarded
        self.missing_count += self._undecided - explained
        if explained < self._undecided:
            self.missing = sorted({*self.missing, *wrong})[:KEPT]

    def _miss(self) -> None:
        assert self._next is not None
        missing = self._next
        cause = self.excused(missing)
        discarded = self.discards is not None and self.discards.lacks(missing, excused=cause is not None)
        taken = cause is None and self.taken is not None and self.taken.may_have(missing)
        if cause is not None:
            self.gone[cause] += 1
        elif discarded or taken:
            self._undecided += 1
        else:
            self.missing_count += 1
            _keep(self.missing, missing.sequence)
        self._next = next(self._rows, None)


def _keep(kept: list[int], sequence: int) -> None:
    if len(kept) < KEPT:
        kept.append(sequence)
