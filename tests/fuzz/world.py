"""A world: a server with streams of all kinds, a repository, and what was done since the last backup that was right.

Everything that is drawn comes from `chance`, so a seed tells a world again, as far as servers keep to it: what TTLs and
copies do has times of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import time
from pathlib import Path

import nats.errors
from nats.aio.client import Client

from tests.fuzz.streams import COPIES, QUEUES, configs
from tests.harness.api import JSON, PATIENCE_SECONDS, connect
from tests.harness.commands import PATIENT, Ran, jsbackup
from tests.harness.servers import NatsServer

Contents = dict[str, tuple[int, ...]]

_HOUR_NS = 3600 * 10**9
_RETRY_SECONDS = 0.25


class World:
    """A context manager; connections are made by `begin`. `done` are operations in words, for what a test says."""

    def __init__(self, version: str, folder: Path, seed: str) -> None:
        self.version = version
        self.folder = folder
        self.chance = random.Random(seed)
        self.configs = configs(version)
        self.repository = folder / "repo"
        self.store = folder / "server" / "store"
        # Written at once: a server that is killed would go back in time by itself, which is an operation of its own.
        jetstream = f"jetstream {{ store_dir: {json.dumps(str(self.store))}, sync_interval: always }}"
        self.server = NatsServer(version, jetstream=False, directory=folder / "server", config=jetstream)
        self.done: list[str] = []
        self.backups: list[str] = []
        self.copies: list[Path] = []  # of the server's folder
        self.sealed: set[str] = set()
        self.ahead_seconds = 0  # what the clock of jsbackup's machine is wrong by
        self.expired_at = 0.0  # of the monotonic clock: when no message is left that has a TTL
        self._client: Client | None = None

    def __enter__(self) -> World:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.kill()
        self.server.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    async def begin(self) -> None:
        await self._connect()
        for name in self.configs:
            await self.create(name)

    async def end(self) -> None:
        if self._client is not None:
            with contextlib.suppress(Exception):  # of a server that is gone
                await self._client.close()

    async def revive(self) -> None:
        """Start the server, which was ended, again. What it kept in memory is made again, empty."""
        self.server.start()
        await self._connect()
        await self.create_missing()

    async def _connect(self) -> None:
        await self.end()
        self._client = await connect(self.server.url)
        while (await self.ask("INFO")).get("error"):
            await asyncio.sleep(_RETRY_SECONDS)

    async def create(self, name: str, **fields: object) -> None:
        answer = await self.ask(f"STREAM.CREATE.{name}", {**self.configs[name], **fields})
        assert "error" not in answer, f"{name}: {answer['error']}"
        if name in QUEUES:
            await self.create_worker(name)

    async def create_worker(self, name: str) -> None:
        config = {"durable_name": "worker", "ack_policy": "explicit", "ack_wait": _HOUR_NS, "max_ack_pending": 5000}
        await self.ask(f"CONSUMER.DURABLE.CREATE.{name}.worker", {"stream_name": name, "config": config})

    async def create_missing(self) -> None:
        """A restart leaves no stream in memory, a restore that failed none at all."""
        for name in self.configs:
            if (await self.ask(f"STREAM.INFO.{name}")).get("error"):
                self.note(f"gone {name}")
                await self.create(name)

    def note(self, text: str) -> None:
        self.done.append(text)

    async def ask(self, subject: str, body: JSON | None = None) -> JSON:
        """The answer of the JetStream API, an error too. A server that has just started gets time."""
        payload = b"" if body is None else json.dumps(body).encode()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                message = await self.client.request(f"$JS.API.{subject}", payload, timeout=10)
            except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                answer: JSON = json.loads(message.data)
                return answer

    async def info(self, name: str) -> JSON:
        return await self.ask(f"STREAM.INFO.{name}", {"deleted_details": True})

    async def sequences(self, name: str) -> list[int]:
        """Of the messages that the stream holds."""
        state = (await self.info(name))["state"]
        gone = set(state.get("deleted") or ())
        if not state["messages"]:
            return []
        return [sequence for sequence in range(state["first_seq"], state["last_seq"] + 1) if sequence not in gone]

    async def publish(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> JSON:
        """The stream's acknowledgement, or its refusal."""
        message = await self.client.request(subject, data, timeout=PATIENCE_SECONDS, headers=headers)
        answer: JSON = json.loads(message.data)
        return answer

    async def settle(self) -> Contents:
        """Until nothing changes by itself any more: TTLs, mirrors, sources, acknowledgements. What there is then."""
        await asyncio.sleep(max(0.0, self.expired_at - time.monotonic()))
        before: Contents = {}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            infos = {name: await self.info(name) for name in self.configs}
            behind = any(one.get("lag", 0) for name in COPIES for one in _origins(infos[name]))
            now = {name: _contents(info["state"]) for name, info in infos.items()}
            if now == before and not behind:
                break
            before = now
            await asyncio.sleep(0.3)
        return before

    async def has_changed(self, since: Contents) -> bool:
        """Whether streams hold something else than `settle` found: copies of 2.10 do not always say to be behind."""
        now = {name: _contents((await self.info(name))["state"]) for name in since}
        return now != since

    def run(self, *arguments: str) -> Ran:
        """A command on this world's server and repository."""
        where = ("-s", self.server.url, "-r", self.repository, *PATIENT)
        return jsbackup(*arguments, *where, ahead_seconds=self.ahead_seconds)

    def back_up(self, incremental: str) -> Ran:
        done = self.run("backup", "--incremental", incremental, "--jobs", "2")
        if done.code == 0:
            self.backups.append(done.document["backup"])
        return done


def _contents(state: JSON) -> tuple[int, ...]:
    return tuple(state.get(key, 0) for key in ("messages", "bytes", "first_seq", "last_seq", "num_deleted"))


def _origins(info: JSON) -> list[JSON]:
    return [*(info.get("sources") or ()), *([info["mirror"]] if info.get("mirror") else ())]
