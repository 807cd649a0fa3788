"""How often a snapshot is tried, with which limits and after which pause.

Attempts adapt: after a broken transfer the next one uses a smaller window and smaller chunks (better for slow links and
slow stores). Waiting for another snapshot of the stream is no attempt.
"""

from __future__ import annotations

import asyncio
import logging
import time

from jsbackup.engine.read.snapshot_transfer import CaptureLimits
from jsbackup.errors import FormatError, JsBackupError, NatsTimeout, SnapshotBusy, TransferError

__all__ = ["REPEATABLE", "SnapshotAttempts"]

_log = logging.getLogger(__name__)

REPEATABLE = (TransferError, NatsTimeout, FormatError)
"""Errors of a snapshot after which another attempt may succeed. UnsupportedError needs another way of reading."""

_ATTEMPTS = 4
_FIRST_PAUSE_SECONDS = 0.5  # doubled with each attempt
_BUSY_SECONDS = 120.0  # how long to wait for another snapshot of the stream
_BUSY_PAUSE_SECONDS = 1.0


class SnapshotAttempts:
    """The attempts to take a snapshot of one stream: the `number` of the present one, and its `limits`.

    `level` is that of the log.
    """

    def __init__(self, stream: str, limits: CaptureLimits, *, level: int = logging.WARNING) -> None:
        self.number = 1
        self.limits = limits
        self._stream = stream
        self._level = level
        self._busy_until = time.monotonic() + _BUSY_SECONDS

    async def next(self, error: JsBackupError) -> None:
        """Wait before another attempt after this error of a snapshot. Raises the error if there is none."""
        if isinstance(error, SnapshotBusy):
            if time.monotonic() > self._busy_until:
                raise error
            _log.info("%s; waiting", error.message)
            await asyncio.sleep(_BUSY_PAUSE_SECONDS)
            return
        if self.number == _ATTEMPTS or (isinstance(error, TransferError) and not error.retry):
            raise error
        await self.repeat(error, _FIRST_PAUSE_SECONDS * 2 ** (self.number - 1))
        self.limits = self.limits.reduced()

    async def repeat(self, error: JsBackupError, pause_seconds: float) -> None:
        """Wait before another attempt with the same limits."""
        self.number += 1
        text = "stream %s: %s; attempt %d in %.1f s"
        _log.log(self._level, text, self._stream, error.message, self.number, pause_seconds)
        await asyncio.sleep(pause_seconds)
