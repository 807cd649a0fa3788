"""The deleted sequences of a stream that is followed, without asking for the list each time."""

from __future__ import annotations

from jsbackup.engine.read.increment import PresentSequences
from jsbackup.model import StreamState

__all__ = ["KnownDeleted"]


class KnownDeleted:
    """The deleted sequences at a state of the stream. While its tail exists, the counts of a later state show whether
    anything was deleted since.
    """

    def __init__(self) -> None:
        self._known: tuple[StreamState, tuple[int, ...]] | None = None
        self._next: tuple[StreamState, tuple[int, ...]] | None = None

    def forget(self) -> None:
        self._known = self._next = None

    def note(self, state: StreamState, deleted: tuple[int, ...]) -> None:
        """Note what a backup has that is not committed yet."""
        self._next = state, deleted

    def committed(self) -> None:
        """What was noted last is in a backup."""
        self._known, self._next = self._next or self._known, None

    def at(self, state: StreamState) -> tuple[int, ...] | None:
        """Return those of a later state if nothing was deleted since, but from the front; else None."""
        if self._known is None:
            return None
        then, deleted = self._known
        present = PresentSequences(then, deleted)
        gone = present.count(then.first_seq, state.first_seq - 1)
        if not then.first_seq <= state.first_seq <= then.last_seq:
            return None
        if then.messages - gone + state.last_seq - then.last_seq != state.messages:
            return None
        return tuple(sequence for sequence in deleted if sequence >= state.first_seq)
