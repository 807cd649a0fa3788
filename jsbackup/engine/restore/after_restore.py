"""After the transfer: wait for the work that a server does after its answer, and check it.

In a cluster the answer comes before consumers exist and replicas are current (measured). A user who may not list
consumers can still count them in the stream's info.

Measured, 2.12 and 2.15: a replica of an interest stream that only knows some of its consumers yet removes the messages
that those have acknowledged; later consumers skip such messages, and the replicas differ permanently. So such a stream
keeps everything (`until_consumers`) until all its consumers are everywhere.

Measured, 2.15: a replica that catches up with the stream can stall for five seconds, while it counts as current.
Consumers that it leads have nothing to deliver meanwhile, so a consumer that should have messages is waited for
(`_has_nothing_yet`).

Replicas that lag do not hold the streams that are still to be restored: all streams wait for theirs together, in the
end (`wait_for_replicas`). Those of a stream from which its replicas could remove messages are waited for at once, but
not those on servers that are down.

**Copies** (`look_again`): streams that copy from others are checked when copying has settled.

A server begins to copy after the stream exists, and after it was proved. So this waits until the server has heard from
each origin at the target since the wait began (`active` in STREAM.INFO; heartbeats come every second), has no lag, and
the stream has not changed for a while; at most `_COPYING_SECONDS` in all. Then the new messages are compared with the
positions at which the sources should continue: a message after it is new, one before it was copied twice, which is a
failure whatever the plan said.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from jsbackup.config.connection import Connection
from jsbackup.engine.link.concurrency import gather_some, with_own_threads
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.restore.run import Copying, RestoredConsumer, RestoredStream
from jsbackup.errors import ApiError, DigestMismatch, JsBackupError, NatsError, NatsPermissionDenied, NatsTimeout
from jsbackup.failure import Failure
from jsbackup.model import ArchivedConsumer, Fidelity, JsonObject
from jsbackup.planning.copies.creation_order import upstreams_of
from jsbackup.planning.model import Action, PlannedConsumer, RestorePlan, SendAs, Target
from jsbackup.protocol.info import ConsumerInfo, SourceInfo, StreamInfo
from jsbackup.protocol.responses import lacks_stream
from jsbackup.readable import count_were, format_count, in_short
from jsbackup.repository.read.segments import state_to_restore
from jsbackup.transforms.copy_positions import SourceKey, mark_of

__all__ = ["Settled", "configure", "creatable", "look_again", "look_at_copying", "settle", "wait_for_replicas"]

_log = logging.getLogger(__name__)

_SECONDS = 30.0  # for consumers of a stream to appear; for the replicas of all streams to be current
_PAUSE_SECONDS = 0.25
_FIRST_SAID_SECONDS, _SAID_SECONDS = 2.0, 10.0  # lines about replicas: the first one, and the time between two
_AT_ONCE = 16
_CATCH_UP_SECONDS = (
    15.0  # for a replica that stalled; not longer, because the stream's rules may have removed its messages
)
_KNOWN_SECONDS = 20.0  # for a new stream to be known everywhere
_ANEW = "it was not there after the restore: it was created again, without its state"


@dataclass(frozen=True, slots=True)
class Settled:
    """The state of the stream. `incomplete` if something is missing; `notes` say what. `behind`: not all replicas are
    current.
    """

    info: StreamInfo | None
    consumers: tuple[RestoredConsumer, ...]
    notes: tuple[str, ...] = ()
    incomplete: bool = False
    behind: bool = False


async def settle(
    js: JetStream,
    name: str,
    planned: Sequence[PlannedConsumer],
    *,
    last_message: int,
    clustered: bool,
    everywhere: bool = False,
) -> Settled:
    """Wait for consumers, and create those that the restore omitted.

    `last_message` is the sequence of the last restored message. `everywhere`: wait for the replicas on all servers that
    are up.
    """
    wanted = {consumer.consumer.name: consumer for consumer in planned}
    began = time.monotonic()
    while True:
        info, consumers = await asyncio.gather(js.find_stream(name), _find_consumers(js, name, wanted))
        if consumers is None:  # not allowed to list them: all are there, or it is unknown
            missing = set() if info is not None and info.state.consumers >= len(wanted) else set(wanted)
        else:
            missing = wanted.keys() - consumers.keys()
        late = _late(info, consumers)
        waited = time.monotonic() - began
        empty = waited < _CATCH_UP_SECONDS and any(
            _has_nothing_yet(consumer, last_message) for consumer in (consumers or {}).values()
        )
        held = missing or empty or late is None or (everywhere and not all(late.values()))
        if not clustered or waited > _SECONDS or not held:
            break
        await asyncio.sleep(_PAUSE_SECONDS)
    notes = []
    lost = 0
    anew: dict[str, PlannedConsumer] = {}
    for consumer in sorted(missing):
        try:
            await js.create_consumer(name, creatable(wanted[consumer].consumer))
            anew[consumer] = replace(wanted[consumer], fidelity=Fidelity.CONFIG_ONLY, note=_ANEW)
            notes.append(
                f"consumer {consumer} was not there after the restore and was created again, without its state"
            )
        except JsBackupError as error:
            lost += 1
            notes.append(f"consumer {consumer} is missing: {error.message}")
    expected = {**wanted, **anew}
    restored = [_compare(expected[consumer], (consumers or {}).get(consumer)) for consumer in wanted]
    return Settled(info, tuple(restored), tuple(notes), lost > 0, late is None or bool(late))


@with_own_threads
async def wait_for_replicas(connection: Connection, streams: Sequence[RestoredStream]) -> list[RestoredStream]:
    """Wait until the replicas of all streams are current, at most `_SECONDS` in all. Those whose are not then are
    incomplete, with a note. Raises NatsError if there is no connection.
    """
    behind = {stream.as_name: stream for stream in streams if stream.behind}
    if not behind:
        return list(streams)
    began = time.monotonic()
    said = began + _FIRST_SAID_SECONDS
    async with connect_jetstream(connection) as js:

        async def look(stream: RestoredStream) -> dict[str, bool] | None:
            name = stream.as_name
            try:
                return _late(*await asyncio.gather(js.find_stream(name), _find_consumers(js, name, stream.consumers)))
            except NatsTimeout:
                return None

        while True:
            late = dict(zip(behind, await gather_some(_AT_ONCE, look, behind.values()), strict=True))
            behind = {name: behind[name] for name, servers in late.items() if servers != {}}
            waited = (now := time.monotonic()) - began
            if not behind or waited > _SECONDS:
                break
            if now >= said:
                said = now + _SAID_SECONDS
                _log.warning("waiting for replicas of %s: %s", format_count(len(behind), "stream"), in_short([*behind]))
            await asyncio.sleep(_PAUSE_SECONDS)
    notes = {name: _about_replicas(late[name] or {}, waited) for name in behind}
    return [
        replace(stream, notes=(*stream.notes, notes[stream.as_name]), incomplete=True)
        if stream.as_name in notes
        else stream
        for stream in streams
    ]


def _about_replicas(late: Collection[str], waited_seconds: float) -> str:
    which = f" on {', '.join(late)}" if late else ""
    return (
        f"not all replicas are current{which} after {waited_seconds:.0f} s; 'nats stream info' shows how far they are"
    )


def _late(info: StreamInfo | None, consumers: Mapping[str, ConsumerInfo] | None) -> dict[str, bool] | None:
    """Return which servers lack a part of the stream or its consumers, and which of them are down; None without a
    leader.
    """
    streams = [info.cluster] if info is not None and info.cluster is not None else []
    groups = [*streams, *(consumer.cluster for consumer in (consumers or {}).values() if consumer.cluster is not None)]
    if info is None or not all(group.leader for group in groups):
        return None
    lagging = [replica for group in streams for replica in group.replicas if not replica.is_current]
    lagging += [replica for group in groups for replica in group.replicas if not replica.current]
    return {consumer.name: consumer.offline for consumer in lagging}


async def _find_consumers(js: JetStream, name: str, wanted: Collection[object]) -> Mapping[str, ConsumerInfo] | None:
    """Return the stream's consumers, if any are wanted; None if the user may not list them."""
    if not wanted:
        return {}
    try:
        listing = await js.consumers(name)
    except NatsPermissionDenied:
        return None
    silent = {*listing.missing, *listing.offline}
    return {consumer: info for consumer, info in listing.entries.items() if consumer not in silent}


