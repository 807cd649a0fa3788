"""Which messages are new since an offset: a walk over the backups, oldest first. Pure, but for what is read by need.

Of each backup come the messages of its streams behind the position of the query. So each message comes from the first
backup that has it, once, whatever was removed at the source later. A stream that was created anew has another
incarnation, and begins at 0.

Where a backup was forgotten before the query had read it, the next one has most of its messages, but not those that
were removed at the source in between. That shows as sequences that are missing; it may also be that no backup ever had
them. What cannot be excluded is told: `told` gets a sentence, and raises it, or lets the walk go on.

Where a server has lost the end of a stream and gives its sequences again, the position goes back to what was left; what
follows is delivered in the next micro-batch, so that offsets have no turn within them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from jsbackup.pipeline.messages.stream_offsets import ReadPosition, StreamKey, StreamOffsets
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.pages.segment_list import touching

__all__ = ["BackupWalk", "FollowedBackup", "MessageRange", "ReadLimits"]


@dataclass(frozen=True, slots=True)
class FollowedBackup:
    """A backup with the streams that are followed. `previous` is the one before it in the repository, None if there
    was none.
    """

    id: str
    previous: str | None
    streams: tuple[StreamBackup, ...]


@dataclass(frozen=True, slots=True)
class MessageRange:
    """The messages of a segment from `first_seq` to `last_seq`, both included."""

    stream: str
    backup: str
    ref: SegmentRef
    first_seq: int
    last_seq: int

    @property
    def is_whole(self) -> bool:
        return self.first_seq <= self.ref.first_seq and self.ref.last_seq <= self.last_seq


@dataclass(slots=True)
class ReadLimits:
    """How much may still be read, in messages and in raw bytes; None: any number. Bytes are counted by the mean size
    in a segment.
    """

    messages: int | None = None
    bytes: int | None = None

    @property
    def are_none(self) -> bool:
        return self.messages is None and self.bytes is None

    def share(self, ref: SegmentRef, wanted: int) -> int:
        """Return how many of the `wanted` messages of a segment may be read."""
        if self.messages is not None:
            wanted = min(wanted, self.messages)
        if self.bytes is not None:
            wanted = min(wanted, self.bytes * ref.messages // max(1, ref.bytes))
        return wanted

    def spend(self, ref: SegmentRef, messages: int) -> None:
        if self.messages is not None:
            self.messages -= messages
        if self.bytes is not None:
            self.bytes = max(0, self.bytes - ref.bytes * messages // ref.messages)


class BackupWalk:
    """A walk from `start`; `there` are the backups in the repository, and those that have been read before.

    With `until` it ends where that offset does. `sequences` returns those of a segment. After `add` has returned false,
    no other backup may be added.
    """

    def __init__(
        self,
        start: StreamOffsets,
        there: Collection[str],
        *,
        sequences: Callable[[SegmentRef], Sequence[int]],
        told: Callable[[str], None],
        limits: ReadLimits | None = None,
        until: StreamOffsets | None = None,
    ) -> None:
        self.ranges: list[MessageRange] = []
        self._start = start
        self._there = there
        self._sequences = sequences
        self._told = told
        self._limits = limits or ReadLimits()
        self._until = until
        self._positions = dict(start.streams)
        self._backup = start.backup
        self._forgotten = ""  # the newest backup that is known to be forgotten, unread
        self._turned: set[StreamKey] = set()

    @property
    def has_news(self) -> bool:
        """Whether there is something to deliver, or a position went back."""
        return bool(self.ranges or self._turned)

    @property
    def end(self) -> StreamOffsets:
        """The offset behind what was taken."""
        return replace(self._start, backup=self._backup, streams=self._positions)

    @property
    def has_turned(self) -> bool:
        """Whether the position in a stream went back."""
        return bool(self._turned)

    @property
    def is_finished(self) -> bool:
        """Whether all of `until` is reached."""
        assert self._until is not None
        wanted = self._until.streams.items()
        return all(self._positions.get(key, ReadPosition()).sequence >= one.sequence for key, one in wanted)

    def add(self, backup: FollowedBackup) -> bool:
        """Take what is new in a backup, which is newer than those before. Returns whether more may be read."""
        before = backup.previous
        if self._start.backup and before and before > self._start.backup and before not in self._there:
            self._forgotten = before
        for stream in backup.streams:
            if not self._add(backup.id, stream):
                return False
        self._backup = max(self._backup, backup.id)
        return True

    def finish(self) -> None:
        """Tell what `until` has and no backup any more."""
        assert self._until is not None
        for key, wanted in self._until.streams.items():
            reached = self._positions.get(key, ReadPosition()).sequence
            if reached < wanted.sequence:
                self._told(
                    f"messages {reached + 1} to {wanted.sequence} of stream {key[0]} were in backups that have been "
                    "forgotten since this micro-batch was planned, and no other backup has them"
                )

    def _add(self, backup: str, stream: StreamBackup) -> bool:
        key = (stream.name, stream.incarnation)
        position = self._positions.get(key, ReadPosition())
        if backup <= position.backup or key in self._turned:
            return True
        last = stream.captured.last_seq
        if self._until is not None:
            wanted = self._until.position(key).sequence
            if wanted <= position.sequence:
                return True
            last = min(last, wanted)
        elif stream.lost_since and stream.last_seq < position.sequence:
            self._positions[key] = ReadPosition(stream.last_seq, backup)
            self._turned.add(key)
            return True
        elif stream.lost_since and position.sequence:
            self._told(
                f"backup {backup} says that the server has lost messages of stream {stream.name}, which goes on beyond "
                f"sequence {position.sequence}: other messages than those delivered may have sequences up to there"
            )
        if self._forgotten > position.backup:
            self._check(backup, stream, position)
        reached = position.sequence
        for ref in touching(stream.segments, reached + 1, last):
            first, end = max(reached + 1, ref.first_seq), min(last, ref.last_seq)
            taken = self._take(MessageRange(stream.name, backup, ref, first, end))
            reached = max(reached, taken)
            if taken < end:
                if reached > position.sequence:
                    self._positions[key] = ReadPosition(reached, position.backup)
                return False
        self._positions[key] = ReadPosition(max(position.sequence, last), backup)
        return True

    def _take(self, wanted: MessageRange) -> int:
        """Take as much of a range as may be read; return its last sequence, 0 if there is nothing."""
        ref = wanted.ref
        within = None if ref.dense or self._limits.are_none else self._within(wanted)
        count = wanted.last_seq - wanted.first_seq + 1 if within is None else len(within)
        if not count:
            return wanted.last_seq
        share = self._limits.share(ref, count)
        if not share and not self.ranges:
            share = 1  # a message that is larger than the limit
        if not share:
            return 0
        if share < count:
            last = wanted.first_seq + share - 1 if within is None else within[share - 1]
            wanted = replace(wanted, last_seq=last)
        self._limits.spend(ref, share)
        self.ranges.append(wanted)
        return wanted.last_seq

    def _within(self, wanted: MessageRange) -> Sequence[int] | None:
        """Return the sequences of a range where they are needed: None if the whole segment may be read."""
        ref = wanted.ref
        if wanted.is_whole and self._limits.share(ref, ref.messages) == ref.messages:
            return range(ref.messages)  # only their number counts
        sequences = self._sequences(ref)
        return sequences[bisect_left(sequences, wanted.first_seq) : bisect_left(sequences, wanted.last_seq + 1)]

    def _check(self, backup: str, stream: StreamBackup, position: ReadPosition) -> None:
        """Tell if messages may have been in the forgotten backup alone."""
        known = (stream.name, stream.incarnation) in self._positions
        first = position.sequence + 1 if known else stream.captured.first_seq
        last = stream.last_seq
        if self._until is not None:
            last = min(last, self._until.position((stream.name, stream.incarnation)).sequence)
        missing = last - first + 1 - sum(self._count(ref, first, last) for ref in _refs(stream, first, last))
        if first and missing > 0:
            self._told(
                f"backup {self._forgotten} was forgotten before this query had read it, and the next one, {backup}, "
                f"lacks {missing} of the messages {first} to {last} of stream {stream.name}: some of them may have "
                "been in the forgotten one"
            )

    def _count(self, ref: SegmentRef, first: int, last: int) -> int:
        if first <= ref.first_seq and ref.last_seq <= last:
            return ref.messages
        if ref.dense:
            return min(last, ref.last_seq) - max(first, ref.first_seq) + 1
        sequences = self._sequences(ref)
        return bisect_left(sequences, last + 1) - bisect_left(sequences, first)


def _refs(stream: StreamBackup, first: int, last: int) -> Iterator[SegmentRef]:
    return touching(stream.segments, first, last)
