"""The benchmark's cases run, on streams too small to tell anything about speed, and its figures are there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.nats
@pytest.mark.natscli
def test_cases_give_rows_of_ratios() -> None:
    command = [sys.executable, "-m", "scripts.bench_cases", "startup", "increment", "account", "--short", "--json"]
    done = subprocess.run(
        [*command, "--stream-bytes", "2000000"], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = {row["case"]: row for row in json.loads(done.stdout)["rows"]}
    assert set(rows) == {
        "jsbackup --version",
        "backup of a stream of 1 MiB",
        "second backup after 1 % more",
        "backup of 10 streams",
        "restore of 10 streams, proved",
    }
    for row in rows.values():
        assert 0 < row["ratio_min"] <= row["ratio"] <= row["ratio_max"]
        assert row["peak_bytes"] > 10 << 20
