"""What a killed command has locked: the next one on this machine is not kept waiting, and nobody else's lease goes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup.repository import layout
from jsbackup.repository.keep.leases import Mode, list_leases
from jsbackup.stores.local import LocalStore
from tests.harness.backups import FIRST, make_repository, store_backup
from tests.harness.commands import command_line, environment, jsbackup
from tests.harness.filling import fill
from tests.harness.servers import NEWEST, NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

FAR_SECONDS = 120.0


def killed(repo: Path, mode: Mode, *arguments: str) -> None:
    """Run a command, and kill it while it holds a lease of that mode."""
    for _ in range(10):
        with subprocess.Popen(
            command_line(*arguments, "-r", repo),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
        ) as child:
            deadline = time.monotonic() + FAR_SECONDS
            while child.poll() is None and not list((repo / "locks").glob(f"*-{mode}-*")):
                assert time.monotonic() < deadline
            child.kill()
            out, _ = child.communicate()
        if list((repo / "locks").glob(f"*-{mode}-*")):
            return
    pytest.fail(f"the command was never caught with its lease: {out}")


@pytest.mark.parametrize("command", ["backup", "follow"])
def test_a_prune_does_not_wait_for_a_killed_command(
    command: str, tmp_path: Path, nats_server: Callable[..., NatsServer]
) -> None:
    server = nats_server(NEWEST)
    asyncio.run(fill(server.url, "S", [bytes(200_000)] * 20))
    repo = tmp_path / "repo"
    jsbackup("init", "-r", repo).ok()
    killed(repo, Mode.SHARED, command, "-s", server.url)
    (seen,) = list_leases(LocalStore(repo))
    (work,) = jsbackup("status", "-r", repo).document["work"]
    assert not work["live"]
    listed = jsbackup("list", "-r", repo).ok().document["backups"]
    done = jsbackup("prune", "-r", repo, "--grace", "0", "--lock-timeout", "0").ok()
    if done.document["deleted_objects"]:  # else nothing was stored yet, and there was nobody to wait for
        assert f"removed the lease {seen.key.id} of {command} (since " in done.err and "is gone" in done.err
        assert list_leases(LocalStore(repo)) == []
    unlocked = jsbackup("unlock", "-r", repo).ok().document["leases"]
    assert all(row["process_gone"] and row["removed"] for row in unlocked)
    assert list_leases(LocalStore(repo)) == []
    assert jsbackup("list", "-r", repo).ok().document["backups"] == listed


def _orphans(repo: Path, count: int) -> None:
    """A repository with so many objects that no backup names."""
    repository = make_repository(LocalStore(repo))
    store_backup(repository, FIRST)
    key = next(info.key for info in LocalStore(repo).list(layout.SEGMENTS))
    folder, name = (repo / key).parent, Path(key).name
    for number in range(count):
        (folder / f"{name[:42]}{number:08x}{name[50:]}").write_bytes(b"unused")


def test_nobody_waits_for_a_killed_prune(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    _orphans(repo, 400)
    killed(repo, Mode.EXCLUSIVE, "prune", "--grace", "0")
    (seen,) = list_leases(LocalStore(repo))
    done = jsbackup("verify", "-r", repo, "--lock-timeout", "0").ok()
    assert f"removed the lease {seen.key.id} of prune (since " in done.err
    assert list_leases(LocalStore(repo)) == []
    jsbackup("prune", "-r", repo, "--grace", "0", "--lock-timeout", "0").ok()
    jsbackup("verify", "-r", repo, "--level", "data", "--lock-timeout", "0").ok()


def test_a_stopped_command_keeps_its_lease(tmp_path: Path, nats_server: Callable[..., NatsServer]) -> None:
    server = nats_server(NEWEST)
    asyncio.run(fill(server.url, "S", [bytes(200_000)] * 20))
    repo = tmp_path / "repo"
    _orphans(repo, 1)
    line = command_line("follow", "-r", repo, "-s", server.url)
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()) as child:
        deadline = time.monotonic() + FAR_SECONDS
        while not list_leases(LocalStore(repo)):
            assert time.monotonic() < deadline and child.poll() is None
        child.send_signal(signal.SIGSTOP)
        done = jsbackup("prune", "-r", repo, "--grace", "0", "--lock-timeout", "0")
        assert done.code == 11 and "in use by follow" in done.document["error"]["message"]
        child.kill()
    jsbackup("prune", "-r", repo, "--grace", "0", "--lock-timeout", "0").ok()
