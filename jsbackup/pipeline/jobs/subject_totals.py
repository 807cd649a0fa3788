"""From counts by stream, subject and size to the totals of streams and of their largest subjects.

A key is the number of the stream, in four bytes, and the subject. The counts come in order of keys and sizes, all of a
key in one table, so that one stream is in memory at a time, and of its subjects only the largest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from jsbackup.pipeline.jobs.stats_model import Sizes, SubjectStats

__all__ = ["COUNTED", "StreamTotals", "key_prefix", "rows_by_stream", "totals_of"]

COUNTED = {"messages": "sum", "oldest_ns": "min", "newest_ns": "max"}
"""The columns of counts beside `key` and `size`, and how two counts are joined."""

_PREFIX_BYTES = 4
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class StreamTotals:
    """As in `StreamStats`."""

    messages: int
    bytes: int
    oldest_ns: int
    newest_ns: int
    sizes: Sizes
    subject_count: int
    subjects: tuple[SubjectStats, ...]


def key_prefix(stream: int) -> bytes:
    """Return the beginning of the keys of a stream."""
    return stream.to_bytes(_PREFIX_BYTES, "big")


def totals_of(counts: Iterable[pa.Table], most_subjects: int) -> dict[int, StreamTotals]:
    """Return the totals by the numbers of streams, of those that have messages.

    The tables have the columns key (binary), size (raw bytes), messages, oldest_ns and newest_ns.
    """
    found: dict[int, StreamTotals] = {}
    current: _Stream | None = None
    for table in counts:
        for number, part in rows_by_stream(table):
            if current is None or current.number != number:
                if current is not None:
                    found[current.number] = current.totals()
                current = _Stream(number, most_subjects)
            current.add(part)
    if current is not None:
        found[current.number] = current.totals()
    return found


class _Stream:
    """The counts of one stream so far."""

    def __init__(self, number: int, most_subjects: int) -> None:
        self.number = number
        self._most = most_subjects
        self._subjects = 0
        self._largest: pa.Table | None = None
        # Distinct sizes are few: a million of them are half a terabyte of messages.
        self._sizes: pa.Table | None = None

    def add(self, counts: pa.Table) -> None:
        by_size = counts.drop_columns(["key"])
        self._sizes = _joined(by_size if self._sizes is None else pa.concat_tables([self._sizes, by_size]), "size")
        subjects = _totals_by_key(counts)
        self._subjects += subjects.num_rows
        if self._most:
            both = subjects if self._largest is None else pa.concat_tables([self._largest, subjects])
            order = [("bytes", "descending"), ("messages", "descending"), ("key", "ascending")]
            self._largest = both.take(pc.select_k_unstable(both, k=self._most, sort_keys=order))

    def totals(self) -> StreamTotals:
        assert self._sizes is not None, "a stream begins with counts"
        sizes = self._sizes.sort_by("size").append_column("key", pa.repeat(b"", self._sizes.num_rows))
        (whole,) = _totals_by_key(sizes).to_pylist()
        rows = [] if self._largest is None else self._largest.to_pylist()
        subjects = [
            SubjectStats(
                row["key"][_PREFIX_BYTES:].decode(errors="replace"),
                row["messages"],
                row["bytes"],
                row["oldest_ns"],
                row["newest_ns"],
                _sizes_of(row),
            )
            for row in rows
        ]
        subjects.sort(key=lambda one: (-one.bytes, -one.messages, one.subject))
        span = (whole["messages"], whole["bytes"], whole["oldest_ns"], whole["newest_ns"], _sizes_of(whole))
        return StreamTotals(*span, self._subjects, tuple(subjects))


def rows_by_stream(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each stream, in order."""
    if not table.num_rows:
        return
    prefixes = pc.binary_slice(table.column("key").combine_chunks(), 0, _PREFIX_BYTES)
    runs = pc.run_end_encode(prefixes)
    start = 0
    for prefix, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield int.from_bytes(prefix, "big"), table.slice(start, end - start)
        start = end


def _joined(counts: pa.Table, key: str) -> pa.Table:
    found = counts.group_by(key, use_threads=False).aggregate(list(COUNTED.items()))
    return found.select([key, *(f"{name}_{how}" for name, how in COUNTED.items())]).rename_columns([key, *COUNTED])


def _totals_by_key(counts: pa.Table) -> pa.Table:
    """Return a row for each key, in order: messages, bytes, oldest_ns, newest_ns, largest, and the percentiles.

    A percentile is the size of the message with that rank, rounded up, among all of the key by size.
    """
    counts = counts.combine_chunks()
    sizes, messages = (counts.column(name).combine_chunks() for name in ("size", "messages"))
    weighed = counts.append_column("bytes", pc.multiply(sizes, messages))
    totals = weighed.group_by("key", use_threads=False).aggregate(
        [("messages", "sum"), ("bytes", "sum"), ("oldest_ns", "min"), ("newest_ns", "max"), ("size", "max")]
    )
    totals = totals.sort_by("key")  # groups come in any order
    group = counts.column("key").combine_chunks().dictionary_encode().indices
    of_group = totals.column("messages_sum").combine_chunks()
    starts = pc.subtract(pc.cumulative_sum(of_group), of_group)
    reached = pc.subtract(pc.cumulative_sum(messages), pc.take(starts, group))
    before, count = pc.subtract(reached, messages), pc.cast(pc.take(of_group, group), pa.float64())
    columns = {
        "key": totals.column("key"),
        "messages": of_group,
        "bytes": totals.column("bytes_sum"),
        "oldest_ns": totals.column("oldest_ns_min"),
        "newest_ns": totals.column("newest_ns_max"),
        "largest": totals.column("size_max"),
    }
    for name, share in _PERCENTILES.items():
        rank = pc.cast(pc.ceil(pc.multiply(count, share)), pa.int64())
        columns[name] = sizes.filter(pc.and_(pc.less(before, rank), pc.greater_equal(reached, rank)))
    return pa.table(columns)


def _sizes_of(row: dict[str, int]) -> Sizes:
    return Sizes(row["p50"], row["p90"], row["p99"], row["largest"])
