"""The benchmark's cases run, on streams too small to tell anything about speed, and its figures are there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from scripts.bench_floors import BACKUP, PROVED, RESTORE
from scripts.bench_profile import STAGES
from tests.harness.servers import BUNDLED, missing
from tests.pipeline.quick_java import quick_java

ROOT = Path(__file__).parents[1]
HOW = (
    "proved; nats backup restore stream",
    "--verify none; nats backup restore stream",
    "--verify none; only sending (v1)",
)


def _rows(*arguments: str, **extra: str) -> dict[str, dict[str, Any]]:
    """The rows of a run, by case and what it is held against; `extra` are environment variables."""
    command = [sys.executable, "-m", "scripts.bench_cases", *arguments, "--short", "--json"]
    environ = {**os.environ, **extra}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    for row in rows:
        assert 0 < row["ratio_min"] <= row["ratio"] <= row["ratio_max"]
        assert row["peak_bytes"] > 10 << 20
    return {f"{row['case']}; {row['against']}": row for row in rows}


@pytest.mark.by_turns
@pytest.mark.nats
@pytest.mark.natscli
def test_cases_give_rows_of_ratios() -> None:
    rows = _rows("startup", "increment", "account", "restore", "--stream-bytes", "2000000")
    for case, row in rows.items():
        if not case.startswith(("jsbackup --version", "backup of a stream of 1 MiB")):
            assert row["processor_seconds"] > 0 and row["floor"] > 0
    assert set(rows) == {
        *(f"restore into {version}, {how}" for version in (BUNDLED, "2.14.6") for how in HOW),
        "jsbackup --version; 0.15 s",
        "backup of a stream of 1 MiB; nats backup stream",
        "second backup after 1 % more; nats backup stream",
        "backup of 10 streams; nats backup account",
        "restore of 10 streams, proved; nats backup restore account",
        "restore of 10 streams, --verify none; nats backup restore account",
    }


@pytest.mark.by_turns
@pytest.mark.nats
@pytest.mark.natscli
def test_the_nats_cli_followed_by_restic_is_measured_beside_us() -> None:
    if shutil.which("restic") is None:
        missing("restic is not installed (Debian: apt-get install restic)")
    assert set(_rows("instead", "--stream-bytes", "2000000")) == {
        "first backup, encrypted; nats CLI, then restic",
        "second backup after 1 % more, encrypted; nats CLI, then restic",
        "restore of it, proved; restic, then nats CLI",
    }


@pytest.mark.by_turns
@pytest.mark.nats
@pytest.mark.spark
@pytest.mark.xdist_group("spark-apart")
@pytest.mark.timeout(300)
def test_jobs_on_spark_are_held_against_spark_alone_and_one_core() -> None:
    if find_spec("pyspark") is None:
        missing("pyspark is not installed: pip install 'jsbackup[spark]'")
    rows = _rows("spark", "--spark-bytes", "500000", **quick_java())
    jobs = ("the data source", "verify --level data", "stats", "export")
    assert set(rows) == {f"{job} on Spark; Spark alone reading it" for job in jobs} | {
        f"{job} on local[2]; on local[1]" for job in jobs
    }
    assert [row["goal"] for row in rows.values()] == [2.0, None, None, 0.625, None, 0.625, None, 0.625]


@pytest.mark.by_turns
@pytest.mark.nats
def test_a_tree_is_compared_with_another_one_command_by_command() -> None:
    """Here with the last commit of itself, which stores as much. Times are not looked at."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        missing("this is not a checkout of git")
    command = [sys.executable, "-m", "scripts.bench_against", "HEAD", "--short", "--pairs", "1", "--json"]
    done = subprocess.run(
        [*command, "--stream-bytes", "2000000"], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    commit = re.fullmatch(r"HEAD \(([0-9a-f]{12})\)", told["old"][0])
    assert commit is not None and told["new"][0] == "this tree"
    rows = {row["case"]: row for row in told["rows"]}
    assert list(rows) == [
        "--version",
        "backup",
        "backup after 1 % more",
        "list",
        "show latest",
        "verify --level data",
        "restore, proved",
    ]
    for case, row in rows.items():
        for side in ("old", "new"):
            assert row[side]["processor_seconds"] > 0 and row[side]["peak_bytes"] > 10 << 20
        assert row["processor_ratio"] > 0 and row["peak_ratio"] > 0 and row["seconds_ratio"] > 0
        if case.startswith("backup"):
            assert 0.9 < row["stored_ratio"] < 1.1
        else:
            assert row["stored_ratio"] is None
    shutil.rmtree(ROOT / ".cache" / "bench" / commit[1])


def test_an_unknown_revision_is_an_error() -> None:
    command = [sys.executable, "-m", "scripts.bench_against", "no-such-revision"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and "no-such-revision" in done.stderr


def _costs() -> dict[str, dict[str, Any]]:
    """What each command costs on a small fabricated repository. The bench itself verifies its messages."""
    command = [sys.executable, "-m", "scripts.bench_scale", "--short", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["failed"] for row in rows] == [""] * len(rows), done.stderr
    for row in rows:
        assert (row["segments"], row["streams"], row["backups"], row["store"]) == (60, 3, 5, "local")
        assert row["seconds"] > 0 and row["processor_seconds"] > 0 and row["peak_bytes"] > 10 << 20
    return {row["command"]: row for row in rows}


@pytest.mark.by_turns
@pytest.mark.nats
def test_costs_of_commands_on_a_fabricated_repository_are_counted() -> None:
    rows = _costs()
    assert list(rows) == [
        "list",
        "show",
        "status",
        "verify --level manifest",
        "backup after 10 new messages",
        "restore of one hour",
        "restore of one stream",
        "a commit of follow",
        "forget --prune --dry-run",
        "forget --prune",
    ]
    asked = {name: row["requests"] for name, row in rows.items()}
    assert asked["list"]["put"] == rows["list"]["written_bytes"] == 0
    stored = 10 * 2600  # the new messages, before compression; the rest is the manifest
    for name in ("backup after 10 new messages", "a commit of follow"):
        assert asked[name]["put"] >= 2 and 5_000 < rows[name]["written_bytes"] < stored + 200_000
    # Of the twenty segments of a stream each is read, and not those of the others.
    assert 20 <= asked["restore of one stream"]["get"] < 60
    assert asked["forget --prune"]["delete"] >= 3 + 3  # manifests, and the last segment of each


@pytest.mark.by_turns
@pytest.mark.nats
def test_processor_time_is_told_by_thread() -> None:
    command = [sys.executable, "-m", "scripts.bench_profile", "--stream-bytes", "20000000", "--runs", "1", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row.pop("case"): row for row in json.loads(done.stdout)["rows"]}
    floors = {name: rows.pop(name) for name in (BACKUP, RESTORE, PROVED)}
    for name, stages in (
        (BACKUP, {"start", "link", "decode", "compress", "store"}),
        (RESTORE, {"start", "link", "read", "decode"}),
        (PROVED, {"start", "link", "read", "decode"}),
    ):
        assert {stage for stage, spent in floors[name].items() if spent > 0} == stages
    assert list(rows) == ["backup", "restore, --verify none", "restore, --verify full"]
    # A tick of the processor's clock is half a second for each GB here.
    assert all(tuple(row) == STAGES and row["start"] > 0 and row["other"] < 3 for row in rows.values())
    assert rows["backup"]["compress"] > 0 and rows["backup"]["read"] == 0
    assert rows["restore, --verify none"]["read"] > 0 and rows["restore, --verify none"]["compress"] == 0


@pytest.mark.by_turns
@pytest.mark.nats
def test_following_is_measured_by_how_far_it_is_behind() -> None:
    command = [sys.executable, "-m", "scripts.bench_follow", "--short", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["backups"] > 2 and found["partial"] == 0
    assert 0 < found["behind, median"] <= found["behind, 99 of 100"] <= found["behind, most"]
    # What `follow` says is an upper bound of what messages waited.
    assert found["messages"] > 9
    assert (
        0
        < found["waited, median"]
        <= found["waited, 99 of 100"]
        <= found["waited, most"]
        <= found["behind, most"] + 0.1
    )
    assert 0 < found["manifest, KiB"] < 64
    assert found["processor seconds a backup"] > 0 and len(found["MiB in each tenth"]) == 10


def test_masks_are_measured_with_both_kernels() -> None:
    command = [sys.executable, "-m", "scripts.bench_masks", "--short", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=True)
    rows = json.loads(done.stdout)["rows"]
    assert {row["message_bytes"] for row in rows} == {300, 1000}
    assert {"one value, hash", "a header, redact", "payload, zero", "--subject", "--last-per-subject"} < {
        row["case"] for row in rows
    }
    assert all(row["compiled"] > 0 and row["python"] > 0 and row["of_a_pass"] > 0 for row in rows)


@pytest.mark.by_turns
@pytest.mark.slow
def test_queries_of_many_segments_are_measured() -> None:
    command = [sys.executable, "-m", "scripts.bench_segments", "--segments", "300", "--only", "duckdb", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=True)
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 5
    for row in rows:
        assert not row["failed"] and row["processor_seconds"] > 0 and row["driver_bytes"] > 10 << 20
        assert row["java_bytes"] == 0


@pytest.mark.by_turns
@pytest.mark.nats
@pytest.mark.s3
def test_a_bill_is_read_off_what_s3_was_asked() -> None:
    command = [sys.executable, "-m", "scripts.bench_bill", "--short", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    rows = {(row["terabytes"], row["what"]): row for row in json.loads(done.stdout)["rows"]}
    assert len(rows) == 12
    for terabytes, segments in ((1, 29_802), (10, 298_023)):
        first = rows[terabytes, "the first backup"]
        # Pages end by chance, and there are few of them here.
        assert 0.9 * segments < first["requests"]["put"] < 1.2 * segments
        assert first["segments_written_bytes"] == terabytes * 10**12
        assert 0.9 * segments < rows[terabytes, "a restore of everything"]["requests"]["get"] < 2 * segments
        prune = rows[terabytes, "`forget --prune` of ten backups"]
        assert prune["requests"]["delete"] > 2 and 0 < prune["dollars"] < 1
        assert 0.1 < first["dollars"] < 3
    assert rows[1, "`follow --every 1m`: a year"]["requests"] == rows[10, "`follow --every 1m`: a year"]["requests"]
