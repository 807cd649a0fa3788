"""A stream whose segments are in pages: what a backup writes does not grow with the stream, and all comes back."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.api import Wire, call, connected
from tests.harness.commands import PATIENT, jsbackup
from tests.harness.oracle import compare
from tests.harness.servers import NEWEST, NatsServer
from tests.harness.stored_files import segment_files
from tests.integration.witness import restore, seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

MESSAGES = 3000  # of 1 KB, in segments of 4 KiB: some 750 of them


async def _create(url: str) -> None:
    async with connected(url) as nc:
        config = {"name": "S", "subjects": ["S.>"], "storage": "file", "num_replicas": 1}
        await call(nc, "STREAM.CREATE.S", config)


async def _publish(url: str, numbers: range) -> None:
    wire = await Wire.open(url)
    chance = random.Random(numbers.start)
    for number in numbers:
        await wire.send(f"S.{number % 7}", chance.randbytes(1000))
    await wire.replies()
    await wire.close()


async def _delete(url: str, *sequences: int) -> None:
    async with connected(url) as nc:
        for sequence in sequences:
            await call(nc, "STREAM.MSG.DELETE.S", {"seq": sequence})


async def _purge(url: str, below: int) -> None:
    async with connected(url) as nc:
        await call(nc, "STREAM.PURGE.S", {"seq": below})


def _files(repo: Path) -> set[Path]:
    return {path for path in repo.rglob("*") if path.is_file()}


def _manifest(repo: Path, backup: str) -> dict[str, object]:
    path = repo / "backups" / f"{backup}.json"
    assert path.stat().st_size < 64 << 10
    manifest: dict[str, object] = json.loads(path.read_text())
    return manifest


@pytest.mark.by_turns
def test_a_long_stream_is_backed_up_at_the_cost_of_what_changed_and_restored_at_any_backup(
    nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    repo, server = tmp_path / "repo", nats_server(NEWEST)
    jsbackup("init", "-r", repo, "--segment-size", "4KiB").ok()
    asyncio.run(_create(server.url))
    asyncio.run(_publish(server.url, range(MESSAGES)))
    backups: list[str] = []
    expected = []

    def back_up() -> set[Path]:
        before = _files(repo)
        done = jsbackup("backup", "-s", server.url, "-r", repo, *PATIENT).ok().document
        backups.append(done["backup"])
        expected.append(seen(server.url))
        return {path for path in _files(repo) - before if path.name.startswith("page-")}

    assert len(back_up()) > 10
    (stream,) = _manifest(repo, backups[0])["streams"]
    assert len(segment_files(repo, stream)) > 700

    asyncio.run(_publish(server.url, range(MESSAGES, MESSAGES + 10)))
    assert len(back_up()) <= 3
    assert back_up() == set(), "nothing has changed"
    asyncio.run(_delete(server.url, 1500, 1501))
    assert 1 <= len(back_up()) <= 8
    asyncio.run(_purge(server.url, 900))
    assert 1 <= len(back_up()) <= 12

    asyncio.run(_publish(server.url, range(MESSAGES + 10, MESSAGES + 60)))
    before = _files(repo)
    jsbackup("follow", "-s", server.url, "-r", repo, "--for", "1ms").ok()
    pages = {path for path in _files(repo) - before if path.name.startswith("page-")}
    assert len(pages) <= 6

    jsbackup("verify", "--level", "data", "-r", repo).ok()
    for number, backup in enumerate(backups):
        if number in (0, 3, 4):
            other = nats_server(NEWEST)
            jsbackup("restore", backup, "-s", other.url, "-r", repo, *PATIENT).ok()
            assert compare(expected[number], seen(other.url)) == []
            other.stop()

    jsbackup("forget", "--keep-last", "1", "--prune", "--grace", "0s", "-r", repo).ok()
    other = nats_server(NEWEST)
    restore(other.url, repo)
    assert compare(seen(server.url), seen(other.url)) == []
    shutil.rmtree(repo)
