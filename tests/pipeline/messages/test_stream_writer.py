"""`df.write.format("jsbackup")`: rows of a backup, and others, become messages of a stream."""

from __future__ import annotations

import asyncio
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsbackup.config import ConnectionOptions, source_connection
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.errors import UsageError
from jsbackup.pipeline.messages.writer_options import WRITER_NAMES, check_rows, read_writer_options
from jsbackup.pipeline.session.session import attach
from jsbackup.protocol.info import StoredMessage
from tests.harness.api import JSON, call, connected
from tests.harness.batches import Message, some_messages
from tests.harness.commands import environment
from tests.harness.servers import NEWEST, NatsServer
from tests.pipeline.messages.test_source import _fails
from tests.pipeline.places import keep
from tests.pipeline.quick_java import quick_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PASSWORD = "hunter2-s3cr3t"
BLOCK = b"NATS/1.0\r\nA: 1\r\nB:  x\r\nA: 2\r\nnats-rollup: all\r\n\r\n"
Server = Callable[..., NatsServer]


def make(url: str, name: str, subject: str, **config: Any) -> None:
    async def making() -> None:
        async with connected(url) as nc:
            whole: JSON = {"name": name, "subjects": [subject], "storage": "file", **config}
            await call(nc, f"STREAM.CREATE.{name}", whole)

    asyncio.run(making())


def stored(url: str, name: str) -> list[StoredMessage]:
    async def reading() -> list[StoredMessage]:
        async with connect_jetstream(source_connection(ConnectionOptions(server=url), {})) as js:
            info = await js.stream(name)
            found = [await js.message(name, n) for n in range(1, info.state.last_seq + 1)]
            return [one for one in found if one is not None]

    return asyncio.run(reading())


def publish(frame: DataFrame, url: str | None, stream: str | None = "COPY", **options: str) -> None:
    given = {"server": url, "stream": stream, **options}
    writer = frame.write.format("jsbackup").mode("append")
    writer.options(**{name: value for name, value in given.items() if value is not None}).save()


@pytest.mark.by_turns
def test_a_backup_is_written_to_another_stream(spark: SparkSession, nats_server: Server, tmp_path: Path) -> None:
    """As it was read, in the order of each subject, with what stays of its headers."""
    messages = [*some_messages(300, 50), Message(900, 1, "orders.3", BLOCK, b"\xff\x00")]
    place = keep(tmp_path / "kept", {"A": messages}).place
    server = nats_server(NEWEST)
    make(server.url, "COPY", "orders.>")
    frame = attach(spark).read.format("jsbackup").option("stream", "A").load(place.location)
    publish(frame.repartition(3, "subject").sortWithinPartitions("sequence"), server.url)
    found = stored(server.url, "COPY")
    assert len(found) == 301
    for subject in {one.subject for one in messages}:
        assert isinstance(subject, str)
        copies = [one for one in found if one.subject == subject]
        wanted = [one for one in messages if one.subject == subject]
        assert [one.data for one in copies] == [one.data for one in wanted]
        for copy, one in zip(copies, wanted, strict=True):
            block = (one.headers or b"NATS/1.0\r\n\r\n").replace(b"nats-rollup: all\r\n", b"")
            assert copy.headers is not None
            assert copy.headers.startswith(
                block.removesuffix(b"\r\n") + b"Nats-Expected-Stream: COPY\r\nNats-Msg-Id: w"
            )
    # Text, and ids of its own, of which the server has one.
    rows = [("orders.1", "a", "id1"), ("orders.1", "b", "id2"), ("orders.1", "c", None)]
    plain = spark.createDataFrame(rows, "subject string, data string, message_id string")
    publish(plain.where("message_id = 'id1'"), server.url)
    publish(plain.coalesce(1), server.url)
    assert [one.data for one in stored(server.url, "COPY")[301:]] == [b"a", b"b", b"c"]


