"""Every kind of stream that a backup has to bring back, made on a real server in a few seconds.

    specs = await fill(nc, "2.12.8")                        # all that a 2.12 server can hold, in file storage
    specs = await fill(nc, "2.15.1", storage="memory")      # the same in memory, under names that start with `M_`
    specs = await fill(nc, "2.10.26", only=("GAPS", "KV"))  # some (and what they copy from)

The builders are in the `awkward_*` modules; `BUILDERS` maps key → builder with the version that brought the feature.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection

from nats.aio.client import Client

from tests.harness import awkward_configs, awkward_consumers, awkward_messages
from tests.harness.api import PATIENCE_SECONDS, Wire, creds_of
from tests.harness.awkward_bench import BUILDERS, Bench, Builder, Storage, StreamSpec
from tests.harness.servers import version_tuple

__all__ = ["BUILDERS", "COPIES", "LARGE", "StreamSpec", "fill", "keys"]

_MODULES = (awkward_configs, awkward_consumers, awkward_messages)

# Streams that copy others: made after them.
COPIES = {"MIRROR": ("ORIGIN",), "MIRROR_PART": ("ORIGIN",), "SOURCES": ("ORIGIN", "PER_SUBJECT_5")}

# Nearly all of the bytes, and two thirds of the messages: for tests of what becomes of messages and blocks.
LARGE = frozenset({"BIG", "BIG_HEADLESS", "BIG_TAILLESS", "COMPRESSED"})

# What is published in the moment when a stream's leader changes is never answered: `filled` makes the streams again.
_ANSWERED_IN_CLUSTER_SECONDS = 20

# Builders at work at once: some wait for the server's clock, and in a cluster each waits for elections.
_AT_ONCE = 8


def keys(version: str, *, storage: Storage = "file", only: Collection[str] | None = None) -> list[str]:
    """The builders' keys that such a server can hold; of `only` and what those copy, if given."""
    wanted = set(BUILDERS) if only is None else set(only)
    if unknown := wanted - set(BUILDERS):
        raise ValueError(f"no awkward stream of the name {sorted(unknown)}")
    for key in list(wanted):
        wanted.update(COPIES.get(key, ()))
    able = version_tuple(version)
    return [
        key
        for key, builder in BUILDERS.items()
        if key in wanted and builder.since <= able and not (builder.file_only and storage == "memory")
    ]


async def fill(
    nc: Client,
    version: str,
    only: Collection[str] | None = None,
    *,
    storage: Storage = "file",
    replicas: int = 1,
    prefix: str = "$JS.API",
) -> list[StreamSpec]:
    """Makes the streams on the server behind `nc`; returns what was made, copied streams before their copies.

    `replicas` is for clusters, `prefix` for a JetStream domain. Raises Refused where the server refuses something, and
    TimeoutError where it does not answer, both in an ExceptionGroup.
    """
    chosen = keys(version, storage=storage, only=only)
    workers = asyncio.Semaphore(_AT_ONCE)

    async def build(key: str) -> StreamSpec:
        async with workers:
            return await _build(nc, version, key, storage, replicas, prefix)

    specs: list[StreamSpec] = []
    for phase in ([key for key in chosen if key not in COPIES], [key for key in chosen if key in COPIES]):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(build(key)) for key in phase]
        specs += [task.result() for task in tasks]
    return specs


async def _build(nc: Client, version: str, key: str, storage: Storage, replicas: int, prefix: str) -> StreamSpec:
    builder: Builder = BUILDERS[key]
    name, root = _names(builder, storage)
    url = nc.connected_url
    if url is None:
        raise ValueError("the connection is not open")
    patience = PATIENCE_SECONDS if replicas == 1 else _ANSWERED_IN_CLUSTER_SECONDS
    wire = await Wire.open(url.geturl(), patience, creds_of(nc))
    seeded = random.Random(f"awkward {name}")
    bench = Bench(nc, wire, version_tuple(version), storage, replicas, prefix, name, root, seeded)
    try:
        await builder.build(bench)
    except Exception as error:
        error.add_note(f"while making the awkward stream {name} on {version}")
        raise
    finally:
        await wire.close()
    return StreamSpec(name, builder.since, builder.what, storage, tuple(bench.consumers))


def _names(builder: Builder, storage: Storage) -> tuple[str, str]:
    """Stream name and subject root: `GAPS`, `gaps` in file storage; `M_GAPS`, `m.gaps` in memory."""
    if storage == "file":
        return builder.name, builder.key.lower()
    # Buckets keep the prefix that makes them buckets.
    for bucket in ("KV_", "OBJ_"):
        if builder.name.startswith(bucket):
            return f"{bucket}M_{builder.name.removeprefix(bucket)}", f"m.{builder.key.lower()}"
    return f"M_{builder.name}", f"m.{builder.key.lower()}"
