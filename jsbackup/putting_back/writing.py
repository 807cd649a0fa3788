"""Write planned messages, in order, a few in flight, each acknowledged; then read them back and compare.

A message whose subject keeps one value, or has little room, is only stored if the last one of its subject is still the
one that the plan has seen, or that was written here (`Nats-Expected-Last-Subject-Sequence`). So no concurrent writer is
lost: the message is a conflict then.

A file of an object store is written as clients do (nats.go `object.go`, ADR-20): its chunks under a new nuid, then its
description, which replaces the one before, then the chunks of the old file are purged. The chunks are read back and
their digest compared before the description makes them a file. If anything fails before, they are purged again, and the
file at the target is the old one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice

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
from jsbackup.look.message import LookedUp
from jsbackup.names import OBJECT_STREAM
from jsbackup.protocol.headers import NO_RESPONDERS, parse_status
from jsbackup.protocol.pub_ack import PubAck, decode_ack
from jsbackup.protocol.responses import ErrCode, as_target_error
from jsbackup.putting_back.chosen import ChosenMessages
from jsbackup.putting_back.headers import ORIGIN_HEADER, MessageOrigin, content_of, new_block, origin_of_message
from jsbackup.putting_back.model import Fate, PutBackMessage, PutBackPlan, PutBackReport, PutBackRun
from jsbackup.putting_back.plan import object_prefix
from jsbackup.readable import format_count
from jsbackup.repository.objects import Objects

__all__ = ["write_messages", "write_object"]

_IN_FLIGHT = 64
_IN_FLIGHT_BYTES = 4 << 20
_AT_ONCE = 64
_WAIT_SECONDS = 3.0
_WRONG_LAST = (ErrCode.WRONG_LAST_SEQUENCE, ErrCode.WRONG_LAST_SEQUENCE_IN_FLIGHT)
_CHUNKS_IN_FLIGHT = 8
_NUID_BYTES = 11  # 22 characters, as many as clients use
_PURGE_SECONDS = 5.0
_STORE_FAILED = 10077  # such as "maximum messages exceeded"
_MEANWHILE = "another client wrote it in the meantime"
_AGAIN = "Run the same command again: it goes on with what is missing."
# With these errors a message was certainly not stored.
_NOT_STORED = (ApiError, NatsNoResponders, NatsPermissionDenied, TargetConflict)


async def _publish(js: JetStream, stream: str, subject: str, data: bytes, *, block: bytes) -> PubAck:
    """Publish a message, and return its acknowledgement.

    Raises:
        ApiError: the stream did not store it; TargetConflict: for lack of space, or because of its limits.
        IntegrityError: another stream did.
        NatsError: there was no answer; the message may have been stored.
    """
    answer = None
    with suppress(NatsNoResponders):
        answer = await js.link.request(subject, data, js.timeout_seconds, block)
    status = parse_status(answer.headers) if answer is not None and not answer.data else None
    if answer is None or (status is not None and status.code == NO_RESPONDERS):
        hint = f"See the subjects of stream {stream}."
        raise NatsNoResponders(f"no stream listens to {subject} any more", hint=hint)
    try:
        ack = decode_ack(answer.data, subject)
    except ApiError as error:
        if error.err_code == _STORE_FAILED:
            raise TargetConflict(f"stream {stream} did not store a message: {error.message}") from error
        raise as_target_error(error) from error
    if ack.stream != stream:
        raise IntegrityError(
            f"a message on {subject} was stored by stream {ack.stream}, not {stream}, as message {ack.sequence}",
            hint=f"Remove it there: nats stream rmm {ack.stream} {ack.sequence}.",
        )
    return ack


def _expecting(stream: str, origin: MessageOrigin, expected: int | None) -> list[tuple[str, str]]:
    """Return the headers that are added."""
    added = [(ORIGIN_HEADER, str(origin)), ("Nats-Expected-Stream", stream)]
    if expected is not None:
        added.append(("Nats-Expected-Last-Subject-Sequence", str(expected)))
    return added


def _is_overtaken(error: JsBackupError) -> bool:
    """Return whether a message was not stored because another one came before it."""
    return isinstance(error, ApiError) and error.err_code in _WRONG_LAST


async def write_messages(js: JetStream, chosen: ChosenMessages, plan: PutBackPlan, run: PutBackRun) -> PutBackReport:
    """Write what is planned. `run` says what was written, also if it fails or is interrupted.

    Raises the errors of `_publish`, and of `ChosenMessages`; the message says how much was written before. Raises
    IntegrityError if a message is another one when it is read back.
    """
    name, planned = plan.target.name, {one.sequence: one for one in plan.writes}
    pending: dict[asyncio.Task[int | None], int] = {}  # with the sizes of their messages
    last: dict[str, asyncio.Task[int | None]] = {}  # of subjects that are watched: who writes the last one

    async def write(one: PutBackMessage, message: LookedUp, before: asyncio.Task[int | None] | None) -> int | None:
        """Write a message after `before`; return the last sequence of its subject then. None if that is not known, so
        that no other one of the subject may be written.
        """
        expected = one.expected if before is None else await before
        if before is not None and expected is None:
            run.record(one, Fate.CONFLICT, reason=_MEANWHILE)
            return None
        added = _expecting(name, origin_of_message(plan.manifest.id, plan.entry.name, message), expected)
        block = new_block(message.headers, added, stored_ns=message.timestamp_ns, now_ns=time.time_ns())
        try:
            ack = await _publish(js, name, one.subject, message.data, block=block)
        except ApiError as error:
            if one.expected is None or not _is_overtaken(error):
                raise
            run.record(one, Fate.CONFLICT, reason=_MEANWHILE)
            return None
        run.watcher.advance(name, one.size, 1)
        if ack.duplicate:
            reason = f"the server has stored its message id before, as message {ack.sequence}"
            run.record(one, Fate.DUPLICATE, ack.sequence, reason=reason)
            return expected
        run.record(one, Fate.WRITTEN, ack.sequence)
        return ack.sequence

    async def make_room(most: int, most_bytes: int = 1) -> None:
        """Wait until less is under way. Raises what has failed."""
        while pending and (len(pending) >= most or sum(pending.values()) >= most_bytes):
            for task in (await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED))[0]:
                task.result()
                del pending[task]

    run.watcher.start(name, sum(one.size for one in plan.writes), len(planned))
    try:
        try:
            messages = chosen.at(planned.keys())
            while batch := await in_thread(_next, messages):
                for message in batch:
                    await make_room(_IN_FLIGHT, _IN_FLIGHT_BYTES)
                    one = planned[message.sequence]
                    # The order of messages is the order in which their tasks begin.
                    task = asyncio.create_task(write(one, message, last.get(one.subject)))
                    pending[task] = one.size
                    if one.expected is not None:
                        last[one.subject] = task
            await make_room(1)
        finally:
            if pending:  # after an error or an interruption, for answers that are under way
                answered, others = await asyncio.wait(pending, timeout=_WAIT_SECONDS)
                for task in others:
                    task.cancel()
                for task in answered:
                    task.exception()  # marked as retrieved
        if lacking := planned.keys() - run.done.keys():
            raise IntegrityError(f"{len(lacking)} planned messages are not in the backup any more")
    except JsBackupError as error:
        done = f"{run.written:,} of {format_count(len(planned), 'message')} written"
        failed = error.with_message(f"{error.message}; {done}")
        raise (failed.with_more_hint(_AGAIN) if run.written else failed) from error
    finally:
        run.watcher.finish(name)

    async def is_replaced(message: PutBackMessage) -> bool:
        stored = await js.message(name, message.as_sequence or 0)
        if stored is not None and content_of(stored.subject, stored.headers, stored.data) != message.content:
            raise IntegrityError(
                f"message {stored.sequence} of stream {name} is not what was written",
                hint="Something on the way to the stream has changed it, such as a mapping of subjects.",
            )
        return stored is None

    return run.report(plan, sum(await gather_some(_AT_ONCE, is_replaced, run.report(plan).written)))


def _next(messages: Iterator[LookedUp]) -> list[LookedUp]:
    """Return the next few messages, none at the end."""
    found: list[LookedUp] = []
    size = 0
    for message in islice(messages, _IN_FLIGHT):
        found.append(message)
        size += len(message.data)
        if size >= _IN_FLIGHT_BYTES:
            break
    return found


async def write_object(js: JetStream, objects: Objects, plan: PutBackPlan, run: PutBackRun) -> PutBackReport:
    """Write the planned file. Raises the errors of `_publish` and `ObjectBucket.content`; IntegrityError if the chunks
    are not the same when they are read back. The file at the target is the old one then.
    """
    entry, name, old = plan.file, plan.target.name, plan.replaces
    assert entry is not None
    [one] = plan.writes
    nuid = secrets.token_hex(_NUID_BYTES)
    chunk_subject = f"{object_prefix(name)}.C.{nuid}"
    description = plan.description | {"bucket": name.removeprefix(OBJECT_STREAM)}
    if entry.chunks:
        description["nuid"] = nuid
    data = json.dumps(description, ensure_ascii=False, separators=(",", ":")).encode()
    origin = MessageOrigin(plan.manifest.id, plan.entry.name, entry.sequence, entry.modified_ns)
    added = [("Nats-Rollup", "sub"), *_expecting(name, origin, one.expected)]
    useless = True  # whether the chunks are, if this ends now
    try:
        pieces = ObjectBucket(objects, plan.manifest, plan.entry).content(entry)
        await _write_chunks(js, name, chunk_subject, pieces, file=one.name)
        block = new_block(None, added, stored_ns=0, now_ns=0)
        useless = False  # without an answer, it is not known whether the description was stored
        ack = await _publish(js, name, one.subject, data, block=block)
    except JsBackupError as error:
        useless = useless or isinstance(error, _NOT_STORED)
        if not _is_overtaken(error):
            said = "the file was not written" if useless else "it is not known whether the file was written"
            raise error.with_message(f"{error.message}; {said}") from error
        run.record(one, Fate.CONFLICT, reason=_MEANWHILE)
    else:
        run.record(one, Fate.WRITTEN, ack.sequence)
    finally:
        if useless and entry.chunks and not await _purge(js, name, chunk_subject):
            run.notes.append(f"chunks that belong to no file are left on {chunk_subject}")
    if not run.written:
        return run.report(plan)
    if old is not None and old.chunks and not old.deleted and not await _purge(js, name, old.chunk_subject):
        run.notes.append(f"the chunks of the file before are left on {old.chunk_subject}")
    stored = await js.message(name, ack.sequence)
    if stored is not None and stored.data != data:
        raise IntegrityError(f"the description of file {one.name} is not what was written")
    return run.report(plan, replaced=int(stored is None))


async def _write_chunks(js: JetStream, stream: str, subject: str, pieces: Iterator[bytes], *, file: str) -> None:
    """Write the chunks in order, read them back, and compare."""
    sequences: list[int] = []
    sent = hashlib.sha256()
    block = new_block(None, [("Nats-Expected-Stream", stream)], stored_ns=0, now_ns=0)
    while group := await in_thread(lambda: list(islice(pieces, _CHUNKS_IN_FLIGHT))):
        acks = await asyncio.gather(*(_publish(js, stream, subject, one, block=block) for one in group))
        sequences += [ack.sequence for ack in acks]
        for one in group:
            sent.update(one)
    stored = hashlib.sha256()
    for at in range(0, len(sequences), _CHUNKS_IN_FLIGHT):
        some = sequences[at : at + _CHUNKS_IN_FLIGHT]
        for chunk in await gather_some(_CHUNKS_IN_FLIGHT, partial(js.message, stream), some):
            if chunk is None:
                raise IntegrityError(f"stream {stream} lost a chunk of file {file} while it was written")
            stored.update(chunk.data)
    if sequences != sorted(sequences) or stored.digest() != sent.digest():
        raise IntegrityError(f"the chunks of file {file} are not what was written")


async def _purge(js: JetStream, stream: str, subject: str) -> bool:
    """Remove chunks that no description names; return whether that was done. Otherwise they take space, no more."""
    with suppress(NatsError, TimeoutError):
        async with asyncio.timeout(_PURGE_SECONDS):
            await js.purge_subject(stream, subject)
            return True
    return False
