"""Batches to stored segments: where a stream is cut, what is stored already, and the threads that compress and store.

Where segments are cut depends on the messages and on the segments that are known to be stored, not on the batches. So
a repeated run makes the same segments with the same keys, and finds those that are already stored, even if it does not
know of them (`receipts.py`).
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from jsbackup.errors import FormatError, IntegrityError
from jsbackup.formats import kernels
from jsbackup.formats.batch import PackedBatch, columns_from_batch
from jsbackup.formats.compression import Compression
from jsbackup.formats.digest import Digester, EncodedRows, GapDigest, MessageBatch, encode_rows
from jsbackup.formats.segment import SegmentEncoder, drop_sequences, split_batch
from jsbackup.formats.sequences import SequenceSet
from jsbackup.memory import give_back, stay_small
from jsbackup.progress import ignored
from jsbackup.repository import layout
from jsbackup.repository.background import Aftermath, QueuedTask
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.objects import MAX_OBJECT_BYTES, Objects, Sealing, put_named, sha256_of
from jsbackup.repository.pages.segment_list import ends_of, raw_bytes_of, readable, split_at
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.write.segment_cuts import Cuts, SegmentExtent, extent_of

__all__ = [
    "Compressors",
    "HeldRun",
    "SegmentCutter",
    "SegmentWriter",
    "StoredSegments",
    "compressing_threads",
    "share_cores",
    "stored_segments",
    "untouched",
    "usable_cores",
]


# --- compressors ---
#
# The threads that compress the segments of a stream: one, or several where there are cores for them.
#
# The Parquet library writes the row groups of a file one after another. So a segment is compressed in one thread, and
# several segments of a stream at once. That is for a stream that is alone: the segments of several streams are
# compressed at once anyway. Where the processor's time goes is in `manual/scale.md`.

# Measured: with 4 MiB the compressing thread waits for the next batch too often (6 % slower); 9 are no faster.
_AHEAD_BYTES = 6 << 20
# What waits for several threads, in all: a whole segment for each, or only one of them would have work.
_WAITING_BYTES = 64 << 20
_MOST_THREADS = 4
# Two cores are for the server and for what reads from it. A slower compression takes longer than both.
_OTHER_CORES = 2
_QUICK_LEVELS = range(1, 4)

_sharing = False


def share_cores() -> None:
    """Note that this process is one of several that share the cores, such as a worker of Spark: each compresses in one
    thread, and holds no more than that takes.
    """
    global _sharing
    _sharing = True


def usable_cores() -> int:
    """Return how many cores this process may use for itself."""
    if _sharing:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compressing_threads(compression: Compression, segment_bytes: int, cores: int) -> int:
    """Return how many threads compress a stream that is alone, at most."""
    if not compression.level:
        return 1
    free = cores - _OTHER_CORES if compression.level in _QUICK_LEVELS else cores
    return max(1, min(free, _WAITING_BYTES // segment_bytes, _MOST_THREADS))


class Compressors:
    """So many threads, which take the segments of a stream in turn. Each is started when it is needed.

    Exceptions are raised as by an `Aftermath`.
    """

    def __init__(self, threads: int, segment_bytes: int) -> None:
        self._most = threads
        self._segment_bytes = segment_bytes
        self._threads: list[Aftermath] = []
        self._given = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of messages that wait."""
        return sum(thread.held_bytes for thread in self._threads)

    def next(self, *, alone: bool) -> tuple[Aftermath, int]:
        """Return the thread for the next segment, and how many are in turn."""
        count = self._most if alone else 1
        while len(self._threads) < count:
            self._threads.append(Aftermath(0, "compress"))
        thread = self._threads[self._given % count]
        thread.limit_bytes = self._segment_bytes if count > 1 else _AHEAD_BYTES
        self._given += 1
        return thread, count

    def wait(self) -> None:
        """Wait until nothing is left to compress."""
        for thread in self._threads:
            thread.wait()

    def close(self) -> None:
        """Close the threads, see `Aftermath`."""
        for thread in self._threads:
            thread.close()

    def settle(self) -> None:
        """Close, and wait for what is being compressed."""
        self.close()
        for thread in self._threads:
            thread.settle()


