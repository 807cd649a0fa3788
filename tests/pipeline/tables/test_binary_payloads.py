"""`export --payload-avro` and `--payload-protobuf`: tables have what was encoded, whoever writes or reads them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

import jsbackup
from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.exchange.exporting import PayloadCounts
from jsbackup.model import S3Settings
from jsbackup.pipeline.messages.columns import COLUMNS
from jsbackup.pipeline.payloads.parsing import PayloadParser
from jsbackup.pipeline.session.repository_ref import RepositoryRef, place_of
from jsbackup.pipeline.tables import export as export_module
from jsbackup.pipeline.tables.partitions import PartitionBy
from jsbackup.pipeline.tables.table_state import TableSource
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.pipeline.tasks.runner import InProcess
from jsbackup.pipeline.tasks.tasks import OnSpark
from tests.cli.test_json import check
from tests.cli.typed import Typed, in_shell
from tests.harness.batches import Message
from tests.pipeline.payloads.encoded import (
    ALL,
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
from tests.pipeline.places import keep
from tests.pipeline.tables.growing import backed_up, export, iceberg_table, rows, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

both = pytest.mark.parametrize("kind", [TableFormat.PARQUET, TableFormat.DELTA])
all_kinds = pytest.mark.parametrize("kind", [TableFormat.PARQUET, TableFormat.DELTA, TableFormat.ICEBERG])
DAY_NS = 86_400 * 10**9


@dataclass(frozen=True)
class Encoding:
    """Payloads of an encoding, what they become, and the option and the argument of Python that say so."""

    name: str
    parser: PayloadParser
    payloads: list[bytes]
    truth: Parsed
    file: Callable[[Path], str]

    @property
    def option(self) -> str:
        return f"--payload-{self.name}"


def _avro() -> Encoding:
    full, least = avro(FULL), avro(LEAST)
    header = avro_of().header
    payloads = [full, least, b"", full[:-1], b"\xff\0text", header + least]
    truth: Parsed = [
        *[(FULL_ROW, None), (LEAST_ROW, None), (None, None), (None, full[:-1]), (None, b"\xff\0text")],
        (LEAST_ROW, None),
    ]
    return Encoding("avro", avro_of(), payloads, truth, lambda folder: str(avro_file(folder)))


def _protobuf() -> Encoding:
    parser = protobuf_of()
    full = order(class_of(parser)).SerializeToString(deterministic=True)
    truth: Parsed = [(ORDER_ROW, None), (EMPTY_ROW, None), (None, full[:-1]), (None, b"\xff\0text")]
    payloads = [full, b"", full[:-1], b"\xff\0text"]
    return Encoding("protobuf", parser, payloads, truth, lambda folder: f"{protobuf_file(folder)}:shop.Order")


ENCODINGS = [_avro(), _protobuf()]
each = pytest.mark.parametrize("encoding", ENCODINGS, ids=[one.name for one in ENCODINGS])


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "SEGMENT_BYTES", 4000)


def _messages(payloads: list[bytes], first: int = 1) -> list[Message]:
    """One each hour."""
    return [
        Message(number, 10**18 + number * DAY_NS // 24, f"s.{number % 3}", None, data)
        for number, data in enumerate(payloads, first)
    ]


def _table(folder: Path, kind: TableFormat) -> pa.Table:
    if kind is TableFormat.DELTA:
        return DeltaTable(folder).to_pyarrow_table().sort_by("sequence")
    if kind is TableFormat.ICEBERG:
        return iceberg_table(folder).scan().to_arrow().sort_by("sequence")
    files = [file for file in ds.dataset(folder, format="parquet").files if "/_" not in file]
    return pa.concat_tables(ds.dataset(file, format="parquet").to_table() for file in files).sort_by("sequence")


def _payloads(folder: Path, kind: TableFormat) -> Parsed:
    table = _table(folder, kind)
    payload = in_utc(table["payload"].to_pylist(maps_as_pydicts="strict"))
    return list(zip(payload, table["_corrupt_record"].to_pylist(), strict=True))


def _content(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and "_delta_log" not in path.parts)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _place(folder: Path) -> RepositoryRef:
    return place_of(str(folder), S3Settings(), {})


@each
@all_kinds
@pytest.mark.parametrize("by", [None, *PartitionBy])
def test_a_table_has_what_was_encoded(
    tmp_path: Path, encoding: Encoding, kind: TableFormat, by: PartitionBy | None
) -> None:
    messages = _messages(encoding.payloads * 5)
    kept = keep(tmp_path / "r", {"ALL": messages})
    done = export(kept, kept.manifest, _place(tmp_path / "out"), kind, payloads=encoding.parser, by=by)
    bad = sum(corrupt is not None for _, corrupt in encoding.truth)
    assert done.streams[0].payloads == encoding.parser.text
    assert done.streams[0].payload_counts == PayloadCounts(5 * (len(encoding.truth) - 1), 5 * bad)
    assert done.streams[0].notes == (
        f"{5 * bad} of {5 * (len(encoding.truth) - 1)} payloads did not fit the schema; they are in _corrupt_record",
    )
    folder = tmp_path / "out" / "ALL"
    assert _payloads(folder, kind) == encoding.truth * 5
    assert rows_of(folder, kind) == rows(messages)
    assert set(_table(folder, kind).schema.names) >= {*COLUMNS, "payload", "_corrupt_record"}


@pytest.mark.by_turns
@each
@both
def test_spark_writes_and_reads_the_same_as_its_own_columns(
    spark: SparkSession, tmp_path: Path, encoding: Encoding, kind: TableFormat
) -> None:
    kept = keep(tmp_path / "r", {"ALL": _messages(encoding.payloads * 5)})
    found = []
    for name, runner in (("here", InProcess(2)), ("spark", OnSpark(spark))):
        export(kept, kept.manifest, _place(tmp_path / name), kind, payloads=encoding.parser, runner=runner)
        found.append(_content(tmp_path / name))
    assert found[0] == found[1] and found[0]
    backup = jsbackup.open(kept.place.location)[kept.manifest.id]
    given: dict[str, Any] = {encoding.name: encoding.file(tmp_path)}
    mine = backup["ALL"].spark(spark, **given)
    assert _spark_rows(mine) == encoding.truth * 5
    assert backup.spark(spark, "ALL", columns=["sequence"], **given).columns == [
        "sequence",
        "payload",
        "_corrupt_record",
    ]
    if kind is TableFormat.PARQUET:
        theirs = spark.read.parquet(f"file:{tmp_path}/here/ALL/*.parquet")
        for name in ("payload", "_corrupt_record"):
            assert theirs.schema[name].dataType == mine.schema[name].dataType
        assert _spark_rows(theirs) == encoding.truth * 5


def _spark_rows(frame: DataFrame) -> Parsed:
    found = frame.select("payload", "_corrupt_record", "sequence").sort("sequence").toArrow()
    rows = in_utc(found.to_pylist(maps_as_pydicts="strict"))
    return [(row["payload"], row["_corrupt_record"]) for row in rows]


@each
@all_kinds
def test_a_table_keeps_its_columns(tmp_path: Path, encoding: Encoding, kind: TableFormat) -> None:
    payloads = encoding.payloads
    kept = keep(tmp_path / "r", {"ALL": _messages(payloads)})
    place, plain, of_json = (_place(tmp_path / name) for name in ("out", "plain", "json"))
    export(kept, kept.manifest, place, kind, payloads=encoding.parser)
    export(kept, kept.manifest, plain, kind)
    export(kept, kept.manifest, of_json, kind, payloads="id INT", may_miss=True)
    manifest = backed_up(kept, 1, {"ALL": _messages(payloads * 3)})
    before = {name: _content(tmp_path / name) for name in ("out", "plain", "json")}
    less: PayloadParser = avro_of(record(("a", "int"))) if encoding.name == "avro" else protobuf_of(name="shop.Item")
    has = f"the table of stream ALL has the payloads {encoding.name}: "
    for of, given, said, hint in (
        (place, None, has, f"--payload-{encoding.name} and a schema that has these columns"),
        (place, "infer", has, f"--payload-{encoding.name}"),
        (place, "id INT", has, f"--payload-{encoding.name}"),
        (place, less, has, f"--payload-{encoding.name}"),
        (plain, encoding.parser, "the table of stream ALL has no payloads as columns", "without --payload-json"),
        (of_json, encoding.parser, "the table of stream ALL has the payloads id INT", "--payload-json infer"),
    ):
        with pytest.raises(UsageError) as raised:
            export(kept, manifest, of, kind, payloads=given, token="0000abcd")
        assert said in raised.value.message and hint in str(raised.value.hint)
    assert before == {name: _content(tmp_path / name) for name in before}
    done = export(kept, manifest, place, kind, payloads=encoding.parser, token="0000abcd")
    assert done.streams[0].messages == 2 * len(payloads) and done.streams[0].payloads == encoding.parser.text
    assert _payloads(tmp_path / "out" / "ALL", kind) == encoding.truth * 3


def test_versions_without_these_columns_refuse_such_tables() -> None:
    source = TableSource("i", (), "d", partition="day", payloads="avro: id BIGINT")
    assert source.to_json()["format"] == 4 and TableSource.from_json(source.to_json(), "x") == source
    with pytest.raises(UnsupportedError, match="newer jsbackup"):
        TableSource.from_json(source.to_json() | {"format": 5}, "x")


# --- the command ---


@each
@both
def test_the_command(tmp_path: Path, encoding: Encoding, kind: TableFormat) -> None:
    kept = keep(tmp_path / "r", {"ALL": _messages(encoding.payloads)})
    out = tmp_path / "out"
    line = ["export", "latest", *kept.line, "--format", kind, "--output", out, encoding.option, encoding.file(tmp_path)]
    done = in_shell(*line, "--json")
    assert done.code == 0, done
    assert check("export", done)["streams"][0]["payload_schema"] == encoding.parser.text
    assert _payloads(out / "ALL", kind) == encoding.truth
    backed_up(kept, 1, {"ALL": _messages(encoding.payloads * 2)})
    done = in_shell(*line, "--append", "--json")
    assert done.code == 0 and check("export", done)["rows"] == len(encoding.payloads), done
    assert _payloads(out / "ALL", kind) == encoding.truth * 2


def _refused(done: Typed, folder: Path, said: str, code: int = 2) -> None:
    assert done.code == code and not folder.exists(), done
    assert said in done.err and "Traceback" not in done.err


def test_wrong_options_are_refused_before_anything_starts(tmp_path: Path) -> None:
    kept = keep(tmp_path / "r", {"ALL": _messages([b"x"])})
    out, schema, message = tmp_path / "out", str(avro_file(tmp_path)), f"{protobuf_file(tmp_path)}:shop.Order"
    line = ["export", "latest", *kept.line, "--output", out, "--format"]
    alike = tmp_path / "alike.avsc"
    alike.write_text(json.dumps(record(("id", "int"), ("Id", "int"))))
    for given, said in (
        (["--payload-avro", tmp_path / "none.avsc"], "none.avsc cannot be read: no such file or directory"),
        (["--payload-avro", alike], "the fields 'id' and 'Id' of the payloads differ only in case"),
        (["--payload-avro", message.partition(":")[0]], "order.desc is not JSON: "),
        (["--payload-protobuf", schema], "a message of Protobuf is given as FILE:MESSAGE"),
        (["--payload-protobuf", f"{schema}:shop.All"], "order.avsc is not a descriptor set of Protobuf"),
        (["--payload-protobuf", message.replace("Order", "Oder")], "order.desc has no message 'shop.Oder'"),
        (["--payload-avro", schema, "--payload-protobuf", message], "--payload-avro and --payload-protobuf exclude"),
        (
            ["--payload-json", "id INT", "--payload-avro", schema],
            "--payload-json and --payload-avro exclude each other",
        ),
        (["--payload-avro", schema, "--obfuscate"], "--payload-avro and --obfuscate exclude each other"),
    ):
        # Spark cannot be started: it would be another error.
        done = in_shell(*line, "parquet", *given, "--spark", "always", PATH="", JAVA_HOME="/no")
        _refused(done, out, said)
    for kind in ("jsonl", "config", "nats-cli"):
        for option, value in (("--payload-avro", schema), ("--payload-protobuf", message)):
            done = in_shell(*line, kind, option, value)
            _refused(done, out, f"{option} is for --format parquet, delta and iceberg, and this is --format {kind}")
    shown = in_shell("export", "--help").out
    assert "--payload-avro FILE" in shown and "--payload-protobuf FILE:MESSAGE" in shown


def test_a_file_is_read_once(tmp_path: Path) -> None:
    """So that it may be a pipe."""
    import os
    import threading

    kept = keep(tmp_path / "r", {"ALL": _messages([avro(FULL)])})
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(json.dumps(ALL)))
    writer.start()
    done = in_shell("export", "latest", *kept.line, "--output", tmp_path / "out", "--format", "parquet",
                    "--payload-avro", pipe, seconds=60)  # fmt: skip
    writer.join()
    assert done.code == 0, done
    assert _payloads(tmp_path / "out" / "ALL", TableFormat.PARQUET) == [(FULL_ROW, None)]
