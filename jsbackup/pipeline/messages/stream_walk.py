"""Which messages are new since an offset: a walk over the backups, oldest first. Pure, but for what is read by need.

Of each backup come the messages of its streams behind the position. So each message comes from the first backup that
has it, once, whatever was removed at the source later. A stream that was created anew has another incarnation, one
that gives sequences again (after a restore in place, or if its server has lost its end) another life: both begin at 0.

A backup may come late: it is older than one that was taken, because it took longer or was copied from another
repository. So may one be whose messages were read while those of another one were. Of these come the messages that
none has of those taken that were made around the same time, which are read again. As offsets have no position within
that, limits do not cut it.

Where a backup was forgotten before the query had read it, the next one has most of its messages, but not those that
were removed at the source in between. That shows as sequences that are missing; it may also be that no backup ever had
them. What cannot be excluded is told: `told` gets a sentence, and raises it, or lets the walk go on.

How far a repository has been read: the offset of a streaming query, as Spark stores it in the checkpoint.

    {"version": 1, "repository": "00ff…", "origin": "C1/SHOP", "backup": "20261121T014500Z-1a2b3c",
     "taken": ["20261120T014500Z-000001", "20261121T014500Z-1a2b3c"], "before": "", "older": 0,
     "streams": [["ORDERS", "1a2b3c4d", "", 4711, 1795225502000000000]]}

`taken` are the backups of which all was delivered: the newest `MOST_TAKEN`. Those up to `before`, of which there were
`older` in the repository, count as taken, too. `backup` is the newest of which something was delivered: the last of
`taken`, or one that was read in part. Of each life of a stream, by name, incarnation and `life`, there is the last
sequence that was delivered, and when (Unix time in nanoseconds) the last backup of which all was delivered had read it.
The ids of backups sort by time.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from jsbackup.errors import FormatError
from jsbackup.repository import layout
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.pages.segment_list import touching
from jsbackup.times import parse_time

__all__ = [
    "MOST_TAKEN",
    "BackupWalk",
    "FollowedBackup",
    "MessageRange",
    "ReadLimits",
    "ReadPosition",
    "StreamKey",
    "StreamOffsets",
    "key_of",
]

_VERSION = 1
# Ids in an offset: 13 KB. Spark keeps a hundred offsets.
MOST_TAKEN = 500
# For how long the position in a stream is kept after another one got its name: a backup may take so long.
_LATE_NS = 48 * 3600 * 10**9


class StreamKey(NamedTuple):
    """A life of a stream: within it, a sequence is one message (`StreamBackup.life`)."""

    name: str
    incarnation: str
    life: str = ""


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The last `sequence` delivered, and when the last backup of which all was delivered had read the stream: in
    nanoseconds since the Unix epoch. 0 if none.
    """

    sequence: int = 0
    read_ns: int = 0


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """An offset. `repository` is the repository's id. `origin` and `backup` are "" while there was no backup."""

    repository: str
    origin: str = ""
    backup: str = ""
    taken: tuple[str, ...] = ()
    before: str = ""
    older: int = 0
    streams: Mapping[StreamKey, ReadPosition] = field(default_factory=dict)

    def knows(self, backup: str) -> bool:
        """Return whether all of a backup was delivered."""
        return backup <= self.before or backup in self.taken

    def without_replaced(self) -> StreamOffsets:
        """Return the offset without the positions in lives that another one of the name has replaced long ago."""
        newest: dict[str, int] = {}
        for key, position in self.streams.items():
            newest[key.name] = max(newest.get(key.name, 0), position.read_ns)
        kept = {
            key: position
            for key, position in self.streams.items()
            if not position.read_ns or position.read_ns >= newest[key.name] - _LATE_NS
        }
        return replace(self, streams=kept)

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark takes it, always in the same order: Spark compares the texts."""
        return {
            "version": _VERSION,
            "repository": self.repository,
            "origin": self.origin,
            "backup": self.backup,
            "taken": list(self.taken),
            "before": self.before,
            "older": self.older,
            "streams": [[*key, position.sequence, position.read_ns] for key, position in sorted(self.streams.items())],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffsets:
        """Decode the result of `to_json`. Raises FormatError for another one."""
        try:
            if value["version"] != _VERSION:
                raise FormatError(f"the checkpoint is of another version of jsbackup: {json.dumps(value)[:80]}")
            streams = {
                StreamKey(str(name), str(incarnation), str(life)): ReadPosition(int(sequence), int(read_ns))
                for name, incarnation, life, sequence, read_ns in value["streams"]
            }
            return cls(
                str(value["repository"]),
                str(value["origin"]),
                str(value["backup"]),
                tuple(map(str, value["taken"])),
                str(value["before"]),
                int(value["older"]),
                streams,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"the checkpoint is not one of the data source jsbackup: {error!r}") from error


_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class FollowedBackup:
    """A backup with the streams that are followed. `missing` is the one that was before it in the repository when it
    was made, if that is not there; "" if it is, or there was none.
    """

    id: str
    missing: str
    streams: tuple[StreamBackup, ...]


@dataclass(frozen=True, slots=True)
class MessageRange:
    """The messages of a segment from `first_seq` to `last_seq`, both included; with `only`, those of these sequences,
    which rise.
    """

    key: StreamKey
    backup: str
    ref: SegmentRef
    first_seq: int
    last_seq: int
    only: tuple[int, ...] = ()

    @property
    def is_whole(self) -> bool:
        return not self.only and self.first_seq <= self.ref.first_seq and self.ref.last_seq <= self.last_seq


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

    @property
    def are_spent(self) -> bool:
        return self.messages == 0 or self.bytes == 0

    def share(self, ref: SegmentRef, wanted: int) -> int:
        """Return how many of the `wanted` messages of a segment may be read."""
        if self.messages is not None:
            wanted = min(wanted, self.messages)
        if self.bytes is not None:
            wanted = min(wanted, self.bytes * ref.messages // max(1, ref.bytes))
        return wanted

    def spend(self, ref: SegmentRef, messages: int) -> None:
        if self.messages is not None:
            self.messages = max(0, self.messages - messages)
        if self.bytes is not None:
            self.bytes = max(0, self.bytes - ref.bytes * messages // ref.messages)


class BackupWalk:
    """A walk from `start` over the backups `present`: by id, when each was finished (Unix time in nanoseconds).

    `read` yields those that still exist of some ids, in this order; it is asked again for those around a late one.
    `sequences` returns those of a segment. With `until`, an offset behind `start`, the walk takes again what was taken
    then, without limits. `run` walks, once; then `ranges` is what to deliver, and `end` the offset behind it.
    """

    def __init__(
        self,
        start: StreamOffsets,
        present: Mapping[str, int],
        *,
        read: Callable[[Sequence[str]], Iterable[FollowedBackup]],
        sequences: Callable[[SegmentRef], Sequence[int]],
        told: Callable[[str], None],
        limits: ReadLimits | None = None,
        until: StreamOffsets | None = None,
    ) -> None:
        self.ranges: list[MessageRange] = []
        self._start = start
        self._there = sorted(present)
        self._ended = present
        self._read = read
        self._sequences = sequences
        self._told = told
        self._limits = limits or ReadLimits()
        self._until = until
        self._positions = dict(start.streams)
        self._backup = start.backup
        self._taken = sorted(start.taken)
        self._forgotten = ""  # the newest backup that is known to be forgotten, unread
        self._checked: set[StreamKey] = set()  # streams that were looked at for messages of it
        self._uncounted = False

    @property
    def has_news(self) -> bool:
        """Whether there is something to deliver, or to be told only once."""
        return bool(self.ranges) or self._uncounted

    @property
    def end(self) -> StreamOffsets:
        """The offset behind what was taken."""
        before, taken = self._start.before, self._taken
        if len(taken) > MOST_TAKEN:
            before, taken = taken[-MOST_TAKEN - 1], taken[-MOST_TAKEN:]
        return replace(
            self._start,
            backup=self._backup,
            taken=tuple(taken),
            before=before,
            older=bisect_right(self._there, before),
            streams=self._positions,
        ).without_replaced()

    def run(self) -> None:
        """Take what is new. Raises the errors of `read`, `sequences` and `told`."""
        unknown = [backup for backup in self._there if not self._start.knows(backup)]
        # First the one that was read in part: the position is within it.
        unknown.sort(key=lambda backup: (backup != self._start.backup, backup))
        if self._until is not None:
            self._repeat(unknown, self._until)
            return
        older = bisect_right(self._there, self._start.before)
        if older > self._start.older:
            self._uncounted = True
            self._told(
                f"{older - self._start.older} backups made up to {self._start.before} came after this query had read "
                "much later ones; what only they have is not delivered"
            )
        for backup in self._read(unknown):
            if not self._add(backup):
                return

    def _repeat(self, unknown: Sequence[str], until: StreamOffsets) -> None:
        """Take what was taken when `until` was planned."""
        forgotten = sorted(set(until.taken).difference(self._start.taken, self._there))
        for backup in self._read([backup for backup in unknown if until.knows(backup)]):
            self._add(backup)
        # The one that was read in part, and those that may have what forgotten ones had.
        for backup in self._read([backup for backup in unknown if not until.knows(backup) and backup >= until.backup]):
            if all(self._position(key).sequence >= wanted.sequence for key, wanted in until.streams.items()):
                break
            for stream in backup.streams:
                self._take_behind(backup.id, stream, until.streams.get(key_of(stream), ReadPosition()).sequence)
        for key, wanted in until.streams.items():
            if (reached := self._position(key).sequence) < wanted.sequence:
                self._told(
                    f"messages {reached + 1} to {wanted.sequence} of stream {key.name} were in backups that have been "
                    "forgotten since this micro-batch was planned, and no other backup has them"
                )
        if late := [backup for backup in forgotten if backup < self._start.backup]:
            self._told(f"backup {late[0]}, which came late, has been forgotten since this micro-batch was planned")

    def _position(self, key: StreamKey) -> ReadPosition:
        return self._positions.get(key, ReadPosition())

    def _add(self, backup: FollowedBackup) -> bool:
        """Take what is new in a backup. Returns whether more may be read."""
        late = backup.id < self._backup
        missing = "" if late or self._start.knows(backup.missing) else backup.missing
        if missing >= self._start.backup > "" and missing > self._forgotten:
            self._forgotten, self._checked = missing, set()
        compared = [stream for stream in backup.streams if late or self._is_beside(stream)]
        if compared and self.ranges and self._limits.are_spent:
            return False
        self._backup = max(self._backup, backup.id)
        for stream in () if late else backup.streams:
            if stream not in compared and not self._take_behind(backup.id, stream):
                return False
        for stream in compared:
            self._take_missed(backup.id, stream)
        for stream in backup.streams:
            key, read_ns = key_of(stream), _ns(stream.captured.ended)
            position = self._position(key)
            last = max(position.sequence, stream.captured.last_seq)
            self._positions[key] = ReadPosition(last, max(position.read_ns, read_ns))
        insort(self._taken, backup.id)
        return True

    def _is_beside(self, stream: StreamBackup) -> bool:
        """Return whether a stream was read while a backup read it that was taken."""
        read_ns = self._position(key_of(stream)).read_ns
        return _ns(stream.captured.begun) < read_ns and _ns(stream.captured.ended) != read_ns

    def _take_behind(self, backup: str, stream: StreamBackup, most: int = _MAX) -> bool:
        """Take what is behind the position, up to the sequence `most`. Returns whether all of that could be taken."""
        key = key_of(stream)
        position = self._position(key)
        if self._forgotten and key not in self._checked:
            self._checked.add(key)
            self._check(backup, stream, position, min(most, stream.last_seq))
        reached, last = position.sequence, min(most, stream.captured.last_seq)
        for ref in touching(stream.segments, reached + 1, last):
            first, end = max(reached + 1, ref.first_seq), min(last, ref.last_seq)
            taken = self._take(MessageRange(key, backup, ref, first, end))
            reached = max(reached, taken)
            if taken < end:
                break
        else:
            reached = max(reached, last)
        self._positions[key] = replace(position, sequence=reached)
        return reached >= last

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
        return self._sequences_within(ref, wanted.first_seq, wanted.last_seq)

    def _sequences_within(self, ref: SegmentRef, first: int, last: int) -> Sequence[int]:
        if ref.dense:
            return range(max(first, ref.first_seq), min(last, ref.last_seq) + 1)
        sequences = self._sequences(ref)
        return sequences[bisect_left(sequences, first) : bisect_left(sequences, last + 1)]

    def _check(self, backup: str, stream: StreamBackup, position: ReadPosition, last: int) -> None:
        """Tell if messages up to `last` may have been in the forgotten backup alone."""
        first = position.sequence + 1 if key_of(stream) in self._positions else stream.captured.first_seq
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
        return len(self._sequences_within(ref, first, last))

    # --- what a late backup has ---

    def _take_missed(self, backup: str, stream: StreamBackup) -> None:
        """Take what no backup has that was taken, of those made around the same time."""
        around, forgotten = self._around(backup, stream)
        others = {ref.key: ref for other in around for ref in other.segments}
        missed = []
        for ref in stream.segments:
            if ref.key in others:
                continue
            meeting = [
                other
                for other in others.values()
                if other.first_seq <= ref.last_seq and ref.first_seq <= other.last_seq
            ]
            if not meeting:
                missed.append(MessageRange(key_of(stream), backup, ref, ref.first_seq, ref.last_seq))
                continue
            have = {
                sequence for span in meeting for sequence in self._sequences_within(span, ref.first_seq, ref.last_seq)
            }
            own = self._sequences_within(ref, ref.first_seq, ref.last_seq)
            lacking = tuple(sequence for sequence in own if sequence not in have)
            if lacking:
                only = () if len(lacking) == ref.messages else lacking
                missed.append(MessageRange(key_of(stream), backup, ref, lacking[0], lacking[-1], only))
        if missed and forgotten:
            self._told(
                f"backup {backup} came late, and only it has messages from {missed[0].first_seq} to "
                f"{missed[-1].last_seq} of stream {stream.name}; they are not delivered, because backup {forgotten}, "
                "which was delivered and then forgotten, may have had them"
            )
            return
        for wanted in missed:
            self._limits.spend(wanted.ref, len(wanted.only) or wanted.ref.messages)
        self.ranges += missed

    def _around(self, backup: str, stream: StreamBackup) -> tuple[list[StreamBackup], str]:
        """Return the stream in the backups around this one that were taken: what none of them has, none ever had. Also
        one between that was taken and forgotten; "" if there is none.

        A message that was removed before a backup read a stream is in no later one, and one that was there when it
        did is in it.
        """
        key = key_of(stream)
        if all(known.name != key.name for known in self._positions):
            return [], ""  # no backup had it
        taken = set(self._taken)
        known = [other for other in self._there if other in taken or other <= self._start.before]
        at = bisect_left(known, backup)
        begun_ns, ended_ns = _ns(stream.captured.begun), _ns(stream.captured.ended)
        around, first, last, edge_ns = [], "", "~", 0
        for other in reversed(known[:at]):
            if first and self._ended.get(other, 0) <= edge_ns:
                continue
            same = self._stream(other, stream.name)
            if same is not None and key_of(same) == key:
                around.append(same)
            if same is not None and _ns(same.captured.ended) <= begun_ns:
                first, edge_ns = first or other, max(edge_ns, _ns(same.captured.begun))
        edge_ns = _MAX
        for other in known[at:]:
            if layout.begun_ns(other) >= edge_ns:
                last = other
                break
            same = self._stream(other, stream.name)
            if same is not None and key_of(same) == key:
                around.append(same)
                if same.last_seq >= stream.captured.last_seq:
                    edge_ns = min(edge_ns, _ns(same.captured.ended))
            elif same is not None and ended_ns <= _ns(same.captured.begun):
                edge_ns = 0
        forgotten = taken.difference(self._there)
        if not first and self._start.before:
            return around, self._start.before  # it is not known what was before
        return around, min((other for other in forgotten if first < other < last), default="")

    def _stream(self, backup: str, name: str) -> StreamBackup | None:
        streams = (stream for manifest in self._read([backup]) for stream in manifest.streams)
        return next((stream for stream in streams if stream.name == name), None)


def key_of(stream: StreamBackup) -> StreamKey:
    return StreamKey(stream.name, stream.incarnation, stream.life)


def _refs(stream: StreamBackup, first: int, last: int) -> Iterator[SegmentRef]:
    return touching(stream.segments, first, last)


def _ns(moment: str) -> int:
    return parse_time(moment) if moment else 0
