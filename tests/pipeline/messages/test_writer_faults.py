"""`df.write.format("jsbackup")` while a server, a stream or a connection fails: one error names the write, by whose id
the same DataFrame is written again, and then each row is there once.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from tests.harness.api import call, connected
from tests.harness.commands import environment
from tests.harness.proxy import Direction, Proxy
from tests.harness.servers import NEWEST, NatsServer
from tests.pipeline.messages.test_stream_writer import make, stored
from tests.pipeline.quick_java import quick_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Server = Callable[..., NatsServer]

COUNT = 4000  # in four partitions, of which two run at once; some 1.5 MB

# A session as users start it: a task that fails is not tried again. It writes what each line of stdin says.
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
def failing(batches):
    for batch in batches:
        if batch.column("number")[0].as_py() == 3000:
            raise ValueError("a bug of the user")
        yield batch
for line in sys.stdin:
    given = json.loads(line)
    frame = spark.range(0, given["count"], 1, 4).withColumnRenamed("id", "number")
    if given["fails"]:
        frame = frame.mapInArrow(failing, frame.schema)
    size = f"if(number = {given['large']}, {given['bytes']}, 300)"
    data = f"concat(number, '-', repeat('x', {size})) AS data"
    frame = frame.selectExpr("concat('orders.', number % 3) AS subject", data)
    error = None
    try:
        frame.write.format("jsbackup").mode("append").options(**given["options"]).save()
    except Exception as failed:
        error = str(failed)
    print(json.dumps(error), flush=True)
"""


class Writer:
    """A Spark of its own. `said` is what it has printed on stderr since the last write began."""

    def __init__(self, said: IO[bytes], master: str) -> None:
        self._path, self._at = Path(said.name), 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, master],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env=environment(PYSPARK_PYTHON=sys.executable, **quick_java()),
        )

    def write(self, url: str, *, fails: bool = False, large: int = -1, size: int = 0, **options: str) -> str | None:
        """Return the error."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._at = self._path.stat().st_size
        given = {"server": url, "stream": "ORDERS", "timeout": "10s", **options}
        line = {"count": COUNT, "fails": fails, "large": large, "bytes": size, "options": given}
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self.said
        found: str | None = json.loads(answer)
        return found

    @property
    def said(self) -> str:
        return self._path.read_bytes()[self._at :].decode()

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=120)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def writer(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writer]:
    """The fixture `spark` says whether there is one, and keeps these tests in the process of the others."""
    with (tmp_path_factory.mktemp("writer") / "said").open("wb") as said:
        writer = Writer(said, "local[2]")
        try:
            yield writer
        finally:
            writer.close()


def numbers(url: str) -> list[int]:
    return sorted(int(one.data.partition(b"-")[0]) for one in stored(url, "ORDERS"))


def named(writer: Writer, error: str | None, sentence: str) -> str:
    """Return the id of the write, which the error and the line on stderr name."""
    assert error is not None
    (ours,) = re.findall(r"^jsbackup\.errors\.\w+: .*$", error, re.MULTILINE)
    assert re.search(sentence, ours), ours
    (write,) = set(re.findall(r"'resume' (w[0-9a-f-]+)", ours))
    assert f"the write {write} to stream ORDERS has failed" in writer.said
    return str(write)


def goes_on(writer: Writer, url: str, write: str) -> None:
    """The same rows again: all are there once."""
    assert writer.write(url, resume=write) is None
    assert re.search(rf"published \d[\d,]* messages? to stream ORDERS.* \(write {write}\)", writer.said), writer.said
    assert numbers(url) == list(range(COUNT))


def request(url: str, subject: str, body: dict[str, Any]) -> None:
    async def asking() -> None:
        async with connected(url) as nc:
            await call(nc, subject, body)

    asyncio.run(asking())


@pytest.mark.by_turns
def test_a_server_that_is_lost_and_comes_back(writer: Writer, nats_server: Server) -> None:
    server = nats_server(NEWEST)
    make(server.url, "ORDERS", "orders.*")
    with Proxy(server.port) as proxy:
        proxy.at(Direction.TO_SERVER, 400_000, server.kill)
        write = named(writer, writer.write(proxy.url), "the connection to .* was lost|cannot connect|not reach")
    # For good, as far as that one knew.
    gone = writer.write(server.url, resume=write)
    assert gone is not None and re.search(r"^jsbackup\.errors\.NatsError: ", gone, re.MULTILINE), gone
    server.start()
    goes_on(writer, server.url, write)


@pytest.mark.by_turns
def test_a_connection_that_is_cut(writer: Writer, nats_server: Server) -> None:
    server = nats_server(NEWEST)
    make(server.url, "ORDERS", "orders.*")
    with Proxy(server.port) as proxy:
        proxy.at(Direction.TO_CLIENT, 50_000, proxy.cut)
        write = named(writer, writer.write(proxy.url), "the connection to .* was lost")
        goes_on(writer, server.url, write)


def test_a_stream_that_is_deleted(writer: Writer, nats_server: Server) -> None:
    """Later it is created again."""
    server = nats_server(NEWEST)
    make(server.url, "ORDERS", "orders.*")
    with Proxy(server.port) as proxy:
        proxy.at(Direction.TO_SERVER, 400_000, lambda: request(server.url, "STREAM.DELETE.ORDERS", {}))
        sentence = "no stream listens to orders.. any more|no stream ORDERS|stream not found|was deleted"
        write = named(writer, writer.write(proxy.url), sentence)
    again = writer.write(server.url, resume=write)
    assert again is not None and "there is no stream ORDERS" in again
    make(server.url, "ORDERS", "orders.*")
    goes_on(writer, server.url, write)


@pytest.mark.by_turns
def test_a_stream_that_is_full(writer: Writer, nats_server: Server) -> None:
    server = nats_server(NEWEST)
    config: dict[str, Any] = {"max_msgs": 2500, "discard": "new"}
    make(server.url, "ORDERS", "orders.*", **config)
    write = named(writer, writer.write(server.url), r"row \d+ of partition \d: stream ORDERS did not store .*maximum")
    whole = {"name": "ORDERS", "subjects": ["orders.*"], "storage": "file", "discard": "new", "max_msgs": -1}
    request(server.url, "STREAM.UPDATE.ORDERS", whole)
    goes_on(writer, server.url, write)


@pytest.mark.by_turns
def test_a_bug_in_the_users_function(writer: Writer, nats_server: Server) -> None:
    """Its exception is the user's. The line on stderr names the write."""
    server = nats_server(NEWEST)
    make(server.url, "ORDERS", "orders.*")
    error = writer.write(server.url, fails=True)
    assert error is not None and "a bug of the user" in error
    (write,) = re.findall(r"jsbackup: the write (w[0-9a-f-]+) to stream ORDERS has failed", writer.said)
    assert f"with the option 'resume' {write}" in writer.said
    goes_on(writer, server.url, write)


