"""Messages of stored segments: read, proved, with some of their columns, or all of a stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import BinaryIO, cast

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import DigestMismatch
from jsbackup.formats.batch import BATCH_SCHEMA, columns_from_batch
from jsbackup.formats.digest import Digester, GapDigest, MessageBatch
from jsbackup.formats.segment import decode_segment, scan_segment
from jsbackup.memory import give_back
from jsbackup.model import StreamState
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.objects import Objects, SegmentRef

__all__ = ["SegmentReader", "prove_stream", "read_columns", "read_stream", "state_to_restore"]


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

        The messages are verified once all are read. Raises DigestMismatch too.
        """
        return checked_batches(self._objects.fetch(ref), ref)


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
    totals = (first, last, digester.messages, digester.raw_bytes, digester.segment_digest, digester.stream_digest)
    if totals != expected or (ref.gaps and ref.gaps != gaps.hex):
        raise DigestMismatch(
            f"segment {ref.key} holds {digester.messages} messages, sequences {first} to {last}, "
            f"which are not the {ref.messages} that the manifest names"
        )


# --- columns ---
#
# Messages of a segment with only some of their columns, for a pass that looks at no more.

_HEAD = ("sequence", "timestamp_ns", "subject")


def read_columns(objects: Objects, ref: SegmentRef, columns: Collection[str]) -> Iterator[MessageBatch]:
    """Yield batches of messages. Of `headers` and `data` only those among `columns` are decoded; the others are empty.

    Raises:
        IntegrityError: the object is missing, or damaged.
        KeyUnavailable: it is encrypted, and no key that opens it was given.
        StoreError: it cannot be read.
    """
    # The whole object is fetched: its SHA-256 has to be compared before a footer is trusted (`look/stream.py`).
    needed = [name for name in BATCH_SCHEMA.names if name in _HEAD or name in columns]
    with objects.room.share() as share:
        share.hold(ref.size)
        file = cast(BinaryIO, pa.BufferReader(objects.fetch(ref)))
        for batch in scan_segment(file, needed, lambda _group: True):
            yield _filled_up(batch)
    give_back(ref.bytes)


def _filled_up(batch: pa.RecordBatch) -> MessageBatch:
    held = set(batch.schema.names)
    nothing = {
        "headers": lambda: pa.nulls(batch.num_rows, pa.binary()),
        "data": lambda: pa.repeat(pc.binary_array([b""])[0], batch.num_rows),
    }
    arrays = [batch.column(name) if name in held else nothing[name]() for name in BATCH_SCHEMA.names]
    schema = BATCH_SCHEMA.set(2, BATCH_SCHEMA.field(2).with_type(batch.column("subject").type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# --- streams ---


def state_to_restore(stream: StreamBackup) -> StreamState:
    """Return the state after restoring the stream: the reported one, extended by what was captured later."""
    captured, state = stream.captured, stream.state
    if stream.opaque:
        return state
    last_seq = max(state.last_seq, captured.last_seq)
    first_seq = captured.first_seq
    if not captured.messages:
        # An empty stream keeps its next sequence; one never used may have a first_seq of its own.
        first_seq = max(state.first_seq, last_seq + 1) if last_seq or state.first_seq > 1 else state.first_seq
    return replace(
        state,
        messages=captured.messages,
        bytes=captured.bytes,
        first_seq=first_seq,
        last_seq=last_seq,
        deleted=last_seq - first_seq + 1 - captured.messages if captured.messages else 0,
    )


def read_stream(objects: Objects, stream: StreamBackup) -> Iterator[MessageBatch]:
    """Yield all messages of a stream, in order. Raises IntegrityError, KeyUnavailable and StoreError."""
    return _all_of(objects, stream, SegmentReader(objects).read)


def prove_stream(objects: Objects, stream: StreamBackup) -> Iterator[MessageBatch]:
    """Do the same as `read_stream`; the messages of each segment are checked as by `SegmentReader.prove`."""
    return _all_of(objects, stream, SegmentReader(objects).prove)


def _all_of(
    objects: Objects, stream: StreamBackup, read: Callable[[SegmentRef], Iterator[MessageBatch]]
) -> Iterator[MessageBatch]:
    for ref in stream.segments:
        with objects.room.share() as share:
            share.hold(ref.size)
            yield from read(ref)
        give_back(ref.bytes)
