"""Batches ⇄ stored segments.

Where segments are cut depends on the messages alone: a segment takes messages as long as their raw bytes come to
`SEGMENT_BYTES`, counted from its own first message, whatever batches they come in. So whoever stores the same messages
makes the same segments with the same keys, and finds those that are there already.

A key that is taken is not proof of its object: the segment's digest names the messages, and another version of the
Parquet library stores the same messages as other bytes, while the manifest records the bytes. So the end of the object
is compared, where a Parquet file has the name of its writer and the place and size of every page. If it differs, the
object is read: it is used if it holds the messages, and left alone if it is damaged, with ours stored beside it.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow.compute as pc

from jsbackup.errors import DigestMismatch, FormatError, IntegrityError, KeyUnavailable, ObjectExists, UnsupportedError
from jsbackup.formats.batch import columns_from_batch
from jsbackup.formats.digest import Digester, EncodedRows, MessageBatch, encode_rows
from jsbackup.formats.packed import PackedBatch
from jsbackup.formats.segment import SegmentEncoder, decode_segment, drop_sequences, split_batch
from jsbackup.formats.sequences import SequenceSet
from jsbackup.repository import layout
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.objects import MAX_OBJECT_BYTES, Objects, damaged_twice, sha256_of
from jsbackup.repository.reuse import Cuts, Extent, extent_of
from jsbackup.repository.sealing import Sealing

__all__ = ["SEGMENT_BYTES", "SegmentReader", "SegmentWriter"]

# Large enough that a request's latency does not matter and a terabyte is some ten thousand objects; small enough that
# a writer holds one in memory and that a rewrite or a damaged object costs little.
SEGMENT_BYTES = 64 << 20

_MAX_SEQUENCE = (1 << 63) - 1


class SegmentWriter:
    """Stores a stream's messages below `folder`, all but those runs that are a segment of `previous` still.

    `previous` are segments of an earlier backup of the stream that are known to be in the store, in order. The messages
    of such a segment are held back, packed, until their digest tells whether they are stored, and short ones until it
    is known whether they are joined (`reuse.py`): at most `segment_bytes` of them, raw, beside one compressed segment.
    """

    def __init__(
        self,
        objects: Objects,
        folder: str,
        previous: Sequence[SegmentRef] = (),
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._objects = objects
        self._folder = folder
        self._cutter = _Cutter(objects, folder, segment_bytes)
        self._cuts = Cuts(sum(ref.bytes for ref in previous), segment_bytes)
        self._ahead = deque(previous)
        self._run: _Run | None = None  # what came of `_ahead[0]` so far
        self._new: _Run | None = None  # what is new, while it may be joined with what is in the window
        self._window: list[_Run] = []
        self._gone_bytes = 0  # of segments that went whole, ahead of the first message
        self._last_seq = 0

    @property
    def cuts(self) -> Cuts:
        """By what rules it cuts."""
        return self._cuts

    @property
    def reused(self) -> int:
        """How many of the segments were in the store already."""
        return self._cutter.reused

    @property
    def stored_bytes(self) -> int:
        """What was added to the store."""
        return self._cutter.stored_bytes

    def add(self, batch: MessageBatch) -> None:
        """Append messages; a segment that is full is stored.

        Raises:
            FormatError: sequences do not rise, or it is not a batch of messages.
            StoreError: a segment cannot be stored.
        """
        for part in split_batch(batch):
            sequences: memoryview[int] = memoryview(columns_from_batch(part).sequences).cast("B").cast("q")
            row = 0
            while row < len(sequences):
                stop = max(bisect_right(sequences, self._go_to(sequences[row]), row), row + 1)
                self._take(part.slice(row, stop - row))
                self._last_seq = sequences[stop - 1]
                row = stop

    def keep(self, ref: SegmentRef) -> None:
        """One of `previous` comes next, known to be as it was although its messages were not read.

        Raises `FormatError` if it is none of `previous`, or does not come next.
        """
        if self._go_to(ref.first_seq) != ref.last_seq or self._ahead.popleft() != ref:
            raise FormatError(f"segment {ref.key} does not come next")
        self._run = None
        self._flush()
        self._cutter.keep(ref)
        self._last_seq = ref.last_seq

    def finish(self) -> list[SegmentRef]:
        """Store what is left and give all segments, in order."""
        while self._ahead:
            self._leave(self._ahead.popleft())
        self._end_new()
        self._flush()
        return self._cutter.refs

    def without(self, refs: Iterable[SegmentRef], sequences: SequenceSet) -> list[SegmentRef]:
        """Segments with the messages of `sequences` taken out: those that hold any are stored anew, the rest stays.

        For deletions that an archive tells only after the messages. Totals come from the result (`total_of`).

        Raises:
            KeyUnavailable: a segment of an earlier backup would have to be read, and there is no key that opens it.
        """
        reader = SegmentReader(self._objects)
        kept: list[SegmentRef] = []
        for ref in refs:
            unwanted = sequences.within(ref.first_seq, ref.last_seq)
            if not unwanted:
                kept.append(ref)
                continue
            cutter = _Cutter(self._objects, self._folder, self._cuts.segment_bytes)
            for batch in reader.read(ref):
                for part in split_batch(drop_sequences(batch, unwanted)):
                    cutter.add(part)
            cutter.close()
            kept += cutter.refs
            self._cutter.reused += cutter.reused
            self._cutter.stored_bytes += cutter.stored_bytes
        return kept

    # --- where a message goes ---

    def _go_to(self, sequence: int) -> int:
        """Get ready for the message of that sequence; the last sequence that goes where it goes."""
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
            self._run = _Run(digest=True)
        return ref.last_seq

    def _take(self, batch: MessageBatch) -> None:
        if self._run is None:
            self._take_new(batch)
            return
        run, ref = self._run, self._ahead[0]
        run.add(batch, encode_rows(batch))
        if run.extent.messages > ref.messages or run.extent.bytes > ref.bytes:
            # Not what is left of that segment: whatever it is, nothing is known about it.
            self._run = None
            self._ahead.popleft()
            for piece in run.take():
                self._take_new(piece)

    def _take_new(self, batch: MessageBatch) -> None:
        if not self._window and self._new is None:  # nothing that it could be joined with
            self._cutter.add(batch)
            return
        rows = encode_rows(batch)
        fitting = bisect_right(rows.ends, self._cuts.segment_bytes - self._held_bytes())
        if fitting:
            self._new = self._new or _Run()
            fit = batch.slice(0, fitting)
            self._new.add(fit, rows if fitting == batch.num_rows else encode_rows(fit))
        if fitting < batch.num_rows:
            self._end_new()
            self._flush()
            self._cutter.add(batch.slice(fitting))

    def _held_bytes(self) -> int:
        held = [*self._window, *([self._new] if self._new else [])]
        return sum(run.extent.bytes for run in held)

    # --- what becomes of a run ---

    def _leave(self, ref: SegmentRef) -> None:
        """All of `ref` that is still there has come."""
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
            gone = self._gone_bytes + ref.bytes - run.extent.bytes
            self._settle(run, self._cuts.front(run.extent.bytes, gone))
        else:
            self._settle(run, self._cuts.thinned(run.extent.bytes, lost))

    def _end_new(self) -> None:
        run, self._new = self._new, None
        if run is not None:
            run.extent = replace(run.extent, new=True)
            self._settle(run, [self._cuts.segment_bytes])
        self._cutter.close()

    def _settle(self, run: _Run, sizes: list[int]) -> None:
        """Put a whole run where it waits for others to be joined with, or store it cut to `sizes`."""
        if len(sizes) > 1:
            self._flush()
            self._store(run, sizes)
            return
        self._window.append(run)
        count = self._cuts.joined([one.extent for one in self._window])
        if count > 1:
            joined = _Run.of(self._window[-count:])
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

    def _store(self, run: _Run, sizes: list[int]) -> None:
        self._cutter.sizes = deque(sizes)
        for batch in run.take():
            self._cutter.add(batch)
        self._cutter.close()


class _Run:
    """Messages held back until it is known what becomes of them. `ref` is their segment, if they have one."""

    def __init__(self, *, digest: bool = False) -> None:
        self.extent = Extent(0, 0, 0, 0)
        self.ref: SegmentRef | None = None
        self._sha256 = hashlib.sha256() if digest else None
        self._pieces: deque[PackedBatch] = deque()

    @classmethod
    def of(cls, runs: Sequence[_Run]) -> _Run:
        """Several, joined."""
        whole = cls()
        whole.extent = runs[0].extent
        for run in runs[1:]:
            whole.extent += run.extent
        whole._pieces.extend(piece for run in runs for piece in run._pieces)
        return whole

    def add(self, batch: MessageBatch, rows: EncodedRows) -> None:
        first, last = batch.column("sequence")[0].as_py(), batch.column("sequence")[-1].as_py()
        added = Extent(first, last, batch.num_rows, rows.size)
        self.extent = self.extent + added if self.extent.messages else added
        if self._sha256 is not None:
            self._sha256.update(rows.encoded)
        self._pieces.append(PackedBatch(batch))

    def is_still(self, ref: SegmentRef) -> bool:
        """Whether these are the messages that were stored."""
        same = self.extent == extent_of(ref)
        return same and self._sha256 is not None and self._sha256.hexdigest() == ref.digest

    def take(self) -> Iterator[MessageBatch]:
        """The messages; each batch is forgotten as it is given."""
        while self._pieces:
            yield self._pieces.popleft().unpack()


class _Cutter:
    """Stores messages in segments of `sizes`, the last of which is for all the rest."""

    def __init__(self, objects: Objects, folder: str, segment_bytes: int) -> None:
        self._objects = objects
        self._folder = folder
        self._open: _OpenSegment | None = None
        self._segment_bytes = segment_bytes
        self.sizes = deque([segment_bytes])
        self.refs: list[SegmentRef] = []
        self.reused = 0
        self.stored_bytes = 0

    @property
    def begun(self) -> bool:
        return bool(self.refs or self._open)

    def keep(self, ref: SegmentRef) -> None:
        """A segment that is stored comes next."""
        self.refs.append(ref)
        self.reused += 1

    def add(self, part: MessageBatch) -> None:
        rows = encode_rows(part)
        while (fitting := self._fitting(rows)) < part.num_rows:
            if fitting:
                self._take(part.slice(0, fitting), encode_rows(part.slice(0, fitting)))
            self._close_segment()
            # Encoded again: once per segment, so not worth doing better.
            part = part.slice(fitting)
            rows = encode_rows(part)
        self._take(part, rows)

    def close(self) -> None:
        """The segment that is open ends here, and the next one is of the usual size."""
        self._close_segment()
        self.sizes = deque([self._segment_bytes])

    def _fitting(self, rows: EncodedRows) -> int:
        """How many of the rows the open segment still takes; an empty one takes the first, however large."""
        taken = self._open.digester.raw_bytes if self._open else 0
        return max(bisect_right(rows.ends, self.sizes[0] - taken), 0 if taken else 1)

    def _take(self, batch: MessageBatch, rows: EncodedRows) -> None:
        self._open = self._open or _OpenSegment()
        self._open.add(batch, rows)

    def _close_segment(self) -> None:
        segment, self._open = self._open, None
        if segment is not None:
            # An Arrow buffer counts its bytes as signed.
            data = memoryview(self._objects.sealing.seal(memoryview(segment.encoder.finish()).cast("B")))
            self.refs.append(self._store_segment(segment.describe(self._folder, self._objects.sealing, data), data))
            if len(self.sizes) > 1:
                self.sizes.popleft()

    def _store_segment(self, ref: SegmentRef, data: memoryview) -> SegmentRef:
        for key in (ref.key, layout.replacement_key(ref.key, ref.sha256)):
            stored = self._put(replace(ref, key=key), data)
            if stored is not None:
                return stored
        raise damaged_twice(ref.key)

    def _put(self, ref: SegmentRef, data: memoryview) -> SegmentRef | None:
        """Store the segment or use what is there; None if that is of no use."""
        try:
            self._objects.store.put(ref.key, data)
        except ObjectExists:
            found = ref if self._same_end(ref.key, data) else self._other_encoding(ref)
            self.reused += found is not None
            return found
        self.stored_bytes += ref.size
        return ref

    def _same_end(self, key: str, data: memoryview) -> bool:
        tail = data[-min(len(data), int.from_bytes(data[-8:-4], "little") + 8) :]
        # One byte more than ours, so that one request compares the size too.
        return self._objects.store.get_range(key, len(data) - len(tail), len(tail) + 1) == tail

    def _other_encoding(self, ref: SegmentRef) -> SegmentRef | None:
        """The object under `ref.key` as a reference, if it holds the same messages."""
        found = self._objects.store.get_range(ref.key, 0, MAX_OBJECT_BYTES)
        theirs = replace(ref, size=len(found), sha256=sha256_of(found))
        try:
            for _ in _checked_batches(self._objects.sealing.unseal(ref.key, found), theirs):
                pass
        except (IntegrityError, KeyUnavailable, UnsupportedError):
            return None
        return theirs


class SegmentReader:
    """Reads segments, proving each against its reference."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def read(self, ref: SegmentRef) -> Iterator[MessageBatch]:
        """The segment's messages in batches of up to about 4 MiB. May be used from several threads.

        Size and SHA-256 of the object are checked before it is decoded; sequences, count and digest with the last
        batch, so whoever reads to the end has the proof.

        Raises:
            IntegrityError: the object is missing, or not what the manifest says.
            KeyUnavailable: it is encrypted, and no key that opens it was given.
            StoreError: it cannot be read.
        """
        return _checked_batches(self._objects.fetch(ref.key, ref.size, ref.sha256), ref)


