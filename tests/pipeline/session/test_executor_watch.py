"""A cluster that loses all its executors in the midst of a job: the command ends, and nothing is half-made."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jsbackup.repository import layout
from jsbackup.stores.local import LocalStore
from tests.cli.typed import Typed
from tests.harness import backups
from tests.harness.batches import some_messages
from tests.harness.commands import command_line, environment
from tests.harness.proxy import Proxy
from tests.harness.servers import NEWEST, NatsServer, wait_until
from tests.pipeline.places import keep
from tests.pipeline.quick_java import quick_java
from tests.pipeline.standalone import Standalone
from tests.pipeline.streams import make_streams

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark-apart"), pytest.mark.timeout(500)]

# The first executor has to come within it, too, on a busy machine.
WAIT_SECONDS = 45
SMALL = ("--spark-conf", "spark.executor.memory=512m", "--spark-conf", "spark.driver.memory=512m")


@contextmanager
def begun(*line: str | Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command_line(*line),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**quick_java()),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def wait_for(process: subprocess.Popen[str], condition: Callable[[], bool], what: str) -> None:
    """Wait while the command runs."""
    wait_until(lambda: process.poll() is not None or condition(), what, seconds=200)
    assert process.poll() is None, process.communicate()


def ended(process: subprocess.Popen[str], *, within: float) -> Typed:
    out, err = process.communicate(timeout=within)
    return Typed(process.returncode, out, err)


def lost(cluster: Standalone) -> list[str]:
    return [
        f"error: all executors of {cluster.url} were lost, and none came back within {WAIT_SECONDS} s",
        "hint: Look at the workers of the cluster, and run the command again. --spark-wait waits longer.",
    ]


@pytest.mark.by_turns
def test_an_export_ends_without_a_table(cluster: Standalone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "SEGMENT_BYTES", 2 << 20)
    kept = keep(tmp_path / "r", {"A": some_messages(300, 200_000)})
    line = ["export", "latest", *kept.line, "--format", "jsonl", "--output", tmp_path / "out", *SMALL]
    with begun(*line, "--spark-master", cluster.url, "--spark-wait", f"{WAIT_SECONDS}s") as process:
        wait_for(process, lambda: bool(list(tmp_path.glob(".out.*/A/*.jsonl"))), "a file of the export")
        cluster.kill(0)
        done = ended(process, within=180)
    assert (done.code, done.out) == (1, ""), done
    assert done.err.splitlines()[-2:] == lost(cluster)
    waiting = f"warning: waiting for an executor of {cluster.url}: all are lost, for 15 s; at most {WAIT_SECONDS} s"
    assert waiting in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


@pytest.mark.by_turns
@pytest.mark.nats
def test_a_backup_ends_without_one_and_another_worker_goes_on(
    cluster: Standalone, tmp_path: Path, nats_server: Callable[..., NatsServer]
) -> None:
    server = nats_server(NEWEST)
    asyncio.run(make_streams(server.url, 20, messages=6, size_bytes=2000))
    repo = tmp_path / "repo"
    line = ["backup", "-r", repo, "--spark-master", cluster.url, "--spark", "always", *SMALL]
    with Proxy(server.port) as proxy, begun(*line, "--spark-wait", f"{WAIT_SECONDS}s", "-s", proxy.url) as process:
        wait_for(process, lambda: proxy.connections > 1, "a connection of a task")
        proxy.hold()
        cluster.kill(0)
        proxy.release()
        done = ended(process, within=180)
    assert (done.code, done.out) == (1, ""), done
    assert done.err.splitlines()[-2:] == lost(cluster)
    store = LocalStore(repo)
    assert [*store.list(layout.LOCKS)] == [*store.list(layout.BACKUPS)] == []

    # One that comes back in time is waited for.
    cluster.revive(0)
    with Proxy(server.port) as proxy, begun(*line, "--spark-wait", "5m", "-s", proxy.url) as process:
        wait_for(process, lambda: proxy.connections > 1, "a connection of a task")
        proxy.hold()
        cluster.kill(0)
        cluster.revive(0)
        proxy.release()
        done = ended(process, within=200)
    assert done.code == 0, done
    assert len([*store.list(layout.BACKUPS)]) == 1
