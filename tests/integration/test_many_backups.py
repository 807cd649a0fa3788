"""A real backup of 50 streams where there are ten thousand already: how many requests the store gets.

`tests/repository/test_scale.py` counts those of every command, with a model of a backup.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest

from jsbackup.config.connection import ConnectionOptions, source_connection
from jsbackup.engine.backup.backup import BackupReport, run_backup
from jsbackup.engine.backup.run import BackupOptions, BackupRun
from jsbackup.repository.keep.leases import Mode, Terms, acquire
from jsbackup.repository.repository import Repository
from tests.harness.api import Wire, call, connected
from tests.harness.backups import CREATED
from tests.harness.counting import PAGE, CountingStore
from tests.harness.many import ManyBackups
from tests.harness.servers import NatsServer

pytestmark = pytest.mark.nats

BACKUPS = 10_000
UNCOVERED = 90
PAGES = BACKUPS // PAGE + 1
STREAMS = [f"REAL_{number:02}" for number in range(50)]
CHANGED = STREAMS[:5]
# Own and other leases, the descriptor, at the start and the end, and whether there is a second one, receipts, catalogs,
# the manifest, and what the last witness says.
FIXED = 24


async def _create(url: str) -> None:
    async with connected(url) as nc:
        for name in STREAMS:
            config = {"name": name, "subjects": [f"{name}.>"], "retention": "limits", "storage": "file"}
            await call(nc, f"STREAM.CREATE.{name}", {**config, "num_replicas": 1})


async def _publish(url: str, names: list[str]) -> None:
    wire = await Wire.open(url)
    for name in names:
        for number in range(10):
            await wire.send(f"{name}.{number}", b"x" * 100)
    await wire.replies()
    await wire.close()


def back_up(store: CountingStore, url: str) -> BackupReport:
    connection = source_connection(ConnectionOptions(server=url), {"HOME": "/nonexistent"})
    terms = Terms(Mode.SHARED, "backup", "tests", "tests", CREATED, 9999)
    lease = acquire(store, terms, wait_seconds=0, clock=lambda: 0.0, sleep=lambda seconds: None, random=os.urandom)
    report = asyncio.run(run_backup(BackupRun(connection, Repository.open(store), BackupOptions()), lease))
    lease.release()
    assert report.failures == () and len(report.streams) == len(STREAMS)
    return report


@pytest.mark.by_turns
def test_it_asks_little(nats_server: Callable[..., NatsServer]) -> None:
    url = nats_server("2.15.1").url
    asyncio.run(_create(url))
    asyncio.run(_publish(url, STREAMS))
    store = ManyBackups(BACKUPS, uncovered=UNCOVERED)
    first = CountingStore(store)
    back_up(first, url)
    # None of these streams is in any backup: the newest of each kind are looked through, in the catalog and beyond it,
    # and once more at the end for what the server may have lost.
    assert first.total <= 5 * PAGES + 2 * UNCOVERED + len(STREAMS) + FIXED, first.requests
    asyncio.run(_publish(url, CHANGED))
    second = CountingStore(store)
    report = back_up(second, url)
    assert sum(one.stored_bytes > 0 for one in report.streams) == len(CHANGED)
    # A look at what each stream has, once or, where it is read as an increment, for that too.
    assert second.total <= 3 * PAGES + len(STREAMS) + 2 * len(CHANGED) + FIXED, second.requests