class _OpenSegment:
    """The segment being filled."""

    def __init__(self) -> None:
        self.encoder = SegmentEncoder()
        self.digester = Digester()
        self._first_seq = 0
        self._last_seq = 0
        self._times: list[int] = []

    def add(self, batch: MessageBatch, rows: EncodedRows) -> None:
        self.encoder.write(batch)
        self.digester.update_rows(rows)
        sequences = batch.column("sequence")
        self._first_seq = self._first_seq or sequences[0].as_py()
        self._last_seq = sequences[-1].as_py()
        span = pc.min_max(batch.column("timestamp_ns")).as_py()
        times = [*self._times, span["min"], span["max"]]
        self._times = [min(times), max(times)]

    def describe(self, folder: str, sealing: Sealing, data: memoryview) -> SegmentRef:
        digest = self.digester.segment_digest
        return SegmentRef(
            key=layout.segment_key(folder, self._first_seq, self._last_seq, sealing.name(digest), sealing.suffix),
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
        )


def _checked_batches(data: bytes, ref: SegmentRef) -> Iterator[MessageBatch]:
    digester = Digester()
    first = last = 0
    for batch in decode_segment(data):
        sequences = batch.column("sequence")
        first = first or sequences[0].as_py()
        last = sequences[-1].as_py()
        digester.update(batch)
        yield batch
    expected = (ref.first_seq, ref.last_seq, ref.messages, ref.bytes, ref.digest, ref.fingerprint)
    found = (first, last, digester.messages, digester.raw_bytes, digester.segment_digest, digester.stream_digest)
    if found != expected:
        raise DigestMismatch(
            f"segment {ref.key} holds {digester.messages} messages, sequences {first} to {last}, "
            f"which are not the {ref.messages} that the manifest names"
        )
