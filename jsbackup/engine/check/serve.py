"""Fill a throwaway server to look at a backup: as a drill does (`drill.py`), and so that nothing goes away by looking.

Besides what a drill adapts, these settings are, and reported:

    retention               limits: with interest or workqueue, messages go when a consumer acknowledges them, or when
                            the last one that wanted them is deleted
    inactive_threshold      of consumers: none, or a year for one that is not durable; no one uses them here
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from jsbackup.config import is_chosen
from jsbackup.engine.check.drill import adapt_streams, wait_ready
from jsbackup.engine.link.advisories import advisories
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.link.threads import with_own_threads
from jsbackup.engine.restore.restore import RestoreReport, carry_out_restore, prepare_restore
from jsbackup.engine.restore.run import RestoreRun
from jsbackup.model import JsonObject
from jsbackup.planning.model import RestoreOptions
from jsbackup.repository.manifest import ConsumerBackup, Manifest, StreamBackup
from jsbackup.repository.repository import Repository

__all__ = ["adapt_to_look", "fill_server", "stored_consumers"]

_YEAR_NS = 365 * 86_400 * 10**9


def adapt_to_look(
    manifest: Manifest, options: RestoreOptions, version: str
) -> tuple[Manifest, Mapping[str, list[str]]]:
    """Return the manifest, adapted to a server of this version, and what was adapted in each stream.

    Raises FormatError for a damaged configuration.
    """
    manifest, notes = adapt_streams(manifest, options, 1, version)
    streams = []
    for entry in manifest.streams:
        if is_chosen(entry.name, options.streams, options.exclude):
            config, changes = dict(entry.config), notes[entry.name]
            if (retention := config.get("retention", "limits")) != "limits":
                config["retention"] = "limits"
                changes.append(f"restored with retention limits instead of {retention}")
            consumers = tuple(map(_lasting, entry.consumers))
            if consumers != entry.consumers:
                changes.append("consumers restored without inactive_threshold")
            entry = replace(entry, config=config, consumers=consumers)
        streams.append(entry)
    return replace(manifest, streams=tuple(streams)), notes


def _lasting(consumer: ConsumerBackup) -> ConsumerBackup:
    if not consumer.config.get("inactive_threshold"):
        return consumer
    config = dict(consumer.config)
    if config.get("durable_name"):
        del config["inactive_threshold"]
    else:
        config["inactive_threshold"] = _YEAR_NS
    return replace(consumer, config=config)


def stored_consumers(manifest: Manifest, options: RestoreOptions) -> dict[str, list[str]]:
    """Return the consumers that will be on the server, by stream, with the stream's name there."""
    chosen = [one for one in manifest.streams if is_chosen(one.name, options.streams, options.exclude)]
    renames = options.renames.over({one.name: one.config for one in chosen})
    return {renames.name(one.name): [consumer.name for consumer in one.consumers] for one in chosen}


@with_own_threads
async def fill_server(
    run: RestoreRun,
    repository: Repository,
    manifest: Manifest,
    *,
    check_room: Callable[[Sequence[StreamBackup]], None],
    seal: bool,
) -> RestoreReport:
    """Wait for the server, restore an adapted manifest, prove it, and `seal` all streams if asked.

    `check_room` gets what will be restored, and may refuse. Raises as `run_restore`.
    """
    await wait_ready(run.connection, 1)
    async with connect_jetstream(run.connection) as js, advisories(js.link):
        prepared = await prepare_restore(run, repository, js, manifest)
        check_room([action.entry for action in prepared.plan.actions])
        report = await carry_out_restore(run, repository, js, prepared)
        if seal:
            for stream in report.streams:
                await _seal(js, stream.as_name)
        return report


async def _seal(js: JetStream, name: str) -> None:
    config: JsonObject = dict((await js.stream(name)).config)
    if not config.get("sealed"):
        await js.update_stream({**config, "sealed": True})
