"""Make stored objects again from the messages of a live server, for `repository/write/repair.py`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial

from jsbackup.config.connection import Connection
from jsbackup.engine.link.concurrency import in_thread, with_own_threads
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.link.source import describe_source
from jsbackup.engine.read.consume import read_into
from jsbackup.errors import ApiError, FormatError, IntegrityError, JsBackupError, UnsupportedError
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.manifest import SegmentRef, Source
from jsbackup.repository.objects import MAX_OBJECT_BYTES, Objects, sha256_of
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.repair import Broken, RepairOutcome, put_in_place
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.stores.memory import MemoryStore

__all__ = ["repair_from_server"]


@with_own_threads
async def repair_from_server(
    connection: Connection, repository: Repository, broken: Sequence[Broken], progress: Progress, *, dry_run: bool
) -> list[RepairOutcome | JsBackupError]:
    """Return the outcome for each object, or the error. With `dry_run` nothing is put; objects that could be are
    `MENDED`.

    Raises:
        NatsError: the server does not answer.
        StoreError: the store does not answer.
    """
    outcomes: list[RepairOutcome | JsBackupError] = []
    async with connect_jetstream(connection) as js:
        source = await describe_source(js, connection)
        for broken_segment in broken:
            try:
                data = await _read_object(js, source, repository, broken_segment, progress=progress)
                put = None if dry_run else await in_thread(put_in_place, repository.store, broken_segment.ref, data)
            except (IntegrityError, UnsupportedError, ApiError) as error:
                outcomes.append(error)
            else:
                outcomes.append(put or RepairOutcome.MENDED)
    return outcomes


async def _read_object(
    js: JetStream, source: Source, repository: Repository, broken: Broken, *, progress: Progress
) -> bytes:
    """Return an object's bytes, made from the server's messages. Raises IntegrityError if they are not the same."""
    ref, stream = broken.ref, broken.stream
    if not isinstance(ref, SegmentRef) or stream is None:
        raise IntegrityError("no server can supply it")
    if repository.objects.sealing.suffix:
        raise IntegrityError("encryption never gives the same bytes twice")
    info = await js.stream(stream.name)
    if source.incarnation(stream.name, info.created) != stream.incarnation:
        raise IntegrityError(f"stream {stream.name} of this server is a different stream")
    if not info.state.first_seq <= ref.first_seq <= ref.last_seq <= info.state.last_seq:
        raise IntegrityError("the server no longer has all of these messages")
    made = Objects(MemoryStore())
    folder = layout.parse_segment_key(ref.key).folder
    progress.start(stream.name, ref.bytes, ref.messages)
    try:
        with closing(SegmentWriter(made, folder, segment_bytes=MAX_OBJECT_BYTES)) as writer:
            advance = partial(progress.advance, stream.name)
            await read_into(js, info, writer.add, advance, first=ref.first_seq, last=ref.last_seq)
            segments = await in_thread(writer.finish)
    except FormatError as error:
        raise IntegrityError(error.message) from error
    finally:
        progress.finish(stream.name)
    if len(segments) != 1 or segments[0].digest != ref.digest:
        raise IntegrityError("the server no longer has all of these messages")
    data = made.store.get(segments[0].key)
    if sha256_of(data) != ref.sha256:
        raise IntegrityError("the server has the messages, but storing them does not give the same bytes")
    return data
