"""Plan what to write: read what is chosen and what the target has, and decide about each message.

The target has messages that are still there, and those that were put back before. What it takes is known from its
configuration and state. A file of an object store is read whole and its digest compared before anything is planned.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from sys import intern

from jsbackup.config import nearest
from jsbackup.engine.link.concurrency import gather_some, in_thread
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.consume import read_messages
from jsbackup.errors import FormatError, JsBackupError, NatsError, PlanRefused, TargetConflict
from jsbackup.look.buckets.key_states import key_of
from jsbackup.look.buckets.object_bucket import ObjectBucket, description_tokens, read_description
from jsbackup.look.message import LookedUp, messages_in, subject_text
from jsbackup.look.stream import message_at
from jsbackup.model import JsonObject, StreamState
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM, is_pattern, is_subject
from jsbackup.progress import NullProgress, Progress, ignored
from jsbackup.protocol.info import StoredMessage, StreamInfo
from jsbackup.putting_back.chosen import ChosenMessages, find_entry, target_name
from jsbackup.putting_back.headers import (
    MAX_HEADER_BYTES,
    content_of,
    is_marker,
    message_id,
    origin_in,
    origin_of_message,
    reason_against,
)
from jsbackup.putting_back.model import Fate, PutBackMessage, PutBackOptions, PutBackPlan
from jsbackup.readable import format_count, format_seconds
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.objects import Objects
from jsbackup.shell import quoted_command, shell_word
from jsbackup.strict_json import read_object
from jsbackup.times import format_time
from jsbackup.transforms.filters.key_marker import KeyOperation, operation_of
from jsbackup.transforms.subjects import matcher, overlaps

__all__ = [
    "arrivals_at",
    "blocked_by_config",
    "blocked_by_limits",
    "crowded_reason",
    "decide_value",
    "is_full",
    "keeps_one",
    "make_plan",
    "notes_about",
    "object_prefix",
    "only",
    "subject_limit",
    "takes_not",
]

_CHOSEN = 0  # in place of a sequence: it will be written
# With less room, a message of a limited subject is only stored if nobody has published to the subject meanwhile.
_ROOM = 64
_AT_ONCE = 64  # requests for values of the target
# Up to so many messages are asked for one by one; more are read in a row.
_ONE_BY_ONE = 1000
# Of a description, what says where it is stored, not what is stored.
_PLACE = ("nuid", "bucket", "mtime", "chunks", "options")
# For the length of a subject of chunks.
_NUID = "0" * 22
# What a store adds to each message, at most (nats-server's `filestore.go` and `memstore.go`).
_RECORD_BYTES = 34
# Headers that are added to a message.
_ADDED_BYTES = 600
_EXTRA_BYTES = _RECORD_BYTES + _ADDED_BYTES
# A stream that drops messages for lack of space has so much less than its limit: so many messages of average size.
_SOME = 8


async def make_plan(
    js: JetStream,
    objects: Objects,
    manifest: Manifest,
    options: PutBackOptions,
    *,
    now_ns: int,
    watcher: Progress | None = None,
) -> PutBackPlan:
    """Return the plan. `watcher` is told how many values were compared.

    Raises:
        UsageError: the backup does not have the stream.
        JsBackupError: nothing in the backup is chosen.
        IncompleteError: it cannot say what was there at the moment; with `partial` only if it can say so of nothing.
        PlanRefused: there is no such stream at the target.
        IntegrityError, KeyUnavailable, StoreError: the backup cannot be read.
        NatsError: the server does not answer, or with an error.
    """
    entry = find_entry(manifest, options)
    name = target_name(options, entry)
    info = await js.find_stream(name)
    if info is None:
        near = None
        with suppress(NatsError):  # the user may not list them
            near = nearest(name, (await js.stream_names()).entries)
        raise PlanRefused(
            f"nothing was written: there is no stream {name} at the target",
            hint=near or "Restore it (jsbackup restore), or name another one with --to.",
        )
    # What was written is read back in the end. An empty request is a bad one, and changes nothing.
    denied = await js.link.denial(js.prefix.subject("STREAM", "MSG", "GET", info.name), b"{}")
    if denied is not None:
        raise denied
    plan = PutBackPlan(manifest, entry, info, options)
    is_object = options.object_name is not None
    if blocked := tuple(blocked_by_config(info, rolls_up=is_object)):
        return replace(plan, blocked=blocked)
    if is_object:
        plan = await _plan_object(js, objects, plan)
    else:
        plan = await _plan_messages(js, objects, plan, now_ns, watcher=watcher or NullProgress())
    plan = replace(plan, notes=(*plan.notes, *notes_on_age(info, plan.writes, now_ns), *plan.unknown))
    if plan.writes and plan.refusal() is None:  # what happens elsewhere if it is carried out
        plan = replace(plan, notes=(*notes_about(info), *plan.notes))
    return plan


# --- messages and keys ---


async def _plan_messages(
    js: JetStream, objects: Objects, plan: PutBackPlan, now_ns: int, *, watcher: Progress
) -> PutBackPlan:
    manifest, entry, info, options = plan.manifest, plan.entry, plan.target, plan.options
    messages = ChosenMessages(objects, manifest, entry, options)
    judged = partial(_judged, plan, max_payload=js.link.max_payload_bytes, now_ns=now_ns)
    chosen = await in_thread(lambda: list(map(judged, messages)))
    sequences = {message.sequence for message in chosen}
    hint = f"See {quoted_command('view', manifest.id, entry.name)} for what it has."
    for first, last in options.sequences:
        if first == last and first not in sequences:
            no_such = f"stream {entry.name} has no such message {first} in backup {manifest.id}"
            raise JsBackupError(no_such, hint=hint)
    if not chosen:
        raise JsBackupError(f"no message of stream {entry.name} in backup {manifest.id} matches", hint=hint)
    one_each = keeps_one(info)
    if one_each:
        plan = replace(plan, messages=await _plan_values(js, plan, chosen, watcher))
    else:
        plan = await _plan_appended(js, plan, chosen)
    plan = replace(plan, messages=_each_id_once(plan.messages), unknown=messages.unknown)
    is_known = any(message.action is Fate.THERE for message in plan.messages)
    if not (is_known or one_each or info.name != entry.name or _is_same_stream(plan)):
        note = (
            f"stream {info.name} is not the one that was backed up, but was created at {info.created}: "
            "messages that were published again since are not recognized"
        )
        plan = replace(plan, notes=(note,))
    # A value takes the place of the one before.
    added = sum(1 for write in plan.writes if not (one_each and write.expected))
    size = sum(write.size + len(write.subject) + _EXTRA_BYTES for write in plan.writes)
    return replace(plan, blocked=tuple(blocked_by_limits(info, added, size, overwrite=options.overwrite)))


def _judged(plan: PutBackPlan, message: LookedUp, *, max_payload: int, now_ns: int) -> PutBackMessage:
    """Return a chosen message by what the target takes, whatever it has."""
    info, headers, subject, key = plan.target, message.headers, message.subject, ""
    is_key = plan.entry.name.startswith(BUCKET_STREAM)
    if is_key:
        key = key_of(subject)
        subject = f"$KV.{info.name.removeprefix(BUCKET_STREAM)}.{key}"
    block_bytes = len(headers or b"")
    size = block_bytes + len(message.data)
    reason = reason_against(
        headers, stored_ns=message.timestamp_ns, now_ns=now_ns, allows_ttl=bool(info.config.get("allow_msg_ttl"))
    ) or takes_not(info, subject, size, block_bytes=block_bytes, max_payload=max_payload)
    action = Fate.REFUSED if reason else Fate.WRITE
    if is_marker(headers):
        action, reason = Fate.LEFT_OUT, "the server left it where others expired or were removed"
    return PutBackMessage(
        message.sequence,
        message.timestamp_ns,
        intern(subject),
        size,
        action,
        reason,
        key,
        origin=origin_of_message("", plan.entry.name, message).message,
        content=content_of(subject, headers, message.data),
        message_id=message_id(headers),
        deletes=is_key and operation_of(headers) is not KeyOperation.PUT,
    )


async def _plan_values(
    js: JetStream, plan: PutBackPlan, chosen: Sequence[PutBackMessage], watcher: Progress
) -> tuple[PutBackMessage, ...]:
    """Decide where only the last message of each subject counts."""
    newest = {message.subject: message for message in chosen if message.action is not Fate.LEFT_OUT}
    name, what = plan.target.name, f"values of {plan.target.name}"

    async def decide(message: PutBackMessage) -> PutBackMessage:
        watcher.advance(what, message.size, 1)
        if message.action is Fate.LEFT_OUT:
            return message
        if newest[message.subject] is not message:
            return replace(message, action=Fate.LEFT_OUT, reason="a later chosen message has its subject")
        if message.deletes:
            return replace(message, action=Fate.LEFT_OUT, reason="it deletes the key, and only values are put back")
        last = await js.last_message(name, message.subject) if is_subject(message.subject) else None
        return decide_value(message, last, overwrite=plan.options.overwrite)

    watcher.start(what, sum(message.size for message in chosen), len(chosen))
    try:
        return tuple(await gather_some(_AT_ONCE, decide, chosen))
    finally:
        watcher.finish(what)


def decide_value(message: PutBackMessage, present: StoredMessage | None, *, overwrite: bool) -> PutBackMessage:
    """Decide about the only message of a subject that counts. `present` is the last one at the target.

    A deleted key has no value that could be lost, so that its value is written.
    """
    if present is None:
        return message if message.action is Fate.REFUSED else replace(message, expected=0)
    has_value = operation_of(present.headers) is KeyOperation.PUT
    if has_value and content_of(present.subject, present.headers, present.data) == message.content:
        return replace(message, action=Fate.THERE, reason=f"message {present.sequence} is the same")
    if message.action is Fate.REFUSED:
        return message
    when = f"message {present.sequence} of {format_time(present.timestamp_ns)}"
    if has_value and present.timestamp_ns >= message.timestamp_ns and not overwrite:
        return replace(message, action=Fate.REFUSED, reason=f"{when} is newer, and differs", conflict=True)
    reason = f"replaces {when}" if has_value else f"removed by {when}"
    return replace(message, reason=reason, expected=present.sequence, overwrites=has_value)


async def _plan_appended(js: JetStream, plan: PutBackPlan, chosen: Sequence[PutBackMessage]) -> PutBackPlan:
    """Decide where messages are added at the end: those that are missing are."""
    info, entry = plan.target, plan.entry
    live = await _still_there(
        js, plan, {message.sequence: message for message in chosen if message.action is not Fate.LEFT_OUT}
    )
    # What was put back came after the backup.
    first = max(entry.captured.last_seq, entry.state.last_seq) + 1 if _is_same_stream(plan) else 1
    before = {origin: at[-1] for origin, at in (await arrivals_at(js, plan, info, first))[0].items()}
    present, last = await _of_limited_subjects(js, plan, chosen)
    counts = dict(present)
    decided = []
    for message in chosen:
        again = before.get(message.origin)
        if message.action is Fate.LEFT_OUT:
            pass
        elif message.sequence in live:
            message = replace(message, action=Fate.THERE, reason="it is still there")
        elif again == _CHOSEN:
            message = replace(message, action=Fate.LEFT_OUT, reason="it was put back from another chosen message")
        elif again is not None:
            message = replace(message, action=Fate.THERE, reason=f"it was put back before, as message {again}")
        elif message.action is Fate.REFUSED:
            pass
        elif crowded := crowded_reason(info, counts.get(message.subject, 0), overwrite=plan.options.overwrite):
            message = replace(message, action=Fate.REFUSED, reason=crowded, conflict=True)
        else:
            message = replace(message, expected=last.get(message.subject))
            before[message.origin] = _CHOSEN
            if message.subject in counts:
                counts[message.subject] += 1
        decided.append(message)
    return replace(plan, messages=tuple(decided), counts=present)


async def _of_limited_subjects(
    js: JetStream, plan: PutBackPlan, chosen: Sequence[PutBackMessage]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return, where the stream limits the messages of a subject: how many it has of each; and of those with little
    room, the sequence of the last one, 0 if there is none.
    """
    name, limit = plan.target.name, subject_limit(plan.target)
    if limit <= 0:
        return {}, {}

    async def count(subject: str) -> int:
        return (await js.subjects(name, subject)).get(subject, 0)

    wanted = Counter(message.subject for message in chosen if message.action is Fate.WRITE)
    counts = dict(zip(wanted, await gather_some(_AT_ONCE, count, wanted), strict=True))
    if plan.options.overwrite:
        return counts, {}
    narrow = [subject for subject in wanted if counts[subject] + wanted[subject] + _ROOM > limit]
    last = await gather_some(_AT_ONCE, partial(js.last_message, name), narrow)
    # A message that came after the first count is counted now, or it is after the last one.
    counts |= zip(narrow, await gather_some(_AT_ONCE, count, narrow), strict=True)
    return counts, {
        subject: 0 if message is None else message.sequence for subject, message in zip(narrow, last, strict=True)
    }


