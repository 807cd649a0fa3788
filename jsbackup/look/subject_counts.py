"""The subjects of a stream in a backup, with how many messages each has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.formats.batch import BATCH_SCHEMA
from jsbackup.formats.digest import encode_rows
from jsbackup.look.message import subject_text
from jsbackup.look.message_filter import MessageFilter
from jsbackup.look.segments import heads, in_parallel, refs_within
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects

__all__ = ["SubjectCount", "count_subjects"]

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
    counted = in_parallel(partial(_counted, objects, wanted), refs_within(stream.segments, wanted))
    whole = _added(table for tables in counted for table in tables)
    rows = [row for table in whole for row in zip(*(c.to_pylist() for c in table.columns), strict=True)]
    counts = [SubjectCount(subject_text(subject), *numbers) for subject, *numbers in rows]
    return sorted(counts, key=lambda one: (-one.bytes, -one.messages, one.subject))


def _counted(objects: Objects, wanted: MessageFilter, ref: SegmentRef) -> list[pa.Table]:
    return _added(map(_rows_of, heads(objects, ref, wanted, BATCH_SCHEMA.names)))


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
        sums = [("messages", "sum"), ("bytes", "sum"), ("first_ns", "min"), ("last_ns", "max")]
        added = pa.concat_tables([*whole, table]).group_by("subject", use_threads=False).aggregate(sums)
        columns = ["subject", *(f"{name}_{what}" for name, what in sums)]
        whole = [added.select(columns).rename_columns(list(_COLUMNS))]
    return whole
