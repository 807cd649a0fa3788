"""While a job runs: progress from Spark's own status, Ctrl-C, and failures of tasks."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from jsbackup.errors import JsBackupError, StoreError
from jsbackup.pipeline.session.repository_ref import RepositoryRef
from jsbackup.pipeline.tables.export import TablesAsked, export_tables, plan_export
from jsbackup.pipeline.tables.target import files_target
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.pipeline.tasks.packing import pack, pack_tasks
from jsbackup.pipeline.tasks.tasks import OnSpark, watched
from jsbackup.repository.write import segment_writer
from tests.harness import backups
from tests.harness.batches import some_messages
from tests.harness.commands import command_line, environment
from tests.harness.servers import wait_until
from tests.pipeline.places import keep
from tests.pipeline.quick_java import quick_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Watcher:
    """A progress that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, int]] = []

    def expect(self, totals: Mapping[str, int]) -> None:
        raise AssertionError("nobody knows that much")

    def start(self, name: str, total_bytes: int, total_messages: int) -> None:
        self.told.append(("start", name, total_bytes))

    def advance(self, name: str, byte_count: int, messages: int) -> None:
        self.told.append(("advance", name, byte_count))

    def finish(self, name: str) -> None:
        self.told.append(("finish", name, 0))


def test_neighbours_are_packed_up_to_a_limit() -> None:
    assert pack([], 10) == []
    assert [list(range(9))[piece] for piece in pack([1, 2, 3, 20, 5, 5, 1, 0, 9], 10)] == [
        [0, 1, 2],
        [3],
        [4, 5],
        [6, 7, 8],
    ]
    assert len(pack_tasks([1 << 20] * 100)) == 13  # of 8 MiB
    assert len(pack_tasks([64 << 20] * 1000)) == 500  # of 128 MiB


def test_results_come_in_the_order_of_the_tasks(spark: SparkSession) -> None:
    tasks = [functools.partial(pow, 2, number) for number in range(100)]
    assert list(OnSpark(spark).run("powers", tasks)) == [1 << number for number in range(100)]
    assert list(OnSpark(spark).run("nothing", [])) == []


def test_errors_of_ours_come_back_as_they_are_and_others_are_named(spark: SparkSession) -> None:
    missing = RepositoryRef("/nonexistent/repo")
    with pytest.raises(JsBackupError, match="no repository at /nonexistent/repo") as caught:
        list(OnSpark(spark).run("opening", [functools.partial(pow, 2, 3), missing.open]))
    assert caught.value.exit_code == 10 and caught.value.hint
    with pytest.raises(JsBackupError, match="counting failed on an executor: ValueError: invalid literal"):
        list(OnSpark(spark).run("counting", [functools.partial(int, "x")]))


def test_a_worker_process_that_ends_is_replaced(spark: SparkSession, tmp_path: Path) -> None:
    """A task that ends its own worker the first time, as the kernel does where memory is short."""
    once = f"__import__('os').mkdir('{tmp_path}/died') or __import__('os')._exit(9)"
    code = f"7 if __import__('os').path.exists('{tmp_path}/died') else {once}"
    assert list(OnSpark(spark).run("dying", [functools.partial(eval, code), functools.partial(pow, 2, 3)])) == [7, 8]
    always = functools.partial(os._exit, 9)
    with pytest.raises(JsBackupError, match="always dying failed"):
        list(OnSpark(spark).run("always dying", [always]))


def test_progress_is_what_sparks_status_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jsbackup.pipeline.tasks.tasks._LOOK_SECONDS", 0.01)
    watcher = Watcher()
    tasks = [functools.partial(sum, range(2_000_000))] * 12
    assert len(list(OnSpark(spark).run("sums", tasks, weights=[100] * 12, progress=watcher))) == 12
    assert watcher.told[0] == ("start", "sums", 1200) and watcher.told[-1] == ("finish", "sums", 0)
    advanced = [count for kind, _, count in watcher.told if kind == "advance"]
    assert advanced and sum(advanced) == 1200 and advanced[-1] >= 60
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None


def test_progress_is_not_complete_before_the_last_stage_is(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job whose first stage is long over while the last one runs, as in `stats`."""
    monkeypatch.setattr("jsbackup.pipeline.tasks.tasks._LOOK_SECONDS", 0.01)
    watcher = Watcher()
    with watched(spark, "rows", 1000, watcher):
        assert spark.range(0, 5000, 1, 4).groupBy((F.col("id") % 7).alias("k")).count().count() == 7
        time.sleep(0.5)
        before = sum(count for kind, _, count in watcher.told if kind == "advance")
    assert 0 < before <= 950
    assert sum(count for kind, _, count in watcher.told if kind == "advance") == 1000
    with pytest.raises(ValueError), watched(spark, "failing", 1000, watcher):
        raise ValueError
    assert watcher.told[-2:] == [("start", "failing", 1000), ("finish", "failing", 0)]


def test_a_target_that_cannot_be_written_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    kept = keep(tmp_path / "r", {"A": some_messages(50, 100)})
    target = RepositoryRef(str(tmp_path / "out"))
    with pytest.raises(StoreError), files_target(target, "00") as made:
        (tmp_path / ".out.jsbackup-00" / "A").write_bytes(b"in the way")
        export_tables(
            OnSpark(spark),
            kept.place,
            made,
            plan_export(kept.place, kept.manifest, made, TablesAsked(TableFormat.JSONL)),
            progress=Watcher(),
        )
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


@pytest.mark.by_turns
@pytest.mark.spark
@pytest.mark.xdist_group("spark-apart")
@pytest.mark.timeout(300)
def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "SEGMENT_BYTES", 2 << 20)
    kept = keep(tmp_path / "r", {"A": some_messages(400, 200_000)})
    line = ["export", "latest", *kept.line, "--format", "jsonl", "--output", str(tmp_path / "out")]
    line += ["--spark", "local[1]", "--spark-conf", "spark.driver.memory=1g"]
    process = subprocess.Popen(
        command_line(*line),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**quick_java()),
        start_new_session=True,
    )
    wait_until(lambda: bool(list(tmp_path.glob(".out.*/A/*.jsonl"))), "a file of the export", seconds=200)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (130, b"")
    assert b"\nerror: interrupted" in err and b"Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["r"]
    wait_until(lambda: not _alive(process.pid), "what it started to end")


def _alive(session: int) -> list[int]:
    """Processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def test_the_workers_share_the_cores(spark: SparkSession) -> None:
    """There is one for each: several threads in each would compress no faster, and hold more."""
    assert list(OnSpark(spark).run("counting cores", [segment_writer.usable_cores])) == [1]
