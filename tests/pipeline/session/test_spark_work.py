"""What executors did: counted from Spark's status, logged, and told in documents."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from jsbackup.pipeline.session.failures import SPARK_FAILURES
from jsbackup.pipeline.session.spark_work import SparkWork, measured
from tests.cli.test_json import check
from tests.cli.typed import Typed
from tests.harness.batches import some_messages
from tests.pipeline.places import keep, segments_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Type = Callable[..., Typed]

LOGGER = "jsbackup.pipeline.session.spark_work"
ROWS = 3000


def _shuffled(spark: SparkSession) -> int:
    return spark.range(0, ROWS, 1, 3).selectExpr("id % 7 AS seventh").groupBy("seventh").count().count()


def _failing_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0 and context.partitionId() == 1:
        raise ValueError("at first")
    yield from batches


def _failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    raise ValueError("each time")


def test_the_tasks_of_its_own_jobs_are_counted(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    _shuffled(spark)  # not among them
    found: list[SparkWork | None] = []
    with caplog.at_level(logging.INFO, LOGGER), measured(spark, found.append):
        assert _shuffled(spark) == 7
    (work,) = found
    assert work is not None and (work.executors, work.ended_executors, work.failed_tasks) == (1, 0, 0)
    # Three that read, those of the exchange (which Spark may join), and one that counts.
    assert work.stages == 3 and 3 + 1 + 1 <= work.tasks <= 3 + 2 + 1
    assert work.run_seconds > 0 and work.shuffle_read_bytes == work.shuffle_written_bytes > 0
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(f"Spark: 1 executor, {work.tasks} tasks, 0 failed, ") and said.endswith(" shuffled")


def test_nothing_is_counted_where_nothing_is_run(spark: SparkSession) -> None:
    found: list[SparkWork | None] = []
    with measured(spark, found.append):
        pass
    assert [work and (work.stages, work.tasks, work.run_seconds) for work in found] == [(0, 0, 0)]


def test_repeated_tasks_are_a_warning(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    found: list[SparkWork | None] = []
    with caplog.at_level(logging.WARNING, LOGGER), measured(spark, found.append):
        assert spark.range(0, 10, 1, 2).mapInArrow(_failing_at_first, "id bigint").count() == 10
    (work,) = found
    assert work is not None and work.failed_tasks == 1
    (said,) = (record.getMessage() for record in caplog.records)
    assert said == f"on Spark, 1 task was repeated, of {work.tasks}, because they failed"


def test_a_job_that_fails_is_counted_and_its_error_remains(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[SparkWork | None] = []
    with (
        caplog.at_level(logging.WARNING, LOGGER),
        pytest.raises(SPARK_FAILURES, match="each time"),
        measured(spark, found.append),
    ):
        spark.range(0, 10, 1, 1).mapInArrow(_failing, "id bigint").collect()
    assert [work and (work.tasks, work.failed_tasks) for work in found] == [(4, 4)]
    assert caplog.records == []


def test_a_spark_that_does_not_answer_fails_nothing() -> None:
    found: list[SparkWork | None] = []
    with measured(cast(Any, SimpleNamespace(sparkContext=None)), found.append):
        pass
    assert found == [None]


@pytest.mark.by_turns
def test_documents_of_all_jobs_tell_it(typed: Type, tmp_path: Path) -> None:
    streams = {"A": some_messages(120, 100), "B": some_messages(60, 10, seed=2)}
    with segments_of(1000):
        kept = keep(tmp_path / "r", streams, encrypted=False)
    table, line = tmp_path / "table", [*kept.line, "--json"]

    def told(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
        done = typed(*arguments)
        assert done.code == code, done
        document = check(str(arguments[0]), done)
        assert document["spark"]["used"] in (True, "spark")
        work = document["spark"]["work"]
        assert work["tasks"] > 0 and work["failed_tasks"] == 0 and work["run_seconds"] > 0
        return document

    always = ["--spark", "always"]
    there = ["--spark-conf", "spark.jsbackup.test=1"]
    sql = "SELECT count(DISTINCT subject) FROM messages"
    assert check("query", typed("query", "latest", sql, "--spark", "local", *line))["work"]["tasks"] > 0
    told("stats", "latest", *line, *always)
    told("export", "latest", "--format", "parquet", "--output", table, *line, *always)
    made = told("transform", "latest", "--until", "50", *line)
    assert made["spark"]["why"] == "this command runs there"
    told("import", table, "--format", "parquet", *line, *always)
    told("compact", kept.manifest.id, *line, *always)
    told("verify", "latest", "--level", "data", *line, *there)
    told("verify", "--level", "data", *line, *there)
    compared = told("diff", kept.manifest.id, made["backup"], *line, *there, code=1)
    assert compared["spark"]["why"] == "an option of Spark is given"
    # There is nothing to read, or it is not read by Spark.
    for arguments in (("verify", "latest"), ("diff", kept.manifest.id, kept.manifest.id, *there)):
        done = typed(*arguments, *line)
        assert done.code == 0 and "spark" not in done.document, done
    done = typed("stats", "latest", "--spark", "never", *line)
    assert done.document["spark"] == {"used": False, "why": "--spark never"}

    done = typed("stats", "latest", *kept.line, *always, "-v")
    assert done.code == 0 and "\ninfo: Spark: 1 executor, " in done.err and " of garbage collection, " in done.err