@pytest.mark.by_turns
@pytest.mark.parametrize("limit", ["max_msg_size", "max_payload"])
def test_a_row_that_is_too_large(writer: Writer, nats_server: Server, limit: str) -> None:
    """It is the eleventh of its partition."""
    server = nats_server(NEWEST, config="max_payload: 4096" if limit == "max_payload" else "")
    make(server.url, "ORDERS", "orders.*", **({"max_msg_size": 4096} if limit == "max_msg_size" else {}))
    error = writer.write(server.url, large=2010, size=5000)
    write = named(
        writer,
        error,
        rf"row 10 of partition 2 cannot be a message: it has 5,0\d\d bytes .* at most 4,096 are taken \({limit}",
    )
    goes_on(writer, server.url, write)


def test_with_attempts_left_a_task_goes_on_by_itself(spark: SparkSession, nats_server: Server, tmp_path: Path) -> None:
    """As on a cluster: the server restarts, and the connections are cut."""
    server = nats_server(NEWEST)
    make(server.url, "ORDERS", "orders.*")
    with (tmp_path / "said").open("wb") as said, Proxy(server.port) as proxy:
        writer = Writer(said, "local[2,4]")
        killed = threading.Event()

        def kill() -> None:
            server.kill()
            killed.set()

        proxy.at(Direction.TO_SERVER, 400_000, kill)
        try:
            # From this thread: a server ends with the thread that has started it.
            with ThreadPoolExecutor() as threads:
                writing = threads.submit(writer.write, proxy.url)
                assert killed.wait(120)
                server.start()
                assert writing.result(120) is None
        finally:
            writer.close()
    assert numbers(server.url) == list(range(COUNT))
