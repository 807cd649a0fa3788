"""What a backup holds and what the server holds, compared without any reader of jsbackup.

The server is read message by message over the plain API (`tests/harness/oracle.py`), the backup with pyarrow from the
Parquet files that its manifest names. `jsbackup diff ID live` has to find the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet

from jsbackup.repository.pages.stream_json import stream_to_json
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.fuzz.world import World
from tests.harness.api import JSON
from tests.harness.oracle import observe
from tests.harness.stored_files import segment_files

_SHOWN = 20


class Held(NamedTuple):
    """A message without its sequence."""

    time_ns: int
    subject: bytes
    headers: bytes
    data: bytes


def manifest_of(repository: Path, backup: str) -> JSON:
    manifest: JSON = json.loads((repository / "backups" / f"{backup}.json").read_text())
    if "paged_streams" in manifest:
        streams = Repository.open(LocalStore(repository)).manifest(backup).streams
        manifest["streams"] = list(map(stream_to_json, streams))
    return manifest


def stored_messages(repository: Path, stream: JSON) -> dict[int, Held]:
    """The messages of a stream of a manifest, by sequence."""
    found: dict[int, Held] = {}
    for file in segment_files(repository, stream):
        table = pyarrow.parquet.read_table(file)
        names = ("sequence", "timestamp_ns", "subject", "headers", "data")
        for sequence, time_ns, subject, headers, data in zip(*(table[name].to_pylist() for name in names), strict=True):
            assert sequence not in found, f"sequence {sequence} of {stream['name']} is stored twice"
            raw = subject.encode() if isinstance(subject, str) else subject
            found[sequence] = Held(time_ns, raw, headers or b"", data)
    return found


async def live_messages(world: World, name: str) -> dict[int, Held]:
    stream = (await observe(world.client, [name]))[name]
    assert stream.missing == stream.deleted, (
        f"{name} has not {stream.missing}, its state calls {stream.deleted} deleted"
    )
    return {one.sequence: Held(one.time_ns, one.subject, one.header_block or b"", one.data) for one in stream.messages}


async def check_restored(world: World, backup: str, name: str) -> None:
    """Fail unless a restore in place, which ended with 0, left what does not expire by itself of what it restored."""
    (stream,) = (one for one in manifest_of(world.repository, backup)["streams"] if one["name"] == name)
    live, stored = await live_messages(world, name), stored_messages(world.repository, stream)
    lasting = {
        sequence: one
        for sequence, one in stored.items()
        if b"Nats-TTL: never" in one.headers or not (b"Nats-TTL" in one.headers or stream["config"].get("max_age"))
    }
    assert not live.keys() - stored.keys(), f"{name} has more than {backup}"
    lacking = [sequence for sequence, one in lasting.items() if live.get(sequence) != one]
    assert not lacking, f"restored from {backup}, {name} lacks {lacking[:_SHOWN]}"


async def differences(world: World, backup: str) -> list[Any]:
    """What differs between a backup and the server, which is at rest."""
    streams = {stream["name"]: stream for stream in manifest_of(world.repository, backup)["streams"]}
    found: list[Any] = []
    if streams.keys() != world.configs.keys():
        found.append({"streams": sorted(streams.keys() ^ world.configs.keys())})
    for name in sorted(streams.keys() & world.configs.keys()):
        if different := await _different(world, streams[name]):
            found.append({"stream": name, "read": streams[name]["read"], **different})
    return found + _of_diff(world, backup, [one["stream"] for one in found if "stream" in one])


async def _different(world: World, stream: JSON) -> JSON:
    live, stored = await live_messages(world, stream["name"]), stored_messages(world.repository, stream)
    # A restored stream goes on from the last sequence. A server that was killed may report a lower one than its own
    # snapshot proves (2.10, a deleted tail): a higher one is safe.
    last = (await world.info(stream["name"]))["state"]["last_seq"]
    known = max(stream["state"]["last_seq"], max(stored, default=0))
    if live == stored and last <= known:
        return {}
    return {
        "missing": sorted(live.keys() - stored.keys())[:_SHOWN],
        "too many": sorted(stored.keys() - live.keys())[:_SHOWN],
        "changed": [one for one in live.keys() & stored.keys() if live[one] != stored[one]][:_SHOWN],
        "last_seq": [last, known],
    }


def _of_diff(world: World, backup: str, different: list[str]) -> list[Any]:
    done = world.run("diff", backup, "live")
    streams = done.document.get("streams", [])
    named = [one["stream"] for one in streams if any(one.get(key) for key in ("added", "removed", "changed"))]
    if done.code in (0, 1) and sorted(named) == different:
        return []
    return [{"diff": done.code, "names": named, "instead of": different, "said": done.err[-300:]}]
