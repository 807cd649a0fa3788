"""Tables of others that are unusual: each is read as it is meant, or refused in a sentence that says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.typed import Typed
from tests.formats.test_json_lines import GOOD
from tests.harness.batches import Message
from tests.pipeline.places import keep
from tests.pipeline.tables.test_other_streams import way

__all__ = ["way"]

Type = Callable[..., Typed]

NOW_NS = 1_790_000_000_123_456_789
ROWS: list[dict[str, Any]] = [{"sequence": n, "timestamp_ns": NOW_NS, "subject": "a", "data": b"x"} for n in (1, 2)]
TABLE = pa.Table.from_pylist(ROWS)
BLOCK = b"NATS/1.0\r\nA: b\r\n\r\n"


def _folder(root: Path, *tables: pa.Table) -> Path:
    """A folder for the stream A, with these files, beside that of another one."""
    for name, files in (("A", tables), ("B", (TABLE,))):
        (root / name).mkdir(parents=True)
        for number, table in enumerate(files):
            pq.write_table(table, root / name / f"{number}.parquet")
    return root


def _import(typed: Type, tmp_path: Path, root: Path, way: str, kind: str = "parquet") -> Typed:
    tmp_path.mkdir(exist_ok=True)
    where = (root / "A", "--stream", "A") if way == "alone" else (root,)
    return typed("import", *where, "--format", kind, "-r", tmp_path / "repo", "--json")


def _digests(done: Typed) -> list[str]:
    assert done.code == 0, done.err
    return [one["digest"] for one in done.document["streams"]][:1]


@pytest.mark.by_turns
def test_columns_that_differ_in_case_only_are_named(typed: Type, tmp_path: Path, way: str) -> None:
    table = TABLE.append_column("DATA", pa.array([b"1", b"2"]))
    done = _import(typed, tmp_path, _folder(tmp_path / "t", table), way)
    message = done.document["error"]["message"]
    assert done.code == 2 and message.endswith("0.parquet has the columns 'data' and 'DATA'")


@pytest.mark.by_turns
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_in_nanoseconds_are_read(typed: Type, tmp_path: Path, way: str, zone: str | None) -> None:
    """As the time of a message, and beside it; pandas writes such."""
    kind = pa.timestamp("ns", tz=zone)
    table = TABLE.set_column(1, "timestamp_ns", TABLE["timestamp_ns"].cast(kind))
    table = table.append_column("more", pa.array([5, None], kind))
    plain = _digests(_import(typed, tmp_path / "plain", _folder(tmp_path / "p", TABLE), way))
    assert _digests(_import(typed, tmp_path, _folder(tmp_path / "t", table), way)) == plain


@pytest.mark.by_turns
def test_a_table_without_rows_is_an_empty_stream(typed: Type, tmp_path: Path, way: str) -> None:
    """Its columns may have any types, as there are no values; and it may be one file of several."""
    empty = pa.table({name: pa.array([], pa.null()) for name in TABLE.column_names})
    done = _import(typed, tmp_path / "one", _folder(tmp_path / "e", empty), way)
    assert (done.code, done.document["streams"][0]["messages"]) == (0, 0), done.err
    done = _import(typed, tmp_path / "two", _folder(tmp_path / "s", empty, TABLE), way)
    assert (done.code, done.document["streams"][0]["messages"]) == (0, 2), done.err
    done = _import(typed, tmp_path / "bad", _folder(tmp_path / "b", empty.drop_columns(["data"])), way)
    assert done.code == 2 and done.document["error"]["message"].endswith("0.parquet has no column data")


@pytest.mark.by_turns
@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
def test_a_column_without_any_value_has_no_type(typed: Type, tmp_path: Path, way: str, kind: pa.DataType) -> None:
    none = TABLE.append_column("headers", pa.nulls(2)).append_column("stream", pa.nulls(2))
    plain = _digests(_import(typed, tmp_path / "plain", _folder(tmp_path / "p", TABLE), way))
    assert _digests(_import(typed, tmp_path / "none", _folder(tmp_path / "n", none), way)) == plain
    headed = pa.Table.from_pylist([row | {"sequence": row["sequence"] + 2, "headers": BLOCK} for row in ROWS])
    headed = headed.set_column(4, "headers", headed["headers"].cast(kind))
    done = _import(typed, tmp_path / "some", _folder(tmp_path / "s", none, headed), way)
    assert (done.code, done.document["streams"][0]["messages"]) == (0, 4), done.err
    lacks = TABLE.set_column(3, "data", pa.nulls(2))
    done = _import(typed, tmp_path / "lacks", _folder(tmp_path / "l", lacks), way)
    assert (done.code, done.document["error"]["message"]) == (2, "stream A: a message without data cannot be stored")


@pytest.mark.parametrize(("kind", "called"), [("parquet", "a Parquet file"), ("jsonl", "a file of JSON lines")])
@pytest.mark.parametrize("way", ["alone", "folder"])
def test_a_file_of_another_format_is_not_called_damaged(
    typed: Type, tmp_path: Path, kind: str, called: str, way: str
) -> None:
    root = _folder(tmp_path / "t", TABLE)
    if kind == "jsonl":
        for name in "AB":
            (root / name / "0.parquet").unlink()
            (root / name / "t").write_text("\n " + json.dumps(GOOD | {"stream": name}) + "\n")
    else:
        (root / "A" / "0.parquet").rename(root / "A" / "part-0")
    (root / "A" / "nothing.txt").write_text("")
    assert _import(typed, tmp_path / "good", root, way, kind).code == 0
    (root / "A" / "b.csv").write_text("sequence,subject\n1,a\n")
    done = _import(typed, tmp_path, root, way, kind)
    assert done.code == 2 and done.document["error"]["message"].endswith(f"A/b.csv is not {called}")


@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("times", "noted"),
    [([NOW_NS // 1000] * 2, True), ([NOW_NS, 5], False), ([0, 0], True), ([-1, -1], True)],
    ids=str,
)
def test_times_in_another_unit_are_noted(typed: Type, tmp_path: Path, way: str, times: list[Any], noted: bool) -> None:
    table = TABLE.set_column(1, "timestamp_ns", pa.array(times, pa.int64()))
    done = _import(typed, tmp_path, _folder(tmp_path / "t", table), way)
    assert done.code == 0, done.err
    begin = "stream A: timestamp_ns is in nanoseconds since 1970, so its newest message is of 19"
    assert [note.startswith(begin) for note in done.document["notes"]] == [True] * noted


def test_old_times_of_an_export_are_not_noted(typed: Type, tmp_path: Path) -> None:
    """They are what the server had; and lines have no unit that could be another."""
    kept = keep(tmp_path, {"A": [Message(1, 5, "a", None, b"")]})
    for kind in ("parquet", "jsonl"):
        assert typed("export", "latest", *kept.line, "--format", kind, "--output", tmp_path / kind).code == 0
        done = typed("import", tmp_path / kind, "--format", kind, *kept.line, "--json")
        assert (done.code, done.document["notes"]) == (0, [])


@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"data": None}], "a message without data cannot be stored"),
        ([{"subject": "a b"}], "message 2 has the subject 'a b'"),
        ([{"headers": b"x"}], "message 2 has headers that do not begin with"),
        ([{"sequence": 0}], "0 is not a sequence"),
        ([{"sequence": 1}], "sequence 1 is there twice"),
        ([{}], None),
    ],
    ids=str,
)
def test_what_is_refused_makes_no_repository(
    typed: Type, tmp_path: Path, way: str, rows: list[dict[str, Any]], said: str | None
) -> None:
    """Nor is one announced; and where one is, the same is said, and there is no backup."""
    full = [ROWS[0] | {"headers": BLOCK}, *(ROWS[1] | {"headers": BLOCK} | row for row in rows)]
    root, repo = _folder(tmp_path / "t", pa.Table.from_pylist(full)), tmp_path / "repo"
    done = _import(typed, tmp_path, root, way)
    if said is None:
        assert done.code == 0 and repo.is_dir() and done.err.count("creating one") == 1, done.err
        return
    assert done.code in (2, 14) and said in done.document["error"]["message"], done.out
    assert not repo.exists() and done.err == ""
    assert typed("init", "-r", repo).code == 0
    assert _import(typed, tmp_path, root, way).document["error"] == done.document["error"]
    assert typed("list", "-r", repo, "--json").document["backups"] == []