def _each_id_once(messages: Sequence[PutBackMessage]) -> tuple[PutBackMessage, ...]:
    """Return the messages; of those with the same message id only the first is written: a server does not store another
    one for a while.
    """
    written: dict[bytes, int] = {}
    decided = []
    for message in messages:
        if message.action is Fate.WRITE and message.message_id:
            first = written.setdefault(message.message_id, message.sequence)
            if first != message.sequence:
                reason = f"message {first} has its message id, and is written"
                message = replace(message, action=Fate.DUPLICATE, reason=reason)
        decided.append(message)
    return tuple(decided)


def _is_same_stream(plan: PutBackPlan) -> bool:
    return plan.target.name == plan.entry.name and plan.target.created == plan.entry.created


# --- what the target has ---


async def _still_there(js: JetStream, plan: PutBackPlan, chosen: Mapping[int, PutBackMessage]) -> set[int]:
    """Return the sequences at which the target has the same message: subject, headers, payload, and time."""
    info = plan.target
    first, last = info.state.first_seq, info.state.last_seq
    within = [sequence for sequence in chosen if info.state.messages and first <= sequence <= last]

    def is_same(message: StoredMessage | LookedUp | None) -> bool:
        chosen_message = None if message is None else chosen.get(message.sequence)
        if message is None or chosen_message is None or message.timestamp_ns != chosen_message.timestamp_ns:
            return False
        return content_of(message.subject, message.headers, message.data) == chosen_message.content

    if len(within) <= _ONE_BY_ONE:
        present = await gather_some(_AT_ONCE, partial(js.message, info.name), within)
        return {sequence for sequence, message in zip(within, present, strict=True) if is_same(message)}
    same: set[int] = set()
    wanted = only(plan.options.filters.subject)
    reading = read_messages(js, info, ignored, first=min(within), last=max(within), only=wanted)
    async with aclosing(reading) as batches:
        async for batch in batches:
            same |= {message.sequence for message in messages_in(batch) if is_same(message)}
    return same


