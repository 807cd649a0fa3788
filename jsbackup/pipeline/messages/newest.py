"""Find the newest messages of each subject for streams of any size: `transforms/filters/newest.py`, spread by Spark.

No task has the whole stream. So the tasks of a first pass return the newest messages of each subject within a segment,
without their content; Spark brings those of a subject together, and takes the newest ones. The driver receives
sequences, eight bytes for each message, and passes to the tasks of the second pass those within their segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from jsbackup.pipeline.session.failures import spark_errors
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tasks.paged_runs import PagedRun, packed_runs
from jsbackup.pipeline.tasks.task_reader import row_reader
from jsbackup.pipeline.tasks.tasks import OnSpark, watched
from jsbackup.planning.selection.newest_pass import newest_in_segment
from jsbackup.progress import Progress
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.pages.segment_list import raw_bytes_of
from jsbackup.transforms.filters.newest import NEWEST_SCHEMA, NewestRule
from jsbackup.transforms.filters.rising import RisingSequences
from jsbackup.transforms.reshape import Reshape

__all__ = ["newest_sequences"]

_ROWS = pa.schema([("stream", pa.int32()), *NEWEST_SCHEMA])
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
        by_subject = Window.partitionBy("stream", "subject").orderBy(F.desc("sequence"))
        newest = rows.withColumn("number", F.row_number().over(by_subject)).where(F.col("number") <= rule.count)
        if rule.compact:
            newest = newest.where("not gone")
        table = newest.select("stream", "sequence").toArrow().sort_by("sequence")
    return {name: _of_stream(table, number) for number, name in enumerate(names)}


def _of_stream(table: pa.Table, number: int) -> RisingSequences:
    column = table.filter(pc.equal(table.column("stream"), number)).column("sequence")
    return RisingSequences.of(column.combine_chunks())
