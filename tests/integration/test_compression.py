"""A repository made with --compression: every command that writes segments keeps to it, and what it holds restores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jsbackup.repository.crypto import age
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.harness.api import Wire, call, connected
from tests.harness.commands import PATIENT, jsbackup
from tests.harness.oracle import compare
from tests.harness.servers import NEWEST, NatsServer
from tests.integration.witness import restore, seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

ME = age.age_identity(bytes(range(32)))


async def _create(url: str) -> None:
    async with connected(url) as nc:
        await call(nc, "STREAM.CREATE.S", {"name": "S", "subjects": ["S.>"], "storage": "file", "num_replicas": 1})


async def _publish(url: str, numbers: range) -> None:
    wire = await Wire.open(url)
    for number in numbers:
        await wire.send(f"S.{number % 7}", b'{"number": %d, "text": "the same again"}' % number)
    await wire.replies()
    await wire.close()


def _codecs(repo: Path) -> set[str]:
    """Of all payloads, as the files themselves say."""
    codecs = set()
    for file in repo.glob("segments/**/*.parquet"):
        found = pq.ParquetFile(file)
        column = found.schema_arrow.get_field_index("data")
        groups = range(found.metadata.num_row_groups)
        codecs |= {found.metadata.row_group(group).column(column).compression for group in groups}
    return codecs


@pytest.mark.by_turns
@pytest.mark.parametrize(("how", "codec"), [("none", "UNCOMPRESSED"), ("zstd:5", "ZSTD")])
def test_whoever_writes_segments_keeps_to_it_and_a_restore_gives_the_same(
    how: str, codec: str, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    repo, server = tmp_path / "repo", nats_server(NEWEST)
    init = ("--segment-size", "8KiB", "--compression", how)
    assert jsbackup("init", "-r", repo, *init).ok().document["compression"] == how
    asyncio.run(_create(server.url))
    asyncio.run(_publish(server.url, range(600)))
    jsbackup("backup", "-s", server.url, "-r", repo, *PATIENT).ok()
    asyncio.run(_publish(server.url, range(600, 700)))
    jsbackup("backup", "-s", server.url, "-r", repo, *PATIENT).ok()
    asyncio.run(_publish(server.url, range(700, 720)))
    followed = jsbackup("follow", "-s", server.url, "-r", repo, "--for", "1ms").ok().document
    out = tmp_path / "out"
    jsbackup("export", followed["newest"], "-r", repo, "--format", "nats-cli", "--output", out).ok()
    jsbackup("import", out, "-r", repo, "--tag", "again=1").ok()
    assert _codecs(repo) == {codec}
    jsbackup("verify", "-r", repo, "--level", "data").ok()

    copy = tmp_path / "copy"
    jsbackup("copy", "-r", repo, "--to-repo", copy).ok()
    assert str(Repository.open(LocalStore(copy)).descriptor.compression) == how
    assert _codecs(copy) == {codec}

    other = nats_server(NEWEST)
    restore(other.url, copy)
    assert compare(seen(server.url), seen(other.url)) == []
    checks = {check["check"]: check for check in jsbackup("doctor", "-r", copy).document["checks"]}
    assert f"compression {how}" in checks["repository"]["found"]