# --- cutter ---
#
# Cut messages into stored segments of given sizes, and check that an object is the right segment.
#
# A segment takes messages until their raw bytes reach its size, counted from its own first message, whatever the
# batches are. So storing the same messages in the same sizes makes the same segments with the same keys, and finds
# those that are already stored.

# The compressed size that the next segment may reach while one is being stored. Measured: 16 MiB are no faster, and add
# 30 to the peak.
_BESIDE_BYTES = 4 << 20


class SegmentCutter:
    """Stores messages below `folder`, and calls `note` for each segment that it stores.

    The calling thread counts and digests messages; a second thread, or several in turn, compresses them, and another
    one stores complete segments. Their exceptions are raised by a later call. Holds a few MiB of messages, one segment
    that is being stored, and at most `_BESIDE_BYTES` of the next one; with several threads that many
    segments before they are compressed, and after. Call `close` at the end.
    """

    def __init__(self, objects: Objects, folder: str, segment_bytes: int, note: Callable[[SegmentRef], None]) -> None:
        self._objects = objects
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._note = note
        self._sizes = deque([segment_bytes])
        self._open: _OpenSegment | None = None
        self._ended: set[_OpenSegment] = set()
        threads = compressing_threads(objects.compression, segment_bytes, usable_cores())
        self._compressors = Compressors(threads, segment_bytes)
        self._storing = Aftermath(0, "store")
        self._last_stored: deque[QueuedTask] = deque(maxlen=threads)  # of the last segments that are stored
        self._refs: list[SegmentRef] = []
        self.begun = False
        """Whether there has been a message."""
        self.reused = 0
        """How many of `refs` were already stored."""
        self.stored_bytes = 0
        """The bytes that were added to the store. Correct, like `reused`, once `refs` was read."""

    @property
    def refs(self) -> list[SegmentRef]:
        """The segments so far, in order. Waits until they are stored."""
        self._compressors.wait()
        self._storing.wait()
        return self._refs

    @property
    def held_bytes(self) -> int:
        """The bytes of messages that are not stored yet."""
        ended = sum(segment.held_bytes for segment in list(self._ended))  # a copy: another thread removes them
        return self._compressors.held_bytes + ended + (self._open.held_bytes if self._open else 0)

    def keep(self, ref: SegmentRef) -> None:
        """Append a segment that is already stored."""
        self.begun = True
        self._storing.give(lambda: self._is_there(ref))

    def _is_there(self, ref: SegmentRef) -> None:
        self._refs.append(ref)
        self.reused += 1

    def begin(self, sizes: Iterable[int]) -> None:
        """Set the sizes of the next segments (at least one); the last applies to all after it."""
        self._sizes = deque(sizes)

    def add(self, part: MessageBatch) -> None:
        """Append a batch of a few MiB; a full segment is stored."""
        if not self.begun:
            self._objects.store.get_ready()
        rows = encode_rows(part)
        while (fitting := self._fitting(rows)) < part.num_rows:
            if fitting:
                self._take(part.slice(0, fitting), encode_rows(part.slice(0, fitting)))
            self._end_segment()
            # Encoded again: once per segment, so not worth optimizing.
            part = part.slice(fitting)
            rows = encode_rows(part)
        self._take(part, rows)

    def end(self) -> None:
        """End the open segment; the next one has the usual size."""
        self._end_segment()
        self._sizes = deque([self._segment_bytes])

    def close(self) -> None:
        """Stop, done or not: nothing more is stored, except what is being stored now."""
        self._compressors.close()
        self._storing.close()

    def settle(self) -> None:
        """Give up, and wait until nothing is being stored, so that `stored_bytes` is right."""
        self._compressors.settle()
        self._storing.settle()

    def _fitting(self, rows: EncodedRows) -> int:
        """Return how many rows the open segment still takes; an empty one takes the first, however large."""
        taken = self._open.digester.raw_bytes if self._open else 0
        return max(bisect_right(rows.ends, self._sizes[0] - taken), 0 if taken else 1)

    def _take(self, batch: MessageBatch, rows: EncodedRows) -> None:
        self.begun = True
        segment = self._open = self._open or self._begin_segment()
        segment.count(batch, rows)
        segment.thread.give(lambda: self._write(segment, batch), batch.nbytes)

    def _begin_segment(self) -> _OpenSegment:
        thread, count = self._compressors.next(alone=self._objects.room.users <= 1)
        return _OpenSegment(
            self._objects.compression, thread, self._last_stored[-count] if len(self._last_stored) >= count else None
        )

    def _end_segment(self) -> None:
        segment, self._open = self._open, None
        if segment is not None:
            self._ended.add(segment)
            compressed = segment.thread.give(segment.finish)
            self._last_stored.append(self._storing.give(lambda: self._store(segment, compressed)))
            if len(self._sizes) > 1:
                self._sizes.popleft()

    @staticmethod
    def _write(segment: _OpenSegment, batch: MessageBatch) -> None:
        if segment.held_bytes > _BESIDE_BYTES:
            segment.wait_for_room()
        segment.encoder.write(batch)
        stay_small()

    def _store(self, segment: _OpenSegment, compressed: QueuedTask) -> None:
        compressed.wait()
        segment.thread.check()
        content = segment.content
        if content is None:  # this is closed
            return
        data = memoryview(self._objects.sealing.seal(content))
        if len(data) > MAX_OBJECT_BYTES:  # it could not be read back
            raise FormatError(f"a segment would have {len(data)} bytes, more than the {MAX_OBJECT_BYTES} of an object")
        ref = segment.describe(self._folder, self._objects.sealing, data)
        stored = put_named(self._objects.store, ref.key, data)
        ref = replace(ref, key=stored.key)
        self.reused += not stored.added
        self.stored_bytes += ref.size if stored.added else 0
        self._refs.append(ref)
        self._note(ref)
        del content, data
        self._ended.remove(segment)
        segment.content = None
        give_back(ref.bytes)


