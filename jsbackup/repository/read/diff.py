"""Compare two backups of a repository, or a backup and messages that are read elsewhere.

Digests first: streams with equal digests are not read. If they differ, segments are compared, and only spans that
differ are read and compared message by message. So differences of whole
segments are found without a key that reads messages.

A stream digest is a fingerprint, not protection against an attacker who writes manifests (`formats/digest.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from jsbackup.config import Glob, is_chosen, nearest
from jsbackup.errors import FormatError, IncompleteError, JsBackupError, KeyUnavailable, UnsupportedError, UsageError
from jsbackup.formats.batch import PackedBatch
from jsbackup.formats.digest import Digester, MessageBatch
from jsbackup.model import ConsumerState, Fidelity, JsonObject
from jsbackup.progress import NullProgress, Progress
from jsbackup.repository.manifest import ArchiveFormat, ConsumerBackup, Manifest, SegmentRef, StreamBackup, total_of
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
    "Described",
    "DiffReport",
    "DiffRun",
    "FieldChange",
    "NotCompared",
    "SegmentSpan",
    "Side",
    "StreamDiff",
    "compare_described",
    "compare_span",
    "count_whole",
    "described",
    "diff_backups",
    "diff_configs",
    "diff_consumers",
    "diff_segments",
    "diff_stream",
    "find_spans",
    "has_messages",
    "one_sided",
    "skipped_errors",
    "stored_only",
]


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
            found = sorted(filter(glob.matches, names))
            if not found:
                raise UsageError(f"no stream on either side matches {glob.pattern}", hint=nearest(glob.pattern, names))
            if all(name in self.skipped for name in found):
                raise UsageError(f"stream {found[0]} cannot be compared: {self.skipped[found[0]]}")
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
            flat.update({f"{key}.{name}": one for name, one in value.items() if not name.startswith(_SERVER_METADATA)})
        elif isinstance(value, dict) and value:
            flat.update({f"{key}.{inner}": one for inner, one in value.items()})
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
        return {key: _plain(one) for key, one in value.items() if not _says_nothing(one)}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value


def _diff_states(objects: Objects, a: ConsumerBackup, b: ConsumerBackup) -> Iterator[FieldChange]:
    if a.state is None or b.state is None:
        return
    exact = a.fidelity is b.fidelity is Fidelity.EXACT
    yield from _numbers(_positions(a.state, exact=exact), _positions(b.state, exact=exact))
    same_object = a.pending is not None and b.pending is not None and a.pending.key == b.pending.key
    if not exact or same_object:
        return
    old, new = load_consumer(objects, a).state, load_consumer(objects, b).state
    assert old is not None
    assert new is not None
    yield from _sets("pending", old.pending.keys(), new.pending.keys())
    yield from _sets("redelivered", old.redelivered.keys(), new.redelivered.keys())


def _positions(state: ConsumerState, *, exact: bool) -> dict[str, int]:
    positions = {"ack_floor.consumer_seq": state.ack_floor.consumer, "ack_floor.stream_seq": state.ack_floor.stream}
    if exact:
        positions["delivered.consumer_seq"] = state.delivered.consumer
        positions["delivered.stream_seq"] = state.delivered.stream
    return positions


def _numbers(a: dict[str, int], b: dict[str, int]) -> Iterator[FieldChange]:
    for name, old in a.items():
        if old != b[name]:
            yield FieldChange(name, old, b[name])


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
# group that only one side has is counted from its manifest. The rest are spans of sequences, to be compared message by
# message.

Advance = Callable[[int, int], None]
"""Gets the bytes and messages that were read."""


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """The messages from one sequence to another, in segments of either side that may also hold others."""

    first_seq: int
    last_seq: int
    a: tuple[SegmentRef, ...]
    b: tuple[SegmentRef, ...]

    @property
    def bytes(self) -> int:
        """Raw bytes of the segments."""
        return sum(ref.bytes for ref in (*self.a, *self.b))

    @property
    def messages(self) -> int:
        return sum(ref.messages for ref in (*self.a, *self.b))


@dataclass(frozen=True, slots=True)
class _Group:
    """Segments of one or both sides that overlap."""

    a: tuple[SegmentRef, ...]
    b: tuple[SegmentRef, ...]

    @property
    def adds_up(self) -> bool:
        ours, theirs = total_of(self.a), total_of(self.b)
        return (ours.digest, ours.messages, ours.bytes) == (theirs.digest, theirs.messages, theirs.bytes)

    @property
    def span(self) -> SegmentSpan | None:
        """What has to be read of it; None if nothing."""
        if not self.a or not self.b or self.adds_up:
            return None
        both = (*self.a, *self.b)
        return SegmentSpan(min(ref.first_seq for ref in both), max(ref.last_seq for ref in both), self.a, self.b)


def find_spans(a: Iterable[SegmentRef], b: Iterable[SegmentRef]) -> list[SegmentSpan]:
    """Return the spans to compare message by message, in order."""
    return [span for group in _groups(a, b) if (span := group.span) is not None]


def compare_span(reader: SegmentReader, span: SegmentSpan, named: int, advance: Advance) -> DifferenceTally:
    """Compare a span; up to `named` messages of each kind are listed. Raises the errors of reading a segment."""
    tally = DifferenceTally(named)
    merger = Merger(_read(reader, span.a, span, advance), tally, Change.REMOVED)
    for batch in _read(reader, span.b, span, advance):
        merger.add(batch)
    merger.finish()
    return tally


def diff_segments(
    reader: SegmentReader,
    a: Sequence[SegmentRef],
    b: Sequence[SegmentRef],
    tallies: Iterator[DifferenceTally],
    *,
    named: int,
    notes: list[str],
) -> MessageDiff:
    """Return the whole difference. `tallies` yields that of each span of `find_spans`.

    Raises the errors of `tallies` and of reading a segment.
    """
    whole = DifferenceTally(named)
    for group in _groups(a, b):
        if group.span is not None:
            whole.absorb(next(tallies))
        elif group.a and group.b:
            whole.same()
        else:
            for ref in group.a or group.b:
                count_whole(reader, ref, whole, Change.REMOVED if group.a else Change.ADDED, notes=notes)
    return whole.result()


def count_whole(
    reader: SegmentReader, ref: SegmentRef, tally: DifferenceTally, change: Change, *, notes: list[str]
) -> None:
    """Count a segment that only one side has. It is read only to list messages; without a key that is skipped."""
    if tally.wants(change) > 0:
        try:
            for batch in reader.read(ref):
                for row in range(min(tally.wants(change), batch.num_rows)):
                    tally.show(example_of(change, batch.slice(row, 1)))
                if tally.wants(change) <= 0:
                    break
        except KeyUnavailable:
            note = "without a key that reads messages, messages in whole segments are counted, not listed"
            if note not in notes:
                notes.append(note)
    tally.note(change, ref.first_seq, ref.last_seq, ref.messages)


def _read(
    reader: SegmentReader, refs: Iterable[SegmentRef], span: SegmentSpan, advance: Advance
) -> Iterator[MessageBatch]:
    """Yield the messages within the span. Segments are read to their ends, because that verifies them."""
    for ref in refs:
        for batch in reader.read(ref):
            advance(batch.nbytes, batch.num_rows)
            _before, rest = cut_at(batch, span.first_seq - 1)
            yield cut_at(rest, span.last_seq)[0]


def _groups(a: Iterable[SegmentRef], b: Iterable[SegmentRef]) -> Iterator[_Group]:
    """Group the segments of both sides, in order; those that overlap are together."""
    ours: list[SegmentRef] = []
    theirs: list[SegmentRef] = []
    last = 0
    both = [(ref.first_seq, ref.last_seq, ours_too, ref) for refs, ours_too in ((a, True), (b, False)) for ref in refs]
    for first_seq, last_seq, is_ours, ref in sorted(both, key=lambda one: one[:3]):
        if first_seq > last and (ours or theirs):
            yield _Group(tuple(ours), tuple(theirs))
            ours, theirs = [], []
        (ours if is_ours else theirs).append(ref)
        last = max(last, last_seq)
    if ours or theirs:
        yield _Group(tuple(ours), tuple(theirs))


Choose = Callable[[Set[str]], Set[str]]
"""Gets the names of all streams of both sides, returns those to compare. Raises UsageError for a bad selection."""


class Side(StrEnum):
    A = "a"
    B = "b"

    @property
    def alone(self) -> Change:
        """The kind of change if only this side has something."""
        return Change.REMOVED if self is Side.A else Change.ADDED


@dataclass(frozen=True, slots=True)
class Described:
    """What is known of a stream except its messages. `consumers` is None if they are not compared."""

    incarnation: str
    created: str
    config: JsonObject
    consumers: tuple[ConsumerBackup, ...] | None


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
class NotCompared:
    """A stream that could not be compared, and why."""

    name: str
    error: JsBackupError


@dataclass(frozen=True, slots=True)
class DiffReport:
    """All streams that were compared, and those that could not be, ordered by name."""

    streams: tuple[StreamDiff, ...]
    failures: tuple[NotCompared, ...]


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

    Raises what `choose` raises. An error in one stream does not stop the others.
    """
    ours, theirs = ({s.name: s for s in one.streams} for one in (a, b))
    lost: dict[str, JsBackupError] = {**skipped_errors(a), **skipped_errors(b)}
    names = sorted(run.choose({*ours, *theirs, *lost}))
    diffs: list[StreamDiff] = []
    failures: list[NotCompared] = []
    for stream in names:
        try:
            if stream in lost:
                raise lost[stream]
            if stream not in theirs:
                diffs.append(stored_only(ours[stream], Side.A))
            elif stream not in ours:
                diffs.append(stored_only(theirs[stream], Side.B))
            else:
                diffs.append(
                    diff_stream(
                        run.objects,
                        ours[stream],
                        theirs[stream],
                        run.progress,
                        consumers=run.consumers,
                        named=run.named,
                    )
                )
        except JsBackupError as error:
            failures.append(NotCompared(stream, error))
    return DiffReport(tuple(diffs), tuple(failures))


