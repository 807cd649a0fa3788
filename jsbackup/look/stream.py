"""The messages of a stream in a backup."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import BinaryIO, ClassVar, Self, TypeVar, cast

import pyarrow as pa

from jsbackup.config import nearest
from jsbackup.errors import JsBackupError, UnsupportedError, UsageError
from jsbackup.formats.batch import BATCH_SCHEMA
from jsbackup.formats.segment import Probe, scan_segment
from jsbackup.look.message import LookedUp, MessageFilter, messages_in, subject_text
from jsbackup.memory import give_back
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import ArchiveFormat, Manifest, SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects, PageRef
from jsbackup.repository.pages.segment_list import SegmentList, parts_of
from jsbackup.repository.read.losses import refuse_unlisted
from jsbackup.transforms.cut import AtSequence, Cut
from jsbackup.transforms.filters.newest import NEWEST_SCHEMA, NewestRule, find_newest, newest_rows, rows_of_subjects
from jsbackup.transforms.rename import StreamKind, kinds_of

__all__ = [
    "ListedMessage",
    "MessagePage",
    "StoredBucket",
    "check_newest",
    "find_stream",
    "first_of_last",
    "heads",
    "in_parallel",
    "listed_in",
    "matching",
    "message_at",
    "messages_of",
    "newest_messages",
    "read_message_page",
    "refs_within",
    "wanted_rows",
    "with_messages",
]


# --- segments ---
#
# Read of a stream only the segments that may have what is looked for, and of these only the row groups and columns.
#
# The manifest's bounds rule out segments, and the statistics in a segment's footer row groups. Then the columns that
# the filter judges by are decoded, and the others only of row groups that have wanted messages.
#
# Every object is read whole and its SHA-256 compared before any of it is decoded. Reading ranges would need fewer
# bytes, but the footer has no checksum, and a damaged one ends the process when its statistics are read (pyarrow 26): a
# search could neither trust it nor survive it.

# They wait for the store, or compute SHA-256. What they hold is within the budget of `Objects.room`, but not what they
# decode, so few work on large segments at once. Small ones cost little but the wait for the store.
_THREADS, _FOR_SMALL = 3, 16
_SMALL_BYTES = 1 << 20

T = TypeVar("T")


def refs_within(
    segments: Sequence[SegmentRef], wanted: MessageFilter, *, newest_first: bool = False
) -> Iterator[SegmentRef]:
    """Yield the segments that may have such messages, by their bounds. Reads no other pages, and each when it is due.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    read = segments.read if isinstance(segments, SegmentList) else None
    parts = parts_of(segments)
    for part in reversed(parts) if newest_first else parts:
        if not wanted.wants_part(part):
            continue
        if isinstance(part, PageRef):
            assert read is not None, "only lists have pages"
            yield from refs_within(SegmentList(read(part), read), wanted, newest_first=newest_first)
        else:
            yield part


