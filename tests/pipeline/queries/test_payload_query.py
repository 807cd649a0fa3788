"""`query --payload-json`: every engine has the columns that Python's `json.loads` gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import jsbackup
from jsbackup.errors import UsageError
from jsbackup.pipeline.jobs.query import run_query
from jsbackup.pipeline.messages.backup_frames import open_backup
from jsbackup.pipeline.messages.chosen import ChosenBackup
from jsbackup.pipeline.payloads.json_types import as_ddl
from jsbackup.pipeline.queries.duckdb_query import NotUnderstood, run_duckdb_query
from jsbackup.pipeline.session import embedded_java
from tests.cli.test_json import check
from tests.cli.typed import Typed, in_shell
from tests.harness.batches import Message
from tests.pipeline.payloads.test_json_payload import CORRUPT, FITS, NAMES
from tests.pipeline.places import Kept, keep
from tests.pipeline.test_json import DDL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Type = Callable[..., Typed]

WIDE = "KV_a-b\"c'd"
# Without names that differ only in case, of which one test is.
ONE_CASE = [(payload, wanted) for payload, wanted in FITS if b"ID" not in payload]
ALL = [*(payload for payload, _ in ONE_CASE), *CORRUPT, b"", b"null", b'{"name": "\xff"}']
TRUTH: list[tuple[dict[str, Any] | None, str | None]] = [
    *((dict.fromkeys(NAMES) | wanted, None) for _, wanted in ONE_CASE),
    *((None, payload.decode()) for payload in CORRUPT),
    *[(None, None), (None, None), (None, '{"name": "\ufffd"}')],
]


def _messages(*payloads: bytes) -> list[Message]:
    return [Message(number, 10**18 + number, "s", None, data) for number, data in enumerate(payloads, 1)]


ORDERS = [b'{"id": %d, "total": %d.5, "at": {"tags": ["a", null]}}' % (n, n) for n in range(200)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    streams = {
        "ALL": _messages(*ALL),
        "ORDERS": _messages(*ORDERS),
        WIDE: _messages(b'{"x y": 1}', b"", b"bad"),
        "EMPTY": [],
        "TEXT": _messages(b"text", b"[1]"),
    }
    return keep(tmp_path_factory.mktemp("payloads"), streams, opaque=True)


def _here(kept: Kept, sql: str, schema: str | None) -> list[tuple[Any, ...]]:
    return run_duckdb_query(ChosenBackup(kept.place, kept.manifest), sql, most_rows=10_000, payloads=schema).rows


def test_both_engines_give_what_json_loads_gives(kept: Kept, spark: SparkSession) -> None:
    sql = "SELECT payload, _corrupt_record FROM ALL_ ORDER BY sequence".replace("ALL_", '"ALL"')
    assert _here(kept, sql, DDL) == TRUTH
    frames = open_backup(spark, kept.place, kept.manifest.id)
    assert run_query(frames, sql.replace('"', "`"), most_rows=10_000, payloads=DDL).rows == TRUTH


ID = "id BIGINT, total DOUBLE, price DECIMAL(10, 2), whole DECIMAL(38, 0), at STRUCT<tags: ARRAY<STRING>>"
BOTH = [
    ("SELECT * FROM orders ORDER BY sequence", ID),
    ("SELECT stream, sequence, payload, _corrupt_record FROM messages ORDER BY stream, sequence", ID),
    ("SELECT * FROM orders ORDER BY sequence", "infer"),
    ("SELECT sum(payload.total) AS t, count(*) AS n, max(payload.id) AS m FROM orders WHERE payload.id >= 100", ID),
    ("SELECT payload.whole, payload.price, payload.tiny FROM messages WHERE payload.whole IS NOT NULL "
     "OR payload.price IS NOT NULL ORDER BY stream, sequence", DDL),
    ("SELECT stream, count(payload.id) AS n, count(_corrupt_record) AS c FROM messages GROUP BY stream ORDER BY 1", ID),
    ("SELECT payload.at.tags AS tags, sum(payload.id) AS s FROM orders WHERE sequence > 190 GROUP BY 1", "infer"),
    ("SELECT count(*) AS n FROM orders WHERE sequence > 3", ID),
    ("SELECT max(subject) AS n FROM messages", "infer"),
    ("SELECT payload, _corrupt_record FROM empty", ID),
    ("SELECT o.payload.id FROM orders AS o JOIN orders AS p ON o.payload.id = p.payload.id + 197 ORDER BY 1", ID),
]  # fmt: skip


@pytest.mark.by_turns
def test_duckdb_answers_as_spark_does(kept: Kept, spark: SparkSession) -> None:
    frames = open_backup(spark, kept.place, kept.manifest.id)
    for sql, schema in BOTH:
        theirs = run_query(frames, sql, most_rows=10_000, payloads=schema)
        mine = run_duckdb_query(ChosenBackup(kept.place, kept.manifest), sql, most_rows=10_000, payloads=schema)
        assert mine.rows == theirs.rows, sql
        assert mine.payloads == theirs.payloads and mine.columns == theirs.columns
        assert [list(map(type, row)) for row in mine.rows] == [list(map(type, row)) for row in theirs.rows], sql


def test_rows_are_those_of_plain_python(kept: Kept) -> None:
    rows = _here(kept, "SELECT payload FROM orders WHERE payload.id > 100 ORDER BY sequence", "infer")
    assert [row for (row,) in rows] == [json.loads(payload) for payload in ORDERS[101:]]
    assert _here(kept, "SELECT sum(payload.total), sum(payload.id) FROM orders", ID) == [
        (sum(n + 0.5 for n in range(200)), sum(range(200)))
    ]
    most = Decimal(12345678901234567890123456789012345678)
    assert _here(kept, 'SELECT max(payload.whole) FROM "ALL"', DDL) == [(most,)]


def test_a_view_has_the_schema_that_the_python_face_infers(kept: Kept, spark: SparkSession) -> None:
    backup = jsbackup.open(kept.place.location)[kept.manifest.id]
    chosen = ChosenBackup(kept.place, kept.manifest)
    wide = '"' + WIDE.replace('"', '""') + '"'
    answer = run_duckdb_query(chosen, f"SELECT count(*) FROM messages, orders, {wide}", most_rows=1, payloads="infer")
    assert answer.payloads.keys() == {"messages", "ORDERS", WIDE}
    assert answer.payloads[WIDE] == "`x y` BIGINT"
    from jsbackup.pipeline.payloads.json_spark import of_spark

    readable = [stream.name for stream in chosen.streams() if stream.name != "VERBATIM"]
    for view, streams in (("ORDERS", ["ORDERS"]), ("messages", readable)):
        theirs = backup.spark(spark, streams, json="infer").schema["payload"].dataType
        kind = of_spark(theirs)
        assert answer.payloads[view] == as_ddl(kind)  # type: ignore[arg-type]


@pytest.mark.by_turns
def test_what_cannot_be_inferred_is_an_error_of_the_view(kept: Kept, spark: SparkSession) -> None:
    frames = open_backup(spark, kept.place, kept.manifest.id)
    chosen = ChosenBackup(kept.place, kept.manifest)
    nothing = "no schema can be inferred: of"
    for view, said in (("TEXT", f"TEXT: {nothing} 2"), ("empty", f"EMPTY: {nothing} 0")):
        for wanted in ("payload", "payload.id", "_corrupt_record"):
            sql = f"SELECT {wanted} FROM {view}"
            with pytest.raises(UsageError, match=f"^{said}"):
                run_duckdb_query(chosen, sql, most_rows=1, payloads="infer")
            with pytest.raises(UsageError, match=f"^{said}"):
                run_query(frames, sql, most_rows=1, payloads="infer")
        for answer in (
            run_duckdb_query(chosen, f"SELECT * FROM {view}", most_rows=9, payloads="infer"),
            run_query(frames, f"SELECT * FROM {view}", most_rows=9, payloads="infer"),
        ):
            assert "payload" not in answer.columns and said in answer.without[0]
    # `text` is the name of a column, and of a stream that is no JSON.
    sql = "SELECT text, payload.id FROM orders WHERE payload.id = 7"
    assert _here(kept, sql, "infer") == run_query(frames, sql, most_rows=9, payloads="infer").rows


def test_names_that_differ_in_case_are_for_spark(tmp_path: Path, spark: SparkSession) -> None:
    kept = keep(tmp_path, {"BOTH": _messages(b'{"id": 1, "Id": 2}')})
    chosen, sql = ChosenBackup(kept.place, kept.manifest), "SELECT payload FROM both"
    with pytest.raises(NotUnderstood, match="DuckDB takes the fields 'Id' and 'id' of payloads for one"):
        run_duckdb_query(chosen, sql, most_rows=1, payloads="infer")
    answer = run_query(open_backup(spark, kept.place, kept.manifest.id), sql, most_rows=1, payloads="infer")
    assert answer.rows == [({"Id": 2, "id": 1},)]


# --- the command ---


def test_the_command(kept: Kept, typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_java, "in_session", lambda: False)
    sql = "SELECT payload.id, payload.total FROM orders WHERE payload.id < 2 ORDER BY 1"
    inferred = "at STRUCT<tags: ARRAY<STRING>>, id BIGINT, total DOUBLE"
    for engine in ("duckdb", "spark"):
        done = typed("query", "latest", sql, *kept.line, "--payload-json", "infer", "--json", "--engine", engine)
        document = check("query", done)
        assert document["rows"] == [[0, 0.5], [1, 1.5]] and document["columns"] == ["id", "total"]
        assert document["payload_schemas"] == {"ORDERS": inferred}
        assert document["engine"]["used"] == engine
        assert f"payloads of ORDERS, by the inferred schema: {inferred}" in done.err
    done = typed("query", "latest", sql, *kept.line, "--payload-json", "id INT, total DOUBLE", "--json")
    document = check("query", done)
    assert (document["engine"]["used"], document["rows"]) == ("duckdb", [[0, 0.5], [1, 1.5]])
    assert "payload_schemas" not in document
    done = typed("query", "latest", "SELECT count(*) FROM orders", *kept.line, "--payload-json", "infer", "--json")
    assert check("query", done)["engine"]["used"] == "manifest"
    both = keep(tmp_path / "both", {"BOTH": _messages(b'{"id": 1, "Id": 2}')})
    done = typed("query", "latest", "SELECT payload FROM both", *both.line, "--payload-json", "infer", "--json")
    document = check("query", done)
    engine = document["engine"]
    assert (engine["used"], engine["why"]) == ("spark", "DuckDB takes the fields 'Id' and 'id' of payloads for one")
    sealed = keep(tmp_path / "sealed", {"ORDERS": _messages(*ORDERS)}, encrypted=True)
    done = typed("query", "latest", sql, *sealed.line, "--payload-json", "infer", "--json")
    assert check("query", done)["rows"] == [[0, 0.5], [1, 1.5]]
    forced = typed("query", "latest", "SELECT payload FROM both", *both.line, "--payload-json", "infer", "--engine",
                   "duckdb")  # fmt: skip
    assert forced.code == 2 and "DuckDB takes the fields" in forced.err


def test_a_wrong_schema_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for schema, said in (
        ("id NUMBER", "the schema of the payloads cannot be understood: there is no type NUMBER"),
        ("id DATE", "payloads of JSON have no DATE"),
        ("BIGINT", "the schema of the payloads has no fields: 'BIGINT'"),
    ):
        done = in_shell("query", "latest", "SELECT 1", "-r", tmp_path / "none", "--engine", "spark", "--payload-json",
                        schema)  # fmt: skip
        assert done.code == 2 and said in done.err
    assert "--payload-json SCHEMA" in in_shell("query", "--help").out
