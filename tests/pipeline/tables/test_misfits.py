"""`export` with a schema of payloads says how many do not fit, and refuses a schema that is not theirs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from jsbackup.errors import PlanRefused
from jsbackup.exchange.exporting import PayloadCounts
from jsbackup.model import S3Settings
from jsbackup.pipeline.session.repository_ref import place_of
from jsbackup.pipeline.tables import export as export_module
from jsbackup.pipeline.tables import table_payloads
from jsbackup.pipeline.tables.partitions import PartitionBy
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.pipeline.tasks.runner import InProcess
from jsbackup.pipeline.tasks.tasks import OnSpark
from jsbackup.planning.transforming import TransformOptions
from jsbackup.transforms.mask import Masks
from jsbackup.transforms.reshape import Reshape
from tests.cli.test_json import check
from tests.cli.typed import in_shell
from tests.harness.batches import Message
from tests.pipeline.payloads.encoded import avro_file, protobuf_file
from tests.pipeline.places import keep
from tests.pipeline.tables.growing import backed_up, export, rows, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

both = pytest.mark.parametrize("kind", [TableFormat.PARQUET, TableFormat.DELTA])

SCHEMA = "id BIGINT, total DOUBLE"


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "SEGMENT_BYTES", 2000)


def _messages(payloads: Sequence[bytes], first: int = 1) -> list[Message]:
    return [
        Message(number, 10**18 + number * 3600 * 10**9, f"s.{number % 3}", None, data)
        for number, data in enumerate(payloads, first)
    ]


def _orders(count: int) -> list[bytes]:
    """Every seventh is text instead of a number, every fifth is empty, every eleventh is null."""
    found = []
    for number in range(count):
        payload = json.dumps({"id": f"n{number}" if number % 7 == 6 else number, "total": number + 0.5})
        found.append(b"" if number % 5 == 4 else b"null" if number % 11 == 10 else payload.encode())
    return found


def _by_hand(payloads: Sequence[bytes]) -> PayloadCounts:
    """The counts of `SCHEMA`, in plain Python."""
    found = [one for payload in payloads if payload and (one := json.loads(payload)) is not None]
    bad = [one for one in found if type(one["id"]) is not int]
    return PayloadCounts(len(found), len(bad))


def _columns(folder: Path, kind: TableFormat) -> list[dict[str, Any]]:
    if kind is TableFormat.DELTA:
        table = DeltaTable(folder).to_pyarrow_table()
    else:
        files = [file for file in ds.dataset(folder, format="parquet").files if "/_" not in file]
        table = pa.concat_tables(ds.dataset(file, format="parquet").to_table() for file in files)
    found: list[dict[str, Any]] = table.sort_by("sequence").select(["payload", "_corrupt_record"]).to_pylist()
    return found


def _everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@both
@pytest.mark.parametrize("by", [None, *PartitionBy])
def test_misfits_are_counted_over_all_files(tmp_path: Path, kind: TableFormat, by: PartitionBy | None) -> None:
    payloads = _orders(300)
    kept = keep(tmp_path / "r", {"ORDERS": _messages(payloads)})
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    done = export(kept, kept.manifest, place, kind, payloads=SCHEMA, by=by)
    wanted = _by_hand(payloads)
    assert done.files > 2 and 0 < wanted.misfits < wanted.parsed < 300
    assert done.streams[0].payload_counts == wanted
    corrupt = [row for row in _columns(tmp_path / "out" / "ORDERS", kind) if row["_corrupt_record"] is not None]
    assert len(corrupt) == wanted.misfits
    assert done.streams[0].notes == (
        f"{wanted.misfits} of {wanted.parsed} payloads did not fit the schema; they are in _corrupt_record",
    )


@both
def test_spark_counts_the_same(spark: SparkSession, tmp_path: Path, kind: TableFormat) -> None:
    payloads = _orders(300)
    kept = keep(tmp_path / "r", {"ORDERS": _messages(payloads), "TEXT": _messages([b"text"] * 100)})
    found = []
    for name, runner in (("here", InProcess(2)), ("spark", OnSpark(spark))):
        place = place_of(str(tmp_path / name), S3Settings(), {})
        done = export(kept, kept.manifest, place, kind, payloads=SCHEMA, runner=runner)
        found.append((done.streams, {stream: error.message for stream, error in done.refused.items()}))
        assert [path.name for path in (tmp_path / name).iterdir()] == ["ORDERS"]
    assert found[0] == found[1]
    assert found[0][1] == {"TEXT": "none of the 100 payloads of stream TEXT fits the schema"}
    assert found[0][0][0].payload_counts == _by_hand(payloads)


@both
def test_the_command_says_it(tmp_path: Path, kind: TableFormat) -> None:
    payloads = [*_orders(40), b'{"id": 7, "at": {"day": 1}}']
    kept = keep(tmp_path / "r", {"ORDERS": _messages(payloads)})
    wanted = _by_hand(payloads[:40])
    schema = "id BIGINT, total DOUBLE, amont DOUBLE, at STRUCT<day: INT, hour: INT>, lines ARRAY<STRUCT<price: INT>>"
    line: list[str | Path] = ["export", "latest", *kept.line, "--format", kind, "--payload-json", schema]
    done = in_shell(*line, "--output", tmp_path / "out")
    assert done.code == 0, done
    said = f"note: ORDERS: {wanted.misfits} of {wanted.parsed + 1} payloads did not fit the schema; they are in"
    assert f"{said} _corrupt_record\n" in done.out
    assert "note: ORDERS: no payload has any of the fields amont, at.hour, lines\n" in done.out
    done = in_shell(*line, "--output", tmp_path / "again", "--json")
    (stream,) = check("export", done)["streams"]
    assert stream["payloads"] == {
        "parsed": wanted.parsed + 1,
        "misfits": wanted.misfits,
        "unseen_fields": ["amont", "at.hour", "lines"],
    }


@pytest.mark.by_turns
@both
@pytest.mark.parametrize(
    ("payloads", "option", "said"),
    [
        ([b"text", b"", b"1.5"], ["--payload-json", SCHEMA], "none of the 2 payloads of stream ORDERS fits the schema"),
        (
            [b'{"amount": 1}', b"null"],
            ["--payload-json", "amont DOUBLE"],
            "the one payload of stream ORDERS has no field of the schema",
        ),
        (
            [b'{"amount": 1}', b"{}", b"[]"],
            ["--payload-json", "amont DOUBLE"],
            "only 2 of the 3 payloads of stream ORDERS fit the schema, without any field of it",
        ),
        (
            [b"\xff", b"", b"text"],
            ["--payload-avro", "AVRO"],
            "none of the 2 payloads of stream ORDERS fits the schema",
        ),
        # Fields 2000 and 2001, which this message does not have.
        (
            [b"\x80\x7d\x01", b"", b"\x88\x7d\x02"],
            ["--payload-protobuf", "PROTOBUF"],
            "none of the 2 payloads of stream ORDERS has a field of the schema",
        ),
        (
            [b"\xff\0", b""],
            ["--payload-protobuf", "PROTOBUF"],
            "the one payload of stream ORDERS does not fit the schema",
        ),
    ],
)
def test_a_schema_that_is_not_theirs_is_refused(
    tmp_path: Path, kind: TableFormat, payloads: list[bytes], option: list[str], said: str
) -> None:
    files = {"AVRO": str(avro_file(tmp_path)), "PROTOBUF": f"{protobuf_file(tmp_path)}:shop.Order"}
    option = [files.get(word, word) for word in option]
    messages = _messages(payloads)
    kept = keep(tmp_path / "r", {"ORDERS": messages})
    line: list[str | Path] = ["export", "latest", *kept.line, "--format", kind, *option]
    for more in ([], ["--append"]):
        done = in_shell(*line, "--output", tmp_path / "no", *more)
        assert done.code == 15 and f"error: {said}" in done.err, done
        assert "--payload-may-miss" in done.err
        assert not (tmp_path / "no").exists()
    done = in_shell(*line, "--output", tmp_path / "out", "--payload-may-miss", "--json")
    assert done.code == 0, done
    parsed = [one for one in payloads if one not in (b"", b"null")]
    assert check("export", done)["streams"][0]["payloads"]["parsed"] == len(parsed)
    assert rows_of(tmp_path / "out" / "ORDERS", kind) == rows(messages)


@both
def test_streams_without_payloads_are_not_refused(tmp_path: Path, kind: TableFormat) -> None:
    kept = keep(tmp_path / "r", {"DELETES": _messages([b""] * 5), "EMPTY": [], "NULLS": _messages([b"null"] * 2)})
    line: list[str | Path] = ["export", "latest", *kept.line, "--format", kind, "--output", tmp_path / "out", "--json"]
    done = in_shell(*line, "--payload-json", SCHEMA)
    assert done.code == 0, done
    document = check("export", done)
    assert [one["payloads"]["parsed"] for one in document["streams"]] == [0, 0, 0]
    assert [one["notes"] for one in document["streams"]] == [[], [], []]
    # A message of Protobuf all of whose fields have their defaults is empty.
    done = in_shell(*line[:-2], tmp_path / "proto", "--json", "DELETES",
                    "--payload-protobuf", f"{protobuf_file(tmp_path)}:shop.Order")  # fmt: skip
    assert done.code == 0, done
    assert all(row["payload"] is not None for row in _columns(tmp_path / "proto" / "DELETES", kind))


@pytest.mark.by_turns
@both
def test_an_append_adds_no_payloads_of_another_schema(tmp_path: Path, kind: TableFormat) -> None:
    """A producer has changed its schema: the table stays as it is, each run says so, and the others are extended."""
    first, other = [b'{"id": %d}' % n for n in range(40)], [b'{"id": "%d"}' % n for n in range(30)]
    kept = keep(tmp_path / "r", {"CHANGED": _messages(first), "ORDERS": _messages(first)})
    line: list[str | Path] = ["export", "latest", *kept.line, "--format", kind, "--output", tmp_path / "out"]
    line += ["--append", "--payload-json", "id BIGINT"]
    assert in_shell(*line).code == 0
    before = _everything(tmp_path / "out" / "CHANGED"), rows_of(tmp_path / "out" / "CHANGED", kind)
    backed_up(kept, 1, {"CHANGED": _messages(first + other), "ORDERS": _messages(first * 2)})
    for _ in range(2):
        done = in_shell(*line, "--json")
        assert done.code == 3, done
        (failed,) = check("export", done)["failed"]
        assert failed["name"] == "CHANGED" and "none of the 30 payloads of" in json.dumps(failed)
        assert rows_of(tmp_path / "out" / "CHANGED", kind) == before[1]
        assert [one for one in _everything(tmp_path / "out" / "CHANGED") if one.is_file()] == [
            one for one in before[0] if one.is_file()
        ]
        assert rows_of(tmp_path / "out" / "ORDERS", kind) == rows(_messages(first * 2))
    # One that fits again, and everything is added; or the user agrees.
    backed_up(kept, 2, {"CHANGED": _messages([*first, *other, b'{"id": 1}']), "ORDERS": _messages(first * 2)})
    done = in_shell(*line)
    assert done.code == 0 and "note: CHANGED: 30 of 31 payloads did not fit the schema" in done.out, done
    assert rows_of(tmp_path / "out" / "CHANGED", kind) == rows(_messages([*first, *other, b'{"id": 1}']))
    backed_up(kept, 3, {"CHANGED": _messages([*first, *other, b'{"id": 1}', b"[]"]), "ORDERS": _messages(first * 2)})
    assert in_shell(*line).code == 3
    done = in_shell(*line, "--payload-may-miss")
    assert done.code == 0 and "note: CHANGED: 1 of 1 payload did not fit the schema; it is in" in done.out, done


@both
def test_a_sample_spares_a_long_job(tmp_path: Path, kind: TableFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stream with much to write, a sample decides before anything is written."""
    monkeypatch.setattr(table_payloads, "LOOK_FIRST_BYTES", 1000)

    class Nothing(InProcess):
        def run(self, *_arguments: Any, **_options: Any) -> Any:
            raise AssertionError("a task runs")

    text, orders = _messages([b"text"] * 300), _messages(_orders(300))
    kept = keep(tmp_path / "r", {"TEXT": text})
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    with pytest.raises(PlanRefused, match=r"none of the \d+ sampled payloads of stream TEXT fits the schema") as raised:
        export(kept, kept.manifest, place, kind, payloads=SCHEMA, runner=Nothing())
    assert "--payload-may-miss" in str(raised.value.hint) and not (tmp_path / "out").exists()
    beside = backed_up(kept, 1, {"TEXT": text, "ORDERS": orders, "SMALL": _messages([b"text"])})
    done = export(kept, beside, place, kind, payloads=SCHEMA)
    assert {name: "sampled" in error.message for name, error in done.refused.items()} == {"TEXT": True, "SMALL": False}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["ORDERS"]
    assert done.streams[0].payload_counts == _by_hand(_orders(300))
    # What is looked at are the messages as they are written.
    masked = TransformOptions(reshape=Reshape(masks=Masks.parse(["s.>:$.id=redact"])))
    orders_only = replace(beside, streams=tuple(one for one in beside.streams if one.name == "ORDERS"))
    place = place_of(str(tmp_path / "masked"), S3Settings(), {})
    with pytest.raises(PlanRefused, match="sampled payloads of stream ORDERS fits"):
        export(kept, orders_only, place, kind, payloads=SCHEMA, options=masked, runner=Nothing())
    place = place_of(str(tmp_path / "may"), S3Settings(), {})
    export(kept, kept.manifest, place, kind, payloads=SCHEMA, may_miss=True)
    assert rows_of(tmp_path / "may" / "TEXT", kind) == rows(text)


def test_every_table_is_refused_as_one(tmp_path: Path) -> None:
    kept = keep(tmp_path / "r", {"A": _messages([b"a"]), "B": _messages([b"b"])})
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    with pytest.raises(PlanRefused) as raised:
        export(kept, kept.manifest, place, TableFormat.PARQUET, payloads=SCHEMA)
    assert raised.value.message == ("nothing was exported: streams A, B: the one payload does not fit the schema")
    assert not (tmp_path / "out").exists()


def test_the_option_needs_a_schema(tmp_path: Path) -> None:
    kept = keep(tmp_path / "r", {"A": _messages([b"a"])})
    done = in_shell("export", "latest", *kept.line, "--format", "parquet", "--output", tmp_path / "out",
                    "--payload-may-miss")  # fmt: skip
    assert done.code == 2 and "--payload-may-miss is for a schema of payloads" in done.err
