"""`df.writeStream.format("jsbackup")`: each row of a streaming query is a message of a stream, once, however often the
query is stopped, killed and started again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from jsbackup.errors import UsageError
from jsbackup.pipeline.messages.writer_options import read_writer_options
from jsbackup.pipeline.session.session import attach
from jsbackup.protocol.info import StoredMessage
from tests.harness.batches import Message, some_messages
from tests.harness.commands import environment
from tests.harness.proxy import Direction, Proxy
from tests.harness.servers import NEWEST, NatsServer
from tests.pipeline.messages.test_stream_source import Account
from tests.pipeline.messages.test_stream_writer import PASSWORD, make, stored
from tests.pipeline.places import keep
from tests.pipeline.quick_java import quick_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Server = Callable[..., NatsServer]
Change = Callable[["DataFrame"], "DataFrame"]
SECOND = 10**9


class Query:
    """A query from a repository to the stream COPY, which runs until nothing is new."""

    def __init__(self, spark: SparkSession, repository: str, checkpoint: Path, **reader: str) -> None:
        self._spark, self._repository, self._checkpoint, self._reader = spark, repository, checkpoint, reader

    def run(self, url: str, change: Change = lambda frame: frame, *, mode: str = "append", **options: str) -> int:
        """Return the number of batches with rows."""
        frame = attach(self._spark).readStream.format("jsbackup").options(**self._reader).load(self._repository)
        writing = change(frame).writeStream.format("jsbackup").outputMode(mode)
        writing = writing.option("checkpointLocation", str(self._checkpoint)).queryName("copying")
        given = {"server": url, "stream": "COPY", **options}
        writing = writing.options(**{name: value for name, value in given.items() if value})
        query = writing.trigger(availableNow=True).start()
        assert query.awaitTermination(240)
        return sum(1 for progress in query.recentProgress if progress.numInputRows)

    def fails(self, sentence: str, url: str, change: Change = lambda frame: frame, **options: Any) -> None:
        with pytest.raises(PySparkException) as caught:
            self.run(url, change, **options)
        text = str(caught.value)
        assert re.search(rf"^jsbackup\.errors\.\w+: .*(?:{sentence})", text, re.MULTILINE), text


def as_read(messages: Sequence[Message]) -> list[tuple[Any, Any, Any]]:
    return [(one.subject, one.headers or b"", one.data) for one in messages]


def as_stored(messages: Sequence[StoredMessage]) -> list[tuple[Any, Any, Any]]:
    """Without the two headers that each of ours has."""
    found = []
    for one in messages:
        assert one.headers is not None
        block, count = re.subn(
            rb"Nats-Expected-Stream: COPY\r\nNats-Msg-Id: s[0-9a-f]{16}-\d+-[\w-]{22}(-\d+)?\r\n", b"", one.headers
        )
        assert count == 1, one.headers
        found.append((one.subject, b"" if block == b"NATS/1.0\r\n\r\n" else block, one.data))
    return found


@pytest.mark.by_turns
def test_a_repository_is_followed_into_a_stream(spark: SparkSession, nats_server: Server, tmp_path: Path) -> None:
    """In batches, and when there are new backups."""
    url = nats_server(NEWEST).url
    make(url, "COPY", "ORDERS.*")
    account = Account(tmp_path / "repo")
    query = Query(spark, str(account.folder), tmp_path / "checkpoint", stream="ORDERS", maxMessagesPerTrigger="70")
    account.back_up(1, {"ORDERS": range(1, 300), "OTHER": range(1, 5)})
    assert query.run(url, lambda frame: frame.coalesce(1)) == 5
    assert [int(one.data[: len(one.data) // 30]) for one in stored(url, "COPY")] == list(range(1, 300))
    assert query.run(url) == 0
    account.back_up(2, {"ORDERS": range(250, 350)})
    assert query.run(url, lambda frame: frame.repartition(3)) == 1
    found = stored(url, "COPY")
    assert sorted(int(one.data[: len(one.data) // 30]) for one in found) == list(range(1, 350))
    ids = {re.findall(rb"Nats-Msg-Id: (s[0-9a-f]{16})-(\d+)-", one.headers or b"")[0] for one in found}
    assert len({query_id for query_id, _ in ids}) == 1
    assert sorted(int(number) for _, number in ids) == list(range(6))


@pytest.mark.by_turns
def test_what_is_wrong_is_said_in_a_sentence(spark: SparkSession, nats_server: Server, tmp_path: Path) -> None:
    url = nats_server(NEWEST).url
    make(url, "COPY", "orders.>")
    make(url, "OTHER", "other.*")
    place = keep(tmp_path / "kept", {"A": some_messages(30, 10)}).place
    query = Query(spark, place.location, tmp_path / "checkpoint", stream="A")
    query.fails(r"there is no stream COPYY on [^ ]* Did you mean COPY\?", url, stream="COPYY")
    query.fails("the option 'stream' is missing", url, stream="")
    query.fails("the option 'server' holds a secret", url.replace("://", f"://all:{PASSWORD}@"))
    query.fails("no column 'key'. Columns are", url, lambda frame: frame.withColumn("key", frame.data))
    query.fails("row 0 of partition 0 cannot be a message: stream OTHER does not listen", url, stream="OTHER")
    query.fails(
        r"are not overwritten. Write with outputMode\('append'\)",
        url,
        lambda frame: frame.groupBy("subject").agg({"data": "max"}).withColumnRenamed("max(data)", "data"),
        mode="complete",
    )
    assert stored(url, "COPY") == [] == stored(url, "OTHER")
    for given, sentence in (
        ({"resume": "w1"}, "the option 'resume' is one of df.write"),
        ({"path": "/x"}, "a streaming query does not write a backup"),
        ({"steam": "S"}, "no option 'steam' for writing"),
    ):
        with pytest.raises(UsageError, match=sentence):
            read_writer_options({"server": url, "stream": "S", "checkpointlocation": "/c", **given}, streaming=True)
    with pytest.raises(UsageError, match="no option 'checkpointlocation' for writing"):
        read_writer_options({"server": url, "stream": "S", "checkpointlocation": "/c"})


# A Spark of its own, as users start it: a task that fails is not tried again. It runs a query for each line of stdin.
# With `fails`, of each partition the second half fails at the first attempt.
PROGRAM = """
import json, sys, time
from pyspark import TaskContext
from pyspark.sql import SparkSession
from jsbackup.pipeline.session.session import attach
master, config = json.loads(sys.argv[1])
spark = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
for name, value in config.items():
    spark = spark.config(name, value)
