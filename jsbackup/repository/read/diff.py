"""Compare two backups of a repository, or a backup and messages that are read elsewhere.

Digests first: streams with equal digests are not read. If they differ, segments are compared, and only spans that
differ are read and compared message by message. So differences of whole
segments are found without a key that reads messages.

A stream digest is a fingerprint, not protection against an attacker who writes manifests (`formats/digest.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from itertools import islice
from typing import Any

from jsbackup.config import Glob, is_chosen, nearest
from jsbackup.errors import FormatError, IncompleteError, JsBackupError, KeyUnavailable, UnsupportedError, UsageError
from jsbackup.formats.batch import PackedBatch
from jsbackup.formats.digest import Digester, MessageBatch
from jsbackup.model import ConsumerState, Fidelity, JsonObject, StreamState
from jsbackup.progress import NullProgress, Progress
from jsbackup.repository.manifest import (
    ArchiveFormat,
    Captured,
    ConsumerBackup,
    Manifest,
    SegmentRef,
    StreamBackup,
    total_of,
)
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.message_diff import (
    EQUAL,
    Change,
    DifferenceTally,
    Merger,
    MessageDiff,
    Range,
    cut_at,
    example_of,
)
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.write.stream_objects import load_consumer
from jsbackup.times import ZERO_TIME

__all__ = [
    "AlongSegments",
    "Choose",
    "ComparedStreams",
    "ConsumerChange",
    "DiffReport",
    "DiffRun",
    "FieldChange",
    "Side",
    "StreamDiff",
    "compare_entries",
    "diff_backups",
    "diff_configs",
    "diff_consumers",
    "diff_stream",
    "group_segments",
    "one_sided",
    "skipped_errors",
    "unequal_segments",
]


Choose = Callable[[Set[str]], Set[str]]
"""Gets the names of all streams of both sides, returns those to compare. Raises UsageError for a bad selection."""


class Side(StrEnum):
    A = "a"
    B = "b"

    @property
    def alone(self) -> Change:
        """The kind of change if only this side has something."""
        return Change.REMOVED if self is Side.A else Change.ADDED


# --- compared streams ---
#
# Which streams of two backups, or of a backup and a server, are compared. Pure.


class ComparedStreams:
    """The requested streams that each of the backups selected too. `skipped` are the others, with the reasons."""

    def __init__(self, globs: Sequence[Glob], excluded: Sequence[Glob], manifests: Sequence[Manifest]) -> None:
        self._globs = globs
        self._excluded = excluded
        self._manifests = manifests
        self.skipped: dict[str, str] = {}

    def choose(self, names: Set[str]) -> Set[str]:
        """Return the names to compare, of those on either side. Raises UsageError if a pattern matches none, or none
        can be compared.
        """
        wanted = {name for name in names if is_chosen(name, self._globs, self._excluded)}
        self.skipped = {name: reason for name in wanted if (reason := self._reason(name))}
        for glob in self._globs:
            matches = sorted(filter(glob.matches, names))
            if not matches:
                raise UsageError(f"no stream on either side matches {glob.pattern}", hint=nearest(glob.pattern, names))
            if all(name in self.skipped for name in matches):
                raise UsageError(f"stream {matches[0]} cannot be compared: {self.skipped[matches[0]]}")
        if self._excluded and names and not wanted:
            raise UsageError("--exclude leaves out all streams, so nothing would be compared", hint="Correct it.")
        return wanted - self.skipped.keys()

    def _reason(self, stream: str) -> str | None:
        for manifest in self._manifests:
            if manifest.selection is not None and not manifest.selection.selects(stream):
                return f"backup {manifest.id} was made without it on purpose"
        return None


# --- config diff ---
#
# Compare two configurations, and the consumers of a stream at two times.
#
# Fields with an empty value (null, false, zero, empty text or list, the zero time) count as absent, because server
# releases differ in which of them they write. Metadata under `_nats.`, which servers write themselves, is ignored.
# Objects within a configuration are compared field by field, one level deep (`metadata.owner`).
#
# Consumer states are compared as far as both are known: completely if both are exact, else by the ack floor.

_SERVER_METADATA = "_nats."


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field, with its value in A and in B; None if it is absent."""

    field: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class ConsumerChange:
    """A consumer that only one side has, or whose configuration or state differs."""

    name: str
    change: Change
    config: tuple[FieldChange, ...] = ()
    state: tuple[FieldChange, ...] = ()


