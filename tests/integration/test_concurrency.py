"""Backups, prunes, forgets and readers at the same time, as processes of their own: nothing in use is ever deleted."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from jsbackup.errors import RepositoryLocked
from jsbackup.repository import layout
from jsbackup.repository.document import decode_document, encode_document
from jsbackup.repository.keep.leases import DURATION_SECONDS, Lease, Mode, Terms, acquire
from jsbackup.repository.keep.prune import prune
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.harness.commands import Ran, command_line, environment, jsbackup
from tests.harness.proxy import Direction, Proxy
from tests.harness.servers import NEWEST, REPOSITORY, NatsServer
from tests.integration.large import MESSAGES, NAME, TOTAL_BYTES, backups_in, make_large

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

Starter = Callable[..., NatsServer]


def prune_now(repo: Path) -> int:
    """Prune without grace and without waiting, in this process: a server does not wait for a client for long."""
    store = LocalStore(repo)

    @contextmanager
    def take(mode: Mode) -> Iterator[Lease]:
        terms = Terms(mode, "prune", "jsbackup tests", "tests", "2026-11-21T01:45:00Z")
        lease = acquire(store, terms, wait_seconds=0, clock=time.monotonic, sleep=time.sleep, random=os.urandom)
        try:
            yield lease
        finally:
            lease.release()

    repository = Repository.open(store)
    return prune(repository, take, grace_seconds=0, tool="jsbackup tests", random=os.urandom).deleted_objects


def content(repo: Path) -> set[str]:
    return {info.key for info in LocalStore(repo).list(layout.SEGMENTS)}


@pytest.fixture
def forgotten(nats_server: Starter, tmp_path: Path) -> tuple[NatsServer, Path]:
    """A large stream, and a repository with all its segments and no backup."""
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    make_large(server.url)
    made = jsbackup("backup", "-s", server.url, "-r", repo).ok().document["backup"]
    jsbackup("forget", made, "-r", repo).ok()
    assert content(repo)
    return server, repo


def test_a_prune_takes_nothing_from_a_backup_that_is_about_to_use_it_again(forgotten: tuple[NatsServer, Path]) -> None:
    server, repo = forgotten
    before = content(repo)
    refused: list[RepositoryLocked] = []

    def meanwhile() -> None:
        try:
            prune_now(repo)
        except RepositoryLocked as error:
            refused.append(error)

    with Proxy(server.port) as proxy:
        proxy.at(Direction.TO_CLIENT, TOTAL_BYTES // 2, meanwhile)
        stream = jsbackup("backup", "-s", proxy.url, "-r", repo).ok().document["streams"][0]
    assert len(refused) == 1 and "in use by backup" in refused[0].message
    assert stream["messages"] == MESSAGES and stream["segments_reused"] > 0
    assert len(backups_in(repo)) == 1
    assert prune_now(repo) == 0 and content(repo) == before


def _as_of_another_machine(lease: Path) -> None:
    """Take from a lease what tells on this machine that its process is gone."""
    fields = decode_document(lease.read_bytes(), lease.name)
    del fields.value["process"]
    then = lease.stat().st_mtime
    lease.write_bytes(encode_document(fields.value, lease.name))
    os.utime(lease, (then, then))


def test_a_backup_killed_elsewhere_is_waited_for_and_its_traces_are_removed(forgotten: tuple[NatsServer, Path]) -> None:
    server, repo = forgotten
    running: list[subprocess.Popen[bytes]] = []
    ready = threading.Event()

    def kill() -> None:
        ready.wait(120)
        running[0].send_signal(signal.SIGKILL)

    with Proxy(server.port) as proxy:
        proxy.at(Direction.TO_CLIENT, TOTAL_BYTES // 2, kill)
        line = command_line("backup", "-s", proxy.url, "-r", repo)
        running.append(subprocess.Popen(line, env=environment(), cwd=REPOSITORY))
        ready.set()
        assert running[0].wait(120) == -signal.SIGKILL
    for path in (repo / "locks").iterdir():
        _as_of_another_machine(path)
    locked = jsbackup("prune", "-r", repo, "--grace", "0", "--lock-timeout", "0")
    assert locked.code == 11 and "in use by backup" in locked.document["error"]["message"]
    (lease,) = jsbackup("unlock", "-r", repo).ok().document["leases"]
    assert lease["state"] == "live" and not lease["removed"]
    for path in (repo / "locks").iterdir():  # its time is over
        then = path.stat().st_mtime - DURATION_SECONDS - 5
        os.utime(path, (then, then))
    report = jsbackup("prune", "-r", repo, "--grace", "0").ok().document
    assert report["deleted_objects"] > 0 and report["leftovers"] == 1
    assert content(repo) == set() and list((repo / "locks").iterdir()) == []
    jsbackup("backup", "-s", server.url, "-r", repo).ok()
    assert len(backups_in(repo)) == 1


def test_everything_at_once_harms_nothing(nats_server: Starter, tmp_path: Path) -> None:
    """Two that back up, one that forgets and prunes without grace, and one that reads a held backup."""
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    make_large(server.url, messages=MESSAGES // 8)
    make_large(server.url, f"{NAME}2", messages=MESSAGES // 8)
    held = jsbackup("backup", NAME, "-s", server.url, "-r", repo).ok().document["backup"]
    jsbackup("hold", held, "-r", repo).ok()

    def repeat(*lines: tuple[str | Path, ...]) -> list[Ran]:
        return [jsbackup(*line, "-r", repo) for _ in range(2) for line in lines]

    with ThreadPoolExecutor(4) as pool:
        backing_up = [pool.submit(repeat, ("backup", "-s", server.url)) for _ in range(2)]
        pruning = pool.submit(
            repeat,
            ("forget", "--keep-last", "1"),
            ("prune", "--grace", "0", "--lock-timeout", "3s"),
        )
        reading = pool.submit(repeat, ("verify", held, "--level", "data"))
    for ran in [*(one for future in backing_up for one in future.result()), *reading.result()]:
        ran.ok()
    assert {ran.code for ran in pruning.result()} <= {0, 11}
    assert held in backups_in(repo)
    jsbackup("prune", "-r", repo, "--grace", "0").ok()
    assert held in backups_in(repo)
    assert list((repo / "locks").iterdir()) == []
