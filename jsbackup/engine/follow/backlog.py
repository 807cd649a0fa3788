"""The memory that all tails share (`tail.py`), and when there is enough for a backup."""

from __future__ import annotations

import asyncio
from typing import Protocol

__all__ = ["Backlog"]


class _Tail(Protocol):
    """Who holds messages. `unread`: some of them are in no backup yet."""

    @property
    def unread(self) -> bool: ...

    def forget_one(self) -> bool:
        """Release the oldest messages that a backup has; False if there are none."""
        ...


class Backlog:
    """The memory of all tails: at most `limit_bytes`, and what the server has sent of each stream besides.

    `due` is set when `due_bytes` (raw) have arrived that no backup has.
    """

    def __init__(self, limit_bytes: int, due_bytes: int) -> None:
        self.due = asyncio.Event()
        self._limit_bytes = limit_bytes
        self._due_bytes = due_bytes
        self._tails: set[_Tail] = set()
        self._changed = asyncio.Event()
        self.held_bytes = 0
        self._new_bytes = 0

    def enter(self, tail: _Tail) -> None:
        self._tails.add(tail)

    def leave(self, tail: _Tail) -> None:
        self._tails.discard(tail)
        self.changed()

    def changed(self) -> None:
        """Note that something was read or released."""
        self._changed.set()

    def count(self, held_bytes: int, new_bytes: int) -> None:
        """Note that tails hold so much more, or less, and that so much more of it is in no backup (raw)."""
        self.held_bytes += held_bytes
        self._new_bytes += new_bytes
        if self._new_bytes >= self._due_bytes:
            self.due.set()

    @property
    def full(self) -> bool:
        return self.held_bytes > self._limit_bytes

    async def room_for(self, tail: _Tail) -> None:
        """Wait until there is room for more, or until nothing of `tail` is unread."""
        while tail.unread and self.full:
            # More than is needed now: the next message does not have to look for room again.
            enough = self._limit_bytes - self._limit_bytes // 8
            for other in self._tails:
                while self.held_bytes > enough and other.forget_one():
                    pass
            if self.held_bytes <= self._limit_bytes:
                return
            self.due.set()
            self._changed.clear()
            await self._changed.wait()
