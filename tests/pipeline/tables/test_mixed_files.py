"""Tables whose files differ, or are unusual: none is read as something else than it is, and none is passed over."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.tables.test_other_streams import way
from tests.pipeline.tables.test_table_sentences import NOW_NS, TABLE, Type, _digests, _folder, _import

__all__ = ["way"]

LATER = TABLE.set_column(0, "sequence", pa.array([3, 4], pa.int64()))


def _as(column: str, kind: pa.DataType, values: list[object] | None = None) -> pa.Table:
    place = LATER.schema.get_field_index(column)
    return LATER.set_column(place, column, LATER[column].cast(kind) if values is None else pa.array(values, kind))


@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("later", "column", "kind"),
    [
        (_as("timestamp_ns", pa.timestamp("us", "UTC"), [NOW_NS // 1000] * 2), "timestamp_ns", "timestamp[us, tz=UTC]"),
        (_as("timestamp_ns", pa.timestamp("ms"), [NOW_NS // 10**6] * 2), "timestamp_ns", "timestamp[ms]"),
        (_as("sequence", pa.float64()), "sequence", "double"),
        (_as("sequence", pa.decimal128(12, 2), [3, 4]), "sequence", "decimal128(12, 2)"),
        (_as("data", pa.decimal128(38, 0), [1, 2]), "data", "decimal128(38, 0)"),
        (_as("data", pa.int64(), [1, 2]), "data", "int64"),
    ],
    ids=str,
)
@pytest.mark.parametrize("first", [False, True])
def test_columns_of_other_types_in_some_files_are_refused(
    typed: Type, tmp_path: Path, way: str, later: pa.Table, column: str, kind: str, first: bool
) -> None:
    """Spark would read times in microseconds as nanoseconds, and numbers as bytes, and say nothing."""
    tables = [later, TABLE] if first else [TABLE, later]
    done = _import(typed, tmp_path, _folder(tmp_path / "t", *tables), way)
    message = done.document["error"]["message"]
    assert done.code == 2 and f"the column {column} as " in message and kind in message, done.out


@pytest.mark.by_turns
@pytest.mark.parametrize(
    "later",
    [
        _as("sequence", pa.int32()),
        _as("sequence", pa.uint64()),
        _as("timestamp_ns", pa.timestamp("ns", "UTC")),
        _as("data", pa.string()),
        _as("data", pa.binary(1)),
        _as("subject", pa.large_string()),
    ],
    ids=lambda table: str(table.schema.types),
)
@pytest.mark.parametrize("first", [False, True])
def test_types_that_mean_the_same_are_taken(
    typed: Type, tmp_path: Path, way: str, later: pa.Table, first: bool
) -> None:
    plain = _digests(_import(typed, tmp_path / "plain", _folder(tmp_path / "p", TABLE, LATER), way))
    tables = [later, TABLE] if first else [TABLE, later]
    assert _digests(_import(typed, tmp_path / "mixed", _folder(tmp_path / "m", *tables), way)) == plain


def test_an_empty_file_is_called_damaged(typed: Type, tmp_path: Path, way: str) -> None:
    """Spark passes it over; it may be what a full disk has left of one."""
    root = _folder(tmp_path / "t", TABLE)
    (root / "A" / "1.parquet").write_bytes(b"")
    done = _import(typed, tmp_path, root, way)
    assert done.code == 14 and "A/1.parquet is empty, and no Parquet file" in done.out, done


def test_a_link_to_a_folder_is_refused(typed: Type, tmp_path: Path, way: str) -> None:
    root = _folder(tmp_path / "t", TABLE)
    (tmp_path / "more").mkdir()
    pq.write_table(LATER, tmp_path / "more" / "1.parquet")
    (root / "A" / "more").symlink_to(tmp_path / "more")
    done = _import(typed, tmp_path, root, way)
    assert done.code == 2 and "A/more is a link to a folder, which is not followed" in done.err + done.out, done


def test_a_compression_that_spark_lacks_is_named(typed: Type, tmp_path: Path) -> None:
    root = _folder(tmp_path / "t", TABLE)
    pq.write_table(TABLE, root / "A" / "0.parquet", compression="brotli")
    done = _import(typed, tmp_path, root, "alone")
    message = done.document["error"]["message"]
    assert done.code == 2 and message.endswith("A/0.parquet is compressed by BROTLI, which Spark does not read"), (
        message
    )
