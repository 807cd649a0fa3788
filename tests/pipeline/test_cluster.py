"""A real cluster: the package gets to its executors, results are those of one machine, and a worker may be lost."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from jsbackup.model import S3Settings
from tests.cli.typed import in_shell
from tests.harness import backups
from tests.harness.batches import some_messages
from tests.harness.commands import environment
from tests.harness.s3server import BUCKET, REGION, S3Server
from tests.harness.servers import missing, wait_until
from tests.pipeline.places import keep
from tests.pipeline.standalone import Standalone

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]

# A driver of its own: this process has an embedded Spark already. It types the commands that it reads into one session.
DRIVER = """
import contextlib, functools, io, json, sys
from jsbackup.cli.main import run
from jsbackup.pipeline.session import SparkSettings, open_session
from jsbackup.pipeline.tasks import run_tasks
conf = {"spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2"}
with open_session(SparkSettings(sys.argv[1], conf)) as session:
    for line in sys.stdin:
        arguments = json.loads(line)
        printed = io.StringIO()
        if arguments == ["where"]:
            ask = functools.partial(eval, "__import__('jsbackup.formats._kernels_py').__file__")
            code, out = 0, list(run_tasks(session, "asking", [ask] * 4))
        else:
            with contextlib.redirect_stdout(printed):
                code = run(arguments)
            out = json.loads(printed.getvalue())
        print(json.dumps([code, out]), flush=True)
"""


class Driver:
    def __init__(self, url: str, **extra: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(**extra),
            text=True,
        )

    def begin(self, *arguments: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()

    def end(self) -> tuple[int, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the driver ended"
        code, document = json.loads(line)
        return code, document

    def type(self, *arguments: str) -> tuple[int, object]:
        self.begin(*arguments)
        return self.end()

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


@pytest.mark.s3
def test_jobs_run_on_two_workers_and_outlive_one(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec("pyspark") is None:
        missing("pyspark is not installed: pip install 'jsbackup[spark]'")
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(backups, "SEGMENT_BYTES", 2 << 20)
    local = keep(tmp_path / "l", {"A": some_messages(240, 200_000), "B": some_messages(300, 10, seed=2)})
    location = f"s3://{BUCKET}/cluster"
    s3 = S3Settings(endpoint=s3_server.url, region=REGION)
    sealed = keep(tmp_path / "s", {"A": some_messages(500, 100)}, encrypted=True, s3=s3, location=location)
    sql = "SELECT stream, count(*), sum(length(data)) FROM messages GROUP BY stream ORDER BY stream"

    with Standalone(s3_server.environment) as cluster:
        driver = Driver(cluster.url, **s3_server.environment)
        try:
            code, places = driver.type("where")
            assert code == 0 and isinstance(places, list) and len(places) == 4
            assert all("/jsbackup_archive/jsbackup/" in place for place in places)

            s3_line = [*sealed.line, "--json"]
            code, answer = driver.type("query", "latest", sql, *s3_line)
            assert (code, answer) == (
                0,
                {"columns": ["stream", "count(1)", "sum(length(data))"], "rows": [["A", 500, 50_000]], "more": False},
            )
            code, verified = driver.type("verify", "--level", "data", "--spark-master", cluster.url, *s3_line)
            assert code == 0

            # One of the two is lost while files are being written.
            out = tmp_path / "out"
            driver.begin("export", "latest", *local.line, "--format", "jsonl", "--output", str(out), "--json")
            wait_until(lambda: bool(list(tmp_path.glob(".out.*/A/*.jsonl"))), "a file of the export", seconds=120)
            assert not out.exists()
            cluster.kill(0)
            code, exported = driver.end()
            assert code == 0 and isinstance(exported, dict) and exported["rows"] == 540
            lines = [json.loads(line) for path in out.rglob("*.jsonl") for line in path.read_bytes().splitlines()]
            found = {(line["stream"], line["sequence"]) for line in lines}
            assert len(lines) == len(found) == 540
            assert sorted(path.name for path in out.iterdir()) == ["A", "B"]

            code, verified = driver.type(
                "verify", "--level", "data", "--spark-master", cluster.url, *local.line, "--json"
            )
            assert code == 0, verified
        finally:
            driver.close()


def test_a_master_that_does_not_answer_is_said_at_once(tmp_path: Path) -> None:
    kept = keep(tmp_path, {"A": some_messages(3, 1)})
    for master, code, said in [
        ("spark://127.0.0.1:1", 1, "no Spark master answers at spark://127.0.0.1:1"),
        ("spark://here", 2, "not a Spark master"),
        ("elsewhere", 2, "not a Spark master: 'elsewhere'"),
    ]:
        done = in_shell("stats", "latest", *kept.line, "--spark-master", master)
        assert (done.code, done.out) == (code, "") and said in done.err, done.err


def test_a_java_that_does_not_do_is_said(tmp_path: Path) -> None:
    kept = keep(tmp_path, {"A": some_messages(3, 1)})
    done = in_shell("stats", "latest", *kept.line, JAVA_HOME=str(tmp_path))
    assert (done.code, done.out) == (13, "") and "JAVA_HOME has none" in done.err
