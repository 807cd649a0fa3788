"""`spark.readStream.format("jsbackup")`: stopped and started again, it goes on behind its checkpoint."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

import jsbackup
from jsbackup.cli.main import run
from jsbackup.errors import IncompleteError, UsageError
from jsbackup.pipeline.messages import stream_source
from jsbackup.pipeline.messages.segment_rows import RowColumns
from jsbackup.pipeline.messages.source_options import read_options
from jsbackup.pipeline.messages.stream_source import BackupStreamReader
from jsbackup.pipeline.session.session import attach
from jsbackup.repository.manifest import BackupResult, Manifest, Selection, Source, StreamBackup
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.harness import backups
from tests.harness.api import call, connected, until_stored
from tests.harness.backups import make_repository, store_stream
from tests.harness.batches import Message
from tests.harness.servers import NEWEST, NatsServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Streams = Mapping[str, Sequence[int]]
ALL = ReadAllAvailable()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after a second: for readers in this process."""
    monkeypatch.setattr(stream_source, "_LOOK_SECONDS", 0.0)


def backup_id(number: int) -> str:
    return f"20261121T01{number:02}00Z-00000a"


class Account:
    """A repository in a folder, and an account whose streams are given by their sequences."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository: Repository = make_repository(LocalStore(folder))

    def back_up(
        self, number: int, streams: Streams, *, account: str = "SHOP", incarnation: str = "", previous: str = ""
    ) -> str:
        stored = tuple(self._stored(name, sequences, incarnation) for name, sequences in sorted(streams.items()))
        manifest = Manifest(
            backup_id(number),
            f"2026-11-21T01:{number:02}:00Z",
            "jsbackup tests",
            Source("2.15.1", "C1", account),
            BackupResult.COMPLETE,
            stored,
            previous=previous or next(reversed(self.repository.backups()), None),
            selection=Selection(),
        )
        self.repository.commit(manifest)
        return manifest.id

    def _stored(self, name: str, sequences: Sequence[int], incarnation: str) -> StreamBackup:
        messages = [Message(one, 10**18 + one, f"{name}.{one % 3}", None, b"%d" % one * 30) for one in sequences]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backups, "INCARNATION", incarnation or backups.INCARNATION)
            stream = store_stream(self.repository.objects, name, messages)
            return replace(stream, incarnation=backups.INCARNATION)

    def forget(self, backup: str) -> None:
        (self.folder / "backups" / f"{backup}.json").unlink()
        for witness in (self.folder / "catalog").glob("*"):
            witness.unlink()

    def reader(self, **options: str) -> BackupStreamReader:
        return BackupStreamReader(
            read_options({"path": str(self.folder), **options}), RowColumns(("stream", "sequence"))
        )


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return Account(tmp_path / "repo")


def read(reader: BackupStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int]]:
    return [
        (row["stream"], row["sequence"])
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


def of(name: str, sequences: Sequence[int]) -> list[tuple[str, int]]:
    return [(name, one) for one in sequences]


def test_a_reader_that_is_new_reads_what_another_one_has_planned(account: Account) -> None:
    reader = account.reader()
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start  # there is no backup yet
    account.back_up(1, {"ORDERS": range(1, 300), "OTHER": range(5, 8)})
    end = reader.latestOffset(start, ALL)
    assert sorted(read(reader, start, end)) == [*of("ORDERS", range(1, 300)), *of("OTHER", range(5, 8))]
    assert sorted(read(account.reader(), start, end)) == sorted(read(reader, start, end))
    assert reader.latestOffset(end, ALL) is end
    account.back_up(2, {"ORDERS": range(250, 320)})
    assert read(reader, end, reader.latestOffset(end, ALL)) == of("ORDERS", range(300, 320))
    assert account.reader(start="latest").initialOffset() == reader.latestOffset(end, ALL)


def test_limits_are_those_of_the_options_or_of_spark(account: Account) -> None:
    account.back_up(1, {"ORDERS": range(1, 300)})
    reader = account.reader(maxMessagesPerTrigger="70")
    assert reader.getDefaultReadLimit() == ReadMaxRows(70)
    assert account.reader(maxBytesPerTrigger="1KiB").getDefaultReadLimit() == ReadMaxBytes(1024)
    assert account.reader().getDefaultReadLimit() == ReadAllAvailable()
    at, sizes = reader.initialOffset(), []
    while (end := reader.latestOffset(at, ReadMaxRows(70))) != at:
        sizes.append(len(read(reader, at, end)))
        at = end
    assert sizes == [70, 70, 70, 70, 19]
    assert len(read(reader, reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ALL))) == 299


def test_with_available_now_later_backups_wait(account: Account) -> None:
    account.back_up(1, {"ORDERS": range(1, 11)})
    reader = account.reader()
    reader.prepareForTriggerAvailableNow()
    account.back_up(2, {"ORDERS": range(1, 21)})
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert read(reader, reader.initialOffset(), end) == of("ORDERS", range(1, 11))
    assert reader.latestOffset(end, ALL) == end


def test_a_backup_forgotten_after_the_plan_is_replaced_or_told(account: Account) -> None:
    planned = account.back_up(1, {"ORDERS": range(1, 11)})
    reader = account.reader()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    account.back_up(2, {"ORDERS": range(1, 21)})
    account.forget(planned)
    assert read(reader, start, end) == of("ORDERS", range(1, 11))
    account.forget(backup_id(2))
    account.back_up(3, {"ORDERS": range(8, 21)})
    # What the newer one lacks was in the forgotten one. That the backups before 3 are gone does not matter to it.
    found = read(account.reader(), start, end)
    assert found == of("ORDERS", range(8, 11))
    account.forget(backup_id(3))
    with pytest.raises(IncompleteError, match=r"messages 1 to 10 of stream ORDERS .*Set the option failOnDataLoss"):
        reader.partitions(start, end)
    (nothing,) = account.reader(failOnDataLoss="false").partitions(start, end)
    assert nothing.value == ()


def test_a_backup_that_was_looked_at_may_be_forgotten(account: Account) -> None:
    """As `forget` does with those of `follow` that have nothing new."""
    reader = account.reader()
    account.back_up(1, {"ORDERS": range(1, 11)})
    at = reader.latestOffset(reader.initialOffset(), ALL)
    same = account.back_up(2, {"ORDERS": range(1, 11)})
    assert reader.latestOffset(at, ALL) == at
    account.back_up(3, {"ORDERS": [*range(1, 11), 15, 16]})
    account.forget(same)
    end = reader.latestOffset(at, ALL)
    assert read(reader, at, end) == of("ORDERS", [15, 16])
    # One that starts now cannot know that.
    with pytest.raises(IncompleteError, match=rf"backup {same} was forgotten .* lacks 4 of the messages 11 to 16"):
        account.reader().latestOffset(at, ALL)


def test_a_backup_that_is_copied_later_comes_with_what_only_it_has(account: Account) -> None:
    account.back_up(9, {"ORDERS": [*range(1, 11), *range(21, 301)]})
    reader = account.reader()
    at = reader.latestOffset(reader.initialOffset(), ALL)
    account.back_up(3, {"ORDERS": range(1, 16), "OTHER": range(1, 4)})
    account.back_up(5, {"ORDERS": range(3, 19)})
    for again in (reader, account.reader(maxMessagesPerTrigger="1")):
        end = again.latestOffset(at, ALL)
        assert sorted(read(again, at, end)) == [*of("ORDERS", range(11, 19)), *of("OTHER", range(1, 4))]
        assert sorted(read(account.reader(), at, end)) == sorted(read(again, at, end))
        assert again.latestOffset(end, ALL) == end


def test_one_source_is_followed(account: Account, tmp_path: Path) -> None:
    account.back_up(1, {"ORDERS": [1]})
    reader = account.reader()
    start = reader.latestOffset(reader.initialOffset(), ALL)
    account.back_up(2, {"ORDERS": [1, 2]}, account="PAY")
    assert reader.latestOffset(start, ALL) == start  # the checkpoint knows which
    with pytest.raises(UsageError, match=r"backups of 2 sources .*Choose one with the option 'origin'"):
        account.reader().initialOffset()
    of_pay = account.reader(origin="PAY")
    assert read(of_pay, of_pay.initialOffset(), of_pay.latestOffset(of_pay.initialOffset(), ALL)) == of(
        "ORDERS", [1, 2]
    )
    other = make_repository(LocalStore(tmp_path / "other"), "11ee")
    assert other.descriptor.id != account.repository.descriptor.id
    elsewhere = BackupStreamReader(read_options({"path": str(tmp_path / "other")}), RowColumns(("stream",)))
    with pytest.raises(UsageError, match="belongs to another repository"):
        elsewhere.latestOffset(start, ALL)
    with pytest.raises(UsageError, match=r"has no stream ORDER. Did you mean ORDERS"):
        account.reader(origin="SHOP", stream="ORDER").initialOffset()


class Query:
    """A query that runs until nothing is new; its rows add up in a table of Parquet files."""

    def __init__(self, spark: SparkSession, account: Account, folder: Path) -> None:
        self._spark, self._account, self._folder = spark, account, folder

    def run(self, **options: str) -> list[tuple[str, int]]:
        """All rows so far."""
        table, checkpoint = (str(self._folder / name) for name in ("table", "checkpoint"))
        frame = attach(self._spark).readStream.format("jsbackup").options(columns="stream,sequence,data", **options)
        writing = frame.load(str(self._account.folder)).writeStream.format("parquet")
        query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(table)
        assert query.awaitTermination(120)
        self.batches = sum(1 for progress in query.recentProgress if progress.numInputRows)
        return sorted((row.stream, row.sequence) for row in self._spark.read.parquet(table).collect())


@pytest.mark.by_turns
def test_a_query_goes_on_behind_its_checkpoint(spark: SparkSession, account: Account, tmp_path: Path) -> None:
    query = Query(spark, account, tmp_path)
    account.back_up(1, {"ORDERS": range(1, 41), "OTHER": range(1, 4)})
    expected = [*of("ORDERS", range(1, 41)), *of("OTHER", range(1, 4))]
    assert query.run(maxMessagesPerTrigger="20") == expected and query.batches == 3
    assert query.run() == expected and query.batches == 0
    # Removed at the source; and OTHER is created anew.
    account.back_up(2, {"ORDERS": range(30, 51)})
    account.back_up(3, {"OTHER": range(1, 3)}, incarnation="99aabbcc")
    expected += [*of("ORDERS", range(41, 51)), *of("OTHER", range(1, 3))]
    assert query.run() == sorted(expected)
    # A backup that was never read is gone, with messages that only it had.
    account.forget(account.back_up(4, {"ORDERS": range(30, 61)}))
    account.back_up(5, {"ORDERS": range(55, 71)}, previous=backup_id(4))
    sentence = rf"backup {backup_id(4)} was forgotten before .* lacks 4 of the messages 51 to 70 of stream ORDERS"
    with pytest.raises(PySparkException, match=sentence):
        query.run()
    assert query.run(failOnDataLoss="false") == sorted([*expected, *of("ORDERS", range(55, 71))])


@pytest.mark.by_turns
def test_a_query_that_cannot_be_says_why(spark: SparkSession, account: Account, tmp_path: Path) -> None:
    def start(path: str = str(account.folder), **options: str) -> None:
        frame = attach(spark).readStream.format("jsbackup").options(**options).load(path)
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
        query.trigger(availableNow=True).start().awaitTermination(120)

    account.back_up(1, {"ORDERS": range(1, 41)})
    doing: Callable[[], None]
    for doing, sentence in (
        (lambda: start("/nowhere"), "RepositoryNotFound: no repository at /nowhere"),
        (lambda: start(at="24h"), "UsageError: (no backup was made|a streaming query follows all backups)"),
        (lambda: start(backup=backup_id(1)), "UsageError: a streaming query follows all backups"),
        (lambda: start(stream="ORDER"), "UsageError: .*has no stream ORDER. Did you mean ORDERS"),
    ):
        with pytest.raises(PySparkException) as caught:
            doing()
        assert re.search(rf"^jsbackup\.errors\.{sentence}", str(caught.value), re.MULTILINE), str(caught.value)


@pytest.mark.nats
def test_backups_of_a_server_are_followed(nats_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    server = nats_server(NEWEST)
    repository = jsbackup.open(tmp_path / "repo", create=True)
    subjects = {"name": "ORDERS", "subjects": ["orders.*"]}

    async def change(deleted: bool, purged: int, published: int) -> None:
        async with connected(server.url) as nc:
            if deleted:
                await call(nc, "STREAM.DELETE.ORDERS", {})
            await call(nc, "STREAM.CREATE.ORDERS", subjects)
            if purged:
                await call(nc, "STREAM.PURGE.ORDERS", {"seq": purged + 1})
            for number in range(published):
                await nc.publish(f"orders.{number % 3}", b"x" * 100)
            await until_stored(nc, "orders.0")

    def back_up(*, deleted: bool = False, purged: int = 0, published: int = 0) -> str:
        asyncio.run(change(deleted, purged, published))
        try:
            return jsbackup.backup(server.url, repository).id
        except IncompleteError as error:  # it says that this is another stream than before
            return str(error.result.id)

    def step(at: dict[str, Any] | None = None, **options: str) -> tuple[list[tuple[str, int]], dict[str, Any]]:
        """By a reader of its own each time, as a query that was stopped."""
        given = read_options({"path": str(tmp_path / "repo"), **options})
        reader = BackupStreamReader(given, RowColumns(("stream", "sequence")))
        at = reader.initialOffset() if at is None else json.loads(json.dumps(at))
        end = reader.latestOffset(at, ALL)
        return read(reader, at, end), end

    back_up(published=30)
    found, at = step()
    assert found == of("ORDERS", range(1, 31))
    back_up(purged=10, published=5)
    back_up(purged=34)
    found, at = step(at)
    assert found == of("ORDERS", range(31, 36)) and step(at)[0] == []
    back_up(deleted=True, published=3)
    found, at = step(at)
    assert found == of("ORDERS", range(1, 4))
    unread = back_up(published=4)
    back_up(purged=5, published=1)
    assert run(["forget", unread, "--prune", "-r", str(tmp_path / "repo")]) == 0
    with pytest.raises(IncompleteError, match=rf"backup {unread} was forgotten .*lacks 2 of the messages 4 to 8"):
        step(at)
    assert step(at, failOnDataLoss="false")[0] == of("ORDERS", range(6, 9))
