"""After a restore or a clone: check streams that copy from others, when copying has settled.

A server begins to copy after the stream exists, and after it was proved. So this waits until the server has heard from
each origin at the target since the wait began (`active` in STREAM.INFO; heartbeats come every second), has no lag, and
the stream has not changed for a while; at most `_SECONDS` in all. Then the new messages are compared with the positions
at which the sources should continue: a message after it is new, one before it was copied twice, which is a failure
whatever the plan said.

Streams that copy from restored ones, but were not restored themselves, are checked too: new messages in them are
reported. Server source: every ten seconds they check whether they have heard from their origin in the last ten.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jsbackup.config import Connection
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.link.threads import with_own_threads
from jsbackup.engine.restore.restored_stream import Copying, RestoredStream
from jsbackup.errors import DigestMismatch, NatsError, NatsPermissionDenied
from jsbackup.failure import Failure
from jsbackup.planning.copies.creation_order import origin_names, upstreams_of
from jsbackup.planning.model import Action, RestorePlan, SendAs, Target
from jsbackup.protocol.info import SourceInfo, StreamInfo
from jsbackup.readable import count_were, format_count
from jsbackup.repository.read.segments import state_to_restore
from jsbackup.transforms.copy_positions import SourceKey, mark_of

__all__ = ["look_again", "look_at_copying"]

_log = logging.getLogger(__name__)

_SECONDS = 20.0  # more than servers wait before they try an origin again for the first time
_LEFT_SECONDS = 30.0
_QUIET_SECONDS = 1.0  # twice the time in which servers set up a source
_PAUSE_SECONDS = 0.2
_AT_ONCE = 64
_MOST = 4096  # how many of the new messages are read


async def look_again(
    js: JetStream, plan: RestorePlan, target: Target, results: Sequence[RestoredStream], *, failures: Sequence[Failure]
) -> tuple[list[RestoredStream], list[Failure]]:
    """Return the results with notes on copying; streams that copied twice are among the failures.

    `target` is its state before the restore.
    """
    actions = {action.name: action for action in plan.actions}
    there = {*target.streams, *(result.as_name for result in results)}
    deadline = time.monotonic() + _SECONDS

    async def one(result: RestoredStream) -> RestoredStream | Failure:
        action = actions[result.as_name]
        if action.wire is SendAs.API or not upstreams_of(action.config):
            return result
        try:
            return await _looked_at(js, action, result, there, deadline=deadline)
        except NatsError as error:
            note = f"cannot tell whether copying has settled: {error.message}"
            return replace(result, notes=(*result.notes, note), incomplete=True)

    looked, notes = await asyncio.gather(
        asyncio.gather(*map(one, results)),
        _left_copies(js, {result.as_name for result in results}, actions, target),
    )
    kept = [one for one in looked if isinstance(one, RestoredStream)]
    wrong = [one for one in looked if isinstance(one, Failure)]
    for failure in wrong:
        _log.warning("stream %s: %s", failure.name, failure.error.message)
    kept = [replace(one, notes=(*one.notes, *notes.get(one.as_name, ()))) for one in kept]
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
    copies = any(upstreams_of(action.config) for action in plan.actions)
    brought = {result.as_name for result in results}
    if not copies and not any(origin_names(info.config) & brought for info in target.streams.values()):
        return list(results), list(failures)
    async with connect_jetstream(connection) as js:
        return await look_again(js, plan, target, results, failures=failures)


async def _looked_at(
    js: JetStream, action: Action, result: RestoredStream, there: set[str], *, deadline: float
) -> RestoredStream | Failure:
    restored = state_to_restore(action.entry).last_seq
    info, settled = await _settled(js, action.name, there, deadline)
    if info is None:
        return result
    waiting = [source for source in _statuses(info) if source.active_ns < 0]
    unseen = ""
    arrived = _Arrived()
    if action.config.get("sources"):
        try:
            arrived = await _arrived(js, info, restored)
        except NatsPermissionDenied as error:
            unseen = error.message
    twice = arrived.twice({start.key: start.sequence for start in action.starts})
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
    known = [source for source in waiting if source.external is None and source.name in there]
    if settled:
        count = f"{count_were(new, 'new message')} copied since, none twice" if new else "nothing was copied since"
        notes.append(f"copying has settled: {count}")
    elif not known:
        notes.append(f"copying has not settled: {count_were(new, 'message')} copied so far, none twice")
    copying = Copying(settled, new, tuple(source.name for source in waiting))
    return replace(result, notes=(*result.notes, *notes), copying=copying, incomplete=result.incomplete or bool(known))


def _statuses(info: StreamInfo) -> list[SourceInfo]:
    return [*([info.mirror] if info.mirror else []), *info.sources]


async def _settled(js: JetStream, name: str, there: set[str], deadline: float) -> tuple[StreamInfo | None, bool]:
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
            0 <= one.active_ns < (now - began) * 1e9 for one in statuses if one.external is None and one.name in there
        )
        state = (info.state.last_seq, info.state.messages, tuple(one.lag for one in statuses))
        if state != before or not heard or any(one.lag for one in statuses):
            before, since = state, now
        elif now - since >= _QUIET_SECONDS:
            return info, True
        if now > deadline:
            return info, False
        await asyncio.sleep(_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class _Arrived:
    """The marks of new messages, in order: key and sequence."""

    marks: tuple[tuple[SourceKey, int], ...] = ()

    def twice(self, starts: Mapping[SourceKey, int | None]) -> int:
        """Return how many of them had been copied before."""
        return sum(1 for key, sequence in self.marks if sequence <= (starts.get(key) or 0))


async def _arrived(js: JetStream, info: StreamInfo, restored: int) -> _Arrived:
    """Return the marks of the first new messages. Raises NatsError."""
    marks: list[tuple[SourceKey, int]] = []
    at, last = restored + 1, min(info.state.last_seq, restored + _MOST)
    while at <= last:
        stop = min(at + _AT_ONCE, last + 1)
        for message in await asyncio.gather(*(js.message(info.name, sequence) for sequence in range(at, stop))):
            if message is not None and message.headers and (mark := mark_of(message.headers)):
                marks.append(mark[:2])
        at = stop
    return _Arrived(tuple(marks))


async def _left_copies(
    js: JetStream, brought: set[str], actions: Mapping[str, Action], target: Target
) -> dict[str, list[str]]:
    """Return notes, by restored stream, on new messages in streams that copy from it and were not restored."""
    there = {*target.streams, *brought}
    deadline = time.monotonic() + _LEFT_SECONDS
    left = {
        name: origins
        for name, info in sorted(target.streams.items())
        if (origins := origin_names(info.config) & brought) and name not in actions and name not in target.leftovers
    }

    async def one(name: str) -> str:
        try:
            info, settled = await _settled(js, name, there, deadline)
        except NatsError:
            return ""
        if info is None:
            return ""
        if any(status.active_ns < 0 and status.name in left[name] for status in _statuses(info)):
            return f"stream {name} has not begun to copy from it; the server tries again within two minutes"
        new = max(info.state.last_seq - target.streams[name].state.last_seq, 0)
        so_far = "" if settled else " so far"
        return f"stream {name}, which copies from it, has got {format_count(new, 'message')} since{so_far}"

    notes: dict[str, list[str]] = {}
    for name, note in zip(left, await asyncio.gather(*map(one, left)), strict=True):
        for origin in sorted(left[name]) if note else ():
            notes.setdefault(origin, []).append(note)
    return notes
