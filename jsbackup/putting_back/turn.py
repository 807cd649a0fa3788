"""One command at a time appends messages to a stream that are put back, so that none is written twice.

While it writes, a command has a consumer of a fixed name, which the server creates only once: an ephemeral one, in
memory, to which a single message is delivered, without its payload. It goes with the command's connection, and after a
killed command by itself. Nothing else is needed of the user than what reading what was put back before needs. A user
who may not create consumers has no turn, and neither has one of a stream that takes no more of them.

A turn comes after the plan. So what has come to the stream since the plan is read again, before anything is written and
afterwards (`arrivals_at`). What is there twice then was written by a command without a turn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.reader_consumer import LEFT_SECONDS, PUT_BACK_DESCRIPTION
from jsbackup.errors import ApiError, JsBackupError, NatsError, NatsPermissionDenied, TargetConflict
from jsbackup.model import JsonObject, StreamState
from jsbackup.protocol.responses import ErrCode
from jsbackup.putting_back.chosen import ChosenMessages
from jsbackup.putting_back.living import Arrivals, arrivals_at
from jsbackup.putting_back.model import Fate, PutBackPlan, PutBackReport
from jsbackup.putting_back.publishing import WritingRun, write_messages
from jsbackup.putting_back.target import full_filters, is_full, subject_limit
from jsbackup.readable import format_count

__all__ = ["in_turn", "write_in_turn"]

_NAME = "jsbackup-put-back"
_HOUR_NS = 3_600_000_000_000


@asynccontextmanager
async def in_turn(js: JetStream, stream: str) -> AsyncIterator[None]:
    """Keep other commands from putting messages back into the stream, if the server lets us.

    Raises TargetConflict if another one does; NatsError.
    """
    inbox = js.link.new_inbox()
    async with js.link.subscribe(inbox):
        try:
            await js.create_consumer(stream, _config(inbox))
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


def _config(inbox: str) -> JsonObject:
    return {
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


async def write_in_turn(js: JetStream, chosen: ChosenMessages, plan: PutBackPlan, run: WritingRun) -> PutBackReport:
    """Write what is planned and was not put back since. Raises as `in_turn` and `write_messages`."""
    async with in_turn(js, plan.target.name):
        plan = await _up_to_now(js, plan)
        if not plan.writes:
            return PutBackReport(plan)
        report = await write_messages(js, chosen, plan, run)
        try:
            return await _afterwards(js, report)
        except JsBackupError as error:
            done = f"{format_count(len(report.written), 'message')} were written and read back"
            raise error.with_message(f"{error.message}; {done}") from error


async def _up_to_now(js: JetStream, plan: PutBackPlan) -> PutBackPlan:
    """Return the plan without messages that were put back since it was made."""
    came = await _since(js, plan)
    messages = []
    for one in plan.messages:
        if one.fate is Fate.WRITE and (found := came.origins.get(one.origin)):
            one = replace(one, fate=Fate.THERE, reason=f"it was put back before, as message {found[-1]}", expected=None)
        messages.append(one)
    return replace(plan, messages=tuple(messages))


async def _afterwards(js: JetStream, report: PutBackReport) -> PutBackReport:
    """Return the report with what is the same now because another command wrote it too, and whether limits have removed
    messages that the plan did not expect.
    """
    plan = report.plan
    before, now = plan.target.state, (await js.stream(plan.target.name)).state
    came = await _since(js, plan)
    origins = [one.message.origin for one in report.written]
    twice = tuple(tuple(found) for one in origins if len(found := came.origins.get(one, ())) > 1)
    notes = list(report.notes)
    if twice:
        first = " and ".join(map(str, twice[0]))
        notes.append(
            f"another command put back the same: {format_count(len(twice), 'message')} of stream {plan.target.name} "
            f"twice, such as messages {first}; remove one of each (nats stream rmm)"
        )
    dropped = [] if plan.options.overwrite else list(_dropped(report, came, before, now))
    return replace(report, twice=twice, dropped=bool(dropped), notes=(*notes, *dropped))


async def _since(js: JetStream, plan: PutBackPlan) -> Arrivals:
    """Return what came to the stream since the plan was made."""
    info = await js.stream(plan.target.name)
    first = plan.target.state.last_seq + 1
    return await arrivals_at(js, info, first, full_filters(plan.options.filters.subject), counted=plan.counts)


def _dropped(report: PutBackReport, came: Arrivals, before: StreamState, now: StreamState) -> Iterator[str]:
    """Yield which limits of the stream have removed messages, because others were published since the plan.

    Subjects with little room were watched while they were written to. The others only come to their limit if others
    were published; which of them are gone again is not known.
    """
    plan = report.plan
    name, limit, counts = plan.target.name, subject_limit(plan.target), plan.counts
    unwatched = sorted({one.message.subject for one in report.written if one.message.expected is None})
    subjects = [one for one in unwatched if 0 < limit <= counts.get(one, 0) + came.subjects.get(one, 0)]
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
