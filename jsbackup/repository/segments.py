"""Batches ⇄ stored segments.

Where segments are cut depends on the messages and on the segments that are known to be stored (`reuse.py`,
`cutter.py`), not on the batches. So a repeated run makes the same segments with the same keys, and finds those that are
already stored, even if it does not know of them (`receipts.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property

from jsbackup.errors import FormatError, IntegrityError
from jsbackup.formats.batch import columns_from_batch
from jsbackup.formats.digest import MessageBatch, encode_rows
from jsbackup.formats.segment import decode_segment, drop_sequences, split_batch
from jsbackup.formats.sequences import SequenceSet
from jsbackup.progress import ignored
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import ends_of, raw_bytes_of, split_at
from jsbackup.repository.write.cutter import SegmentCutter, checked_batches
from jsbackup.repository.write.held_run import HeldRun
from jsbackup.repository.write.reuse import Cuts

__all__ = ["SegmentReader", "SegmentWriter", "StoredSegments"]

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
    they are joined (`reuse.py`): at most `segment_bytes` of them, raw, and one compressed segment. All writers share
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
        """Store the rest and return everything. Raises as `finish`."""
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
            run.ref = run.named(ref)
            self._settle(run, [self._cuts.segment_bytes])
            return
        lost = max(ref.messages - run.extent.messages, 1)
        if front and run.extent.first_seq > ref.first_seq:
            gone = self._gone_bytes + ref.bytes - run.extent.bytes
            self._settle(run, self._cuts.front(run.extent.bytes, gone))
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
        count = self._cuts.joined([one.extent for one in self._window])
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


class SegmentReader:
    """Reads segments, and verifies each against its reference."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def read(self, ref: SegmentRef) -> Iterator[MessageBatch]:
        """Yield the segment's messages in batches of up to about 4 MiB. May be used from several threads.

        Size and SHA-256 of the object are checked before it is decoded, so it is the one that was stored. Use `prove`
        to check the messages as well, whose digests take longer than everything else.

        Raises:
            IntegrityError: the object is missing, or not what the manifest says.
            KeyUnavailable: it is encrypted, and no key that opens it was given.
            StoreError: it cannot be read.
        """
        return decode_segment(self._objects.fetch(ref))

    def prove(self, ref: SegmentRef) -> Iterator[MessageBatch]:
        """Do the same as `read`, and check sequences, count and digests with the last batch.

        The messages are verified once all are read. Raises as `read`.
        """
        return checked_batches(self._objects.fetch(ref), ref)