class _OpenSegment:
    """The segment being filled, and the `thread` that compresses it.

    `before` is the storing of the segment that has to be stored before this one may be held completely.
    """

    def __init__(self, compression: Compression, thread: Aftermath, before: QueuedTask | None) -> None:
        self.encoder = SegmentEncoder(compression)
        self.thread = thread
        self.content: memoryview | None = None
        """The object, once it is complete, until it is being stored."""
        self._before = before
        self.digester = Digester()
        self._gaps = GapDigest()
        self._first_seq = 0
        self._last_seq = 0
        self._times: list[int] = []

    def count(self, batch: MessageBatch, rows: EncodedRows) -> None:
        """Count a batch of this segment, which the encoder gets separately."""
        self.digester.update_rows(rows)
        sequences = batch.column("sequence")
        self._first_seq = self._first_seq or sequences[0].as_py()
        self._last_seq = sequences[-1].as_py()
        columns = columns_from_batch(batch)
        self._gaps.update(memoryview(columns.sequences).cast("B").cast("q"))
        times = [*self._times, *kernels.extremes(columns.timestamps)]
        self._times = [min(times), max(times)]

    @property
    def held_bytes(self) -> int:
        """The bytes that it holds, before and after compression."""
        content = self.content
        return self.encoder.held_bytes if content is None else len(content)

    def wait_for_room(self) -> None:
        """Wait until it may be held completely."""
        before, self._before = self._before, None
        if before is not None:
            before.wait()

    def finish(self) -> None:
        """Make the object, in the compressing thread."""
        self.wait_for_room()
        # An Arrow buffer has signed bytes.
        self.content = memoryview(self.encoder.finish()).cast("B")

    def describe(self, folder: str, sealing: Sealing, data: memoryview) -> SegmentRef:
        digest = self.digester.segment_digest
        return SegmentRef(
            key=layout.segment_key(
                folder, self._first_seq, self._last_seq, sealing.name(digest), suffix=sealing.suffix
            ),
            first_seq=self._first_seq,
            last_seq=self._last_seq,
            messages=self.digester.messages,
            bytes=self.digester.raw_bytes,
            min_ns=self._times[0],
            max_ns=self._times[1],
            size=len(data),
            sha256=sha256_of(data),
            digest=digest,
            fingerprint=self.digester.stream_digest,
            gaps=self._gaps.hex,
        )


