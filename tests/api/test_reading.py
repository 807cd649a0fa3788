"""Messages for other readers: files, scans, SQL, and all that any backup has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jsbackup
from jsbackup.api.arguments import WantedMessages
from jsbackup.api.stored import Stream
from jsbackup.errors import UnsupportedError, UsageError
from tests.harness import backups
from tests.harness.batches import Message, some_messages
from tests.pipeline.places import keep

ORDERS = some_messages(120, 40)
ODD = [Message(1, 10**18, b"x.\xff", None, b"1"), Message(2, 10**18 + 1, "x.y", b"NATS/1.0\r\nA: b\r\n\r\n", b"2")]


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "encrypted"])
def repository(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> jsbackup.BackupRepository:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backups, "SEGMENT_BYTES", 2000)
        kept = keep(tmp_path_factory.mktemp("read"), {"ORDERS": ORDERS[:90], "ODD": ODD}, encrypted=request.param)
        stored = backups.store_stream(kept.repository.objects, "ORDERS", ORDERS[40:])
        later = "20261122T014500Z-000001"
        manifest = replace(kept.manifest, id=later, created="2026-11-22T01:45:00Z", previous=kept.manifest.id)
        kept.repository.commit(replace(manifest, streams=(stored,)))
    return jsbackup.open(kept.place.location, identity=dict(kept.place.keys).get("identity"))


@pytest.fixture
def orders(repository: jsbackup.BackupRepository) -> Stream:
    return repository.latest(streams="ORDERS")["ORDERS"]


def test_files_are_those_that_parquet_readers_open(orders: Stream) -> None:
    if orders.backup.repository._opened().objects.sealing.suffix:
        with pytest.raises(UnsupportedError, match="encrypted"):
            orders.files()
        return
    files = orders.files()
    assert len(files) > 2 and all(Path(file).is_file() for file in files)
    tables = [pq.ParquetFile(file).read(["sequence"]) for file in files]
    assert pa.concat_tables(tables).column("sequence").to_pylist() == [one.sequence for one in ORDERS[40:]]


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"since": ORDERS[60].sequence},
        {"until": ORDERS[80].sequence, "payload_match": "[1-5]"},
        {"exclude_subject": "orders.1"},
        {"last_per_subject": 2},
    ],
    ids=str,
)
def test_a_scan_and_a_table_have_the_messages(orders: Stream, wanted: WantedMessages) -> None:
    expected = pa.Table.from_batches(orders.messages("orders.>", **wanted))
    assert orders.scan((), "orders.>", **wanted).read_all() == expected == orders.table("orders.>", **wanted)
    some = orders.scan(["data", "sequence"], "orders.>", **wanted).read_all()
    assert some == expected.select(["data", "sequence"]) and some.num_rows


def test_a_scan_has_one_schema(repository: jsbackup.BackupRepository) -> None:
    odd = repository.backups()[0]["ODD"]
    assert odd.scan("subject").read_all().column("subject").to_pylist() == ["x.\\xff", "x.y"]
    with pytest.raises(UsageError, match="there is no column 'text'"):
        odd.scan(["text"])


def test_sql_is_asked_of_one_backup_or_all(repository: jsbackup.BackupRepository) -> None:
    sql = "SELECT count(*) AS n, count(DISTINCT sequence) AS d, min(backup) AS first FROM orders"
    latest = repository.backups()[1]
    assert latest.query(sql).to_pylist() == [{"n": 80, "d": 80, "first": latest.id}]
    first = repository.backups()[0].id
    assert repository.query(sql).to_pylist() == [{"n": 120, "d": 120, "first": first}]
    assert repository.query("CREATE TABLE t AS FROM orders").num_rows == 1
    with pytest.raises(UsageError, match="there is no stream nowhere"):
        repository.query("FROM nowhere")


def test_the_history_has_each_message_once(repository: jsbackup.BackupRepository) -> None:
    found = repository.history("ORDERS").read_all().to_pylist()
    assert [one["sequence"] for one in found] == [one.sequence for one in ORDERS]
    assert [one["data"] for one in found] == [one.data for one in ORDERS]
    assert {one["backup"] for one in found} == {backup.id for backup in repository.backups()}
    assert {(one["incarnation"], one["life"]) for one in found} == {(backups.INCARNATION, "")}
    assert repository.history("ODD", columns="subject").read_all().column_names == ["subject"]
    with pytest.raises(UsageError, match="no backup has messages of stream NOPE"):
        repository.history("NOPE")
