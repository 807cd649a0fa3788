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

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow.compute as pc

from jsbackup.errors import DigestMismatch, FormatError, IntegrityError, KeyUnavailable, ObjectExists, UnsupportedError
from jsbackup.formats.digest import Digester, EncodedRows, MessageBatch, encode_rows
from jsbackup.formats.segment import SegmentEncoder, decode_segment, drop_sequences, split_batch
from jsbackup.formats.sequences import SequenceSet
from jsbackup.repository import layout
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.objects import MAX_OBJECT_BYTES, Objects, damaged_twice, sha256_of
from jsbackup.repository.sealing import Sealing

__all__ = ["SEGMENT_BYTES", "SegmentReader", "SegmentWriter"]

# Large enough that a request's latency does not matter and a terabyte is some ten thousand objects; small enough that
# a writer holds one in memory and that a rewrite or a damaged object costs little.
SEGMENT_BYTES = 64 << 20


class SegmentWriter:
    """Stores a stream's messages below `folder`. Holds one compressed segment and a few MiB of messages.

    `reused` counts segments that were stored already, `stored_bytes` what was added to the store.
    """

    def __init__(self, objects: Objects, folder: str, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._objects = objects
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._open: _OpenSegment | None = None
        self._refs: list[SegmentRef] = []
        self._last_seq = 0
        self.reused = 0
        self.stored_bytes = 0

    def add(self, batch: MessageBatch) -> None:
        """Append messages; a segment that is full is stored.

        Raises:
            FormatError: sequences do not rise, or it is not a batch of messages.
            StoreError: a segment cannot be stored.
        """
        for part in split_batch(batch):
            rows = encode_rows(part)
            while (fitting := self._fitting(rows)) < part.num_rows:
                if fitting:
                    self._take(part.slice(0, fitting), encode_rows(part.slice(0, fitting)))
                self._close_segment()
                # Encoded again: once per segment, so not worth doing better.
                part = part.slice(fitting)
                rows = encode_rows(part)
            self._take(part, rows)

    def finish(self) -> list[SegmentRef]:
        """Store what is left and give all segments, in order."""
        self._close_segment()
        return self._refs

    def without(self, refs: Iterable[SegmentRef], sequences: SequenceSet) -> list[SegmentRef]:
        """Segments with the messages of `sequences` taken out: those that hold any are stored anew, the rest stays.

        For deletions that an archive tells only after the messages. Totals come from the result (`total_of`).
        """
        reader = SegmentReader(self._objects)
        kept: list[SegmentRef] = []
        for ref in refs:
            unwanted = sequences.within(ref.first_seq, ref.last_seq)
            if not unwanted:
                kept.append(ref)
                continue
            writer = SegmentWriter(self._objects, self._folder, segment_bytes=self._segment_bytes)
            for batch in reader.read(ref):
                writer.add(drop_sequences(batch, unwanted))
            kept += writer.finish()
            self.reused += writer.reused
            self.stored_bytes += writer.stored_bytes
        return kept

    def _fitting(self, rows: EncodedRows) -> int:
        """How many of the rows the open segment still takes; an empty one takes the first, however large."""
        taken = self._open.digester.raw_bytes if self._open else 0
        return max(bisect_right(rows.ends, self._segment_bytes - taken), 0 if taken else 1)

    def _take(self, batch: MessageBatch, rows: EncodedRows) -> None:
        first, last = batch.column("sequence")[0].as_py(), batch.column("sequence")[-1].as_py()
        if first <= self._last_seq:
            raise FormatError(f"sequence {first} after {self._last_seq}")
        self._last_seq = last
        self._open = self._open or _OpenSegment()
        self._open.add(batch, rows)

    def _close_segment(self) -> None:
        segment, self._open = self._open, None
        if segment is not None:
            # An Arrow buffer counts its bytes as signed.
            data = memoryview(self._objects.sealing.seal(memoryview(segment.encoder.finish()).cast("B")))
            self._refs.append(self._store_segment(segment.describe(self._folder, self._objects.sealing, data), data))

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
