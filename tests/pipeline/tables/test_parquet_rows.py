"""Which Parquet tables a task reads without Spark: those of which Spark would read the same, and no others."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jsbackup.pipeline.tables.parquet_rows import find_plain
from jsbackup.pipeline.tables.table_files import Table, read_small
from jsbackup.pipeline.tables.writing import TableFormat

ROWS = {"sequence": [2, 1], "timestamp_ns": [5, 6], "subject": ["b", "a"], "data": [b"x", b"y"]}
PLAIN = pa.table({"sequence": pa.array([2, 1], pa.int64()), **{k: v for k, v in ROWS.items() if k != "sequence"}})
SPARK = b"org.apache.spark.sql.parquet.row.metadata"


def _file(folder: Path, table: pa.Table, name: str = "t.parquet", **options: Any) -> str:
    pq.write_table(table, folder / name, **options)
    return str(folder / name)


def _with(name: str, values: object, kind: pa.DataType | None = None) -> pa.Table:
    array = pa.array(values, kind)
    if name in PLAIN.column_names:
        return PLAIN.set_column(PLAIN.column_names.index(name), name, array)
    return PLAIN.append_column(name, array)


def _written_by_spark(**types: object) -> pa.Table:
    known = {"sequence": "long", "timestamp_ns": "long", "subject": "string", "data": "binary"} | types
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in known.items()]
    return PLAIN.replace_schema_metadata({SPARK: json.dumps({"type": "struct", "fields": fields})})


@pytest.mark.parametrize(
    "table",
    [
        PLAIN,
        _with("sequence", [2, 1], pa.uint64()),
        _with("sequence", [2, 1], pa.int16()),
        _with("timestamp_ns", [5, 6], pa.uint64()),
        _with("subject", ["b", "a"], pa.large_string()),
        _with("data", ["x", "y"], pa.string()),
        _with("data", ["x", "y"], pa.large_binary()),
        _with("time", [1, 2], pa.timestamp("us", tz="UTC")),
        _with("more", [1.5, None]),
        _written_by_spark(),
    ],
    ids=str,
)
def test_plain_tables_are_read_with_our_types(tmp_path: Path, table: pa.Table) -> None:
    read = find_plain([_file(tmp_path, table)], "S")
    assert read is not None
    rows = pa.Table.from_batches(read())
    assert rows.to_pydict() == ROWS | {"headers": [None, None]}
    assert [str(kind) for kind in rows.schema.types] == ["int64", "int64", "string", "binary", "binary"]


@pytest.mark.parametrize(
    "table",
    [
        PLAIN.drop_columns("data"),
        PLAIN.rename_columns(["Sequence", "timestamp_ns", "subject", "data"]),
        _with("Sequence", [1, 2]),  # Spark takes both for the same
        _with("sequence", ["2", "1"]),
        _with("sequence", [2, 1], pa.decimal128(20)),
        _with("sequence", [2, 1], pa.duration("ns")),
        _with("timestamp_ns", [5, 6], pa.timestamp("us")),
        _with("timestamp_ns", [5, 6], pa.int32()),
        _with("subject", [b"b", b"a"]),
        _with("subject", pa.array(["b", "a"]).dictionary_encode()),
        _with("time", [1, 2], pa.timestamp("ns")),  # Spark refuses the table
        _with("more", [[1], []]),
        _with("more", [{"sequence": 1}, None]),
        _written_by_spark(more="long"),
        _written_by_spark(sequence="interval day to second"),
        _written_by_spark(data={"type": "udt"}),
        PLAIN.replace_schema_metadata({SPARK: "{"}),
        PLAIN.replace_schema_metadata({SPARK: "[]"}),
    ],
    ids=str,
)
def test_tables_that_only_spark_understands_are_left_to_it(tmp_path: Path, table: pa.Table) -> None:
    assert find_plain([_file(tmp_path, table)], "S") is None


def test_files_have_the_same_columns(tmp_path: Path) -> None:
    one, same = _file(tmp_path, PLAIN), _file(tmp_path, PLAIN, "same.parquet", compression="zstd")
    other = _file(tmp_path, _with("sequence", [2, 1], pa.int32()), "other.parquet")
    assert find_plain([one, same], "S") is not None and find_plain([one, other], "S") is None
    read = read_small(Table("S", (one, same), 1, alone=False), TableFormat.PARQUET)
    assert read is not None and sum(batch.num_rows for batch in read()) == 4
    assert read_small(Table("S", (one,), 1, alone=True), TableFormat.PARQUET) is None


def test_what_takes_much_memory_is_left_to_spark(tmp_path: Path) -> None:
    table = _with("data", [bytes(65 << 20), b""])
    assert find_plain([_file(tmp_path, table, compression="zstd", use_dictionary=False)], "S") is None


def test_what_is_no_table_is_left_to_spark(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    assert find_plain([str(tmp_path / "text")], "S") is None
    assert find_plain([str(tmp_path / "nowhere")], "S") is None


def _change_page(path: Path) -> None:
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(3)
    end = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size
    data = path.read_bytes()
    path.write_bytes(data[: end - 1] + bytes([data[end - 1] ^ 1]) + data[end:])


def _wrong_sums(path: Path) -> None:
    (path.parent / f".{path.name}.crc").write_bytes(b"crc\0" + (512).to_bytes(4) + bytes(4))


def _no_sums(path: Path) -> None:
    (path.parent / f".{path.name}.crc").write_bytes(b"")


def _too_large(path: Path) -> None:
    _file(path.parent, _with("sequence", [1 << 63, 1], pa.uint64()))


@pytest.mark.parametrize("change", [_change_page, _wrong_sums, _no_sums, _too_large])
def test_damage_is_found_while_rows_are_read(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = Path(_file(tmp_path, PLAIN, write_page_checksum=True))
    change(path)
    read = find_plain([str(path)], "S")
    assert read is not None
    with pytest.raises((OSError, pa.ArrowException, ValueError)):
        list(read())


def test_sums_of_hadoop_may_lie_beside_a_file(tmp_path: Path) -> None:
    path = Path(_file(tmp_path, _with("data", [bytes(range(256)) * 10, b""])))
    data = path.read_bytes()
    sums = [zlib.crc32(data[start : start + 512]).to_bytes(4) for start in range(0, len(data), 512)]
    assert len(sums) > 1
    (tmp_path / ".t.parquet.crc").write_bytes(b"crc\0" + (512).to_bytes(4) + b"".join(sums))
    read = find_plain([str(path)], "S")
    assert read is not None and sum(batch.num_rows for batch in read()) == 2