def skipped_errors(manifest: Manifest) -> dict[str, IncompleteError]:
    """Return the streams that a backup skipped, by name, each with the error for comparing it."""
    return {
        s.name: IncompleteError(f"stream {s.name} is not in backup {manifest.id}: {s.reason}") for s in manifest.skipped
    }


def stored_only(stream: StreamBackup, side: Side) -> StreamDiff:
    """Return the difference of a stream that only the backup on this side has."""
    captured = stream.captured
    return one_sided(
        stream.name, side, stream.created, captured.messages, first_seq=captured.first_seq, last_seq=captured.last_seq
    )


def described(stream: StreamBackup, *, consumers: bool) -> Described:
    return Described(stream.incarnation, stream.created, stream.config, stream.consumers if consumers else None)


def has_messages(stream: StreamBackup) -> bool:
    """Whether the backup has the stream's messages, not only its configuration."""
    return stream.archive_format is not ArchiveFormat.CONFIG


def one_sided(name: str, side: Side, created: str, messages: int, *, first_seq: int, last_seq: int) -> StreamDiff:
    """Return the difference of a stream that only one side has."""
    ranges = (Range(side.alone, first_seq, last_seq, messages),) if messages else ()
    added, removed = (0, messages) if side is Side.A else (messages, 0)
    times = (created, None) if side is Side.A else (None, created)
    return StreamDiff(name, MessageDiff(added, removed, ranges=ranges), only_in=side, created=times)


