"""Which messages a stream had removed by its limits, found out from the messages alone.

What a limit removes leaves no trace in the blocks: only `index.db` says so, and that may be missing or older. The same
holds for what a roll-up replaced, and for purges of a part, in servers before 2.11. So the history of the stream is
played again: each message is stored, each deletion done, in their order, and limits and roll-ups applied as the server
does (`filestore.go`: storeRawMsg, enforceMsgLimit, enforceBytesLimit). A message that cannot be read removes none, so
those that it had removed come back. Limits that were changed are taken as they are now.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable

from jsbackup.model import JsonObject
from jsbackup.repository.write.late_deletions import roll_up_of

__all__ = ["Replay"]


class Replay:
    """Plays the history of a stream with this config. `gone` are the sequences that limits removed."""

    def __init__(self, config: JsonObject) -> None:
        drops_old = config.get("discard", "old") == "old"
        self._per_subject = _limit(config, "max_msgs_per_subject")
        if config.get("discard_new_per_subject"):
            self._per_subject = 0
        self._messages = _limit(config, "max_msgs") if drops_old else 0
        self._bytes = _limit(config, "max_bytes") if drops_old else 0
        self._rolls_up = bool(config.get("allow_rollup_hdrs"))
        self.max_age_ns = _limit(config, "max_age")
        self.gone: set[int] = set()
        self._deleted: set[int] = set()
        self._newest: dict[bytes, int] = {}  # if one message is kept of each subject
        self._of_subject: dict[bytes, deque[int]] = {}
        self._order, self._sizes, self._head = array("Q"), array("L"), 0
        self._held_messages = self._held_bytes = 0

    @property
    def is_needed(self) -> bool:
        """Whether it has a limit that depends on the order of messages."""
        return bool(self._per_subject or self._messages or self._bytes or self._rolls_up)

    def store(self, sequence: int, subject: bytes, size: int, headers: bytes = b"") -> None:
        """Store a message; `size` is that of its record."""
        if self._messages or self._bytes:
            self._order.append(sequence)
            self._sizes.append(size)
            self._held_messages += 1
            self._held_bytes += size
        roll_up = roll_up_of(headers) if self._rolls_up else ""
        if self._per_subject == 1:
            before = self._newest.get(subject, 0)
            self._newest[subject] = sequence
            if before and before not in self._deleted:
                self._remove(before)
        elif self._per_subject or self._rolls_up:
            held = self._of_subject.setdefault(subject, deque())
            if roll_up == "sub":
                self._remove_all(held)
            held.append(sequence)
            if self._per_subject:
                self._limit_subject(held)
        if roll_up == "all":
            for one in list(self._newest.values()):
                self._remove_all([one] if one != sequence else [])
            for held in self._of_subject.values():
                self._remove_all([one for one in held if one != sequence])
        while (self._messages and self._held_messages > self._messages) or (
            self._bytes and self._held_bytes > self._bytes
        ):
            self._remove_first()

    def _remove_all(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            if sequence not in self._deleted:
                self._remove(sequence)

    def _limit_subject(self, held: deque[int]) -> None:
        if len(held) <= self._per_subject:
            return
        alive = [one for one in held if one not in self._deleted]
        held.clear()
        held.extend(alive)
        while len(held) > self._per_subject:
            self._remove(held.popleft())

    def delete(self, sequence: int) -> None:
        """Delete a message, as a tombstone says."""
        if sequence not in self._deleted:
            self._forget(sequence)

    def _remove(self, sequence: int) -> None:
        self.gone.add(sequence)
        self._forget(sequence)

    def _forget(self, sequence: int) -> None:
        self._deleted.add(sequence)
        if self._messages or self._bytes:
            self._take_from_totals(sequence)

    def _take_from_totals(self, sequence: int) -> None:
        at = bisect_left(self._order, sequence, self._head)
        if at < len(self._order) and self._order[at] == sequence and self._sizes[at]:
            self._held_messages -= 1
            self._held_bytes -= self._sizes[at]
            self._sizes[at] = 0

    def _remove_first(self) -> None:
        while not self._sizes[self._head]:
            self._head += 1
        self._remove(self._order[self._head])


def _limit(config: JsonObject, name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and value > 0 else 0
