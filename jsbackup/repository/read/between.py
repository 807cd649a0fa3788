"""Which messages of a stream only backups between two have: they came after the older one was made, and were removed
before the newer one. Of streams that were deleted, that is all that backups have after what is known.

Manifests tell, by the ranges and counts of segments: what a backup has and the next one lacks was removed in between,
since later backups have all earlier messages that are still there. Only segments at the ends of such a range may have
to be read, and only if sequences are missing in them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, pairwise

from jsbackup.errors import FormatError, IntegrityError, UnsupportedError, UsageError
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import Manifest, Result, StreamBackup
from jsbackup.repository.origin import origin_of
from jsbackup.repository.pages.segment_list import touching
from jsbackup.repository.read.columns import read_columns
from jsbackup.repository.refs import SegmentRef
from jsbackup.repository.repository import Repository
from jsbackup.repository.summary import BackupSummary, summary_of
from jsbackup.times import parse_time

__all__ = ["BackupsBetween", "EarlierState", "Newcomers", "RemovedMessages", "SequencesOf", "count_within"]

_MAX = (1 << 63) - 1
# How long a backup may take: one that began before another one may have captured a stream after it.
_LATE_NS = 48 * 3600 * 10**9
_THREADS = 8  # manifests that are read at the same time


@dataclass(frozen=True, slots=True)
class EarlierState:
    """What is known of a stream already: all up to `last_seq`, by a backup of the time `backup_ns`."""

    incarnation: str
    last_seq: int
    backup_ns: int


@dataclass(frozen=True, slots=True)
class RemovedMessages:
    """How many `messages` only earlier `backups` have, oldest first, within which range of sequences. `unread` are
    backups between that may have some and cannot be read. `others`: they have more, which are not of interest.
    """

    messages: int = 0
    first_seq: int = 0
    last_seq: int = 0
    backups: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    others: bool = False


@dataclass(frozen=True, slots=True)
class _Seen:
    """A stream in a backup: when, and its segments behind what is known."""

    moment_ns: int
    last_seq: int
    backup: str
    segments: tuple[SegmentRef, ...]


class SequencesOf:
    """The sequences of segments, those of the last few kept."""

    def __init__(self, repository: Repository) -> None:
        self._objects = repository.objects
        self._kept: dict[str, list[int]] = {}

    def __call__(self, ref: SegmentRef) -> Sequence[int]:
        """Raises IntegrityError, KeyUnavailable, StoreError."""
        if ref.dense:
            return range(ref.first_seq, ref.last_seq + 1)
        found = self._kept.get(ref.key)
        if found is None:
            batches = read_columns(self._objects, ref, ())
            found = [one for batch in batches for one in batch.column("sequence").to_pylist()]
            while len(self._kept) > 2:
                del self._kept[next(iter(self._kept))]
            self._kept[ref.key] = found
        return found


def count_within(
    segments: Iterable[SegmentRef], first: int, last: int, sequences: Callable[[SegmentRef], Sequence[int]]
) -> int:
    """Return how many messages of the segments have sequences from `first` to `last`. Raises as `sequences`."""
    count = 0
    for ref in segments:
        if first <= ref.first_seq and ref.last_seq <= last:
            count += ref.messages
        elif ref.first_seq <= last and first <= ref.last_seq:
            found = sequences(ref)
            count += bisect_left(found, last + 1) - bisect_left(found, first)
    return count


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Streams that are not known yet, of the same server: those that came after `since_ns` and are `asked` for."""

    since_ns: int
    asked: Callable[[str], bool]


