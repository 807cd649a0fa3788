"""The subjects of a stream in a backup, with how many messages each has."""

from __future__ import annotations

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
    whole = _nothing()
    for counted in in_parallel(partial(_counted, objects, wanted), refs_within(stream.segments, wanted)):
        whole = _added(pa.concat_tables([whole, counted]))
    rows = zip(*(whole.column(name).to_pylist() for name in _COLUMNS), strict=True)
    counts = [SubjectCount(subject_text(subject), *numbers) for subject, *numbers in rows]
    return sorted(counts, key=lambda one: (-one.bytes, -one.messages, one.subject))


def _nothing() -> pa.Table:
    numbers = [(name, pa.int64()) for name in _COLUMNS[1:]]
    return pa.schema([("subject", pa.binary()), *numbers]).empty_table()


def _counted(objects: Objects, wanted: MessageFilter, ref: SegmentRef) -> pa.Table:
    whole = _nothing()
    for batch in heads(objects, ref, wanted, BATCH_SCHEMA.names):
        ends = pa.array(encode_rows(batch).ends, pa.int64())
        before = pa.concat_arrays([pa.array([0], pa.int64()), ends.slice(0, len(ends) - 1)])
        times = batch.column("timestamp_ns")
        ones = pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)
        columns = [batch.column("subject").cast(pa.binary()), ones, pc.subtract(ends, before), times, times]
        whole = _added(pa.concat_tables([whole, pa.table(columns, schema=whole.schema)]))
    return whole


def _added(table: pa.Table) -> pa.Table:
    sums = [("messages", "sum"), ("bytes", "sum"), ("first_ns", "min"), ("last_ns", "max")]
    added = table.group_by("subject", use_threads=False).aggregate(sums)
    names = {f"{name}_{what}": name for name, what in sums}
    return added.rename_columns([names.get(name, name) for name in added.column_names]).select(list(_COLUMNS))
