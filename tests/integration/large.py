"""A stream large enough that something can happen in its middle, and what stands at a server or in a repository."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.api import Wire, call, connected, paged
from tests.harness.commands import jsbackup

NAME = "LARGE"
MESSAGES = 1500
# Random bytes: neither the server's compression nor ours makes less of them, so that a place in a transfer can be
# counted in bytes.
MESSAGE_BYTES = 16 * 1024
TOTAL_BYTES = MESSAGES * MESSAGE_BYTES
MIDDLE_BYTES = TOTAL_BYTES // 4
MARKER = "jsbackup.restoring"


@dataclass(frozen=True, slots=True)
class Standing:
    """What a server says of a stream. `marked`: it is left over from a restore that did not end."""

    messages: int
    last_seq: int
    marked: bool


def make_large(url: str, name: str = NAME, *, messages: int = MESSAGES, **config: Any) -> None:
    """Create the stream and fill it."""

    async def make() -> None:
        async with connected(url) as nc:
            base = {"name": name, "subjects": [f"{name}.>"], "retention": "limits", "storage": "file"}
            await call(nc, f"STREAM.CREATE.{name}", {**base, "num_replicas": 1, **config})
        wire = await Wire.open(url)
        chance = random.Random(name)
        for number in range(messages):
            await wire.send(f"{name}.{number % 7}", chance.randbytes(MESSAGE_BYTES))
        await wire.replies()
        await wire.close()

    asyncio.run(make())


def standing(url: str) -> dict[str, Standing]:
    """Every stream of the server."""

    async def look() -> dict[str, Standing]:
        async with connected(url) as nc:
            return {
                stream["config"]["name"]: Standing(
                    stream["state"]["messages"],
                    stream["state"]["last_seq"],
                    MARKER in (stream["config"].get("metadata") or {}),
                )
                for stream in await paged(nc, "STREAM.LIST", "streams")
            }

    return asyncio.run(look())


WHOLE = {NAME: Standing(MESSAGES, MESSAGES, False)}


def backups_in(repository: Path) -> list[str]:
    """The committed backups, each of which has been read through: every message of it is right.

    None where there is no repository: a first backup makes it only when it has something to store.
    """
    if not (repository / "jsbackup.json").exists():
        return []
    listed: list[str] = [entry["backup"] for entry in jsbackup("list", "-r", repository).ok().document["backups"]]
    if listed:
        jsbackup("verify", "-r", repository, *listed, "--level", "data").ok()
    return listed
