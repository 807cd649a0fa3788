"""Statistics of a backup by stream and subject, on Spark: number, sizes and times of messages.

`bytes` and sizes are raw bytes, those of the canonical encoding (`formats/digest.py`), so that their sum is the number
in the manifest. Percentiles are approximate, to a few per mille of the ranks. `distribution.py` has the distribution
over time and sizes, `repository/read/growth.py` the growth of streams, `direct_stats.py` the same without Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from jsbackup.pipeline.jobs.distribution import measure_distributions
from jsbackup.pipeline.jobs.stats_model import Sizes, StreamStats, SubjectStats
from jsbackup.pipeline.messages.backup_frames import BackupFrames
from jsbackup.pipeline.messages.headers import message_id
from jsbackup.pipeline.session.failures import spark_errors
from jsbackup.pipeline.tasks.tasks import OnSpark, watched
from jsbackup.progress import Progress
from jsbackup.repository.read.growth import growth_of

__all__ = ["collect_stats", "raw_size", "stats_by_subject"]

_ACCURACY = 500
_COLUMNS = ("stream", "sequence", "timestamp_ns", "subject", "headers", "data")


def collect_stats(
    backup: BackupFrames,
    patterns: Sequence[str] = (),
    *,
    most_subjects: int = 10,
    duplicates: bool = False,
    progress: Progress | None = None,
) -> list[StreamStats]:
    """Return statistics of the chosen streams, in the order of the backup, with the `most_subjects` largest subjects of
    each.

    Raises:
        UsageError: a pattern names no stream.
        IntegrityError, StoreError: the backup cannot be read.
    """
    streams = backup.streams(patterns)
    frame = backup.messages(patterns, _COLUMNS)
    total = sum(stream.captured.bytes for stream in streams)
    with watched(backup.session, backup.manifest.id, total, progress), spark_errors("the statistics"):
        rows = _largest(stats_by_subject(frame), most_subjects).collect()
        repeated = {row.stream: row.duplicates for row in _duplicates(frame).collect()} if duplicates else {}
    distributions = measure_distributions(OnSpark(backup.session), backup.place, streams, progress)
    growth = growth_of(backup.place.open(), backup.manifest, [stream.name for stream in streams])
    whole = {row.stream: row for row in rows if row.whole}
    subjects: dict[str, list[Row]] = {}
    for row in rows:
        if not row.whole:
            subjects.setdefault(row.stream, []).append(row)
    found = []
    for stream, distribution in zip(streams, distributions, strict=True):
        mine = sorted(subjects.get(stream.name, []), key=lambda row: (-row.bytes, -row.messages, row.subject))
        largest = tuple(SubjectStats(r.subject, r.messages, r.bytes, r.oldest_ns, r.newest_ns, _sizes(r)) for r in mine)
        counted = repeated.get(stream.name, 0) if duplicates else None
        grown = tuple(growth[stream.name])
        if stream.name not in whole:
            found.append(StreamStats(stream.name, 0, 0, 0, 0, Sizes(), 0, (), counted, distribution, grown))
            continue
        row = whole[stream.name]
        span = (row.messages, row.bytes, row.oldest_ns, row.newest_ns, _sizes(row))
        found.append(StreamStats(stream.name, *span, row.subject_count, largest, counted, distribution, grown))
    return found


def stats_by_subject(frame: DataFrame) -> DataFrame:
    """Return one row for each stream (`whole`) and one for each of its subjects.

    Columns: stream, subject, whole, messages, bytes, oldest_ns, newest_ns, percentiles (three), largest.
    """
    sized = frame.select("stream", "subject", "timestamp_ns", raw_size(frame).alias("size"))
    grouped = sized.groupingSets([["stream"], ["stream", "subject"]], "stream", "subject")
    return grouped.agg(
        (F.grouping("subject") == 1).alias("whole"),
        F.count(F.lit(1)).alias("messages"),
        F.sum("size").alias("bytes"),
        F.min("timestamp_ns").alias("oldest_ns"),
        F.max("timestamp_ns").alias("newest_ns"),
        F.percentile_approx("size", [0.5, 0.9, 0.99], _ACCURACY).alias("percentiles"),
        F.max("size").alias("largest"),
    )


def raw_size(frame: DataFrame) -> Column:
    """Return the size of each message in canonical encoding."""
    lengths = [F.octet_length(frame["subject"]), F.coalesce(F.octet_length(frame["headers"]), F.lit(0))]
    lengths.append(F.octet_length(frame["data"]))
    stamp = frame["timestamp_ns"]
    # A zigzag varint has one bit more than the number, or than its complement.
    size = _varint(F.when(stamp < 0, F.bitwise_not(stamp)).otherwise(stamp), 1) + _varint(frame["sequence"])
    for length in lengths:
        size = size + _varint(length.cast("bigint")) + length
    return size


def _varint(value: Column, spent_bits: int = 0) -> Column:
    size = F.lit(1)
    for bits in range(7 - spent_bits, 63, 7):
        size = size + F.when(value >= F.lit(1 << bits), 1).otherwise(0)
    return size


def _largest(stats: DataFrame, most: int) -> DataFrame:
    by_size = Window.partitionBy("stream", "whole").orderBy(F.desc("bytes"), F.desc("messages"), "subject")
    counted = Window.partitionBy("stream")
    ranked = stats.withColumn("rank", F.row_number().over(by_size))
    ranked = ranked.withColumn("subject_count", F.count(F.lit(1)).over(counted) - 1)
    return ranked.where(F.col("whole") | (F.col("rank") <= most)).drop("rank")


def _duplicates(frame: DataFrame) -> DataFrame:
    named = frame.select("stream", message_id(frame["headers"]).alias("id")).where("id is not null")
    repeats = named.groupBy("stream", "id").count()
    return repeats.groupBy("stream").agg(F.sum(F.col("count") - 1).alias("duplicates"))


def _sizes(row: Row) -> Sizes:
    p50, p90, p99 = row.percentiles
    return Sizes(p50, p90, p99, row.largest)