async def arrivals_at(
    js: JetStream, plan: PutBackPlan, info: StreamInfo, first: int
) -> tuple[dict[tuple[str, int, int], list[int]], Counter[str]]:
    """Read the target's messages from the sequence `first` on. Payloads are not read, if the server allows a consumer.

    Return what they were put back from, with the sequences that they have; and how many there are of each subject that
    the plan counts.
    """
    origins: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    subjects: Counter[str] = Counter()
    if not info.state.messages or first > info.state.last_seq:
        return origins, subjects
    wanted = {**only(plan.options.filters.subject), "headers_only": True}
    async with aclosing(read_messages(js, info, ignored, first=max(first, 1), only=wanted)) as batches:
        async for batch in batches:
            headers, names = batch.column("headers"), batch.column("subject")
            for row, sequence in enumerate(batch.column("sequence").to_pylist()):
                if (origin := origin_in(headers[row].as_py())) is not None:
                    origins[origin.message].append(sequence)
                if plan.counts and (subject := subject_text(names[row].as_py())) in plan.counts:
                    subjects[subject] += 1
    return origins, subjects


# --- files of object stores ---


def object_prefix(stream: str) -> str:
    """Return the beginning of the subjects of an object store."""
    return f"$O.{stream.removeprefix(OBJECT_STREAM)}"


