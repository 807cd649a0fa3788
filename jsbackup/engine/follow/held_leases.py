"""Leases under which streams are read: that of the present backup, and earlier ones whose reading continues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

from jsbackup.engine.link.threads import in_thread
from jsbackup.repository.keep.leases import Lease
from jsbackup.repository.write.new_backup import StoredStream

__all__ = ["HeldLease", "HeldLeases"]


@dataclass(frozen=True, slots=True, eq=False)
class HeldLease:
    """A lease, and the readings under it."""

    lease: Lease
    stack: ExitStack
    readings: set[asyncio.Task[StoredStream]] = field(default_factory=set)


class HeldLeases:
    def __init__(self, hold: Callable[[], AbstractContextManager[Lease]]) -> None:
        self._hold = hold
        self._held: list[HeldLease] = []

    async def take(self) -> HeldLease:
        """Take another lease. Raises as `hold`."""
        stack = ExitStack()
        try:
            held = HeldLease(await in_thread(stack.enter_context, self._hold()), stack)
        except BaseException:  # if cancelled, it may be held by now
            await in_thread(stack.close)
            raise
        self._held.append(held)
        return held

    def check(self) -> None:
        """Raise RepositoryLocked if one of the leases was lost."""
        for held in self._held:
            held.lease.check()

    async def give_up(self, reading: Iterable[asyncio.Task[StoredStream]]) -> None:
        """Release leases without readings: what was stored under them is named by now, or never will be."""
        going_on = set(reading)
        for held in [held for held in self._held if not held.readings & going_on]:
            self._held.remove(held)
            # In a thread, because it waits for the store.
            await in_thread(held.stack.close)
