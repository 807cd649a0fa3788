"""Compare two backups of a repository, or a backup and messages that are read elsewhere.

Digests first: streams with equal digests are not read. If they differ, segments are compared, and only spans that
differ are read and compared message by message (`segment_diff.py`). So differences of whole
segments are found without a key that reads messages.

A stream digest is a fingerprint, not protection against an attacker who writes manifests (`formats/digest.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from jsbackup.errors import FormatError, IncompleteError, JsBackupError, UnsupportedError
from jsbackup.formats.compressed_batch import PackedBatch
from jsbackup.formats.digest import Digester, MessageBatch
from jsbackup.model import JsonObject
from jsbackup.progress import NullProgress, Progress
from jsbackup.repository.manifest import ArchiveFormat, ConsumerBackup, Manifest, SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.config_diff import ConsumerChange, FieldChange, diff_configs, diff_consumers
from jsbackup.repository.read.message_diff import EQUAL, Change, DifferenceTally, Merger, MessageDiff, Range, cut_at
from jsbackup.repository.read.segment_diff import compare_span, count_whole, diff_segments, find_spans
from jsbackup.repository.segments import SegmentReader

__all__ = [
    "AlongSegments",
    "Choose",
    "Described",
    "DiffReport",
    "DiffRun",
    "NotCompared",
    "Side",
    "StreamDiff",
    "compare_described",
    "described",
    "diff_backups",
    "diff_stream",
    "has_messages",
    "one_sided",
    "skipped_errors",
    "stored_only",
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
