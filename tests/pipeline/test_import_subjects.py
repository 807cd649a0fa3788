"""Subjects of any bytes that a server takes go through tables; what clients may not read is said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.typed import Typed
from tests.harness.api import Wire
from tests.harness.batches import Message, batch_of
from tests.harness.servers import BUNDLED, NatsServer
from tests.pipeline.places import keep
from tests.pipeline.streams import make_empty

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Type = Callable[..., Typed]

# Measured on nats-server 2.15.1: all bytes but these three, which end a subject, or break the protocol.
NEVER_TAKEN = b" \t\n"
CUTTING = b"\x0b\x0c\r"
TAKEN = bytes(byte for byte in range(1, 32) if byte not in NEVER_TAKEN) + b"\x00\xff"
SAID = "subjects that clients may not read: nats-py reads nothing more after such a message"


@pytest.mark.nats
@pytest.mark.by_turns
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_whatever_a_server_has_taken_comes_back(spark: SparkSession, typed: Type, tmp_path: Path, kind: str) -> None:
    async def fill(url: str) -> None:
        await make_empty(url, "A", "B")
        wire = await Wire.open(url)
        try:
            for byte in TAKEN:
                await wire.send(b"A.x%cy" % byte, b"data")
                await wire.send(b"B.%c" % byte, b"")
            assert all(b'"seq"' in reply.data for reply in await wire.replies())
        finally:
            await wire.close()
        for byte in NEVER_TAKEN:
            with pytest.raises((ConnectionError, TimeoutError)):
                wire = await Wire.open(url, patience_seconds=2)
                try:
                    await wire.send(b"A.x%cy" % byte, b"data")
                    await wire.replies()
                finally:
                    await wire.close()

    repo, table, other = tmp_path / "repo", tmp_path / "table", tmp_path / "other"
    with NatsServer(BUNDLED) as server:
        asyncio.run(fill(server.url))
        assert typed("backup", "-s", server.url, "-r", repo).code == 0
    assert typed("export", "latest", "-r", repo, "--format", kind, "--output", table).code == 0
    before = typed("show", "latest", "-r", repo, "--json").document["streams"]
    done = typed("import", table, "--format", kind, "-r", other, "--json")
    assert done.code == 0, done.err
    assert done.document["notes"] == [f"stream {s}: 4 messages (the first is 9) have {SAID}" for s in "AB"]
    after = typed("show", "latest", "-r", other, "--json").document["streams"]
    assert [(s["name"], s["digest"]) for s in after] == [(s["name"], s["digest"]) for s in before]
    with NatsServer(BUNDLED) as target:
        done = typed("restore", "latest", "-s", target.url, "-r", other)
        assert done.code == 0 and "verified" in done.out, done


@pytest.mark.parametrize("alone", [True, False])
def test_headers_and_subjects_that_clients_may_not_read_are_said(typed: Type, tmp_path: Path, alone: bool) -> None:
    rows = [Message(3, 0, "a", b"x", b""), Message(4, 0, "a\x0bb", None, b""), Message(9, 0, "a", b"y", b"")]
    kept = keep(tmp_path, {"S": rows, "T": [Message(1, 0, "a", None, b"")]})
    for kind in ("parquet", "jsonl"):
        assert typed("export", "latest", *kept.line, "--format", kind, "--output", tmp_path / kind).code == 0
        where = (tmp_path / kind / "S", "--stream", "S") if alone else (tmp_path / kind,)
        notes = [
            "stream S: 2 messages (the first is 3) have headers that clients may not read: after such a message "
            "nats-py reads nothing more, and nats.go drops them",
            f"stream S: 1 message (4) has {SAID}",
        ]
        line = ("import", *where, "--format", kind, *kept.line)
        assert typed(*line, "--json").document["notes"] == notes
        assert [one for one in typed(*line).out.splitlines() if "clients" in one] == [f"warning: {n}" for n in notes]


@pytest.mark.parametrize("byte", CUTTING, ids=lambda byte: repr(chr(byte)))
def test_a_table_of_others_with_such_subjects_is_refused(typed: Type, tmp_path: Path, byte: int) -> None:
    rows = [Message(1, 5, "a", None, b""), Message(2, 5, f"a{chr(byte)}", None, b"")]
    pq.write_table(pa.Table.from_batches([batch_of(rows)]), tmp_path / "t.parquet")
    line = ("import", tmp_path / "t.parquet", "--stream", "S", "--format", "parquet", "-r", tmp_path / "repo", "--json")
    done = typed(*line)
    message = done.document["error"]["message"]
    assert done.code == 2 and "message 2 has the subject 'a" in message and "which cuts clients off" in message, message
