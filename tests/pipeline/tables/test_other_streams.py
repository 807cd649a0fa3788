"""Rows that name another stream than the one they would be stored as are refused, whatever reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jsbackup.pipeline.tables.table_files import Table, find_tables
from jsbackup.pipeline.tables.writing import TableFormat
from tests.cli.typed import Typed
from tests.formats.test_json_lines import GOOD
from tests.harness.batches import some_messages
from tests.pipeline.places import keep

Type = Callable[..., Typed]
Names = Sequence[str | None]

KINDS = ("parquet", "jsonl")
TOO_MANY = "the table has messages of several streams, such as A and B"


def _table(root: Path, kind: str, names: Names, column: str = "stream") -> Path:
    """A folder for the stream A, beside another one. A row for each of the names."""
    row = {"timestamp_ns": 5, "subject": "a", "data": b"x"}
    for folder, of, at in (("A", names, column), ("OTHER", ["OTHER"], "stream")):
        (root / folder).mkdir(parents=True)
        if kind == "jsonl":
            lines = [{k: v for k, v in GOOD.items() if k != "stream"} | {at: one} for one in of]
            text = "".join(json.dumps(line | {"sequence": n}) + "\n" for n, line in enumerate(lines, 1))
            (root / folder / "t.jsonl").write_text(text)
            continue
        rows = [row | {"sequence": n} for n in range(1, len(of) + 1)]
        table = pa.Table.from_pylist(rows).append_column(at, pa.array(of, pa.string()))
        pq.write_table(table, root / folder / "t.parquet")
    return root


@pytest.fixture(params=["alone", "folder"])
def way(request: pytest.FixtureRequest) -> str:
    """What is given: a table and its stream, or a folder of tables."""
    return str(request.param)


def _import(typed: Type, tmp_path: Path, table: Path, kind: str, *, stream: str | None) -> Typed:
    where = (table,) if stream is None else (table / "A", "--stream", stream)
    return typed("import", *where, "--format", kind, "-r", tmp_path / "repo", "--json")


@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("names", "in_folder", "by_name"),
    [
        (["A", "A"], None, None),
        ([None, None], None, None),
        (["A", None], None, None),  # a row without a stream is of the one that is named
        (["B", "B"], "the folder of stream A has messages of stream B", None),
        (["A", "B"], TOO_MANY, TOO_MANY),
        (["B", None], TOO_MANY, TOO_MANY),
    ],
    ids=str,
)
def test_each_way_takes_and_refuses_the_same(
    typed: Type, tmp_path: Path, way: str, names: Names, in_folder: str | None, by_name: str | None
) -> None:
    table = _table(tmp_path / "table", "parquet", names)
    done = _import(typed, tmp_path, table, "parquet", stream="A" if way == "alone" else None)
    said = by_name if way == "alone" else in_folder
    if said is None:
        assert done.code == 0, done.err
        assert done.document["streams"][0]["messages"] == len(names)
    else:
        assert (done.code, done.document["error"]["message"]) == (2, f"stream A: {said}")


@pytest.mark.by_turns
@pytest.mark.parametrize("names", [["B", "B"], ["A", "B"]], ids=str)
def test_the_column_counts_in_any_case(typed: Type, tmp_path: Path, way: str, names: Names) -> None:
    """As all columns do in Spark. Members of JSON lines do not, and this one is not passed over."""
    stream = "A" if way == "alone" else None
    table = _table(tmp_path / "table", "parquet", names, "Stream")
    done = _import(typed, tmp_path, table, "parquet", stream=stream)
    if names == ["B", "B"] and way == "alone":
        assert done.code == 0, done.err
    else:
        said = TOO_MANY if "A" in names else "the folder of stream A has messages of stream B"
        assert (done.code, done.document["error"]["message"]) == (2, f"stream A: {said}")
    lines = _table(tmp_path / "lines", "jsonl", names, "Stream")
    done = _import(typed, tmp_path, lines, "jsonl", stream=stream)
    assert done.code == 2 and "it has no stream, but 'Stream'" in done.document["error"]["message"]


@pytest.mark.by_turns
def test_the_column_counts_whatever_its_type(typed: Type, tmp_path: Path, way: str) -> None:
    column = pa.array(["A", "B"]).dictionary_encode()
    table = _table(tmp_path / "table", "parquet", ["A", "A"])
    found = pq.read_table(table / "A" / "t.parquet").drop_columns(["stream"]).append_column("stream", column)
    pq.write_table(found, table / "A" / "t.parquet")
    done = _import(typed, tmp_path, table, "parquet", stream="A" if way == "alone" else None)
    assert (done.code, done.document["error"]["message"]) == (2, f"stream A: {TOO_MANY}")


def _folders(tables: list[Table]) -> list[str]:
    return [Path(file).parent.name.partition("=")[2] for table in tables for file in table.files]


@pytest.mark.parametrize("kind", KINDS)
def test_folders_of_partitions_name_streams_too(typed: Type, tmp_path: Path, kind: str) -> None:
    table = _table(tmp_path / "table", kind, [None])
    for name in "AB":
        (table / "A" / f"stream={name}").mkdir()
        (file,) = (table / "OTHER").iterdir()
        (table / "A" / f"stream={name}" / file.name).write_bytes(file.read_bytes())
    (table / "A" / file.name).unlink()
    for stream in ("A", None):
        done = _import(typed, tmp_path, table, kind, stream=stream)
        assert (done.code, done.document["error"]["message"]) == (2, TOO_MANY)
    (table / "A" / "stream=B").rename(table / "A" / "stream=__HIVE_DEFAULT_PARTITION__")
    assert _folders(find_tables(table / "A", TableFormat(kind), "A")) == ["A", "__HIVE_DEFAULT_PARTITION__"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_stream_may_get_a_new_name(typed: Type, tmp_path: Path, kind: str) -> None:
    """By an option of the export, or of the import; a folder that was renamed is not taken without a word."""
    kept = keep(tmp_path, {"A": some_messages(20, 10), "B": some_messages(20, 10)})
    line = ("export", "latest", *kept.line, "--format", kind)
    assert typed(*line, "--rename", "A=NEW", "--output", tmp_path / "renamed").code == 0
    done = typed("import", tmp_path / "renamed", *kept.line, "--format", kind, "--json")
    assert (done.code, [one["name"] for one in done.document["streams"]]) == (0, ["B", "NEW"])
    (tmp_path / "renamed" / "B").rename(tmp_path / "renamed" / "C")
    done = typed("import", tmp_path / "renamed", *kept.line, "--format", kind, "--json")
    error = done.document["error"]
    assert (done.code, error["message"]) == (2, "stream C: the folder of stream C has messages of stream B")
    assert "--stream" in error["hint"]
    done = typed("import", tmp_path / "renamed" / "C", "--stream", "C", *kept.line, "--format", kind, "--json")
    assert (done.code, [one["name"] for one in done.document["streams"]]) == (0, ["C"])
