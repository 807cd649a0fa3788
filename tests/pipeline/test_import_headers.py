"""Header blocks of any kind go from servers through tables to servers; tables of others need sound ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jsbackup.errors import UsageError
from jsbackup.pipeline.jobs.write import TableStream, write_backup
from jsbackup.pipeline.tables.table_files import find_tables
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.repository.manifest import Manifest
from tests.cli.typed import Typed
from tests.harness.api import Wire
from tests.harness.batches import Message, batch_of
from tests.harness.servers import NEWEST, NatsServer
from tests.pipeline.places import keep
from tests.pipeline.streams import make_empty
from tests.pipeline.tasks.test_segment_sink import GOOD, NO_BEGINNING, NO_END, ODD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Type = Callable[..., Typed]

# A server takes a block of no bytes for none.
BLOCKS = [block for block in (*GOOD, *ODD, *NO_BEGINNING, *NO_END) if block]


def _digests(manifest: Manifest) -> dict[str, str]:
    return {stream.name: stream.digest.hex for stream in manifest.streams}


@pytest.mark.nats
@pytest.mark.by_turns
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_whatever_a_server_has_taken_comes_back(spark: SparkSession, typed: Type, tmp_path: Path, kind: str) -> None:
    async def fill(url: str) -> None:
        await make_empty(url, "A", "B")
        wire = await Wire.open(url)
        try:
            for number, block in enumerate(BLOCKS):
                await wire.send(f"A.{number}", b"data", block)
                await wire.send(f"B.{number}", b"", block)
            assert all(b'"seq"' in reply.data for reply in await wire.replies())
        finally:
            await wire.close()

    repo, table = tmp_path / "repo", tmp_path / "table"
    with NatsServer(NEWEST) as server:
        asyncio.run(fill(server.url))
        assert typed("backup", "-s", server.url, "-r", repo).code == 0
    assert typed("export", "latest", "-r", repo, "--format", kind, "--output", table).code == 0
    before = typed("show", "latest", "-r", repo, "--json").document["streams"]
    assert [one["messages"] for one in before] == [len(BLOCKS)] * 2
    one, other = tmp_path / "one", tmp_path / "other"
    file = next(path for path in sorted((table / "A").iterdir()) if path.is_file())
    for place, line in ((other, (table,)), (one, (table / "A", "--stream", "A")), (one, (file, "--stream", "A"))):
        done = typed("import", *line, "--format", kind, "-r", place)
        assert done.code == 0, done.err
        after = typed("show", "latest", "-r", place, "--json").document["streams"]
        assert [(s["name"], s["digest"]) for s in after] == [(s["name"], s["digest"]) for s in before[: len(after)]]
    with NatsServer(NEWEST) as target:
        done = typed("restore", "latest", "-s", target.url, "-r", other)
        assert done.code == 0 and "verified" in done.out, done


def _table(folder: Path, blocks: list[Any]) -> Path:
    rows = [{"sequence": 1, "timestamp_ns": 5, "subject": "a", "data": b"x"}] * len(blocks)
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist([row | {"sequence": n, "headers": blocks[n - 1]} for n, row in enumerate(rows, 1)])
    pq.write_table(table, folder / "t.parquet")
    return folder


@pytest.mark.parametrize("block", ["A: b", b"NATS/1.0\r\nA: b\r\n"])
@pytest.mark.parametrize("alone", [True, False])
def test_a_table_of_others_with_other_headers_is_refused(
    typed: Type, tmp_path: Path, block: str | bytes, alone: bool
) -> None:
    good = block.__class__(GOOD[1].decode()) if isinstance(block, str) else GOOD[1]
    for name in ("S", "T"):
        _table(tmp_path / "table" / name, [good, block if name == "T" else good])
    line = ("table/T", "--stream", "T") if alone else ("table",)
    done = typed("import", *(tmp_path / line[0], *line[1:]), "--format", "parquet", "-r", tmp_path / "repo")
    first, *rest = done.err.splitlines()
    assert not (tmp_path / "repo").exists()
    assert (done.code, done.out, len(rest)) == (2, "", 1)
    assert first.startswith("error: stream T: message 2 has headers that do not "), first


def test_a_frame_with_other_headers_is_refused_unless_any_are_wanted(spark: SparkSession, tmp_path: Path) -> None:
    kept = keep(tmp_path, {"S": [Message(n, 0, "a", block, b"") for n, block in enumerate(BLOCKS, 1)]})
    pq.write_table(pa.Table.from_batches([batch_of([Message(1, 0, "a", b"x", b"")])]), tmp_path / "t.parquet")
    frame = spark.read.parquet(str(tmp_path / "t.parquet"))
    with pytest.raises(UsageError, match=r"stream S: message 1 has headers that do not begin with .*: b'x'"):
        write_backup(spark, kept.place, {"S": TableStream(frame)})
    assert write_backup(spark, kept.place, {"S": TableStream(frame, any_headers=True)}).streams[0].state.messages == 1


def test_what_export_wrote_is_known_by_its_log(tmp_path: Path) -> None:
    table = _table(tmp_path / "t" / "S", [None])
    day = _table(table / "day=1", [None])

    def taken() -> list[bool]:
        found = [find_tables(tmp_path / "t", TableFormat.PARQUET, None)]
        found += [
            find_tables(path, TableFormat.PARQUET, "S") for path in (table, table / "t.parquet", day / "t.parquet")
        ]
        return [one.any_headers for tables in found for one in tables]

    assert taken() == [False] * 4
    (tmp_path / "t" / "_jsbackup.d").mkdir()
    assert taken() == [True] * 4
