"""Servers of a drill that stay: what looking at them changes, and how they end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from tests.harness.api import call, connected, until_stored
from tests.harness.commands import command_line, environment, jsbackup
from tests.harness.natscli import run_nats
from tests.harness.servers import NatsServer, binary

pytestmark = pytest.mark.nats

VERSIONS = ("2.10.26", "2.15.3")
_END_SECONDS = 60


@pytest.fixture(scope="module", params=VERSIONS)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A version, and a backup of such a server."""
    version = request.param
    repo = tmp_path_factory.mktemp("serve") / "repo"
    with NatsServer(version) as server:
        asyncio.run(_fill(server.url))
        jsbackup("backup", "-s", server.url, "-r", repo).ok()
        asyncio.run(_until_expired(server.url))
    yield version, repo


async def _until_expired(url: str) -> None:
    async with connected(url) as nc:
        while (await call(nc, "STREAM.INFO.SHORT"))["state"]["messages"]:
            await asyncio.sleep(0.1)


async def _fill(url: str) -> None:
    async with connected(url) as nc:

        async def create(name: str, **config: Any) -> None:
            await call(nc, f"STREAM.CREATE.{name}", {"name": name, "storage": "file", "num_replicas": 1, **config})

        await create("ORDERS", subjects=["orders.>"], retention="limits")
        await create("SHORT", subjects=["short"], retention="limits", max_age=10 * 10**9)
        await create("WORK", subjects=["work.>"], retention="workqueue")
        await create("NOTICES", subjects=["notices.>"], retention="interest")
        await create("COPY", retention="limits", mirror={"name": "ORDERS"})
        external = {"api": "$JS.hub.API", "deliver": "deliver.hub"}
        await create("REMOTE", retention="limits", mirror={"name": "FAR", "external": external})
        for stream, threshold in (("ORDERS", 0), ("NOTICES", 300 * 10**9)):
            config = {"durable_name": "worker", "name": "worker", "ack_policy": "explicit"}
            config |= {"inactive_threshold": threshold} if threshold else {}
            request = {"stream_name": stream, "config": config, "action": "create"}
            await call(nc, f"CONSUMER.CREATE.{stream}.worker", request)
        for number in range(10):
            for subject in ("orders.eu", "orders.us", "work.a", "notices.a"):
                await nc.publish(subject, b"%d" % number)
        js = nc.jetstream()
        settings = await js.create_key_value(bucket="settings", history=5)
        for value in (b"light", b"dark"):
            await settings.put("theme", value)
        files = await js.create_object_store("files")
        await files.put("report", b"r" * 300_000)
        await nc.publish("short", b"soon gone")
        await until_stored(nc, "short")


