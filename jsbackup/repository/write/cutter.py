"""Cut messages into stored segments of given sizes, and check that an object is the right segment.

A segment takes messages until their raw bytes reach its size, counted from its own first message, whatever the batches
are. So storing the same messages in the same sizes makes the same segments with the same keys, and finds those that are
already stored.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from jsbackup.errors import DigestMismatch, FormatError
from jsbackup.formats import kernels
from jsbackup.formats.batch import columns_from_batch
from jsbackup.formats.compression import Compression
from jsbackup.formats.digest import Digester, EncodedRows, MessageBatch, encode_rows
from jsbackup.formats.gaps import GapDigest
from jsbackup.formats.segment import SegmentEncoder, decode_segment
from jsbackup.memory import give_back, stay_small
from jsbackup.repository import layout
from jsbackup.repository.background import Aftermath, QueuedTask
from jsbackup.repository.crypto.sealing import Sealing
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.objects import MAX_OBJECT_BYTES, Objects, put_named, sha256_of
from jsbackup.repository.write.compressors import Compressors, compressing_threads, usable_cores

__all__ = ["SegmentCutter", "checked_batches"]

# The compressed size that the next segment may reach while one is being stored. Measured: 16 MiB are no faster, and add
# 30 to the peak.
_BESIDE_BYTES = 4 << 20


class SegmentCutter:
    """Stores messages below `folder`, and calls `note` for each segment that it stores.

    The calling thread counts and digests messages; a second thread, or several in turn, compresses them, and another
    one stores complete segments. Their exceptions are raised by a later call. Holds a few MiB of messages, one segment
    that is being stored, and at most `_BESIDE_BYTES` of the next one; with several threads (`compressors.py`) that many
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
            self._objects.get_ready()
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
        ref = self._store_segment(segment.describe(self._folder, self._objects.sealing, data), data)
        self._refs.append(ref)
        self._note(ref)
        del content, data
        self._ended.remove(segment)
        segment.content = None
        give_back(ref.bytes)

    def _store_segment(self, ref: SegmentRef, data: memoryview) -> SegmentRef:
        stored = put_named(self._objects.store, ref.key, data)
        self.reused += not stored.added
        self.stored_bytes += ref.size if stored.added else 0
        return replace(ref, key=stored.key)


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


def checked_batches(data: bytes, ref: SegmentRef) -> Iterator[MessageBatch]:
    """Yield the messages of a segment's content. After the last one they are known to be those of `ref`.

    Raises:
        DigestMismatch: they are not.
        FormatError, UnsupportedError: as `decode_segment`.
    """
    digester = Digester()
    gaps = GapDigest()
    first = last = 0
    for batch in decode_segment(data):
        sequences = batch.column("sequence")
        gaps.update(memoryview(columns_from_batch(batch).sequences).cast("B").cast("q"))
        first = first or sequences[0].as_py()
        last = sequences[-1].as_py()
        digester.update(batch)
        yield batch
    expected = (ref.first_seq, ref.last_seq, ref.messages, ref.bytes, ref.digest, ref.fingerprint)
    found = (first, last, digester.messages, digester.raw_bytes, digester.segment_digest, digester.stream_digest)
    if found != expected or (ref.gaps and ref.gaps != gaps.hex):
        raise DigestMismatch(
            f"segment {ref.key} holds {digester.messages} messages, sequences {first} to {last}, "
            f"which are not the {ref.messages} that the manifest names"
        )
