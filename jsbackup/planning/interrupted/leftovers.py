"""What an interrupted restore left at the target, told from a stream that somebody has written to since.

A stream that is being restored listens to its subjects, so publishers are acknowledged before it is whole. If it is
interrupted then, what is there is more than a leftover, although it carries the mark. It may be removed unasked only if
it has nothing that its backup does not have. Streams append: so that holds as long as its last message is one of the
backup's, by its time to the nanosecond. The plan looks at numbers that are at hand; before a leftover is removed that
message is looked up where the restore comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jsbackup.formats.batch import columns_from_batch
from jsbackup.model import StreamState
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.archiving import state_to_restore
from jsbackup.repository.segments import SegmentReader

if TYPE_CHECKING:
    from jsbackup.planning.model import Target

__all__ = ["grown_leftovers", "has_message_at"]


def grown_leftovers(entries: Mapping[str, StreamBackup], target: Target) -> frozenset[str]:
    """Which leftovers at the target have what their backup does not have. `entries` are by their name there."""
    return frozenset(
        name
        for name, entry in entries.items()
        if name in target.leftovers and name in target.streams and _has_grown(target.streams[name], entry)
    )


def _has_grown(there: StreamInfo, entry: StreamBackup) -> bool:
    if there.state.consumers > len(entry.consumers):
        return True
    ends = [entry.state.last_ns, *(ref.max_ns for ref in entry.segments)]
    beyond = there.state.last_seq > max(entry.state.last_seq, entry.captured.last_seq)
    return there.state.messages > 0 and (beyond or there.state.last_ns > max(ends))


def has_message_at(objects: Objects, entry: StreamBackup, state: StreamState) -> bool:
    """Whether the last message of a stream in `state` is one of the backup's. Reads a segment.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    if not state.messages or state.last_ns == entry.state.last_ns:
        return True
    if entry.archive_format is ArchiveFormat.OPAQUE:  # its messages cannot be looked at
        return state.last_ns < entry.state.last_ns and state.last_seq <= state_to_restore(entry).last_seq
    reader = SegmentReader(objects)
    for ref in reversed(entry.segments):
        if ref.first_seq <= state.last_seq and ref.min_ns <= state.last_ns <= ref.max_ns:
            for batch in reader.read(ref):
                times: memoryview[int] = memoryview(columns_from_batch(batch).timestamps).cast("B").cast("q")
                if state.last_ns in times:
                    return True
    return False