async def _plan_object(js: JetStream, objects: Objects, plan: PutBackPlan) -> PutBackPlan:
    """Return the plan with the file. Raises NatsError, StoreError, KeyUnavailable; IntegrityError also if the file in
    the backup is not whole, or does not have its digest.
    """
    name, target = plan.options.object_name or "", plan.target
    bucket = ObjectBucket(objects, plan.manifest, plan.entry)
    entry = await in_thread(bucket.entry, name)
    sizes = await in_thread(lambda: [len(chunk) for chunk in bucket.content(entry)])
    stored = await in_thread(message_at, objects, plan.manifest, plan.entry, entry.sequence)
    prefix = object_prefix(target.name)
    tokens = description_tokens(name)
    said = [await js.last_message(target.name, f"{prefix}.M.{token}") for token in tokens]
    present = max(filter(None, said), key=lambda message: message.sequence, default=None)
    subject = f"{prefix}.M.{tokens[0]}" if present is None else present.subject
    blocked: list[JsBackupError] = []
    for where, size in ((f"{prefix}.C.{_NUID}", max(sizes, default=0)), (subject, 0)):
        if reason := takes_not(target, where, size, block_bytes=0, max_payload=js.link.max_payload_bytes):
            blocked.append(PlanRefused(f"file {name}: {reason}"))
    plan = replace(plan, file=entry, description=read_object(stored.data, f"description of object {name}"))
    message = PutBackMessage(entry.sequence, entry.modified_ns, subject, entry.size, Fate.WRITE, name=name, expected=0)
    if present is not None:
        looked_up = LookedUp(present.sequence, present.timestamp_ns, present.subject, present.headers, present.data)
        with suppress(FormatError):  # then it is something else, which is replaced as well
            plan = replace(plan, replaces=read_description(looked_up))
        message = await _decide_file(js, plan, replace(message, expected=present.sequence), present, chunks=len(sizes))
    if message.action is Fate.WRITE:
        size = entry.size + (len(sizes) + 1) * _EXTRA_BYTES
        blocked += blocked_by_limits(target, len(sizes) + 1, size, overwrite=False)
    return replace(
        plan,
        messages=(message,),
        blocked=tuple(blocked),
        notes=() if entry.digest or entry.link else ("no digest was stored with the file",),
    )