# --- what is stored already ---


def stored_segments(objects: Objects, folder: str, *lists: Iterable[SegmentRef]) -> list[SegmentRef]:
    """Return the segments of a stream that are in the store with their size, and not known to be damaged. Lists at most
    once.

    Each of `lists` has the segments of one earlier backup, or of a run that did not finish; if segments of two overlap,
    the earlier list wins. Pages that cannot be read are passed over. The result is in order and does not overlap, and
    each segment fits into memory, whatever manifests and receipts say. Raises `StoreError`.
    """
    named = [readable(refs) for refs in lists]
    sizes = {info.key: info.size for info in objects.store.list(f"{folder}/")} if any(named) else {}
    segments: list[SegmentRef] = []
    for refs in named:
        present = [ref for ref in refs if sizes.get(ref.key) == ref.size and ref.bytes <= MAX_OBJECT_BYTES]
        present = [ref for ref in present if not objects.is_damaged(ref)]
        present.sort(key=lambda ref: ref.first_seq)
        if all(before.last_seq < after.first_seq for before, after in pairwise(present)):
            segments += list(_beside(segments, present))
            segments.sort(key=lambda ref: ref.first_seq)
    return segments


def _beside(segments: Sequence[SegmentRef], more: Iterable[SegmentRef]) -> Iterator[SegmentRef]:
    """Yield those of `more` that overlap no segment of `segments`. Neither list overlaps itself; both are in order."""
    for ref in more:
        at = bisect_left(segments, ref.first_seq, key=lambda segment: segment.last_seq)
        if ref.first_seq <= ref.last_seq and (at == len(segments) or ref.last_seq < segments[at].first_seq):
            yield ref


def untouched(refs: Iterable[SegmentRef], sequences: SequenceSet) -> Iterator[SegmentRef]:
    """Yield the segments that hold none of `sequences`."""
    return (ref for ref in refs if not sequences.within(ref.first_seq, ref.last_seq))


# --- held run ---
#
# A run of messages that a writer holds until it is known where it goes.


class HeldRun:
    """Messages that are kept until it is known where they go. `ref` is their segment, if they have one."""

    def __init__(self, *, digest: bool = False) -> None:
        self.extent = SegmentExtent(0, 0, 0, 0)
        self.ref: SegmentRef | None = None
        self._sha256 = hashlib.sha256() if digest else None
        self._pieces: deque[PackedBatch] = deque()

    @property
    def packed_bytes(self) -> int:
        """The memory it takes."""
        return sum(piece.size for piece in self._pieces)

    @classmethod
    def of(cls, runs: Sequence[HeldRun]) -> HeldRun:
        """Join several runs."""
        whole = cls()
        whole.extent = runs[0].extent
        for run in runs[1:]:
            whole.extent += run.extent
        whole._pieces.extend(piece for run in runs for piece in run._pieces)
        return whole

    def add(self, batch: MessageBatch, rows: EncodedRows) -> None:
        first, last = batch.column("sequence")[0].as_py(), batch.column("sequence")[-1].as_py()
        added = SegmentExtent(first, last, batch.num_rows, rows.size)
        self.extent = self.extent + added if self.extent.messages else added
        if self._sha256 is not None:
            self._sha256.update(rows.encoded)
        self._pieces.append(PackedBatch(batch))

    def is_still(self, ref: SegmentRef) -> bool:
        """Return whether these are the messages of the stored segment."""
        same = self.extent == extent_of(ref)
        return same and self._sha256 is not None and self._sha256.hexdigest() == ref.digest

    def take(self) -> Iterator[MessageBatch]:
        """Yield the messages; each batch is released when it is yielded."""
        while self._pieces:
            yield self._pieces.popleft().unpack()


