"""Count messages on Spark: tasks read each segment once, and return what statistics need of them.

A task counts by stream, subject and size, and by ids if repeated ones are wanted; and tallies times and sizes
(`distribution.py`). What it has counted is sent on before it takes much memory: Spark adds it up.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from jsbackup.formats.digest import MessageBatch
from jsbackup.pipeline.jobs.direct_stats import as_binary, message_ids
from jsbackup.pipeline.jobs.distribution import MessageTally, TimeScale, raw_sizes, scales_of
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tasks.gathering import gathered
from jsbackup.pipeline.tasks.paged_runs import PagedRun, packed_runs
from jsbackup.pipeline.tasks.task_reader import row_reader
from jsbackup.pipeline.tasks.tasks import OnSpark
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.segments import SegmentReader

__all__ = ["count_messages"]

_ROWS: Final = pa.schema(
    [
        ("stream", pa.int32()),
        ("subject", pa.string()),
        ("size", pa.int64()),
        ("messages", pa.int64()),
        ("oldest_ns", pa.int64()),
        ("newest_ns", pa.int64()),
        ("id", pa.string()),
        ("tally", pa.binary()),
    ]
)
_DDL: Final = (
    "stream int, subject string, size bigint, messages bigint, oldest_ns bigint, newest_ns bigint, id string, "
    "tally binary"
)

# They pass through the driver as one text.
_MOST_TASKS: Final = 4096

# Counts of a stream that a task holds.
_MOST_BYTES: Final = 16 << 20


def count_messages(
    session: SparkSession, place: RepositoryRef, streams: Sequence[StreamBackup], *, ids: bool
) -> DataFrame:
    """Return what is counted of the streams, which have numbers here. A row has either

        subject, size, messages, oldest_ns, newest_ns      messages of a subject with this size; several rows of a pair
        id, messages                                       those with this id, if `ids` are wanted
        tally, messages                                    a pickled `MessageTally`; how many of the other rows its
                                                           task has returned for the stream

    and null in the other columns. Raises as `PageStore.read`.
    """
    scales = scales_of(streams)
    named = ((number, stream.segments) for number, stream in enumerate(streams))
    tasks = []
    for runs in packed_runs(named, OnSpark(session).cores, most_tasks=_MOST_TASKS):
        numbers = dict.fromkeys(number for number, _ in runs)
        tasks.append(_CountMessages(place, tuple((number, scales[number]) for number in numbers), runs, ids))
    return row_reader(session, _DDL, tasks).load()


@dataclass(frozen=True, slots=True)
class _CountMessages:
    """A task."""

    place: RepositoryRef
    scales: tuple[tuple[int, TimeScale], ...]
    runs: tuple[tuple[int, PagedRun], ...]
    ids: bool

    def __call__(self) -> Iterator[pa.RecordBatch]:
        repository = opened(self.place)
        reader = SegmentReader(repository.objects)
        for number, scale in self.scales:
            runs = [run for of, run in self.runs if of == number]
            tally, sizes, ids = MessageTally(scale), _Counts(("subject", "size")), _Counts(("id",))
            read = (batch for run in runs for ref in run.segments(repository) for batch in reader.read(ref))
            for batch in gathered(read):
                raw = raw_sizes(batch)
                tally.add(batch, raw)
                yield from sizes.add(number, _by_size(batch, raw))
                if self.ids:
                    yield from ids.add(number, _by_id(batch))
            yield from sizes.take(number)
            yield from ids.take(number)
            rows = pa.array([sizes.taken + ids.taken], pa.int64())
            yield _row(number, {"tally": pa.array([pickle.dumps(tally)], pa.binary()), "messages": rows}, 1)


class _Counts:
    """Rows of a stream with `keys` and numbers of messages; `taken` is how many were yielded."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.taken = 0
        self._keys = list(keys)
        self._counted: list[pa.Table] = []
        self._bytes = 0

    def add(self, stream: int, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Count rows; yield all counts if they take much memory."""
        if rows.num_rows:
            self._counted.append(self._grouped(rows))
            self._bytes += self._counted[-1].nbytes
        if self._bytes > _MOST_BYTES:
            self._counted = [self._grouped(pa.concat_tables(self._counted))]
            self._bytes = self._counted[0].nbytes
            if self._bytes > _MOST_BYTES // 2:
                yield from self.take(stream)

    def take(self, stream: int) -> Iterator[pa.RecordBatch]:
        """Yield all counts, and begin again."""
        if self._counted:
            counted = self._grouped(pa.concat_tables(self._counted)).combine_chunks()
            self.taken += counted.num_rows
            for batch in counted.to_batches(max_chunksize=10_000):
                yield _row(stream, dict(zip(batch.schema.names, batch.columns, strict=True)), batch.num_rows)
        self._counted, self._bytes = [], 0

    def _grouped(self, rows: pa.Table) -> pa.Table:
        how = {"messages": "sum", "oldest_ns": "min", "newest_ns": "max"}
        of = [(name, how[name]) for name in rows.column_names if name in how]
        found = rows.group_by(self._keys, use_threads=False).aggregate(of)
        return found.select([*self._keys, *("_".join(one) for one in of)]).rename_columns(
            [*self._keys, *(name for name, _ in of)]
        )


def _by_size(batch: MessageBatch, sizes: pa.Array) -> pa.Table:
    times = batch.column("timestamp_ns")
    columns = {"subject": as_binary(batch.column("subject")), "size": sizes, "messages": pa.repeat(1, batch.num_rows)}
    return pa.table({**columns, "oldest_ns": times, "newest_ns": times})


def _by_id(batch: MessageBatch) -> pa.Table:
    ids = message_ids(batch)
    return pa.table({"id": as_binary(ids), "messages": pa.repeat(1, len(ids))})


def _row(stream: int, columns: dict[str, pa.Array], count: int) -> pa.RecordBatch:
    arrays = {**columns, "stream": pa.repeat(pa.scalar(stream, pa.int32()), count)}
    found = [arrays.get(field.name, pa.nulls(count, field.type)) for field in _ROWS]
    # Texts are neither checked nor copied: few subjects are not UTF-8, and Spark lets them pass.
    typed = [
        array if array.type == field.type else array.view(field.type) for array, field in zip(found, _ROWS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(typed, schema=_ROWS)
