"""`export --payload-json`: tables have what `json.loads` gives, whoever writes and whoever reads them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, QueryBuilder

import jsbackup
from jsbackup.errors import FormatError, UnsupportedError, UsageError
from jsbackup.exchange.exporting import PayloadCounts
from jsbackup.model import S3Settings
from jsbackup.pipeline.messages.columns import COLUMNS
from jsbackup.pipeline.payloads.json_types import as_ddl, parse_schema
from jsbackup.pipeline.session.repository_ref import RepositoryRef, place_of
from jsbackup.pipeline.tables import export as export_module
from jsbackup.pipeline.tables.partitions import PartitionBy
from jsbackup.pipeline.tables.table_state import TableSource
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.pipeline.tasks.runner import InProcess
from jsbackup.pipeline.tasks.tasks import OnSpark
from tests.cli.test_json import check
from tests.cli.typed import Typed, in_shell
from tests.harness.batches import Message, some_messages
from tests.pipeline.payloads.test_json_payload import CORRUPT, FITS, NAMES
from tests.pipeline.places import keep
from tests.pipeline.tables.growing import backed_up, export, iceberg_table, rows, rows_of
from tests.pipeline.test_json import DDL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

KINDS = [TableFormat.PARQUET, TableFormat.DELTA]
both = pytest.mark.parametrize("kind", KINDS)
all_kinds = pytest.mark.parametrize("kind", [*KINDS, TableFormat.ICEBERG])
DAY_NS = 86_400 * 10**9

Parsed = tuple[dict[str, Any] | None, str | None]


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "SEGMENT_BYTES", 4000)


def _messages(payloads: Sequence[bytes], first: int = 1) -> list[Message]:
    """One each hour."""
    return [
        Message(number, 10**18 + number * DAY_NS // 24, f"s.{number % 3}", None, data)
        for number, data in enumerate(payloads, first)
    ]


ALL = [*(payload for payload, _ in FITS), *CORRUPT, b"", b"null", b'{"name": "\xff"}']
TRUTH: list[Parsed] = [
    *((dict.fromkeys(NAMES) | wanted, None) for _, wanted in FITS),
    *((None, payload.decode()) for payload in CORRUPT),
    *[(None, None), (None, None), (None, '{"name": "\ufffd"}')],
]


def _orders(count: int, first: int = 1) -> list[Message]:
    return _messages([b'{"id": %d, "total": %d.5, "name": "n%d"}' % (n, n, n % 5) for n in range(count)], first)


def _table(folder: Path, kind: TableFormat) -> pa.Table:
    if kind is TableFormat.DELTA:
        return DeltaTable(folder).to_pyarrow_table().sort_by("sequence")
    if kind is TableFormat.ICEBERG:
        return iceberg_table(folder).scan().to_arrow().sort_by("sequence")
    files = [file for file in ds.dataset(folder, format="parquet").files if "/_" not in file]
    return pa.concat_tables(ds.dataset(file, format="parquet").to_table() for file in files).sort_by("sequence")


def _payloads(folder: Path, kind: TableFormat) -> list[Parsed]:
    table = _table(folder, kind)
    payload = table["payload"].to_pylist(maps_as_pydicts="strict")
    return list(zip(payload, table["_corrupt_record"].to_pylist(), strict=True))


def _content(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _place(folder: Path) -> RepositoryRef:
    return place_of(str(folder), S3Settings(), {})


@all_kinds
@pytest.mark.parametrize("by", [None, *PartitionBy])
def test_a_table_has_what_json_loads_gives(tmp_path: Path, kind: TableFormat, by: PartitionBy | None) -> None:
    messages = _messages(ALL)
    kept = keep(tmp_path / "r", {"ALL": messages})
    done = export(kept, kept.manifest, _place(tmp_path / "out"), kind, payloads=DDL, by=by)
    parsed, bad = len(ALL) - 2, len(CORRUPT) + 1
    assert done.streams[0].payloads == as_ddl(parse_schema(DDL))
    assert done.streams[0].payload_counts == PayloadCounts(parsed, bad)
    assert done.streams[0].notes == (f"{bad} of {parsed} payloads did not fit the schema; they are in _corrupt_record",)
    folder = tmp_path / "out" / "ALL"
    assert _payloads(folder, kind) == TRUTH
    assert rows_of(folder, kind) == rows(messages)
    names = _table(folder, kind).schema.names
    if kind is TableFormat.PARQUET:
        assert names == [*COLUMNS, "payload", "_corrupt_record"]
    else:
        assert set(names) >= {*COLUMNS, "payload", "_corrupt_record"}


@pytest.mark.by_turns
@both
def test_spark_writes_and_reads_the_same_as_its_own_columns(
    spark: SparkSession, tmp_path: Path, kind: TableFormat
) -> None:
    kept = keep(tmp_path / "r", {"ALL": _messages(ALL), "ORDERS": _orders(300)})
    for schema in (DDL, "infer"):
        found = []
        for name, runner in (("here", InProcess(2)), ("spark", OnSpark(spark))):
            folder = tmp_path / f"{name}-{schema[:3]}"
            export(kept, kept.manifest, _place(folder), kind, payloads=schema, runner=runner)
            found.append({key: value for key, value in _content(folder).items() if "_delta_log" not in key})
        assert found[0] == found[1] and len(found[0]) > 2
        backup = jsbackup.open(kept.place.location)[kept.manifest.id]
        for stream in ("ALL", "ORDERS") if schema == DDL else ("ORDERS",):
            wanted = backup[stream].spark(spark, json=schema)
            if kind is TableFormat.PARQUET:
                frame = spark.read.parquet(f"file:{tmp_path}/here-{schema[:3]}/{stream}/*.parquet")
                for name in ("payload", "_corrupt_record"):
                    assert frame.schema[name].dataType == wanted.schema[name].dataType
                theirs = frame.select(*wanted.columns).sort("sequence").collect()
                assert theirs == wanted.sort("sequence").collect()
            else:
                theirs = [
                    (row.payload and row.payload.asDict(recursive=True), row._corrupt_record)
                    for row in wanted.sort("sequence").collect()
                ]
                assert _payloads(tmp_path / f"here-{schema[:3]}" / stream, kind) == theirs


def _by_duckdb(folder: Path, kind: TableFormat, condition: str) -> int:
    with duckdb.connect() as connection:
        if kind is TableFormat.DELTA:
            connection.register("t", DeltaTable(folder).to_pyarrow_dataset())
        source = "t" if kind is TableFormat.DELTA else f"read_parquet('{folder}/*.parquet')"
        found = connection.execute(f"SELECT count(*) FROM {source} WHERE {condition}").fetchone()
    assert found is not None
    return int(found[0])


def _by_datafusion(folder: Path, condition: str) -> int:
    answer = QueryBuilder().register("t", DeltaTable(folder)).execute(f"SELECT count(*) AS n FROM t WHERE {condition}")
    return int(pa.table(answer.read_all())["n"][0].as_py())


@both
def test_readers_find_all_rows(tmp_path: Path, kind: TableFormat) -> None:
    """Of several files, some without any payload of an object, or without any corrupt record."""
    payloads = [message.data for message in _orders(300)]
    payloads[100:200] = [b"bad", b""] * 50
    messages = _messages(payloads)
    kept = keep(tmp_path / "r", {"ORDERS": messages})
    place, folder = _place(tmp_path / "out"), tmp_path / "out" / "ORDERS"
    export(kept, kept.manifest, place, kind, payloads="id BIGINT, name STRING")
    backed_up(kept, 1, {"ORDERS": [*messages, *_orders(200, 301)]})
    manifest = backed_up(kept, 2, {"ORDERS": [*messages, *_orders(200, 301)]})
    export(kept, manifest, place, kind, payloads="id BIGINT, name STRING", token="0000abcd")
    assert len([name for name in _content(folder) if name.endswith(".parquet")]) > 3
    for condition, count in (
        ("payload.id >= 150", 100 + 50),
        ("payload.id = 250", 1),
        ("payload.name = 'n1'", 40 + 40),
        ("payload IS NULL", 100),
        ("_corrupt_record = 'bad'", 50),
        ("_corrupt_record IS NOT NULL", 50),
        ("sequence > 490", 10),
        ("sequence <= 100 AND payload.id > 90", 9),
    ):
        assert _by_duckdb(folder, kind, condition) == count, condition
        if kind is TableFormat.DELTA:
            assert _by_datafusion(folder, condition.replace("payload.id", "payload['id']").replace(
                "payload.name", "payload['name']")) == count, condition  # fmt: skip


@all_kinds
def test_each_table_has_a_schema_of_its_own(tmp_path: Path, kind: TableFormat) -> None:
    """By the command: one stream is not JSON, one has no messages yet."""
    users = _messages([b'{"user": "a", "tags": ["x"]}'] * 7)
    streams = {"ORDERS": _orders(40), "USERS": users, "TEXT": _messages([b"text", b"[1]"]), "EMPTY": []}
    kept = keep(tmp_path / "r", streams)
    out = tmp_path / "out"
    line = ["export", "latest", *kept.line, "--format", kind, "--output", out, "--payload-json", "infer"]
    done = in_shell(*line, "--json")
    assert done.code == 3, done
    document = check("export", done)
    schemas = {one["name"]: one.get("payload_schema") for one in document["streams"]}
    orders = "id BIGINT, name STRING, total DOUBLE"
    users_schema = "tags ARRAY<STRING>, user STRING"
    assert schemas == {"ORDERS": orders, "USERS": users_schema, "EMPTY": None}
    (failed,) = document["failed"]
    assert failed["name"] == "TEXT" and "of 2 sampled messages none is a JSON object" in json.dumps(failed)
    notes = {one["name"]: one["notes"] for one in document["streams"]}
    assert notes["ORDERS"] == [f"payloads are columns, by the inferred schema {orders}"]
    assert notes["EMPTY"] == ["no table is made: it has no messages yet from which a schema could be inferred"]
    assert sorted(path.name for path in out.iterdir()) == ["ORDERS", "USERS"]
    assert _payloads(out / "USERS", kind) == [({"tags": ["x"], "user": "a"}, None)] * 7
    assert [row and row["total"] for row, _ in _payloads(out / "ORDERS", kind)] == [n + 0.5 for n in range(40)]
    # The next export makes the table that was missing, and keeps the schemas of the others.
    new = _messages([b'{"id": 1, "other": true}', b'{"id": "x"}'], 41)
    backed_up(kept, 1, {"ORDERS": [*_orders(40), *new], "USERS": users, "EMPTY": _messages([b'{"now": 1}']),
                       "TEXT": _messages([b"text", b"[1]", b'{"late": 1}'])})  # fmt: skip
    done = in_shell(*line, "--json", "--append")
    assert done.code == 0, done
    document = check("export", done)
    schemas = {one["name"]: one.get("payload_schema") for one in document["streams"]}
    assert schemas == {"ORDERS": orders, "USERS": users_schema, "EMPTY": "now BIGINT", "TEXT": "late BIGINT"}
    assert _payloads(out / "TEXT", kind) == [(None, "text"), (None, "[1]"), ({"late": 1}, None)]
    notes = {one["name"]: one["notes"] for one in document["streams"]}
    assert notes["ORDERS"] == ["1 of 2 payloads did not fit the schema; it is in _corrupt_record"]
    assert notes["EMPTY"] == [
        "a new table",
        "payloads are columns, by the inferred schema now BIGINT",
    ]
    assert _payloads(out / "ORDERS", kind)[40:] == [
        ({"id": 1, "name": None, "total": None}, None),
        (None, '{"id": "x"}'),
    ]
    text = in_shell("export", "latest", "TEXT", *keep(tmp_path / "t", streams).line, *line[-6:-3], tmp_path / "no",
                    "--payload-json", "infer")  # fmt: skip
    assert text.code == 2 and "stream TEXT: no schema can be inferred" in text.err and not (tmp_path / "no").exists()


@all_kinds
def test_a_table_keeps_its_schema(tmp_path: Path, kind: TableFormat) -> None:
    kept = keep(tmp_path / "r", {"ORDERS": _orders(40)})
    manifest = backed_up(kept, 1, {"ORDERS": _orders(60)})
    place, plain = _place(tmp_path / "out"), _place(tmp_path / "plain")
    export(kept, kept.manifest, place, kind, payloads="id BIGINT, total DOUBLE")
    export(kept, kept.manifest, plain, kind)
    before = _content(tmp_path / "out"), _content(tmp_path / "plain")
    for of, schema, said in (
        (place, None, "the table of stream ORDERS has the payloads id BIGINT, total DOUBLE"),
        (place, "id BIGINT", "the table of stream ORDERS has the payloads id BIGINT, total DOUBLE"),
        (place, "total DOUBLE, id BIGINT", "the table of stream ORDERS has the payloads id BIGINT, total DOUBLE"),
        (plain, "id BIGINT", "the table of stream ORDERS has no payloads as columns"),
        (plain, "infer", "the table of stream ORDERS has no payloads as columns"),
    ):
        with pytest.raises(UsageError, match=said) as raised:
            export(kept, manifest, of, kind, payloads=schema, token="0000abcd")
        assert raised.value.hint
    assert before == (_content(tmp_path / "out"), _content(tmp_path / "plain"))
    done = export(kept, manifest, place, kind, payloads=" infer ", token="0000abcd")
    assert done.streams[0].messages == 20 and done.streams[0].payloads == "id BIGINT, total DOUBLE"
    again = backed_up(kept, 2, {"ORDERS": _orders(80)})
    done = export(kept, again, place, kind, payloads="`id` long, total: double", token="0000abce")
    assert done.streams[0].messages == 20 and done.streams[0].notes == ()
    assert [row for row, _ in _payloads(tmp_path / "out" / "ORDERS", kind)] == [
        {"id": n, "total": n + 0.5} for n in range(80)
    ]


def test_a_damaged_schema_and_newer_tables_are_refused(tmp_path: Path) -> None:
    kept = keep(tmp_path / "r", {"ORDERS": _orders(40)})
    place = _place(tmp_path / "out")
    export(kept, kept.manifest, place, TableFormat.PARQUET, payloads="id BIGINT")
    (record,) = (tmp_path / "out" / "ORDERS" / "_jsbackup").glob("*.json")
    content = record.read_text()
    assert json.loads(content)["table"]["format"] == 3
    for damaged in ("id NUMBER", 7):
        document = json.loads(content)
        document["table"]["payloads"] = damaged
        record.write_text(json.dumps(document))
        with pytest.raises(FormatError, match="the log of the table of stream ORDERS is damaged"):
            export(kept, kept.manifest, place, TableFormat.PARQUET, payloads="infer")
    source = TableSource("i", (), "d", partition="day", payloads="id BIGINT").to_json()
    assert TableSource.from_json(source, "x") == TableSource("i", (), "d", partition="day", payloads="id BIGINT")
    with pytest.raises(UnsupportedError, match="newer jsbackup"):
        TableSource.from_json(source | {"format": 5}, "x")


@both
def test_payloads_are_parsed_after_they_were_changed(tmp_path: Path, kind: TableFormat) -> None:
    """Masks make text of numbers, so that is what is inferred; what a filter leaves out is not in the sample."""
    other = _messages([b'{"other": true}'] * 3, 41)
    kept = keep(tmp_path / "r", {"ORDERS": [*_orders(40), *(one._replace(subject="x") for one in other)]})
    line = ["export", "latest", *kept.line, "--format", kind, "--payload-json", "infer", "--subject", "s.*"]
    line += ["--mask", "s.*:$.total=redact"]
    done = in_shell(*line, "--output", tmp_path / "out", "--json")
    assert done.code == 0, done
    assert check("export", done)["streams"][0]["payload_schema"] == "id BIGINT, name STRING, total STRING"
    assert {row and row["total"] for row, _ in _payloads(tmp_path / "out" / "ORDERS", kind)} == {"***"}
    done = in_shell(*line, "--output", tmp_path / "few", "--json", "--last-per-subject", "1")
    assert done.code == 0 and check("export", done)["rows"] == 3, done
    done = in_shell(*line, "--output", tmp_path / "hidden", "--obfuscate")
    _refused(done, tmp_path / "hidden", "--payload-json and --obfuscate exclude each other")


def _refused(done: Typed, folder: Path, *said: str) -> None:
    assert done.code == 2 and not folder.exists(), done
    for words in said:
        assert words in done.err


def test_wrong_options_are_refused_before_anything_starts(tmp_path: Path) -> None:
    kept = keep(tmp_path / "r", {"ORDERS": _orders(4), "BOTH": _messages([b'{"id": 1, "Id": 2}'])})
    out = tmp_path / "out"
    line = ["export", "latest", "ORDERS", *kept.line, "--output", out, "--format"]
    for schema, said in (
        ("id NUMBER", "the schema of the payloads cannot be understood: there is no type NUMBER"),
        ("id FLOAT", "payloads of JSON have no FLOAT"),
        ("", "the schema of the payloads has no fields"),
        ("id INT, ID INT", "the fields 'id' and 'ID' of the payloads differ only in case"),
    ):
        # Spark cannot be started: it would be another error.
        done = in_shell(*line, "parquet", "--payload-json", schema, "--spark", "always", PATH="", JAVA_HOME="/no")
        _refused(done, out, said)
    for kind in ("jsonl", "config", "nats-cli"):
        done = in_shell(*line, kind, "--payload-json", "id INT")
        _refused(done, out, f"--payload-json is for --format parquet, delta and iceberg, and this is --format {kind}")
    done = in_shell("export", "latest", "BOTH", *kept.line, "--output", out, "--format", "delta", "--payload-json",
                    "infer")  # fmt: skip
    _refused(done, out, "stream BOTH: the fields 'Id' and 'id' of the payloads differ only in case")
    shown = in_shell("export", "--help")
    assert "--payload-json SCHEMA" in shown.out


def test_such_tables_are_imported(spark: SparkSession, tmp_path: Path, typed: Any) -> None:
    kept = keep(tmp_path / "r", {"ORDERS": some_messages(60, 80, seed=3)})
    done = in_shell("export", "latest", *kept.line, "--format", "parquet", "--output", tmp_path / "out",
                    "--payload-json", "id INT", "--payload-may-miss")  # fmt: skip
    assert done.code == 0, done
    done = typed("import", str(tmp_path / "out"), "--format", "parquet", "-r", str(tmp_path / "other"), "--json")
    assert done.code == 0, done
    assert done.document["streams"][0]["digest"] == kept.manifest.streams[0].digest.hex