def test_what_is_wrong_is_said_in_a_sentence(spark: SparkSession, nats_server: Server, tmp_path: Path) -> None:
    deny = 'permissions: { publish: { deny: ["orders.13"] } }'
    users = f"users: [{{ user: all, password: {PASSWORD} }}, {{ user: some, password: {PASSWORD}, {deny} }}]"
    url = nats_server(NEWEST, config=f"accounts {{ A {{ jetstream: enabled, {users} }} }}").url
    known = url.replace("nats://", f"nats://all:{PASSWORD}@")
    make(known, "ORDERS", "orders.*")
    make(known, "OTHER", "other.*")
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    login: dict[str, Any] = {"user": "some", "password-file": str(password)}
    frame = attach(spark).range(20).selectExpr("concat('orders.', id) AS subject", "'x' AS data").coalesce(1)

    def to(stream: str | None = "ORDERS", rows: DataFrame = frame, **options: Any) -> Callable[[], None]:
        return lambda: publish(rows, url, stream, **{**login, **options})

    for doing, sentence in (
        (to("ORDER"), r"there is no stream ORDER on [^ ]* Did you mean ORDERS\?(?!.*Did you mean)"),
        (to(None), "the option 'stream' is missing"),
        (to(steam="X"), "has no option 'steam' for writing. Did you mean stream"),
        (to(columns="subject"), "has no option 'columns' for writing"),
        (to(path="/x"), "Call jsbackup.*write_backup. To publish rows to a stream, give"),
        (to(ids="none"), "'ids' is neither own nor new"),
        (to(resume="x"), "not the id of a write: 'x'"),
        (lambda: publish(frame, None), "the server is not named"),
        (lambda: publish(frame, known), "the option 'server' holds a secret, and none is sent to executors"),
        (to(**dict[str, Any]({"password-file": "", "password": PASSWORD})), "the option 'password' holds a secret"),
        (to(rows=frame.withColumn("header", frame.data)), "no column 'header'. Did you mean headers"),
        (to(rows=frame.withColumn("key", frame.data)), "no column 'key'. Columns are .*backup are ignored"),
        (to(rows=frame.drop("data")), "the column data is missing"),
        (to(rows=frame.withColumn("headers", frame.data)), "the column headers has the type string, not binary"),
        (
            to("OTHER"),
            "row 0 of partition 0 cannot be a message: stream OTHER does not listen .* orders.0.* "
            "The same row fails again: .* then write all rows again, the others as they were, with the option 'resume'",
        ),
        (to(), "does not allow publishing to orders.13"),
        (
            lambda: frame.write.format("jsbackup").mode("overwrite").options(server=url, stream="ORDERS").save(),
            "are not overwritten. Write with mode",
        ),
    ):
        _fails(doing, sentence)
    assert stored(known, "OTHER") == []


def test_no_secret_is_in_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_PASSWORD", PASSWORD)
    monkeypatch.setenv("NATS_USER", "some")
    options = read_writer_options({"SERVER": "nats://h", "Stream": "S", "tls_first": "yes", "jsDomain": "hub"})
    assert PASSWORD.encode() not in pickle.dumps(options) and PASSWORD not in repr(options)
    connection = options.server.resolve({"NATS_PASSWORD": PASSWORD, "NATS_USER": "some"})
    assert (connection.js_domain, connection.tls.first, connection.login is None) == ("hub", True, False)
    for name in WRITER_NAMES:
        if name not in ("server", "stream"):
            with pytest.raises(UsageError, match=r"server is not named|stream' is missing"):
                read_writer_options({name: "x"})
    with pytest.raises(UsageError, match="the server and the stream are not named") as caught:
        read_writer_options({})
    assert caught.value.hint is not None and "With CREATE TABLE" in caught.value.hint
    with pytest.raises(UsageError, match="'tlsfirst' is neither true nor false"):
        read_writer_options({"server": "h", "stream": "S", "tlsfirst": "perhaps"})
    check_rows({"subject": "string", "data": "binary", "sequence": "bigint", "time": "timestamp", "stream": "string"})


# A partition whose second half fails at the first attempt, when the first half is stored.
RETRIED = """
import sys
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession
from jsbackup.pipeline.session.session import attach
url, folder = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
    .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    .config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", f"file://{folder}").getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
def half(batches):
    import time
    for number, batch in enumerate(batches):
        if number == 3 and TaskContext.get().attemptNumber() == 0:
            time.sleep(2)
            raise ValueError("half of it")
        yield batch
data = "concat(id, '-', repeat('x', 5000)) AS data"  # more than is kept in buffers
frame = attach(spark).range(0, 1000, 1, 2).selectExpr("concat('orders.', id % 3) AS subject", data)
frame = frame.mapInArrow(half, frame.schema)
options = {"server": url, "stream": "ORDERS", "user": "some", "password": "env://ITS_PASSWORD"}
frame.write.format("jsbackup").mode("append").options(**options).save()
"""


def test_a_task_that_runs_again_stores_nothing_twice(spark: SparkSession, nats_server: Server, tmp_path: Path) -> None:
    """In a Spark of its own, which lets tasks fail. The password is in no log of events."""
    users = f"users: [{{ user: some, password: {PASSWORD} }}]"
    url = nats_server(NEWEST, config=f"accounts {{ A {{ jetstream: enabled, {users} }} }}").url
    known = url.replace("nats://", f"nats://some:{PASSWORD}@")
    make(known, "ORDERS", "orders.*")
    done = subprocess.run(
        [sys.executable, "-c", RETRIED, url, str(tmp_path)],
        env=environment(PYSPARK_PYTHON=sys.executable, ITS_PASSWORD=PASSWORD, **quick_java()),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = re.search(r"jsbackup: published (\d+) messages to stream ORDERS; (\d+) more were there", done.stderr)
    assert told is not None, done.stderr
    assert int(told[1]) + int(told[2]) == 1000
    found = [(one.subject, int(one.data.partition(b"-")[0])) for one in stored(known, "ORDERS")]
    assert sorted(number for _, number in found) == list(range(1000))
    for key in range(3):
        for half in (range(500), range(500, 1000)):
            values = [number for subject, number in found if subject == f"orders.{key}" and number in half]
            assert values == sorted(values)
    logs = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert logs and not any(PASSWORD.encode() in log for log in logs)
