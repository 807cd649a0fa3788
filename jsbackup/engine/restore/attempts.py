"""Deliver one archive to a restore: completely, or leaving nothing behind.

A restore that broke off is not retried; the user may want to know first. One that did not begin is: that happens in
clusters now and then, and another attempt does no harm. If a cluster assigned it to a server that is down, `NoLeader`
is raised: the name is free again, and the caller can retry when the cluster knows which servers are up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from jsbackup.config import Connection
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.restore.remove_unfinished import abandon_restore
from jsbackup.engine.restore.restore_transfer import Make, TransmitLimits, transmit
from jsbackup.errors import ApiError, JsBackupError, NatsTimeout, NoLeader, TargetConflict, TransferError
from jsbackup.protocol.responses import ErrCode
from jsbackup.protocol.restore import RestoreSender

__all__ = ["PAUSE_SECONDS", "deliver", "deliver_once", "did_not_begin"]

_log = logging.getLogger(__name__)

_ATTEMPTS = 4
PAUSE_SECONDS = 0.5  # for the servers to forget the last attempt


# Server source: `processServiceImport` adds the header Nats-Request-Info, and a restore takes it for archive data (up
# to 2.15).
_IMPORTED = (
    "Chunks must not pass a service import, where nats-server puts a header before them: "
    "connect with a user of the account that has the streams."
)


async def deliver(
    js: JetStream,
    connection: Connection,
    begin: Callable[[], RestoreSender],
    archive: Make,
    *,
    limits: TransmitLimits,
) -> None:
    """Send what `archive` makes, with a new sender from `begin` for each attempt. Raises as `transmit`."""
    attempt = 1
    while True:
        sender = begin()
        try:
            await deliver_once(js, connection, sender, archive, limits=limits)
            return
        except JsBackupError as error:
            if not did_not_begin(error, sender, attempt):
                raise
            _log.info("%s; attempt %d", error, attempt + 1)
        attempt += 1
        await asyncio.sleep(PAUSE_SECONDS)


async def deliver_once(
    js: JetStream,
    connection: Connection,
    sender: RestoreSender,
    archive: Make,
    *,
    limits: TransmitLimits,
) -> None:
    """Send what `archive` makes. After a failure, removes what is left, then raises as `transmit`."""
    try:
        await transmit(js, sender, archive, limits)
    except BaseException as error:
        refused = sender.deliver_subject is None and isinstance(error, (ApiError, TargetConflict))
        if not refused and not _is_name_taken(error):
            await asyncio.shield(abandon_restore(connection, sender))
        unanswered = sender.deliver_subject is None and isinstance(error, NatsTimeout)
        if unanswered and js.link.cluster_name is not None:
            raise NoLeader(f"{error}; the cluster placed the stream where no server answers") from error
        if isinstance(error, JsBackupError) and connection.js_api_prefix is not None:
            raise error.with_hint(_IMPORTED) from error.__cause__
        raise


def did_not_begin(error: JsBackupError, sender: RestoreSender, attempt: int) -> bool:
    """Return whether attempt `attempt` (from 1) failed before anything was sent, and another one makes sense."""
    # After the first attempt, our own stream, just deleted, may still have the name.
    passing = isinstance(error, TransferError) or (attempt > 1 and _is_name_taken(error))
    return sender.deliver_subject is None and passing and attempt < _ATTEMPTS


def _is_name_taken(error: BaseException) -> bool:
    cause = error.__cause__ if isinstance(error, TargetConflict) else None
    return isinstance(cause, ApiError) and cause.err_code in (ErrCode.STREAM_NAME_IN_USE, ErrCode.RESTORE_NAME_IN_USE)
