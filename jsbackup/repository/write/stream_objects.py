"""Objects of a stream beside its segments: large pending sets of consumers, and snapshots that cannot be decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from jsbackup.errors import FormatError
from jsbackup.model import ConsumerState, PendingAck
from jsbackup.repository import layout
from jsbackup.repository.manifest import ConsumerBackup, ObjectRef, OpaqueRef
from jsbackup.repository.objects import Objects, sha256_of
from jsbackup.stores.base import Data

__all__ = [
    "INLINE_ENTRIES",
    "PIECE_BYTES",
    "OpaqueWriter",
    "decode_pending",
    "encode_pending",
    "load_consumer",
    "read_opaque",
    "read_piece",
    "store_consumer",
]


# --- pending acks ---
#
# The states of consumers in a manifest, with large pending sets in separate objects.
#
# A work queue can have hundreds of thousands of messages pending: too much for a JSON document that every command
# reads. More than `INLINE_ENTRIES` go to a Parquet file beside the segments, with the columns `sequence`,
# `consumer_sequence`, `timestamp_ns` and `redelivered` (uint64, uint64, int64, uint64), one row per stream sequence in
# rising order; the middle two are null for a message that was redelivered and is no longer pending, the last where it
# was not redelivered.

# About 35 bytes each in JSON: a manifest of a hundred such consumers has a few megabytes.
INLINE_ENTRIES = 2000

# Servers allow far fewer pending messages; this limits what the footer of a file may declare.
_MAX_ROWS = 1 << 26

_SCHEMA = pa.schema(
    [
        pa.field("sequence", pa.uint64(), nullable=False),
        pa.field("consumer_sequence", pa.uint64()),
        pa.field("timestamp_ns", pa.int64()),
        pa.field("redelivered", pa.uint64()),
    ]
)


def store_consumer(objects: Objects, folder: str, consumer: ConsumerBackup) -> ConsumerBackup:
    """Return the consumer for a manifest, after storing its pending set separately if it is large."""
    state = consumer.state
    if state is None or len(state.pending) + len(state.redelivered) <= INLINE_ENTRIES:
        return consumer
    data = encode_pending(state)
    name = objects.sealing.name(sha256_of(data))
    stored = objects.put_once(layout.pending_key(folder, name, objects.sealing.suffix), data)
    ref = ObjectRef(stored.key, stored.size, stored.sha256)
    return replace(consumer, state=replace(state, pending={}, redelivered={}), pending=ref)


def load_consumer(objects: Objects, consumer: ConsumerBackup) -> ConsumerBackup:
    """Return the consumer with its whole state in memory.

    Raises:
        IntegrityError: the object is missing or damaged.
        KeyUnavailable: it is encrypted, and no key that opens it was given.
        StoreError: it cannot be read.
    """
    ref = consumer.pending
    if ref is None or consumer.state is None:
        return consumer
    whole = decode_pending(objects.fetch(ref))
    state = replace(consumer.state, pending=whole.pending, redelivered=whole.redelivered)
    return replace(consumer, state=state, pending=None)


def encode_pending(state: ConsumerState) -> bytes:
    """Encode the state's pending and redelivered messages as a Parquet file."""
    sequences = sorted(state.pending.keys() | state.redelivered.keys())
    acks = [state.pending.get(sequence) for sequence in sequences]
    columns = [
        sequences,
        [None if ack is None else ack.consumer for ack in acks],
        [None if ack is None else ack.timestamp_ns for ack in acks],
        [state.redelivered.get(sequence) for sequence in sequences],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=_SCHEMA),
        sink,
        compression="zstd",
        use_dictionary=False,
        column_encoding={field.name: "DELTA_BINARY_PACKED" for field in _SCHEMA},
        write_page_checksum=True,
        store_schema=False,
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_pending(data: Data) -> ConsumerState:
    """Decode a state with only its pending and redelivered messages. Raises `FormatError` for any other file."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        if file.schema_arrow != _SCHEMA or not 0 <= file.metadata.num_rows <= _MAX_ROWS:
            raise FormatError("pending set: wrong columns")
        columns = [column.to_pylist() for column in file.read(use_threads=False).columns]
    except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise FormatError(f"pending set: {' '.join(str(error).split())[:200]}") from error
    pending: dict[int, PendingAck] = {}
    redelivered: dict[int, int] = {}
    last = -1
    for sequence, consumer, timestamp_ns, times in zip(*columns, strict=True):
        if sequence <= last or (consumer is None) != (timestamp_ns is None):
            raise FormatError(f"pending set: bad row for sequence {sequence}")
        last = sequence
        if consumer is not None:
            pending[sequence] = PendingAck(consumer, timestamp_ns)
        if times is not None:
            redelivered[sequence] = times
    return ConsumerState(pending=pending, redelivered=redelivered)


# --- raw snapshot ---
#
# A snapshot that cannot be decoded, kept verbatim: the bytes as they came, in zstd frames.
#
# Each piece is one object of one zstd frame, made from `PIECE_BYTES` of the snapshot (the last from what is left); the
# manifest has them in order. `zstd -dc` over all of them gives the server's S2 stream, which a server of the same kind
# can restore. Pieces are named by the SHA-256 of the frame, so a second attempt at the same bytes stores nothing twice.

PIECE_BYTES = 32 << 20

# The S2 stream is compressed already; more effort gains nothing.
_LEVEL = 1

# What a reference may declare. Ours have PIECE_BYTES; a later version may choose another size.
_MAX_PIECE_BYTES = 256 << 20


class OpaqueWriter:
    """Stores a byte stream below `folder`. Holds up to one piece, raw and compressed."""

    def __init__(self, objects: Objects, folder: str, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._objects = objects
        self._folder = folder
        self._piece_bytes = piece_bytes
        self._held = bytearray()
        self._refs: list[OpaqueRef] = []
        self.stored_bytes = 0

    def feed(self, data: Data) -> None:
        """Append bytes; a full piece is stored."""
        view = memoryview(data).cast("B")
        while view:
            room = self._piece_bytes - len(self._held)
            self._held += view[:room]
            view = view[room:]
            if len(self._held) == self._piece_bytes:
                self._store_piece()

    def finish(self) -> list[OpaqueRef]:
        """Store the rest, and return all pieces, in order."""
        if self._held:
            self._store_piece()
        return self._refs

    def _store_piece(self) -> None:
        data = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(self._held)
        sealing = self._objects.sealing
        key = layout.opaque_key(self._folder, sealing.name(sha256_of(data)), sealing.suffix)
        stored = self._objects.put_once(key, data)
        ref = OpaqueRef(stored.key, stored.size, stored.sha256, len(self._held))
        if stored.added:
            self.stored_bytes += ref.size
        self._refs.append(ref)
        self._held = bytearray()


def read_opaque(objects: Objects, refs: Iterable[OpaqueRef]) -> Iterator[bytes]:
    """Yield the bytes, piece by piece, each verified first. Errors as `Objects.fetch`."""
    for ref in refs:
        yield read_piece(objects, ref)


def read_piece(objects: Objects, ref: OpaqueRef) -> bytes:
    """Return one piece. Raises `FormatError` if it does not match its reference."""
    data = objects.fetch(ref)
    try:
        # The frame declares its content size, which is checked before memory is allocated.
        if zstandard.frame_content_size(data) != ref.bytes or ref.bytes > _MAX_PIECE_BYTES:
            raise FormatError(f"piece {ref.key} of a raw snapshot does not have {ref.bytes} bytes")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=ref.bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(f"piece {ref.key} of a raw snapshot: {str(error)[:200]}") from error
