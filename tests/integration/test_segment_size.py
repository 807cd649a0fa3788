"""A repository made with --segment-size: every command that writes segments keeps to it, and what it holds restores."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.harness.api import Wire, call, connected
from tests.harness.commands import PATIENT, jsbackup
from tests.harness.oracle import compare
from tests.harness.servers import NEWEST, NatsServer
from tests.integration.witness import restore, seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

SIZE = 8 << 10


async def _create(url: str) -> None:
    async with connected(url) as nc:
        await call(nc, "STREAM.CREATE.S", {"name": "S", "subjects": ["S.>"], "storage": "file", "num_replicas": 1})


async def _publish(url: str, numbers: range) -> None:
    wire = await Wire.open(url)
    chance = random.Random(numbers.start)
    for number in numbers:
        await wire.send(f"S.{number % 7}", chance.randbytes(200))
    await wire.replies()
    await wire.close()


def _segments(repository: Path, backup: str) -> list[SegmentRef]:
    return [ref for s in Repository.open(LocalStore(repository)).manifest(backup).streams for ref in s.segments]


def _kept_to(refs: list[SegmentRef]) -> bool:
    """Whether all have at most that size, and nearly all of them about that."""
    full = [ref for ref in refs if ref.bytes > SIZE - 300]
    return all(ref.bytes <= SIZE for ref in refs) and len(full) >= len(refs) - 4


def test_whoever_writes_segments_keeps_to_the_size_and_a_restore_gives_the_same(
    nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    repo, server = tmp_path / "repo", nats_server(NEWEST)
    made = jsbackup("init", "-r", repo, "--segment-size", "8KiB").ok().document
    assert made["segment_bytes"] == SIZE
    asyncio.run(_create(server.url))
    asyncio.run(_publish(server.url, range(600)))
    first = jsbackup("backup", "-s", server.url, "-r", repo, *PATIENT).ok().document
    refs = _segments(repo, first["backup"])
    assert len(refs) > 15 and _kept_to(refs)

    asyncio.run(_publish(server.url, range(600, 700)))
    second = jsbackup("backup", "-s", server.url, "-r", repo, *PATIENT).ok().document
    (stream,) = second["streams"]
    assert stream["segments_reused"] >= len(refs) - 1 and _kept_to(_segments(repo, second["backup"]))

    asyncio.run(_publish(server.url, range(700, 900)))
    followed = jsbackup("follow", "-s", server.url, "-r", repo, "--for", "1ms").ok().document
    refs = _segments(repo, followed["newest"])
    assert sum(ref.messages for ref in refs) == 900 and _kept_to(refs)

    copy = tmp_path / "copy"
    jsbackup("copy", "-r", repo, "--to-repo", copy).ok()
    assert Repository.open(LocalStore(copy)).descriptor.segment_bytes == SIZE
    out = tmp_path / "out"
    jsbackup("export", followed["newest"], "-r", copy, "--format", "nats-cli", "--output", out).ok()
    imported = jsbackup("import", out, "-r", copy, "--tag", "again=1").ok().document
    assert _kept_to(_segments(copy, imported["backup"]))

    other = nats_server(NEWEST)
    restore(other.url, repo)
    assert compare(seen(server.url), seen(other.url)) == []
    checks = {check["check"]: check for check in jsbackup("doctor", "-r", repo).document["checks"]}
    assert "segments of 8192 bytes" in checks["repository"]["found"]


def test_a_new_signed_replica_takes_the_size_too(nats_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    repo, replica, server, key = tmp_path / "repo", tmp_path / "replica", nats_server(NEWEST), tmp_path / "writer"
    jsbackup("init", "-r", repo, "--sign", "--writer-key", key, "--segment-size", "8K").ok()
    asyncio.run(_create(server.url))
    asyncio.run(_publish(server.url, range(200)))
    made = jsbackup("backup", "-s", server.url, "-r", repo, "--writer-key", key, *PATIENT).ok().document
    jsbackup("copy", "-r", repo, "--to-repo", replica, "--writer-key", key).ok()
    assert Repository.open(LocalStore(replica)).descriptor.segment_bytes == SIZE
    assert _kept_to(_segments(replica, made["backup"]))