async def _decide_file(
    js: JetStream, plan: PutBackPlan, file: PutBackMessage, present: StoredMessage, *, chunks: int
) -> PutBackMessage:
    """Decide about a file whose name has a description at the target. `chunks`: so many are written for it."""
    entry, before = plan.file, plan.replaces
    assert entry is not None
    when = f"message {present.sequence} of {format_time(present.timestamp_ns)}"
    if before is not None and before.deleted:
        return replace(file, reason=f"removed by {when}")
    if before is not None and _content(plan.description) == _content(read_object(present.data, "description")):
        # NATS.Net does not count an empty chunk at the end.
        needed = chunks if before.chunks == entry.chunks else before.chunks
        counts = await js.subjects(plan.target.name, before.chunk_subject) if needed else {}
        if counts.get(before.chunk_subject, 0) >= needed:
            return replace(file, action=Fate.THERE, reason=f"{when} is the same", expected=None)
        return replace(file, reason=f"replaces {when}, which lacks chunks", overwrites=True)
    if present.timestamp_ns >= file.timestamp_ns and not plan.options.overwrite:
        reason = f"{when} is newer, and differs"
        return replace(file, action=Fate.REFUSED, reason=reason, expected=None, conflict=True)
    return replace(file, reason=f"replaces {when}", overwrites=True)


