"""The messages that a restore keeps: read, reshaped and counted, exactly, reading as few as possible.

A cut alone only needs the segments that it goes through, and the first and last ones for the times of their messages:
`survey_cut`. Everything else needs every message within the cut, through all transforms: `survey`. That is done before
anything is sent, because the stream's state is sent first, and because a message that cannot be masked stops the
restore.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa

from jsbackup.errors import IntegrityError
from jsbackup.formats.digest import MessageBatch, StreamDigester
from jsbackup.planning.selection.subset import (
    Counted,
    KeptSequences,
    KeptStream,
    kept_from,
    renumbered_entry,
    segments_within,
    share_of,
    whole_segments,
)
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import ConsumerBackup, SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import Part, ends_of, parts_of, touching
from jsbackup.repository.read.segments import read_columns, read_stream
from jsbackup.repository.write.stream_objects import load_consumer
from jsbackup.transforms.batches import SEQUENCE, TIMESTAMP, surviving
from jsbackup.transforms.cut import Cut, Extent, KeptShare
from jsbackup.transforms.filters.newest import NEWEST_SCHEMA, NewestRule, find_newest, newest_rows, rows_of_subjects
from jsbackup.transforms.filters.rising import RisingSequences
from jsbackup.transforms.renumber import NewNumbers, ranks_to_know
from jsbackup.transforms.reshape import Reshape, ReshapeTally

__all__ = [
    "WatchedConsumers",
    "estimate",
    "newest_in_segment",
    "reshaped_messages",
    "survey",
    "survey_cut",
    "with_newest",
]


# --- newest pass ---
#
# Find what `--last-per-subject` and `--kv-compact` keep of a stored stream, in a pass over its messages.
#
# It decodes no payloads and no headers that are not judged by. Segments are looked at in parallel.

_THREADS = 3  # they wait for the store, or compute SHA-256


def with_newest(objects: Objects, entry: StreamBackup, reshape: Reshape) -> Reshape:
    """Return the value with what its `newest` keeps; itself if there is nothing to look for.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    rule = reshape.newest
    if rule is None or reshape.chosen is not None:
        return reshape
    keeping = replace(reshape.keeping, newest=None)

    def read() -> Iterator[pa.Table]:
        refs = segments_within(entry, reshape.cut)
        tasks = (partial(newest_in_segment, objects, ref, entry.name, keeping, rule=rule) for ref in refs)
        with closing(in_order(tasks, _THREADS)) as batches:
            yield from batches

    return replace(reshape, chosen=find_newest(rule, read))


