"""Statistics of a backup by stream and subject, on Spark: number, sizes and times of messages.

`bytes` and sizes are raw bytes, those of the canonical encoding (`formats/digest.py`), so that their sum is the number
in the manifest. All segments are read once (`counting.py`): messages are counted by subject and size, which gives exact
percentiles. Few counts are joined in the driver (`subject_totals.py`), as without Spark: each stage of Spark takes
longer than that. Many stay on Spark, and of their subjects only those that are shown are measured.

`distribution.py` has the distribution over time and sizes, `repository/read/growth.py` the growth of streams,
`direct_stats.py` the same without Spark.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F

from jsbackup.pipeline.jobs.counting import count_messages
from jsbackup.pipeline.jobs.direct_stats import as_binary, found_stats
from jsbackup.pipeline.jobs.distribution import MessageTally, scales_of
from jsbackup.pipeline.jobs.grouped_counts import GroupedCounts
from jsbackup.pipeline.jobs.stats_model import Sizes, StreamStats, SubjectStats
from jsbackup.pipeline.jobs.subject_totals import COUNTED, StreamTotals, key_prefix, totals_of
from jsbackup.pipeline.messages.backup_frames import BackupFrames
from jsbackup.pipeline.session.failures import spark_errors, unpersist
from jsbackup.pipeline.tasks.ranking import first_of_groups
from jsbackup.pipeline.tasks.tasks import watched
from jsbackup.progress import Progress
from jsbackup.repository.manifest import StreamBackup

__all__ = ["collect_stats"]

_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
# Counts that the driver joins: up to 100 bytes each, so that none go to temporary files.
_MOST_IN_DRIVER, _DRIVER_BYTES = 500_000, 64 << 20


def collect_stats(
    backup: BackupFrames,
    patterns: Sequence[str] = (),
    *,
    most_subjects: int = 10,
    duplicates: bool = False,
    progress: Progress | None = None,
    most_in_driver: int = _MOST_IN_DRIVER,
) -> list[StreamStats]:
    """Return statistics of the chosen streams, in the order of the backup, with the `most_subjects` largest subjects of
    each. The driver joins at most `most_in_driver` counts of subjects, sizes and ids.

    Raises:
        UsageError: a pattern names no stream.
        IntegrityError, StoreError: the backup cannot be read.
    """
    streams = backup.streams(patterns)
    total = sum(stream.captured.bytes for stream in streams)
    repeated: dict[int, int] | None = None
    with watched(backup.session, backup.manifest.id, total, progress), spark_errors("the statistics"):
        counted = count_messages(backup.session, backup.place, streams, ids=duplicates).persist(StorageLevel.DISK_ONLY)
        try:
            tallies = counted.where("tally is not null").select("stream", "messages", "tally").collect()
            if sum(row.messages for row in tallies) <= most_in_driver:
                rows = counted.where("tally is null").drop("tally").toArrow()
                totals = _totals_of(rows, len(streams), most_subjects)
                repeated = _repeated(rows) if duplicates else None
            else:
                totals = _totals_on_spark(counted, most_subjects)
                if duplicates:
                    repeated = {row.stream: row.duplicates for row in _duplicates(counted).collect()}
        finally:
            unpersist(counted)
    return found_stats(
        backup.place.open(),
        backup.manifest,
        streams,
        totals=totals,
        repeated=repeated,
        tallies=_merged(tallies, streams),
    )


def _totals_of(rows: pa.Table, streams: int, most_subjects: int) -> dict[int, StreamTotals]:
    """Return the totals by the numbers of streams from rows of `count_messages`."""
    rows = rows.filter(pc.field("size").is_valid()).combine_chunks()
    prefixes = pa.array([key_prefix(number) for number in range(streams)], pa.binary())
    keys = (prefixes.take(rows.column("stream").combine_chunks()), as_binary(rows.column("subject").combine_chunks()))
    columns = {name: rows.column(name) for name in ("size", *COUNTED)}
    keyed = pa.table({"key": pc.binary_join_element_wise(*keys, pa.scalar(b"", pa.binary())), **columns})
    with closing(GroupedCounts(("key", "size"), COUNTED, limit_bytes=_DRIVER_BYTES)) as counts:
        counts.add(keyed)
        return totals_of(counts.sorted_groups(), most_subjects)


def _repeated(rows: pa.Table) -> dict[int, int]:
    """Return how many messages of each stream have an id that an earlier one has."""
    ids = rows.filter(pc.field("id").is_valid()).group_by(["stream", "id"]).aggregate([("messages", "sum")])
    found = ids.group_by("stream").aggregate([("messages_sum", "sum"), ("messages_sum", "count")])
    return {row["stream"]: row["messages_sum_sum"] - row["messages_sum_count"] for row in found.to_pylist()}


def _totals_on_spark(counted: DataFrame, most_subjects: int) -> dict[int, StreamTotals]:
    """Return the totals by the numbers of streams from rows of `count_messages`, of which there may be any number."""
    with _on_disk(_sizes_of(counted)) as sizes, _on_disk(_subjects_of(sizes)) as subjects:
        # This job stores both. Otherwise each reader of the next one would, at the same time, on another executor.
        subject_counts = {row.stream: row["count"] for row in subjects.groupBy("stream").count().collect()}
        return _totals_of_rows(_streams_and_largest(sizes, subjects, most_subjects).collect(), subject_counts)


@contextmanager
def _on_disk(frame: DataFrame) -> Iterator[DataFrame]:
    """Compute a frame once that is used several times, and move its rows once."""
    frame.persist(StorageLevel.DISK_ONLY)
    try:
        yield frame
    finally:
        unpersist(frame)


def _totals_of_rows(rows: Sequence[Row], subject_counts: Mapping[int, int]) -> dict[int, StreamTotals]:
    """Return the totals by the numbers of streams from rows of `_streams_and_largest`."""
    subjects: dict[int, list[Row]] = {}
    for row in rows:
        if not row.whole:
            subjects.setdefault(row.stream, []).append(row)
    found = {}
    for row in rows:
        if not row.whole:
            continue
        mine = sorted(subjects.get(row.stream, []), key=lambda one: (-one.bytes, -one.messages, one.subject))
        largest = tuple(SubjectStats(r.subject, r.messages, r.bytes, r.oldest_ns, r.newest_ns, _sizes(r)) for r in mine)
        span = (row.messages, row.bytes, row.oldest_ns, row.newest_ns, _sizes(row))
        found[row.stream] = StreamTotals(*span, subject_counts[row.stream], largest)
    return found


def _merged(rows: Iterable[Row], streams: Sequence[StreamBackup]) -> list[MessageTally]:
    tallies = [MessageTally(scale) for scale in scales_of(streams)]
    for row in rows:
        tallies[row.stream].merge(pickle.loads(row.tally))
    return tallies


def _sizes_of(counted: DataFrame) -> DataFrame:
    """Return the messages by stream, subject and size: messages, oldest_ns and newest_ns."""
    return (
        counted.where("size is not null")
        .groupBy("stream", "subject", "size")
        .agg(
            F.sum("messages").alias("messages"),
            F.min("oldest_ns").alias("oldest_ns"),
            F.max("newest_ns").alias("newest_ns"),
        )
    )


def _subjects_of(sizes: DataFrame) -> DataFrame:
    """Return the bytes and messages of each subject."""
    return sizes.groupBy("stream", "subject").agg(
        F.sum(F.col("size") * F.col("messages")).alias("bytes"), F.sum("messages").alias("messages")
    )


def _streams_and_largest(sizes: DataFrame, subjects: DataFrame, most_subjects: int) -> DataFrame:
    """Return one row for each stream (`whole`), and one for each of its largest subjects.

    Columns: stream, subject, whole, messages, bytes, oldest_ns, newest_ns, largest, p50, p90, p99.
    """
    order = [F.desc("bytes"), F.desc("messages"), F.col("subject")]
    ranked = first_of_groups(subjects, ["stream"], order, most_subjects, spread_by="subject")
    # The driver gets them, too. Without the hint, Spark may move all sizes for the join.
    largest = F.broadcast(ranked.select("stream", "subject"))
    of_largest = _measured(sizes.join(largest, ["stream", "subject"]), "stream", "subject")
    by_size = sizes.groupBy("stream", "size").agg(
        F.sum("messages").alias("messages"),
        F.min("oldest_ns").alias("oldest_ns"),
        F.max("newest_ns").alias("newest_ns"),
    )
    of_streams = _measured(by_size, "stream")
    return of_streams.select("*", F.lit(None).cast("string").alias("subject"), F.lit(True).alias("whole")).unionByName(
        of_largest.select("*", F.lit(False).alias("whole"))
    )


def _measured(counts: DataFrame, *keys: str) -> DataFrame:
    """Return the totals of each key, and percentiles: the size of the message with that rank, rounded up.

    A task has all sizes of a key. They are few: messages of N bytes have fewer than sqrt(2 N) sizes, a TiB 1.5 million.
    """
    of_key = Window.partitionBy(*keys)
    ranked = counts.withColumn("reached", F.sum("messages").over(of_key.orderBy("size")))
    ranked = ranked.withColumn("total", F.sum("messages").over(of_key))
    percentiles = [
        F.min(F.when(F.col("reached") >= F.ceil(F.col("total") * share), F.col("size"))).alias(name)
        for name, share in _PERCENTILES.items()
    ]
    return ranked.groupBy(*keys).agg(
        F.sum("messages").alias("messages"),
        F.sum(F.col("size") * F.col("messages")).alias("bytes"),
        F.min("oldest_ns").alias("oldest_ns"),
        F.max("newest_ns").alias("newest_ns"),
        F.max("size").alias("largest"),
        *percentiles,
    )


def _duplicates(counted: DataFrame) -> DataFrame:
    repeats = counted.where("id is not null").groupBy("stream", "id").agg(F.sum("messages").alias("count"))
    return repeats.groupBy("stream").agg(F.sum(F.col("count") - 1).alias("duplicates"))


def _sizes(row: Row) -> Sizes:
    return Sizes(row.p50, row.p90, row.p99, row.largest)