def _content(description: JsonObject) -> JsonObject:
    """Return what a description says of the file itself; nothing is the same as an empty member."""
    said = {name: value for name, value in description.items() if name not in _PLACE and value}
    options = description.get("options")
    link = options.get("link") if isinstance(options, dict) else None
    return {**said, "link": link} if link else said


# --- what the target takes; pure ---


def blocked_by_config(info: StreamInfo, *, rolls_up: bool = False) -> Iterator[PlanRefused]:
    """Yield why the stream takes no message that is put back. `rolls_up`: descriptions of object files are written."""
    config, name = info.config, info.name
    elsewhere = "Restore the messages as a stream of another name (jsbackup restore --rename)."
    if config.get("sealed"):
        yield PlanRefused(f"stream {name} is sealed, and takes no messages", hint=elsewhere)
    if isinstance(mirror := config.get("mirror"), dict):
        origin = mirror.get("name")
        yield PlanRefused(
            f"stream {name} is a mirror of {origin}, and takes no messages",
            hint=f"Name the origin: --to {shell_word(str(origin))}.",
        )
    if (retention := config.get("retention", "limits")) != "limits":
        kind = "a work queue" if retention == "workqueue" else "kept by the interest of consumers"
        yield PlanRefused(
            f"stream {name} is {kind}: whether a missing message was lost or processed cannot be known",
            hint=elsewhere,
        )
    if config.get("allow_msg_counter"):
        counts = f"stream {name} counts: a message that is put back would be added to its counter"
        yield PlanRefused(counts, hint=elsewhere)
    if config.get("no_ack"):
        yield PlanRefused(f"stream {name} does not acknowledge messages (no_ack): what it stores cannot be known")
    if not config.get("subjects") and not config.get("mirror"):
        yield PlanRefused(f"stream {name} listens to no subjects, and only copies from other streams", hint=elsewhere)
    if rolls_up and (not config.get("allow_rollup_hdrs") or config.get("deny_purge")):
        yield PlanRefused(
            f"stream {name} does not allow replacing the description of a file (allow_rollup_hdrs, deny_purge)"
        )


def keeps_one(info: StreamInfo) -> bool:
    """Return whether only the last message of a subject counts: in a bucket, or with `max_msgs_per_subject` 1."""
    return info.name.startswith(BUCKET_STREAM) or subject_limit(info) == 1


def takes_not(info: StreamInfo, subject: str, size: int, *, block_bytes: int, max_payload: int) -> str:
    """Return why the stream takes no message of this subject and size (with headers); "" if it does."""
    if not is_subject(subject):
        return "its subject cannot be published to"
    patterns = [
        subject for subject in info.config.get("subjects") or () if isinstance(subject, str) and is_pattern(subject)
    ]
    if not any(matcher(pattern).fullmatch(subject) for pattern in patterns):
        return f"stream {info.name} does not listen to its subject"
    transform = info.config.get("subject_transform")
    source = transform.get("src") if isinstance(transform, dict) else None
    if isinstance(transform, dict) and (not source or not is_pattern(source) or matcher(source).fullmatch(subject)):
        return f"stream {info.name} would rename its subject (subject_transform)"
    limit = _limit(info.config, "max_msg_size")
    if 0 < limit < size + _ADDED_BYTES:
        return f"it may be too large for stream {info.name} (max_msg_size {limit:,}), with the headers that are added"
    if max_payload < size + _ADDED_BYTES:
        return f"it is too large for the server (max_payload {max_payload:,})"
    if block_bytes + _ADDED_BYTES > MAX_HEADER_BYTES:
        return "its headers are too large to add where it comes from"
    return ""


