"""A query over messages that jsbackup reads gets the columns that it needs, and finds what it would find with all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jsbackup.errors import IntegrityError
from jsbackup.pipeline.jobs.needed_columns import needed_columns, placeholder
from jsbackup.pipeline.jobs.query import run_query
from jsbackup.pipeline.messages.backup_frames import open_backup
from jsbackup.pipeline.messages.columns import COLUMNS
from tests.harness.batches import some_messages
from tests.pipeline.places import keep, segments_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("sql", "needed"),
    [
        ("SELECT count(*) FROM m", ""),
        ("SELECT 1 FROM m", ""),
        ("SELECT count(*) FROM m WHERE sequence > 5", "sequence"),
        ("SELECT count(data) FROM m WHERE 1 = 1", "data"),
        ("SELECT stream, count(*) FROM m GROUP BY stream", "stream"),
        ("SELECT * FROM m", "all"),
        ("SELECT * FROM m LIMIT 3", "all"),
        ("SELECT subject FROM m ORDER BY sequence", "sequence subject"),
        ("SELECT a.subject FROM m a JOIN m b ON a.sequence = b.timestamp_ns", "sequence timestamp_ns subject"),
        ("WITH x AS (SELECT subject, data FROM m) SELECT subject FROM x UNION ALL SELECT subject FROM x", "subject"),
        ("SELECT subject FROM m WHERE sequence = (SELECT max(timestamp_ns) FROM m)", "sequence timestamp_ns subject"),
        ("SELECT (SELECT max(time) FROM m) AS t", "time"),
        ("SELECT sequence FROM m UNION SELECT timestamp_ns FROM m", "sequence timestamp_ns"),
        ("SELECT row_number() OVER (PARTITION BY subject ORDER BY sequence) FROM m", "sequence subject"),
        ("SELECT struct(*) FROM m", "all"),
        ("SELECT count(*) FROM m WHERE EXISTS (SELECT 1 FROM m b WHERE b.headers IS NULL)", "headers"),
        ("FROM m |> WHERE sequence > 1 |> SELECT subject", "sequence subject"),
    ],
)
def test_the_optimized_plan_says_what_is_needed(spark: SparkSession, sql: str, needed: str) -> None:
    placeholder(spark).createOrReplaceTempView("m")
    try:
        found = needed_columns(spark.sql(sql))
    finally:
        spark.catalog.dropTempView("m")
    assert found == (COLUMNS if needed == "all" else tuple(needed.split()))


QUERIES = (
    "SELECT count(*) FROM a",
    "SELECT stream, backup, count(*) FROM messages GROUP BY ALL ORDER BY stream",
    "SELECT stream, count(*) FROM messages WHERE stream IN ('B', 'C') GROUP BY stream ORDER BY stream",
    "SELECT count(*), count(header_block), max(time) FROM a WHERE sequence > 20",
    "SELECT * FROM a ORDER BY sequence LIMIT 7",
    "SELECT headers['N'] AS n, subject FROM a WHERE subject LIKE 'orders.3%' ORDER BY sequence",
    "SELECT a.sequence FROM a JOIN b ON a.sequence = b.sequence AND a.subject = b.subject ORDER BY 1",
    "WITH x AS (SELECT subject, count(*) n FROM messages GROUP BY subject) SELECT * FROM x ORDER BY n DESC, subject",
    "SELECT sequence FROM a WHERE sequence = (SELECT max(sequence) FROM a)",
    "SELECT 1 FROM a WHERE 1 = 0 AND text = 'x'",
    "SELECT count(*) FROM a WHERE sequence <= 40 UNION ALL SELECT count(*) FROM a WHERE subject = 'orders.3' "
    "UNION ALL SELECT count(*) FROM a",
    "SELECT (SELECT count(*) FROM a WHERE sequence > 250), count(*) FROM a",
    "WITH x AS (SELECT * FROM a WHERE sequence > 20) "
    "SELECT count(*) FROM x JOIN a ON x.sequence < a.sequence AND a.sequence < 40",
    "SELECT count(*) FROM messages m WHERE stream = 'A' AND sequence > 7 "
    "AND NOT EXISTS (SELECT 1 FROM messages b WHERE b.stream = 'B' AND b.sequence = m.sequence)",
    "SELECT count(*) FROM a WHERE sequence > 9 AND sequence NOT IN (SELECT sequence FROM b WHERE sequence > 20)",
    "SELECT subject, sequence FROM a WHERE length(data) = 100 AND text IS NOT NULL ORDER BY timestamp_ns LIMIT 5",
    "SELECT count(*) FROM (SELECT sequence, subject FROM a EXCEPT SELECT sequence, subject FROM b)",
    "SELECT * FROM (SELECT subject, stream FROM messages) PIVOT (count(*) FOR stream IN ('A', 'B')) ORDER BY subject",
)


@pytest.mark.by_turns
def test_answers_are_those_of_sparks_own_reader(spark: SparkSession, tmp_path: Path) -> None:
    streams = {"A": some_messages(300, 100), "B": some_messages(100, 30, seed=2), "C": []}
    with segments_of(15_000):  # some
        plain = open_backup(spark, keep(tmp_path / "plain", streams).place)
        sealed = open_backup(spark, keep(tmp_path / "sealed", streams, encrypted=True).place)
    for sql in QUERIES:
        one, other = (run_query(backup, sql, most_rows=1000) for backup in (plain, sealed))
        assert one == other, sql
        assert one.rows or "1 = 0" in sql


def test_messages_are_counted_by_the_manifest_without_reading_any(spark: SparkSession, tmp_path: Path) -> None:
    kept = keep(tmp_path, {"A": some_messages(300, 100), "B": some_messages(10, 10)}, encrypted=True)
    for stream in kept.manifest.streams:
        for ref in stream.segments:
            path = Path(kept.place.location) / ref.key
            path.chmod(0o600)
            path.write_bytes(b"damaged")
    backup = open_backup(spark, kept.place)
    assert run_query(backup, "SELECT count(*) FROM a", most_rows=9).rows == [(300,)]
    counts = run_query(backup, "SELECT stream, count(*) FROM messages GROUP BY 1 ORDER BY 1", most_rows=9)
    assert counts.rows == [("A", 300), ("B", 10)]
    with pytest.raises(IntegrityError):
        run_query(backup, "SELECT count(*) FROM a WHERE sequence > 0", most_rows=9)
