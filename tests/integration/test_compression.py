"""A repository made with --compression: every command that writes segments keeps to it, and what it holds restores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.harness.commands import PATIENT, jsbackup
from tests.harness.filling import fill, publish
from tests.harness.oracle import compare
from tests.harness.servers import NEWEST, NatsServer
from tests.integration.witness import restore, seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]


def _text(number: int) -> str:
    return f'{{"number": {number}, "text": "the same again"}}'


def _codecs(repo: Path) -> set[str]:
    """Of all payloads, as the files themselves say."""
    codecs = set()
    for file in repo.glob("segments/**/*.parquet"):
        found = pq.ParquetFile(file)
        column = found.schema_arrow.get_field_index("data")
        groups = range(found.metadata.num_row_groups)
        codecs |= {found.metadata.row_group(group).column(column).compression for group in groups}
    return codecs


def test_whoever_writes_segments_keeps_to_it_and_a_restore_gives_the_same(
    nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    repo, server = tmp_path / "repo", nats_server(NEWEST)
    jsbackup("init", "-r", repo, "--segment-size", "8KiB", "--compression", "none").ok()
    asyncio.run(fill(server.url, "S", map(_text, range(600)), num_replicas=1))
    jsbackup("backup", "-s", server.url, "-r", repo, *PATIENT).ok()
    asyncio.run(publish(server.url, "s.1", map(_text, range(600, 700))))
    jsbackup("backup", "-s", server.url, "-r", repo, *PATIENT).ok()
    asyncio.run(publish(server.url, "s.1", map(_text, range(700, 720))))
    followed = jsbackup("follow", "-s", server.url, "-r", repo, "--for", "1ms").ok().document
    out = tmp_path / "out"
    jsbackup("export", followed["newest"], "-r", repo, "--format", "nats-cli", "--output", out).ok()
    jsbackup("import", out, "-r", repo, "--tag", "again=1").ok()
    assert _codecs(repo) == {"UNCOMPRESSED"}
    jsbackup("verify", "-r", repo, "--level", "data").ok()

    copy = tmp_path / "copy"
    jsbackup("copy", "-r", repo, "--to-repo", copy).ok()
    assert str(Repository.open(LocalStore(copy)).descriptor.compression) == "none"
    assert _codecs(copy) == {"UNCOMPRESSED"}

    other = nats_server(NEWEST)
    restore(other.url, copy)
    assert compare(seen(server.url), seen(other.url)) == []
    checks = {check["check"]: check for check in jsbackup("doctor", "-r", copy).document["checks"]}
    assert "compression none" in checks["repository"]["found"]
