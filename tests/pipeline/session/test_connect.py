"""A real Spark Connect server that knows nothing of jsbackup: the same commands, the same results."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from jsbackup.formats import kernels
from jsbackup.model import S3Settings
from tests.cli.typed import Typed, in_shell
from tests.harness.batches import some_messages
from tests.harness.commands import environment, jsbackup
from tests.harness.oracle import compare
from tests.harness.s3server import BUCKET, REGION, S3Server
from tests.harness.servers import NEWEST, NatsServer, Port, missing
from tests.integration.witness import announced, back_up, filled, seen
from tests.pipeline.connect_server import ConnectServer
from tests.pipeline.places import keep
from tests.pipeline.streams import digests

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark-apart"), pytest.mark.timeout(900)]

SQL = "SELECT stream, count(*), sum(length(data)) FROM messages GROUP BY stream ORDER BY stream"

# A session there that types commands and runs programs, one after the other: each new one is sent the package again,
# and its Python processes compile it.
CLIENT = """
import contextlib, functools, io, json, sys
import jsbackup
from jsbackup.cli.main import run
from jsbackup.pipeline.session.session import SparkSettings, open_session
from jsbackup.pipeline.tasks.tasks import OnSpark
with open_session(SparkSettings(sys.argv[1])) as session:
    for line in sys.stdin:
        program, arguments = json.loads(line)
        names = {**globals(), "found": None}
        if program:
            exec(program, names)
        else:
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run(arguments)
            names["found"] = [code, out.getvalue(), err.getvalue()]
        print(json.dumps(names["found"]), flush=True)
