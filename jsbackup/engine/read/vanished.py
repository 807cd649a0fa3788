"""Messages that a stream had when its backup began, and that are gone at its end, although no limit removes any.

A server that finds a block of its store damaged or missing while it makes a snapshot v2 lowers its own count and goes
on (measured on 2.15.2). In what it says then, these messages cannot be told from deleted ones.
"""

from __future__ import annotations

from jsbackup.formats.sequences import SequenceSet, ranges_of
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.manifest import Losses, LostSpan
from jsbackup.transforms.removal import removes_messages

__all__ = ["vanished"]

_CAUSE = "they were there when the backup began, and not at its end"
_MOST_SPANS = 10_000
_MANY = 10


def vanished(before: StreamInfo, after: StreamInfo, *, suspected: bool) -> Losses:
    """Return which messages of `before` the stream `after` does not have: lost, unless somebody has deleted them.

    Unless damage is `suspected`, nothing is said of streams that remove messages by themselves, nor of what looks like
    deleted messages. Where sequences were missing before, only the number of messages is known.
    """
    if before.created != after.created or (removes_messages(before.config) and not suspected):
        return Losses()
    had, now = before.state, after.state
    if had.messages == had.last_seq - had.first_seq + 1 and (after.deleted is not None or not now.deleted):
        first, last = (now.first_seq, now.last_seq) if now.messages else (had.last_seq + 1, had.last_seq)
        gone = [(had.first_seq, min(first - 1, had.last_seq)), (max(last + 1, had.first_seq), had.last_seq)]
        deleted = SequenceSet(after.deleted or ())
        gone[1:1] = ranges_of(deleted.within(max(first, had.first_seq), min(last, had.last_seq)))
        if not suspected:  # a purge takes the first ones, and who deletes messages rarely takes so many in a row
            gone = [(low, high) for low, high in gone if low > had.first_seq and high - low + 1 >= _MANY]
        spans = [LostSpan(low, high, high - low + 1, False, _CAUSE) for low, high in gone if low <= high]
        return Losses(tuple(spans[:_MOST_SPANS]))
    missing = had.messages - (now.messages - max(0, now.last_seq - had.last_seq))
    if missing <= 0 or not suspected:
        return Losses()
    return Losses((LostSpan(had.first_seq, had.last_seq, min(missing, had.messages), False, _CAUSE),))
