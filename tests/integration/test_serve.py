"""Servers that stay: what a reader may do with the nats CLI and nats-py, what looking changes, and how they end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.errors import APIError, NoStreamResponseError

from tests.harness.api import call, connected, history_of, keys_of, until_stored
from tests.harness.awkward import LARGE, fill, keys
from tests.harness.commands import command_line, environment, jsbackup
from tests.harness.natscli import ToolFailed, run_nats
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
    """A running `serve`, or `drill --keep`, and the document of its server."""
    command = command_line(*arguments, "--nats-server", binary(version), "--json")
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


@pytest.mark.by_turns
def test_a_reader_reads_everything_with_the_nats_cli_and_changes_nothing(
    stored: tuple[str, Path], tmp_path: Path
) -> None:
    version, repo = stored
    with serving("serve", "-r", repo, "--read-only", "--work-dir", tmp_path, version=version) as (process, document):
        assert document["ok"] and document["kept"]["user"] == "reader" and document["kept"]["read_only"]

        def cli(*words: str) -> str:
            return natscli(document, *words)

        for name in ("ORDERS", "SHORT", "WORK", "NOTICES", "COPY"):
            assert name in cli("stream", "ls")
        assert '"messages": 20' in cli("stream", "info", "ORDERS", "--json")
        assert "orders.us" in cli("stream", "get", "ORDERS", "2")
        assert "soon gone" in cli("stream", "get", "SHORT", "1")
        assert "theme" in cli("kv", "ls", "settings")
        assert cli("kv", "get", "settings", "theme", "--raw").strip() == "dark"
        assert "light" in cli("kv", "history", "settings", "theme")
        assert "report" in cli("object", "ls", "files")
        cli("object", "get", "files", "report", "--output", str(tmp_path / "report"), "--force", "--no-progress")
        assert (tmp_path / "report").read_bytes() == b"r" * 300_000
        assert "worker" in cli("consumer", "ls", "ORDERS")
        before = [json.loads(cli("stream", "info", name, "--json"))["state"] for name in ("ORDERS", "KV_settings")]
        worker = json.loads(cli("consumer", "info", "ORDERS", "worker", "--json"))
        for words in (
            ("stream", "purge", "ORDERS", "--force"),
            ("stream", "rm", "ORDERS", "--force"),
            ("stream", "rmm", "ORDERS", "1", "--force"),
            ("stream", "add", "NEW", "--subjects", "new", "--defaults"),
            ("stream", "edit", "ORDERS", "--max-msgs", "1", "--force"),
            ("consumer", "rm", "ORDERS", "worker", "--force"),
            ("consumer", "next", "ORDERS", "worker", "--timeout", "500ms"),
            ("consumer", "edit", "ORDERS", "worker", "--description", "mine", "--force"),
            ("kv", "put", "settings", "theme", "mine"),
            ("kv", "del", "settings", "theme", "--force"),
            ("kv", "purge", "settings", "theme", "--force"),
            ("object", "rm", "files", "report", "--force"),
            ("pub", "orders.eu", "mine", "--jetstream"),
        ):
            with pytest.raises(ToolFailed):
                natscli(document, "--timeout", "1s", *words)
        assert before == [
            json.loads(cli("stream", "info", name, "--json"))["state"] for name in ("ORDERS", "KV_settings")
        ]
        now = json.loads(cli("consumer", "info", "ORDERS", "worker", "--json"))
        assert {k: now[k] for k in ("config", "delivered", "ack_floor")} == {
            k: worker[k] for k in ("config", "delivered", "ack_floor")
        }
        assert ended(process) == 0
    assert [one.name for one in tmp_path.iterdir()] == ["report"]


def test_a_reader_reads_everything_with_nats_py_and_gets_nothing_into_a_stream(stored: tuple[str, Path]) -> None:
    version, repo = stored

    async def look(document: dict[str, Any]) -> None:
        nc = await logged_in(document)
        js = nc.jetstream(timeout=2)
        assert {one.config.name for one in await js.streams_info()} == {
            *("ORDERS", "SHORT", "WORK", "NOTICES", "COPY", "REMOTE", "KV_settings", "OBJ_files")
        }
        for stream, subject in (("ORDERS", "orders.>"), ("WORK", "work.>"), ("NOTICES", "notices.>"), ("COPY", ">")):
            subscription = await js.subscribe(subject, stream=stream, ordered_consumer=True)
            total = (await js.stream_info(stream)).state.messages
            got = [await subscription.next_msg(timeout=10) for _ in range(total)]
            assert [one.metadata.sequence.stream for one in got] == list(range(1, total + 1))
            await subscription.unsubscribe()
            assert (await js.stream_info(stream)).state.messages == total
        settings = await js.key_value("settings")
        assert (await settings.get("theme")).value == b"dark"
        assert [one.value for one in await history_of(settings, "theme")] == [b"light", b"dark"]
        assert await keys_of(settings) == ["theme"]
        files = await js.object_store("files")
        assert (await files.get("report")).data == b"r" * 300_000
        with pytest.raises((nats.errors.TimeoutError, NoStreamResponseError)):
            await js.publish("orders.eu", b"mine", timeout=1)
        # A consumer that delivers into a stream: permissions do not prevent it, the seal does.
        before = (await js.stream_info("WORK")).state
        config = {"deliver_subject": "work.trick", "ack_policy": "none", "deliver_policy": "all"}
        await call(nc, "CONSUMER.CREATE.ORDERS", {"stream_name": "ORDERS", "config": config})
        await asyncio.sleep(0.5)
        after = (await js.stream_info("WORK")).state
        assert (after.messages, after.last_seq) == (before.messages, before.last_seq)
        for request in (
            js.delete_stream("ORDERS"),
            js.purge_stream("ORDERS"),
            js.delete_consumer("ORDERS", "worker"),
            js.delete_msg("ORDERS", 1),
        ):
            with pytest.raises((nats.errors.TimeoutError, APIError, NoStreamResponseError)):
                await request
        await nc.close()

    with serving("serve", "latest", "-r", repo, "--read-only", version=version) as (process, document):
        asyncio.run(look(document))
        assert ended(process, signal.SIGTERM) == 0
        assert not Path(document["kept"]["folder"]).exists()


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
        ack = await js.publish("orders.eu", b"mine")  # who is no reader may
        assert ack.seq == 21
        await nc.close()

    with serving("serve", "-r", repo, version=version) as (process, document):
        notes = {one["name"]: one["notes"] for one in document["streams"]}
        assert "restored without max_age" in notes["SHORT"]
        assert "restored with retention limits instead of workqueue" in notes["WORK"]
        assert "consumers restored without inactive_threshold" in notes["NOTICES"]
        asyncio.run(look(document))
        config = next(Path(document["kept"]["folder"]).glob("*/server.conf")).read_text()
        assert not any(word in config for word in ("leaf", "gateway", "cluster", "remote"))
        assert ended(process) == 0


def test_a_part_is_served_under_another_name(stored: tuple[str, Path]) -> None:
    version, repo = stored
    arguments = ("serve", "latest", "ORDERS", "-r", repo, "--until", "6", "--subject", "orders.eu")
    with serving(*arguments, "--rename", "ORDERS=PART", "--read-only", version=version) as (_, document):
        [stream] = document["streams"]
        assert (stream["name"], stream["as"], stream["messages"]) == ("ORDERS", "PART", 3)
        assert '"messages": 3' in natscli(document, "stream", "info", "PART", "--json")
        with pytest.raises(ToolFailed):
            natscli(document, "--timeout", "1s", "consumer", "rm", "PART", "worker", "--force")
        assert "worker" in natscli(document, "consumer", "ls", "PART")


@pytest.mark.by_turns
def test_every_awkward_stream_can_be_sealed(tmp_path: Path) -> None:
    repo = tmp_path
    for version in VERSIONS:
        with NatsServer(version) as server:
            asyncio.run(_fill_awkward(server.url, version))
            jsbackup("backup", "-s", server.url, "-r", repo / version).ok()
        line = ("serve", "-r", repo / version, "--read-only")
        with serving(*line, version=version) as (process, document):
            assert document["ok"] and len(document["streams"]) > 30
            asyncio.run(_all_sealed(document))
            assert ended(process) == 0


async def _fill_awkward(url: str, version: str) -> None:
    async with connected(url) as nc:
        # What is looked at are configurations.
        await fill(nc, version, [key for key in keys(version) if key not in LARGE])


async def _all_sealed(document: dict[str, Any]) -> None:
    nc = await logged_in(document)
    for one in document["streams"]:
        config = (await call(nc, f"STREAM.INFO.{one['as']}"))["config"]
        assert config["sealed"] and config["deny_delete"] and config["deny_purge"], one["as"]
    await nc.close()


def test_a_kept_drill_is_recorded_and_its_cluster_stays(stored: tuple[str, Path], tmp_path: Path) -> None:
    version, repo = stored
    line = ("drill", "-r", repo, "--keep", "--nodes", "3", "--work-dir", tmp_path)
    with serving(*line, version=version) as (process, document):
        assert document["ok"] and document["everything"] and not document["kept"]["read_only"]
        assert len(document["kept"]["url"].split(",")) == 3
        assert "ORDERS" in natscli(document, "stream", "ls")
        assert json.loads(natscli(document, "stream", "info", "WORK", "--json"))["config"]["retention"] == "workqueue"
        recorded = jsbackup("status", "-r", repo, "--max-drill-age", "1h").ok().document
        assert recorded["newest_drill"]["backup"] == document["backup"]
        # The repository is not held meanwhile.
        jsbackup("prune", "-r", repo, "--lock-timeout", "0s").ok()
        assert ended(process) == 0
    assert list(tmp_path.iterdir()) == []


def test_it_says_what_is_wrong_and_starts_nothing(stored: tuple[str, Path], tmp_path: Path) -> None:
    version, repo = stored
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, code, said in (
            (("latest", "ORDRS"), 2, "ORDRS"),
            (("--port", port), 2, f"port {port}"),
            (("--port", "0"), 2, "--port"),
            (("--for", "0s"), 2, "--for"),
            (("latest", "ORDERS", "--exclude", "SECRET"), 2, "SECRET"),
            (("latest", "--subject", "ordres.>"), 15, ""),
            (("latest", "--context", "prod"), 2, "--context"),
        ):
            done = jsbackup("serve", *arguments, "-r", repo, "--nats-server", binary(version), "--work-dir", tmp_path)
            assert (done.code, said in done.document["error"]["message"]) == (code, True), (arguments, done)
            assert list(tmp_path.iterdir()) == []


def test_a_port_is_kept_to(stored: tuple[str, Path]) -> None:
    version, repo = stored
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with serving("serve", "latest", "ORDERS", "-r", repo, "--port", str(port), version=version) as (_, document):
        assert document["kept"]["url"] == f"nats://127.0.0.1:{port}"


@pytest.mark.by_turns
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_a_closed_terminal_ends_it_and_a_kill_leaves_only_a_folder(
    stored: tuple[str, Path], tmp_path: Path, number: signal.Signals
) -> None:
    version, repo = stored
    line = ("serve", "latest", "ORDERS", "-r", repo, "--work-dir", tmp_path)
    with serving(*line, version=version) as (process, document):
        folder = Path(document["kept"]["folder"])
        [ports] = folder.glob("*/*.ports")
        pid = int(ports.stem.rpartition("_")[2])
        assert ended(process, number) == (0 if number == signal.SIGHUP else -signal.SIGKILL)
        _until(lambda: not _lives(pid))
        assert folder.exists() == (number == signal.SIGKILL)
    jsbackup(*line, "--for", "1ms", "--nats-server", binary(version)).ok()
    assert list(tmp_path.iterdir()) == []


def test_a_second_ctrl_c_does_not_leave_the_folder(stored: tuple[str, Path], tmp_path: Path) -> None:
    version, repo = stored
    with serving("serve", "-r", repo, "--work-dir", tmp_path, version=version) as (process, _):
        for _ in range(20):
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        process.wait(_END_SECONDS)
        assert process.returncode in (0, 130)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_ends_by_itself_is_an_error(stored: tuple[str, Path], tmp_path: Path) -> None:
    version, repo = stored
    with serving("serve", "latest", "ORDERS", "-r", repo, "--work-dir", tmp_path, version=version) as (process, found):
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