def _has_nothing_yet(consumer: ConsumerInfo, last_message: int) -> bool:
    """Return whether there are messages for it that its leader does not have yet."""
    filtered = consumer.config.get("filter_subject") or consumer.config.get("filter_subjects")
    return not filtered and not consumer.num_pending and consumer.delivered.stream < last_message


def _compare(planned: PlannedConsumer, now: ConsumerInfo | None) -> RestoredConsumer:
    """Return the consumer with the planned fidelity, or less if the server holds less."""
    wanted, fidelity, note = planned.consumer.state, planned.fidelity, planned.note
    above = planned.above_floor
    if wanted is None or now is None or fidelity is Fidelity.CONFIG_ONLY:
        pass
    elif now.ack_floor.stream < wanted.ack_floor.stream:
        fidelity, above = Fidelity.CONFIG_ONLY, None
        note = f"the server did not restore its state: it is at {now.delivered.stream:,}"
    elif fidelity is Fidelity.EXACT:
        unmoved = now.ack_floor.consumer == wanted.ack_floor.consumer
        if now.delivered.consumer < wanted.delivered.consumer or (
            wanted.pending and not now.num_ack_pending and unmoved
        ):
            fidelity, note = Fidelity.FLOOR, "the server restored only its ack floor"
            above = wanted.delivered.consumer - wanted.ack_floor.consumer
    return RestoredConsumer(planned.consumer.name, fidelity, note, _again(planned, now, fidelity, above))


