"""What a restore sends: the archive of a planned stream, made from the store while it is sent.

Consumers with many pending messages have those in an object of their own; everything else is in segments, or, for a
stream that was kept as it came, in pieces of the snapshot itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from jsbackup.engine.capture import Advance
from jsbackup.engine.plan import Action, PlannedConsumer, Wire
from jsbackup.formats.archive import ArchiveV1Writer, ArchiveV2Writer
from jsbackup.model import ConsumerState, JsonObject, StreamState
from jsbackup.repository.archiving import archive_stream, state_to_restore
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.opaque import read_opaque
from jsbackup.repository.pending import load_consumer
from jsbackup.repository.segments import SegmentReader
from jsbackup.stores.base import Store

__all__ = ["archive_of", "load_consumers", "read_segments", "state_to_send"]


def load_consumers(store: Store, action: Action) -> list[PlannedConsumer]:
    """The planned consumers, each with all of its state. Raises as `pending.load_consumer`."""
    whole = []
    backups = {consumer.name: consumer for consumer in action.entry.consumers}
    for planned in action.consumers:
        if planned.pending is not None:
            loaded = load_consumer(store, backups[planned.consumer.name])
            planned = replace(planned, consumer=replace(planned.consumer, state=loaded.state), pending=None)
        whole.append(planned)
    return whole


def read_segments(store: Store, entry: StreamBackup) -> Iterator[pa.RecordBatch]:
    """All messages of a stream, in order."""
    reader = SegmentReader(store)
    for ref in entry.segments:
        yield from reader.read(ref)


def archive_of(
    store: Store, action: Action, config: JsonObject, consumers: Sequence[PlannedConsumer], advance: Advance
) -> Iterator[bytes]:
    """The archive as the server reads it, in S2 frames. Blocks: meant for a worker thread."""
    if action.wire is Wire.OPAQUE:
        for piece in read_opaque(store, action.entry.opaque):
            yield piece
            advance(len(piece), 0)
        return
    archived = [planned.consumer for planned in consumers]
    state = state_to_send(action.entry)
    writer: ArchiveV1Writer | ArchiveV2Writer
    if action.wire is Wire.V1:
        writer = ArchiveV1Writer(config, action.entry.created, state, archived)
    else:
        # v2 knows no consumer without a state: one that starts anew has delivered nothing.
        archived = [c if c.state is not None else replace(c, state=ConsumerState()) for c in archived]
        writer = ArchiveV2Writer(state, archived)
    yield from archive_stream(store, action.entry, writer, advance)


def state_to_send(entry: StreamBackup) -> StreamState:
    """The state that a restore request names."""
    return entry.state if entry.opaque else state_to_restore(entry)
