"""Parts of a backup and a restore, done elsewhere, perhaps for the second time."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Iterator

import pytest

from jsbackup.engine.backup import worker_share
from jsbackup.engine.backup.backup import begin_backup, finish_backup
from jsbackup.engine.backup.run import BackupOptions, BackupRun
from jsbackup.engine.backup.worker_share import RestoredPart, RestorePart, back_up_part, complete, restore_part
from jsbackup.engine.restore.restore import begin_restore, make_sure
from jsbackup.engine.restore.run import RestoreRun, RestoreSettings
from jsbackup.engine.restore.stream_restore import StartingPoint
from jsbackup.errors import DigestMismatch, TransferError
from jsbackup.planning.interrupted import MARKER
from jsbackup.planning.model import IfExists, RestoreOptions
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.objects import folder_of, id_of
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.engine.restores import connection_to
from tests.harness.api import JSON, call, connected
from tests.harness.backups import make_repository
from tests.harness.damage import flip, put_instead
from tests.harness.held import held
from tests.harness.servers import NEWEST, NatsServer

pytestmark = pytest.mark.nats

NAMES = ("A", "B", "C")


@pytest.fixture(autouse=True)
def _without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is on its way here, so nothing has to be waited for."""
    monkeypatch.setattr(worker_share, "_GIVEN_UP_SECONDS", 0)


async def _create(url: str, name: str, messages: int, **more: object) -> None:
    async with connected(url) as nc:
        config: JSON = {"name": name, "subjects": [name], "storage": "file", "retention": "limits", "num_replicas": 1}
        await call(nc, f"STREAM.CREATE.{name}", config | more)
        for number in range(messages):
            await nc.request(name, b"%d" % number)


async def _last(url: str, name: str) -> int:
    async with connected(url) as nc:
        return int((await call(nc, f"STREAM.INFO.{name}"))["state"]["last_seq"])


@pytest.fixture(scope="module")
def source() -> Iterator[str]:
    with NatsServer(NEWEST) as server:
        for name in NAMES:
            asyncio.run(_create(server.url, name, 20))
        yield server.url


@pytest.fixture
def target() -> Iterator[str]:
    with NatsServer(NEWEST) as server:
        yield server.url


def _stored(source: str) -> tuple[Repository, Manifest]:
    """A backup whose streams were stored in two parts, one of them twice."""
    store = MemoryStore(time.time)
    repository = make_repository(store)
    run, lease = BackupRun(connection_to(source), repository, BackupOptions()), held(store)
    begun = complete(begin_backup(run, lease))
    results = []
    for number, names in enumerate((("A", "B"), ("A", "B"), ("C",))):
        streams = tuple(info for info in begun.chosen.streams if info.name in names)
        chosen = pickle.loads(pickle.dumps(type(begun.chosen)(begun.chosen.source, streams, {})))
        part = back_up_part(run, chosen, f"{number:016x}")
        assert not part.failures
        if number:
            results += part.results
    report = finish_backup(run, begun, results, (), lease=lease)
    assert report.manifest is not None
    return repository, report.manifest


def _part(target: str, repository: Repository, manifest: Manifest, if_exists: IfExists = IfExists.FAIL) -> RestorePart:
    options = RestoreOptions(if_exists=if_exists, replace_with_part=True)
    begun = complete(begin_restore(RestoreRun(connection_to(target), options), repository, manifest))
    prepared = make_sure(repository, begun, RestoreSettings())
    (stage,) = prepared.plan.stages
    start = StartingPoint(manifest.id, prepared.target, prepared.marking, prepared.lost)
    made = RestorePart(start, stage)
    arrived: RestorePart = pickle.loads(pickle.dumps(made))
    assert arrived == made
    return arrived


def _restore(target: str, repository: Repository, part: RestorePart, *, again: bool = True) -> RestoredPart:
    return restore_part(RestoreRun(connection_to(target), RestoreOptions()), repository, part, again=again)


def test_a_part_that_was_begun_is_completed(source: str, target: str) -> None:
    repository, manifest = _stored(source)
    assert [stream.captured.messages for stream in manifest.streams] == [20, 20, 20]
    part = _part(target, repository, manifest)
    first = RestorePart(part.start, part.actions[:1])
    (whole,) = _restore(target, repository, first, again=False).results
    assert whole.verified

    async def meanwhile() -> None:
        async with connected(target) as nc:  # what is whole may be written to
            await nc.request(whole.as_name, b"more")
        half = part.actions[1].name
        await _create(target, half, 0, subjects=[half], metadata={MARKER: "x"})

    asyncio.run(meanwhile())
    done = _restore(target, repository, part)
    assert done.failures == () and [stream.name for stream in done.results] == list(NAMES)
    assert all(stream.verified and stream.messages == 20 for stream in done.results)
    found = {name: asyncio.run(_last(target, name)) for name in NAMES}
    assert found == {name: 21 if name == whole.name else 20 for name in NAMES}


def test_what_is_there_and_differs_is_a_failure_and_stays(source: str, target: str) -> None:
    repository, manifest = _stored(source)
    part = _part(target, repository, manifest)
    asyncio.run(_create(target, "A", 7))
    done = _restore(target, repository, part)
    assert [stream.name for stream in done.results] == ["B", "C"]
    (failure,) = done.failures
    assert failure.name == "A" and isinstance(failure.error, DigestMismatch)
    assert asyncio.run(_last(target, "A")) == 7


def test_what_a_worker_found_damaged_is_told_to_the_one_that_records_it(source: str, target: str) -> None:
    repository, manifest = _stored(source)
    part = _part(target, repository, manifest)
    ref, store = manifest.streams[1].segments[0], repository.objects.store
    put_instead(store, ref.key, flip(store.get(ref.key)))
    done: RestoredPart = pickle.loads(pickle.dumps(_restore(target, repository, part, again=False)))
    assert [stream.name for stream in done.results] == ["A", "C"]
    (failure,) = done.failures
    assert failure.name == "B" and failure.error.exit_code == 14 and ref.key in failure.error.message
    assert done.damaged == {id_of(ref): folder_of(ref)}


def test_a_stream_that_was_being_replaced_is_left_to_the_user(source: str, target: str) -> None:
    repository, manifest = _stored(source)
    asyncio.run(_create(target, "A", 7))
    part = _part(target, repository, manifest, IfExists.REPLACE)
    done = _restore(target, repository, part)
    assert [stream.name for stream in done.results] == ["B", "C"]
    (failure,) = pickle.loads(pickle.dumps(done)).failures
    assert isinstance(failure.error, TransferError) and not failure.error.retry
    assert failure.error.message == "the process that was to replace stream A was lost" and failure.error.hint
    assert asyncio.run(_last(target, "A")) == 7


def test_work_is_completed_where_a_loop_runs_and_where_none_does() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    async def notebook() -> int:
        return complete(answer())

    assert complete(answer()) == asyncio.run(notebook()) == 42
