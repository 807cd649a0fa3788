"""Ctrl-C, SIGTERM and SIGKILL in the middle of real backups and restores: nothing half-made, and a rerun succeeds."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.commands import command_line, environment, jsbackup
from tests.harness.damage import flip
from tests.harness.proxy import Direction, Proxy
from tests.harness.servers import ENDS, NEWEST, REPOSITORY, NatsServer, wait_until
from tests.integration.large import MESSAGES, NAME, TOTAL_BYTES, WHOLE, backups_in, make_large, standing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

Starter = Callable[..., NatsServer]
FAR_SECONDS = 120.0
# An interrupted command has ended by then, with its clean-up.
SOON_SECONDS = 60.0
STOPS = [signal.SIGINT, signal.SIGTERM]
PLACES = [0.001, 0.5, 0.97]  # the first few thousand bytes are questions and answers


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of one large stream. Tests leave it as it is."""
    folder = tmp_path_factory.mktemp("large") / "repo"
    with NatsServer(NEWEST) as server:
        make_large(server.url)
        jsbackup("backup", "-s", server.url, "-r", folder).ok()
    return folder


class Running:
    """A command that can be signalled."""

    def __init__(self, line: list[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True, env=environment(), cwd=REPOSITORY)
        self._signalled = threading.Event()
        self._at = 0.0
        self.err = ""

    def signal(self, number: signal.Signals) -> None:
        self._at = time.monotonic()
        self._process.send_signal(number)
        self._signalled.set()

    def said(self, word: str) -> None:
        """Wait until it says that on stderr."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if word in line:
                return
        raise AssertionError(f"it never said {word}")

    def code(self) -> int:
        """How it ended, which has to be soon after the signal."""
        assert self._signalled.wait(FAR_SECONDS)
        _, self.err = self._process.communicate(timeout=FAR_SECONDS)
        assert time.monotonic() - self._at < SOON_SECONDS
        assert "Traceback" not in self.err
        return self._process.returncode


def back_up(url: str, repository: Path) -> list[str]:
    return command_line("backup", "-s", url, "-r", repository)


def restore(url: str, repository: Path, wire: str, *options: str) -> list[str]:
    return command_line("restore", "latest", "-s", url, "-r", repository, *options, wire=wire)


def stopped(
    proxy: Proxy,
    line: list[str],
    number: signal.Signals,
    direction: Direction,
    place: float,
    *,
    told: list[str] | None = None,
) -> int:
    """Run the command, send it the signal when that part of the data has passed; its exit code. `told` gets stderr."""
    ready = threading.Event()
    running: list[Running] = []

    def stop() -> None:
        ready.wait(FAR_SECONDS)
        running[0].signal(number)

    proxy.at(direction, int(place * TOTAL_BYTES), stop)
    running.append(Running(line))
    ready.set()
    code = running[0].code()
    if told is not None:
        told.append(running[0].err)
    return code


@pytest.mark.parametrize(("number", "place"), list(zip([*STOPS, signal.SIGKILL], PLACES, strict=True)))
def test_a_backup_that_is_stopped_anywhere_leaves_a_valid_repository(
    number: signal.Signals, place: float, nats_server: Starter, tmp_path: Path
) -> None:
    server = nats_server(NEWEST if place > 0.5 else ENDS[0])
    make_large(server.url)
    with Proxy(server.port) as proxy:
        code = stopped(proxy, back_up(proxy.url, tmp_path / "repo"), number, Direction.TO_CLIENT, place)
        assert code == (-signal.SIGKILL if number is signal.SIGKILL else 130)
        assert backups_in(tmp_path / "repo") == []
        if number is not signal.SIGKILL:
            assert list((tmp_path / "repo").glob("locks/*")) == []  # it has given its lease up
        # At once, while the server may still be at the snapshot that nobody takes any more.
        again = jsbackup("backup", "-s", proxy.url, "-r", tmp_path / "repo").ok()
    assert again.document["streams"][0]["messages"] == MESSAGES
    assert len(backups_in(tmp_path / "repo")) == 1


@pytest.mark.parametrize(
    ("number", "place", "version", "wire"),
    [(STOPS[0], 0.001, NEWEST, "v2"), (STOPS[1], 0.5, ENDS[0], "v1"), (STOPS[0], 0.97, NEWEST, "v2")],
)
def test_a_restore_that_is_stopped_anywhere_leaves_nothing(
    number: signal.Signals, version: str, wire: str, place: float, nats_server: Starter, repository: Path
) -> None:
    server = nats_server(version)
    with Proxy(server.port) as proxy:
        assert stopped(proxy, restore(proxy.url, repository, wire), number, Direction.TO_SERVER, place) == 130
        assert standing(server.url) == {}
        jsbackup("restore", "latest", "-s", proxy.url, "-r", repository, wire=wire).ok()
    assert standing(server.url) == WHOLE


def receiving(server: NatsServer) -> bool:
    """Whether the server waits for chunks of a restore."""
    listed = server.monitor("/subsz?subs=1&limit=1000")["subscriptions_list"]
    return any(entry["subject"].startswith("$JS.SNAPSHOT.RESTORE.") for entry in listed)


@pytest.mark.parametrize(
    ("version", "wire", "place"), [(ENDS[0], "v1", 0.97), (NEWEST, "v2", 0.001), (NEWEST, "v2", 0.5)]
)
def test_what_a_killed_restore_leaves_is_known_for_a_leftover(
    version: str, wire: str, place: float, nats_server: Starter, repository: Path
) -> None:
    server = nats_server(version)
    with Proxy(server.port) as proxy:
        line = restore(proxy.url, repository, wire)
        assert stopped(proxy, line, signal.SIGKILL, Direction.TO_SERVER, place) == -signal.SIGKILL
        assert all(left.marked for left in standing(server.url).values())
        # At once, while the server still waits for the chunks of the dead one.
        jsbackup("restore", "latest", "-s", proxy.url, "-r", repository, wire=wire).ok()
        assert standing(server.url) == WHOLE
    wait_until(lambda: not receiving(server), "the server to give up the restore of the dead one", server)
    assert standing(server.url) == WHOLE
    server.restart()
    assert standing(server.url) == WHOLE


def test_a_leftover_stays_while_its_backup_is_damaged(nats_server: Starter, repository: Path, tmp_path: Path) -> None:
    """It may have messages that the repository has lost."""
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    shutil.copytree(repository, repo)
    with Proxy(server.port) as proxy:
        line = restore(proxy.url, repo, "v2")
        assert stopped(proxy, line, signal.SIGKILL, Direction.TO_SERVER, 0.5) == -signal.SIGKILL
    wait_until(lambda: not receiving(server), "the server to give up the restore of the dead one", server)
    left = standing(server.url)
    assert left[NAME].marked and left[NAME].messages > 0
    (*_, segment) = sorted((repo / "segments").rglob("*.parquet"))
    whole = segment.read_bytes()
    segment.chmod(0o600)
    segment.write_bytes(flip(whole))
    refused = jsbackup("restore", "latest", "-s", server.url, "-r", repo)
    assert refused.code == 14 and "nothing was restored" in refused.document["error"]["message"]
    assert standing(server.url) == left
    segment.write_bytes(whole)
    jsbackup("restore", "latest", "-s", server.url, "-r", repo).ok()
    assert standing(server.url) == WHOLE


def test_a_restore_that_is_stopped_while_it_is_proved_leaves_the_whole_stream(
    nats_server: Starter, repository: Path
) -> None:
    """It may be at work already: whoever is sure that it is not may replace it."""
    server = nats_server(NEWEST)
    with Proxy(server.port) as proxy:
        line = restore(proxy.url, repository, "auto")
        told: list[str] = []
        assert stopped(proxy, line, signal.SIGINT, Direction.TO_CLIENT, 0.5, told=told) == 130
        assert f"1 stream is restored and can be used, but not verified: {NAME}" in told[0]
        assert standing(server.url) == WHOLE
        assert jsbackup("restore", "latest", "-s", proxy.url, "-r", repository).code == 16
        jsbackup("restore", "latest", "-s", proxy.url, "-r", repository, "--if-exists", "replace").ok()
    assert standing(server.url) == WHOLE


@pytest.mark.parametrize("operation", ["put", "get_range"])
def test_a_store_that_hangs_does_not_keep_an_interrupted_command(
    operation: str, nats_server: Starter, repository: Path, tmp_path: Path
) -> None:
    server = nats_server(NEWEST)
    if operation == "put":
        # More than one segment, so that the first put happens while the snapshot runs.
        make_large(server.url, messages=3 * MESSAGES)
    line = back_up(server.url, tmp_path / "repo") if operation == "put" else restore(server.url, repository, "auto")
    running = Running([sys.executable, "-m", "tests.harness.slow_store", "600", operation, *line[3:]])
    running.said(f"{operation} segments/")
    running.signal(signal.SIGINT)
    assert running.code() == 130
    assert "interrupted" in running.err
    if operation == "put":
        assert backups_in(tmp_path / "repo") == []
    else:
        assert standing(server.url) == {}
