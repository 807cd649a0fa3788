"""A restore into a cluster of which a server stops: what it was given is restored by the servers that live, and a
stream that does not answer blocks only itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import jsbackup.engine.restore.restore as jsbackup_restore
from jsbackup.config.connection import ConnectionOptions, source_connection
from jsbackup.engine.restore.restore import RestoreReport, run_restore
from jsbackup.engine.restore.run import RestoreRun
from jsbackup.planning.model import RestoreOptions
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.harness.api import call, connected, publish_stored
from tests.harness.clusters import NatsCluster
from tests.harness.commands import PATIENT, jsbackup
from tests.harness.servers import NEWEST, NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(240)]

NAMES = [f"S{number}" for number in range(8)]


async def make(url: str, *names: str) -> None:
    async with connected(url) as nc:
        for name in names:
            config = {"name": name, "subjects": [f"{name}.>"], "storage": "file", "num_replicas": 1}
            await call(nc, f"STREAM.CREATE.{name}", {**config, "retention": "limits"})
            await publish_stored(nc, f"{name}.1", b"x" * 1000)


async def restore(url: str, repo: Path) -> RestoreReport:
    repository = Repository.open(LocalStore(repo))
    (backup,) = repository.backups()
    connection = source_connection(ConnectionOptions(server=url), {"HOME": "/nonexistent"})
    manifest = repository.manifest(backup)
    return await run_restore(RestoreRun(connection, RestoreOptions()), repository, manifest)


def test_a_server_that_stops_when_streams_are_given_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with NatsServer(NEWEST) as origin:
        asyncio.run(make(origin.url, *NAMES))
        jsbackup("backup", "-r", tmp_path, "-s", origin.url, *PATIENT).ok()
    with NatsCluster(NEWEST) as cluster:
        asyncio.run(make(cluster.url, "OTHER"))
        lost, carry_out = cluster.leader_of("OTHER"), jsbackup_restore.carry_out_restore
        while cluster.meta_leader is lost:
            lost.restart()
            cluster.wait_ready()
        cluster.leader_of("OTHER")
        url = ",".join(server.url for server in cluster.servers if server is not lost)

        async def lose_it(*arguments: Any, **named: Any) -> RestoreReport:
            # The plan is made, and the cluster takes the server for a living one yet.
            lost.freeze()
            return await carry_out(*arguments, **named)

        monkeypatch.setattr(jsbackup_restore, "carry_out_restore", lose_it)
        try:
            report = asyncio.run(restore(url, tmp_path))
            assert report.failures == () and [one.name for one in report.streams] == NAMES
            assert all(one.verified and one.messages == 1 for one in report.streams)

            # Another stream has no leader: that is nothing to these.
            latest = ("restore", "latest", "-r", tmp_path, "-s", url)
            again = jsbackup(*latest, "--if-exists", "skip").ok().document
            assert [one["reason"] for one in again["skipped"]] == ["exists at the target"] * len(NAMES)
            needed = jsbackup(*latest, "S0", "--rename", "S0=OTHER")
            assert needed.code == 16 and "does not answer" in needed.document["error"]["message"]
            planned = jsbackup("plan", *latest[1:], "S0", "--rename", "S0=OTHER")
            assert planned.code == 16 and "does not answer" in planned.document["refusals"][0]["reason"]
            skipped = jsbackup(*latest, "--rename", "S0=OTHER", "--if-exists", "skip")
            assert skipped.code == 3 and "does not answer" in skipped.document["skipped"][0]["reason"]
        finally:
            lost.thaw()
