"""A real cluster: the package gets to its executors, results are those of one machine, and a worker may be lost."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from jsbackup.model import S3Settings
from jsbackup.repository import layout
from jsbackup.repository.checks.verify import Level, verify_backup
from tests.cli.typed import in_shell
from tests.harness import backups
from tests.harness.batches import some_messages
from tests.harness.commands import environment, jsbackup
from tests.harness.oracle import compare
from tests.harness.proxy import Direction, Proxy
from tests.harness.s3server import BUCKET, REGION, S3Server
from tests.harness.servers import NEWEST, NatsServer, missing, wait_until
from tests.integration.witness import seen
from tests.pipeline.places import Kept, keep
from tests.pipeline.quick_java import quick_java
from tests.pipeline.standalone import Standalone
from tests.pipeline.streams import account, digests, make_streams

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark-apart"), pytest.mark.timeout(400)]

PASSWORD = "hunter2-s3cr3t"

# A driver of its own: this process has an embedded Spark already. It types the commands that it reads into one session.
DRIVER = """
import contextlib, functools, io, json, sys
from jsbackup.cli.main import run
from jsbackup.pipeline.session.session import SparkSettings, open_session
from jsbackup.pipeline.tasks.tasks import OnSpark
conf = {"spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2"}
conf |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": "file:" + sys.argv[2]}
conf |= {"spark.eventLog.compress": "false"}
with open_session(SparkSettings(sys.argv[1], conf)) as session:
    for line in sys.stdin:
        arguments = json.loads(line)
        printed = io.StringIO()
        if arguments == ["where"]:
            ask = functools.partial(eval, "__import__('jsbackup.formats._kernels_py').__file__")
            code, out = 0, list(OnSpark(session).run("asking", [ask] * 4))
        elif arguments[0] == "follow":
            _, repo, checkpoint, table = arguments
            writing = session.readStream.format("jsbackup").option("columns", "stream,sequence").load(repo).writeStream
            writing = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).format("parquet")
            writing.start(table).awaitTermination()
            rows = session.read.parquet(table).groupBy("stream").count().orderBy("stream").collect()
            code, out = 0, [session.read.format("jsbackup").load(repo).count(), *map(list, rows)]
        else:
            with contextlib.redirect_stdout(printed):
                code = run(arguments)
            out = json.loads(printed.getvalue())
        print(json.dumps([code, out]), flush=True)
