"""The backup of a real server, stopped at every single store operation.

`tests/repository/test_crash.py` does the same with what the other commands do, and with more that can have been before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from jsbackup.config.connection import ConnectionOptions, source_connection
from jsbackup.engine.backup.backup import BackupReport, run_backup
from jsbackup.engine.backup.run import BackupOptions, BackupRun
from jsbackup.engine.read.increment import Incremental
from jsbackup.errors import RepositoryLocked, StoreError
from jsbackup.repository import layout
from jsbackup.repository.keep.leases import Mode
from jsbackup.repository.layout import ObjectKind
from jsbackup.repository.manifest import BackupResult, Manifest
from jsbackup.repository.write import receipts
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.stores.base import Store
from tests.harness.api import Wire, call, connected
from tests.harness.history import Scene, initialise
from tests.harness.inline import run_inline
from tests.harness.servers import NatsServer
from tests.harness.stores import Fault, FaultStore, Killed
from tests.repository.test_crash import assert_prunes_exactly, segments_of

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

PUT = {ObjectKind.LEASE, ObjectKind.SEGMENT, ObjectKind.RECEIPT, ObjectKind.MANIFEST}
STREAMS = {"ORDERS": "limits", "QUEUE": "workqueue", "EMPTY": "limits"}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many segments, and a receipt with each."""
    run_inline(monkeypatch)
    defaults = SegmentWriter.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "segment_bytes", 20_000)
    monkeypatch.setattr(receipts, "_EVERY_BYTES", 1)


async def _create(url: str) -> None:
    async with connected(url) as nc:
        for name, retention in STREAMS.items():
            config = {"name": name, "subjects": [f"{name}.>"], "retention": retention, "storage": "file"}
            await call(nc, f"STREAM.CREATE.{name}", {**config, "num_replicas": 1})
            consumer = {"stream_name": name, "config": {"durable_name": "some", "ack_policy": "explicit"}}
            await call(nc, f"CONSUMER.DURABLE.CREATE.{name}.some", consumer)


async def _publish(url: str, seed: int) -> None:
    wire, chance = await Wire.open(url), random.Random(seed)
    for number in range(60):
        await wire.send(f"{('ORDERS', 'QUEUE')[number % 2]}.a", chance.randbytes(1000))
    await wire.replies()
    await wire.close()


def back_up(scene: Scene, store: Store, url: str, incremental: Incremental) -> BackupReport:
    """As a process of its own does it: whoever wrote a segment can read it as long as it runs."""
    connection = source_connection(ConnectionOptions(server=url), {"HOME": "/nonexistent"})
    options = BackupOptions(incremental=incremental, jobs=1)
    with scene.lease(store, Mode.SHARED, "backup") as lease:
        return asyncio.run(run_backup(BackupRun(connection, scene.open(store), options), lease))


def holds(manifest: Manifest | None) -> dict[str, str]:
    assert manifest is not None
    return {stream.name: stream.digest.hex for stream in manifest.streams}


@pytest.mark.by_turns
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("kind", "incremental", "fault"),
    [
        ("plain", Incremental.NEVER, Fault.FAIL),
        ("signed", Incremental.ALWAYS, Fault.LOSE_ANSWER),
        ("encrypted", Incremental.NEVER, Fault.KILL_AFTER),
    ],
)
def test_what_was_committed_stays_and_a_rerun_stores_the_rest(
    kind: str, incremental: Incremental, fault: Fault, nats_server: Callable[..., NatsServer]
) -> None:
    url = nats_server("2.15.1").url
    asyncio.run(_create(url))
    asyncio.run(_publish(url, 1))
    before = Scene(kind)
    initialise(before, before.store)
    back_up(before, before.store, url, Incremental.NEVER)
    asyncio.run(_publish(url, 2))
    whole = before.copy()
    watched = FaultStore(whole.store)
    wanted = holds(back_up(whole, watched, url, incremental).manifest)
    was = before.assert_sound()
    assert len(was) == 1 and len(whole.assert_sound()) == 2 and set(wanted) == set(STREAMS)
    assert {layout.kind_of(key) for operation, key in watched.log if operation == "put"} >= PUT
    for at in range(1, watched.operations + 1):
        scene = before.copy()
        with suppress(Killed, BaseExceptionGroup, StoreError, RepositoryLocked):
            report = back_up(scene, FaultStore(scene.store, fault, at=at), url, incremental)
            assert fault is not Fault.KILL_AFTER
            partial = report.manifest is None or report.manifest.result is BackupResult.PARTIAL
            assert partial == bool(report.failures)
        there = scene.assert_sound()
        assert there[:1] == was and len(there) <= 2
        again = back_up(scene, scene.store, url, incremental)
        assert holds(again.manifest) == wanted and again.failures == ()
        if there == was:
            assert len(segments_of(scene)) <= len(segments_of(whole)) + (kind == "encrypted")
        assert_prunes_exactly(scene)
        assert len(scene.assert_sound()) == len(there) + 1
    assert not list(whole.store.list(layout.RECEIPTS))