def newest_in_segment(
    objects: Objects, ref: SegmentRef, stream: str, keeping: Reshape, *, rule: NewestRule
) -> pa.Table:
    """Return the rows of the newest messages of each subject, among those of a segment that `keeping` keeps.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    columns = {*keeping.filters.columns, *rule.columns}
    batches = keeping.apply(read_columns(objects, ref, columns), stream=stream)
    rows = [NEWEST_SCHEMA.empty_table(), *(rows_of_subjects(batch, rule) for batch in batches)]
    return newest_rows(pa.concat_tables(rows), rule)


# --- count subset ---
#
# Count the messages that a restore keeps: exactly, reading as few as possible.
#
# A cut alone only needs the segments that it goes through, and the first and last ones for the times of their messages:
# `survey_cut`. Everything else needs every message within the cut, through all transforms: `survey`. That is done
# before anything is sent, because the stream's state is sent first, and because a message that cannot be masked stops
# the restore.

_log = logging.getLogger(__name__)


def reshaped_messages(objects: Objects, entry: StreamBackup, reshape: Reshape, secret: bytes) -> Iterator[MessageBatch]:
    """Yield the messages of a stream as they are sent.

    Raises IntegrityError, KeyUnavailable, StoreError, PlanRefused.
    """
    batches = read_stream(objects, replace(entry, segments=segments_within(entry, reshape.cut)))
    return reshape.apply(batches, stream=entry.name, secret=secret) if reshape else batches


def survey(objects: Objects, entry: StreamBackup, reshape: Reshape, secret: bytes) -> KeptStream:
    """Return what is kept of a stream, by reshaping every message.

    Raises:
        PlanRefused: a message cannot be masked, or counters would be mixed up.
        UsageError: there is no secret to hash with.
        IntegrityError, KeyUnavailable, StoreError: messages cannot be read.
    """
    if not replace(reshape, cut=Cut()) or not entry.segments:
        return _numbered(survey_cut(objects, entry, reshape.cut), reshape, RisingSequences())
    _log.info("stream %s: reading what is kept of it", entry.name)
    reshape = with_newest(objects, entry, reshape)
    watched = reshape.drops or reshape.renumber
    consumers = WatchedConsumers(objects, entry if watched else replace(entry, consumers=()))
    tally, digester = ReshapeTally(), StreamDigester()
    holding = []
    for ref in segments_within(entry, reshape.cut):
        batches = read_stream(objects, replace(entry, segments=(ref,)))
        before = tally.kept.messages
        for batch in reshape.apply(batches, stream=entry.name, secret=secret, tally=tally):
            digester.update(batch)
            if not reshape.renumber:
                consumers.look(batch)
        if tally.kept.messages > before:
            holding.append(ref)
    counted = Counted(tally.cut, tally.kept, digester.raw_bytes, digester.stream_digest)
    numbered = tally.numbered if reshape.renumber else KeptSequences(consumers.found, ())
    kept = kept_from(entry, reshape.cut, counted, numbered, whole=consumers.whole)
    # Other segments have no message that is sent, so they need not be read.
    kept = replace(kept, segments=tuple(holding))
    if not watched:
        kept = replace(kept, consumers=entry.consumers)
    dropped = tally.first_dropped if reshape.cut.until is not None else None
    dropped = dropped or _first_after(objects, entry, reshape.cut, tally.cut.last_seq)
    times = (tally.kept.first_ns, tally.kept.last_ns)
    whole = KeptStream(
        kept,
        counted=True,
        first_dropped=dropped,
        times=times,
        masked=tally.masked,
        had=entry.captured.messages,
        chosen=reshape.chosen,
        matched=tally.matched,
        markers=tally.markers,
    )
    return _numbered(whole, reshape, tally.numbered)


def _numbered(kept: KeptStream, reshape: Reshape, numbers: NewNumbers | None) -> KeptStream:
    """Return what is kept with its new sequences, if it gets some."""
    if not reshape.renumber or not kept.entry.archive_format.has_messages:
        return kept
    return replace(kept, entry=renumbered_entry(kept.entry, numbers), numbers=numbers)


def survey_cut(objects: Objects, entry: StreamBackup, cut: Cut) -> KeptStream:
    """Return what a cut keeps of a stream. Raises IntegrityError, KeyUnavailable and StoreError."""
    if not cut or not entry.archive_format.has_messages:
        return KeptStream(entry, counted=True, had=entry.captured.messages)
    counting = _Counting(objects, entry, cut)
    parts: list[tuple[Part, Counted]] = []
    segments = segments_within(entry, cut)
    for part in parts_of(segments):
        if isinstance(part, SegmentRef) and share_of(part, cut) is KeptShare.SOME:
            counted_part = counting.count(part)
        else:
            counted_part = _whole(part)
        if counted_part.kept.messages:
            parts.append((part, counted_part))
    counted = _sum(count for _, count in parts)
    if parts:
        extent = replace(counted.kept, first_ns=counting.first_ns(parts[0][0]), last_ns=counting.last_ns(parts[-1][0]))
        counted = replace(counted, cut=extent, kept=extent)
    whole = whole_segments(segments, cut)
    consumers = counting.consumers
    kept = kept_from(entry, cut, counted, KeptSequences(consumers.found, whole), whole=consumers.whole)
    dropped = counting.first_after(counted.kept.last_seq)
    times = (counted.kept.first_ns, counted.kept.last_ns)
    return KeptStream(kept, counted=True, first_dropped=dropped, times=times, had=entry.captured.messages)


def estimate(objects: Objects, entry: StreamBackup, reshape: Reshape) -> KeptStream:
    """Estimate what is kept of a stream from a few segments; exact for a cut.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    rest = replace(reshape, cut=Cut())
    kept = replace(survey_cut(objects, entry, reshape.cut), exact=not rest.drops, counted=not rest)
    return _numbered(kept, reshape, None)


class WatchedConsumers:
    """The consumers of a stream with their complete states, and which of the messages they wait for are kept.

    `to_know` are the sequences of those messages, `found` those that are kept. `to_rank` are all that they name.
    """

    def __init__(self, objects: Objects, entry: StreamBackup) -> None:
        self._by_name = {consumer.name: load_consumer(objects, consumer) for consumer in entry.consumers}
        states = [consumer.state for consumer in self._by_name.values() if consumer.state is not None]
        self.to_know = {sequence for state in states for sequence in (*state.pending, *state.redelivered)}
        self.to_rank: set[int] = set()
        for consumer in self._by_name.values():
            self.to_rank |= ranks_to_know(consumer.state, consumer.config)
        self.found: set[int] = set()

    def look(self, batch: MessageBatch) -> None:
        if self.to_know:
            self.found |= surviving(batch, self.to_know)

    def whole(self, consumer: ConsumerBackup) -> ConsumerBackup:
        return self._by_name.get(consumer.name, consumer)


