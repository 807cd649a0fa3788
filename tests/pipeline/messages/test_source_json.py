"""The option `json` of the data source: the same rows as `backup.spark(session, json=…)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import DataType

import jsbackup
from jsbackup.pipeline.session.session import attach
from tests.harness.backups import FIRST
from tests.pipeline.messages.test_source import _fails
from tests.pipeline.payloads.test_json_payload import CORRUPT, FITS
from tests.pipeline.places import Kept, keep
from tests.pipeline.test_json import DDL, messages, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAYLOADS = [*(payload for payload, _ in FITS), *CORRUPT, b"", b"null", b'{"name": "\xff"}']
ORDERS = messages(*(b'{"id": %d, "total": %d.5}' % (number, number) for number in range(200)))


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "encrypted"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    streams = {"ALL": messages(*PAYLOADS), "EMPTY": [], "ORDERS": ORDERS}
    return keep(tmp_path_factory.mktemp("json"), streams, encrypted=request.param)


@pytest.fixture
def load(spark: SparkSession, kept: Kept) -> Callable[..., DataFrame]:
    def load_it(**options: str) -> DataFrame:
        keys = {name.replace("_", "-"): value for name, value in kept.place.keys}
        return attach(spark).read.format("jsbackup").options(**keys, **options).load(kept.place.location)

    return load_it


@pytest.fixture
def backup(kept: Kept) -> Iterator[jsbackup.Backup]:
    yield jsbackup.open(kept.place.location, **dict(kept.place.keys))[FIRST]


@pytest.mark.by_turns
@pytest.mark.parametrize(
    "schema",
    [
        DDL,
        f"STRUCT<{DDL}>",
        "infer",
        "name STRING, -- text\n id BIGINT NOT NULL COMMENT 'a NOT NULL > \\'' /* last */, `NOT NULL` INT -- end",
    ],
    ids=["ddl", "struct", "infer", "odd"],
)
def test_the_rows_are_those_of_the_function(
    spark: SparkSession, load: Callable[..., DataFrame], backup: jsbackup.Backup, schema: str
) -> None:
    given, wanted = load(stream="ALL", json=schema), backup["ALL"].spark(spark, json=schema)
    assert given.dtypes == wanted.dtypes
    assert given.schema["payload"].dataType == wanted.schema["payload"].dataType
    assert rows(given) == rows(wanted)
    assert [bytes(row.data) for row in given.sort("sequence").collect()] == PAYLOADS


def test_a_schema_may_be_that_of_another_frame(spark: SparkSession, load: Callable[..., DataFrame]) -> None:
    schema = DataType.fromDDL("id BIGINT, `a.b` STRUCT<c: ARRAY<DECIMAL(4, 2)>, d: MAP<STRING, DOUBLE>>")
    assert load(stream="ALL", json=schema.json()).schema["payload"].dataType == schema
    inferred = load(stream="ORDERS", json="infer").schema["payload"].dataType
    assert inferred.simpleString() == "struct<id:bigint,total:double>"
    again = load(stream="ORDERS", json=inferred.json())
    assert again.agg({"payload.total": "sum"}).collect()[0][0] == sum(n + 0.5 for n in range(200))


def test_columns_filters_and_views(spark: SparkSession, load: Callable[..., DataFrame], kept: Kept) -> None:
    frame = load(stream="ORDERS", columns="sequence", json="id BIGINT, total DOUBLE")
    assert frame.columns == ["sequence", "payload", "_corrupt_record"]
    assert frame.where("sequence > 190 AND payload.id < 195 AND _corrupt_record IS NULL").count() == 5
    empty = load(stream="EMPTY", json="id BIGINT")
    assert empty.columns[-2:] == ["payload", "_corrupt_record"] and empty.collect() == []
    keys = "".join(f", `{name.replace('_', '-')}` '{value}'" for name, value in kept.place.keys)
    options = f"OPTIONS (path '{kept.place.location}', stream 'ORDERS', json 'id BIGINT, total DOUBLE'{keys})"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW test_source_json USING jsbackup {options}")
    try:
        (row,) = spark.sql("SELECT sum(payload.total), count(*) FROM test_source_json").collect()
        assert tuple(row) == (sum(n + 0.5 for n in range(200)), 200)
    finally:
        spark.catalog.dropTempView("test_source_json")
    reader = attach(spark).read.format("jsbackup").options(stream="ORDERS", json="id BIGINT")
    keys_of = {name.replace("_", "-"): value for name, value in kept.place.keys}
    some = reader.options(**keys_of).schema("payload STRUCT<total: DOUBLE>, sequence BIGINT").load(kept.place.location)
    assert some.columns == ["payload", "sequence"]
    assert sorted(row.payload.total for row in some.collect())[:2] == [0.5, 1.5]


@pytest.mark.by_turns
def test_a_streaming_query_has_them_too(
    spark: SparkSession, backup: jsbackup.Backup, kept: Kept, tmp_path: Path
) -> None:
    def follow(schema: str) -> None:
        keys = {name.replace("_", "-"): value for name, value in kept.place.keys}
        reader = attach(spark).readStream.format("jsbackup").options(stream="ALL", json=schema, **keys)
        writing = reader.load(kept.place.location).writeStream.format("parquet").trigger(availableNow=True)
        writing.option("checkpointLocation", str(tmp_path / "c")).start(str(tmp_path / "t")).awaitTermination(120)

    follow(DDL)
    wanted = backup["ALL"].spark(spark, json=DDL)
    assert rows(spark.read.schema(wanted.schema).parquet(str(tmp_path / "t"))) == rows(wanted)
    _fails(lambda: follow("infer"), "a streaming query infers no schema")


def test_a_wrong_schema_is_one_clear_error(spark: SparkSession, load: Callable[..., DataFrame]) -> None:
    for schema, sentence in (
        ("", "the schema of the payloads has no fields: ''"),
        ("BIGINT", "the schema of the payloads has no fields: 'BIGINT'"),
        ("{", "the schema of the payloads cannot be understood: it is not the JSON of a schema"),
        ('{"type": "struct", "fields": 1}', "cannot be understood: it is not the JSON of a schema"),
        ('{"type": "struct", "fields": []}', "a struct of the schema has no fields"),
        ("id BIGINT>, other STRUCT<x: INT", "cannot be understood: a > is without its <"),
        ("id FLOAT", "payloads of JSON have no FLOAT. DOUBLE holds every number"),
        ("at TIMESTAMP", "payloads of JSON have no TIMESTAMP. Take STRING, and convert"),
        ("id BIGINT, id STRING", "the schema has the field 'id' twice"),
        ("id NUMBER", "the schema of the payloads cannot be understood: there is no type NUMBER"),
        ("id BIGINT,", "the schema of the payloads cannot be understood: a field is missing at the end"),
    ):
        _fails(lambda schema=schema: load(stream="ALL", json=schema), sentence)  # type: ignore[misc]
    _fails(lambda: load(stream="EMPTY", json="infer"), "no schema can be inferred: of 0 sampled messages none is")
    reader = attach(spark).read.format("jsbackup")
    adds = "The options 'json', 'avro' and 'protobuf' add it"
    for given, sentence in (
        ("payload STRUCT<id: BIGINT>", rf"no column 'payload'. {adds}"),
        ("sequence BIGINT, _corrupt_record STRING", rf"no column '_corrupt_record'. {adds}"),
    ):
        _fails(lambda given=given: reader.schema(given).load("/nowhere").count(), sentence)  # type: ignore[misc]
