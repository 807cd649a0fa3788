"""Remove what a restore that did not reach its end left at the server, and nothing else.

A server reads on when its client has gone: first the chunks that were on their way, then silence for five seconds. If
the stream is deleted meanwhile, what is still read makes it again (measured: 2.15, archive v2), and an archive v1 makes
it only after its end was read. So the server is told first that no more comes. An empty chunk is the end of a restore
on every version, from any connection; the answer to it, or that nobody listens any more, says that the restore is over.

If nobody can tell the server (it is gone, or this process is killed), the stream stays, with its mark (`marker.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from jsbackup.config import Connection
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.errors import ApiError, JsBackupError, NatsError, NatsPermissionDenied, NatsTimeout, TransferError
from jsbackup.planning.interrupted.marker import is_marked
from jsbackup.protocol import api
from jsbackup.protocol.info import StreamInfo, stream_info
from jsbackup.protocol.restore import RestoreSender, RestoreState

__all__ = ["abandon_restore", "remove_stream"]

_log = logging.getLogger(__name__)

_SERVER_SECONDS = 30.0  # for a server that went away to come back
_PAUSE_SECONDS = 1.0
_END_SECONDS = 10.0  # for the server to take in what was on its way
_APPEAR_SECONDS = 5.0  # for a stream whose archive the server had whole when it was given up
_APPEAR_PAUSE_SECONDS = 0.2
_SILENT_SECONDS = 2.0  # for answers about a stream that may have nobody to answer for it


async def remove_stream(connection: Connection, name: str) -> None:
    """Delete a stream that this run made, waiting a while for the server. What stands against it is logged."""
    await _insist(connection, name, lambda js: js.delete_stream(name), _SERVER_SECONDS)


async def abandon_restore(connection: Connection, sender: RestoreSender) -> None:
    """End the restore at the server and delete what it made, waiting a while for the server.

    A stream without the marker, if `sender` sends one, is somebody else's and stays; if it sends none, one that has no
    messages, or others than were sent. What goes wrong is logged.
    """
    # Without an answer to the request hardly anything can be there: look, but wait for nobody.
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
            pass  # nobody listens: it was over already; or the server is still at it, which is as much as can be known
    found = await js.find_stream(sender.stream)
    # Measured: clusters keep the name of a restore that failed. There is no such stream then, but it can be deleted.
    nameless = found is None and sender.deliver_subject is not None and js.link.cluster_name is not None
    if nameless or (found is not None and _is_made_by(sender, found)):
        await js.delete_stream(sender.stream)
    elif found is not None and not is_marked(sender.config):
        _log.warning(
            "stream %s is there, and may be half-restored, or belong to somebody else: check it", sender.stream
        )


async def _free_name(js: JetStream, sender: RestoreSender) -> None:
    """Have the cluster forget a restore that no server has answered for.

    The meta leader does so at once, but nobody answers: that is for the server that the restore was given to (measured
    on 2.15.2). Had the name been another's, the request would have been refused.
    """
    found = None
    try:
        found = stream_info(await js.link.api(api.stream_info(js.prefix, sender.stream), _SILENT_SECONDS))
    except NatsPermissionDenied:
        raise
    except NatsError as error:
        _log.debug("stream %s: %s", sender.stream, error.message)
    if found is None or _is_made_by(sender, found):
        try:
            await js.link.api(api.stream_delete(js.prefix, sender.stream), _SILENT_SECONDS)
        except (NatsTimeout, ApiError) as error:
            _log.debug("stream %s: %s", sender.stream, error.message)


def _is_made_by(sender: RestoreSender, found: StreamInfo) -> bool:
    """Whether `sender` made the stream. Without the mark the messages have to tell: whatever was published is later."""
    if is_marked(sender.config) or is_marked(found.config):
        return is_marked(found.config) == is_marked(sender.config)
    state, sent = found.state, sender.stream_state
    return 0 < state.messages <= sent.messages and state.last_seq <= sent.last_seq and state.last_ns <= sent.last_ns


async def _appear(js: JetStream, name: str) -> None:
    deadline = time.monotonic() + _APPEAR_SECONDS
    while await js.find_stream(name) is None and time.monotonic() < deadline:
        await asyncio.sleep(_APPEAR_PAUSE_SECONDS)


async def _insist(
    connection: Connection, name: str, remove: Callable[[JetStream], Awaitable[None]], seconds: float
) -> None:
    """Do it on a connection of its own, again until `seconds` have passed."""
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
