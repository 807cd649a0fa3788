"""A `follow` goes on whatever its server does, and one that was killed leaves nothing behind for the next."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from jsbackup.config import parse_glob
from jsbackup.config.connection import ConnectionOptions, source_connection
from jsbackup.engine.backup.run import BackupOptions, BackupRun
from jsbackup.engine.follow.follow import FollowOptions, FollowReport, follow_streams
from jsbackup.engine.follow.followed_stream import Followed
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.errors import NatsTimeout
from jsbackup.repository.manifest import BackupResult, Manifest
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.harness.api import JSON, call, connected, paged
from tests.harness.held import held
from tests.harness.servers import NEWEST, NatsServer, wait_until
from tests.integration.test_follow import following, newest, reaches, wait_for

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]


async def publish(url: str, *subjects: str) -> None:
    async with connected(url) as nc:
        for subject in subjects:
            await nc.request(subject, b"x" * 100, timeout=30)


async def make(url: str, *names: str) -> None:
    async with connected(url) as nc:
        for name in names:
            config = {"name": name, "subjects": [f"{name}.>"], "storage": "file", "num_replicas": 1}
            await call(nc, f"STREAM.CREATE.{name}", {**config, "retention": "limits"})


async def consumers(url: str, *names: str) -> list[JSON]:
    async with connected(url) as nc:
        return [info for name in names for info in await paged(nc, f"CONSUMER.LIST.{name}", "consumers")]


@asynccontextmanager
async def followed(url: str, repo: Path) -> AsyncIterator[asyncio.Task[FollowReport]]:
    """Followed in this process. It has to end well; the task has the report then."""
    stopping = asyncio.Event()
    repository = Repository.create(LocalStore(repo), repository_id="f00d", created="2026-11-21T01:45:00Z", tool="tests")
    lease = held(repository.store)
    task = asyncio.create_task(
        follow_streams(
            BackupRun(
                source_connection(ConnectionOptions(server=url), {"HOME": "/nonexistent"}),
                repository,
                BackupOptions(streams=(parse_glob("*"),)),
            ),
            FollowOptions(every_seconds=0.5),
            hold=lambda: contextmanager(lambda: iter([lease]))(),
            stopping=stopping,
        )
    )
    yield task
    stopping.set()
    await task


async def until(repo: Path, what: Any) -> Manifest:
    """The newest backup, when it is such a one."""
    while (manifest := await asyncio.to_thread(newest, repo)) is None or not what(manifest):
        await asyncio.sleep(0.05)
    return manifest


def test_a_stream_that_was_read_and_does_not_answer_any_more_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As streams are when the server restarts while they are being read."""
    slow, silent = threading.Event(), threading.Event()
    read_on, find_stream = Followed.read_on, JetStream.find_stream

    async def slowly(self: Followed, *arguments: Any) -> Any:
        result = await read_on(self, *arguments)
        while self.name == "SLOW" and slow.is_set():
            await asyncio.sleep(0.01)
        return result

    async def silently(self: JetStream, name: str, **options: Any) -> Any:
        if name == "SLOW" and silent.is_set():
            slow.clear()  # what is being read comes to its end
            await asyncio.sleep(0.1)
            raise NatsTimeout("no answer")
        return await find_stream(self, name, **options)

    monkeypatch.setattr(Followed, "read_on", slowly)
    monkeypatch.setattr(JetStream, "find_stream", silently)

    async def run(url: str) -> None:
        await make(url, "SLOW", "FAST")
        await publish(url, "SLOW.1", "FAST.1")
        async with asyncio.timeout(60), followed(url, tmp_path):
            await until(tmp_path, lambda manifest: manifest.result is BackupResult.COMPLETE)
            slow.set()
            await publish(url, "SLOW.2", "FAST.2")
            still = await until(tmp_path, reaches("FAST", 2))
            assert still.result is BackupResult.PARTIAL and not reaches("SLOW", 2)(still)
            silent.set()
            read = await until(tmp_path, reaches("SLOW", 2))
            # It may have more by now, and nobody knows.
            assert read.result is BackupResult.PARTIAL
            assert "could not be read: no answer" in read.streams[1].warnings[-1]
            silent.clear()
            await until(tmp_path, lambda manifest: manifest.result is BackupResult.COMPLETE)

    with NatsServer(NEWEST) as server:
        asyncio.run(run(server.url))


def test_a_server_that_is_killed_and_back_at_once_is_an_outage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(server: NatsServer) -> FollowReport:
        await make(server.url, "A")
        await publish(server.url, "A.1")
        async with asyncio.timeout(60), followed(server.url, tmp_path) as task:
            await until(tmp_path, reaches("A", 1))
            for number in (2, 3):
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                await publish(server.url, f"A.{number}")
                await until(tmp_path, reaches("A", number))
        return task.result()

    with NatsServer(NEWEST) as server:
        report = asyncio.run(run(server))
    assert report.troubles == 2
    told = [message for message in caplog.messages if "works again" in message or "lost and restored" in message]
    assert len(told) == 2


def test_a_killed_follow_leaves_no_consumers_to_the_next(tmp_path: Path) -> None:
    names = [f"S{number}" for number in range(5)]
    with NatsServer("2.12.8") as server:
        asyncio.run(make(server.url, *names))

        def work(repo: Path, process: Any, last: int) -> None:
            asyncio.run(publish(server.url, *(f"{name}.{number}" for name in names for number in range(3))))
            wait_for(repo, lambda manifest: all(reaches(name, last)(manifest) for name in names), process)

        with following(tmp_path / "other", server.url) as other:
            work(tmp_path / "other", other, 3)
            with following(tmp_path / "repo", server.url) as killed:
                work(tmp_path / "repo", killed, 6)
                wait_until(lambda: len(asyncio.run(consumers(server.url, *names))) == 10, "ten consumers", server)
                time.sleep(2)  # younger ones are left to the server
                killed.kill()
            left = {info["name"] for info in asyncio.run(consumers(server.url, *names)) if not info.get("push_bound")}
            assert len(left) == 5
            with following(tmp_path / "repo", server.url) as one:
                work(tmp_path / "repo", one, 9)
                now = asyncio.run(consumers(server.url, *names))
                assert not left & {info["name"] for info in now}
                assert len(now) == 10 and all(info["push_bound"] for info in now)
                assert one.end()[0] == 0
            assert other.end()[0] == 0
