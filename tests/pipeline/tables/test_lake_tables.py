"""What is given to `import` and is a table of Delta or Iceberg, or a part of one, is called so. No Spark is needed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from jsbackup.errors import UsageError
from jsbackup.pipeline.tables.table_files import find_tables
from jsbackup.pipeline.tables.writing import TableFormat
from tests.cli.typed import in_shell
from tests.harness.batches import batch_of, some_messages
from tests.pipeline.tables.growing import growing

ROWS = pa.Table.from_batches([batch_of(some_messages(5, 5))])


def _iceberg(root: Path, *names: str) -> Path:
    """A table as other writers have it: the rows are beside the metadata."""
    for name in ("data/day=1/00000-0.parquet", *(f"metadata/{name}" for name in names)):
        path = root / "S" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            pq.write_table(ROWS, path)
        else:
            path.write_bytes(b"Obj\1" if name.endswith(".avro") else b"{}")
    return root


@pytest.mark.parametrize(
    "names", [["00000-5a.metadata.json", "5a-m0.avro"], ["00001-5a.gz.metadata.json"], ["v1.metadata.json.gz"]]
)
@pytest.mark.parametrize("kind", [TableFormat.PARQUET, TableFormat.JSONL])
def test_a_table_of_iceberg_is_called_so(tmp_path: Path, names: list[str], kind: TableFormat) -> None:
    root = _iceberg(tmp_path / "lake", *names)
    for path, stream in [(root, None), (root, "S"), (root / "S", "S"), (root / "S", None)]:
        with pytest.raises(UsageError, match=r"lake/S is an Iceberg table, of which files may be obsolete$") as caught:
            find_tables(path, kind, stream)
        assert caught.value.hint == "Write its rows out as plain Parquet, and give the folder of that."
    for given in ("metadata", f"metadata/{names[0]}", f"metadata/{names[-1]}"):
        with pytest.raises(UsageError, match=rf"/{given} is of the metadata of an Iceberg table, .*lake/S, and has no"):
            find_tables(root / "S" / given, kind, "S")


def test_a_table_of_our_own_is_called_so(tmp_path: Path) -> None:
    kept, _ = growing(tmp_path / "r")
    assert in_shell("iceberg", "--output", tmp_path / "ice", *kept.line).code == 0
    for line in (["ice"], ["ice/ORDERS", "--stream", "S"], ["ice/ORDERS/metadata", "--stream", "S"]):
        path, *more = line
        done = in_shell("import", tmp_path / path, *more, "--format", "parquet", "-r", tmp_path / "other")
        assert done.code == 2 and "Iceberg table" in done.err and "damaged" not in done.err, done


def test_a_table_of_delta_is_called_so(tmp_path: Path) -> None:
    table = tmp_path / "lake" / "S"
    write_deltalake(table, ROWS, partition_by=["subject"])
    for path, stream in [(table.parent, None), (table.parent, "S"), (table, "S"), (table, None)]:
        with pytest.raises(UsageError, match=r"lake/S is a Delta table, of which files may be obsolete$"):
            find_tables(path, TableFormat.PARQUET, stream)
    log = table / "_delta_log"
    for path in (log, next(log.glob("*.json"))):
        with pytest.raises(UsageError, match=r" is of the log of a Delta table, .*lake/S, and has no messages$"):
            find_tables(path, TableFormat.JSONL, "S")


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
@pytest.mark.parametrize("by", [[], ["--partition-by", "day"]])
def test_a_part_of_a_table_is_called_so(tmp_path: Path, kind: str, by: list[str]) -> None:
    """Its files may have rows that were deleted from the table since: these would come back."""
    kept, _ = growing(tmp_path / "r", (40,))
    lake = tmp_path / "lake"
    assert in_shell("export", "latest", *kept.line, "--format", kind, *by, "--output", lake).code == 0
    table = lake / "ORDERS"
    file = next(table.rglob("*.parquet"))
    parts = [file, *(path for path in file.parents if path.is_relative_to(table) and path != table)]
    assert len(parts) == 1 + len(by) // 2 + (kind == "iceberg")
    for path in parts:
        with pytest.raises(UsageError, match=rf"is of the .* table {table}, of which files may be obsolete$") as caught:
            find_tables(path, TableFormat.PARQUET, "S")
        assert caught.value.hint == "Write its rows out as plain Parquet, and give the folder of that."


def test_a_folder_that_is_only_called_so_is_taken(tmp_path: Path) -> None:
    folder = tmp_path / "lake" / "metadata"
    folder.mkdir(parents=True)
    pq.write_table(ROWS, folder / "metadata.parquet")
    assert [one.stream for one in find_tables(tmp_path / "lake", TableFormat.PARQUET, None)] == ["metadata"]
    assert [one.stream for one in find_tables(folder, TableFormat.PARQUET, "S")] == ["S"]
