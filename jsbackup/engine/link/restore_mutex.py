"""A mutex for operations that a single nats-server must not do at once: beginning and ending restores, creating and
deleting streams.

Server source: `RestoreStream` (2.11 to 2.15, and the newest source) counts the account's streams without the lock that
guards them (`tieredReservation`), if the server is not a cluster. Go ends a process that reads a map during a write:
"fatal error: concurrent map iteration and map write" (measured: restores of 1,000 small streams, four at a time, ended
a server of 2.15.1 in ten of twelve runs, one of 2.14.6 in three of five, those of 2.11.11 and 2.12.8 in three of eight;
in turns none did in fourteen).

From 2.12.6 on streams are counted when a restore begins (2.15: when it has read the first frame), before that when its
end arrives. The map is written when a restore has ended, and when a stream is created or deleted. So these take turns
within this process. Other processes cannot be coordinated.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self
from weakref import WeakKeyDictionary

__all__ = ["Turn"]

_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class Turn:
    """A turn that can be taken and given back repeatedly; with `needed` False nothing waits."""

    def __init__(self, needed: bool) -> None:
        self._needed = needed
        self._taken = False

    async def take(self) -> None:
        """Wait for the turn, in the order of requests, unless it is already taken."""
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
    """Return the lock: one for all servers, because a run restores into one."""
    return _lines.setdefault(asyncio.get_running_loop(), asyncio.Lock())
