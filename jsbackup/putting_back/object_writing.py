"""Write one file of an object store as clients do (nats.go `object.go`, ADR-20): its chunks under a new nuid, then its
description, which replaces the one before, then the chunks of the old file are purged.

The chunks are read back and their digest compared before the description makes them a file. If anything fails before,
they are purged again, and the file at the target is the old one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.threads import in_thread
from jsbackup.engine.link.workers import gather_some
from jsbackup.errors import (
    ApiError,
    IntegrityError,
    JsBackupError,
    NatsError,
    NatsNoResponders,
    NatsPermissionDenied,
    TargetConflict,
)
from jsbackup.look.buckets.object_bucket import ObjectBucket
from jsbackup.names import OBJECT_STREAM
from jsbackup.putting_back.headers import MessageOrigin, new_block
from jsbackup.putting_back.model import PutBackPlan, PutBackReport, Wrote
from jsbackup.putting_back.object_plan import description_of, file_at, object_prefix
from jsbackup.putting_back.publishing import WritingRun, expecting, is_overtaken, publish_one
from jsbackup.repository.objects import Objects

__all__ = ["write_object"]

_CHUNKS_IN_FLIGHT = 8
_NUID_BYTES = 11  # 22 characters, as many as clients use
_PURGE_SECONDS = 5.0
# With these errors a message was certainly not stored.
_NOT_STORED = (ApiError, NatsNoResponders, NatsPermissionDenied, TargetConflict)


async def write_object(js: JetStream, objects: Objects, plan: PutBackPlan, run: WritingRun) -> PutBackReport:
    """Write the planned file. Raises the errors of `publish_one` and `ObjectBucket.content`; IntegrityError if the
    chunks are not the same when they are read back. The file at the target is the old one then.
    """
    entry, target = plan.file, plan.target
    assert entry is not None
    [one] = plan.writes
    before = await file_at(js, target.name, one.name)
    nuid = secrets.token_hex(_NUID_BYTES)
    chunk_subject = f"{object_prefix(target.name)}.C.{nuid}"
    description = await in_thread(description_of, objects, plan, entry)
    description |= {"bucket": target.name.removeprefix(OBJECT_STREAM)}
    if entry.chunks:
        description["nuid"] = nuid
    data = json.dumps(description, ensure_ascii=False, separators=(",", ":")).encode()
    origin = MessageOrigin(plan.manifest.id, plan.entry.name, entry.sequence, entry.modified_ns)
    added = [("Nats-Rollup", "sub"), *expecting(target, origin, one.expected)]
    useless = True  # whether the chunks are, if this ends now
    try:
        pieces = ObjectBucket(objects, plan.manifest, plan.entry).content(entry)
        await _write_chunks(js, plan, chunk_subject, pieces, name=one.name)
        block = new_block(None, added, stored_ns=0, now_ns=0)
        useless = False  # without an answer, it is not known whether the description was stored
        ack = await publish_one(js, target, one.subject, data, block=block)
    except JsBackupError as error:
        useless = useless or isinstance(error, _NOT_STORED)
        if not is_overtaken(error):
            said = "the file was not written" if useless else "it is not known whether the file was written"
            raise error.with_message(f"{error.message}; {said}") from error
        run.conflicts.append(one)
    finally:
        if useless and entry.chunks and not await _purge(js, target.name, chunk_subject):
            run.notes.append(f"chunks that belong to no file are left on {chunk_subject}")
    if run.conflicts:
        return run.report(plan)
    run.written.append(Wrote(one, ack.sequence))
    old = None if before is None else before.entry
    if old is not None and old.chunks and not old.deleted and not await _purge(js, target.name, old.chunk_subject):
        run.notes.append(f"the chunks of the file before are left on {old.chunk_subject}")
    found = await js.message(target.name, ack.sequence)
    if found is not None and found.data != data:
        raise IntegrityError(f"the description of file {one.name} is not what was written")
    return run.report(plan, replaced=int(found is None))


async def _write_chunks(js: JetStream, plan: PutBackPlan, subject: str, pieces: Iterator[bytes], *, name: str) -> None:
    """Write the chunks in order, read them back, and compare."""
    sequences: list[int] = []
    sent = hashlib.sha256()
    while group := await in_thread(_some, pieces):
        block = new_block(None, [("Nats-Expected-Stream", plan.target.name)], stored_ns=0, now_ns=0)
        acks = await asyncio.gather(*(publish_one(js, plan.target, subject, one, block=block) for one in group))
        sequences += [ack.sequence for ack in acks]
        for one in group:
            sent.update(one)
    stored = hashlib.sha256()
    for at in range(0, len(sequences), _CHUNKS_IN_FLIGHT):
        ask = partial(js.message, plan.target.name)
        for found in await gather_some(_CHUNKS_IN_FLIGHT, ask, sequences[at : at + _CHUNKS_IN_FLIGHT]):
            if found is None:
                raise IntegrityError(f"stream {plan.target.name} lost a chunk of file {name} while it was written")
            stored.update(found.data)
    if sequences != sorted(sequences) or stored.digest() != sent.digest():
        raise IntegrityError(f"the chunks of file {name} are not what was written")


def _some(pieces: Iterator[bytes]) -> list[bytes]:
    found: list[bytes] = []
    for piece in pieces:
        found.append(piece)
        if len(found) == _CHUNKS_IN_FLIGHT:
            break
    return found


async def _purge(js: JetStream, stream: str, subject: str) -> bool:
    """Remove chunks that no description names; return whether that was done. Otherwise they take space, no more."""
    with suppress(NatsError, TimeoutError):
        async with asyncio.timeout(_PURGE_SECONDS):
            await js.purge_subject(stream, subject)
            return True
    return False
