"""Memory for messages on their way to and from segments, shared by all streams of a run.

A segment is completely in memory before it is stored and when it is read: up to 32 MiB (or the repository's own size,
`objects.py`) if it cannot be compressed. Many streams at once would take many times that. So they share a `Room`:
each reserves what it is about to hold, and waits while the others hold too much.

Half a segment cannot be released, so waiting alone would be a deadlock. Therefore one of the waiting shares is the
first: it may hold whatever it needs until its segment is stored and released; then another is first. The rest share
`SHARED_BYTES`. In all that is `SHARED_BYTES` and one segment, or those that are compressed at once of a stream that is
alone (`write/segment_writer.py`).

The waiting share that holds most becomes the first, so that most is released soonest. A thread must not wait for one
share while it holds another.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from jsbackup.memory import give_back

__all__ = ["SHARED_BYTES", "BudgetShare", "Room"]

SHARED_BYTES = 12 << 20  # Measured: 24 MiB are no faster with any number of streams, and add 20 MiB to the peak


class Room:
    """The memory of all shares. May be used from several threads."""

    def __init__(self, shared_bytes: int = SHARED_BYTES) -> None:
        self._shared_bytes = shared_bytes
        self._changed = threading.Condition()
        self._held: dict[BudgetShare, int] = {}
        self._waiting: set[BudgetShare] = set()
        self._first: BudgetShare | None = None

    def share(self) -> BudgetShare:
        """Return a share for one stream, which holds nothing yet."""
        return BudgetShare(self)

    @property
    def held_bytes(self) -> int:
        """The bytes held by all shares."""
        with self._changed:
            return sum(self._held.values())

    @property
    def users(self) -> int:
        """How many shares hold something."""
        with self._changed:
            return len(self._held)

    def hold(self, share: BudgetShare, size: int) -> None:
        if self._hold_at_once(share, size):
            return
        give_back()
        with self._changed:
            if share.closed:
                return
            self._waiting.add(share)
            self._changed.wait_for(lambda: share.closed or self._may_hold(share, size))
            self._waiting.discard(share)
            if not share.closed:
                self._held[share] = size

    def close(self, share: BudgetShare) -> None:
        with self._changed:
            share.closed = True
            self._held.pop(share, None)
            self._waiting.discard(share)
            if self._first is share:
                self._first = None
            self._changed.notify_all()

    def _hold_at_once(self, share: BudgetShare, size: int) -> bool:
        with self._changed:
            if share.closed:
                return True
            before = self._held.get(share, 0)
            if size < before:
                self._let_go(share, before, size)
            elif size > before:
                if not self._fits(share, size):
                    return False
                self._held[share] = size
            return True

    def _let_go(self, share: BudgetShare, before: int, size: int) -> None:
        self._held[share] = size
        if not size:
            del self._held[share]
        if self._first is share and 2 * size <= before:  # less is compression, not a stored segment
            self._first = None
        self._changed.notify_all()

    def _fits(self, share: BudgetShare, size: int) -> bool:
        others = sum(held for other, held in self._held.items() if other is not share and other is not self._first)
        return self._first is share or others + size <= self._shared_bytes

    def _may_hold(self, share: BudgetShare, size: int) -> bool:
        if self._fits(share, size):
            return True
        if self._first is None:
            self._first = max(self._waiting, key=lambda holder: self._held.get(holder, 0))
            self._changed.notify_all()
        return self._first is share


class BudgetShare:
    """The memory that one stream holds; none after `close`.

    Whoever gives up a stream closes its share while another thread may still add to it, and wait for room.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self.closed = False

    def hold(self, size: int) -> None:
        """Hold `size` bytes in all from now on. If that is more than before, waits until there is room. A closed share
        holds nothing, and does not wait.
        """
        self._room.hold(self, size)

    def close(self) -> None:
        """Release everything, for good. A thread that waits for room goes on."""
        self._room.close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
