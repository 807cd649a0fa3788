"""What a single nats-server must not be asked to do together: restores begin and end, streams come and go, in turns.

Server source: `RestoreStream` (2.11 to 2.15, and the newest source) counts the account's streams without the lock that
guards them (`tieredReservation`), where the server is no cluster. Go ends a process that meets a write while it reads a
map: "fatal error: concurrent map iteration and map write" (measured: restores of 1,000 small streams, four at a time,
ended a server of 2.15.1 in ten of twelve runs, one of 2.14.6 in three of five, those of 2.11.11 and 2.12.8 in three of
eight; in turns none did in fourteen).

From 2.12.6 on streams are counted when a restore begins (2.15: when it has read the first frame), before as its end
arrives. They are written to when a restore has ended, and when a stream is created or deleted. So these take turns,
within this process. Other processes cannot be asked to.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self
from weakref import WeakKeyDictionary

__all__ = ["Turn"]

_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class Turn:
    """A turn that can be taken, and given back, again and again; with `needed` False everybody has one."""

    def __init__(self, needed: bool) -> None:
        self._needed = needed
        self._taken = False

    async def take(self) -> None:
        """Wait for it, in the order of asking, unless it is taken already."""
        if self._needed and not self._taken:
            await _line().acquire()
            self._taken = True

    def give_back(self) -> None:
        if self._taken:
            self._taken = False
            _line().release()

    async def __aenter__(self) -> Self:
        await self.take()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()


def _line() -> asyncio.Lock:
    """One for all servers: a run restores into one."""
    return _lines.setdefault(asyncio.get_running_loop(), asyncio.Lock())
