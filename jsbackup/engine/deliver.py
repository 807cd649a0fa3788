"""One archive delivered to a restore: sent until it is there, or given up with nothing left of it.

A restore that broke off is not tried again here; the user may want to know first. But one that did not even begin is:
clusters fail at that now and then, and nothing is lost by another attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from jsbackup.config import Connection
from jsbackup.engine.abandon import abandon_restore
from jsbackup.engine.jetstream import JetStream
from jsbackup.engine.transmit import TransmitLimits, transmit
from jsbackup.errors import ApiError, JsBackupError, TargetConflict, TransferError
from jsbackup.protocol.responses import ErrCode
from jsbackup.protocol.restore import RestoreSender

__all__ = ["deliver"]

_log = logging.getLogger(__name__)

_ATTEMPTS = 4
_PAUSE_SECONDS = 0.5  # for the servers to forget what the last attempt made


# S: `processServiceImport` puts the header Nats-Request-Info there, and a restore takes it for archive (up to 2.15).
_IMPORTED = (
    "Chunks must not pass a service import, where nats-server puts a header before them: "
    "connect with a user of the account that has the streams."
)


async def deliver(
    js: JetStream,
    connection: Connection,
    begin: Callable[[], RestoreSender],
    archive: Callable[[], Iterable[bytes]],
    limits: TransmitLimits,
) -> None:
    """Send what `archive` makes, with a new sender from `begin` for each attempt. Raises as `transmit`."""
    for attempt in range(1, _ATTEMPTS + 1):
        sender = begin()
        try:
            await transmit(js, sender, archive, limits)
            return
        except BaseException as error:
            if isinstance(error, JsBackupError) and connection.js_api_prefix is not None:
                error.hint = _IMPORTED
            begun = sender.deliver_subject is not None
            refused = not begun and isinstance(error, (ApiError, TargetConflict))
            if not refused and not _is_name_taken(error):
                await asyncio.shield(abandon_restore(connection, sender))
            # After the first attempt it may be our own stream, just deleted, that still has the name.
            passing = isinstance(error, TransferError) or (attempt > 1 and _is_name_taken(error))
            if begun or not passing or attempt == _ATTEMPTS:
                raise
            _log.info("%s; attempt %d", error, attempt + 1)
        await asyncio.sleep(_PAUSE_SECONDS)


def _is_name_taken(error: BaseException) -> bool:
    cause = error.__cause__ if isinstance(error, TargetConflict) else None
    return isinstance(cause, ApiError) and cause.err_code in (ErrCode.STREAM_NAME_IN_USE, ErrCode.RESTORE_NAME_IN_USE)
