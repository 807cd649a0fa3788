"""The public face where something is wrong: the errors are those of the command line."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import shutil
import signal
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import jsbackup
from jsbackup.repository.keep.leases import list_leases
from jsbackup.stores.local import LocalStore
from tests.api.shop import Shop, fill, look, rows
from tests.harness.api import call, connected
from tests.harness.commands import jsbackup as run
from tests.harness.oracle import compare
from tests.harness.servers import NEWEST, NatsServer

pytestmark = pytest.mark.nats

errors = jsbackup.errors


def test_no_repository(tmp_path: Path, shop: Shop) -> None:
    with pytest.raises(errors.RepositoryNotFound, match="no repository at"):
        jsbackup.open(tmp_path / "nothing")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(errors.RepositoryNotFound, match="other files"):
        jsbackup.open(tmp_path / "full", create=True)
    empty = jsbackup.open(tmp_path / "new", create=True)
    assert empty.backups() == [] and not (tmp_path / "new").exists()
    with pytest.raises(errors.UsageError, match="no backup"):
        empty.latest()
    with pytest.raises(errors.UsageError, match="no stream matches NONE"):
        jsbackup.backup(shop.url, empty, streams="NONE")
    assert not (tmp_path / "new").exists()


def test_what_is_not_there(shop: Shop) -> None:
    repository = jsbackup.open(shop.folder)
    with pytest.raises(errors.UsageError, match="no backup"):
        repository["20200101T000000Z-abcdef"].complete  # noqa: B018
    backup = repository.latest()
    with pytest.raises(errors.UsageError, match="has no stream ORDER") as raised:
        backup["ORDER"]
    assert "ORDERS" in (raised.value.hint or "")
    with pytest.raises(errors.UsageError):
        jsbackup.plan(backup, shop.url, streams="NONE")


def test_arguments_that_make_no_sense(shop: Shop) -> None:
    backup = jsbackup.open(shop.folder).latest()
    orders = backup["ORDERS"]
    without_zone = datetime(2026, 1, 1)
    for arguments in ({"since": "soon"}, {"since": 9, "until": 3}, {"subject": "a..b"}, {"until": without_zone}):
        with pytest.raises(errors.UsageError):
            orders.messages(**arguments)  # type: ignore[arg-type]
    wrong: list[dict[str, Any]] = [
        {"if_exists": "maybe"},
        {"replicas": 7},
        {"config": {"storage": "paper"}},
        {"consumers": "some"},
        {"unmaskable": "hide"},
        {"config": {"name": "X"}},
        {"config": {"max_msgs": "many"}},
        {"config": {"num_replicas": 1}, "replicas": 1},
        {"mask": "orders.>:$.a=hash"},
    ]
    for arguments in wrong:
        with pytest.raises(errors.UsageError):
            jsbackup.restore(backup, shop.url, **arguments)
    with pytest.raises(TypeError, match=r"the result of jsbackup\.open"):
        jsbackup.backup(shop.url, "repo")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"the result of jsbackup\.open"):
        jsbackup.plan("latest", shop.url)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"restore\(\).*'stream'"):
        jsbackup.restore(backup, shop.url, stream="ORDERS")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"messages\(\).*'sinse'"):
        orders.messages(sinse=9)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"put_back\(\).*'kv_compact'"):
        jsbackup.put_back(backup, shop.url, "ORDERS", kv_compact=True)  # type: ignore[call-arg]
    with pytest.raises(errors.UsageError, match="jobs"):
        jsbackup.backup(shop.url, backup.repository, jobs=0)
    with pytest.raises(errors.UsageError, match="incremental"):
        jsbackup.backup(shop.url, backup.repository, incremental="often")  # type: ignore[arg-type]
    with pytest.raises(errors.UsageError, match="not a tag"):
        jsbackup.backup(shop.url, backup.repository, tags={"number": 1})  # type: ignore[dict-item]
    with pytest.raises(errors.UsageError, match="zone"):
        jsbackup.backup(shop.url, backup.repository, lock_until=datetime(2026, 1, 1))
    with pytest.raises(errors.UnsupportedError, match="lock"):
        jsbackup.backup(shop.url, backup.repository, lock_until=timedelta(days=1))  # a folder cannot


def test_the_server_is_down(shop: Shop, tmp_path: Path) -> None:
    with NatsServer(NEWEST) as server:
        url = server.url
    repository = jsbackup.open(tmp_path / "repo", create=True)
    for action in (
        lambda: jsbackup.backup(url, repository),
        lambda: jsbackup.restore(jsbackup.open(shop.folder).latest(), url),
        lambda: jsbackup.plan(jsbackup.open(shop.folder), url),
        lambda: jsbackup.open(shop.folder).latest(server=url),
    ):
        with pytest.raises(errors.NatsError):
            action()
    assert not (tmp_path / "repo").exists()


def test_what_stands_against_a_restore(shop: Shop) -> None:
    repository = jsbackup.open(shop.folder)
    before = look(shop.url)
    planned = jsbackup.plan(repository, shop.url)
    assert not planned.ok and {found.rule for found in planned.refusals} == {"exists"}
    with pytest.raises(errors.TargetConflict):
        planned.check()
    with pytest.raises(errors.TargetConflict, match="nothing was restored"):
        jsbackup.restore(repository, shop.url)
    with pytest.raises(errors.PlanRefused):  # a part, in place of a stream that has more
        jsbackup.restore(repository, shop.url, streams="ORDERS", until=5, if_exists="replace")
    assert compare(before, look(shop.url)) == []


def test_a_partial_backup_is_an_error_that_has_the_backup(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repository = jsbackup.open(tmp_path / "repo", create=True)
    with NatsServer(NEWEST) as server:
        asyncio.run(fill(server.url, count=20))
        jsbackup.backup(server.url, repository)

        async def empty() -> None:
            async with connected(server.url) as nc:
                for name in ("ORDERS", "EMPTY", "KV_settings"):
                    await call(nc, f"STREAM.DELETE.{name}")

        asyncio.run(empty())
        with pytest.raises(errors.IncompleteError, match="is partial") as raised:
            jsbackup.backup(server.url, repository)
        assert isinstance(raised.value.result, jsbackup.Backup) and not raised.value.result.complete
        assert set(raised.value.result.skipped) == {"ORDERS", "KV_settings"}
        with caplog.at_level(logging.WARNING):
            assert "ORDERS" in repository.latest(server=server.url)
        assert raised.value.result.id in caplog.text
        assert jsbackup.backup(server.url, repository, allow_nothing=True).complete


def test_a_damaged_backup_tells_when_it_is_asked(shop: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(shop.folder, folder)
    repository = jsbackup.open(folder)
    (segment,) = [path for path in folder.rglob("*.parquet") if "ORDERS" in str(path)]
    segment.chmod(0o600)
    content = bytearray(segment.read_bytes())
    content[100] ^= 1
    segment.write_bytes(content)
    with pytest.raises(errors.IntegrityError):
        rows(repository.latest()["ORDERS"].messages())
    (manifest,) = [path for path in folder.rglob("*.json") if shop.backup in str(path) and "backups" in str(path)]
    manifest.chmod(0o600)
    manifest.write_bytes(b"{}")
    shutil.rmtree(folder / "catalog", ignore_errors=True)
    (listed,) = jsbackup.open(folder).backups()
    assert listed.id == shop.backup
    with pytest.raises(errors.IntegrityError):
        listed.complete  # noqa: B018


def test_a_backup_without_messages_has_none_to_read(shop: Shop, tmp_path: Path) -> None:
    made = jsbackup.backup(shop.url, jsbackup.open(tmp_path / "repo", create=True), config_only=True)
    with pytest.raises(errors.UsageError, match="only the configuration"):
        made["ORDERS"].messages()


# --- interruptions ---


@pytest.fixture
def large(tmp_path: Path) -> Any:
    with NatsServer(NEWEST) as server:
        asyncio.run(fill(server.url, count=3000, size=1000))
        yield server


class _PressOnce:
    """Ctrl-C, once messages are on their way."""

    def __init__(self) -> None:
        self.pressed = False

    def __call__(self, now: jsbackup.StreamProgress) -> None:
        if now.done_bytes and not self.pressed:
            self.pressed = True
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)  # on a busy machine the work might be done before anybody is interrupted


def test_an_interrupted_backup_leaves_nothing_half_made(large: NatsServer, tmp_path: Path) -> None:
    repository = jsbackup.open(tmp_path / "repo", create=True)
    with pytest.raises(KeyboardInterrupt):
        jsbackup.backup(large.url, repository, progress=_PressOnce())
    assert repository.backups() == []
    assert list_leases(LocalStore(tmp_path / "repo")) == []
    made = jsbackup.backup(large.url, repository)
    assert made.complete and made["ORDERS"].message_count == 2999
    assert run("verify", "--level", "data", "-r", tmp_path / "repo").ok().code == 0


@pytest.mark.by_turns
def test_an_interrupted_restore_leaves_nothing_half_made(large: NatsServer, tmp_path: Path, target: NatsServer) -> None:
    made = jsbackup.backup(large.url, jsbackup.open(tmp_path / "repo", create=True))
    with pytest.raises(KeyboardInterrupt):
        jsbackup.restore(made, target.url, streams="ORDERS", progress=_PressOnce())
    assert look(target.url) == {}
    jsbackup.restore(made, target.url)
    assert compare(look(large.url), look(target.url)) == []


def test_a_cancelled_task_leaves_nothing_half_made(large: NatsServer, tmp_path: Path) -> None:
    repository = jsbackup.open(tmp_path / "repo", create=True)

    async def cell() -> None:
        loop, seen = asyncio.get_running_loop(), list[str]()

        def begun(now: jsbackup.StreamProgress) -> None:
            if now.done_bytes and not seen:
                seen.append(now.stream)
                loop.call_soon_threadsafe(task.cancel)
                time.sleep(1)

        task = asyncio.create_task(jsbackup.backup_async(large.url, repository, progress=begun))
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cell())
    assert repository.backups() == []
    assert list_leases(LocalStore(tmp_path / "repo")) == []


def test_who_waits_for_a_lease_is_interrupted_at_once(shop: Shop, tmp_path: Path) -> None:
    from jsbackup.engine.backup.lease_renewal import hold_lease, lease_terms
    from jsbackup.repository.keep.leases import Mode

    folder = tmp_path / "copy"
    shutil.copytree(shop.folder, folder)
    repository = jsbackup.open(folder)

    async def cell() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(jsbackup.backup_async(shop.url, repository), 2)

    terms = lease_terms("prune", Mode.EXCLUSIVE)
    with hold_lease(LocalStore(folder), terms, wait_seconds=0, waiting=lambda error: None):
        asyncio.run(cell())
        with pytest.raises(errors.RepositoryLocked, match="prune"):
            jsbackup.backup(shop.url, repository, lock_timeout_seconds=0)
    assert list_leases(LocalStore(folder)) == []


def test_a_callback_that_fails_stops_nothing(shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(now: jsbackup.StreamProgress) -> None:
        raise RuntimeError("the bar is closed")

    assert jsbackup.backup(shop.url, jsbackup.open(tmp_path / "repo", create=True), progress=fail).complete
    assert caplog.text.count("RuntimeError: the bar is closed") == 1


def test_help_tells_what_there_is() -> None:
    for name in jsbackup.__all__:
        found = getattr(jsbackup, name)
        assert name == "__version__" or inspect.getdoc(found), name
    assert str(inspect.signature(jsbackup.backup_async)).endswith("-> 'Backup'")
    assert jsbackup.restore_async.__name__ == "restore_async"
