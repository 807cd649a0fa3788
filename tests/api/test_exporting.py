"""`jsbackup.export`: the tables are those of the command."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import jsbackup
from jsbackup.errors import IncompleteError, UsageError
from jsbackup.pipeline.session.repository_ref import lent, opened
from tests.api.shop import COUNT, Shop
from tests.harness.commands import jsbackup as command

pytestmark = pytest.mark.nats

NAMES = ["sequence", "timestamp_ns", "subject", "headers", "data"]


def _rows(folder: Path) -> list[tuple[object, ...]]:
    tables = [pq.ParquetFile(path).read(columns=NAMES) for path in folder.rglob("*.parquet")]
    return sorted(tuple(row[name] for name in NAMES) for table in tables for row in table.to_pylist())


def test_a_table_has_every_message_and_is_extended_by_what_is_new(shop: Shop, tmp_path: Path) -> None:
    repository = jsbackup.open(shop.folder)
    told: list[jsbackup.StreamProgress] = []
    done = jsbackup.export(repository, tmp_path / "lake", format="parquet", append=True, progress=told.append)
    assert (done.backup.id, done.rows, done.files) == (shop.backup, COUNT - 1 + 1, 2) and done.bytes > 0
    assert {name: one.messages for name, one in done.streams.items()} == {
        "EMPTY": 0, "KV_settings": 1, "ORDERS": COUNT - 1,
    }  # fmt: skip
    assert done.failed == {} and told[-1].finished
    assert _rows(tmp_path / "lake" / "ORDERS") == shop.published
    again = jsbackup.export(done.backup, tmp_path / "lake", format="parquet", append=True)
    assert (again.rows, again.files) == (0, 0) and again.streams["ORDERS"].notes == ("nothing is new",)
    # The command goes on with the same tables, and says the same.
    line = ("export", "latest", "-r", shop.folder, "--format", "parquet", "--append", "--output", tmp_path / "lake")
    document = command(*line).ok().document
    assert document["rows"] == 0 and _rows(tmp_path / "lake" / "ORDERS") == shop.published


def test_the_options_of_the_command_choose_and_change_messages(shop: Shop, tmp_path: Path) -> None:
    repository = jsbackup.open(shop.folder)
    (tmp_path / "key").write_bytes(b"a key of sixteen bytes")
    done = jsbackup.export(
        repository.latest(),
        str(tmp_path / "lines"),
        format="jsonl",
        streams="ORDERS",
        rename={"ORDERS": "SOME"},
        subject="orders.us.>",
        since=100,
        until=280,
        mask="orders.>:header(Shop)=hash",
        mask_key_file=tmp_path / "key",
    )
    wanted = [row[0] for row in shop.published if 100 <= row[0] <= 280 and row[2].startswith("orders.us.")]
    lines = [
        json.loads(line) for path in (tmp_path / "lines" / "SOME").iterdir() for line in path.read_text().splitlines()
    ]
    assert [line["sequence"] for line in lines] == wanted and list(done.streams) == ["SOME"]
    days = jsbackup.export(repository, tmp_path / "days", format="parquet", partition_by="day", streams=["ORD*"])
    assert days.rows == COUNT - 1
    assert all(path.parent.name.startswith("day=") for path in (tmp_path / "days").rglob("*.parquet"))


def test_wrong_arguments_are_refused_before_anything_is_written(shop: Shop, tmp_path: Path) -> None:
    repository = jsbackup.open(shop.folder)
    out = tmp_path / "out"
    for error, said, arguments in (
        (UsageError, "not one of parquet", {"format": "csv"}),
        (UsageError, "--append is for --format", {"format": "jsonl", "append": True}),
        (UsageError, "counts from now", {"format": "parquet", "append": True, "since": "7d"}),
        (UsageError, "partition_by: 'hour'", {"format": "parquet", "partition_by": "hour"}),
        (UsageError, "NONE", {"format": "parquet", "streams": "NONE"}),
        (TypeError, "unexpected keyword argument 'if_exists'", {"format": "parquet", "if_exists": "skip"}),
    ):
        with pytest.raises(error, match=said):
            jsbackup.export(repository, out, **arguments)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="in the repository"):
        jsbackup.export(repository, shop.folder / "out", format="parquet")
    with pytest.raises(TypeError, match="source: not a str"):
        jsbackup.export(str(shop.folder), out, format="parquet")  # type: ignore[arg-type]
    assert not out.exists()


def test_tables_that_cannot_be_extended_are_named_beside_the_others(shop: Shop, tmp_path: Path) -> None:
    repository = jsbackup.open(shop.folder)
    jsbackup.export(repository, tmp_path, format="parquet", append=True, streams="ORDERS", subject="orders.us.>")
    with pytest.raises(UsageError, match="was made with --subject"):
        jsbackup.export(repository, tmp_path, format="parquet", append=True, streams="ORDERS")
    with pytest.raises(IncompleteError, match="not all was exported: ORDERS: ") as caught:
        jsbackup.export(repository, tmp_path, format="parquet", append=True)
    done = caught.value.result
    assert isinstance(done, jsbackup.ExportOutcome)
    assert isinstance(done.failed["ORDERS"], UsageError) and done.streams["KV_settings"].messages == 1


def test_a_repository_is_lent_by_several_threads_at_once(shop: Shop) -> None:
    repository = jsbackup.open(shop.folder)
    place = repository._place
    some, other = place.open(), place.open()
    with ExitStack() as first:
        first.enter_context(lent(place, some))
        with lent(place, other):
            first.close()
            assert opened(place) is other
    assert opened(place) not in (some, other)