spark = spark.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
print(spark.sparkContext._gateway.proc.pid, flush=True)
def half(batches):
    for number, batch in enumerate(batches):
        if number == 5 and TaskContext.get().attemptNumber() == 0:
            time.sleep(2)
            raise ValueError("half of it")
        yield batch
for line in sys.stdin:
    given = json.loads(line)
    if given["continuous"] == "rate":
        reader = spark.readStream.format("rate").options(rowsPerSecond=100, numPartitions=1)
        frame = reader.load().selectExpr("'orders.1' AS subject", "string(value) AS data")
    else:
        frame = attach(spark).readStream.format("jsbackup").options(**given["reader"]).load(given["repo"])
        frame = frame.selectExpr(*given["columns"]).where(given["where"])
        if not given["continuous"]:
            frame = frame.repartition(given["partitions"]) if given["partitions"] > 1 else frame.coalesce(1)
    if given["fails"]:
        frame = frame.mapInArrow(half, frame.schema)
    writing = frame.writeStream.format("jsbackup").option("checkpointLocation", given["checkpoint"])
    error = None
    try:
        trigger = {"continuous": "1 second"} if given["continuous"] else {"availableNow": True}
        query = writing.options(**given["writer"]).trigger(**trigger).start()
        if not query.awaitTermination(30 if given["continuous"] else None):
            query.stop()
    except Exception as failed:
        error = str(failed)
    print(json.dumps(error), flush=True)
