"""The jsm.go driver makes and takes real backups, so that tests of the exchange with the nats CLI stand on fact."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.harness.api import connected
from tests.harness.awkward import fill
from tests.harness.natscli import (
    META_FILE,
    ToolFailed,
    data_file,
    jsm_account_backup,
    jsm_backup,
    jsm_restore,
    jsm_validate,
    run_nats,
)
from tests.harness.oracle import ObservedStream, compare, observe
from tests.harness.servers import NEWEST, VERSIONS, NatsServer, version_tuple

# The first use builds the driver, which takes Go half a minute or more.
pytestmark = [pytest.mark.nats, pytest.mark.natscli, pytest.mark.timeout(600)]

ONLY = ("GAPS", "PULL", "PAYLOADS")


async def _fill(url: str, version: str) -> dict[str, ObservedStream]:
    async with connected(url) as nc:
        await fill(nc, version, ONLY)
        return await observe(nc)


async def _observe(url: str) -> dict[str, ObservedStream]:
    async with connected(url) as nc:
        return await observe(nc)


@pytest.mark.parametrize("version", [VERSIONS[0], NEWEST])
def test_a_backup_by_jsm_restores_by_jsm(version: str, tmp_path: Path) -> None:
    with NatsServer(version) as source, NatsServer(version) as target:
        before = asyncio.run(_fill(source.url, version))
        jsm_account_backup(source.url, before, tmp_path)
        for name in before:
            assert {path.name for path in (tmp_path / name).iterdir()} == {data_file(version), META_FILE}
            assert json.loads((tmp_path / name / META_FILE).read_text()).keys() == {"config", "state"}
            state = jsm_restore(target.url, name, tmp_path / name)
            assert state["messages"] == len(before[name].messages)
        assert compare(before, asyncio.run(_observe(target.url))) == []
    found = jsm_validate([tmp_path / name for name in before])
    if version_tuple(version) < (2, 15):  # archives v1 are not read by what looks into them
        assert all("stream backup" in one["error"] for one in found.values())
    else:
        assert {name: (one["error"], one["messages"]) for name, one in found.items()} == {
            name: ("", len(stream.messages)) for name, stream in before.items()
        }


def test_what_the_server_refuses_is_said(tmp_path: Path) -> None:
    with NatsServer(NEWEST) as server, pytest.raises(ToolFailed, match="stream not found"):
        jsm_backup(server.url, "NONE", tmp_path)


def test_the_real_tool_runs_where_there_is_one() -> None:
    with NatsServer(NEWEST) as server:
        assert "JetStream" in run_nats("account", "info", url=server.url)
