"""A bucket whose keys are overwritten all the time, and what it held at every moment.

One connection writes, so the sequences of its acknowledgements are the whole history. After any sequence the bucket
held of each key the newest `history` revisions up to it, and nothing older than the key's last roll-up: `held(last)`.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import defaultdict
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.harness.api import JSON, Wire, call, connected, headers

_AT_ONCE = 64
_ROLL_UP = headers(("Nats-Rollup", "sub"))


class Overwrites:
    """Makes the bucket `KV_<name>` and overwrites its keys from a thread of its own while it is entered.

    `hot` is how many of the keys get half of all writes, `roll_ups` the part of writes that roll their key up,
    `pause_seconds` what lies between two bursts of 64.
    """

    def __init__(
        self,
        url: str,
        name: str = "busy",
        *,
        keys: int = 5000,
        history: int = 1,
        storage: str = "file",
        hot: int = 0,
        roll_ups: float = 0.0,
        pause_seconds: float = 0.01,
        size: int = 100,
        seed: int = 1,
        replicas: int = 1,
    ) -> None:
        self.stream = f"KV_{name}"
        self.keys = [f"$KV.{name}.k{number}" for number in range(keys)]
        self.history = history
        self._url = url
        self._storage = storage
        self._hot = hot
        self._roll_ups = roll_ups
        self._pause_seconds = pause_seconds
        self._size = size
        self._replicas = replicas
        self._random = random.Random(seed)
        self._written: list[tuple[int, str, bool]] = []  # sequence, key, whether it rolled the key up
        self._failure: BaseException | None = None
        self._filled = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @property
    def config(self) -> JSON:
        return {
            "name": self.stream,
            "subjects": [f"$KV.{self.stream.removeprefix('KV_')}.>"],
            "storage": self._storage,
            "retention": "limits",
            "discard": "new",
            "max_msgs_per_subject": self.history,
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "deny_delete": True,
            "num_replicas": self._replicas,
        }

    def held(self, last: int) -> set[int]:
        """The sequences that the stream held just after `last` was stored. Ask when the writing has ended."""
        revisions: dict[str, list[int]] = defaultdict(list)
        for sequence, key, rolled in sorted(self._written):
            if sequence > last:
                break
            mine = revisions[key]
            if rolled:
                mine.clear()
            mine.append(sequence)
            del mine[: -self.history]
        return {sequence for mine in revisions.values() for sequence in mine}

    def __enter__(self) -> Self:
        self._thread.start()
        self._filled.wait()
        self._raise()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if error is None:
            self._raise()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._write())
        except Exception as error:  # noqa: BLE001 - raised in the test's own thread
            self._failure = error
        finally:
            self._filled.set()

    async def _write(self) -> None:
        async with connected(self._url) as nc:
            await call(nc, f"STREAM.CREATE.{self.stream}", self.config)
        wire = await Wire.open(self._url)
        try:
            for at in range(0, len(self.keys), 1000):
                await self._put(wire, [(key, False) for key in self.keys[at : at + 1000]])
            self._filled.set()
            while not self._ended.is_set():
                await self._put(wire, [self._one() for _ in range(_AT_ONCE)])
                await asyncio.sleep(self._pause_seconds)
        finally:
            await wire.close()

    def _one(self) -> tuple[str, bool]:
        hot = self._hot and self._random.random() < 0.5
        key = self._random.choice(self.keys[: self._hot] if hot else self.keys)
        return key, self._random.random() < self._roll_ups

    async def _put(self, wire: Wire, writes: Sequence[tuple[str, bool]]) -> None:
        for key, rolled in writes:
            await wire.send(key, self._random.randbytes(self._size), _ROLL_UP if rolled else None)
        for (key, rolled), reply in zip(writes, await wire.replies(), strict=True):
            self._written.append((json.loads(reply.data)["seq"], key, rolled))
