"""`backup.spark(session, json=…)`: payloads as columns."""

from __future__ import annotations

import json
import logging
import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import jsbackup
from tests.harness.backups import FIRST
from tests.harness.batches import Message
from tests.pipeline.payloads.test_json_payload import CORRUPT, FITS, NAMES
from tests.pipeline.places import keep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DDL = (
    "flag BOOLEAN, tiny TINYINT, int INT, id BIGINT NOT NULL, total DOUBLE, price DECIMAL(10, 2), whole DECIMAL(38, 0),"
    " name STRING, list ARRAY<BIGINT>, lists ARRAY<ARRAY<DOUBLE>>, map MAP<STRING, BIGINT>,"
    " at STRUCT<x: DOUBLE NOT NULL, tags: ARRAY<STRING>>"
)


def messages(*payloads: bytes) -> list[Message]:
    return [Message(number, 10**18 + number, "s", None, data) for number, data in enumerate(payloads, 1)]


def stored(folder: Path, encrypted: bool = False, **streams: list[Message]) -> jsbackup.Backup:
    kept = keep(folder, streams, encrypted=encrypted, opaque=True)
    keys: dict[str, Any] = dict(kept.place.keys)
    return jsbackup.open(kept.place.location, **keys)[FIRST]


def rows(frame: DataFrame) -> list[tuple[dict[str, Any] | None, str | None]]:
    """Payloads and corrupt records, by sequence."""
    found = sorted(frame.collect(), key=lambda row: row.sequence)
    return [(one.payload and one.payload.asDict(recursive=True), one._corrupt_record) for one in found]


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.by_turns
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_payloads_are_parsed_or_kept(spark: SparkSession, tmp_path: Path, encrypted: bool) -> None:
    odd = [b"", b"null", b'{"name": "\xff"}']
    payloads = [*(payload for payload, _ in FITS), *CORRUPT, *odd]
    backup = stored(tmp_path, encrypted, ALL=messages(*payloads))
    frame = backup["ALL"].spark(spark, json=DDL)
    assert frame.columns == [*backup["ALL"].spark(spark).columns, "payload", "_corrupt_record"]
    assert rows(frame) == [
        *((dict.fromkeys(NAMES) | wanted, None) for _, wanted in FITS),
        *((None, payload.decode()) for payload in CORRUPT),
        *[(None, None), (None, None), (None, '{"name": "\ufffd"}')],
    ]
    assert [bytes(row.data) for row in frame.sort("sequence").collect()] == payloads


def test_columns_filters_and_views(spark: SparkSession, tmp_path: Path) -> None:
    orders = messages(*(b'{"id": %d, "total": %d.5}' % (number, number) for number in range(200)))
    backup = stored(tmp_path, ORDERS=orders, OTHER=messages(b"{}"))
    frame = backup.spark(spark, "ORDERS", columns=["sequence"], json="id BIGINT, total DOUBLE")
    assert frame.columns == ["sequence", "payload", "_corrupt_record"]
    assert dict(frame.dtypes)["payload"] == "struct<id:bigint,total:double>"
    frame.createOrReplaceTempView("orders_of_test_json")
    (row,) = spark.sql("SELECT sum(payload.total), count(*) FROM orders_of_test_json WHERE payload.id >= 100").collect()
    assert tuple(row) == (sum(n + 0.5 for n in range(100, 200)), 100)
    spark.catalog.dropTempView("orders_of_test_json")
    few = frame.where("sequence > 190")
    assert few.count() == 10
    plan = few._jdf.queryExecution().executedPlan().toString()
    assert (
        "GreaterThan(sequence,190)" in plan
        and "PythonUDF" not in few.select("sequence")._jdf.queryExecution().optimizedPlan().toString()
    )
    assert backup.spark(spark, json="id BIGINT").count() == 201


def test_a_schema_is_inferred_from_a_sample_and_logged(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    objects = [
        {"id": 1, "a b`c": True, "big": 1 << 63, "none": None, "at": "2026-11-21T14:02:00Z", "Id": 0.5},
        {"id": 2, "items": [{"sku": "x", "n": 1}], "empty": {}},
    ]
    payloads = [
        *(json.dumps(one).encode() for one in objects),
        b'{"id": 3, "id": 4}',
        b'{"id": NaN}',
        b"",
        b"[1]",
        b"x",
    ]
    backup = stored(tmp_path, MIXED=messages(*payloads))
    with caplog.at_level(logging.INFO, "jsbackup"):
        frame = backup["MIXED"].spark(spark, json="infer")
    (line,) = (record.getMessage() for record in caplog.records if "sampled" in record.getMessage())
    told, _, ddl = line.partition(": ")[2].partition(": ")
    assert told == "3 of 6 sampled messages are JSON objects"
    found = rows(frame)
    assert [row and row["id"] for row, _ in found] == [1, 2, 4, None, None, None, None]
    assert [corrupt for _, corrupt in found] == [None, None, None, '{"id": NaN}', None, "[1]", "x"]
    first, second = found[0][0], found[1][0]
    assert first is not None and second is not None
    assert first["a b`c"] is True and first["Id"] == 0.5 and first["big"] == Decimal(1 << 63)
    assert first["at"] == "2026-11-21T14:02:00Z" and second["items"] == [{"sku": "x", "n": 1}]
    assert rows(backup["MIXED"].spark(spark, json=ddl)) == found  # what is logged can be given


def test_the_sample_is_spread_over_streams_and_messages(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    many = [*(b'{"a": 1}' for _ in range(4999)), b'{"last": 1}']
    backup = stored(tmp_path, MANY=messages(*many), OTHER=messages(b'{"other": "x"}'), TEXT=messages(b"text"))
    with caplog.at_level(logging.INFO, "jsbackup"):
        assert dict(backup.spark(spark, json="INFER").dtypes)["payload"] == "struct<a:bigint,last:bigint,other:string>"
    (told,) = (record.getMessage() for record in caplog.records if "sampled" in record.getMessage())
    found, looked = map(int, re.findall(r"\d+(?= of| sampled)", told))
    assert looked == found + 1 and 300 < found <= 1000
    assert dict(backup.spark(spark, ["OTHER"], json="infer").dtypes)["payload"] == "struct<other:string>"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("", "the schema of the payloads has no fields: ''"),
        ("BIGINT", "the schema of the payloads has no fields: 'BIGINT'"),
        ("id", "the schema of the payloads cannot be understood"),
        ("id NUMBER", "the schema of the payloads cannot be understood"),
        ("id FLOAT", "payloads of JSON have no FLOAT"),
        ("id BIGINT, id STRING", "the schema has the field 'id' twice"),
        ("infer", "no schema can be inferred: of 2 sampled messages none is a JSON object"),
    ],
)
def test_a_wrong_schema_is_one_clear_error(spark: SparkSession, tmp_path: Path, schema: str, message: str) -> None:
    backup = stored(tmp_path, TEXT=messages(b"text", b"[1]", b""), EMPTY=[])
    with pytest.raises(jsbackup.errors.UsageError, match=message) as raised:
        backup.spark(spark, json=schema)
    assert raised.value.hint or "twice" in message


def test_streams_without_messages_have_the_columns_too(spark: SparkSession, tmp_path: Path) -> None:
    frame = stored(tmp_path, EMPTY=[])["EMPTY"].spark(spark, json="id BIGINT")
    assert frame.columns[-2:] == ["payload", "_corrupt_record"] and frame.collect() == []
