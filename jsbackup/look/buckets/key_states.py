"""The newest revisions of keys, and what each did to its key.

A bucket is a stream `KV_<bucket>` with a message on `$KV.<bucket>.<key>` for each revision (nats.go `kv.go`, ADR-8):
a value, or a marker that the key was deleted or purged, by a client (header `KV-Operation`) or by the server when a
value expired (`Nats-Marker-Reason`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.look.grouping import Groups, joined_column
from jsbackup.look.message import headers_of, subject_text
from jsbackup.look.message_filter import MessageFilter
from jsbackup.look.segments import heads, in_parallel, refs_within
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.transforms.cut import Cut, Edge
from jsbackup.transforms.filters.key_marker import KeyOperation, operation_of

__all__ = ["KeyRecord", "KeyState", "key_of", "newest_states", "read_records"]

_COLUMNS = ("sequence", "timestamp_ns", "subject", "headers")


class Which(Enum):
    """Which row of each subject."""

    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class KeyState:
    """A revision of a key, without its value. `expires`: it has a time to live of its own (`Nats-TTL`)."""

    key: str
    revision: int
    timestamp_ns: int
    operation: KeyOperation
    expires: bool = False


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What a backup has of a key: the `last` revision up to a moment, the `first_later` one after it, and how many of
    each kind there are.
    """

    last: KeyState | None = None
    count: int = 0
    first_later: KeyState | None = None
    later: int = 0


def key_of(subject: str) -> str:
    """Return the key of a message of a bucket."""
    return subject.split(".", 2)[-1]


def newest_states(objects: Objects, stream: StreamBackup, wanted: MessageFilter) -> Iterator[KeyState]:
    """Return the newest wanted revision of each key. Needs memory for all of them. Raises as `matching`."""

    def read(ref: SegmentRef) -> list[pa.Table]:
        return _picked(map(_comparable, heads(objects, ref, wanted, _COLUMNS)), Which.LAST)

    found = _picked(_flat(in_parallel(read, refs_within(stream.segments, wanted))), Which.LAST)
    return (state for table in found for state, _ in _states(table))


def read_records(objects: Objects, stream: StreamBackup, subjects: tuple[str, ...], at: Edge) -> dict[str, KeyRecord]:
    """Return what there is of each key with such a subject, before and after the moment. Needs memory for all of them.

    Raises as `matching`.
    """
    wanted, until = MessageFilter(subjects=subjects), Cut(until=at)
    refs = refs_within(stream.segments, wanted)
    earlier: list[pa.Table] = []
    later: list[pa.Table] = []
    for one in in_parallel(partial(_parted, objects, wanted, until), refs):
        earlier = _picked([*earlier, *one[0]], Which.LAST)
        later = _picked([*later, *one[1]], Which.FIRST)
    before = {state.key: (state, count) for table in earlier for state, count in _states(table)}
    after = {state.key: (state, count) for table in later for state, count in _states(table)}
    return {
        key: KeyRecord(*before.get(key, (None, 0)), *after.get(key, (None, 0))) for key in before.keys() | after.keys()
    }


_Sides: TypeAlias = tuple[list[pa.Table], list[pa.Table]]


def _parted(objects: Objects, wanted: MessageFilter, until: Cut, ref: SegmentRef) -> _Sides:
    """Return the last row of each subject up to the moment in a segment, and the first one after it."""
    earlier: list[pa.Table] = []
    later: list[pa.Table] = []
    for batch in heads(objects, ref, wanted, _COLUMNS):
        rows, is_earlier = _comparable(batch), until.rows(batch)
        earlier = _picked([*earlier, rows.filter(is_earlier)], Which.LAST)
        later = _picked([*later, rows.filter(pc.invert(is_earlier))], Which.FIRST)
    return earlier, later


def _flat(found: Iterable[list[pa.Table]]) -> Iterator[pa.Table]:
    return (table for tables in found for table in tables)


def _comparable(batch: pa.RecordBatch) -> pa.Table:
    """Return the rows with subjects as bytes, as they are where one is not UTF-8, and a count of 1 for each."""
    sequences, times, subjects, headers = batch.columns
    ones = pa.repeat(pc.int64_array([1])[0], batch.num_rows)
    return pa.table([sequences, times, subjects.cast(pa.binary()), headers, ones], names=[*_COLUMNS, "count"])


def _picked(tables: Iterable[pa.Table], which: Which) -> list[pa.Table]:
    """Return a table with the first or the last row of each subject, and with the sum of its counts; none without rows.
    The rows of a subject are in rising sequence, over all tables.
    """
    picked: list[pa.Table] = []
    for table in tables:
        whole = pa.concat_tables([*picked, table])
        if not whole.num_rows:
            continue
        groups = Groups(joined_column(whole, "subject"))
        rows = groups.last_rows if which is Which.LAST else groups.first_rows
        counts = groups.sums(joined_column(whole, "count"))
        kept = whole.take(rows)
        picked = [kept.set_column(kept.schema.get_field_index("count"), "count", counts).combine_chunks()]
    return picked


def _states(table: pa.Table) -> Iterator[tuple[KeyState, int]]:
    """Yield the revision in each row, and its count."""
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        sequence, time_ns, subject, headers, count = row
        key, expires = key_of(subject_text(subject)), _expires(headers)
        yield KeyState(key, sequence, time_ns, operation_of(headers), expires), count


def _expires(block: bytes | None) -> bool:
    return bool(block) and any(header.name.lower() == "nats-ttl" for header in headers_of(block))
