"""Plan what to write: read what is chosen and what the target has, and decide about each message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from jsbackup.config import nearest
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.threads import in_thread
from jsbackup.engine.link.workers import gather_some
from jsbackup.errors import JsBackupError, NatsError, PlanRefused
from jsbackup.names import BUCKET_STREAM, is_subject
from jsbackup.progress import NullProgress, Progress
from jsbackup.protocol.info import StreamInfo
from jsbackup.putting_back.candidates import ChosenMessage, Judge, decide_value
from jsbackup.putting_back.chosen import ChosenMessages, find_entry, name_of_key, target_name
from jsbackup.putting_back.living import arrivals_at, count_subjects_at, last_messages_at, still_there
from jsbackup.putting_back.model import Fate, PlannedMessage, PutBackOptions, PutBackPlan
from jsbackup.putting_back.object_plan import plan_object
from jsbackup.putting_back.target import (
    blocked_by_config,
    blocked_by_limits,
    crowded_reason,
    full_filters,
    keeps_one,
    notes_about,
    notes_on_age,
    room_for,
    subject_limit,
)
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.shell import quoted_command

__all__ = ["make_plan"]

_CHOSEN = 0  # in place of a sequence: it will be written
# With less room, a message of a limited subject is only stored if nobody has published to the subject meanwhile.
_ROOM = 64
_AT_ONCE = 64  # requests for values of the target
_COMPARED = 1024  # values from one report of progress to the next


async def make_plan(
    js: JetStream,
    objects: Objects,
    manifest: Manifest,
    options: PutBackOptions,
    *,
    now_ns: int,
    watcher: Progress | None = None,
) -> PutBackPlan:
    """Return the plan. `options` were checked. `watcher` is told how many values were compared.

    Raises:
        UsageError: the backup does not have the stream.
        JsBackupError: nothing in the backup is chosen.
        IncompleteError: it cannot say what was there at the moment; with `partial` only if it can say so of nothing.
        PlanRefused: there is no such stream at the target.
        IntegrityError, KeyUnavailable, StoreError: the backup cannot be read.
        NatsError: the server does not answer, or with an error.
    """
    entry = find_entry(manifest, options)
    info = await _target(js, target_name(options, entry))
    # What was written is read back in the end. An empty request is a bad one, and changes nothing.
    denied = await js.link.denial(js.prefix.subject("STREAM", "MSG", "GET", info.name), b"{}")
    if denied is not None:
        raise denied
    plan = PutBackPlan(manifest, entry, info, options)
    is_object = options.object_name is not None
    if blocked := tuple(blocked_by_config(info, rolls_up=is_object)):
        return replace(plan, blocked=blocked)
    if is_object:
        plan = await plan_object(js, objects, plan)
        return _with_consequences(replace(plan, notes=(*plan.notes, *notes_on_age(info, plan.writes, now_ns))))
    chosen = ChosenMessages(objects, manifest, entry, options)
    judge = Judge(entry, info, _subjects_at(entry, info), js.link.max_payload_bytes, now_ns)
    candidates = await in_thread(lambda: judge.judge(chosen))
    _refuse_none(manifest, entry, options, candidates)
    one_each = keeps_one(info)
    if one_each:
        plan = await _plan_values(js, plan, candidates, watcher or NullProgress())
    else:
        plan = await _plan_appended(js, plan, candidates)
    plan = replace(plan, messages=tuple(_each_id_once(plan.messages, candidates)), incomplete=bool(chosen.unknown))
    notes = (*_notes_on_identity(plan, plan.messages), *notes_on_age(info, plan.writes, now_ns), *chosen.unknown)
    plan = replace(plan, notes=(*plan.notes, *notes))
    added, size = room_for(plan.writes, replacing=one_each)
    blocked = tuple(blocked_by_limits(info, added, size, overwrite=options.overwrite))
    return _with_consequences(replace(plan, blocked=blocked))


async def _target(js: JetStream, name: str) -> StreamInfo:
    info = await js.find_stream(name)
    if info is None:
        raise PlanRefused(
            f"nothing was written: there is no stream {name} at the target",
            hint=await _near(js, name) or "Restore it (jsbackup restore), or name another one with --to.",
        )
    return info


async def _near(js: JetStream, name: str) -> str | None:
    try:
        return nearest(name, (await js.stream_names()).entries)
    except NatsError:  # the user may not list them
        return None


def _with_consequences(plan: PutBackPlan) -> PutBackPlan:
    """Return the plan with what happens elsewhere if it is carried out."""
    if not plan.writes or plan.refusal() is not None:
        return plan
    return replace(plan, notes=(*notes_about(plan.target), *plan.notes))


def _subjects_at(entry: StreamBackup, info: StreamInfo) -> Callable[[str], str]:
    """Return how subjects are called at the target: those of keys begin with the name of their bucket."""
    if not entry.name.startswith(BUCKET_STREAM):
        return lambda subject: subject
    prefix = f"$KV.{info.name.removeprefix(BUCKET_STREAM)}."
    return lambda subject: prefix + name_of_key(subject)


def _refuse_none(
    manifest: Manifest, entry: StreamBackup, options: PutBackOptions, candidates: Sequence[ChosenMessage]
) -> None:
    found = {one.sequence for one in candidates}
    for first, last in options.sequences:
        if first == last and first not in found:
            raise JsBackupError(
                f"stream {entry.name} has no such message {first} in backup {manifest.id}",
                hint=f"See {quoted_command('view', manifest.id, entry.name)} for what it has.",
            )
    if not candidates:
        raise JsBackupError(
            f"no message of stream {entry.name} in backup {manifest.id} matches",
            hint=f"See {quoted_command('view', manifest.id, entry.name)} for what it has.",
        )


async def _plan_values(
    js: JetStream, plan: PutBackPlan, candidates: Sequence[ChosenMessage], watcher: Progress
) -> PutBackPlan:
    """Decide where only the last message of each subject counts."""
    newest = {one.subject: one for one in candidates if not one.marker}
    name, key = plan.target.name, plan.entry.name.startswith(BUCKET_STREAM)

    async def decide(one: ChosenMessage) -> PlannedMessage:
        if one.marker:
            return one.planned(Fate.LEFT_OUT, "the server left it where others expired or were removed")
        if newest[one.subject] is not one:
            return one.planned(Fate.LEFT_OUT, "a later chosen message has its subject")
        if one.deletes:
            return one.planned(Fate.LEFT_OUT, "it deletes the key, and only values are put back")
        last = await js.last_message(name, one.subject) if is_subject(one.subject) else None
        return decide_value(one, last, key=key, overwrite=plan.options.overwrite)

    found: list[PlannedMessage] = []
    what = f"values of {name}"
    watcher.start(what, sum(one.size for one in candidates), len(candidates))
    try:
        for at in range(0, len(candidates), _COMPARED):
            some = candidates[at : at + _COMPARED]
            found += await gather_some(_AT_ONCE, decide, some)
            watcher.advance(what, sum(one.size for one in some), len(some))
    finally:
        watcher.finish(what)
    return replace(plan, messages=tuple(found))


async def _plan_appended(js: JetStream, plan: PutBackPlan, candidates: Sequence[ChosenMessage]) -> PutBackPlan:
    """Decide where messages are added at the end: those that are missing are."""
    info, entry = plan.target, plan.entry
    filters = full_filters(plan.options.filters.subject)
    there = await still_there(js, info, {one.sequence: one for one in candidates if not one.marker}, filters)
    first = 1
    if _is_same_stream(plan):
        # What was put back came after the backup.
        first = max(entry.captured.last_seq, entry.state.last_seq) + 1
    before = {origin: found[-1] for origin, found in (await arrivals_at(js, info, first, filters)).origins.items()}
    present, last = await _of_limited_subjects(js, plan, candidates)
    counts = dict(present)
    found = []
    for one in candidates:
        again = before.get(one.origin)
        if one.marker:
            found.append(one.planned(Fate.LEFT_OUT, "the server left it where others expired or were removed"))
        elif one.sequence in there:
            found.append(one.planned(Fate.THERE, "it is still there"))
        elif again == _CHOSEN:
            found.append(one.planned(Fate.LEFT_OUT, "it was put back from another chosen message"))
        elif again is not None:
            found.append(one.planned(Fate.THERE, f"it was put back before, as message {again}"))
        elif one.reason:
            found.append(one.planned(Fate.REFUSED, one.reason))
        elif crowded := crowded_reason(info, counts.get(one.subject, 0), overwrite=plan.options.overwrite):
            found.append(one.planned(Fate.REFUSED, crowded, conflict=True))
        else:
            found.append(replace(one.planned(Fate.WRITE), expected=last.get(one.subject)))
            before[one.origin] = _CHOSEN
            if one.subject in counts:
                counts[one.subject] += 1
    return replace(plan, messages=tuple(found), counts=present)


async def _of_limited_subjects(
    js: JetStream, plan: PutBackPlan, candidates: Sequence[ChosenMessage]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return, where the stream limits the messages of a subject: how many it has of each; and of those with little
    room, the sequence of the last one, 0 if there is none.
    """
    info = plan.target
    limit = subject_limit(info)
    if limit <= 0:
        return {}, {}
    wanted = Counter(one.subject for one in candidates if not one.reason)
    counts = await count_subjects_at(js, info.name, wanted)
    if plan.options.overwrite:
        return counts, {}
    narrow = [subject for subject, count in wanted.items() if counts[subject] + count + _ROOM > limit]
    last = await last_messages_at(js, info.name, narrow)
    # A message that came after the first count is counted now, or it is after the last one.
    counts |= await count_subjects_at(js, info.name, narrow)
    return counts, {subject: 0 if one is None else one.sequence for subject, one in zip(narrow, last, strict=True)}


def _each_id_once(messages: Sequence[PlannedMessage], candidates: Sequence[ChosenMessage]) -> Iterator[PlannedMessage]:
    """Yield the messages; of those with the same message id only the first is written: a server does not store another
    one for a while.
    """
    ids = {one.sequence: one.message_id for one in candidates}
    written: dict[bytes, int] = {}
    for one in messages:
        name = ids[one.sequence]
        if one.fate is Fate.WRITE and name and (first := written.setdefault(name, one.sequence)) != one.sequence:
            yield replace(one, fate=Fate.DUPLICATE, reason=f"message {first} has its message id, and is written")
        else:
            yield one


def _is_same_stream(plan: PutBackPlan) -> bool:
    return plan.target.name == plan.entry.name and plan.target.created == plan.entry.created


def _notes_on_identity(plan: PutBackPlan, messages: Sequence[PlannedMessage]) -> list[str]:
    known = any(one.fate is Fate.THERE for one in messages)
    if known or keeps_one(plan.target) or _is_same_stream(plan) or plan.target.name != plan.entry.name:
        return []
    return [
        f"stream {plan.target.name} is not the one that was backed up, but was created at {plan.target.created}: "
        "messages that were published again since are not recognized"
    ]
