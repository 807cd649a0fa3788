"""Store one stream: capture it, complete its consumers from the API, describe it for the manifest."""

from __future__ import annotations

import logging
from dataclasses import replace

from jsbackup.engine.backup.run import BackupRun
from jsbackup.engine.backup.stored import Stored
from jsbackup.engine.backup.stream_capture import capture_stream
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.consumers import KnownConsumer, as_backed_up, merge_consumers
from jsbackup.errors import TransferError
from jsbackup.model import Fidelity
from jsbackup.planning.interrupted import about_leftover
from jsbackup.protocol.info import StreamInfo, stored_config
from jsbackup.repository.manifest import (
    ArchiveFormat,
    Captured,
    Source,
    StreamBackup,
    total_of,
)
from jsbackup.repository.origin import origin_of
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.repository.write.receipts import Receipts
from jsbackup.repository.write.stream_objects import store_consumer
from jsbackup.times import format_time

__all__ = ["back_up_stream"]

_log = logging.getLogger(__name__)


async def back_up_stream(
    run: BackupRun,
    js: JetStream,
    info: StreamInfo,
    *,
    source: Source,
    previous: StreamBackup | None,
    receipts: Receipts,
    attempts: int = 3,
) -> StoredStream:
    """Store one stream, whose last backup is `previous`; `receipts` know what was stored since.

    One that was created again since `info` is read anew, in that many attempts. Raises the error if it fails; objects
    stored by then are unused.
    """
    repository, options = run.repository, run.options
    incarnation = source.incarnation(info.name, info.created)
    folder = repository.objects.sealing.folder(info.name, incarnation)
    begun_ns = run.clock_ns()
    if options.config_only:
        stored = Stored(ArchiveFormat.CONFIG, info.state)
    else:
        origin = origin_of(source)
        stored = await capture_stream(run, js, folder, info.name, origin=origin, previous=previous, receipts=receipts)
        assert stored.read is not None
        if stored.created != info.created:
            if attempts == 1:
                raise TransferError(f"stream {info.name} was deleted and created again while it was read")
            now = await js.stream(info.name)
            return await back_up_stream(
                run, js, now, source=source, previous=None, receipts=receipts, attempts=attempts - 1
            )
        _log.info("stream %s: %s: %s", info.name, stored.read.how, stored.read.why)
    marked = about_leftover(info.config)
    warnings = [*marked, *stored.warnings]
    known: list[KnownConsumer] = []
    lost: set[str] = set()
    if options.consumers:
        inventory = stored.inventory or await js.consumers(info.name)
        known = merge_consumers(stored.archived, inventory, stored.state.last_seq)
        lost = {*inventory.missing, *inventory.offline} - {item.consumer.name for item in known}
        warnings += [f"consumer {name} did not answer and is not in the backup" for name in sorted(lost)]
        if options.config_only:
            known = [_config_only(consumer) for consumer in known]
        if stored.archive_format is ArchiveFormat.OPAQUE:
            known = [_beside_opaque(consumer) for consumer in known]
    totals = total_of(stored.segments)
    config = stored_config(info.config if stored.config is None else stored.config)
    stream = StreamBackup(
        name=info.name,
        incarnation=incarnation,
        config=config,
        created=info.created,
        state=stored.state,
        captured=Captured.of(totals, format_time(begun_ns), format_time(run.clock_ns())),
        archive_format=stored.archive_format,
        digest=totals.digest,
        segments=stored.segments,
        consumers=tuple(store_consumer(repository.objects, folder, as_backed_up(item)) for item in known),
        opaque=stored.opaque,
        warnings=tuple(warnings),
        read=stored.read,
        lost=stored.lost,
        life=format_time(begun_ns) if stored.goes_back else previous.life if previous is not None else "",
    )
    incomplete = bool(lost or marked) or stored.incomplete or stored.archive_format is ArchiveFormat.OPAQUE
    return StoredStream(stream, stored.reused, stored.stored_bytes, incomplete=incomplete)


def _config_only(known: KnownConsumer) -> KnownConsumer:
    return KnownConsumer(replace(known.consumer, state=None), Fidelity.CONFIG_ONLY)


def _beside_opaque(known: KnownConsumer) -> KnownConsumer:
    return (
        replace(known, reason="its state is inside the snapshot, which was stored undecoded") if known.reason else known
    )