"""

# Where the package and its kernel come from, in a task there.
WHERE = """
ask = functools.partial(eval, "__import__('jsbackup.formats.kernels').formats.kernels.active()")
name = functools.partial(eval, "__import__('jsbackup').__file__")
found = list(OnSpark(session).run("asking", [ask, name]))
"""

# What the data source reads, in a session that has been sent jsbackup. (Streaming queries do not see what was sent.)
READ = """
(repo,) = arguments
found = [session.read.format("jsbackup").option("stream", "A").load(repo).where("sequence > 10").count()]
session.sql(f"CREATE TEMPORARY VIEW b USING jsbackup OPTIONS (path '{repo}', stream 'B')")
found.append(session.sql("SELECT count(*) FROM b").collect()[0][0])
"""


class Client:
    """A process with a session. What it says on stderr is in the file `said`."""

    def __init__(self, url: str, said: Path) -> None:
        self._said = said
        with said.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-c", CLIENT, url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment(),
                text=True,
            )

    def run(self, program: str, *arguments: str | Path) -> Any:
        """What a program has `found`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([program, list(map(str, arguments))]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the client ended: {self._said.read_text()}"
        return json.loads(line)

    def type(self, *arguments: str | Path) -> Typed:
        """A command, which finds the session."""
        return Typed(*self.run("", *arguments))

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=240)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def server(s3_server: S3Server) -> Iterator[ConnectServer]:
    for name in ("pyspark", "grpc", "pandas"):
        if find_spec(name) is None:
            missing(f"{name} is not installed: pip install 'jsbackup[connect]'")
    running = ConnectServer(s3_server.environment)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def client(server: ConnectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    client = Client(server.url, tmp_path_factory.mktemp("client") / "said")
    try:
        yield client
    finally:
        client.close()


@pytest.mark.by_turns
def test_jobs_run_there_with_the_package_that_is_sent(server: ConnectServer, client: Client, tmp_path: Path) -> None:
    there = ["--spark", server.url, "--json"]
    kept = keep(tmp_path / "r", {"A": some_messages(300, 2000), "B": some_messages(40, 10, seed=2)})
    alone = jsbackup("show", "latest", *kept.line).document

    kernel, place = client.run(WHERE)
    assert kernel == kernels.active() and "/jsbackup_archive/jsbackup/" in place

    verified = in_shell("verify", "--level", "data", *kept.line, *there)
    assert verified.code == 0, verified
    newest = client.type(
        "copy",
        kept.manifest.id,
        "--last-per-subject",
        "1",
        "--rename",
        "A=Z",
        "--to-repo",
        tmp_path / "other",
        *kept.line,
        *there,
    )
    assert [one["messages"] for one in newest.document["streams"]] == [7, 7], newest
    out = tmp_path / "out"
    exported = client.type("export", "latest", *kept.line, "--format", "parquet", "--output", out, *there)
    assert (exported.code, exported.document["rows"]) == (0, 340), exported
    imported = client.type("import", out, "--format", "parquet", *kept.line, *there)
    assert imported.code == 0, imported
    again = jsbackup("show", "latest", *kept.line).document
    assert digests(again) == digests(alone)


@pytest.mark.by_turns
@pytest.mark.s3
def test_an_encrypted_repository_in_s3_is_read_there(
    server: ConnectServer, tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = s3_server.environment
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    s3 = S3Settings(endpoint=s3_server.url, region=REGION)
    sealed = keep(tmp_path / "s", {"A": some_messages(500, 100)}, encrypted=True, s3=s3, location=f"s3://{BUCKET}/sc")
    answer = in_shell("query", "latest", SQL, *sealed.line, "--spark", server.url, "--json", **variables)
    assert answer.code == 0, answer
    assert answer.document["rows"] == [["A", 500, 50_000]]
    said = server.log
    secrets = [(tmp_path / "s" / "identity").read_text().strip(), variables["AWS_SECRET_ACCESS_KEY"]]
    assert not [secret for secret in secrets if secret in said]


@pytest.mark.by_turns
@pytest.mark.nats
def test_streams_are_backed_up_and_restored_from_there(
    server: ConnectServer, client: Client, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    source, target = nats_server(NEWEST), nats_server(NEWEST)
    before = filled(source.url, NEWEST)
    line = ["-r", tmp_path / "repo", "--spark", server.url, "--json"]
    made = in_shell("backup", "-s", source.url, *line)
    assert made.code == 0, made.out
    alone = back_up(source.url, tmp_path / "alone").document
    assert digests(made.document) == digests(alone)
    restored = client.type("restore", "latest", "-s", target.url, *line)
    assert restored.code == 0, restored
    assert compare(before, seen(target.url), ignore=announced(restored)) == []


def test_what_cannot_be_is_said_in_a_sentence(server: ConnectServer, client: Client, tmp_path: Path) -> None:
    kept = keep(tmp_path / "r", {"A": some_messages(3, 10)})
    free = Port()
    query = functools.partial(in_shell, "query", "latest", "SELECT 1", *kept.line)
    try:
        nobody = query("--spark", f"sc://127.0.0.1:{free.number}/;token=PLANTED")
    finally:
        free.release()
    assert nobody.code == 1 and f"no Spark Connect server answers at sc://127.0.0.1:{free.number}" in nobody.err
    assert "PLANTED" not in nobody.err
    static = query("--spark", server.url, "--spark-conf", "spark.driver.memory=2g")
    assert static.code == 2 and "cannot be given spark.driver.memory" in static.err
    wrong = client.type("query", "latest", "SELECT nothing FROM A", *kept.line, "--spark", server.url)
    assert wrong.code == 2 and "Traceback" not in wrong.err, wrong
    plain = client.type("query", "latest", "SELECT 1", *kept.line, "--spark", server.url, "--json")  # no stream
    assert (plain.code, plain.document["rows"]) == (0, [[1]]), plain
    kept = keep(tmp_path / "damaged", {"A": some_messages(40, 100)})
    key = kept.manifest.streams[0].segments[1].key
    (Path(kept.place.location) / key).unlink()
    gone = client.type("query", "latest", "SELECT count(subject) FROM A", *kept.line, "--spark", server.url)
    assert (gone.code, f"error: object {key} is missing" in gone.err) == (14, True), gone


def test_a_repository_is_read_by_the_data_source_there(client: Client, tmp_path: Path) -> None:
    messages = some_messages(300, 200)
    kept = keep(tmp_path / "r", {"A": messages, "B": some_messages(40, 10, seed=2)})
    found = client.run(READ, kept.place.location)
    assert found == [sum(one.sequence > 10 for one in messages), 40]