def matching(
    objects: Objects, segments: Sequence[SegmentRef], wanted: MessageFilter, *, newest_first: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted messages with all columns, in rising sequence, or batch by batch from the last to the first (the
    rows of each still rise). One segment is in memory while its messages are yielded.

    Raises:
        IntegrityError: an object is missing, or damaged.
        KeyUnavailable: it is encrypted, and no key that opens it was given.
        StoreError: it cannot be read.
    """
    refs = refs_within(segments, wanted, newest_first=newest_first)
    for ref in _holding(objects, refs, wanted):
        # Without the memory budget: a thread that reads two streams side by side would wait for itself.
        yield from wanted_rows(objects.fetch(ref), wanted, BATCH_SCHEMA.names, newest_first=newest_first)
        give_back(ref.bytes)


def _holding(objects: Objects, refs: Iterable[SegmentRef], wanted: MessageFilter) -> Iterator[SegmentRef]:
    """Yield the segments that have such messages. Searches them in several threads if bounds do not tell."""
    if not wanted.by_content:
        yield from refs
        return

    def look(ref: SegmentRef) -> SegmentRef | None:
        return ref if any(True for _ in heads(objects, ref, wanted, wanted.columns)) else None

    # The search often ends with the first ones: few are read ahead.
    with closing(in_order((partial(look, ref) for ref in refs), _THREADS)) as holding:
        yield from (ref for ref in holding if ref is not None)


def heads(
    objects: Objects,
    ref: SegmentRef,
    wanted: MessageFilter,
    columns: Sequence[str],
    *,
    turn: AbstractContextManager[object] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield some columns of the wanted messages of a segment. `columns` have those that the filter judges by. The
    segment is held within the memory budget until the iterator ends. A large one is decoded within `turn`, if there is
    one: what is decoded is not in the budget.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    with objects.room.share() as share:
        share.hold(ref.size)
        data = objects.fetch(ref)
        with turn if turn is not None and ref.bytes > _SMALL_BYTES else nullcontext():
            yield from wanted_rows(data, wanted, columns)


def wanted_rows(
    data: bytes, wanted: MessageFilter, columns: Sequence[str], *, newest_first: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield columns of the wanted messages in a segment that is known to be the stored one."""
    judged = wanted.by_content and not set(columns) <= set(wanted.columns)
    probe = Probe(wanted.columns, wanted.any_row) if judged else None
    source = cast(BinaryIO, pa.BufferReader(data))
    for batch in scan_segment(source, columns, wanted.wants_group, probe, newest_first=newest_first):
        rows = batch.filter(wanted.rows(batch))
        if rows.num_rows:
            yield rows


def in_parallel(task: Callable[[SegmentRef], T], refs: Iterable[SegmentRef]) -> Generator[T, None, None]:
    """Yield the result of the task for each segment, in order. A few are worked on ahead, more of them if the first
    ones are small. Raises the errors of the task.
    """
    iterator = iter(refs)
    first = list(islice(iterator, _FOR_SMALL))
    threads = _FOR_SMALL if all(ref.bytes <= _SMALL_BYTES for ref in first) else _THREADS
    return in_order((partial(task, ref) for ref in chain(first, iterator)), threads)


def find_stream(manifest: Manifest, name: str) -> StreamBackup:
    """Return the stream with this name.

    Raises:
        UsageError: the backup has none.
        IntegrityError: it is perhaps one of those that cannot be listed.
    """
    for stream in manifest.streams:
        if stream.name == name:
            return stream
    refuse_unlisted(manifest, name)
    reason = next((skipped.reason for skipped in manifest.skipped if skipped.name == name), "")
    raise UsageError(
        f"backup {manifest.id} has no stream {name}" + (f": {reason}" if reason else ""),
        hint=nearest(name, sorted(stream.name for stream in manifest.streams))
        or f"See 'jsbackup show {manifest.id}' for the streams it has.",
    )


def with_messages(manifest: Manifest, stream: StreamBackup) -> StreamBackup:
    """Return the stream if its messages can be read.

    Raises:
        UsageError: the backup has only its configuration.
        UnsupportedError: it is in an archive format that is not known here.
    """
    if stream.archive_format is ArchiveFormat.CONFIG:
        raise UsageError(f"backup {manifest.id} has only the configuration of stream {stream.name}, no messages")
    if unknown := stream.unknown_format:
        raise UnsupportedError(unknown)
    return stream


def messages_of(
    objects: Objects, stream: StreamBackup, wanted: MessageFilter, *, newest_first: bool = False
) -> Iterator[LookedUp]:
    """Yield the wanted messages, in rising sequence, or the last one first.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    for batch in matching(objects, stream.segments, wanted, newest_first=newest_first):
        yield from messages_in(batch, newest_first=newest_first)


def first_of_last(objects: Objects, stream: StreamBackup, wanted: MessageFilter, count: int) -> int:
    """Return the sequence of the first of the last `count` wanted messages, 0 without any.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    first = 0
    for batch in matching(objects, stream.segments, wanted, newest_first=True):
        first = batch.column("sequence")[max(batch.num_rows - count, 0)].as_py()
        count -= batch.num_rows
        if count <= 0:
            break
    return first


def message_at(objects: Objects, manifest: Manifest, stream: StreamBackup, sequence: int) -> LookedUp:
    """Return one message. Raises JsBackupError if the backup does not have it, and IntegrityError,
    KeyUnavailable and StoreError.
    """
    at = AtSequence(sequence)
    for message in messages_of(objects, stream, MessageFilter(Cut(at, at))):
        return message
    captured = stream.captured
    if not captured.messages:
        where = "it has no messages"
    elif captured.first_seq < sequence < captured.last_seq:
        where = "it was deleted before the backup"
    else:
        where = f"it has {captured.first_seq} to {captured.last_seq}"
    raise JsBackupError(f"stream {stream.name} has no message {sequence} in backup {manifest.id}: {where}")


# --- newest messages ---
#
# Of the wanted messages of a stream only the newest ones of each subject: found in a pass of its own.


def check_newest(manifest: Manifest, stream: StreamBackup, rule: NewestRule | None) -> None:
    """Raise UsageError if the rule is not for this stream of a backup."""
    if rule is not None and rule.compact and StreamKind.KEY_VALUE not in kinds_of(stream.name, stream.config):
        raise UsageError(
            f"stream {stream.name} of backup {manifest.id} is not a key-value bucket, and --kv-compact is for keys",
            hint="For other streams there is --last-per-subject 1.",
        )


def newest_messages(
    objects: Objects, stream: StreamBackup, wanted: MessageFilter, rule: NewestRule | None
) -> MessageFilter:
    """Return the filter for those of the wanted messages that the rule keeps, all without one.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    if rule is None:
        return wanted

    def read() -> Iterable[pa.Table]:
        return in_parallel(partial(_newest, objects, wanted, rule), refs_within(stream.segments, wanted))

    return replace(wanted, chosen=find_newest(rule, read))


def _newest(objects: Objects, wanted: MessageFilter, rule: NewestRule, ref: SegmentRef) -> pa.Table:
    names = {*wanted.columns, *rule.columns}
    batches = heads(objects, ref, wanted, [name for name in BATCH_SCHEMA.names if name in names])
    rows = [NEWEST_SCHEMA.empty_table(), *(rows_of_subjects(batch, rule) for batch in batches)]
    return newest_rows(pa.concat_tables(rows), rule)


# --- message pages ---
#
# Messages of a stream a page at a time, from a sequence on or back: for streams of millions.
#
# A page reads the segments from its sequence on until it is full, or until it was told to stop. So it may have few
# messages, or none, and still say where to go on.

_START_BYTES = 256


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """A message with the `start` of its payload of `size` bytes. `headers` is the header block."""

    sequence: int
    timestamp_ns: int
    subject: str
    headers: bytes | None
    size: int
    start: bytes


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages in rising sequence. `more` is where the search goes on in the same direction, None at the end of the
    stream; `stopped`: it was told to stop before the page was full.
    """

    messages: tuple[ListedMessage, ...]
    more: int | None
    stopped: bool = False


def read_message_page(
    objects: Objects,
    stream: StreamBackup,
    wanted: MessageFilter,
    *,
    start: int = 0,
    back: bool = False,
    most: int,
    is_over: Callable[[], bool],
) -> MessagePage:
    """Return up to `most` of the wanted messages from the sequence `start` on, or `back` from there; without a start,
    from an end of the stream. `is_over` is asked before each segment but the first.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    within = wanted
    if start:
        bound, cut = AtSequence(start), wanted.cut
        within = replace(wanted, cut=Cut(cut.since, bound) if back else Cut(bound, cut.until))
    refs = filter(wanted.wants_part, refs_within(stream.segments, within, newest_first=back))
    listed: list[ListedMessage] = []
    more, stopped = None, False
    for number, ref in enumerate(refs):
        if number and is_over():
            more, stopped = ref.last_seq if back else ref.first_seq, True
            break
        batches = matching(objects, (ref,), wanted, newest_first=back)
        messages = (message for batch in batches for message in listed_in(batch, newest_first=back))
        if start:
            messages = (each for each in messages if (each.sequence <= start if back else each.sequence >= start))
        listed += islice(messages, most + 1 - len(listed))
        if len(listed) > most:
            more = listed.pop().sequence
            break
    return MessagePage(tuple(listed[::-1] if back else listed), more, stopped)


def listed_in(batch: pa.RecordBatch, *, newest_first: bool = False) -> Iterator[ListedMessage]:
    """Yield the messages of a batch with all columns. Of a payload only the start is copied."""
    sequences, times, subjects, headers, data = batch.columns
    rows = range(batch.num_rows)
    for row in reversed(rows) if newest_first else rows:
        payload = data[row].as_buffer()
        yield ListedMessage(
            sequences[row].as_py(),
            times[row].as_py(),
            subject_text(subjects[row].as_py()),
            headers[row].as_py(),
            payload.size,
            payload.slice(0, min(payload.size, _START_BYTES)).to_pybytes(),
        )


# --- stored bucket ---
#
# What a bucket and an object store in a backup share: a stream with a prefix in its name, and who finds it.


class StoredBucket:
    """The bucket of `stream`, whose messages can be read. Names of such streams begin with `prefix`."""

    prefix: ClassVar[str]

    def __init__(self, objects: Objects, manifest: Manifest, stream: StreamBackup) -> None:
        self.manifest = manifest
        self.stream = stream
        self.objects = objects

    @classmethod
    def find(cls, objects: Objects, manifest: Manifest, name: str) -> Self:
        """Return the bucket; `name` may also be that of its stream.

        Raises:
            UsageError: the backup has none, or only its configuration.
            UnsupportedError: it is in an archive format that is not known here.
        """
        names = {stream.name for stream in manifest.streams}
        if name in names and name.startswith(cls.prefix) and cls.prefix + name not in names:
            name = name.removeprefix(cls.prefix)
        return cls(objects, manifest, with_messages(manifest, find_stream(manifest, cls.prefix + name)))

    @property
    def name(self) -> str:
        return self.stream.name.removeprefix(self.prefix)
