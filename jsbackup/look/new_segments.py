"""Which segments of a stream in many backups have messages that no earlier backup has.

Messages of a stream only go: of the sequences that a backup knows, a later backup has the same messages or fewer. A
segment that is within them is stored again because messages in it went. So what is not found in an earlier backup is
not in it either, and what is found has to be looked for in the segments with that sequence only.

If the stream was put back to an older state (restored, or a server lost its newest messages), it gives sequences again.
Messages with them are later than all that were there before. So a segment with later messages counts as new.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jsbackup.look.moment import end_of
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.pages.segment_list import parts_of

__all__ = ["Reach", "folder_of", "with_sequences"]


@dataclass(frozen=True, slots=True)
class Reach:
    """How far an earlier backup of a stream reaches. Of a backup that may lack something it is nothing."""

    incarnation: str = ""
    end: int = 0
    last_ns: int = 0

    @classmethod
    def of(cls, stream: StreamBackup) -> Reach:
        if stream.warnings:
            return cls()
        last_ns = max((part.max_ns for part in parts_of(stream.segments)), default=0)
        return cls(stream.incarnation, end_of(stream), last_ns)

    def covers(self, stream: StreamBackup, ref: SegmentRef) -> bool:
        """Return whether the earlier backup has all messages of a segment of a later one."""
        same = self.incarnation == stream.incarnation
        return same and ref.last_seq <= self.end and ref.max_ns <= self.last_ns


def folder_of(key: str) -> str:
    """Return the folder of a segment: there is one for each incarnation of a stream."""
    return key.rpartition("/")[0]


def with_sequences(refs: Iterable[SegmentRef], sequences: Mapping[str, Sequence[int]]) -> list[SegmentRef]:
    """Return the segments that may have messages with some of these sequences, which rise; they are by folder."""
    found = []
    for ref in refs:
        wanted = sequences.get(folder_of(ref.key), ())
        at = bisect_left(wanted, ref.first_seq)
        if at < len(wanted) and wanted[at] <= ref.last_seq:
            found.append(ref)
    return found