@dataclass(slots=True)
class BackupsBetween:
    """The backups of a repository that were made before that of `manifest`, or meanwhile, for streams of which an
    earlier state is known. They are those of `states`, by name; those that are `deleted` are not in that backup any
    more. Reading adds `newcomers` that it does not have to both.
    """

    repository: Repository
    manifest: Manifest
    states: dict[str, EarlierState]
    deleted: set[str] = field(default_factory=set)
    newcomers: Newcomers | None = None
    _open: set[str] = field(default_factory=set)  # streams that later backups may have something of
    _seen: dict[str, list[_Seen]] = field(default_factory=dict)
    _unread: dict[str, list[str]] = field(default_factory=dict)
    _until: dict[str, str] = field(default_factory=dict)  # backups that show that streams are deleted
    _around: set[str] = field(default_factory=set)  # as `has_seen` says
    _others: dict[str, str] = field(default_factory=dict)  # as `another` says
    _older: dict[str, str] = field(default_factory=dict)  # as `older` says
    _ends: dict[str, dict[str, int]] = field(default_factory=dict)  # of deleted streams, by backups
    _refs: dict[str, SegmentRef] = field(default_factory=dict)  # backups share them

    def read(self) -> None:
        """Read the manifests of these backups, of deleted streams up to one that shows that they are. Raises
        KeyUnavailable, StoreError.
        """
        times = [state.backup_ns for state in self.states.values()]
        times += [] if self.newcomers is None else [self.newcomers.since_ns]
        if not times:
            return
        oldest_ns = min(times)
        ours = summary_of(self.manifest)
        # One that began while ours was made may have captured a stream before it.
        newest_ns = parse_time(ours.ended or ours.created)
        ids = [one for one in self.repository.backups() if one != self.manifest.id]
        ids = [one for one in ids if oldest_ns - _LATE_NS <= layout.begun_ns(one) <= newest_ns]
        if not ids:
            return
        inventory = self.repository.inventory(ids)
        wanted = [
            one
            for one in inventory.summaries
            if one.transformed == ours.transformed and parse_time(one.ended or one.created) > oldest_ns
        ]
        self._open = set(self.states)
        for name in sorted(self.deleted):
            self._advance(name, [one for one in wanted if one.id < self.manifest.id])
        lost = deque(sorted(one.id for one in inventory.unreadable))
        found = in_order([partial(self._manifest, one) for one in wanted], _THREADS)
        for summary, manifest in zip(wanted, found, strict=True):
            while lost and lost[0] < summary.id:
                self._lose(lost.popleft())
            if isinstance(manifest, Manifest):
                self._take(manifest, summary)
            elif manifest is not None:
                for name in self._open:
                    self._unread.setdefault(name, []).append(summary.id)
        for backup in lost:
            self._lose(backup)

    def has_seen(self, name: str) -> bool:
        """Return whether a deleted stream was still there after the last known state of all streams."""
        return name in self._around

    def another(self, name: str) -> str:
        """Return the backup that has a later stream with the name of a deleted one, "" if none has."""
        return self._others.get(name, "")

    def older(self, name: str) -> str:
        """Return the newest backup with messages of an earlier stream of that name, if none are known; or ""."""
        return self._older.get(name, "")

    def removed(
        self,
        stream: StreamBackup | str,
        *,
        keeps: Callable[[SegmentRef], bool],
        sequences: Callable[[SegmentRef], Sequence[int]],
        kept: Callable[[SegmentRef, Sequence[int]], Sequence[int]] | None = None,
    ) -> RemovedMessages:
        """Return what the backup lacks of a stream, or of a deleted one of that name, and earlier ones have, after what
        is known of it. Only what `keeps` is true of is of interest, and of these segments the sequences that `kept`
        returns. Raises as both.
        """
        name = stream if isinstance(stream, str) else stream.name
        state = self.states[name]
        if isinstance(stream, str):
            newest, last_seq = _Seen(_MAX, _MAX, self.manifest.id, ()), _MAX
        else:
            newest, last_seq = self._seen_in(self.manifest, stream, state), stream.last_seq
        chain = sorted(
            (one for one in self._seen.get(name, ()) if one.moment_ns <= newest.moment_ns and one.last_seq <= last_seq),
            key=lambda one: (one.moment_ns, one.last_seq, one.backup),
        )
        first, last, messages, backups, others = _MAX, 0, 0, [], False
        for one, later in pairwise([*chain, newest]):
            found = _lost_between(one, later, state.last_seq + 1, keeps=keeps, sequences=sequences)
            if found is not None and kept is not None:
                exact = _kept_of_lost(one, later, found, keeps=keeps, sequences=sequences, kept=kept)
                others = others or exact is None or exact[0] < found[0]
                found = exact
            if found is not None:
                backups.append(one.backup)
                messages += found[0]
                first, last = min(first, found[1]), max(last, found[2])
        unread = tuple(sorted(self._unread.get(name, ())))
        return RemovedMessages(messages, first if messages else 0, last, tuple(backups), unread, others)

    def _advance(self, name: str, backups: Sequence[BackupSummary]) -> None:
        """Move the known state of a deleted stream on to the last complete backup that has it, if that has no more: it
        may have been there, without new messages, for years.
        """
        state = self.states[name]
        line = [
            one
            for one in backups
            if parse_time(one.created) > state.backup_ns and self._is_of_server(one) and one.result is Result.COMPLETE
        ]
        line = [one for one in line if one.selection.selects(name) and not one.selection.config_only]
        low, high = -1, len(line)  # what is known to have it, and not to have it
        reached: int | None = None
        while high - low > 1:
            middle = (low + high) // 2
            found = self._last_seq_of(name, line[middle].id)
            low, high, reached = (low, middle, reached) if found is None else (middle, high, found)
        if high < len(line):
            self._until[name] = line[high].id
        if reached is not None and reached <= state.last_seq:
            self.states[name] = replace(state, backup_ns=parse_time(line[low].created))
            self._look_around(name, line[low].created)

    def _last_seq_of(self, name: str, backup: str) -> int | None:
        """Return the last sequence that a deleted stream had given; None if it is not in the backup."""
        if backup not in self._ends:
            try:
                streams = self.repository.manifest(backup, names=frozenset(self.deleted)).streams
            except (FormatError, IntegrityError, UnsupportedError, UsageError):
                streams = ()
            self._ends[backup] = {
                one.name: one.captured.last_seq
                for one in streams
                if one.name in self.deleted and one.incarnation == self.states[one.name].incarnation
            }
        return self._ends[backup].get(name)

    def _is_of_server(self, summary: BackupSummary) -> bool:
        """Return whether a backup is of the server that this one is of."""
        return summary.is_of_a_server and origin_of(summary) == origin_of(self.manifest.source)

    def _look_around(self, name: str, created: str) -> None:
        since_ns = self.states[name].backup_ns if self.newcomers is None else self.newcomers.since_ns
        if parse_time(created) > since_ns:
            self._around.add(name)

    def _lose(self, backup: str) -> None:
        """Note a backup that cannot be read."""
        for name in self._open:
            if layout.begun_ns(backup) >= self.states[name].backup_ns:
                self._unread.setdefault(name, []).append(backup)

    def _manifest(self, summary: BackupSummary) -> Manifest | Exception | None:
        """Read a manifest; None if it was forgotten since, or nothing of it is of interest."""
        ended_ns = parse_time(summary.ended or summary.created)
        created_ns, newcomers = parse_time(summary.created), self.newcomers
        names: frozenset[str] | None = None
        # The backup of a known state itself has no more.
        if newcomers is None or ended_ns <= newcomers.since_ns or created_ns == newcomers.since_ns:
            still = [one for one in tuple(self._open) if summary.id <= self._until.get(one, summary.id)]
            times = {one: self.states[one].backup_ns for one in still}
            names = frozenset(one for one, time in times.items() if time < ended_ns and time != created_ns)
            if not names:
                return None
        try:
            return self.repository.manifest(summary.id, names=names)
        except UsageError:
            return None
        except (FormatError, IntegrityError, UnsupportedError) as error:
            return error

    def _take(self, manifest: Manifest, summary: BackupSummary) -> None:
        same = manifest.id < self.manifest.id and self._is_of_server(summary)
        came = self.newcomers if same else None
        for stream in manifest.streams:
            if came is not None and stream.name not in self.states and came.asked(stream.name):
                self.states[stream.name] = EarlierState(stream.incarnation, 0, came.since_ns)
                self.deleted.add(stream.name)
                self._open.add(stream.name)
            self._add(manifest, stream)
            known = self.states.get(stream.name)
            if same and known is not None and not known.last_seq and stream.incarnation != known.incarnation:
                self._older.update({stream.name: manifest.id} if stream.segments else {})
        selection, created_ns = manifest.selection, parse_time(manifest.created)
        if not same or manifest.result is not Result.COMPLETE or selection is None or selection.config_only:
            return
        there = {stream.name: stream.incarnation for stream in manifest.streams}
        for name in self.deleted & self._open:
            state = self.states[name]
            gone = there.get(name) != state.incarnation and selection.selects(name)
            if gone and created_ns > state.backup_ns:
                self._open.discard(name)
                if name in there:
                    self._others[name] = manifest.id

    def _add(self, manifest: Manifest, stream: StreamBackup) -> None:
        state = self.states.get(stream.name)
        if state is None or stream.incarnation != state.incarnation or not stream.archive_format.has_messages:
            return
        self._look_around(stream.name, manifest.created)
        if stream.captured.last_seq <= state.last_seq:
            return
        try:
            seen = self._seen_in(manifest, stream, state)
        except (FormatError, IntegrityError, UnsupportedError):  # a list of segments
            self._unread.setdefault(stream.name, []).append(manifest.id)
        else:
            if seen.moment_ns > state.backup_ns:
                self._seen.setdefault(stream.name, []).append(seen)

    def _seen_in(self, manifest: Manifest, stream: StreamBackup, state: EarlierState) -> _Seen:
        moment_ns = max(parse_time(manifest.created), parse_time(stream.captured.ended))
        refs = touching(stream.segments, state.last_seq + 1, _MAX)
        segments = tuple(self._refs.setdefault(ref.key, ref) for ref in refs)
        return _Seen(moment_ns, stream.captured.last_seq, manifest.id, segments)


