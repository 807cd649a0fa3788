"""Stored objects once more, from the messages of a living server: for `repository/repair.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing

from jsbackup.config import Connection
from jsbackup.engine.consume import read_messages
from jsbackup.engine.jetstream import JetStream, connect_jetstream
from jsbackup.engine.source import describe_source
from jsbackup.errors import ApiError, FormatError, IntegrityError, JsBackupError, UnsupportedError
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.manifest import SegmentRef, Source
from jsbackup.repository.objects import MAX_OBJECT_BYTES, Objects, sha256_of
from jsbackup.repository.repair import Broken, Outcome, put_back
from jsbackup.repository.repository import Repository
from jsbackup.repository.segments import SegmentWriter
from jsbackup.stores.memory import MemoryStore

__all__ = ["repair_from_server"]


async def repair_from_server(
    connection: Connection, repository: Repository, broken: Sequence[Broken], progress: Progress, *, dry_run: bool
) -> list[Outcome | JsBackupError]:
    """What became of each object, or why nothing did. With `dry_run` none is put, and those that could be are `MENDED`.

    Raises:
        NatsError: the server cannot be asked.
        StoreError: the store does not answer.
    """
    outcomes: list[Outcome | JsBackupError] = []
    async with connect_jetstream(connection) as js:
        source = await describe_source(js, connection)
        for one in broken:
            try:
                data = await _read_object(js, source, repository, one, progress)
            except (IntegrityError, UnsupportedError, ApiError) as error:
                outcomes.append(error)
                continue
            outcomes.append(
                Outcome.MENDED if dry_run else await asyncio.to_thread(put_back, repository.store, one.ref, data)
            )
    return outcomes


async def _read_object(
    js: JetStream, source: Source, repository: Repository, broken: Broken, progress: Progress
) -> bytes:
    """The bytes of an object, made of what the server has. Raises IntegrityError if they do not come out the same."""
    ref, stream = broken.ref, broken.stream
    if not isinstance(ref, SegmentRef):
        raise IntegrityError("a server has no messages for it")
    if repository.objects.sealing.suffix:
        raise IntegrityError(
            "what is encrypted comes out as other bytes each time; the next backup stores these messages anew"
        )
    info = await js.stream(stream.name)
    if layout.incarnation(source.cluster, source.account, stream.name, info.created) != stream.incarnation:
        raise IntegrityError(f"the stream {stream.name} of this server is another one")
    if not info.state.first_seq <= ref.first_seq <= ref.last_seq <= info.state.last_seq:
        raise IntegrityError("the server does not have all of these messages any more")
    made = Objects(MemoryStore())
    folder = layout.parse_segment_key(ref.key).folder
    progress.start(stream.name, ref.bytes, ref.messages)
    try:
        with closing(SegmentWriter(made, folder, segment_bytes=MAX_OBJECT_BYTES)) as writer:
            messages = read_messages(
                js,
                info,
                lambda size, count: progress.advance(stream.name, size, count),
                first=ref.first_seq,
                last=ref.last_seq,
            )
            async for batch in messages:
                await asyncio.to_thread(writer.add, batch)
            found = await asyncio.to_thread(writer.finish)
    except FormatError as error:
        raise IntegrityError(error.message) from error
    finally:
        progress.finish(stream.name)
    if len(found) != 1 or found[0].digest != ref.digest:
        raise IntegrityError("the server does not have all of these messages any more")
    data = made.store.get(found[0].key)
    if sha256_of(data) != ref.sha256:
        raise IntegrityError(
            "the server has the messages, but they come out as other bytes; the next backup stores them anew"
        )
    return data