def _again(planned: PlannedConsumer, now: ConsumerInfo | None, fidelity: Fidelity, above: int | None) -> int | None:
    """Return the most messages that are redelivered; `above` are the deliveries above its ack floor, None if
    unknown.
    """
    state = planned.consumer.state
    if fidelity is Fidelity.EXACT:
        counted = None if planned.pending is not None or state is None else len(state.pending)
        return counted if now is None else now.num_ack_pending
    if fidelity is Fidelity.CONFIG_ONLY and planned.consumer.config.get("deliver_policy", "all") != "all":
        return 0 if planned.consumer.config["deliver_policy"] == "new" else None
    # Messages that clients of the target have already received count too.
    begun = 0 if state is None or fidelity is Fidelity.CONFIG_ONLY else state.delivered.consumer
    left = None if now is None else now.num_pending + max(0, now.delivered.consumer - begun)
    known = [count for count in (above, left) if count is not None]
    return min(known, default=None)


async def configure(js: JetStream, config: JsonObject) -> str:
    """Update the restored stream's configuration. Returns what prevents it ("" if nothing)."""
    deadline = time.monotonic() + _KNOWN_SECONDS
    while True:
        try:
            await js.update_stream(config)
            return ""
        except (ApiError, NatsPermissionDenied, NatsTimeout) as error:
            early = isinstance(error, NatsTimeout) or lacks_stream(error)
            if not early or time.monotonic() > deadline:
                return error.message
        await asyncio.sleep(_PAUSE_SECONDS)


def creatable(consumer: ArchivedConsumer) -> JsonObject:
    """Return the config for creating the consumer by the API."""
    config = dict(consumer.config)
    config.setdefault("name", consumer.name)
    return config


_COPYING_SECONDS = 20.0  # more than servers wait before they try an origin again for the first time
_QUIET_SECONDS = 1.0  # twice the time in which servers set up a source
_COPYING_PAUSE_SECONDS = 0.2
_MESSAGES_AT_ONCE = 64
_MOST = 4096  # how many of the new messages are read


async def look_again(
    js: JetStream, plan: RestorePlan, target: Target, results: Sequence[RestoredStream], *, failures: Sequence[Failure]
) -> tuple[list[RestoredStream], list[Failure]]:
    """Return the results with notes on copying; streams that copied twice are among the failures.

    `target` is its state before the restore.
    """
    actions = {action.name: action for action in plan.actions}
    names = {*target.streams, *(result.as_name for result in results)}
    deadline = time.monotonic() + _COPYING_SECONDS

    async def look(result: RestoredStream) -> RestoredStream | Failure:
        action = actions[result.as_name]
        if action.wire is SendAs.API or not upstreams_of(action.config):
            return result
        try:
            return await _looked_at(js, action, result, names, deadline=deadline)
        except NatsError as error:
            note = f"cannot tell whether copying has settled: {error.message}"
            return replace(result, notes=(*result.notes, note), incomplete=True)

    looked = await asyncio.gather(*map(look, results))
    wrong = [result for result in looked if isinstance(result, Failure)]
    for failure in wrong:
        _log.warning("stream %s: %s", failure.name, failure.error.message)
    kept = [result for result in looked if isinstance(result, RestoredStream)]
    return kept, sorted([*failures, *wrong], key=lambda failure: failure.name)


