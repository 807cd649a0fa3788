"""`query --payload-avro` and `--payload-protobuf`: every engine has what was encoded."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import jsbackup
from jsbackup.cli.main import run
from jsbackup.errors import UsageError
from jsbackup.pipeline.jobs.query import run_query
from jsbackup.pipeline.messages.backup_frames import open_backup
from jsbackup.pipeline.messages.chosen import ChosenBackup
from jsbackup.pipeline.payloads import avro_schema, protobuf_schema
from jsbackup.pipeline.payloads.parsing import PayloadParser
from jsbackup.pipeline.queries.duckdb_query import run_duckdb_query
from jsbackup.pipeline.session import embedded_java
from tests.cli.test_json import check
from tests.cli.typed import Typed, in_shell
from tests.harness.batches import Message
from tests.pipeline.payloads.encoded import (
    EMPTY_ROW,
    FULL,
    FULL_ROW,
    LEAST,
    LEAST_ROW,
    ORDER_ROW,
    avro,
    avro_file,
    avro_of,
    class_of,
    order,
    protobuf_file,
    protobuf_of,
    record,
)
from tests.pipeline.places import Kept, keep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Type = Callable[..., Typed]

PROTOBUF = protobuf_of()
ORDER = order(class_of(PROTOBUF)).SerializeToString(deterministic=True)
CUT = avro(FULL)[:-1]


def _messages(*payloads: bytes) -> list[Message]:
    return [Message(number, 10**18 + number, "s", None, data) for number, data in enumerate(payloads, 1)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    streams = {
        "AVRO": _messages(avro(FULL), avro(LEAST), b"", CUT, *[avro(FULL | {"id": n}) for n in range(100)]),
        "PROTOBUF": _messages(ORDER, b"", ORDER[:-1]),
        "EMPTY": [],
    }
    return keep(tmp_path_factory.mktemp("payloads"), streams, opaque=True)


def _same(kept: Kept, spark: SparkSession, sql: str, parser: PayloadParser) -> list[tuple[Any, ...]]:
    """The rows of a query, which are those of each engine, with the types of the values."""
    mine = run_duckdb_query(ChosenBackup(kept.place, kept.manifest), sql, most_rows=10_000, payloads=parser)
    theirs = run_query(open_backup(spark, kept.place, kept.manifest.id), sql, most_rows=10_000, payloads=parser)
    assert mine.rows == theirs.rows, sql
    assert list(map(_shown, mine.rows)) == list(map(_shown, theirs.rows)), sql
    assert mine.columns == theirs.columns and not mine.payloads
    return mine.rows


def _shown(value: Any) -> str:
    """A value with the types in it; of a map in the order of its keys, which Spark does not keep."""
    if isinstance(value, dict):
        return str(sorted((_shown(name), _shown(one)) for name, one in value.items()))
    return str(list(map(_shown, value))) if isinstance(value, list | tuple) else repr(value)


@pytest.mark.by_turns
def test_both_engines_give_what_was_encoded(kept: Kept, spark: SparkSession) -> None:
    sql = "SELECT payload, _corrupt_record FROM {} ORDER BY sequence"
    assert _same(kept, spark, sql.format("avro"), avro_of())[:4] == [
        *[(FULL_ROW, None), (LEAST_ROW, None), (None, None), (None, CUT)]
    ]
    assert _same(kept, spark, sql.format("protobuf"), PROTOBUF) == [
        *[(ORDER_ROW, None), (EMPTY_ROW, None), (None, ORDER[:-1])]
    ]
    assert _same(kept, spark, sql.format("empty"), PROTOBUF) == []


def test_times_do_not_depend_on_the_time_zone(kept: Kept, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """West of UTC, the first day of the year 1 begins in the year before, and east of it the last one of 9999 ends."""
    try:
        for zone in ("America/New_York", "Asia/Tokyo"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            found = _same(kept, spark, "SELECT payload FROM avro WHERE sequence <= 2 ORDER BY sequence", avro_of())
            assert found == [(FULL_ROW,), (LEAST_ROW,)]
    finally:
        monkeypatch.undo()
        time.tzset()


QUERIES: list[tuple[str, PayloadParser]] = [
    ("SELECT sum(payload.id) AS s, count(*) AS n, max(payload.day) AS d FROM avro WHERE payload.id < 100", avro_of()),
    ("SELECT payload.millis, payload.micros, payload.day, payload.price, payload.ratio, payload.raw FROM avro "
     "ORDER BY sequence LIMIT 4", avro_of()),
    ("SELECT stream, count(payload.id) AS n, count(_corrupt_record) AS c FROM messages GROUP BY stream ORDER BY 1",
     avro_of()),
    ("SELECT payload.ats, payload.map, payload.lists FROM avro WHERE payload.state = 'PAID' AND sequence < 9 "
     "ORDER BY sequence", avro_of()),
    ("SELECT payload.uint64, payload.at.time, payload.at.nanos, payload.wrapped_UInt64 FROM protobuf ORDER BY sequence",
     PROTOBUF),
    ("SELECT stream, sequence, payload.many_uint64, payload.by_number FROM messages WHERE stream = 'PROTOBUF' "
     "ORDER BY sequence", PROTOBUF),
]  # fmt: skip


@pytest.mark.by_turns
@pytest.mark.parametrize(("sql", "parser"), QUERIES)
def test_duckdb_answers_as_spark_does(kept: Kept, spark: SparkSession, sql: str, parser: PayloadParser) -> None:
    assert _same(kept, spark, sql, parser)


def test_the_data_frame(kept: Kept, spark: SparkSession, tmp_path: Path) -> None:
    backup = jsbackup.open(kept.place.location)[kept.manifest.id]
    frame = backup.spark(spark, "AVRO", avro=avro_file(tmp_path))  # a path
    assert frame.where("payload.id < 50").count() == 51 and frame.where("_corrupt_record IS NOT NULL").count() == 1
    frame = backup["PROTOBUF"].spark(spark, columns=["sequence"], protobuf=f"{protobuf_file(tmp_path)}:shop.Order")
    assert frame.columns == ["sequence", "payload", "_corrupt_record"]
    assert [row.payload and row.payload.state for row in frame.sort("sequence").collect()] == ["PAID", "OPEN", None]
    with pytest.raises(UsageError, match="json and avro exclude each other"):
        backup.spark(spark, json="infer", avro="x")
    with pytest.raises(UsageError, match="none cannot be read"):
        backup.spark(spark, avro=tmp_path / "none")


def test_the_command(kept: Kept, typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_java, "in_session", lambda: False)
    given = {"avro": str(avro_file(tmp_path)), "protobuf": f"{protobuf_file(tmp_path)}:shop.Order"}
    queries = {
        "avro": "SELECT payload.price, payload.day, payload.four FROM avro ORDER BY sequence LIMIT 2",
        "protobuf": "SELECT payload.uint64, payload.at, payload.bytes FROM protobuf ORDER BY sequence LIMIT 2",
    }
    rows = {
        "avro": [["-12345678.90", "2026-11-21", "abcd"], ["0.00", "0001-01-01", "abcd"]],
        "protobuf": [
            ["18446744073709551615", {"time": "2001-09-09T01:46:40.123456Z", "nanos": 123456789}, {"base64": "/wA="}],
            ["0", None, ""],
        ],
    }
    for name, sql in queries.items():
        for engine in ("duckdb", "spark"):
            done = typed("query", "latest", sql, *kept.line, f"--payload-{name}", given[name], "--json", "--engine",
                         engine)  # fmt: skip
            document = check("query", done)
            assert document["rows"] == rows[name] and document["engine"]["used"] == engine
            assert "payload_schemas" not in document
    alike = avro_file(tmp_path, record(("id", "int"), ("Id", "int")))
    done = typed("query", "latest", "SELECT payload FROM avro", *kept.line, "--payload-avro", alike, "--json")
    assert check("query", done)["engine"]["used"] == "spark"


def test_a_missing_package_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given = {"avro": str(avro_file(tmp_path)), "protobuf": f"{protobuf_file(tmp_path)}:shop.Order"}
    for name, module in (("avro", avro_schema), ("protobuf", protobuf_schema)):
        monkeypatch.setattr(module, "find_spec", lambda _name: None)
        for command in (["query", "latest", "SELECT 1"], ["export", "latest", "--format", "delta", "--output", "x"]):
            code = run([*command, "-r", str(tmp_path / "none"), f"--payload-{name}", given[name]])
            said = capfd.readouterr().err
            assert code == 13 and f"pip install 'jsbackup[{name}]'" in said and "Traceback" not in said


def test_what_is_wrong_is_refused_before_anything_starts(tmp_path: Path) -> None:
    schema = avro_file(tmp_path, record(("a", ["int", "string"])))
    for option, given, said in (
        ("--payload-avro", schema, "the field a of"),
        ("--payload-avro", tmp_path, "cannot be read: is a directory"),
        ("--payload-protobuf", schema, "is given as FILE:MESSAGE"),
    ):
        done = in_shell("query", "latest", "SELECT 1", "-r", tmp_path / "none", "--engine", "spark", option, given)
        assert done.code == 2 and said in done.err and "Traceback" not in done.err
    shown = in_shell("query", "--help").out
    assert "--payload-avro FILE" in shown and "--payload-protobuf FILE:MESSAGE" in shown
