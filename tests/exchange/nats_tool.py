"""Streams of real servers that go through folders of the nats CLI, made and taken by the `nats` tool."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.harness.api import connected
from tests.harness.awkward import fill
from tests.harness.awkward_bench import Storage
from tests.harness.commands import Ran, jsbackup
from tests.harness.natscli import jsm_validate, nats_restore_account
from tests.harness.oracle import ObservedStream, observe
from tests.harness.servers import NatsServer

Observed = dict[str, ObservedStream]

# Patterns for the witness. What the tool itself backs up from 2.15 and restores there does so too: an archive v2 has no
# time of creation, and a server that finds another one in an origin copies all again, within seconds.
COPIED_AGAIN = ("SOURCES:*", "M_SOURCES:*")
# What a restore of an archive v2 does not bring: the time of a last message that was deleted, and copies but once.
NOT_IN_V2 = ("state.last_ts", *COPIED_AGAIN)


def filled(url: str, version: str, only: tuple[str, ...] | None = None, storage: Storage = "file") -> Observed:
    """Makes awkward streams; returns all that the server then holds."""

    async def work() -> Observed:
        async with connected(url) as nc:
            await fill(nc, version, only, storage=storage)
            return await observe(nc)

    return asyncio.run(work())


def observed(url: str) -> Observed:
    async def work() -> Observed:
        async with connected(url) as nc:
            return await observe(nc)

    return asyncio.run(work())


def restored_by_nats(version: str, folder: Path) -> Observed:
    """What a server holds that the tool restored a folder for each stream into."""
    with NatsServer(version) as server:
        nats_restore_account(server.url, folder)
        return observed(server.url)


def export(repository: Path, out: Path, *arguments: str) -> None:
    jsbackup("export", "latest", *arguments, "-r", repository, "--format", "nats-cli", "--output", out).ok()


def assert_valid(folder: Path, streams: Observed) -> None:
    """`nats backup validate` is content with each stream's folder, and counts what the server held."""
    found = jsm_validate(sorted(folder.iterdir()))
    assert found.keys() == streams.keys()
    for name, stream in streams.items():
        sequences = [one.sequence for one in stream.messages] or [0]
        assert found[name] == {
            "directory": str(folder / name),
            "error": "",
            "messages": len(stream.messages),
            "subjects": len({one.subject for one in stream.messages}),
            "consumers": len(stream.consumers),
            "first_seq": sequences[0],
            "last_seq": sequences[-1],
        }


def inexact(backup: Ran) -> list[str]:
    """What a backup says not to have exactly of its consumers, as patterns for the witness."""
    return [
        f"{stream['name']}:consumer.{consumer['name']}.{field}"
        for stream in backup.document["streams"]
        for consumer in stream["consumers"]
        if consumer["fidelity"] != "exact"
        for field in ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending")
    ]