# --- writer ---

_MAX_SEQUENCE = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class StoredSegments:
    """What a writer has stored: segments in order, how many of them existed already, the bytes of the others."""

    refs: tuple[SegmentRef, ...] = ()
    reused: int = 0
    stored_bytes: int = 0

    @classmethod
    def joined(cls, parts: Iterable[StoredSegments]) -> StoredSegments:
        """Return all parts together, which are in order."""
        refs: list[SegmentRef] = []
        reused = stored_bytes = 0
        for part in parts:
            refs += part.refs
            reused += part.reused
            stored_bytes += part.stored_bytes
        return cls(tuple(refs), reused, stored_bytes)


class SegmentWriter:
    """Stores a stream's messages below `folder`, except those that are unchanged in a segment of `previous`.

    `note` is called for each segment that was stored, in the storing thread. `segment_bytes` is the repository's own
    size, unless it is given.

    `previous` are segments of the stream that are known to be in the store, in order. The messages of such a segment
    are kept compressed until their digest shows whether they are stored; short runs are kept until it is known whether
    they are joined: at most `segment_bytes` of them, raw, and one compressed segment. All writers share
    this memory, so `add` may wait for another writer. Call `close` on a writer that is not finished.
    """

    def __init__(
        self,
        objects: Objects,
        folder: str,
        previous: Sequence[SegmentRef] = (),
        *,
        note: Callable[[SegmentRef], None] = ignored,
        segment_bytes: int | None = None,
    ) -> None:
        if segment_bytes is None:
            segment_bytes = objects.segment_bytes
        self.objects = objects
        self._folder = folder
        self._note = note
        self._cutter = SegmentCutter(objects, folder, segment_bytes, note)
        self._cuts = Cuts(raw_bytes_of(previous), segment_bytes)
        self._previous = previous
        self._run: HeldRun | None = None  # the messages of `_ahead[0]` so far
        self._new: HeldRun | None = None  # new messages, while they may be joined with those in the window
        self._window: list[HeldRun] = []
        self._gone_bytes = 0  # bytes of the segments that were lost completely, before the first message
        self._last_seq = 0
        self._messages = 0
        self._share = objects.room.share()

    @cached_property
    def _ahead(self) -> deque[SegmentRef]:
        """The segments of `previous` that have not been reached."""
        return deque(self._previous)

    @property
    def cuts(self) -> Cuts:
        """The rules by which it cuts."""
        return self._cuts

    @property
    def reused(self) -> int:
        """How many of the segments were already in the store."""
        return self._cutter.reused

    @property
    def stored_bytes(self) -> int:
        """The bytes that were added to the store."""
        return self._cutter.stored_bytes

    def add(self, batch: MessageBatch) -> None:
        """Append messages; a full segment is stored.

        Raises:
            FormatError: sequences do not rise, or it is not a batch of messages.
            StoreError: a segment cannot be stored.
        """
        for part in split_batch(batch):
            self._share.hold(self._memory_bytes() + part.nbytes)
            self._messages += part.num_rows
            sequences: memoryview[int] = memoryview(columns_from_batch(part).sequences).cast("B").cast("q")
            row = 0
            while row < len(sequences):
                stop = max(bisect_right(sequences, self._go_to(sequences[row]), row), row + 1)
                self._take(part.slice(row, stop - row))
                self._last_seq = sequences[stop - 1]
                row = stop

    def keep(self, ref: SegmentRef) -> None:
        """Keep the next segment of `previous`, which is known to be unchanged, without its messages.

        Raises `FormatError` if it is not the next one.
        """
        if self._go_to(ref.first_seq) != ref.last_seq or self._ahead.popleft() != ref:
            raise FormatError(f"segment {ref.key} does not come next")
        self._run = None
        self._flush()
        self._cutter.keep(ref)
        self._messages += ref.messages
        self._last_seq = ref.last_seq

    def pass_over(self, segments: Sequence[SegmentRef]) -> None:
        """Begin after `segments`, the first ones of `previous`, which stay as they are. They are not in the result."""
        if segments:
            self._last_seq = ends_of(segments)[1]
            self._previous = split_at(self._previous, self._last_seq + 1)[1]
            self._cutter.begun = True

    def finish(self) -> list[SegmentRef]:
        """Store the rest, and return all segments, in order.

        Raises:
            IntegrityError: they do not hold as many messages as were given.
            StoreError: one cannot be stored.
        """
        while self._ahead:
            self._leave(self._ahead.popleft())
        self._end_new()
        self._flush()
        refs = self._cutter.refs
        self.close()
        if (stored := sum(ref.messages for ref in refs)) != self._messages:  # nothing may be named that is not there
            raise IntegrityError(f"{stored} messages were stored, but {self._messages} were read")
        return refs

    def finish_all(self) -> StoredSegments:
        """Store the rest and return everything. Raises IntegrityError, StoreError."""
        refs = tuple(self.finish())
        return StoredSegments(refs, self.reused, self.stored_bytes)

    def close(self) -> None:
        """Release the memory, after `finish` or to give up."""
        self._cutter.close()
        self._share.close()

    def settle(self) -> None:
        """Give up, and wait for the segment that is being stored. Then `stored_bytes` counts it."""
        self._cutter.settle()
        self.close()

    def _memory_bytes(self) -> int:
        runs = [*self._window, *(run for run in (self._run, self._new) if run is not None)]
        return self._cutter.held_bytes + sum(run.packed_bytes for run in runs)

    def without(self, refs: Iterable[SegmentRef], sequences: SequenceSet, *, first: int = 0) -> list[SegmentRef]:
        """Return the segments without the messages of `sequences`, and without those before `first`.

        Segments that hold any of them are stored again without them. For deletions that are only known after the
        messages. Compute totals from the result (`total_of`).

        Raises:
            KeyUnavailable: a segment of an earlier backup would have to be read, and no key that opens it was given.
        """
        reader = SegmentReader(self.objects)
        kept: list[SegmentRef] = []
        for ref in refs:
            unwanted = sequences.within(ref.first_seq, ref.last_seq)
            if not unwanted and first <= ref.first_seq:
                kept.append(ref)
                continue
            if ref.last_seq < first:
                continue
            cutter = SegmentCutter(self.objects, self._folder, self._cuts.segment_bytes, self._note)
            with self.objects.room.share() as share, closing(cutter):
                share.hold(2 * ref.size)
                for batch in reader.prove(ref):
                    for part in split_batch(drop_sequences(_since(first, batch), unwanted)):
                        cutter.add(part)
                cutter.end()
                kept += cutter.refs
            self._cutter.reused += cutter.reused
            self._cutter.stored_bytes += cutter.stored_bytes
        return kept

    # --- where a message goes ---

    def _go_to(self, sequence: int) -> int:
        """Prepare for the message with this sequence; return the last sequence that goes to the same place."""
        if sequence <= self._last_seq:
            raise FormatError(f"sequence {sequence} after {self._last_seq}")
        if self._ahead and not self._last_seq:
            self._cuts.losing_front = sequence > self._ahead[0].first_seq
        while self._ahead and self._ahead[0].last_seq < sequence:
            self._leave(self._ahead.popleft())
        if not self._ahead:
            return _MAX_SEQUENCE
        ref = self._ahead[0]
        if sequence < ref.first_seq:
            return ref.first_seq - 1
        if self._run is None:
            self._end_new()
            if self._held_bytes() + ref.bytes > self._cuts.segment_bytes:
                self._flush()
            self._run = HeldRun(digest=True)
        return ref.last_seq

    def _take(self, batch: MessageBatch) -> None:
        if self._run is None:
            self._take_new(batch)
            return
        run, ref = self._run, self._ahead[0]
        run.add(batch, encode_rows(batch))
        if run.extent.messages > ref.messages or run.extent.bytes > ref.bytes:
            # Not the rest of that segment; nothing is known about these messages.
            self._run = None
            self._ahead.popleft()
            for piece in run.take():
                self._take_new(piece)

    def _take_new(self, batch: MessageBatch) -> None:
        if not self._window and self._new is None:  # there is nothing to join it with
            self._cutter.add(batch)
            return
        rows = encode_rows(batch)
        fitting = bisect_right(rows.ends, self._cuts.segment_bytes - self._held_bytes())
        if fitting:
            self._new = self._new or HeldRun()
            fit = batch.slice(0, fitting)
            self._new.add(fit, rows if fitting == batch.num_rows else encode_rows(fit))
        if fitting < batch.num_rows:
            self._end_new()
            self._flush()
            self._cutter.add(batch.slice(fitting))

    def _held_bytes(self) -> int:
        held = [*self._window, *([self._new] if self._new else [])]
        return sum(run.extent.bytes for run in held)

    # --- where a run goes ---

    def _leave(self, ref: SegmentRef) -> None:
        """Finish the run of `ref`: all of its messages that still exist have come."""
        run, self._run = self._run, None
        front = not (self._cutter.begun or self._window or self._new)
        if run is None:
            self._gone_bytes += ref.bytes if front else 0
            return
        if run.is_still(ref):
            run.ref = ref
            self._settle(run, [self._cuts.segment_bytes])
            return
        lost = max(ref.messages - run.extent.messages, 1)
        if front and run.extent.first_seq > ref.first_seq:
            unused_bytes = self._gone_bytes + ref.bytes - run.extent.bytes
            self._settle(run, self._cuts.front(run.extent.bytes, unused_bytes))
        else:
            self._settle(run, self._cuts.thinned(run.extent.bytes, lost))

    def _end_new(self) -> None:
        run, self._new = self._new, None
        if run is not None:
            run.extent = replace(run.extent, new=True)
            self._settle(run, [self._cuts.segment_bytes])
        self._cutter.end()

    def _settle(self, run: HeldRun, sizes: list[int]) -> None:
        """Put a complete run into the window, where others may be joined with it, or store it cut to `sizes`."""
        if len(sizes) > 1:
            self._flush()
            self._store(run, sizes)
            return
        self._window.append(run)
        count = self._cuts.joined([segment.extent for segment in self._window])
        if count > 1:
            joined = HeldRun.of(self._window[-count:])
            self._window[-count:] = [joined]
        if not self._cuts.joinable(self._window[-1].extent):
            self._flush()

    def _flush(self) -> None:
        window, self._window = self._window, []
        for run in window:
            if run.ref is not None:
                self._cutter.keep(run.ref)
            else:
                self._store(run, [self._cuts.segment_bytes])

    def _store(self, run: HeldRun, sizes: list[int]) -> None:
        self._cutter.begin(sizes)
        for batch in run.take():
            self._cutter.add(batch)
        self._cutter.end()


def _since(first: int, batch: MessageBatch) -> MessageBatch:
    """Return the messages of a batch from the sequence `first` on."""
    sequences: memoryview[int] = memoryview(columns_from_batch(batch).sequences).cast("B").cast("q")
    return batch.slice(bisect_left(sequences, first))
