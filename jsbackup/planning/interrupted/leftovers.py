"""Distinguish leftovers of an interrupted restore from streams that were written to since.

A stream that is being restored listens to its subjects, so publishers are acknowledged before it is complete. After an
interruption it is then more than a leftover, although it has the mark. It may only be removed automatically if it has
nothing that its backup lacks. Streams append, so that is the case if its last message is in the backup, with the same
time to the nanosecond. The plan compares the known numbers; before a leftover is removed, that message is looked up in
the source of the restore.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jsbackup.formats.batch import columns_from_batch
from jsbackup.model import StreamState
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import parts_of
from jsbackup.repository.read.segments import SegmentReader, state_to_restore

if TYPE_CHECKING:
    from jsbackup.planning.model import Target

__all__ = ["grown_leftovers", "has_message_at"]


def grown_leftovers(entries: Mapping[str, StreamBackup], target: Target) -> frozenset[str]:
    """Return the leftovers at the target that have something their backup lacks. `entries` are by their name there."""
    return frozenset(
        name
        for name, entry in entries.items()
        if name in target.leftovers and name in target.streams and _has_grown(target.streams[name], entry)
    )


def _has_grown(there: StreamInfo, entry: StreamBackup) -> bool:
    if there.state.consumers > len(entry.consumers):
        return True
    ends = [entry.state.last_ns, *(part.max_ns for part in parts_of(entry.segments))]
    beyond = there.state.last_seq > max(entry.state.last_seq, entry.captured.last_seq)
    return there.state.messages > 0 and (beyond or there.state.last_ns > max(ends))


def has_message_at(objects: Objects, entry: StreamBackup, state: StreamState, *, renumbered: bool = False) -> bool:
    """Return whether the last message of a stream in `state` is in the backup. Reads a segment, or a few if the stream
    was `renumbered`.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    if not state.messages or state.last_ns == entry.state.last_ns:
        return True
    if entry.archive_format is ArchiveFormat.OPAQUE:  # its messages cannot be read
        return state.last_ns < entry.state.last_ns and state.last_seq <= state_to_restore(entry).last_seq
    reader = SegmentReader(objects)
    for ref in reversed(entry.segments):
        if (renumbered or ref.first_seq <= state.last_seq) and ref.min_ns <= state.last_ns <= ref.max_ns:
            for batch in reader.read(ref):
                times: memoryview[int] = memoryview(columns_from_batch(batch).timestamps).cast("B").cast("q")
                if state.last_ns in times:
                    return True
    return False
