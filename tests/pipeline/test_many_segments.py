"""Streams of many segments on Spark: pages name what tasks read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from jsbackup.errors import JsBackupError
from jsbackup.pipeline.messages.backup_frames import open_backup
from jsbackup.pipeline.messages.columns import COLUMNS
from jsbackup.pipeline.messages.segment_rows import gathered
from jsbackup.pipeline.messages.source import BackupSource
from jsbackup.pipeline.session.failures import spark_errors
from jsbackup.pipeline.tasks import packing
from jsbackup.repository.pages.segment_list import SegmentList
from jsbackup.repository.read import losses
from tests.cli.typed import Typed, in_shell
from tests.harness import backups
from tests.harness.backups import FIRST, SECOND, store_stream
from tests.harness.batches import some_messages
from tests.harness.small_pages import make_pages_small
from tests.pipeline.places import keep, segments_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Type = Callable[..., Typed]

STREAMS = {"A": some_messages(400, 100), "B": some_messages(30, 10, seed=2), "C": []}
CONDITIONS = [
    "true",
    "sequence BETWEEN 200 AND 330 AND subject = 'orders.3'",
    "timestamp_ns > 1000000000000300000",
    "stream = 'B' OR sequence < 40",
    "sequence = -1",
]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of pages, and tasks that take little."""
    make_pages_small(monkeypatch)
    monkeypatch.setattr(backups, "SEGMENT_BYTES", 900)
    monkeypatch.setattr(packing, "_LEAST_BYTES", 1 << 20)


def _rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(map(str, row)) for row in frame.collect())


@pytest.mark.by_turns
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_rows_are_those_of_few_segments(spark: SparkSession, tmp_path: Path, encrypted: bool) -> None:
    kept = keep(tmp_path / "kept", STREAMS, encrypted=encrypted)
    backup = open_backup(spark, kept.place)
    (segments, _, _) = [stream.segments for stream in backup.manifest.streams]
    assert isinstance(segments, SegmentList) and max(page.level for page in segments.pages()) > 1
    with segments_of(1 << 20):
        whole = open_backup(spark, keep(tmp_path / "plain", STREAMS).place)
    for condition in CONDITIONS:
        names = [name for name in COLUMNS if name != "backup"]
        wanted = _rows(whole.messages(columns=names).where(condition))
        found = backup.messages(columns=names).where(condition)
        assert _rows(found) == wanted, condition
        assert wanted or condition == "sequence = -1"
    assert backup.messages(columns=["stream"]).groupBy("stream").count().orderBy("stream").collect() == [
        ("A", 400),
        ("B", 30),
    ]


def test_a_lost_page_is_one_sentence(
    spark: SparkSession, tmp_path: Path, typed: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keep(tmp_path, STREAMS)
    segments = kept.place.open().find("latest").streams[0].segments
    assert isinstance(segments, SegmentList)
    lost = [page for page in segments.pages() if not page.level][5]
    path = Path(kept.place.location) / lost.key
    data = path.read_bytes()
    monkeypatch.setattr(losses, "_MOST_SEGMENTS", 10)
    sql = "SELECT max(sequence + 1) AS m FROM a"
    for damage, said in ((None, "is missing"), (data[:-3], "")):
        path.chmod(0o600)
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
        with pytest.raises(JsBackupError, match=f"{lost.key}.*{said}") as caught, spark_errors("the query"):
            open_backup(spark, kept.place).messages(["A"]).collect()
        assert caught.value.exit_code == 14
        for engine in ([], ["--spark", "local"]):
            done = typed("query", "latest", sql, *kept.line, *engine)
            assert (done.code, done.out) == (14, "") and lost.key in done.err and "Traceback" not in done.err
        path.write_bytes(data)
    assert typed("query", "latest", sql, *kept.line).code == 0


def test_what_is_planned_is_read_while_others_back_up_and_prune(tmp_path: Path) -> None:
    kept = keep(tmp_path, STREAMS)
    schema = StructType().add("sequence", LongType())
    reader = BackupSource({"path": kept.place.location, "stream": "A", "columns": "sequence"}).reader(schema)
    parts = reader.partitions()
    assert len(parts) > 1
    manifest = kept.repository.find(FIRST)
    grown = store_stream(kept.repository.objects, "A", some_messages(430, 100))
    streams = (grown, *manifest.streams[1:])
    made = replace(manifest, id=SECOND, created="2026-11-21T01:46:00Z", streams=streams, previous=FIRST)
    kept.repository.commit(made)
    assert in_shell("prune", "--grace", "0s", *kept.line).code == 0
    rows = [row for part in parts for batch in reader.read(part) for row in batch.column("sequence").to_pylist()]
    assert rows == [message.sequence for message in STREAMS["A"]]


def test_short_batches_are_joined() -> None:
    def batch(*numbers: int, kind: str = "int64") -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(numbers, kind)], ["n"])

    given = [batch(1), batch(), batch(2, 3), batch(4, kind="int32"), batch(5), batch(*range(9_999)), batch(6)]
    found = list(gathered(given))
    assert [one.num_rows for one in found] == [3, 1, 10_000, 1]
    assert [value for one in found for value in one.column("n").to_pylist()] == [1, 2, 3, 4, 5, *range(9_999), 6]
    long = batch(*range(300_000))
    assert list(gathered([batch(1), long, batch(2)]))[1] is long
    assert list(gathered([])) == []
