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


@pytest.mark.parametrize(
    ("later", "said"),
    [
        (_as("sequence", pa.string(), ["3", "x"]), "the column sequence is string, and cannot be an integer"),
        (_as("sequence", pa.float64(), [3, 4.5]), "the column sequence is double, and cannot be an integer"),
        (_as("timestamp_ns", pa.bool_(), [True, True]), "the column timestamp_ns is bool, and cannot be a time"),
        (_as("data", pa.int64(), [1, 2]), "the column data is int64, and cannot be bytes"),
        (_as("subject", pa.float64(), [1, 2]), "the column subject is double, and cannot be text"),
        (LATER.drop_columns(["sequence"]), "some files of the table of stream A have no column sequence"),
        (LATER.drop_columns(["subject"]), "has no column subject"),
    ],
    ids=str,
)
def test_a_column_that_cannot_be_cast_is_named(typed: Type, tmp_path: Path, later: pa.Table, said: str) -> None:
    done = _import(typed, tmp_path, _folder(tmp_path / "t", later, TABLE), "alone")
    assert done.code == 2 and said in done.document["error"]["message"], done.out
    assert not (tmp_path / "repo").exists()


@pytest.mark.parametrize(
    ("unit", "zone", "name"), [("s", None, "timestamp_ns"), ("ms", "UTC", "time"), ("us", "Europe/Berlin", "Timestamp")]
)
def test_times_may_be_of_any_unit(typed: Type, tmp_path: Path, unit: str, zone: str | None, name: str) -> None:
    whole = NOW_NS // 10**9 * 10**9
    plain = TABLE.set_column(1, "timestamp_ns", pa.array([whole] * 2, pa.int64()))
    moment = plain["timestamp_ns"].cast(pa.timestamp("ns", "UTC")).cast(pa.timestamp(unit, zone))
    if zone is None:
        moment = plain["timestamp_ns"].cast(pa.timestamp("ns")).cast(pa.timestamp(unit))
    expected = _digests(_import(typed, tmp_path / "plain", _folder(tmp_path / "p", plain), "alone"))
    table = plain.set_column(1, name, moment)
    assert _digests(_import(typed, tmp_path, _folder(tmp_path / "t", table), "alone")) == expected


def test_rows_without_sequences_are_numbered_and_unsorted_ones_sorted(typed: Type, tmp_path: Path) -> None:
    rows = pa.Table.from_pylist([{"subject": "a", "data": b"%d" % n, "timestamp_ns": NOW_NS} for n in range(2000)])
    numbered = rows.append_column("sequence", pa.array(range(1, 2001)))
    expected = _digests(_import(typed, tmp_path / "plain", _folder(tmp_path / "p", numbered), "alone"))
    files = [rows.slice(0, 700), rows.slice(700)]
    assert _digests(_import(typed, tmp_path / "a", _folder(tmp_path / "t", *files), "alone")) == expected
    mixed = numbered.take(pa.array([*range(1999, 1000, -1), *range(1001)]))
    assert _digests(_import(typed, tmp_path / "b", _folder(tmp_path / "m", mixed), "alone")) == expected
    later = [numbered.slice(900), numbered.slice(0, 900)]
    assert _digests(_import(typed, tmp_path / "c", _folder(tmp_path / "l", *later), "alone")) == expected


@pytest.mark.by_turns
@pytest.mark.parametrize(
    "later",
    [
        _as("sequence", pa.uint64()),
        _as("timestamp_ns", pa.timestamp("ns", "UTC")),
        _as("sequence", pa.decimal128(20, 0)),
        _as("data", pa.string()),
        _as("subject", pa.large_string()),
    ],
    ids=lambda table: str(table.schema.types),
)
def test_types_that_mean_the_same_are_taken(typed: Type, tmp_path: Path, way: str, later: pa.Table) -> None:
    plain = _digests(_import(typed, tmp_path / "plain", _folder(tmp_path / "p", TABLE, LATER), way))
    assert _digests(_import(typed, tmp_path / "mixed", _folder(tmp_path / "m", later, TABLE), way)) == plain


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