def blocked_by_limits(info: StreamInfo, messages: int, size: int, *, overwrite: bool) -> Iterator[TargetConflict]:
    """Yield why so many more messages, and bytes with what is added to each, do not fit."""
    for key, present, more, unit in (
        ("max_msgs", info.state.messages, messages, "messages"),
        ("max_bytes", info.state.bytes, size, "bytes"),
    ):
        limit = _limit(info.config, key)
        if limit <= 0 or not more or present + more <= limit:
            continue
        room = f"it has {present:,} {unit} of {limit:,}, and up to {more:,} more are needed"
        if info.config.get("discard") == "new":
            hint = f"Raise {key} of the stream, or choose fewer messages."
            yield TargetConflict(f"stream {info.name} is full: {room}", hint=hint)
        elif not overwrite:
            hint = f"Raise {key} of the stream, choose less, or accept that with --overwrite."
            yield TargetConflict(f"stream {info.name} would drop its oldest messages: {room}", hint=hint)


def crowded_reason(info: StreamInfo, present: int, *, overwrite: bool) -> str:
    """Return why a message of a subject of which there are `present` ones does not fit; "" if it does."""
    limit = subject_limit(info)
    if limit <= 0 or present < limit:
        return ""
    if info.config.get("discard") == "new" and info.config.get("discard_new_per_subject"):
        return f"stream {info.name} has {format_count(present, 'message')} of its subject, and takes no more"
    return (
        ""
        if overwrite
        else f"stream {info.name} would drop another message of its subject, of which it keeps {limit:,}"
    )


def subject_limit(info: StreamInfo) -> int:
    """Return how many messages of a subject the stream keeps; 0 or less if that is not limited."""
    return _limit(info.config, "max_msgs_per_subject")


def is_full(info: StreamInfo, state: StreamState) -> bool:
    """Return whether the stream, now in this state, has as much as its limits let it have: of bytes, about as much."""
    most, most_bytes = _limit(info.config, "max_msgs"), _limit(info.config, "max_bytes")
    some = _SOME * state.bytes // max(state.messages, 1)
    return 0 < most <= state.messages or 0 < most_bytes < state.bytes + some


def notes_about(info: StreamInfo) -> Iterator[str]:
    """Yield what happens elsewhere because of new messages."""
    if info.state.consumers:
        yield f"the consumers of stream {info.name} ({info.state.consumers:,}) get the messages as new ones"
    republish = info.config.get("republish")
    if isinstance(republish, dict):
        yield f"stream {info.name} publishes each message again on {republish.get('dest')}"


def notes_on_age(info: StreamInfo, writes: Sequence[PutBackMessage], now_ns: int) -> Iterator[str]:
    """Yield what becomes of messages that the stream would have removed by now, had it kept them: they begin anew."""
    limit = _limit(info.config, "max_age")
    old = sum(1 for write in writes if 0 < limit <= now_ns - write.timestamp_ns)
    if old:
        what = "is 1 message" if old == 1 else f"are {old:,} messages"
        yield (
            f"there {what} older than stream {info.name} keeps them (max_age {format_seconds(limit / 1e9)}): "
            "put back, a message is kept for that long again"
        )


def only(patterns: Sequence[str]) -> JsonObject:
    """Return the patterns as filters of a consumer: none may overlap another one; else there are none."""
    overlapping = any(overlaps(pattern, other) for at, pattern in enumerate(patterns) for other in patterns[:at])
    return {} if overlapping or not patterns else {"filter_subjects": list(patterns)}


def _limit(config: JsonObject, name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) else 0
