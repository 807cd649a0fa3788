"""Which of the messages that were read have been deleted, if the server does not list deletions.

An archive v1 reports deletions after the messages. Those with a tombstone among the captured records are certain. The
others are only in the index, which was written after the last block was read. On a quiet stream it is exact. On a busy
one it is ahead of the blocks: a message that it calls deleted may have been removed by something that was not captured,
a key's next revision or an acknowledgement, and removing it would lose what the stream held when its last captured
message was stored. So only deletions that captured messages explain are applied: enough newer ones on the same subject,
in a stream with a limit per subject. An encrypted segment of an earlier backup cannot be read here: it explains
nothing, and its doubtful messages stay.

If a stream was read beyond its first end (`engine/read/whole_stream.py`), newer messages have replaced older ones by
the limit per subject and by roll-ups (`overwritten`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from jsbackup.errors import KeyUnavailable
from jsbackup.formats.archive.archive import ArchiveEnd, late_deletions
from jsbackup.formats.digest import MessageBatch
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import JsonObject
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.read.segments import SegmentReader

__all__ = ["messages_to_remove", "overwritten", "roll_up_of"]

# As servers read it: the first field of that name; the value is case-insensitive.
_ROLL_UP = re.compile(rb"\r\nNats-Rollup:[ \t]*((?i:sub|all))[ \t]*\r\n")


def messages_to_remove(
    end: ArchiveEnd, config: JsonObject, segments: Sequence[SegmentRef], reader: SegmentReader
) -> SequenceSet:
    """Return the sequences to remove from `segments`. Reads segments only if a deletion is doubtful."""
    late = late_deletions(end)
    limit = config.get("max_msgs_per_subject") or 0
    if not late.doubtful or limit < 1:
        return late.certain
    removed = [s for s in _explained(late.doubtful, limit, segments, reader) if s not in late.certain]
    return late.certain | SequenceSet(sorted(removed))


def _explained(
    doubtful: SequenceSet, limit: int, segments: Sequence[SegmentRef], reader: SegmentReader
) -> Iterator[int]:
    subjects = {
        subject
        for ref in segments
        if doubtful.within(ref.first_seq, ref.last_seq)
        for sequence, subject in _forwards(ref, reader)
        if sequence in doubtful
    }
    newer: Counter[bytes] = Counter()  # captured messages of these subjects, from the end backwards
    for ref in reversed(segments):
        for sequence, subject in reversed(list(_forwards(ref, reader))):
            if subject in subjects:
                if newer[subject] >= limit and sequence in doubtful:
                    yield sequence
                else:
                    newer[subject] += 1


def overwritten(segments: Sequence[SegmentRef], after: int, limit: int, reader: SegmentReader) -> SequenceSet:
    """Return the sequences of `segments` that messages after the sequence `after` have replaced.

    `limit` is how many messages of each subject the stream keeps, 0 for all. Raises KeyUnavailable and IntegrityError
    if a segment cannot be read.
    """
    removed: list[int] = []
    newer: dict[bytes, int] = {}  # subjects of messages after `after`, with the number of newer ones seen
    rolled_up: set[bytes] = set()
    all_rolled_up = False
    for ref in reversed(segments):
        rows = [row for batch in reader.read(ref) for row in _with_headers(batch)]
        for sequence, subject, headers in reversed(rows):
            if sequence > after:
                newer.setdefault(subject, 0)
            if all_rolled_up or subject in rolled_up or (limit and newer.get(subject, -1) >= limit):
                removed.append(sequence)
            elif subject in newer:
                newer[subject] += 1
            if sequence > after and (roll_up := roll_up_of(headers or b"")):
                rolled_up.add(subject)
                all_rolled_up = all_rolled_up or roll_up == "all"
    return SequenceSet(reversed(removed))


def roll_up_of(headers: bytes) -> Literal["sub", "all", ""]:
    """Return whether a message with these headers replaces all of its subject, all of its stream, or none."""
    match = _ROLL_UP.search(headers)
    return "" if match is None else "all" if match[1].lower() == b"all" else "sub"


def _with_headers(batch: MessageBatch) -> Iterator[tuple[int, bytes, bytes | None]]:
    columns = (batch.column(name).to_pylist() for name in ("sequence", "subject", "headers"))
    for sequence, subject, headers in zip(*columns, strict=True):
        yield sequence, subject.encode() if isinstance(subject, str) else subject, headers


def _forwards(ref: SegmentRef, reader: SegmentReader) -> Iterator[tuple[int, bytes]]:
    """Yield sequence and subject of a segment's messages. The subject is always bytes here."""
    try:
        batches = reader.read(ref)
    except KeyUnavailable:
        return
    for batch in batches:
        columns = batch.column("sequence").to_pylist(), batch.column("subject").to_pylist()
        for sequence, subject in zip(*columns, strict=True):
            yield sequence, subject.encode() if isinstance(subject, str) else subject
