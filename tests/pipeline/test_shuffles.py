"""What jobs on Spark move between tasks: no more than the manual says, and no task gets all of a huge stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jsbackup.pipeline.jobs.stats import collect_stats
from jsbackup.pipeline.messages.backup_frames import open_backup
from jsbackup.pipeline.messages.newest import newest_sequences
from jsbackup.pipeline.tables import export
from jsbackup.pipeline.tasks import packing, ranking
from jsbackup.transforms.filters.newest import NewestRule
from jsbackup.transforms.reshape import Reshape
from tests.cli.typed import Typed
from tests.harness.batches import some_messages
from tests.pipeline.places import Kept, keep, segments_of
from tests.pipeline.plans import watched_plans

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.by_turns

Type = Callable[..., Typed]

# Nothing is moved by jobs whose tasks read and write themselves.
NOTHING: list[str] = []

MANY_STATS = [
    "broadcast",  # the largest subjects, to all sizes
    "hash(stream)",  # the largest of each task
    "hash(stream)",  # the numbers of subjects that tasks have counted
    "hash(stream)",  # sizes, for percentiles of streams
    "hash(stream, size)",
    "hash(stream, subject)",  # sizes of the largest subjects, for percentiles
    "hash(stream, subject)",
    "hash(stream, subject, size)",  # what tasks have counted, once
]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    headers = b"NATS/1.0\r\nNats-Msg-Id: one\r\n\r\n"
    streams = {f"S{n}": [one._replace(headers=headers) for one in some_messages(20, 100, seed=n)] for n in range(18)}
    return keep(tmp_path_factory.mktemp("shuffles"), {**streams, "KV_b": some_messages(200, 50)})


@pytest.fixture(params=[1000, 2], ids=["few", "many"])
def spread(request: pytest.FixtureRequest, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """In how many parts Spark moves rows here, however few they are. More than two of a group may be too many to be
    sent on by tasks alone.
    """
    wanted = {
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.sql.optimizer.windowGroupLimitThreshold": str(request.param),
    }
    monkeypatch.setattr(ranking, "_LIMITED", request.param)
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield 8
    for name, value in before.items():
        assert value is not None
        spark.conf.set(name, value)


@pytest.mark.parametrize(
    ("sql", "moved"),
    [
        ("SELECT * FROM s1 WHERE sequence > 3", NOTHING),
        ("SELECT subject, data FROM s1 ORDER BY sequence DESC", NOTHING),
        ("SELECT count(*) FROM s1", ["single"]),
        ("SELECT subject, count(*) FROM s1 GROUP BY subject", ["hash(subject)"]),
        ("SELECT stream, subject, count(*) FROM messages GROUP BY 1, 2", ["broadcast", "hash(stream, subject)"]),
        ("SELECT max(time) FROM s1", ["single"]),
    ],
)
def test_a_query_moves_what_its_own_grouping_needs(
    spark: SparkSession, typed: Type, kept: Kept, sql: str, moved: list[str]
) -> None:
    with watched_plans(spark) as done:
        answer = typed("query", "latest", sql, "--spark", "local", *kept.line)
    assert (answer.code, done.exchanges) == (0, moved), answer


def test_the_data_source_moves_nothing(spark: SparkSession, kept: Kept) -> None:
    reader = spark.read.format("jsbackup").option("columns", "stream,sequence")
    with watched_plans(spark) as done:
        rows = reader.load(kept.place.location).where("sequence > 19").collect()
    assert done.exchanges == NOTHING and len(rows) > 100


def test_statistics_move_counts_once(spark: SparkSession, kept: Kept) -> None:
    backup = open_backup(spark, kept.place)
    with watched_plans(spark) as done:
        few = collect_stats(backup, duplicates=True)
    assert done.exchanges == NOTHING
    with watched_plans(spark) as done:
        many = collect_stats(backup, most_in_driver=0)
    assert done.exchanges == MANY_STATS and len(many) == len(few)
    with watched_plans(spark) as done:
        collect_stats(backup, most_in_driver=0, most_subjects=5000, duplicates=True)
    # The largest of parts, and ids with the numbers of those that are repeated.
    (parts,) = (one for one in done.exchanges if one.startswith("hash(stream, _w"))
    assert done.exchanges == sorted([*MANY_STATS, parts, "hash(stream, id)", "hash(stream)"])


def test_jobs_whose_tasks_read_and_write_themselves_move_nothing(
    spark: SparkSession, typed: Type, kept: Kept, tmp_path: Path
) -> None:
    there = ["--spark-conf", "spark.jsbackup.test=1"]
    always = ["--spark", "always", *kept.line]
    made: dict[str, str] = {}

    def moved(*line: str | Path, code: int = 0) -> list[str]:
        with watched_plans(spark) as done:
            answer = typed(*line, "--json")
        assert answer.code == code, answer
        made["backup"] = answer.document.get("backup", "")
        assert done.tasks
        return done.exchanges

    first = kept.manifest.id
    assert moved("verify", first, "--level", "data", *there, *kept.line) == NOTHING
    for kind, more in (("parquet", []), ("jsonl", []), ("delta", ["--partition-by", "day"])):
        assert moved("export", first, "--format", kind, "--output", tmp_path / kind, *more, *always) == NOTHING
    assert moved("compact", first, "--recompress", *always) == NOTHING or not made["backup"]
    newest = ["hash(stream, block)", "hash(stream, subject)"]
    assert moved("transform", first, "S1", "--last-per-subject", "1", *kept.line) == newest
    assert moved("transform", first, "--until", "10", *kept.line) == NOTHING
    assert moved("diff", first, made["backup"], *there, *kept.line, code=1) == NOTHING


@pytest.mark.parametrize(
    ("stream", "small", "moved"),
    [
        # Whether the table is of one stream: a row of each task. Little is sorted in one task.
        ("S1", True, ["hash(stream)"]),
        ("S1", False, ["hash(stream)", "range(sequence)"]),
        # How many messages of a key there are at most.
        ("KV_b", False, ["hash(stream)", "hash(subject)", "range(sequence)", "single"]),
    ],
)
def test_an_import_moves_rows_into_the_order_of_sequences(
    spark: SparkSession,
    typed: Type,
    kept: Kept,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    stream: str,
    small: bool,
    moved: list[str],
) -> None:
    table = tmp_path / "table"
    done = typed("export", kept.manifest.id, stream, "--format", "jsonl", "--output", table, *kept.line)
    assert done.code == 0, done
    if not small:
        monkeypatch.setattr("jsbackup.pipeline.jobs.write._SMALL_BYTES", 1)
    with watched_plans(spark) as plans:
        done = typed("import", table, "--format", "jsonl", "--spark", "always", "-r", tmp_path / "other")
    assert (done.code, plans.exchanges) == (0, moved), done


def test_a_huge_stream_is_spread_over_tasks(
    spark: SparkSession, typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_LEAST_BYTES", 1)
    monkeypatch.setattr(export, "SEGMENT_BYTES", 5000)
    with segments_of(1000):
        kept = keep(tmp_path / "r", {"S": some_messages(400, 100)}, segment_bytes=4096)
    always, there = ["--spark", "always", *kept.line], ["--spark-conf", "spark.jsbackup.test=1", *kept.line]
    first, made = kept.manifest.id, ""
    for line in (
        ["verify", first, "--level", "data", *there],
        ["stats", first, *always],
        ["export", first, "--format", "parquet", "--output", tmp_path / "table", *always],
        ["transform", first, "--exclude-subject", "orders.1", *kept.line],
        ["diff", first, "MADE", *there],
        ["compact", first, *always],
    ):
        with watched_plans(spark) as done:
            answer = typed(*(made if one == "MADE" else one for one in line), "--json")
        assert answer.code in (0, 1), answer
        made = answer.document.get("backup") or made
        assert max(done.tasks, default=0) >= 4, (line, done)


def test_no_task_gets_all_subjects_or_sizes_of_a_huge_stream(spark: SparkSession, tmp_path: Path, spread: int) -> None:
    count = 6000
    messages = [
        message._replace(subject=f"s.{number % 4000}", headers=None, data=b"x" * (number * 7919 % 150))
        for number, message in enumerate(some_messages(count, 1))
    ]
    with segments_of(30_000):  # some tasks for one stream
        kept = keep(tmp_path, {"S": messages})
    with watched_plans(spark) as done:
        (found,) = collect_stats(open_backup(spark, kept.place), most_in_driver=0)
    assert found.subject_count == 4000 and len(found.subjects) == 10
    assert count / spread / 2 < done.largest < 1.4 * count / spread, done  # a fair share, by hash


def test_no_task_gets_all_messages_of_a_subject(
    spark: SparkSession, tmp_path: Path, spread: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_LEAST_BYTES", 1)  # many tasks
    monkeypatch.setattr(ranking, "_PARTS", spread)
    newest = 3
    messages = [one._replace(subject="one", headers=None) for one in some_messages(5000, 1)]
    with segments_of(1000):
        kept = keep(tmp_path, {"S": messages})
    (stream,) = kept.manifest.streams
    with watched_plans(spark) as done:
        found = newest_sequences(spark, kept.place, {"S": stream.segments}, Reshape(), rule=NewestRule(newest))
    assert found["S"].array().to_pylist() == [one.sequence for one in messages[-newest:]]
    of_segments = newest * len(stream.segments)
    assert max(done.tasks) > 4 and 0 < done.largest < of_segments / 2, (done, of_segments)