@contextmanager
def serving(*arguments: str | Path, version: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A running `drill --keep`, and the document of its server."""
    command = command_line("drill", *arguments, "--keep", "--nats-server", binary(version), "--json")
    process = subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests may have it ignored, as `nohup` does.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("{") and len(line) > 2, (line, process.communicate(timeout=_END_SECONDS))
        yield process, json.loads(line)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(_END_SECONDS)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def ended(process: subprocess.Popen[str], number: int = signal.SIGINT) -> int:
    process.send_signal(number)
    _, said = process.communicate(timeout=_END_SECONDS)
    assert "Traceback" not in said
    return process.returncode


def natscli(document: dict[str, Any], *words: str) -> str:
    """What the nats CLI says with the context that was made."""
    return run_nats("--context", document["kept"]["context"], *words, url="")


async def logged_in(document: dict[str, Any]) -> Client:
    kept = document["kept"]
    return await nats.connect(kept["url"], user=kept["user"], password=kept["password"], allow_reconnect=False)


def test_nothing_goes_away_by_looking_and_no_origin_is_looked_for(stored: tuple[str, Path]) -> None:
    version, repo = stored

    async def look(document: dict[str, Any]) -> None:
        nc = await logged_in(document)
        js = nc.jetstream()
        for stream, messages in (("SHORT", 1), ("WORK", 10), ("NOTICES", 10), ("COPY", 20), ("REMOTE", 0)):
            info = await call(nc, f"STREAM.INFO.{stream}")
            assert info["state"]["messages"] == messages, stream
            assert info["config"]["retention"] == "limits" and not info["config"].get("max_age")
        work = await js.pull_subscribe("work.>", durable="taker", stream="WORK")
        for message in await work.fetch(10):
            await message.ack_sync()
        assert (await js.stream_info("WORK")).state.messages == 10
        consumer = await call(nc, "CONSUMER.INFO.NOTICES.worker")
        assert not consumer["config"].get("inactive_threshold")
        ack = await js.publish("orders.eu", b"mine")
        assert ack.seq == 21
        await nc.close()

    with serving("-r", repo, version=version) as (process, document):
        notes = {one["name"]: one["notes"] for one in document["streams"]}
        assert "restored without max_age" in notes["SHORT"]
        assert "restored with retention limits instead of workqueue" in notes["WORK"]
        assert "consumers restored without inactive_threshold" in notes["NOTICES"]
        asyncio.run(look(document))
        config = next(Path(document["kept"]["folder"]).glob("*/server.conf")).read_text()
        assert not any(word in config for word in ("leaf", "gateway", "cluster", "remote"))
        assert ended(process) == 0


def test_a_kept_drill_is_recorded_and_its_cluster_stays(stored: tuple[str, Path], tmp_path: Path) -> None:
    version, repo = stored
    line = ("-r", repo, "--nodes", "3", "--work-dir", tmp_path)
    with serving(*line, version=version) as (process, document):
        assert document["ok"] and document["everything"]
        assert len(document["kept"]["url"].split(",")) == 3
        assert "ORDERS" in natscli(document, "stream", "ls")
        assert json.loads(natscli(document, "stream", "info", "WORK", "--json"))["config"]["retention"] == "limits"
        recorded = jsbackup("status", "-r", repo, "--max-drill-age", "1h").ok().document
        assert recorded["newest_drill"]["backup"] == document["backup"]
        # The repository is not held meanwhile.
        jsbackup("prune", "-r", repo, "--lock-timeout", "0s").ok()
        assert ended(process) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.by_turns
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_a_closed_terminal_ends_it_and_a_kill_leaves_only_a_folder(
    stored: tuple[str, Path], tmp_path: Path, number: signal.Signals
) -> None:
    version, repo = stored
    line = ("latest", "ORDERS", "-r", repo, "--work-dir", tmp_path)
    with serving(*line, version=version) as (process, document):
        folder = Path(document["kept"]["folder"])
        [ports] = folder.glob("*/*.ports")
        pid = int(ports.stem.rpartition("_")[2])
        assert ended(process, number) == (0 if number == signal.SIGHUP else -signal.SIGKILL)
        _until(lambda: not _lives(pid))
        assert folder.exists() == (number == signal.SIGKILL)
    jsbackup("drill", *line, "--nats-server", binary(version)).ok()
    assert list(tmp_path.iterdir()) == []


def test_a_second_ctrl_c_does_not_leave_the_folder(stored: tuple[str, Path], tmp_path: Path) -> None:
    version, repo = stored
    with serving("-r", repo, "--work-dir", tmp_path, version=version) as (process, _):
        for _ in range(20):
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        process.wait(_END_SECONDS)
        assert process.returncode in (0, 130)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_ends_by_itself_is_an_error(stored: tuple[str, Path], tmp_path: Path) -> None:
    version, repo = stored
    with serving("latest", "ORDERS", "-r", repo, "--work-dir", tmp_path, version=version) as (process, found):
        [ports] = Path(found["kept"]["folder"]).glob("*/*.ports")
        os.kill(int(ports.stem.rpartition("_")[2]), signal.SIGKILL)
        out, _ = process.communicate(timeout=_END_SECONDS)
        assert process.returncode == 1 and "has ended" in json.loads(out)["error"]["message"]
    assert list(tmp_path.iterdir()) == []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while it is read
        return False


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _END_SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
