"""Remove what unfinished restores left on the server, of this run and of earlier ones, and nothing else.

A server continues when its client has gone: it reads the chunks in flight, then waits five seconds. If the stream is
deleted meanwhile, the remaining chunks create it again (measured: 2.15, archive v2), and an archive v1 creates it only
after its end was read. So the restore is ended first. An empty chunk ends it on every version, from any connection; the
answer, or that no one listens any more, shows that it is over.

If that is impossible (the server is unreachable, or this process is killed), the stream stays, with its mark
(`planning/interrupted.py`). A later restore recognizes it and removes it first.

**Concurrent replacements** of one stream: the command that needs a copy (`planning/interrupted.py`) announces
it.

A copy names a subject to which its command subscribes until it ends. No answers are needed: without a subscriber, the
server reports that at once. If it cannot be found out (no permission to publish, a distant server that does not
answer), the command counts as running: its copy and the stream that it replaces are left alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from jsbackup.config.connection import Connection
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.errors import (
    ApiError,
    JsBackupError,
    NatsError,
    NatsNoResponders,
    NatsPermissionDenied,
    NatsTimeout,
    TargetConflict,
    TransferError,
)
from jsbackup.planning.interrupted import ALL_COPIES, AT_WORK, StagedCopy, is_marked, needed_by, replaced_by
from jsbackup.planning.model import Action
from jsbackup.protocol import api
from jsbackup.protocol.info import StreamInfo, stream_info
from jsbackup.protocol.restore import RestoreSender, RestoreState

if TYPE_CHECKING:
    from jsbackup.engine.restore.send_archive import Supply

__all__ = [
    "abandon_restore",
    "at_work",
    "make_way",
    "refuse_beside",
    "refuse_others",
    "remove_copies",
    "remove_leftover",
    "remove_stream",
]

_LATER = "Run this again when that command has ended."


@asynccontextmanager
async def at_work(connection: Connection) -> AsyncIterator[str]:
    """Yield a subject that marks this command as running until it exits. Raises NatsError."""
    async with connect_jetstream(connection) as js:
        subject = f"{js.link.new_inbox()}.{AT_WORK}"
        async with js.link.subscribe(subject):
            await js.link.flush()
            yield subject


async def refuse_others(js: JetStream, name: str, copies: Sequence[StagedCopy]) -> None:
    """Raise TargetConflict if a running command needs one of these copies of stream `name`."""
    for copy in copies:
        if await _is_at_work(js, copy.needed_by):
            raise TargetConflict(f"stream {name} is being replaced by another command ({copy.name})", hint=_LATER)


async def refuse_beside(js: JetStream, name: str, staged: str) -> None:
    """Check before stream `name` is deleted: raise TargetConflict if its copy `staged` is gone, or another command
    replaces it too.

    Each command makes its copy first, so of two at the same time both see the other.
    """
    try:
        names = set((await js.stream_names(ALL_COPIES)).entries)
    except NatsPermissionDenied:
        names = {staged} if await js.find_stream(staged) is not None else set()
    if staged not in names:
        raise TargetConflict(
            f"stream {name} is not replaced: its copy {staged} was removed meanwhile",
            hint="Find out who removed it, and run the command again.",
        )
    for other in sorted(names - {staged}):
        info = await js.find_stream(other)
        if info is None or replaced_by(other, info.config) != name:
            continue
        if await _is_at_work(js, needed_by(info.config)):
            raise TargetConflict(f"stream {name} is being replaced by another command ({other})", hint=_LATER)


async def _is_at_work(js: JetStream, subject: str) -> bool:
    """Return whether someone subscribes to it, or it is unknown. Copies of older versions and killed commands
    have "".
    """
    if not subject:
        return False
    try:
        await js.link.request(subject, timeout=js.timeout_seconds)
    except NatsNoResponders:
        return False
    except (NatsTimeout, NatsPermissionDenied):
        pass
    return True


_log = logging.getLogger(__name__)

_SERVER_SECONDS = 30.0  # for a server that went away to come back
_PAUSE_SECONDS = 1.0
_END_SECONDS = 10.0  # for the server to process the data in flight
_APPEAR_SECONDS = 5.0  # for a stream whose archive was complete when it was given up
_APPEAR_PAUSE_SECONDS = 0.2
_SILENT_SECONDS = 2.0  # for answers about a stream for which perhaps no server answers
# Server source, 2.15: five seconds after a restore in a cluster, its server requests consumers that are missing, by
# their names. If another stream of that name is being restored then, it gets them, without a state if the first had one
# replica (measured).
_ASKING_SECONDS = 6.0


# --- of this run ---


async def remove_stream(connection: Connection, name: str) -> None:
    """Delete a stream that this run made, waiting a while for the server. Errors are logged."""
    await _insist(connection, name, lambda js: js.delete_stream(name), _SERVER_SECONDS)


async def abandon_restore(connection: Connection, sender: RestoreSender) -> None:
    """End the restore at the server and delete what it made, waiting a while for the server.

    A stream without the marker, if `sender` sends one, belongs to someone else and stays; so does, if it sends none, a
    stream without messages, or with others than were sent. Errors are logged.
    """
    # Without an answer to the request there is hardly ever anything: check, but do not wait.
    seconds = _SERVER_SECONDS if sender.deliver_subject is not None else 0.0
    await _insist(connection, sender.stream, lambda js: _abandon(js, sender), seconds)


async def _abandon(js: JetStream, sender: RestoreSender) -> None:
    if sender.deliver_subject is None and js.link.cluster_name is not None:
        await _free_name(js, sender)
        return
    if sender.state in (RestoreState.ENDING, RestoreState.ANSWERED):
        await _appear(js, sender.stream)
    elif sender.deliver_subject is not None:
        try:
            await js.link.request(sender.deliver_subject, b"", _END_SECONDS)
        except (TransferError, NatsPermissionDenied):
            raise
        except NatsError:
            pass  # no one listens: it was already over; or the server is still busy, and there is no way to find out
    info = await js.find_stream(sender.stream)
    # Measured: clusters keep the name of a failed restore. There is no such stream then, but it can be deleted.
    nameless = info is None and sender.deliver_subject is not None and js.link.cluster_name is not None
    if nameless or (info is not None and _is_made_by(sender, info)):
        await js.delete_stream(sender.stream)
    elif info is not None and not is_marked(sender.config):
        _log.warning("stream %s exists; it may be half-restored or belong to another client: check it", sender.stream)


async def _free_name(js: JetStream, sender: RestoreSender) -> None:
    """Make the cluster forget a restore that no server has answered for.

    The meta leader does so at once, but does not answer: only the server that the restore was assigned to would
    (measured on 2.15.2). If the name had belonged to another stream, the request would have been refused.
    """
    info = None
    try:
        info = stream_info(await js.link.api(api.stream_info(js.prefix, sender.stream), _SILENT_SECONDS))
    except NatsPermissionDenied:
        raise
    except NatsError as error:
        _log.debug("stream %s: %s", sender.stream, error.message)
    if info is None or _is_made_by(sender, info):
        try:
            await js.link.api(api.stream_delete(js.prefix, sender.stream), _SILENT_SECONDS)
        except (NatsTimeout, ApiError) as error:
            _log.debug("stream %s: %s", sender.stream, error.message)


def _is_made_by(sender: RestoreSender, info: StreamInfo) -> bool:
    """Return whether `sender` made the stream. Without the mark the messages decide: published ones are later."""
    if is_marked(sender.config) or is_marked(info.config):
        return is_marked(info.config) == is_marked(sender.config)
    state, sent = info.state, sender.stream_state
    return 0 < state.messages <= sent.messages and state.last_seq <= sent.last_seq and state.last_ns <= sent.last_ns


async def _appear(js: JetStream, name: str) -> None:
    deadline = time.monotonic() + _APPEAR_SECONDS
    while await js.find_stream(name) is None and time.monotonic() < deadline:
        await asyncio.sleep(_APPEAR_PAUSE_SECONDS)


async def _insist(
    connection: Connection, name: str, remove: Callable[[JetStream], Awaitable[None]], seconds: float
) -> None:
    """Do it on a separate connection, repeatedly until `seconds` have passed."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            async with connect_jetstream(connection) as js:
                await remove(js)
            return
        except JsBackupError as error:
            if isinstance(error, NatsPermissionDenied) or time.monotonic() > deadline:
                doubtful = logging.WARNING if seconds else logging.DEBUG
                _log.log(doubtful, "stream %s may be half-restored: %s", name, error.message)
                return
        await asyncio.sleep(_PAUSE_SECONDS)


