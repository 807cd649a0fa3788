"""The options `avro` and `protobuf` of the data source: the same rows as `query` and `backup.spark` have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import jsbackup
from jsbackup.pipeline.payloads.parsing import PayloadParser
from jsbackup.pipeline.session.session import attach
from tests.harness.backups import FIRST
from tests.harness.batches import Message
from tests.pipeline.messages.test_source import _fails
from tests.pipeline.payloads.encoded import (
    EMPTY_ROW,
    FULL,
    FULL_ROW,
    LEAST,
    LEAST_ROW,
    ORDER_ROW,
    Parsed,
    avro,
    avro_file,
    avro_of,
    class_of,
    in_utc,
    order,
    protobuf_file,
    protobuf_of,
    record,
)
from tests.pipeline.places import Kept, keep
from tests.pipeline.test_json import messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROTOBUF = protobuf_of()
ORDER = order(class_of(PROTOBUF)).SerializeToString(deterministic=True)
CUT = avro(FULL)[:-1]
NUMBERED = [avro(FULL | {"id": number}) for number in range(100)]
SHORT = ["id BIGINT", "price DECIMAL(10,2)"]

# What was encoded, with the standard encoders.
TRUTH: dict[str, Parsed] = {
    "avro": [(FULL_ROW, None), (LEAST_ROW, None), (None, None), (None, CUT)],
    "protobuf": [(ORDER_ROW, None), (EMPTY_ROW, None), (None, ORDER[:-1])],
}
PARSERS: dict[str, PayloadParser] = {"avro": avro_of(), "protobuf": PROTOBUF}
each = pytest.mark.parametrize("encoding", ["avro", "protobuf"])


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "encrypted"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    streams: dict[str, list[Message]] = {
        "AVRO": messages(avro(FULL), avro(LEAST), b"", CUT),
        "PROTOBUF": messages(ORDER, b"", ORDER[:-1]),
        "MANY": messages(*NUMBERED),
        "EMPTY": [],
    }
    return keep(tmp_path_factory.mktemp("binary"), streams, encrypted=request.param)


@pytest.fixture
def given(tmp_path: Path) -> dict[str, str]:
    """The option for each encoding, of files that are there for this test only."""
    return {"avro": str(avro_file(tmp_path)), "protobuf": f"{protobuf_file(tmp_path)}:shop.Order"}


def _keys(kept: Kept) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in kept.place.keys}


@pytest.fixture
def load(spark: SparkSession, kept: Kept) -> Callable[..., DataFrame]:
    def load_it(schema: str = "", **options: str) -> DataFrame:
        reader = attach(spark).read.format("jsbackup").options(**_keys(kept), **options)
        return (reader.schema(schema) if schema else reader).load(kept.place.location)

    return load_it


def _parsed(frame: DataFrame) -> Parsed:
    found = frame.select("sequence", "payload", "_corrupt_record").sort("sequence").toArrow()
    rows: list[dict[str, Any]] = in_utc(found.to_pylist(maps_as_pydicts="strict"))
    return [(row["payload"], row["_corrupt_record"]) for row in rows]


@pytest.mark.by_turns
@each
def test_the_rows_are_what_was_encoded(
    spark: SparkSession, load: Callable[..., DataFrame], kept: Kept, given: dict[str, str], encoding: str
) -> None:
    """With the types and the values of the function, and of DuckDB."""
    frame = load(stream=encoding.upper(), **{encoding: given[encoding]})
    assert _parsed(frame) == TRUTH[encoding]
    backup = jsbackup.open(kept.place.location, **dict(kept.place.keys))[FIRST]
    option: dict[str, Any] = {encoding: given[encoding]}
    wanted = backup[encoding.upper()].spark(spark, **option)
    assert frame.dtypes == wanted.dtypes
    assert frame.schema["payload"].dataType == wanted.schema["payload"].dataType


@each
def test_a_file_is_read_when_the_frame_is_made(
    load: Callable[..., DataFrame], given: dict[str, str], encoding: str
) -> None:
    """And nowhere else: it is gone, or another one, when executors parse."""
    frame = load(stream=encoding.upper(), **{encoding: given[encoding]})
    Path(given[encoding].partition(":")[0]).unlink()
    assert _parsed(frame) == TRUTH[encoding]
    option = {encoding: given[encoding]}
    _fails(lambda: load(stream=encoding.upper(), **option), "cannot be read: no such file")


@pytest.mark.by_turns
def test_columns_filters_and_views(
    spark: SparkSession, load: Callable[..., DataFrame], kept: Kept, given: dict[str, str]
) -> None:
    frame = load(stream="MANY", columns="sequence", avro=given["avro"])
    assert frame.columns == ["sequence", "payload", "_corrupt_record"]
    assert frame.where("sequence > 90 AND payload.id < 95 AND _corrupt_record IS NULL").count() == 5
    assert load(stream="EMPTY", avro=given["avro"]).collect() == []
    keys = "".join(f", `{name}` '{value}'" for name, value in _keys(kept).items())
    options = f"OPTIONS (path '{kept.place.location}', stream 'MANY', avro '{given['avro']}'{keys})"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW test_source_binary USING jsbackup {options}")
    try:
        (row,) = spark.sql("SELECT sum(payload.id), count(*) FROM test_source_binary").collect()
        assert tuple(row) == (sum(range(100)), 100)
    finally:
        spark.catalog.dropTempView("test_source_binary")


def test_a_schema_of_the_user_has_the_types_of_the_file(load: Callable[..., DataFrame], tmp_path: Path) -> None:
    short = str(avro_file(tmp_path, record(("id", "long"))))
    kind = "payload STRUCT<id: BIGINT>"
    for schema, columns in (
        (f"{kind}, sequence BIGINT", ["payload", "sequence"]),
        ("_corrupt_record BINARY", ["_corrupt_record"]),
        ("sequence BIGINT", ["sequence"]),
    ):
        frame = load(schema, stream="AVRO", avro=short)
        assert frame.columns == columns and frame.count() == 4
    for schema, sentence in (
        ("payload STRUCT<id: INT>", "the column payload has the type struct<id:bigint>, not struct<id:int>"),
        ("payload STRING", "the column payload has the type struct<id:bigint>, not string"),
        ("payload STRUCT<id: BIGINT NOT NULL>", "the column payload has fields that are NOT NULL"),
        (f"{kind}, _corrupt_record STRING", "the column _corrupt_record has the type binary, not string"),
    ):
        _fails(lambda schema=schema: load(schema, stream="AVRO", avro=short).count(), sentence)  # type: ignore[misc]


@pytest.mark.by_turns
@each
def test_a_streaming_query_has_them_too(
    spark: SparkSession, kept: Kept, given: dict[str, str], tmp_path: Path, encoding: str
) -> None:
    """The file is that of the moment when the query was made."""
    reader = attach(spark).readStream.format("jsbackup").options(**_keys(kept), **{encoding: given[encoding]})
    frame = reader.option("stream", encoding.upper()).load(kept.place.location)
    Path(given[encoding].partition(":")[0]).unlink()
    writing = frame.writeStream.format("parquet").trigger(availableNow=True)
    writing.option("checkpointLocation", str(tmp_path / "c")).start(str(tmp_path / "t")).awaitTermination(120)
    assert _parsed(spark.read.schema(frame.schema).parquet(str(tmp_path / "t"))) == TRUTH[encoding]


def test_what_is_wrong_is_one_clear_error(
    spark: SparkSession, load: Callable[..., DataFrame], kept: Kept, given: dict[str, str], tmp_path: Path
) -> None:
    union = str(avro_file(tmp_path, record(("a", ["int", "string"]))))
    descriptors = given["protobuf"].partition(":")[0]
    for options, sentence in (
        ({"json": "id INT", "avro": union}, "the options 'json' and 'avro' exclude each other. Leave one of them out"),
        ({"avro": union, "protobuf": given["protobuf"]}, "the options 'avro' and 'protobuf' exclude each other"),
        ({"avro": union}, "the field a of"),
        ({"avro": str(tmp_path)}, "cannot be read: is a directory"),
        ({"avro": f"{tmp_path}/none"}, "cannot be read: no such file"),
        ({"protobuf": descriptors}, "is given as FILE:MESSAGE"),
        ({"protobuf": f"{descriptors}:shop.Ordr"}, r"Did you mean shop\.Order"),
    ):
        _fails(lambda options=options: load(stream="AVRO", **options), sentence)  # type: ignore[misc]
    stream = attach(spark).readStream.format("jsbackup").options(json="infer", avro=union)
    _fails(lambda: stream.load(kept.place.location), "the options 'json' and 'avro' exclude each other")