def _lost_between(
    one: _Seen,
    later: _Seen,
    first: int,
    *,
    keeps: Callable[[SegmentRef], bool],
    sequences: Callable[[SegmentRef], Sequence[int]],
) -> tuple[int, int, int] | None:
    """Return how many messages from `first` on a backup has and the next one lacks, with bounds of their sequences."""
    theirs = {ref.key for ref in later.segments}
    own = [ref for ref in one.segments if ref.key not in theirs and keeps(ref)]
    if not own:
        return None
    first, last = _from(own[0], first, sequences), own[-1].last_seq
    own_keys = {ref.key for ref in one.segments}
    others = [ref for ref in later.segments if ref.key not in own_keys]
    had = count_within(own, first, last, sequences)
    lost = had - count_within(others, first, last, sequences)
    if lost <= 0:
        return None
    # Most often the beginning is gone: then the end of what is lost is known, too.
    start = next((found for ref in later.segments for found in (_from(ref, first, sequences),) if found), last + 1)
    if start <= last and count_within(own, first, start - 1, sequences) == lost:
        last = start - 1
    return lost, first, last


def _kept_of_lost(
    one: _Seen,
    later: _Seen,
    found: tuple[int, int, int],
    *,
    keeps: Callable[[SegmentRef], bool],
    sequences: Callable[[SegmentRef], Sequence[int]],
    kept: Callable[[SegmentRef, Sequence[int]], Sequence[int]],
) -> tuple[int, int, int] | None:
    """Return what `_lost_between` has `found`, without the messages that are not kept."""
    theirs, mine = {ref.key for ref in later.segments}, {ref.key for ref in one.segments}
    others = [ref for ref in later.segments if ref.key not in mine]
    count, first, last = 0, _MAX, 0
    for ref in one.segments:
        if ref.key in theirs or not keeps(ref) or ref.last_seq < found[1] or found[2] < ref.first_seq:
            continue
        lost = set(sequences(ref))
        for other in islice(others, bisect_left(others, ref.first_seq, key=lambda other: other.last_seq), None):
            if other.first_seq > ref.last_seq:
                break
            lost.difference_update(sequences(other))
        left = kept(ref, [number for number in sorted(lost) if found[1] <= number <= found[2]])
        if left:
            count, first, last = count + len(left), min(first, left[0]), max(last, left[-1])
    return (count, first, last) if count else None


def _from(ref: SegmentRef, first: int, sequences: Callable[[SegmentRef], Sequence[int]]) -> int:
    """Return the first sequence of a segment from `first` on, 0 if it has none."""
    if ref.first_seq >= first:
        return ref.first_seq
    found = sequences(ref) if ref.last_seq >= first else ()
    at = bisect_left(found, first)
    return found[at] if at < len(found) else 0
