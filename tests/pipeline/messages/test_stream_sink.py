"""`df.writeStream.format("jsbackup")`: each row of a streaming query is a message of a stream, once, however often the
query is stopped, killed and started again.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
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


@pytest.mark.parametrize(("first", "then"), [(4, 3), (3, 1), (1, 5)])
def test_a_batch_that_is_cut_off_is_completed(
    spark: SparkSession, nats_server: Server, tmp_path: Path, first: int, then: int
) -> None:
    """In other partitions, after the server has forgotten the ids, and with messages of others in between."""
    messages = some_messages(6000, 200)
    place = keep(tmp_path / "kept", {"A": messages}).place
    server = nats_server(NEWEST)
    make(server.url, "COPY", "orders.>", duplicate_window=SECOND)
    query = Query(spark, place.location, tmp_path / "checkpoint", stream="A", maxMessagesPerTrigger="4000")
    with Proxy(server.port) as proxy:
        proxy.at(Direction.TO_SERVER, 1_800_000, proxy.cut)
        sentence = "the connection to .* was lost.*Start the query again with its checkpoint"
        query.fails(sentence, proxy.url, lambda frame: frame.repartition(first))
    there = stored(server.url, "COPY")
    assert 4000 < len(there) < 6000
    other = attach(spark).range(100).selectExpr("'orders.other' AS subject", "'x' AS data")
    other.write.format("jsbackup").mode("append").options(server=server.url, stream="COPY").save()
    time.sleep(1.2)
    assert query.run(server.url, lambda frame: frame.repartition(then)) == 1
    found = [one for one in stored(server.url, "COPY") if one.subject != "orders.other"]
    assert found[: len(there)] == there
    assert Counter(as_stored(found)) == Counter(as_read(messages))


def test_one_partition_is_in_order(spark: SparkSession, nats_server: Server, tmp_path: Path) -> None:
    """Also after it was cut off."""
    messages = some_messages(3000, 200)
    place = keep(tmp_path / "kept", {"A": messages}).place
    server = nats_server(NEWEST)
    make(server.url, "COPY", "orders.>", duplicate_window=SECOND)
    query = Query(spark, place.location, tmp_path / "checkpoint", stream="A")
    with Proxy(server.port) as proxy:
        proxy.at(Direction.TO_SERVER, 400_000, proxy.cut)
        query.fails("the connection to .* was lost", proxy.url, lambda frame: frame.coalesce(1))
    assert 0 < len(stored(server.url, "COPY")) < 3000
    time.sleep(1.2)
    query.run(server.url, lambda frame: frame.coalesce(1))
    assert as_stored(stored(server.url, "COPY")) == as_read(messages)


def test_equal_rows_are_all_stored(spark: SparkSession, nats_server: Server, tmp_path: Path) -> None:
    """Without what tells them from each other in the backup."""
    beats = [Message(n, 10**18, "orders.beat", None, b"beat" * 50) for n in range(1, 2001)]
    messages = [*beats, *(Message(n, 10**18, "orders.1", None, b"%d" % n) for n in range(3000, 3100))]
    place = keep(tmp_path / "kept", {"A": messages}).place
    server = nats_server(NEWEST)
    make(server.url, "COPY", "orders.>")
    query = Query(spark, place.location, tmp_path / "checkpoint", stream="A")
    with Proxy(server.port) as proxy:
        proxy.at(Direction.TO_SERVER, 200_000, proxy.cut)
        query.fails(
            "the connection to .* was lost", proxy.url, lambda frame: frame.select("subject", "data").repartition(4)
        )
    query.run(server.url, lambda frame: frame.select("data", "subject").repartition(3))
    assert Counter(as_stored(stored(server.url, "COPY"))) == Counter(as_read(messages))


def test_other_rows_when_a_batch_is_run_again_are_noticed(
    spark: SparkSession, nats_server: Server, tmp_path: Path
) -> None:
    place = keep(tmp_path / "kept", {"A": some_messages(3000, 10)}).place
    server = nats_server(NEWEST)
    make(server.url, "COPY", "orders.>")
    query = Query(spark, place.location, tmp_path / "checkpoint", stream="A")

    def at_random(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("subject", "concat(rand(), repeat('x', 200)) AS data")

    with Proxy(server.port) as proxy:
        proxy.at(Direction.TO_SERVER, 400_000, proxy.cut)
        query.fails("the connection to .* was lost", proxy.url, at_random)
    sentence = (
        r"stream COPY has [\d,]+ messages of the batch s[0-9a-f]{16}-0 more than it has rows: .*the same rows"
    )
    query.fails(sentence, server.url, at_random)


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


def test_continuous_processing_is_refused(spark: SparkSession, nats_server: Server, tmp_path: Path) -> None:
    url = nats_server(NEWEST).url
    make(url, "COPY", "orders.>")
    rates = attach(spark).readStream.format("rate").option("numPartitions", "1").load()
    writing = rates.selectExpr("'orders.1' AS subject", "string(value) AS data").writeStream.format("jsbackup")
    writing = writing.options(server=url, stream="COPY", checkpointLocation=str(tmp_path / "checkpoint"))
    query = writing.trigger(continuous="1 second").start()
    try:
        with pytest.raises(PySparkException, match=r"a stream is written by micro-batches only. Leave trigger"):
            query.awaitTermination(120)
    finally:
        query.stop()
    assert stored(url, "COPY") == []


# A Spark of its own, which is killed, or in which tasks fail: of each partition the second half at the first attempt.
PROGRAM = """
import json, sys
from pyspark import TaskContext
from pyspark.sql import SparkSession
from jsbackup.pipeline.session.session import attach
given = json.loads(sys.argv[1])
spark = SparkSession.builder.master(given["master"]).config("spark.ui.enabled", "false")
for name, value in given["config"].items():
    spark = spark.config(name, value)