def _whole(ref: Part) -> Counted:
    """Count a segment or a page that is kept completely."""
    extent = Extent(ref.messages, ref.first_seq, ref.min_ns, ref.last_seq, ref.max_ns)
    return Counted(extent, extent, ref.bytes, ref.fingerprint)


class _Counting:
    """Counts what a cut keeps of segments of a stream. Reads each of them once."""

    def __init__(self, objects: Objects, entry: StreamBackup, cut: Cut) -> None:
        self._objects = objects
        self._entry = entry
        self._cut = cut
        self._read: dict[str, tuple[Counted, tuple[int, int] | None]] = {}
        self.consumers = WatchedConsumers(objects, entry)

    def count(self, ref: SegmentRef) -> Counted:
        return self._count(ref)[0]

    def first_ns(self, part: Part) -> int:
        """Return the time of the first kept message, which is in `part`: bounds are not times of messages."""
        state = self._entry.state
        if self._is_reported(part, state.first_seq == part.first_seq, state.first_ns):
            return state.first_ns
        return self.count(next(touching(self._entry.segments, part.first_seq, part.first_seq))).kept.first_ns

    def last_ns(self, part: Part) -> int:
        """Return the time of the last kept message, which is in `part`."""
        state = self._entry.state
        if self._is_reported(part, state.last_seq == part.last_seq, state.last_ns):
            return state.last_ns
        return self.count(next(touching(self._entry.segments, part.last_seq, part.last_seq))).kept.last_ns

    def first_after(self, last_seq: int) -> tuple[int, int] | None:
        """Do `_first_after`."""
        later = None if self._cut.until is None else _next_segment(self._entry, last_seq)
        if later is not None and later.key in self._read:
            return self._read[later.key][1]
        return _first_after(self._objects, self._entry, self._cut, last_seq)

    def _is_reported(self, part: Part, at_end: bool, time_ns: int) -> bool:
        """Return whether the state of the stream has the time of this end of `part`, all of which is kept."""
        whole = share_of(part, self._cut) is KeptShare.ALL
        return whole and at_end and part.min_ns <= time_ns <= part.max_ns

    def _count(self, ref: SegmentRef) -> tuple[Counted, tuple[int, int] | None]:
        """Return the totals, and the first message after the last kept one (if nothing is kept: the first one)."""
        if ref.key not in self._read:
            digester, tally = StreamDigester(), ReshapeTally()
            batches = read_stream(self._objects, replace(self._entry, segments=(ref,)))
            for batch in Reshape(cut=self._cut).apply(batches, stream=self._entry.name, tally=tally):
                digester.update(batch)
                self.consumers.look(batch)
            counted = Counted(tally.cut, tally.kept, digester.raw_bytes, digester.stream_digest)
            self._read[ref.key] = counted, tally.first_dropped
        return self._read[ref.key]


def _sum(parts: Iterable[Counted]) -> Counted:
    total = Counted()
    for part in parts:
        extent = total.kept.followed_by(part.kept)
        total = Counted(extent, extent, total.bytes + part.bytes, total.digest + part.digest)
    return total


def _first_after(objects: Objects, entry: StreamBackup, cut: Cut, last_seq: int) -> tuple[int, int] | None:
    """Return sequence and time of the first message after `last_seq`; None if there is none, or it cannot be read, or
    the cut has no end.
    """
    if cut.until is None:
        return None
    later = _next_segment(entry, last_seq)
    with suppress(IntegrityError):  # it is only shown
        for batch in read_stream(objects, replace(entry, segments=() if later is None else (later,))):
            for row, sequence in enumerate(batch.column(SEQUENCE).to_pylist()):
                if sequence > last_seq:
                    return sequence, batch.column(TIMESTAMP)[row].as_py()
    return None


def _next_segment(entry: StreamBackup, last_seq: int) -> SegmentRef | None:
    """Return the segment of the first message after `last_seq`."""
    return next(touching(entry.segments, last_seq + 1, ends_of(entry.segments)[1]), None)
