"""Put something back: connect, find the backup, plan, and write unless something is refused.

Values that the backup does not know any more, but another one: taken from there, or the command that does so.

One command at a time appends messages to a stream that are put back, so that none is written twice.

While it writes, a command has a consumer of a fixed name, which the server creates only once: an ephemeral one, in
memory, to which a single message is delivered, without its payload. It goes with the command's connection, and after a
killed command by itself. Nothing else is needed of the user than what reading what was put back before needs. A user
who may not create consumers has no turn, and neither has one of a stream that takes no more of them.

A turn comes after the plan. So what has come to the stream since the plan is read again, before anything is written and
afterwards (`arrivals_at`). What is there twice then was written by a command without a turn.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.link.source import FindBackup, found_for
from jsbackup.engine.link.threads import in_thread, with_own_threads
from jsbackup.engine.read.reader_consumer import LEFT_SECONDS, PUT_BACK_DESCRIPTION
from jsbackup.errors import ApiError, IncompleteError, JsBackupError, NatsError, NatsPermissionDenied, TargetConflict
from jsbackup.look.buckets.bucket import KeyValueBucket
from jsbackup.look.buckets.bucket_series import find_series
from jsbackup.model import StreamState
from jsbackup.names import is_subject
from jsbackup.protocol.responses import ErrCode
from jsbackup.putting_back.chosen import ChosenMessages, find_entry
from jsbackup.putting_back.model import Fate, PutBackOptions, PutBackPlan, PutBackReport, PutBackRun
from jsbackup.putting_back.plan import arrivals_at, make_plan
from jsbackup.putting_back.target import is_full, keeps_one, subject_limit
from jsbackup.putting_back.writing import write_messages, write_object
from jsbackup.readable import format_count
from jsbackup.repository.crypto.keys import needed
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.repository import Repository

__all__ = ["in_turn", "run_put_back", "write_in_turn"]

_NAME = "jsbackup-put-back"
_HOUR_NS = 3_600_000_000_000


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
        except ApiError as error:
            if error.err_code in (ErrCode.CONSUMER_EXISTS, ErrCode.CONSUMER_NAME_IN_USE):
                raise TargetConflict(
                    f"nothing was written: another command is putting messages back into stream {stream}",
                    hint="Run this again when that command has ended; of a killed one, after "
                    f"{LEFT_SECONDS:.0f} seconds.",
                ) from error
            yield
            return
        except NatsPermissionDenied:
            yield
            return
        try:
            yield
        finally:
            with suppress(NatsError):  # then it expires
                await js.delete_consumer(stream, _NAME)


async def write_in_turn(js: JetStream, chosen: ChosenMessages, plan: PutBackPlan, run: PutBackRun) -> PutBackReport:
    """Write what is planned and was not put back since. Raises as `in_turn` and `write_messages`."""
    async with in_turn(js, plan.target.name):
        since = plan.target.state.last_seq + 1
        came, _ = await arrivals_at(js, plan, await js.stream(plan.target.name), since)
        for at, one in enumerate(messages := list(plan.messages)):
            if one.action is Fate.WRITE and (again := came.get(one.origin)):
                reason = f"it was put back before, as message {again[-1]}"
                messages[at] = replace(one, action=Fate.THERE, reason=reason, expected=None)
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
    twice = tuple(tuple(same) for one in written if len(same := origins.get(one.origin, ())) > 1)
    notes = list(report.notes)
    if twice:
        first = " and ".join(map(str, twice[0]))
        notes.append(
            f"another command put back the same: {format_count(len(twice), 'message')} of stream {plan.target.name} "
            f"twice, such as messages {first}; remove one of each (nats stream rmm)"
        )
    unwatched = {one.subject for one in written if one.expected is None}
    dropped = [] if plan.options.overwrite else list(_dropped(plan, now.state, {s: subjects[s] for s in unwatched}))
    return replace(report, twice=twice, dropped=bool(dropped), notes=(*notes, *dropped))


def _dropped(plan: PutBackPlan, now: StreamState, came: Mapping[str, int]) -> Iterator[str]:
    """Yield which limits of the stream have removed messages, because others were published since the plan. `came`: how
    many of the subjects that were written to and not watched.

    Subjects with little room were watched while they were written to. The others only come to their limit if others
    were published; which of them are gone again is not known.
    """
    name, limit, before = plan.target.name, subject_limit(plan.target), plan.target.state
    subjects = [one for one in sorted(came) if 0 < limit <= plan.counts.get(one, 0) + came[one]]
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
    """Return the plan, by another backup where this one cannot say what keys were. Raises as `make_plan`."""
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
    """Return the one backup around the moment that has all of the chosen keys, as `kv get latest --at` finds them, the
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
