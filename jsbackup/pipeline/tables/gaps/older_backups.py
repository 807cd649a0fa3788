"""Which messages of a backup a table lacks that reaches further.

Where ranges and rows of files do not tell, because sequences are missing in them, their column `sequence` is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from jsbackup.pipeline.tables.gaps.kept_messages import KeptMessages
from jsbackup.pipeline.tables.gaps.table_sequences import read_sequences
from jsbackup.pipeline.tables.table_log import FileRange
from jsbackup.repository.pages.segment_list import touching
from jsbackup.repository.read.between import SequencesOf
from jsbackup.repository.refs import SegmentRef
from jsbackup.stores.base import Store

__all__ = ["count_lacking"]

_MAX = (1 << 63) - 1


def count_lacking(
    segments: Sequence[SegmentRef],
    ranges: Iterable[FileRange],
    store: Store,
    *,
    sequences: SequencesOf,
    kept: KeptMessages,
) -> int:
    """Return how many messages of a backup, which are in `segments`, a table lacks whose files have these `ranges` in
    `store`. Only those that are `kept` count.

    Raises:
        FormatError: a file of the table cannot be read, so it cannot be known.
        IntegrityError: a segment or a list of segments cannot be read.
        KeyUnavailable, StoreError: something cannot be read.
    """
    count, reached = 0, 0
    for part in _parts(ranges):
        between = _within(segments, reached + 1, part.first_seq - 1, sequences)
        count += sum(len(kept.of(ref, found)) for ref, found in between if kept.may_have(ref))
        reached = part.last_seq
        if part.is_whole:
            continue
        there: pa.Array | None = None
        for ref, found in _within(segments, part.first_seq, part.last_seq, sequences):
            if not kept.may_have(ref):
                continue
            there = read_sequences(store, part.keys) if there is None else there
            ours = pa.array(found, pa.int64())
            lacks = ours.filter(pc.invert(pc.is_in(ours, there))).to_pylist()
            count += len(kept.of(ref, lacks))
    behind = _within(segments, reached + 1, _MAX, sequences)
    return count + sum(len(kept.of(ref, found)) for ref, found in behind if kept.may_have(ref))


@dataclass(slots=True)
class _Part:
    """The files of a table within a range of sequences, which no other files have a part of."""

    first_seq: int
    last_seq: int
    rows: int
    keys: list[str]
    is_of_one_run: bool  # files of partitions, which have the same range

    @property
    def is_whole(self) -> bool:
        return self.is_of_one_run and self.rows == self.last_seq - self.first_seq + 1


def _parts(ranges: Iterable[FileRange]) -> list[_Part]:
    """Return the ranges of files in order, those that overlap as one."""
    found: list[_Part] = []
    for one in sorted(ranges):
        last = found[-1] if found else None
        if last is None or one.first_seq > last.last_seq:
            found.append(_Part(one.first_seq, one.last_seq, one.rows, [one.key], True))
            continue
        same = (one.first_seq, one.last_seq) == (last.first_seq, last.last_seq)
        last.is_of_one_run = last.is_of_one_run and same
        last.last_seq = max(last.last_seq, one.last_seq)
        last.rows += one.rows
        last.keys.append(one.key)
    return found


def _within(
    segments: Sequence[SegmentRef], first: int, last: int, sequences: SequencesOf
) -> Iterator[tuple[SegmentRef, Sequence[int]]]:
    """Yield the segments that have sequences from `first` to `last`, each with these."""
    for ref in touching(segments, first, last) if first <= last else ():
        found = sequences(ref)
        if ref.first_seq < first or last < ref.last_seq:
            found = [one for one in found if first <= one <= last]
        if found:
            yield ref, found
