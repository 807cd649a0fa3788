"""Which messages that an archive v1 gave, and later called deleted, really have to go.

An archive v1 tells of deletions after the messages they concern. Those with a tombstone among the captured records
are certain. The others are known to the index alone, which was written after the last block was read: on a quiet
stream it is exact, but on a busy one a message may have been removed by a newer one that was not captured (a key's
next revision), and taking it out would lose the key. So of those only the ones go that the limit of messages per
subject explains by messages that were captured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from jsbackup.formats.archive import ArchiveEnd, late_deletions
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import JsonObject
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.segments import SegmentReader

__all__ = ["messages_to_remove"]


def messages_to_remove(
    end: ArchiveEnd, config: JsonObject, segments: Sequence[SegmentRef], reader: SegmentReader
) -> SequenceSet:
    """The sequences to take out of `segments`. Reads segments only where a deletion is in doubt."""
    late = late_deletions(end)
    limit = config.get("max_msgs_per_subject") or 0
    if not late.doubtful or limit < 1:
        # Without that limit, what is gone without a tombstone has expired: it is gone for good.
        return late.certain | late.doubtful
    return late.certain | _explained(late.doubtful, limit, segments, reader)


def _explained(doubtful: SequenceSet, limit: int, segments: Sequence[SegmentRef], reader: SegmentReader) -> SequenceSet:
    subjects: dict[object, list[int]] = defaultdict(list)  # of doubtful messages, by subject
    for ref in segments:
        wanted = set(doubtful.within(ref.first_seq, ref.last_seq))
        if wanted:
            for batch in reader.read(ref):
                columns = batch.column("sequence").to_pylist(), batch.column("subject").to_pylist()
                for sequence, subject in zip(*columns, strict=True):
                    if sequence in wanted:
                        subjects[subject].append(sequence)
    newer: dict[object, int] = defaultdict(int)  # messages of each subject that are not in doubt, from the end on
    gone: list[int] = []
    for ref in reversed(segments):
        for batch in reversed(list(reader.read(ref))):
            columns = batch.column("sequence").to_pylist(), batch.column("subject").to_pylist()
            for sequence, subject in reversed(list(zip(*columns, strict=True))):
                if subject not in subjects:
                    continue
                if sequence in doubtful and newer[subject] >= limit:
                    gone.append(sequence)
                else:
                    newer[subject] += 1
    return SequenceSet(sorted(gone))