@with_own_threads
async def look_at_copying(
    connection: Connection,
    plan: RestorePlan,
    target: Target,
    results: Sequence[RestoredStream],
    *,
    failures: Sequence[Failure],
) -> tuple[list[RestoredStream], list[Failure]]:
    """Do `look_again` on a new connection, if there is anything to check."""
    if not any(upstreams_of(action.config) for action in plan.actions):
        return list(results), list(failures)
    async with connect_jetstream(connection) as js:
        return await look_again(js, plan, target, results, failures=failures)


async def _looked_at(
    js: JetStream, action: Action, result: RestoredStream, names: set[str], *, deadline: float
) -> RestoredStream | Failure:
    restored = state_to_restore(action.entry).last_seq
    info, settled = await _settled_copy(js, action.name, names, deadline)
    if info is None:
        return result
    waiting = [source for source in _statuses(info) if source.active_ns < 0]
    unseen = ""
    arrived: list[tuple[SourceKey, int]] = []
    if action.config.get("sources"):
        try:
            arrived = await _arrived(js, info, restored)
        except NatsPermissionDenied as error:
            unseen = error.message
    starts = {start.key: start.sequence for start in action.starts}
    twice = sum(1 for key, sequence in arrived if sequence <= (starts.get(key) or 0))
    new = max(info.state.last_seq - restored, 0)
    if twice:
        count = format_count(twice, "message")
        message = f"stream {action.name} has copied {count} of its origins twice since it was restored"
        hint = "Delete it, restore it again, and report what 'jsbackup plan' says about it."
        return Failure(action.name, DigestMismatch(message, hint=hint))
    notes = [f"cannot tell whether messages were copied twice: {unseen}"] if unseen else []
    for source in waiting:
        why = f": {source.error}" if source.error else ""
        seconds = "the server tries again within two minutes"
        notes.append(f"has not begun to copy from {source.name}{why} ({seconds})")
    known = [source for source in waiting if source.external is None and source.name in names]
    if settled:
        count = f"{count_were(new, 'new message')} copied since, none twice" if new else "nothing was copied since"
        notes.append(f"copying has settled: {count}")
    elif not known:
        notes.append(f"copying has not settled: {count_were(new, 'message')} copied so far, none twice")
    copying = Copying(settled, new, tuple(source.name for source in waiting))
    return replace(result, notes=(*result.notes, *notes), copying=copying, incomplete=result.incomplete or bool(known))


def _statuses(info: StreamInfo) -> list[SourceInfo]:
    return [*([info.mirror] if info.mirror else []), *info.sources]


async def _settled_copy(js: JetStream, name: str, names: set[str], deadline: float) -> tuple[StreamInfo | None, bool]:
    """Return the stream once it is quiet or time is up, and whether it is quiet; None if it was deleted. Raises
    NatsError.
    """
    before: object = None
    began = since = time.monotonic()
    while True:
        info = await js.find_stream(name)
        now = time.monotonic()
        if info is None:
            return None, False
        statuses = _statuses(info)
        # Origins that are missing, or cannot be seen, are not waited for. Earlier contact may have been with an origin
        # that was deleted since.
        heard = all(
            0 <= status.active_ns < (now - began) * 1e9
            for status in statuses
            if status.external is None and status.name in names
        )
        state = (info.state.last_seq, info.state.messages, tuple(status.lag for status in statuses))
        if state != before or not heard or any(status.lag for status in statuses):
            before, since = state, now
        elif now - since >= _QUIET_SECONDS:
            return info, True
        if now > deadline:
            return info, False
        await asyncio.sleep(_COPYING_PAUSE_SECONDS)


async def _arrived(js: JetStream, info: StreamInfo, restored: int) -> list[tuple[SourceKey, int]]:
    """Return the marks of the first new messages, in order: key and sequence. Raises NatsError."""
    marks: list[tuple[SourceKey, int]] = []
    at, last = restored + 1, min(info.state.last_seq, restored + _MOST)
    while at <= last:
        stop = min(at + _MESSAGES_AT_ONCE, last + 1)
        for message in await asyncio.gather(*(js.message(info.name, sequence) for sequence in range(at, stop))):
            if message is not None and message.headers and (mark := mark_of(message.headers)):
                marks.append(mark[:2])
        at = stop
    return marks
