"""Servers die, connections break, disks are full, objects rot: the right exit code in time, nothing half-made, a rerun
succeeds.

"In the middle" is a number of bytes that have passed a proxy, so it is the same place on every machine.
"""

from __future__ import annotations

import asyncio
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness.api import call, connected
from tests.harness.commands import Ran, command_line, environment, jsbackup
from tests.harness.disks import small_disk
from tests.harness.proxy import Direction, Proxy
from tests.harness.servers import NatsServer
from tests.integration.large import MESSAGES, MIDDLE_BYTES, NAME, WHOLE, backups_in, make_large, standing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(180)]

Starter = Callable[..., NatsServer]
# Each command has to end by itself well before this.
FAR_SECONDS = 100.0
WIRES = [("2.12.8", "v1"), ("2.15.1", "v1"), ("2.15.1", "v2")]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of one large stream. Tests leave it as it is."""
    folder = tmp_path_factory.mktemp("large") / "repo"
    with NatsServer("2.15.1") as server:
        make_large(server.url)
        jsbackup("backup", "-s", server.url, "-r", folder).ok()
    return folder


def back_up(url: str, repository: Path, *options: str) -> Ran:
    return jsbackup("backup", "-s", url, "-r", repository, *options, seconds=FAR_SECONDS)


def restore(url: str, repository: Path, *options: str, wire: str = "auto") -> Ran:
    return jsbackup("restore", "latest", "-s", url, "-r", repository, *options, seconds=FAR_SECONDS, wire=wire)


def killed_and_started(server: NatsServer, proxy: Proxy, direction: Direction, command: Callable[[], Ran]) -> Ran:
    """In the middle of the command the server dies, and comes back."""
    killed = threading.Event()

    def kill() -> None:
        server.kill()
        killed.set()

    proxy.at(direction, MIDDLE_BYTES, kill)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(command)
        assert killed.wait(FAR_SECONDS)
        server.start()
        return running.result()


def reason(ran: Ran) -> str:
    """Why the command failed, as its JSON says."""
    if "error" in ran.document:
        return str(ran.document["error"]["message"])
    return "; ".join(failure["reason"] for failure in ran.document["failed"])


# ------------------------------------------------------------------------------------------------- servers that die


@pytest.mark.by_turns
@pytest.mark.parametrize("version", ["2.12.8", "2.15.1"])
def test_a_server_that_dies_in_the_middle_of_a_backup_leaves_no_backup(
    version: str, nats_server: Starter, tmp_path: Path
) -> None:
    server = nats_server(version)
    make_large(server.url)
    with Proxy(server.port) as proxy:
        proxy.at(Direction.TO_CLIENT, MIDDLE_BYTES, server.kill)
        failed = back_up(proxy.url, tmp_path / "repo")
        assert failed.code == 20
        assert "the connection was lost and cannot be made again" in reason(failed)
        assert backups_in(tmp_path / "repo") == []
        server.start()
        assert back_up(proxy.url, tmp_path / "repo").ok().document["streams"][0]["messages"] == MESSAGES
    assert len(backups_in(tmp_path / "repo")) == 1


@pytest.mark.by_turns
@pytest.mark.parametrize("version", ["2.12.8", "2.15.1"])
def test_a_server_that_dies_and_comes_back_does_not_stop_a_backup(
    version: str, nats_server: Starter, tmp_path: Path
) -> None:
    server = nats_server(version)
    make_large(server.url)

    with Proxy(server.port) as proxy:
        backup = killed_and_started(
            server, proxy, Direction.TO_CLIENT, lambda: back_up(proxy.url, tmp_path / "repo")
        ).ok()
    assert backup.document["streams"][0]["messages"] == MESSAGES
    assert len(backups_in(tmp_path / "repo")) == 1


@pytest.mark.by_turns
@pytest.mark.parametrize(("version", "wire"), WIRES)
def test_a_server_that_dies_in_the_middle_of_a_restore_and_comes_back_keeps_nothing_of_it(
    version: str, wire: str, nats_server: Starter, repository: Path
) -> None:
    server = nats_server(version)

    with Proxy(server.port) as proxy:
        failed = killed_and_started(
            server, proxy, Direction.TO_SERVER, lambda: restore(proxy.url, repository, wire=wire)
        )
        assert failed.code == 20
        assert "was lost" in reason(failed)
        assert standing(server.url) == {}
        restore(proxy.url, repository, wire=wire).ok()
    assert standing(server.url) == WHOLE


def test_what_a_server_that_stays_away_has_of_a_restore_is_known_for_a_leftover(
    nats_server: Starter, repository: Path
) -> None:
    server = nats_server("2.15.1")
    with Proxy(server.port) as proxy:
        proxy.at(Direction.TO_SERVER, MIDDLE_BYTES, server.kill)
        failed = restore(proxy.url, repository, wire="v2")
        assert failed.code == 20
        assert f"stream {NAME} may be half-restored" in failed.err
        server.start()
        (left,) = standing(server.url).values()
        assert left.marked
        assert left.messages < MESSAGES
        restore(proxy.url, repository, wire="v2").ok()
    assert standing(server.url) == WHOLE


# ------------------------------------------------------------------------------------------- connections that break


@pytest.mark.by_turns
@pytest.mark.parametrize(("version", "storage"), [("2.10.26", "file"), ("2.12.8", "memory"), ("2.15.1", "file")])
@pytest.mark.parametrize("after", [0.0, 0.25, 0.99])
def test_a_connection_that_is_cut_in_the_middle_of_a_backup_is_made_again(
    version: str, storage: str, after: float, nats_server: Starter, tmp_path: Path
) -> None:
    server = nats_server(version)
    make_large(server.url, storage=storage)
    with Proxy(server.port) as proxy:
        # The first few thousand bytes are questions and answers.
        proxy.at(Direction.TO_CLIENT, 10_000 + int(after * 4 * MIDDLE_BYTES), proxy.cut)
        backup = back_up(proxy.url, tmp_path / "repo").ok()
        assert proxy.connections > 2
    assert "attempt 2" in backup.err
    assert backup.document["streams"][0]["messages"] == MESSAGES
    assert len(backups_in(tmp_path / "repo")) == 1


def test_a_server_that_takes_no_second_connection_fails_all_streams_with_its_reason(
    nats_server: Starter, tmp_path: Path
) -> None:
    server = nats_server("2.15.1")
    for name in ("A", "B", "C"):
        make_large(server.url, name, messages=3)
    with Proxy(server.port, most=1) as proxy:
        failed = back_up(proxy.url, tmp_path / "repo")
    assert failed.code == 20
    assert "all 3 streams failed, nothing was committed" in reason(failed)
    assert backups_in(tmp_path / "repo") == []


def test_streams_that_found_no_connection_are_left_to_those_that_have_one(nats_server: Starter, tmp_path: Path) -> None:
    server = nats_server("2.15.1")
    for name in ("A", "B", "C"):
        make_large(server.url, name, messages=3)
    with Proxy(server.port, most=2) as proxy:
        backup = back_up(proxy.url, tmp_path / "repo", "--jobs", "3").ok()
    assert [stream["name"] for stream in backup.document["streams"]] == ["A", "B", "C"]


@pytest.mark.by_turns
@pytest.mark.parametrize(("version", "wire"), [("2.10.26", "v1"), *WIRES])
def test_a_connection_that_is_cut_in_the_middle_of_a_restore_leaves_nothing(
    version: str, wire: str, nats_server: Starter, repository: Path
) -> None:
    server = nats_server(version)
    with Proxy(server.port) as proxy:
        proxy.at(Direction.TO_SERVER, MIDDLE_BYTES, proxy.cut)
        failed = restore(proxy.url, repository, wire=wire)
        assert failed.code == 20
        assert "was lost" in reason(failed)
        assert standing(server.url) == {}
        restore(proxy.url, repository, wire=wire).ok()
    assert standing(server.url) == WHOLE


# ------------------------------------------------------------------------------------------------------- full disks


def test_a_repository_on_a_full_disk_holds_no_half_of_a_backup(nats_server: Starter, tmp_path: Path) -> None:
    server = nats_server("2.15.1")
    make_large(server.url, "SMALL", messages=10)
    with small_disk(tmp_path / "disk", 20) as disk:
        back_up(server.url, disk / "repo").ok()
        make_large(server.url)
        failed = back_up(server.url, disk / "repo", NAME)
        assert failed.code == 21
        assert "no space left on the file system" in reason(failed)
        assert len(backups_in(disk / "repo")) == 1
        # One stream fits, the other does not.
        partial = back_up(server.url, disk / "repo")
        assert partial.code == 3
        assert [skipped["name"] for skipped in partial.document["skipped"]] == [NAME]
        assert len(backups_in(disk / "repo")) == 2
        subprocess.run(["mount", "-o", "remount,size=80m", str(disk)], check=True)
        back_up(server.url, disk / "repo").ok()
        assert len(backups_in(disk / "repo")) == 3


def test_a_file_that_may_not_grow_is_a_failure_of_the_storage(nats_server: Starter, tmp_path: Path) -> None:
    server = nats_server("2.15.1")
    make_large(server.url)
    done = subprocess.run(
        command_line("backup", "-s", server.url, "-r", tmp_path / "repo"),
        capture_output=True,
        text=True,
        timeout=FAR_SECONDS,
        env=environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MIDDLE_BYTES, MIDDLE_BYTES)),
    )
    assert done.returncode == 21
    assert "the file system does not take files of this size" in done.stderr
    assert "Traceback" not in done.stderr
    assert backups_in(tmp_path / "repo") == []
    assert list((tmp_path / "repo" / ".incoming").iterdir()) == []
    back_up(server.url, tmp_path / "repo").ok()


@pytest.mark.parametrize(("version", "wire"), [("2.10.26", "v1"), ("2.11.11", "v1"), ("2.14.6", "v1"), *WIRES])
def test_a_target_without_room_is_a_conflict_and_keeps_nothing(
    version: str, wire: str, nats_server: Starter, repository: Path
) -> None:
    server = nats_server(version, max_file_bytes=10 << 20)
    failed = restore(server.url, repository, wire=wire)
    assert failed.code == 16
    assert "insufficient" in reason(failed)
    assert standing(server.url) == {}


@pytest.mark.parametrize(("version", "wire"), WIRES)
def test_a_target_whose_disk_is_full_keeps_nothing(
    version: str, wire: str, nats_server: Starter, repository: Path, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 16) as disk:
        # More than the disk has: the server does not know better.
        server = nats_server(version, max_file_bytes=1 << 30, directory=disk / "server")
        failed = restore(server.url, repository, wire=wire)
        assert failed.code in (16, 20)
        assert standing(server.url) == {}
        server.stop()


# ------------------------------------------------------------------------------------------------- damaged objects


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_object_is_found_before_the_target_is_touched(
    damage: str, nats_server: Starter, repository: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "repo"
    shutil.copytree(repository, copy)
    (segment,) = (copy / "segments").rglob("*.parquet")
    segment.write_bytes(segment.read_bytes()[:-1])
    if damage == "gone":
        segment.unlink()
    server = nats_server("2.15.1")
    with Proxy(server.port) as proxy:
        failed = restore(proxy.url, copy)
        assert failed.code == 14
        assert f"nothing was restored: stream {NAME}" in reason(failed)
        # Questions were asked, nothing else.
        assert proxy.passed[Direction.TO_SERVER] < 10_000
    assert standing(server.url) == {}
    assert jsbackup("verify", "-r", copy).code == 14


# ---------------------------------------------------------------------------------------------- one bad among many


def test_streams_that_may_not_be_read_do_not_stop_the_others(nats_server: Starter, tmp_path: Path) -> None:
    denied = ", ".join(f'"$JS.API.STREAM.SNAPSHOT.{name}"' for name in ("BAD_1", "BAD_2"))
    some_user = f"{{ user: some, password: some, permissions: {{ publish: {{ deny: [{denied}] }} }} }}"
    users = f"authorization {{ users: [ {{ user: all, password: all }}, {some_user} ] }}"
    server = nats_server("2.15.1", config=users)
    for name in ("GOOD_1", "BAD_1", "GOOD_2", "BAD_2"):
        make_large(server.url.replace("//", "//all:all@"), name, messages=5)
    some = ("--user", "some", "--password", "some")
    partial = back_up(server.url, tmp_path / "repo", *some)
    assert partial.code == 3
    assert [stream["name"] for stream in partial.document["streams"]] == ["GOOD_1", "GOOD_2"]
    assert [skipped["name"] for skipped in partial.document["skipped"]] == ["BAD_1", "BAD_2"]
    assert all("does not allow publishing" in skipped["reason"] for skipped in partial.document["skipped"])
    assert len(backups_in(tmp_path / "repo")) == 1
    shown = jsbackup("show", "latest", "-r", tmp_path / "repo").ok().document
    assert shown["result"] == "partial"
    failed = back_up(server.url, tmp_path / "repo", "BAD_*", *some)
    assert failed.code == 20
    assert "all 2 streams failed, nothing was committed" in reason(failed)
    assert len(backups_in(tmp_path / "repo")) == 1


def test_a_server_that_hangs_fails_the_backup_and_does_not_hang_it(nats_server: Starter, tmp_path: Path) -> None:
    server = nats_server("2.15.1")
    make_large(server.url, messages=10)
    server.freeze()
    failed = back_up(server.url, tmp_path / "repo", "--timeout", "2s")
    server.thaw()
    assert failed.code == 20
    assert "no answer within 2 s" in reason(failed)


@pytest.mark.by_turns
@pytest.mark.parametrize("named", [False, True])
def test_a_stream_that_goes_while_others_are_read_is_told(nats_server: Starter, tmp_path: Path, named: bool) -> None:
    """What is gone is missed by no backup, unless it was asked for by its name."""
    server = nats_server("2.15.1")
    make_large(server.url)
    make_large(server.url, "GONE", messages=5)

    def delete() -> None:
        asyncio.run(_delete(server.url, "GONE"))

    with Proxy(server.port) as proxy:
        # One at a time, the largest first: the other one is listed and not yet read.
        proxy.at(Direction.TO_CLIENT, MIDDLE_BYTES, delete)
        done = back_up(proxy.url, tmp_path / "repo", "--jobs", "1", *(["LARGE", "GONE"] if named else []))
    if named:
        assert done.code == 3
        assert done.document["skipped"] == [{"name": "GONE", "reason": done.document["skipped"][0]["reason"]}]
        assert "stream not found" in done.document["skipped"][0]["reason"]
    else:
        assert (done.code, done.document["skipped"]) == (0, [])
        assert "warning: stream GONE was deleted since the backup began, and is not in it" in done.err
    assert len(backups_in(tmp_path / "repo")) == 1


async def _delete(url: str, stream: str) -> None:
    async with connected(url) as nc:
        await call(nc, f"STREAM.DELETE.{stream}")