def compare_described(
    objects: Objects, name: str, a: Described, b: Described, *, messages: MessageDiff, notes: Iterable[str]
) -> StreamDiff:
    """Complete a difference, given that of the messages. Raises as `diff_consumers`."""
    said = list(notes)
    consumers: tuple[ConsumerChange, ...] = ()
    if a.consumers is None or b.consumers is None:
        said.append("consumers are not compared: a backup was made without them")
    else:
        consumers = diff_consumers(objects, a.consumers, b.consumers)
    return StreamDiff(
        name,
        messages,
        diff_configs(a.config, b.config),
        consumers,
        recreated=a.incarnation != b.incarnation,
        created=(a.created, b.created),
        notes=tuple(said),
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
    if not has_messages(a) or not has_messages(b):
        if has_messages(a) or has_messages(b):
            notes.append("messages are not compared: a backup has the configuration only")
    elif a.opaque or b.opaque:
        if [piece.key for piece in a.opaque] != [piece.key for piece in b.opaque]:
            raise UnsupportedError(f"stream {a.name} is stored undecoded, so its messages cannot be compared")
    elif a.digest != b.digest or a.captured.messages != b.captured.messages:
        reader, spans = SegmentReader(objects), tuple(find_spans(a.segments, b.segments))
        progress.start(a.name, sum(span.bytes for span in spans), sum(span.messages for span in spans))
        try:
            tallies = (compare_span(reader, span, named, partial(progress.advance, a.name)) for span in spans)
            messages = diff_segments(reader, a.segments, b.segments, tallies, named=named, notes=notes)
        finally:
            progress.finish(a.name)
    return compare_described(
        objects,
        a.name,
        described(a, consumers=consumers),
        described(b, consumers=consumers),
        messages=messages,
        notes=notes,
    )


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
            count_whole(self._reader, ref, self._tally, self._side.alone, notes=self.notes)
        elif self._digester.segment_digest == ref.digest:
            self._tally.same()
        else:
            self._merge().finish()
        self._refs.pop()
        self._digester, self._held, self._merger = Digester(), [], None
