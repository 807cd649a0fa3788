"""The subjects of a stream in a backup, with how many messages each has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from threading import Lock

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.formats.batch import BATCH_SCHEMA
from jsbackup.formats.digest import encode_rows
from jsbackup.look.grouping import Groups, joined_column
from jsbackup.look.message import subject_text
from jsbackup.look.message_filter import MessageFilter
from jsbackup.look.segments import heads, in_parallel, refs_within
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects

__all__ = ["SubjectCount", "count_subjects", "largest_subjects"]

_COLUMNS = ("subject", "messages", "bytes", "first_ns", "last_ns")


@dataclass(frozen=True, slots=True)
class SubjectCount:
    """`bytes` are raw bytes (`formats/digest.py`). The times are the lowest and highest, in ns."""

    subject: str
    messages: int
    bytes: int
    first_ns: int
    last_ns: int


def count_subjects(objects: Objects, stream: StreamBackup, wanted: MessageFilter) -> list[SubjectCount]:
    """Return the subjects of the wanted messages, those with most bytes first. Needs memory for all of them.

    Raises as `matching`.
    """
    counted = _counts_in(objects, stream, wanted)
    whole = _added(table for tables in counted for table in tables)
    rows = [row for table in whole for row in zip(*(c.to_pylist() for c in table.columns), strict=True)]
    counts = [SubjectCount(subject_text(subject), *numbers) for subject, *numbers in rows]
    return sorted(counts, key=lambda one: (-one.bytes, -one.messages, one.subject))


def largest_subjects(
    objects: Objects, stream: StreamBackup, wanted: MessageFilter, most: int
) -> tuple[list[SubjectCount], int]:
    """Return the first `most` of what `count_subjects` returns, and how many subjects there are; in less memory.

    Raises as `matching`.
    """
    counted = _counts_in(objects, stream, wanted)
    for whole in _added(table for tables in counted for table in tables):
        order = [("bytes", "descending"), ("messages", "descending"), ("subject", "ascending")]
        first = whole.take(pc.sort_indices(whole, sort_keys=order).slice(0, most))
        rows = zip(*(column.to_pylist() for column in first.columns), strict=True)
        return [SubjectCount(subject_text(subject), *numbers) for subject, *numbers in rows], whole.num_rows
    return [], 0


def _counts_in(objects: Objects, stream: StreamBackup, wanted: MessageFilter) -> Iterator[list[pa.Table]]:
    """Yield the counts of each segment. One at a time is decoded. Measured, 82 MB in segments of 32 MiB raw: 175 MiB at
    the peak and 1.05 s, with three decoded at once 210 MiB and 0.9 s.
    """
    turn = Lock()

    def counted(ref: SegmentRef) -> list[pa.Table]:
        return _added(map(_rows_of, heads(objects, ref, wanted, BATCH_SCHEMA.names, turn=turn)))

    return in_parallel(counted, refs_within(stream.segments, wanted))


def _rows_of(batch: pa.RecordBatch) -> pa.Table:
    """Return a row for each message, with its raw bytes."""
    ends = pc.int64_array(encode_rows(batch).ends)
    before = pa.concat_arrays([pc.int64_array([0]), ends.slice(0, len(ends) - 1)])
    subjects, times = batch.column("subject").cast(pa.binary()), batch.column("timestamp_ns")
    ones = pa.repeat(pc.int64_array([1])[0], batch.num_rows)
    return pa.table([subjects, ones, pc.subtract(ends, before), times, times], names=list(_COLUMNS))


def _added(tables: Iterable[pa.Table]) -> list[pa.Table]:
    """Return one table with a row for each subject; none without rows."""
    whole: list[pa.Table] = []
    for table in tables:
        rows = pa.concat_tables([*whole, table])
        if not rows.num_rows:
            continue
        subjects, messages, sizes, first, last = (joined_column(rows, name) for name in _COLUMNS)
        groups = Groups(subjects)
        columns = [
            subjects.take(groups.first_rows),
            groups.sums(messages),
            groups.sums(sizes),
            groups.least(first),
            groups.most(last),
        ]
        whole = [pa.Table.from_arrays(columns, names=list(_COLUMNS))]
    return whole
