"""Find the newest messages of each subject for streams of any size: `transforms/filters/newest.py`, spread by Spark.

No task has the whole stream. So the tasks of a first pass return the newest messages of each subject within a segment,
without their content; Spark brings those of a subject together, and takes the newest ones. The driver receives their
sequences, and passes to the tasks of the second pass those within their segments.

A stream may have many millions of subjects. So Spark packs sequences before they come to the driver: those of a block
of 32,768 are a map of bits, or two bytes each where that is less. It does so in SQL: functions in Python over rows need
pandas (`task_source.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jsbackup.pipeline.session.failures import spark_errors
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tasks.paged_runs import PagedRun, packed_runs
from jsbackup.pipeline.tasks.ranking import first_of_groups
from jsbackup.pipeline.tasks.task_reader import row_reader
from jsbackup.pipeline.tasks.tasks import OnSpark, watched
from jsbackup.planning.selection.newest_pass import newest_in_segment
from jsbackup.progress import Progress
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.pages.segment_list import raw_bytes_of
from jsbackup.transforms.filters.newest import NEWEST_SCHEMA, NewestRule
from jsbackup.transforms.filters.rising import RisingSequences
from jsbackup.transforms.reshape import Reshape

__all__ = ["newest_sequences", "packed_sequences", "unpacked_sequences"]

_ROWS = pa.schema([("stream", pa.int32()), *NEWEST_SCHEMA])
_BLOCK_BITS = 15  # as many as Spark has in a map of bits
_MAP_BYTES = (1 << _BLOCK_BITS) // 8
# A map of bits, as Arrow has them, or numbers of two bytes. The other one is null.
_IS_MAP = f"count(*) * 2 >= {_MAP_BYTES}"
_MAP = f"if({_IS_MAP}, bitmap_construct_agg(place), null) AS map"
_PLACES = f"if({_IS_MAP}, null, sort_array(collect_list(CAST(place AS smallint)))) AS places"
_LEAST_ADDED = 1 << 16  # sequences, as many as `RisingSequences` packs together
_DDL = "stream int, subject binary, sequence bigint, gone boolean"


@dataclass(frozen=True, slots=True)
class _NewestOfSegments:
    """A task; its rows are the newest messages of the subjects of each segment. `runs` have the number and the name of
    their stream.
    """

    place: RepositoryRef
    runs: tuple[tuple[tuple[int, str], PagedRun], ...]
    keeping: Reshape
    rule: NewestRule

    def __call__(self) -> Iterator[pa.RecordBatch]:
        repository = opened(self.place)
        for (number, stream), run in self.runs:
            for ref in run.segments(repository):
                found = newest_in_segment(repository.objects, ref, stream, self.keeping, rule=self.rule)
                for batch in found.combine_chunks().to_batches():
                    numbers = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
                    yield pa.RecordBatch.from_arrays([numbers, *batch.columns], schema=_ROWS)


def newest_sequences(
    session: SparkSession,
    place: RepositoryRef,
    streams: Mapping[str, Sequence[SegmentRef]],
    keeping: Reshape,
    *,
    rule: NewestRule,
    progress: Progress | None = None,
) -> dict[str, RisingSequences]:
    """Return by stream the sequences of the newest messages of each subject, among those that `keeping` keeps.

    Raises:
        IntegrityError, KeyUnavailable, StoreError: messages cannot be read.
    """
    names = list(streams)
    numbered = (((number, name), streams[name]) for number, name in enumerate(names))
    parts = packed_runs(numbered, OnSpark(session).cores)
    tasks = [_NewestOfSegments(place, part, keeping, rule) for part in parts]
    if not tasks:
        return {name: RisingSequences() for name in names}
    doing = "looking for the newest messages"
    total_bytes = sum(map(raw_bytes_of, streams.values()))
    with watched(session, doing, total_bytes, progress), spark_errors(doing):
        rows = row_reader(session, _DDL, tasks).load()
        # Beyond segments the rule is in SQL: Arrow functions over groups need pandas, and all of a group in memory.
        order = [F.desc("sequence")]
        newest = first_of_groups(rows, ["stream", "subject"], order, rule.count, spread_by="sequence")
        if rule.compact:
            newest = newest.where("not gone")
        packed = packed_sequences(newest).toArrow()
    found = unpacked_sequences(packed)
    return {name: found.get(number, RisingSequences()) for number, name in enumerate(names)}


def packed_sequences(rows: DataFrame) -> DataFrame:
    """Return the values of the columns `stream` and `sequence`, packed: a row for each block that has some."""
    block = F.shiftright("sequence", _BLOCK_BITS).alias("block")
    place = F.col("sequence").bitwiseAND(F.lit((1 << _BLOCK_BITS) - 1)).alias("place")
    whole = rows.select("stream", block, place).groupBy("stream", "block")
    return whole.agg(F.expr(_MAP), F.expr(_PLACES))


def unpacked_sequences(packed: pa.Table) -> dict[int, RisingSequences]:
    """Return the sequences by stream; `packed` are the rows of `packed_sequences`, in any order."""
    order = pc.sort_indices(
        packed.select(["stream", "block"]), sort_keys=[("stream", "ascending"), ("block", "ascending")]
    )
    found: dict[int, RisingSequences] = {}
    waiting: list[pa.Int64Array] = []  # of the last stream: blocks may have few
    streams, blocks = packed.column("stream"), packed.column("block")
    maps, places = packed.column("map"), packed.column("places")
    for stream, rows in groupby(order.to_pylist(), lambda row: streams[row].as_py()):
        sequences = found[stream] = RisingSequences()
        for row in rows:
            waiting.append(_unpacked(blocks[row].as_py() << _BLOCK_BITS, maps[row].as_buffer(), places[row].values))
            if sum(map(len, waiting)) >= _LEAST_ADDED:
                sequences.add(pa.concat_arrays(waiting))
                waiting.clear()
        if waiting:
            sequences.add(pa.concat_arrays(waiting))
            waiting.clear()
    return found


def _unpacked(first: int, bits: pa.Buffer | None, places: pa.Array | None) -> pa.Int64Array:
    """Return the sequences of a block that begins with `first`."""
    if bits is not None:
        places = pc.indices_nonzero(pa.Array.from_buffers(pa.bool_(), 8 * _MAP_BYTES, [None, bits]))
    assert places is not None
    return pc.add(places.cast(pa.int64()), pa.scalar(first, pa.int64()))
