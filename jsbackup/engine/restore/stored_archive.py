"""Make the archive of a planned stream from the store while it is sent.

Consumers with many pending messages have these in a separate object; everything else is in segments, or, for a stream
that was stored undecoded, in pieces of the snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

from jsbackup.engine.link.bounded_queues import Relay
from jsbackup.engine.read.snapshot_transfer import Advance
from jsbackup.errors import JsBackupError
from jsbackup.formats.archive.archive import ArchiveV2Writer, archive_batches
from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
from jsbackup.formats.digest import MessageBatch
from jsbackup.formats.s2 import S2Encoder
from jsbackup.model import ArchivedConsumer, ConsumerState, JsonObject, StreamState
from jsbackup.planning.model import Action, PlannedConsumer, SendAs
from jsbackup.planning.selection.kept_messages import reshaped_messages
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.segments import state_to_restore
from jsbackup.repository.write.stream_objects import load_consumer, read_opaque
from jsbackup.times import format_time

__all__ = ["archive_of", "load_consumers", "writer_for"]

_AHEAD_BYTES = 4 << 20  # one batch, as read from segments


def load_consumers(objects: Objects, action: Action) -> list[PlannedConsumer]:
    """Return the planned consumers with their complete state. Raises as `pending_acks.load_consumer`."""
    whole = []
    backups = {action.reshape.consumer_name(consumer.name): consumer for consumer in action.entry.consumers}
    for planned in action.consumers:
        if planned.pending is not None:
            loaded = load_consumer(objects, backups[planned.consumer.name])
            planned = replace(planned, consumer=replace(planned.consumer, state=loaded.state), pending=None)
        whole.append(planned)
    return whole


def archive_of(
    objects: Objects,
    action: Action,
    config: JsonObject,
    consumers: Sequence[PlannedConsumer],
    *,
    secret: bytes,
    advance: Advance,
    hurried: Callable[[], bool],
    watch: Callable[[Iterable[MessageBatch]], Iterable[MessageBatch]] = iter,
) -> Iterator[bytes]:
    """Yield the archive as the server reads it, in S2 frames; `secret` is the key for hashing values. What is sent
    passes `watch`.

    While it is `hurried`, nothing is compressed. Blocks: meant for a worker thread. Another one reads and decodes
    ahead.
    """
    if action.wire is SendAs.OPAQUE:
        for piece in read_opaque(objects, action.entry.opaque):
            yield piece
            advance(len(piece), 0)
        return
    writer = writer_for(action, config, state_to_restore(action.entry), consumers)
    batches = _read_ahead(reshaped_messages(objects, action.entry, action.reshape, secret))
    with closing(batches):
        yield from archive_batches(watch(batches), writer, advance, S2Encoder(hurried))


def _read_ahead(batches: Iterator[MessageBatch]) -> Generator[MessageBatch]:
    """Yield the same batches, made in a separate thread. Raises the errors of making them."""
    relay: Relay[MessageBatch] = Relay(_AHEAD_BYTES)

    def read() -> None:
        try:
            for batch in batches:
                relay.put(batch, batch.nbytes)
        finally:
            if isinstance(batches, Generator):  # it holds memory of the budget
                batches.close()

    def end(done: Future[None]) -> None:
        error = done.exception()
        if error is None:
            relay.close()
        else:
            relay.abort(error)

    pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
    pool.submit(read).add_done_callback(end)
    try:
        yield from relay
    finally:
        relay.abort(JsBackupError("the restore was given up"))
        pool.shutdown(wait=False)


def writer_for(
    action: Action, config: JsonObject, state: StreamState, consumers: Sequence[PlannedConsumer]
) -> ArchiveV1Writer | ArchiveV2Writer:
    """Return the writer for the archive of a stream with this state.

    A stream with altered messages gets a new creation time. An unaltered one keeps its own: by that servers of 2.15
    recognize it as the origin of its copies, and backups recognize that they have stored it.
    """
    archived = [planned.consumer for planned in consumers]
    if action.wire is SendAs.V1:
        created = format_time(time.time_ns()) if action.alters else action.entry.created
        writer = ArchiveV1Writer(config, created, state, archived)
        writer.set_sources(
            (" ".join(start.key), start.sequence, start.identity)
            for start in action.starts
            if start.told and start.sequence is not None
        )
        return writer
    # In v2 every consumer has a state. One that starts at the first message has delivered nothing; others are created
    # by the API after the messages.
    starting = ConsumerState()
    archived = [replace(c, state=c.state or starting) for c in archived if c.state or _starts_at_first(c)]
    return ArchiveV2Writer(state, archived)


def _starts_at_first(consumer: ArchivedConsumer) -> bool:
    return bool(consumer.config.get("deliver_policy", "all") == "all")
