"""Times of jobs on Spark, in one process: `python -m scripts.bench_spark REPOSITORY FOLDER PAIRS`.

Prints a JSON document: for local[2] and for local[1] the seconds of each job, as often as pairs are asked for, and the
most memory that the driver's Java has had. `alone` is Spark's own reader on the same Parquet files, all columns of all
rows; the data source gives the same rows. Sessions take turns. Each reads everything once before it is measured, and
the first one does all jobs before, since Java is slow at what it does for the first time.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from jsbackup.cli.main import run
from jsbackup.model import S3Settings
from jsbackup.pipeline.messages.backup_frames import open_backup
from jsbackup.pipeline.session.repository_ref import place_of
from jsbackup.pipeline.session.session import SparkSettings, open_session

__all__: list[str] = []

MASTERS = ("local[2]", "local[1]")
_COLUMNS = ("sequence", "timestamp_ns", "subject", "headers", "data")


def _read_all(frame: DataFrame) -> None:
    """Every column of every row, for nobody."""
    frame.write.format("noop").mode("overwrite").save()


def _command(*words: str) -> None:
    """A command as it is typed; it finds the session that is there."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = run([*words, "--no-progress"])
    if code:
        raise RuntimeError(f"{' '.join(words)} failed with {code}:\n{said.getvalue()}")


def _jobs(session: SparkSession, master: str, repository: str, tables: Path) -> dict[str, Callable[[], None]]:
    backup = open_backup(session, place_of(repository, S3Settings(), {}))
    there = ("-r", repository, "--spark", master)

    def export() -> None:
        shutil.rmtree(tables, ignore_errors=True)
        _command("export", "latest", "--format", "parquet", "--output", str(tables), *there)

    return {
        "alone": lambda: _read_all(session.read.parquet(f"{repository}/segments/*/*.parquet").select(*_COLUMNS)),
        "the data source": lambda: _read_all(backup.messages(["S"], _COLUMNS)),
        "verify --level data": lambda: _command("verify", "latest", "--level", "data", *there),
        "stats": lambda: _command("stats", "latest", *there),
        "export": export,
    }


def _driver_peak_bytes(session: SparkSession) -> int:
    """Of the Java process, as Linux has it; 0 elsewhere."""
    process = session.sparkContext._gateway.proc  # type: ignore[union-attr]  # set by `launch_gateway`
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def main(repository: str, folder: Path, pairs: int) -> None:
    told: dict[str, list[dict[str, float]]] = {master: [] for master in MASTERS}
    peak_bytes = 0
    for _ in range(pairs):
        for master in MASTERS:
            with open_session(SparkSettings(master)) as session:
                jobs = _jobs(session, master, repository, folder)
                for job in list(jobs.values())[: 2 if peak_bytes else None]:
                    job()
                seconds = {}
                for name, job in jobs.items():
                    began = time.perf_counter()
                    job()
                    seconds[name] = time.perf_counter() - began
                told[master].append(seconds)
                peak_bytes = max(peak_bytes, _driver_peak_bytes(session))
    print(json.dumps({**told, "peak_bytes": peak_bytes}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