spark = spark.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
print(spark.sparkContext._gateway.proc.pid, flush=True)
def half(batches):
    import time
    for number, batch in enumerate(batches):
        if number == 5 and TaskContext.get().attemptNumber() == 0:
            time.sleep(2)
            raise ValueError("half of it")
        yield batch
frame = attach(spark).readStream.format("jsbackup").options(**given["reader"]).load(given["repo"])
frame = frame.repartition(given["partitions"])
if given["fails"]:
    frame = frame.mapInArrow(half, frame.schema)
writing = frame.writeStream.format("jsbackup").option("checkpointLocation", given["checkpoint"])
query = writing.options(stream="COPY", **given["writer"]).trigger(availableNow=True).start()
query.awaitTermination()
"""


class Program:
    """It from a repository to the stream COPY, started in `folder`."""

    def __init__(self, repository: str, folder: Path, **reader: str) -> None:
        checkpoint = str(folder / "checkpoint")
        self._given = {"repo": repository, "checkpoint": checkpoint, "reader": {"stream": "A", **reader}}

    def start(
        self, url: str, *, master: str, partitions: int, fails: bool = False, config: Any = (), **writer: str
    ) -> tuple[subprocess.Popen[str], int]:
        """Return it, and the process of its Java."""
        given = {"master": master, "partitions": partitions, "fails": fails, "config": dict(config)}
        line = json.dumps({**self._given, **given, "writer": {"server": url, **writer}})
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, line],
            env=environment(PYSPARK_PYTHON=sys.executable, ITS_PASSWORD=PASSWORD),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    def complete(self, url: str, **options: Any) -> str:
        """Return what it prints."""
        process, _ = self.start(url, **options)
        said = process.communicate(timeout=240)[1]
        assert process.returncode == 0, said
        return said

    def is_killed(self, port: int, byte_count: int, **options: Any) -> None:
        """When so many bytes have gone to the server."""
        with Proxy(port) as proxy:
            process, java = self.start(proxy.url, **options)

            def kill() -> None:
                os.kill(java, signal.SIGKILL)
                process.kill()

            proxy.at(Direction.TO_SERVER, byte_count, kill)
            process.communicate(timeout=240)
            assert process.returncode == -signal.SIGKILL


def test_a_query_that_is_killed_goes_on(spark: SparkSession, nats_server: Server, tmp_path: Path) -> None:
    """Twice, in batches of which a part is stored; with other cores and partitions each time."""
    messages = some_messages(8000, 300)
    place = keep(tmp_path / "kept", {"A": messages}).place
    server = nats_server(NEWEST)
    make(server.url, "COPY", "orders.>", duplicate_window=SECOND)
    program = Program(place.location, tmp_path, maxMessagesPerTrigger="5000")
    program.is_killed(server.port, 1_200_000, master="local[2]", partitions=2)
    once = len(stored(server.url, "COPY"))
    assert 0 < once < 5000
    program.is_killed(server.port, 1_200_000, master="local[3]", partitions=5)
    twice = len(stored(server.url, "COPY"))
    assert once < twice < 8000
    said = program.complete(server.url, master="local[2]", partitions=3)
    assert Counter(as_stored(stored(server.url, "COPY"))) == Counter(as_read(messages))
    told = re.search(r"jsbackup: published [\d,]+ messages? to stream COPY; [\d,]+ more were there already", said)
    assert told is not None, said


def test_a_task_that_runs_again_stores_nothing_twice(spark: SparkSession, nats_server: Server, tmp_path: Path) -> None:
    """With the ids forgotten, too. The password is in no log of events, nor in the checkpoint."""
    messages = some_messages(4000, 1000)
    place = keep(tmp_path / "kept", {"A": messages}).place
    users = f"users: [{{ user: some, password: {PASSWORD} }}]"
    url = nats_server(NEWEST, config=f"accounts {{ A {{ jetstream: enabled, {users} }} }}").url
    known = url.replace("nats://", f"nats://some:{PASSWORD}@")
    make(known, "COPY", "orders.>", duplicate_window=SECOND)
    log = tmp_path / "log"
    log.mkdir()
    config = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{log}",
    }
    program = Program(place.location, tmp_path)
    login = {"user": "some", "password": "env://ITS_PASSWORD"}
    said = program.complete(url, master="local[2,3]", partitions=2, fails=True, config=config, **login)
    assert Counter(as_stored(stored(known, "COPY"))) == Counter(as_read(messages))
    assert re.search(r"jsbackup: published [\d,]+ messages to stream COPY; [\d,]+ more were there already", said), said
    files = [path for folder in (log, tmp_path / "checkpoint") for path in folder.rglob("*") if path.is_file()]
    written = [path.read_bytes() for path in files]
    assert len(written) > 3 and not any(PASSWORD.encode() in text for text in written)
