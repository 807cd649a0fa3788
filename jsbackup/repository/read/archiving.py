"""Make an archive from a stored stream, in the S2 frames that a server's restore and the nats CLI read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from jsbackup.formats.archive.archive import ArchiveV2Writer
from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
from jsbackup.formats.digest import MessageBatch
from jsbackup.formats.s2 import S2Encoder
from jsbackup.memory import give_back
from jsbackup.model import StreamState
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.segments import SegmentReader

__all__ = ["archive_batches", "archive_stream", "read_stream", "state_to_restore"]


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
    """Yield all messages of a stream, in order. Raises as `SegmentReader.read`."""
    return _all_of(objects, stream, SegmentReader(objects).read)


def _all_of(
    objects: Objects, stream: StreamBackup, read: Callable[[SegmentRef], Iterator[MessageBatch]]
) -> Iterator[MessageBatch]:
    for ref in stream.segments:
        with objects.room.share() as share:
            share.hold(ref.size)
            yield from read(ref)
        give_back(ref.bytes)


def archive_stream(
    objects: Objects,
    stream: StreamBackup,
    writer: ArchiveV1Writer | ArchiveV2Writer,
    advance: Callable[[int, int], None],
) -> Iterator[bytes]:
    """Yield the archive that `writer` makes of the stored messages. Each segment is verified while it is read.

    `advance` gets the bytes and messages of each batch. Raises IntegrityError, StoreError and FormatError.
    """
    yield from archive_batches(_all_of(objects, stream, SegmentReader(objects).prove), writer, advance)


def archive_batches(
    batches: Iterable[MessageBatch],
    writer: ArchiveV1Writer | ArchiveV2Writer,
    advance: Callable[[int, int], None],
    encoder: S2Encoder | None = None,
) -> Iterator[bytes]:
    """Yield the archive that `writer` makes of these messages, in the frames of a new `encoder`.

    Raises FormatError, and the errors of `batches`.
    """
    encoder = encoder or S2Encoder()
    for piece in writer.begin():
        yield from encoder.feed(piece)
    for batch in batches:
        for piece in writer.write(batch):
            yield from encoder.feed(piece)
        advance(batch.nbytes, batch.num_rows)
    for piece in writer.finish():
        yield from encoder.feed(piece)
    yield from encoder.finish()