"""


class Program:
    """It, and what it has printed on stderr."""

    def __init__(self, folder: Path, master: str = "local[2]", config: Mapping[str, str] | None = None) -> None:
        self._said = folder / "said"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, json.dumps([master, config or {}])],
                env=environment(PYSPARK_PYTHON=sys.executable, ITS_PASSWORD=PASSWORD, **quick_java()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._java = int(self._output.readline())

    @property
    def said(self) -> str:
        return self._said.read_text()

    def run(
        self,
        copying: Copying,
        url: str,
        *,
        partitions: int,
        columns: Sequence[str] = ("*",),
        fails: bool = False,
        where: str = "true",
        continuous: str = "",
        **writer: str,
    ) -> str | None:
        """Return the error of the query, "killed" if it was. `continuous` is a source to be processed continuously, for
        half a minute.
        """
        given: dict[str, Any] = {"repo": copying.repository, "checkpoint": str(copying.checkpoint)}
        given |= {"reader": {"stream": "A", **copying.reader}, "writer": {"server": url, "stream": "COPY", **writer}}
        given |= {"partitions": partitions, "columns": columns, "fails": fails, "where": where}
        given["continuous"] = continuous
        self._input.write(json.dumps(given) + "\n")
        self._input.flush()
        answer = self._output.readline()
        found: str | None = json.loads(answer or '"killed"')
        return found

    def kill(self) -> None:
        os.kill(self._java, signal.SIGKILL)
        self._process.kill()

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        self._process.wait(timeout=120)
        self._output.close()


@pytest.fixture(scope="module")
def program(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The fixture `spark` says whether there is one, and keeps these tests in the process of the others."""
    program = Program(tmp_path_factory.mktemp("program"))
    try:
        yield program
    finally:
        program.close()


@dataclass(frozen=True, slots=True)
class Copying:
    """From stream A of a repository to the stream COPY of a server, which knows ids for a second, or `window_ns`."""

    messages: Sequence[Message]
    repository: str
    checkpoint: Path
    server: NatsServer
    reader: Mapping[str, str]

    @classmethod
    def of(
        cls, messages: Sequence[Message], server: NatsServer, folder: Path, *, window_ns: int = SECOND, **reader: str
    ) -> Copying:
        make(server.url, "COPY", "orders.>", duplicate_window=window_ns)
        place = keep(folder / "kept", {"A": messages}).place
        return cls(messages, place.location, folder / "checkpoint", server, reader)

    def cut(self, program: Program, byte_count: int, **options: Any) -> list[StoredMessage]:
        """Run the query until the connections are cut, and wait until the ids are forgotten. Return what is there."""
        with Proxy(self.server.port) as proxy:
            proxy.at(Direction.TO_SERVER, byte_count, proxy.cut)
            error = program.run(self, proxy.url, **options)
            lost = "the connection to .* was lost|cannot connect to|not reach"
            sentence = rf"^jsbackup\.errors\.\w+: (?:{lost}).*Start the query again with its checkpoint"
            assert error is not None and re.search(sentence, error, re.MULTILINE), error
        time.sleep(1.2)
        there = stored(self.server.url, "COPY")
        assert 0 < len(there) < len(self.messages)
        return there

    def has_all(self) -> None:
        found = [one for one in stored(self.server.url, "COPY") if one.subject != "orders.other"]
        assert Counter(as_stored(found)) == Counter(as_read(self.messages))


@pytest.mark.by_turns
@pytest.mark.parametrize(("first", "then"), [(4, 3), (1, 5)])
def test_a_batch_that_is_cut_off_is_completed(
    spark: SparkSession, program: Program, nats_server: Server, tmp_path: Path, first: int, then: int
) -> None:
    """The second one, in other partitions, with messages of others in between."""
    copying = Copying.of(some_messages(3000, 200), nats_server(NEWEST), tmp_path, maxMessagesPerTrigger="2000")
    there = copying.cut(program, 900_000, partitions=first)
    assert len(there) > 2000
    other = attach(spark).range(100).selectExpr("'orders.other' AS subject", "'x' AS data")
    other.write.format("jsbackup").mode("append").options(server=copying.server.url, stream="COPY").save()
    assert program.run(copying, copying.server.url, partitions=then) is None
    assert stored(copying.server.url, "COPY")[: len(there)] == there
    copying.has_all()


@pytest.mark.by_turns
def test_one_partition_is_in_order(program: Program, nats_server: Server, tmp_path: Path) -> None:
    """Also after it was cut off."""
    copying = Copying.of(some_messages(3000, 200), nats_server(NEWEST), tmp_path)
    copying.cut(program, 400_000, partitions=1)
    assert program.run(copying, copying.server.url, partitions=1) is None
    assert as_stored(stored(copying.server.url, "COPY")) == as_read(copying.messages)


