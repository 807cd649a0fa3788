"""Streams that copy from others, and what a reader finds in them: which messages of an origin came how many times.

Every message published has a payload of its own, so that one that was copied twice is seen as such wherever it went.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.harness.api import JSON, Refused, call, connected, paged

_SETTLE_SECONDS = 40.0
_QUIET_SECONDS = 1.2
_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Copied:
    """What a stream holds: `payloads` in order, with the marks (`Nats-Stream-Source`) of those that have one."""

    payloads: list[str]
    marks: list[str]
    state: JSON

    @property
    def twice(self) -> list[str]:
        return sorted(payload for payload, count in Counter(self.payloads).items() if count > 1)


async def make(url: str, configs: Iterable[JSON]) -> None:
    async with connected(url) as nc:
        for config in configs:
            await call(nc, f"STREAM.CREATE.{config['name']}", config)


async def infos(url: str) -> dict[str, JSON]:
    async with connected(url) as nc:
        return {one["config"]["name"]: one for one in await paged(nc, "STREAM.LIST", "streams")}


async def read(
    url: str, names: Iterable[str] | None = None, *, behind: Mapping[str, int] | None = None
) -> dict[str, Copied]:
    """The messages of the streams that are there, or of those named: all, or those `behind` a sequence."""
    async with connected(url) as nc:
        listed = {one["config"]["name"]: one for one in await paged(nc, "STREAM.LIST", "streams")}
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(name: str, seq: int) -> tuple[str, str] | None:
            async with gate:
                try:
                    message = (await call(nc, f"STREAM.MSG.GET.{name}", {"seq": seq}))["message"]
                except Refused:
                    return None
            block = base64.b64decode(message.get("hdrs") or "").decode()
            mark = next((line for line in block.split("\r\n") if line.startswith("Nats-Stream-Source: ")), "")
            return base64.b64decode(message.get("data") or "").decode(), mark.removeprefix("Nats-Stream-Source: ")

        found = {}
        for name in listed if names is None else names:
            state = listed[name]["state"]
            first = max(state["first_seq"] or 1, (behind or {}).get(name, 0) + 1)
            sequences = range(first, state["last_seq"] + 1)
            messages = [m for m in await asyncio.gather(*(one(name, seq) for seq in sequences)) if m is not None]
            found[name] = Copied([m[0] for m in messages], [m[1] for m in messages if m[1]], state)
        return found


async def settled(url: str, wanted: Mapping[str, int] | None = None, *, quiet: float = _QUIET_SECONDS) -> None:
    """Wait until no stream has changed for a while, and those `wanted` have at least so many messages."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    before: dict[str, Any] = {}
    began = since = time.monotonic()
    while time.monotonic() < deadline:
        now = await infos(url)
        states = {name: (info["state"]["messages"], info["state"]["last_seq"]) for name, info in now.items()}
        heard = all(
            0 <= one["active"] < (time.monotonic() - began) * 1e9 or one["name"] not in now
            for info in now.values()
            for one in [*(info.get("sources") or []), *([info["mirror"]] if info.get("mirror") else [])]
        )
        enough = all(states.get(name, (0, 0))[0] >= count for name, count in (wanted or {}).items())
        if states != before or not heard or not enough:
            before, since = states, time.monotonic()
        elif time.monotonic() - since > quiet:
            return
        await asyncio.sleep(0.1)
