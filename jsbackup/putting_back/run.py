"""Put something back: connect, find the backup, plan, and write unless something is refused.

Values that the backup does not know any more, but another one: taken from there, or the command that does so.

Messages are written in order, a few in flight, each acknowledged; then they are read back and compared. A message whose
subject keeps one value, or has little room, is only stored if the last one of its subject is still the one that the
plan has seen, or that was written here (`Nats-Expected-Last-Subject-Sequence`). So no concurrent writer is lost: the
message is a conflict then.

One command at a time appends messages to a stream that are put back, so that none is written twice. While it writes, a
command has a consumer of a fixed name, which the server creates only once: an ephemeral one, in memory, to which a
single message is delivered, without its payload. It goes with the command's connection, and after a killed command by
itself. Nothing else is needed of the user than what reading what was put back before needs. A user who may not create
consumers has no turn, and neither has one of a stream that takes no more of them.

A turn comes after the plan. So what has come to the stream since the plan is read again, before anything is written and
afterwards (`arrivals_at`). What is there twice then was written by a command without a turn.

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
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice

from jsbackup.engine.link.concurrency import gather_some, in_thread, with_own_threads
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.link.source import FindBackup, found_for
from jsbackup.engine.read.consume import LEFT_SECONDS, PUT_BACK_DESCRIPTION
from jsbackup.errors import (
    ApiError,
    IncompleteError,
    IntegrityError,
    JsBackupError,
    NatsError,
    NatsNoResponders,
    NatsPermissionDenied,
    TargetConflict,
)
from jsbackup.look.buckets.bucket import KeyValueBucket
from jsbackup.look.buckets.bucket_series import find_series
from jsbackup.look.buckets.object_bucket import ObjectBucket
from jsbackup.look.message import LookedUp
from jsbackup.model import StreamState
from jsbackup.names import OBJECT_STREAM, is_subject
from jsbackup.protocol.headers import NO_RESPONDERS, parse_status
from jsbackup.protocol.responses import ErrCode, PubAck, as_target_error, decode_ack
from jsbackup.putting_back.chosen import ChosenMessages, find_entry
from jsbackup.putting_back.headers import ORIGIN_HEADER, MessageOrigin, content_of, new_block, origin_of_message
from jsbackup.putting_back.model import Fate, PutBackMessage, PutBackOptions, PutBackPlan, PutBackReport, PutBackRun
from jsbackup.putting_back.plan import arrivals_at, is_full, keeps_one, make_plan, object_prefix, subject_limit
from jsbackup.readable import format_count
from jsbackup.repository.crypto.keys import needed
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.objects import Objects
from jsbackup.repository.repository import Repository

__all__ = ["in_turn", "run_put_back", "write_in_turn", "write_messages", "write_object"]

_NAME = "jsbackup-put-back"
_HOUR_NS = 3_600_000_000_000
_IN_FLIGHT = 64
_IN_FLIGHT_BYTES = 4 << 20
_AT_ONCE = 64
_WAIT_SECONDS = 3.0
# Another message came before.
_WRONG_LAST = (ErrCode.WRONG_LAST_SEQUENCE, ErrCode.WRONG_LAST_SEQUENCE_IN_FLIGHT)
_CHUNKS_IN_FLIGHT = 8
_NUID_BYTES = 11  # 22 characters, as many as clients use
_PURGE_SECONDS = 5.0
_STORE_FAILED = 10077  # such as "maximum messages exceeded"
_MEANWHILE = "another client wrote it in the meantime"
_AGAIN = "Run the same command again: it goes on with what is missing."
# With these errors a message was certainly not stored.
_NOT_STORED = (ApiError, NatsNoResponders, NatsPermissionDenied, TargetConflict)


@with_own_threads
async def run_put_back(run: PutBackRun, repository: Repository, backup: Manifest | FindBackup) -> PutBackReport:
    """Plan, and write what is planned; nothing if `dry_run` is set or the plan is refused, which the report then has.

    Raises:
        UsageError, JsBackupError, IncompleteError, PlanRefused: as `make_plan`; nothing was written.
        KeyUnavailable: the repository is encrypted, and no key that reads it was given; nothing was written.
        IntegrityError, KeyUnavailable, StoreError: the backup cannot be read. The message says what was written.
        NatsError: the server does not answer, or with an error. Likewise.
        TargetConflict: another command puts messages back into the stream; nothing was written. Or the stream has no
            room any more; likewise.
    """
    if repository.descriptor.recipient is not None:
        needed(repository.secret)
    async with connect_jetstream(run.connection) as js:
        manifest = await found_for(js, run.connection, backup)
        plan = await _plan(js, repository, run, manifest)
        if run.dry_run or plan.refusal() is not None or not plan.writes:
            return run.report(plan)
        if plan.file is not None:
            return await write_object(js, repository.objects, plan, run)
        chosen = ChosenMessages(repository.objects, plan.manifest, plan.entry, plan.options)
        write = write_messages if keeps_one(plan.target) else write_in_turn
        return await write(js, chosen, plan, run)


async def _plan(js: JetStream, repository: Repository, run: PutBackRun, manifest: Manifest) -> PutBackPlan:
    """Return the plan, by another backup where this one cannot say what keys were.

    Raises UsageError, IncompleteError, PlanRefused, IntegrityError, NatsError, StoreError.
    """
    plan, problem = None, None
    try:
        plan = await make_plan(
            js, repository.objects, manifest, run.options, now_ns=time.time_ns(), watcher=run.watcher
        )
    except IncompleteError as error:
        problem = error
    if run.around and (plan is None or plan.unknown):
        around = await in_thread(_find_around, repository, manifest, run.options)
        if around is not None:
            another, options, notes = around
            plan = await make_plan(js, repository.objects, another, options, now_ns=time.time_ns())
            return replace(plan, notes=(*notes, *plan.notes))
    if plan is None:
        assert problem is not None
        raise problem
    return plan


def _find_around(
    repository: Repository, manifest: Manifest, options: PutBackOptions
) -> tuple[Manifest, PutBackOptions, list[str]] | None:
    """Return the one backup around the moment that has all of the chosen keys, as `kv latest --at` finds them, the
    options that choose them there, and sentences about it; None if there is none.

    Raises:
        JsBackupError: by these backups, a key had no value.
        IntegrityError, KeyUnavailable, StoreError: they cannot be read.
    """
    at = options.at
    if at is None or not options.keys:
        return None
    series = find_series(repository, KeyValueBucket(repository.objects, manifest, find_entry(manifest, options)), at)
    places: set[tuple[str, bool]] = set()
    notes = []
    for key in options.keys:
        if not is_subject(key):
            if not series.after.keys(at, key).certain:
                return None
            places.add((series.after.manifest.id, False))
            notes.append(f"keys {key} are taken from backup {series.after.manifest.id}")
            continue
        try:
            value = series.value(key)
        except IncompleteError:
            return None
        backup, witness = value.bucket.manifest.id, value.witness
        places.add((backup, bool(witness)))
        proof = f"; as backup {witness} shows, it was not written until {at}" if witness else ""
        notes.append(f"revision {value.revision.revision} of {key} is in backup {backup}{proof}")
    if len(places) != 1:
        return None
    [(backup, is_proved)] = places
    if is_proved:  # it is from before the moment: what it has last is the value
        options = replace(options, at=None)
    return repository.manifest(backup, in_part=True), options, notes


# --- messages ---


@asynccontextmanager
async def in_turn(js: JetStream, stream: str) -> AsyncIterator[None]:
    """Keep other commands from putting messages back into the stream, if the server lets us.

    Raises TargetConflict if another one does; NatsError.
    """
    inbox = js.link.new_inbox()
    config = {
        "name": _NAME,
        "description": PUT_BACK_DESCRIPTION,
        "deliver_subject": inbox,
        "deliver_policy": "new",
        "replay_policy": "instant",
        "ack_policy": "explicit",
        "ack_wait": _HOUR_NS,
        "max_ack_pending": 1,
        "headers_only": True,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(LEFT_SECONDS * 1e9),
    }
    async with js.link.subscribe(inbox):
        try:
            await js.create_consumer(stream, config)
        except (ApiError, NatsPermissionDenied) as error:
            if isinstance(error, ApiError) and error.err_code in (
                ErrCode.CONSUMER_EXISTS,
                ErrCode.CONSUMER_NAME_IN_USE,
            ):
                raise TargetConflict(
                    f"nothing was written: another command is putting messages back into stream {stream}",
                    hint="Run this again when that command has ended; of a killed one, after "
                    f"{LEFT_SECONDS:.0f} seconds.",
                ) from error
            yield
            return
        try:
            yield
        finally:
            with suppress(NatsError):  # then it expires
                await js.delete_consumer(stream, _NAME)


async def write_in_turn(js: JetStream, chosen: ChosenMessages, plan: PutBackPlan, run: PutBackRun) -> PutBackReport:
    """Write what is planned and was not put back since.

    Raises TargetConflict, IntegrityError, NatsError, StoreError.
    """
    async with in_turn(js, plan.target.name):
        since = plan.target.state.last_seq + 1
        came, _ = await arrivals_at(js, plan, await js.stream(plan.target.name), since)
        for at, planned in enumerate(messages := list(plan.messages)):
            if planned.action is Fate.WRITE and (again := came.get(planned.origin)):
                reason = f"it was put back before, as message {again[-1]}"
                messages[at] = replace(planned, action=Fate.THERE, reason=reason, expected=None)
        plan = replace(plan, messages=tuple(messages))
        if not plan.writes:
            return run.report(plan)
        report = await write_messages(js, chosen, plan, run)
        try:
            return await _afterwards(js, report)
        except JsBackupError as error:
            done = f"{format_count(run.written, 'message')} were written and read back"
            raise error.with_message(f"{error.message}; {done}") from error


async def _afterwards(js: JetStream, report: PutBackReport) -> PutBackReport:
    """Return the report with what is the same now because another command wrote it too, and whether limits have removed
    messages that the plan did not expect.
    """
    plan, written = report.plan, report.written
    now, since = await js.stream(plan.target.name), plan.target.state.last_seq + 1
    origins, subjects = await arrivals_at(js, plan, now, since)
    twice = tuple(tuple(same) for message in written if len(same := origins.get(message.origin, ())) > 1)
    notes = list(report.notes)
    if twice:
        first = " and ".join(map(str, twice[0]))
        notes.append(
            f"another command put back the same: {format_count(len(twice), 'message')} of stream {plan.target.name} "
            f"twice, such as messages {first}; remove one of each (nats stream rmm)"
        )
    unwatched = {message.subject for message in written if message.expected is None}
    dropped = [] if plan.options.overwrite else list(_dropped(plan, now.state, {s: subjects[s] for s in unwatched}))
    return replace(report, twice=twice, dropped=bool(dropped), notes=(*notes, *dropped))


def _dropped(plan: PutBackPlan, now: StreamState, came: Mapping[str, int]) -> Iterator[str]:
    """Yield which limits of the stream have removed messages, because others were published since the plan. `came`: how
    many of the subjects that were written to and not watched.

    Subjects with little room were watched while they were written to. The others only come to their limit if others
    were published; which of them are gone again is not known.
    """
    name, limit, before = plan.target.name, subject_limit(plan.target), plan.target.state
    subjects = [subject for subject in sorted(came) if 0 < limit <= plan.counts.get(subject, 0) + came[subject]]
    if subjects:
        yield (
            f"stream {name} now has the {limit:,} messages that it keeps of a subject of "
            f"{format_count(len(subjects), 'subject')}, such as {subjects[0]}, because others were published "
            "meanwhile: older ones may be gone"
        )
    removed = before.messages + now.last_seq - before.last_seq - now.messages
    if removed > 0 and now.first_seq > before.first_seq and is_full(plan.target, now):
        yield (
            f"stream {name} has reached its limits, because others were published meanwhile: it begins with message "
            f"{now.first_seq:,}, not {before.first_seq:,}"
        )


async def write_messages(js: JetStream, chosen: ChosenMessages, plan: PutBackPlan, run: PutBackRun) -> PutBackReport:
    """Write what is planned. `run` says what was written, also if it fails or is interrupted.

    Raises the errors of `_publish`, and of `ChosenMessages`; the message says how much was written before. Raises
    IntegrityError if a message is another one when it is read back.
    """
    name, planned = plan.target.name, {write.sequence: write for write in plan.writes}
    pending: dict[asyncio.Task[int | None], int] = {}  # with the sizes of their messages
    last: dict[str, asyncio.Task[int | None]] = {}  # of subjects that are watched: who writes the last one

    async def write(
        planned_message: PutBackMessage, message: LookedUp, before: asyncio.Task[int | None] | None
    ) -> int | None:
        """Write a message after `before`; return the last sequence of its subject then. None if that is not known, so
        that no other one of the subject may be written.
        """
        expected = planned_message.expected if before is None else await before
        if before is not None and expected is None:
            run.record(planned_message, Fate.CONFLICT, reason=_MEANWHILE)
            return None
        added = _expecting(name, origin_of_message(plan.manifest.id, plan.entry.name, message), expected)
        block = new_block(message.headers, added, stored_ns=message.timestamp_ns, now_ns=time.time_ns())
        try:
            ack = await _publish(js, name, planned_message.subject, message.data, block=block)
        except ApiError as error:
            if planned_message.expected is None or error.err_code not in _WRONG_LAST:
                raise
            run.record(planned_message, Fate.CONFLICT, reason=_MEANWHILE)
            return None
        run.watcher.advance(name, planned_message.size, 1)
        if ack.duplicate:
            reason = f"the server has stored its message id before, as message {ack.sequence}"
            run.record(planned_message, Fate.DUPLICATE, as_sequence=ack.sequence, reason=reason)
            return expected
        run.record(planned_message, Fate.WRITTEN, as_sequence=ack.sequence)
        return ack.sequence

    async def make_room(most: int, most_bytes: int = 1) -> None:
        """Wait until less is under way. Raises what has failed."""
        while pending and (len(pending) >= most or sum(pending.values()) >= most_bytes):
            for task in (await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED))[0]:
                task.result()
                del pending[task]

    run.watcher.start(name, sum(write.size for write in plan.writes), len(planned))
    try:
        try:
            messages = chosen.at(planned.keys())
            while batch := await in_thread(_next, messages):
                for message in batch:
                    await make_room(_IN_FLIGHT, _IN_FLIGHT_BYTES)
                    planned_message = planned[message.sequence]
                    # The order of messages is the order in which their tasks begin.
                    task = asyncio.create_task(write(planned_message, message, last.get(planned_message.subject)))
                    pending[task] = planned_message.size
                    if planned_message.expected is not None:
                        last[planned_message.subject] = task
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
    looked_up: list[LookedUp] = []
    size = 0
    for message in islice(messages, _IN_FLIGHT):
        looked_up.append(message)
        size += len(message.data)
        if size >= _IN_FLIGHT_BYTES:
            break
    return looked_up


# --- a file ---


async def write_object(js: JetStream, objects: Objects, plan: PutBackPlan, run: PutBackRun) -> PutBackReport:
    """Write the planned file. Raises the errors of `_publish` and `ObjectBucket.content`; IntegrityError if the chunks
    are not the same when they are read back. The file at the target is the old one then.
    """
    entry, name, old = plan.file, plan.target.name, plan.replaces
    assert entry is not None
    [chunk] = plan.writes
    nuid = secrets.token_hex(_NUID_BYTES)
    chunk_subject = f"{object_prefix(name)}.C.{nuid}"
    description = plan.description | {"bucket": name.removeprefix(OBJECT_STREAM)}
    if entry.chunks:
        description["nuid"] = nuid
    data = json.dumps(description, ensure_ascii=False, separators=(",", ":")).encode()
    origin = MessageOrigin(plan.manifest.id, plan.entry.name, entry.sequence, entry.modified_ns)
    added = [("Nats-Rollup", "sub"), *_expecting(name, origin, chunk.expected)]
    useless = True  # whether the chunks are, if this ends now
    try:
        pieces = ObjectBucket(objects, plan.manifest, plan.entry).content(entry)
        await _write_chunks(js, name, chunk_subject, pieces, file=chunk.name)
        block = new_block(None, added, stored_ns=0, now_ns=0)
        useless = False  # without an answer, it is not known whether the description was stored
        ack = await _publish(js, name, chunk.subject, data, block=block)
    except JsBackupError as error:
        useless = useless or isinstance(error, _NOT_STORED)
        if not (isinstance(error, ApiError) and error.err_code in _WRONG_LAST):
            said = "the file was not written" if useless else "it is not known whether the file was written"
            raise error.with_message(f"{error.message}; {said}") from error
        run.record(chunk, Fate.CONFLICT, reason=_MEANWHILE)
    else:
        run.record(chunk, Fate.WRITTEN, as_sequence=ack.sequence)
    finally:
        if useless and entry.chunks and not await _purge(js, name, chunk_subject):
            run.notes.append(f"chunks that belong to no file are left on {chunk_subject}")
    if not run.written:
        return run.report(plan)
    if old is not None and old.chunks and not old.deleted and not await _purge(js, name, old.chunk_subject):
        run.notes.append(f"the chunks of the file before are left on {old.chunk_subject}")
    stored = await js.message(name, ack.sequence)
    if stored is not None and stored.data != data:
        raise IntegrityError(f"the description of file {chunk.name} is not what was written")
    return run.report(plan, replaced=int(stored is None))


async def _write_chunks(js: JetStream, stream: str, subject: str, pieces: Iterator[bytes], *, file: str) -> None:
    """Write the chunks in order, read them back, and compare."""
    sequences: list[int] = []
    sent = hashlib.sha256()
    block = new_block(None, [("Nats-Expected-Stream", stream)], stored_ns=0, now_ns=0)
    while group := await in_thread(lambda: list(islice(pieces, _CHUNKS_IN_FLIGHT))):
        acks = await asyncio.gather(*(_publish(js, stream, subject, data, block=block) for data in group))
        sequences += [ack.sequence for ack in acks]
        for data in group:
            sent.update(data)
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


# --- one message ---


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
    last = [] if expected is None else [("Nats-Expected-Last-Subject-Sequence", str(expected))]
    return [(ORIGIN_HEADER, str(origin)), ("Nats-Expected-Stream", stream), *last]