@pytest.mark.by_turns
def test_equal_rows_are_all_stored(program: Program, nats_server: Server, tmp_path: Path) -> None:
    """Without what tells them from each other in the backup."""
    beats = [Message(n, 10**18, "orders.beat", None, b"beat" * 50) for n in range(1, 2001)]
    messages = [*beats, *(Message(n, 10**18, "orders.1", None, b"%d" % n) for n in range(3000, 3100))]
    copying = Copying.of(messages, nats_server(NEWEST), tmp_path)
    copying.cut(program, 200_000, partitions=4, columns=["subject", "data"])
    assert program.run(copying, copying.server.url, partitions=3, columns=["data", "subject"]) is None
    copying.has_all()


@pytest.mark.by_turns
def test_other_rows_when_a_batch_is_run_again_are_noticed(
    program: Program, nats_server: Server, tmp_path: Path
) -> None:
    copying = Copying.of(some_messages(3000, 10), nats_server(NEWEST), tmp_path)
    columns = ["subject", "concat(rand(), repeat('x', 200)) AS data"]
    there = copying.cut(program, 400_000, partitions=2, columns=columns)
    error = program.run(copying, copying.server.url, partitions=2, columns=columns)
    sentence = (
        rf"COPY has {len(there):,} messages of the batch s[0-9a-f]{{16}}-0 more than it has rows: .*the same rows"
    )
    assert error is not None and re.search(rf"^jsbackup\.errors\.IntegrityError: .*{sentence}", error, re.MULTILINE), (
        error
    )


@pytest.mark.by_turns
def test_a_batch_that_has_no_rows_when_it_is_run_again_is_noticed(
    program: Program, nats_server: Server, tmp_path: Path
) -> None:
    copying = Copying.of(some_messages(3000, 200), nats_server(NEWEST), tmp_path)
    there = copying.cut(program, 400_000, partitions=2)
    error = program.run(copying, copying.server.url, partitions=2, where="rand() > 2")
    sentence = (
        rf"COPY has {len(there):,} messages of the batch s[0-9a-f]{{16}}-0 more than it has rows: .*the same rows"
    )
    assert error is not None and re.search(rf"^jsbackup\.errors\.IntegrityError: .*{sentence}", error, re.MULTILINE), (
        error
    )
    assert program.run(copying, copying.server.url, partitions=3) is None
    copying.has_all()


def test_continuous_processing_is_refused(program: Program, nats_server: Server, tmp_path: Path) -> None:
    """By Spark if a repository is followed. Of other sources, it asks nobody, and drops errors of ours: the driver
    prints ours, and nothing is stored.
    """
    copying = Copying.of(some_messages(30, 20), nats_server(NEWEST), tmp_path)
    url = copying.server.url
    assert program.run(copying, url, partitions=1, continuous="jsbackup") == (
        "Data source jsbackup does not support continuous processing."
    )
    before = len(program.said)
    program.run(copying, url, partitions=1, continuous="rate")
    assert program.said[before:].count("jsbackup: a stream is written by micro-batches only. Leave trigger(") == 1
    assert stored(url, "COPY") == []


@pytest.mark.timeout(600)
def test_a_task_that_runs_again_stores_nothing_twice(spark: SparkSession, nats_server: Server, tmp_path: Path) -> None:
    """With the ids forgotten, too. The password is in no log of events, nor in the checkpoint."""
    messages = some_messages(2000, 1000)
    users = f"users: [{{ user: some, password: {PASSWORD} }}]"
    server = nats_server(NEWEST, config=f"accounts {{ A {{ jetstream: enabled, {users} }} }}")
    url = server.url
    known = url.replace("nats://", f"nats://some:{PASSWORD}@")
    make(known, "COPY", "orders.>", duplicate_window=SECOND)
    log = tmp_path / "log"
    log.mkdir()
    config = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{log}",
    }
    place = keep(tmp_path / "kept", {"A": messages}).place
    program = Program(tmp_path, "local[2,3]", config)
    copying = Copying(messages, place.location, tmp_path / "checkpoint", server, {})
    login = {"user": "some", "password": "env://ITS_PASSWORD"}
    try:
        assert program.run(copying, url, partitions=2, fails=True, **login) is None
    finally:
        program.close()
    assert Counter(as_stored(stored(known, "COPY"))) == Counter(as_read(messages))
    told = r"jsbackup: published [\d,]+ messages to stream COPY; [\d,]+ more were there already"
    assert re.search(told, program.said), program.said
    files = [path for folder in (log, copying.checkpoint) for path in folder.rglob("*") if path.is_file()]
    written = [path.read_bytes() for path in files]
    assert len(written) > 3 and not any(PASSWORD.encode() in text for text in written)