"""


class Driver:
    """A session with the cluster, whose events go to `events`."""

    def __init__(self, cluster: Standalone, **extra: str) -> None:
        self.events = cluster.folder / "events"
        self.events.mkdir()
        self._said = cluster.folder / "driver"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, cluster.url, str(self.events)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env=environment(**quick_java(), **extra),
                text=True,
            )

    def begin(self, *arguments: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()

    def end(self) -> tuple[int, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the driver ended: {self._said.read_text()}"
        code, document = json.loads(line)
        return code, document

    def type(self, *arguments: str) -> tuple[int, Any]:
        self.begin(*arguments)
        return self.end()

    @property
    def lost_tasks(self) -> int:
        """How many tasks ended with their executor, so far."""
        events = (path.read_text() for path in self.events.rglob("*") if path.is_file())
        return sum(text.count('"Reason":"ExecutorLostFailure"') for text in events)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=240)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def cluster(s3_server: S3Server) -> Iterator[Standalone]:
    """Executors find the credentials of the S3 server, and a password."""
    if find_spec("pyspark") is None:
        missing("pyspark is not installed: pip install 'jsbackup[spark]'")
    with Standalone({**s3_server.environment, "NATS_PASSWORD": PASSWORD}) as running:
        yield running


@pytest.fixture(scope="module")
def driver(cluster: Standalone, s3_server: S3Server) -> Iterator[Driver]:
    driver = Driver(cluster, **s3_server.environment, NATS_PASSWORD=PASSWORD)
    try:
        yield driver
    finally:
        driver.close()


@pytest.mark.by_turns
@pytest.mark.s3
def test_jobs_run_on_two_workers_and_outlive_one(
    tmp_path: Path, s3_server: S3Server, cluster: Standalone, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(backups, "SEGMENT_BYTES", 2 << 20)
    local = keep(tmp_path / "l", {"A": some_messages(240, 200_000), "B": some_messages(300, 10, seed=2)})
    location = f"s3://{BUCKET}/cluster"
    s3 = S3Settings(endpoint=s3_server.url, region=REGION)
    sealed = keep(tmp_path / "s", {"A": some_messages(500, 100)}, encrypted=True, s3=s3, location=location)
    sql = "SELECT stream, count(*), sum(length(data)) FROM messages GROUP BY stream ORDER BY stream"

    code, places = driver.type("where")
    assert code == 0 and isinstance(places, list) and len(places) == 4
    assert all("/jsbackup_archive/jsbackup/" in place for place in places)

    s3_line, there = [*sealed.line, "--json"], ["--spark", cluster.url, "--json"]
    code, answer = driver.type("query", "latest", sql, "--spark", cluster.url, *s3_line)
    assert (code, answer) == (
        0,
        {
            "columns": ["stream", "count(1)", "sum(length(data))"],
            "rows": [["A", 500, 50_000]],
            "more": False,
        },
    )
    code, verified = driver.type("verify", "--level", "data", "--spark", cluster.url, *s3_line)
    assert code == 0
    # Into a replica that is made for it, with the keys of the first one.
    writing = [*s3_line, "--writer-key", str(sealed.writer_key), "--to-repo", f"s3://{BUCKET}/replica"]
    writing += ["--to-s3-endpoint", s3_server.url, "--to-s3-region", REGION]
    code, made = driver.type("copy", "latest", "--last-per-subject", "1", "--rename", "A=Z", *there, *writing)
    assert (code, made["streams"][0]["as"], made["streams"][0]["messages"]) == (0, "Z", 7), made

    # One of the two is lost while files are being written.
    out = tmp_path / "out"
    driver.begin("export", "latest", *local.line, "--format", "jsonl", "--output", str(out), *there)
    wait_until(lambda: bool(list(tmp_path.glob(".out.*/A/*.jsonl"))), "a file of the export", seconds=120)
    assert not out.exists()
    cluster.kill(0)
    code, exported = driver.end()
    assert code == 0 and isinstance(exported, dict) and exported["rows"] == 540
    lines = [json.loads(line) for path in out.rglob("*.jsonl") for line in path.read_bytes().splitlines()]
    found = {(line["stream"], line["sequence"]) for line in lines}
    assert len(lines) == len(found) == 540
    assert sorted(path.name for path in out.iterdir()) == ["A", "B"]

    code, verified = driver.type("verify", "--level", "data", "--spark", cluster.url, *local.line, "--json")
    assert code == 0, verified
    code, told = driver.type("stats", "latest", *local.line, *there)
    assert (code, [one["messages"] for one in told["streams"]]) == (0, [240, 300])

    # A table without its first line comes back as a stream without its first message.
    (table,) = (out / "B").iterdir()
    table.chmod(0o600)
    table.write_bytes(table.read_bytes().partition(b"\n")[2])
    code, taken = driver.type("import", str(out / "B"), "--format", "jsonl", "--stream", "B", *local.line, *there)
    assert (code, taken["streams"][0]["messages"]) == (0, 299), taken
    sides = (local.manifest.id, taken["backup"])
    code, compared = driver.type("diff", *sides, "B", *local.line, "--json")
    assert (code, compared["streams"][0]["removed"], compared["streams"][0]["changed"]) == (1, 1, 0), compared
    cluster.revive(0)


@pytest.mark.by_turns
@pytest.mark.nats
@pytest.mark.s3
def test_streams_are_spread_over_two_workers_and_outlive_one(
    tmp_path: Path,
    s3_server: S3Server,
    cluster: Standalone,
    driver: Driver,
    nats_server: Callable[..., NatsServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    source, target = (nats_server(NEWEST, config=account(PASSWORD, denied="S100")) for _ in range(2))
    urls = [server.url.replace("://", f"://all:{PASSWORD}@") for server in (source, target)]
    asyncio.run(make_streams(urls[0], 200, messages=6, size_bytes=2000))
    spread = ["--spark", cluster.url, "--user", "some", "--json"]

    line = ["-r", str(tmp_path / "repo"), *spread]
    killed: list[int] = []
    with Proxy(source.port) as proxy:
        proxy.at(Direction.TO_CLIENT, 800_000, lambda: killed.append(cluster.kill_one_at_work(proxy.port)))
        code, made = driver.type("backup", "-s", proxy.url, *line)
    assert (code, [one["name"] for one in made["skipped"]]) == (3, ["S100"])
    alone = jsbackup("backup", "-s", source.url, "--user", "some", "-r", tmp_path / "alone", NATS_PASSWORD=PASSWORD)
    assert digests(made) == digests(alone.document) and len(digests(made)) == 199
    cluster.revive(*killed)

    with Proxy(target.port) as proxy:
        proxy.at(Direction.TO_SERVER, 200_000, lambda: killed.append(cluster.kill_one_at_work(proxy.port)))
        code, restored = driver.type("restore", "latest", "S00*", "S01*", "S02*", "-s", proxy.url, *line)
    assert (code, restored["failed"], len(restored["streams"])) == (0, [], 30)
    assert all(stream["verified"] for stream in restored["streams"])
    assert compare({name: one for name, one in seen(urls[0]).items() if name < "S030"}, seen(urls[1])) == []
    assert len(killed) == 2 and driver.lost_tasks

    s3 = S3Settings(endpoint=s3_server.url, region=REGION)
    kept = keep(tmp_path, {"OLD": some_messages(5, 1)}, encrypted=True, s3=s3, location=f"s3://{BUCKET}/spread")
    line = ["backup", "S00*", *kept.line, "--writer-key", str(kept.writer_key), *spread]
    with Proxy(source.port) as proxy:
        driver.begin(*line, "-s", proxy.url)
        # The first is the driver's own.
        wait_until(lambda: proxy.connections > 1, "a connection of a task", seconds=120)
        proxy.hold()
        driver.interrupt()
        code, said = driver.end()
    assert code == 130 and said["error"]["code"] == 130
    assert [*kept.repository.store.list(layout.LOCKS)] == [] and len(kept.repository.backups()) == 1
    code, again = driver.type(*line, "-s", source.url)
    assert code == 0 and digests(again).items() <= digests(made).items() and len(digests(again)) == 10

    secrets = [PASSWORD.encode(), (tmp_path / "identity").read_bytes().strip()]
    for path in cluster.folder.rglob("*"):
        if path.is_file() and path.suffix != ".jar":
            content = path.read_bytes()
            assert not any(secret in content for secret in secrets), path


SQL = """SELECT stream, subject, count(*) AS messages, sum(sequence) AS sequences, min(time) AS oldest,
  count(header_block) AS headers, min(md5(data)) AS least, max(md5(data)) AS most
  FROM messages GROUP BY stream, subject ORDER BY stream, subject"""
CHANGES = ["--rename", "A=Z", "--map-subject", "orders.*=>old.$1", "--mask", ">:header(N)=redact", "--renumber"]
JOBS = {
    "query": ["query", "latest", SQL],
    "stats": ["stats", "latest"],
    "verify": ["verify", "latest", "--level", "data"],
    "copy": ["copy", "latest", *CHANGES],
    "import": ["import", "--format", "parquet"],
}
# What depends on when, and how often, something was done.
OF_A_RUN = {
    "verify": {"oldest"},
    "copy": {"backup"},
    "import": {"backup", "seconds", "segments_reused", "stored_bytes_added"},
}


@pytest.mark.by_turns
@pytest.mark.s3
@pytest.mark.parametrize("job", JOBS)
def test_a_job_that_loses_an_executor_does_what_it_does_without_spark(
    job: str, tmp_path: Path, s3_server: S3Server, cluster: Standalone, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor is killed while its task reads from S3, or while it writes there what it imports."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    # Tasks are sized by what messages are before compression.
    messages = [m._replace(data=m.data + bytes(60_000)) for m in some_messages(350, 4000)]
    s3, location, table = S3Settings(endpoint=s3_server.url, region=REGION), f"s3://{BUCKET}/{job}", tmp_path / "table"
    monkeypatch.setattr(backups, "SEGMENT_BYTES", 2 << 20)
    kept = keep(tmp_path / "of", {"A": messages, "B": messages[:50]}, s3=s3, location=location)
    alone, spread = (
        keep(tmp_path / run, {}, s3=s3, location=f"{location}-{run}", segment_bytes=4 << 20)
        if job == "import"
        else keep(tmp_path / run, {}, segment_bytes=4 << 20)
        for run in ("alone", "spread")
    )
    if job == "import":
        in_shell("export", "latest", *kept.line, "--format", "parquet", "--output", table, **s3_server.environment)

    def line(into: Kept, endpoint: str) -> list[str]:
        more = {"copy": ["--to-repo", into.place.location], "import": [str(table)]}.get(job, [])
        repository = into if job == "import" else kept
        return [*JOBS[job], *more, *repository.line, "--s3-endpoint", endpoint, "--s3-region", REGION, "--json"]

    told = in_shell(*line(alone, s3_server.url), **s3_server.environment).document
    lost = driver.lost_tasks
    with Proxy(s3_server.port) as proxy:
        way = Direction.TO_SERVER if job == "import" else Direction.TO_CLIENT
        # Less than any task reads.
        proxy.at(way, 150_000, lambda: cluster.kill_executor_at_work(proxy.port))
        code, found = driver.type(*line(spread, f"http://127.0.0.1:{proxy.port}"), "--spark", cluster.url)
    assert code == 0 and driver.lost_tasks > lost, found
    of_a_run = OF_A_RUN.get(job, set())
    assert _without(of_a_run, found) == _without(of_a_run, told)
    if job in ("copy", "import"):
        made = _made(spread, found["backup"])
        assert made == _made(alone, told["backup"]) and len(made) == 2


def _without(names: set[str], value: Any) -> Any:
    """A document without fields, at any depth."""
    if isinstance(value, dict):
        return {key: _without(names, one) for key, one in value.items() if key not in names}
    return [_without(names, one) for one in value] if isinstance(value, list) else value


def _made(kept: Kept, backup: str) -> dict[str, tuple[object, ...]]:
    """The streams of a backup, all messages of which are proved: settings, digest, and names of segments by content."""
    repository = kept.place.open()
    manifest = repository.manifest(backup)
    assert list(verify_backup(repository.objects, manifest, Level.DATA)) == []
    return {
        one.name: (one.config, one.digest, [ref.key.rpartition("/")[2] for ref in one.segments])
        for one in manifest.streams
    }


def test_a_master_that_does_not_answer_is_said_at_once(tmp_path: Path) -> None:
    kept = keep(tmp_path, {"A": some_messages(3, 1)})
    for master, code, said in [
        ("spark://127.0.0.1:1", 1, "no Spark master answers at spark://127.0.0.1:1"),
        ("spark://here", 2, "not a Spark master"),
        ("elsewhere", 2, "not a place of Spark: 'elsewhere'"),
    ]:
        done = in_shell("stats", "latest", *kept.line, "--spark", master)
        assert (done.code, done.out) == (code, "") and said in done.err, done.err


def test_a_java_that_does_not_do_is_said(tmp_path: Path) -> None:
    kept = keep(tmp_path, {"A": some_messages(3, 1)})
    done = in_shell("stats", "latest", *kept.line, "--spark", "local", JAVA_HOME=str(tmp_path))
    assert (done.code, done.out) == (13, "") and "JAVA_HOME has none" in done.err


def test_a_repository_is_read_and_followed_there(driver: Driver, tmp_path: Path) -> None:
    kept = keep(tmp_path / "r", {"A": some_messages(300, 200), "B": some_messages(40, 10, seed=2)}, encrypted=False)
    line = ["follow", kept.place.location, str(tmp_path / "checkpoint"), str(tmp_path / "table")]
    for _ in range(2):
        code, rows = driver.type(*line)
        assert (code, rows) == (0, [340, ["A", 300], ["B", 40]])