def diff_configs(a: JsonObject, b: JsonObject) -> tuple[FieldChange, ...]:
    """Return the fields of two configurations that differ, by name."""
    return tuple(_fields(_flat(a), _flat(b)))


def diff_consumers(
    objects: Objects, a: Sequence[ConsumerBackup], b: Sequence[ConsumerBackup]
) -> tuple[ConsumerChange, ...]:
    """Return the consumers that differ, by name. Large pending sets are only read if they differ.

    Raises:
        IntegrityError: a pending set is missing or damaged.
        KeyUnavailable: it is encrypted, and no key that opens it was given.
        StoreError: it cannot be read.
    """
    old, new = {c.name: c for c in a}, {c.name: c for c in b}
    changes = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            changes.append(ConsumerChange(name, Change.REMOVED))
        elif name not in old:
            changes.append(ConsumerChange(name, Change.ADDED))
        else:
            # Both have this name, which not every release writes into the configuration.
            config = diff_configs(old[name].config | {"name": name}, new[name].config | {"name": name})
            state = tuple(_diff_states(objects, old[name], new[name]))
            if config or state:
                changes.append(ConsumerChange(name, Change.CHANGED, config, state))
    return tuple(changes)


def _flat(config: JsonObject) -> JsonObject:
    flat: JsonObject = {}
    for key, value in config.items():
        if key == "metadata" and isinstance(value, dict):
            flat.update(
                {f"{key}.{name}": inner for name, inner in value.items() if not name.startswith(_SERVER_METADATA)}
            )
        elif isinstance(value, dict) and value:
            flat.update({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            flat[key] = value
    return flat


def _fields(a: JsonObject, b: JsonObject) -> Iterator[FieldChange]:
    for key in sorted(a.keys() | b.keys()):
        old, new = _plain(a.get(key)), _plain(b.get(key))
        if not (_says_nothing(old) and _says_nothing(new)) and (
            old != new or isinstance(old, bool) != isinstance(new, bool)
        ):
            yield FieldChange(key, old, new)


def _says_nothing(value: object) -> bool:
    # An empty object can be a setting with all its defaults.
    return (not value and not isinstance(value, dict)) or value == ZERO_TIME


def _plain(value: object) -> object:
    """Return a value without its empty fields."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if not _says_nothing(inner)}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def _diff_states(objects: Objects, a: ConsumerBackup, b: ConsumerBackup) -> Iterator[FieldChange]:
    if a.state is None or b.state is None:
        return
    exact = a.fidelity is b.fidelity is Fidelity.EXACT
    yield from _fields(_positions(a.state, exact=exact), _positions(b.state, exact=exact))
    same_object = a.pending is not None and b.pending is not None and a.pending.key == b.pending.key
    if not exact or same_object:
        return
    old, new = load_consumer(objects, a).state, load_consumer(objects, b).state
    assert old is not None and new is not None
    yield from _sets("pending", old.pending.keys(), new.pending.keys())
    yield from _sets("redelivered", old.redelivered.keys(), new.redelivered.keys())


def _positions(state: ConsumerState, *, exact: bool) -> JsonObject:
    positions = {"ack_floor.consumer_seq": state.ack_floor.consumer, "ack_floor.stream_seq": state.ack_floor.stream}
    delivered = {"delivered.consumer_seq": state.delivered.consumer, "delivered.stream_seq": state.delivered.stream}
    return {**positions, **(delivered if exact else {})}


def _sets(field: str, a: Collection[int], b: Collection[int]) -> Iterator[FieldChange]:
    """Compare sets of sequences by their sizes, or, if these are equal, by the first sequence that only one side
    has.
    """
    if len(a) != len(b):
        yield FieldChange(field, len(a), len(b))
    elif only := set(a) - set(b):
        yield FieldChange(f"{field}.first_seq", min(only), min(set(b) - set(a)))


# --- segment diff ---
#
# Compare two lists of segments: which have to be read, and the result.
#
# Segments that overlap make a group. A group with the same digest on both sides is not read, however it is cut, and a
# group that only one side has is counted from its manifest. The rest is compared message by message.


@dataclass(frozen=True)
class SegmentGroup:
    """Segments of one or both sides that overlap."""

    a: Sequence[SegmentRef]
    b: Sequence[SegmentRef]

    @cached_property
    def differs(self) -> bool:
        """Whether both sides have some, and their messages are to be compared."""
        ours, theirs = ((total.digest, total.messages, total.bytes) for total in map(total_of, (self.a, self.b)))
        return bool(self.a and self.b) and ours != theirs


def group_segments(a: Iterable[SegmentRef], b: Iterable[SegmentRef]) -> Iterator[SegmentGroup]:
    """Group the segments of both sides, in order; those that overlap are together."""
    sides: dict[Side, list[SegmentRef]] = {side: [] for side in Side}
    last = 0
    both = [(ref.first_seq, ref.last_seq, side, ref) for refs, side in ((a, Side.A), (b, Side.B)) for ref in refs]
    for first_seq, last_seq, side, ref in sorted(both, key=lambda item: item[:3]):
        if first_seq > last and any(sides.values()):
            yield SegmentGroup(sides[Side.A], sides[Side.B])
            sides = {side: [] for side in Side}
        sides[side].append(ref)
        last = max(last, last_seq)
    if any(sides.values()):
        yield SegmentGroup(sides[Side.A], sides[Side.B])


def unequal_segments(groups: Iterable[SegmentGroup]) -> list[SegmentRef]:
    """Return the segments of both sides that have to be read."""
    return [ref for group in groups if group.differs for ref in (*group.a, *group.b)]


def _diff_groups(
    reader: SegmentReader,
    groups: Iterable[SegmentGroup],
    advance: Callable[[int, int], None],
    *,
    named: int,
    notes: list[str],
) -> MessageDiff:
    """Return the difference of all groups. Raises the errors of reading a segment."""

    def read(refs: Iterable[SegmentRef]) -> Iterator[MessageBatch]:
        for ref in refs:
            for batch in reader.read(ref):
                advance(batch.nbytes, batch.num_rows)
                yield batch

    tally = DifferenceTally(named)
    for group in groups:
        if group.differs:
            merger = Merger(read(group.a), tally, Change.REMOVED)
            for batch in read(group.b):
                merger.add(batch)
            merger.finish()
        elif group.a and group.b:
            tally.same()
        else:
            for ref in group.a or group.b:
                _count_whole(reader, ref, tally, Change.REMOVED if group.a else Change.ADDED, notes=notes)
    return tally.result()


def _count_whole(
    reader: SegmentReader, ref: SegmentRef, tally: DifferenceTally, change: Change, *, notes: list[str]
) -> None:
    """Count a segment that only one side has. It is read only to list messages; without a key that is skipped."""
    if tally.wants(change) > 0:
        try:
            rows = (batch.slice(row, 1) for batch in reader.read(ref) for row in range(batch.num_rows))
            for row in islice(rows, tally.wants(change)):
                tally.show(example_of(change, row))
        except KeyUnavailable:
            note = "without a key that reads messages, messages in whole segments are counted, not listed"
            if note not in notes:
                notes.append(note)
    tally.note(change, ref.first_seq, ref.last_seq, ref.messages)


# --- streams ---


@dataclass(frozen=True, slots=True)
class StreamDiff:
    """The differences of a stream. `only_in` is the side that alone has it; then nothing else is compared.

    `created` is that of A and of B. `recreated`: these are two streams of the same name, from different times or
    places; their contents are compared, and being recreated does not count as a difference.
    """

    name: str
    messages: MessageDiff = EQUAL
    config: tuple[FieldChange, ...] = ()
    consumers: tuple[ConsumerChange, ...] = ()
    only_in: Side | None = None
    recreated: bool = False
    created: tuple[str | None, str | None] = (None, None)
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return self.only_in is None and self.messages.equal and not self.config and not self.consumers


@dataclass(frozen=True, slots=True)
class DiffReport:
    """All streams that were compared, and the errors of those that could not be, ordered by name."""

    streams: tuple[StreamDiff, ...]
    failures: Mapping[str, JsBackupError]


@dataclass(frozen=True, slots=True)
class DiffRun:
    """How streams are compared. Up to `named` messages of each kind are listed; `consumers`: compare these too."""

    objects: Objects
    choose: Choose
    consumers: bool
    named: int
    progress: Progress = field(default_factory=NullProgress)


def diff_backups(run: DiffRun, a: Manifest, b: Manifest) -> DiffReport:
    """Compare the streams of two backups.

    Raises the errors of `choose`. An error in one stream does not stop the others.
    """
    ours, theirs = ({stream.name: stream for stream in side.streams} for side in (a, b))
    lost: dict[str, JsBackupError] = {**skipped_errors(a), **skipped_errors(b)}
    names = sorted(run.choose({*ours, *theirs, *lost}))
    diffs: list[StreamDiff] = []
    failures: dict[str, JsBackupError] = {}
    for name in names:
        try:
            if name in lost:
                raise lost[name]
            diffs.append(_diff_entries(run, ours.get(name), theirs.get(name)))
        except JsBackupError as error:
            failures[name] = error
    return DiffReport(tuple(diffs), failures)


def _diff_entries(run: DiffRun, a: StreamBackup | None, b: StreamBackup | None) -> StreamDiff:
    if a is not None and b is not None:
        return diff_stream(run.objects, a, b, run.progress, consumers=run.consumers, named=run.named)
    entry = a or b
    assert entry is not None, "one side has it"
    return one_sided(entry.name, entry.created, entry.captured, Side.A if b is None else Side.B)


def skipped_errors(manifest: Manifest) -> dict[str, IncompleteError]:
    """Return the streams that a backup skipped, by name, each with the error for comparing it."""
    return {
        s.name: IncompleteError(f"stream {s.name} is not in backup {manifest.id}: {s.reason}") for s in manifest.skipped
    }


def one_sided(name: str, created: str, state: Captured | StreamState, side: Side) -> StreamDiff:
    """Return the difference of a stream that only this side has."""
    ranges = (Range(side.alone, state.first_seq, state.last_seq, state.messages),) if state.messages else ()
    added, removed = (0, state.messages) if side is Side.A else (state.messages, 0)
    times = (created, None) if side is Side.A else (None, created)
    return StreamDiff(name, MessageDiff(added, removed, ranges=ranges), only_in=side, created=times)


def compare_entries(
    objects: Objects, a: StreamBackup, b: StreamBackup, messages: MessageDiff, *, consumers: bool, notes: Sequence[str]
) -> StreamDiff:
    """Complete a difference, given that of the messages. Raises IntegrityError, KeyUnavailable and StoreError."""
    without = () if consumers else ("consumers are not compared: a backup was made without them",)
    return StreamDiff(
        a.name,
        messages,
        diff_configs(a.config, b.config),
        diff_consumers(objects, a.consumers, b.consumers) if consumers else (),
        recreated=a.incarnation != b.incarnation,
        created=(a.created, b.created),
        notes=(*notes, *without),
    )


def diff_stream(
    objects: Objects, a: StreamBackup, b: StreamBackup, progress: Progress, *, consumers: bool, named: int
) -> StreamDiff:
    """Compare two backups of a stream. Up to `named` messages of each kind are listed.

    Raises:
        UnsupportedError: one of them is stored undecoded, and they differ.
        KeyUnavailable: encrypted segments have to be read, and no key that opens them was given.
        IntegrityError: a segment is missing or damaged.
        StoreError: it cannot be read.
    """
    messages = EQUAL
    notes: list[str] = []
    formats = {a.archive_format, b.archive_format}
    if ArchiveFormat.CONFIG in formats:
        notes += ["messages are not compared: a backup has the configuration only"] if len(formats) > 1 else []
    elif a.opaque or b.opaque:
        if [piece.key for piece in a.opaque] != [piece.key for piece in b.opaque]:
            raise UnsupportedError(f"stream {a.name} is stored undecoded, so its messages cannot be compared")
    elif a.digest != b.digest or a.captured.messages != b.captured.messages:
        groups = list(group_segments(a.segments, b.segments))
        unequal = unequal_segments(groups)
        progress.start(a.name, sum(ref.bytes for ref in unequal), sum(ref.messages for ref in unequal))
        try:
            advance = partial(progress.advance, a.name)
            messages = _diff_groups(SegmentReader(objects), groups, advance, named=named, notes=notes)
        finally:
            progress.finish(a.name)
    return compare_entries(objects, a, b, messages, consumers=consumers, notes=notes)


class AlongSegments:
    """A sink for messages that are read elsewhere. Compares them with a backup, and reads only the segments that
    differ.

    The messages within the bounds of a segment are kept compressed, at most as many bytes as the segment has, until
    their digest shows whether they equal the segment. Messages beyond `last_seq` are ignored. `side` is that of the
    backup. Call `finish` at the end.
    """

    def __init__(
        self, reader: SegmentReader, refs: Sequence[SegmentRef], last_seq: int, side: Side, *, named: int
    ) -> None:
        self.notes: list[str] = []
        self._reader = reader
        self._refs = list(reversed(refs))  # those that are still to come; the next one is the last
        self._last_seq = last_seq
        self._side = side
        self._tally = DifferenceTally(named)
        self._digester = Digester()
        self._held: list[PackedBatch] = []
        self._merger: Merger | None = None
        self._last = 0

    def add(self, batch: MessageBatch) -> None:
        """Add messages, in order. Raises FormatError, and the errors of reading a segment (see `diff_stream`)."""
        batch, _beyond = cut_at(batch, self._last_seq)
        while batch.num_rows:
            first = batch.column("sequence")[0].as_py()
            if first <= self._last:
                raise FormatError(f"sequence {first} after {self._last}")
            while self._refs and self._refs[-1].last_seq < first:
                self._leave()
            if self._refs and self._refs[-1].first_seq <= first:
                part, batch = cut_at(batch, self._refs[-1].last_seq)
                self._take(part)
            else:
                part, batch = cut_at(batch, self._refs[-1].first_seq - 1 if self._refs else self._last_seq)
                Merger((), self._tally, self._side.alone).add(part)
            self._last = part.column("sequence")[-1].as_py()

    def finish(self) -> MessageDiff:
        """Return the difference, after the last message."""
        while self._refs:
            self._leave()
        return self._tally.result()

    def _take(self, batch: MessageBatch) -> None:
        if self._merger is not None:
            self._merger.add(batch)
            return
        self._digester.update(batch)
        self._held.append(PackedBatch(batch))
        ref = self._refs[-1]
        if self._digester.messages > ref.messages or self._digester.raw_bytes > ref.bytes:
            self._merge()

    def _merge(self) -> Merger:
        """Compare message by message from here on."""
        merger = self._merger = Merger(self._reader.read(self._refs[-1]), self._tally, self._side.alone)
        held, self._held = self._held, []
        for packed in held:
            merger.add(packed.unpack())
        return merger

    def _leave(self) -> None:
        """Finish the next segment: all its messages have come."""
        ref = self._refs[-1]
        if self._merger is not None:
            self._merger.finish()
        elif not self._digester.messages:
            _count_whole(self._reader, ref, self._tally, self._side.alone, notes=self.notes)
        elif self._digester.segment_digest == ref.digest:
            self._tally.same()
        else:
            self._merge().finish()
        self._refs.pop()
        self._digester, self._held, self._merger = Digester(), [], None
