"""A drill: restore a backup into temporary servers (`drill_server.py`), with the planner and proof of any restore.

Settings that would prevent the drill from proving the stream are adapted and reported, also what a restore would lose
by them:

    num_replicas            at most as many as the drill has servers
    storage                 file, where the servers are older than 2.15 and cannot restore into memory
    placement               none: its servers have neither the cluster's name nor the tags
    max_age, allow_msg_ttl, subject_delete_marker_ttl, allow_msg_schedules
                            none: old messages would be gone before they can be compared, or new ones would come

In servers that stay, so that nothing goes away by looking:

    retention               limits: with interest or workqueue, messages go when a consumer acknowledges them, or when
                            the last one that wanted them is deleted
    inactive_threshold      of consumers: none, or a year for one that is not durable; no one uses them here

Everything else is as in the backup. Mirrors and sources stay: only streams of the same drill answer them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jsbackup.config import Connection, is_chosen
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.engine.link.threads import with_own_threads
from jsbackup.engine.restore.restore import RestoreReport, run_restore
from jsbackup.engine.restore.run import RestoreRun
from jsbackup.errors import NatsError
from jsbackup.model import JsonObject
from jsbackup.planning.configs.features import MEMORY_SNAPSHOTS_SINCE
from jsbackup.planning.configs.stream_config import check_configs
from jsbackup.planning.forecast import find_expiring
from jsbackup.planning.model import RestoreOptions
from jsbackup.planning.selection.subset import kept_by_bounds
from jsbackup.readable import format_count
from jsbackup.repository.manifest import ConsumerBackup, Manifest, StreamBackup
from jsbackup.repository.repository import Repository
from jsbackup.transforms.reshape import Reshape

__all__ = ["adapt_streams", "needed_bytes", "newest_message_ns", "run_drill"]

_READY_SECONDS = 60.0
_PAUSE_SECONDS = 0.1
_PROBE_SECONDS = 1.0
_PROBE = "jsbackup_drill_probe"
_YEAR_NS = 365 * 86_400 * 10**9

_FINITE = ("max_age", "allow_msg_ttl", "subject_delete_marker_ttl", "allow_msg_schedules")


def adapt_streams(
    manifest: Manifest, options: RestoreOptions, nodes: int, version: str, *, now_ns: int = 0, stays: bool = False
) -> tuple[Manifest, Mapping[str, list[str]]]:
    """Return the manifest, adapted to `nodes` servers of this version, and what was adapted in each stream.

    `stays`: others look at it afterwards.

    Raises FormatError for a damaged configuration.
    """
    notes: dict[str, list[str]] = {}
    keeps_memory = tuple(map(int, version.split("."))) >= MEMORY_SNAPSHOTS_SINCE
    streams: list[StreamBackup] = []
    for entry in manifest.streams:
        if is_chosen(entry.name, options.streams, options.exclude):
            check_configs(entry)
            config, changes = _adapted(entry.config, nodes, keeps_memory)
            if (lost := find_expiring(kept_by_bounds(entry, Reshape()), entry.config, now_ns)).most:
                changes.append(f"a restore would lose {lost.count} of {format_count(lost.of, 'message')} by max_age")
            consumers = entry.consumers
            if stays and (retention := config.get("retention", "limits")) != "limits":
                config["retention"] = "limits"
                changes.append(f"restored with retention limits instead of {retention}")
            if stays and (consumers := tuple(map(_lasting, consumers))) != entry.consumers:
                changes.append("consumers restored without inactive_threshold")
            notes[entry.name] = changes
            streams.append(replace(entry, config=config, consumers=consumers))
        else:
            streams.append(entry)
    return replace(manifest, streams=tuple(streams)), notes


def _adapted(before: JsonObject, nodes: int, keeps_memory: bool) -> tuple[JsonObject, list[str]]:
    config, changes = dict(before), []
    replicas = before.get("num_replicas") or 1
    if replicas > nodes:
        config["num_replicas"] = nodes
        changes.append(f"restored with {nodes} instead of {replicas} replicas")
    if before.get("storage") == "memory" and not keeps_memory:
        config["storage"] = "file"
        changes.append("restored in file storage")
    if before.get("placement"):
        del config["placement"]
        changes.append("restored without its placement")
    for field in _FINITE:
        if before.get(field):
            del config[field]
            changes.append(f"restored without {field}")
    return config, changes


def _lasting(consumer: ConsumerBackup) -> ConsumerBackup:
    if not consumer.config.get("inactive_threshold"):
        return consumer
    config = dict(consumer.config)
    if config.get("durable_name"):
        del config["inactive_threshold"]
    else:
        config["inactive_threshold"] = _YEAR_NS
    return replace(consumer, config=config)


def needed_bytes(streams: Sequence[StreamBackup], nodes: int, jobs: int) -> int:
    """Return the most that the servers need on disk: every replica, and the archives of streams being restored."""
    on_disk = [one for one in streams if one.config.get("storage") != "memory"]
    kept = sum(_bytes(one) * min(nodes, one.config.get("num_replicas") or 1) for one in on_disk)
    arriving = sorted((_bytes(one) for one in streams), reverse=True)[:jobs]
    return kept + sum(arriving)


def _bytes(stream: StreamBackup) -> int:
    return max(stream.captured.bytes, stream.state.bytes)


def newest_message_ns(streams: Sequence[StreamBackup]) -> int | None:
    """Return the newest time of a message in the backup; None if there is no message, or it is not known."""
    return max((ref.max_ns for stream in streams for ref in stream.segments), default=None)


@with_own_threads
async def run_drill(run: RestoreRun, repository: Repository, manifest: Manifest, nodes: int) -> RestoreReport:
    """Wait for the servers, restore an adapted manifest and prove it. Raises as `run_restore`."""
    await _wait_ready(run.connection, nodes)
    return await run_restore(run, repository, manifest)


async def _wait_ready(connection: Connection, nodes: int) -> None:
    """Wait until a stream with a replica on each server can be created. Raises NatsError if that takes too long."""
    deadline = time.monotonic() + _READY_SECONDS
    config: JsonObject = {"name": _PROBE, "subjects": [_PROBE], "storage": "memory", "retention": "limits"}
    # Requests sent before there is a leader are never answered.
    async with connect_jetstream(replace(connection, timeout_seconds=_PROBE_SECONDS)) as js:
        while True:
            try:
                await js.create_stream({**config, "num_replicas": nodes})
                break
            except NatsError as error:
                if time.monotonic() > deadline:
                    raise NatsError(f"the servers did not start in time: {error.message}") from error
            await asyncio.sleep(_PAUSE_SECONDS)
        await js.delete_stream(_PROBE)
