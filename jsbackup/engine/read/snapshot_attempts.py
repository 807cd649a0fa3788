"""How often a snapshot is tried, with which limits and after which pause.

Attempts adapt: after a broken transfer the next one uses a smaller window and smaller chunks (better for slow links and
slow stores). Waiting for another snapshot of the stream is not an attempt.

If a block comes encrypted (`SealedBlock`), all messages are read once: the server then knows the keys of all blocks. It
would also read them for a check, but one that finds damage makes servers before 2.14 refuse all further snapshots.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import TypeVar

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.consume import read_messages
from jsbackup.engine.read.snapshot_acks import CaptureLimits
from jsbackup.errors import (
    ApiError,
    FormatError,
    JsBackupError,
    NatsPermissionDenied,
    NatsTimeout,
    SnapshotBusy,
    TransferError,
    UnsupportedError,
)
from jsbackup.formats.archive.archive import SealedBlock
from jsbackup.progress import ignored

__all__ = ["REPEATABLE", "SnapshotAttempts"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

REPEATABLE = (TransferError, NatsTimeout, FormatError)
"""Errors of a snapshot after which another attempt may succeed. UnsupportedError needs another way of reading."""

_ATTEMPTS = 4
_IMPORTED = "The account that has the streams must export where snapshots are sent: see 'jsbackup help accounts'."
_FIRST_PAUSE_SECONDS = 0.5  # doubled with each attempt
_BUSY_SECONDS = 120.0  # how long to wait for another snapshot of the stream
_BUSY_PAUSE_SECONDS = 1.0


class SnapshotAttempts:
    """The attempts to take a snapshot of a stream: the `number` of the present one, and its `limits`.

    `level` is that of the log.
    """

    def __init__(self, js: JetStream, stream: str, limits: CaptureLimits, *, level: int = logging.WARNING) -> None:
        self._js = js
        self._woken = False
        self.number = 1
        self.limits = limits
        self._stream = stream
        self._level = level
        self._busy_until = time.monotonic() + _BUSY_SECONDS

    async def run(
        self,
        read: Callable[[CaptureLimits], Awaitable[T]],
        without_snapshot: Callable[[CaptureLimits, UnsupportedError], Awaitable[T]],
    ) -> T:
        """Return what `read` returns, or `without_snapshot` after an UnsupportedError: no snapshot can be made or
        decoded. Both are repeated.
        """
        unsupported: UnsupportedError | None = None
        while True:
            try:
                if unsupported is None:
                    return await read(self.limits)
                return await without_snapshot(self.limits, unsupported)
            except UnsupportedError as error:
                if unsupported is not None:
                    raise
                unsupported = error
            except REPEATABLE as error:
                await self.next(error)

    async def next(self, error: JsBackupError) -> None:
        """Wait before another attempt after this error of a snapshot. Raises the error if there is none."""
        if isinstance(error, SnapshotBusy):
            if time.monotonic() > self._busy_until:
                raise error
            _log.info("%s; waiting", error.message)
            await asyncio.sleep(_BUSY_PAUSE_SECONDS)
            return
        if self.number == _ATTEMPTS or (isinstance(error, TransferError) and not error.retry):
            if isinstance(error, NatsTimeout) and self._js.link.connection.js_api_prefix is not None:
                raise error.with_hint(_IMPORTED) from error.__cause__
            raise error
        if isinstance(error, SealedBlock) and not self._woken:
            self._woken = True
            await self._wake()
            return
        await self.repeat(error, _FIRST_PAUSE_SECONDS * 2 ** (self.number - 1))
        self.limits = self.limits.reduced()

    async def _wake(self) -> None:
        """Let the server read all blocks, as far as it can."""
        _log.info("stream %s: the server sends it encrypted until it has read its messages once", self._stream)
        with suppress(ApiError, FormatError, NatsPermissionDenied, NatsTimeout, TransferError, UnsupportedError):
            info = await self._js.stream(self._stream)
            messages = read_messages(self._js, info, ignored, only={"headers_only": True})
            async with aclosing(messages):
                async for _ in messages:
                    pass

    async def repeat(self, error: JsBackupError, pause_seconds: float) -> None:
        """Wait before another attempt with the same limits."""
        self.number += 1
        text = "stream %s: %s; attempt %d in %.1f s"
        _log.log(self._level, text, self._stream, error.message, self.number, pause_seconds)
        await asyncio.sleep(pause_seconds)