# --- of earlier runs ---


async def remove_leftover(js: JetStream, supply: Supply, action: Action) -> tuple[str, ...]:
    """Remove a leftover, and return notes. Raises TargetConflict if it has become more than that."""
    info = await js.find_stream(action.name)
    if info is None:  # a name that a restore in a cluster has occupied
        await js.delete_stream(action.name)
        return ()
    if not is_marked(info.config):
        raise TargetConflict(
            f"stream {action.name} at the target was created after the plan was made",
            hint="Check it; --if-exists says what to do with it.",
        )
    if not (action.forced or await supply.has_last(action, info.state)):
        raise TargetConflict(
            f"stream {action.name} is left over from an interrupted restore, and has newer messages",
            hint="Check it. --if-exists replace deletes it with all its messages.",
        )
    await make_way(js, info)
    count = info.state.messages
    note = f"removed a leftover of {count:,} {'message' if count == 1 else 'messages'} of an interrupted restore"
    _log.info("stream %s: %s", action.name, note)
    return (note,)


async def remove_copies(js: JetStream, copies: Sequence[StagedCopy]) -> tuple[str, ...]:
    """Remove copies that interrupted replacements have left, and return notes on them."""
    notes = []
    for copy in copies:
        try:
            await js.delete_stream(copy.name)
            notes.append(f"removed the copy {copy.name}, which an interrupted replace had left")
        except JsBackupError as error:
            notes.append(f"the copy {copy.name}, left by an interrupted replace, is not removed: {error.message}")
    return tuple(notes)


async def make_way(js: JetStream, info: StreamInfo) -> None:
    """Delete a stream that is replaced, but not before the cluster has finished with its consumers."""
    if js.link.cluster_name is not None and info.state.consumers:
        age_seconds = (info.now_ns - info.created_ns) / 1e9
        await asyncio.sleep(max(0.0, _ASKING_SECONDS - max(0.0, age_seconds)))
    await js.delete_stream(info.name)
