"""The plan of a restore: a pure function of a manifest, a picture of the target and the options.

Nothing is sent and nothing is read here. Every decision carries its reason (`notes`), every stream that cannot be
restored as asked becomes a refusal with its exit code, and one refusal refuses the whole plan before it starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from jsbackup.config import Glob
from jsbackup.engine.features import (
    Version,
    fit_consumer,
    fit_stream,
    lacking_for_consumer,
    lacking_for_stream,
)
from jsbackup.engine.forecast import expiring
from jsbackup.engine.limits import against_limits
from jsbackup.engine.origins import origins_first, origins_of
from jsbackup.engine.planned import (
    Action,
    ConfigChange,
    Consumers,
    IfExists,
    PlannedConsumer,
    Refusal,
    RestoreOptions,
    RestorePlan,
    Target,
    Wire,
)
from jsbackup.engine.subjects import first_overlap
from jsbackup.errors import FormatError, PlanRefused, TargetConflict, UsageError
from jsbackup.model import ArchivedConsumer, Fidelity, JsonObject
from jsbackup.repository.manifest import ArchiveFormat, ConsumerBackup, Manifest, Source, StreamBackup

__all__ = ["is_chosen", "plan_restore", "staging_prefix"]

V2_SINCE: Version = (2, 15)

_SHAPES: Mapping[str, type] = {
    "first_seq": int,
    "max_age": int,
    "max_bytes": int,
    "metadata": dict,
    "mirror": dict,
    "num_replicas": int,
    "retention": str,
    "sources": list,
    "storage": str,
    "subjects": list,
}


def staging_prefix(name: str) -> str:
    """How copies made beside a stream to replace it are named; eight hex digits follow. Fits a file name."""
    return f"{name.encode()[:200].decode(errors='ignore')}-jsbackup-"


def is_chosen(name: str, streams: Sequence[Glob], exclude: Sequence[Glob]) -> bool:
    """Whether a stream is meant by names or globs; no `streams` means all."""
    wanted = not streams or any(glob.matches(name) for glob in streams)
    return wanted and not any(glob.matches(name) for glob in exclude)


def plan_restore(manifest: Manifest, target: Target, options: RestoreOptions) -> RestorePlan:
    """Plan a restore of `manifest` into `target`. UsageError if the options name no stream of the backup."""
    chosen = _choose(manifest, options)
    actions: list[Action] = []
    refusals: list[Refusal] = []
    skipped: list[Refusal] = []
    for entry in chosen:
        exists = entry.name in target.streams and entry.name not in target.leftovers
        if (exists or entry.name in target.unborn) and options.if_exists is IfExists.SKIP:
            skipped.append(Refusal(entry.name, TargetConflict.exit_code, "exists at the target"))
            continue
        action, reasons = _plan_stream(entry, manifest.source, target, options, exists=exists)
        refusals += reasons
        actions.append(action)
    refusals += _overlaps(actions, target)
    refusals += against_limits(actions, target)
    actions = [replace(action, notes=(*action.notes, *_absent_origins(action, actions, target))) for action in actions]
    by_name = {action.name: action for action in actions}
    stages = origins_first({name: action.config for name, action in by_name.items()})
    ordered = tuple(tuple(by_name[name] for name in stage) for stage in stages)
    return RestorePlan(manifest.id, ordered, tuple(refusals), tuple(skipped))


def _choose(manifest: Manifest, options: RestoreOptions) -> list[StreamBackup]:
    for glob in options.streams:
        if not any(glob.matches(entry.name) for entry in manifest.streams):
            raise UsageError(
                f"backup {manifest.id} has no stream {glob.pattern}",
                hint="See 'jsbackup show' for the streams it has.",
            )
    return [entry for entry in manifest.streams if is_chosen(entry.name, options.streams, options.exclude)]


def _plan_stream(
    entry: StreamBackup, source: Source, target: Target, options: RestoreOptions, *, exists: bool
) -> tuple[Action, list[Refusal]]:
    refusals: list[Refusal] = []
    _check_shapes(f"stream {entry.name}", entry.config)
    for consumer in entry.consumers:
        _check_shapes(f"consumer {consumer.name} of stream {entry.name}", consumer.config)

    def refuse(reason: str, code: int = PlanRefused.exit_code) -> None:
        refusals.append(Refusal(entry.name, code, reason))

    if exists and options.if_exists is IfExists.FAIL:
        refuse("exists at the target; choose with --if-exists skip or replace", TargetConflict.exit_code)
    if entry.name in target.unborn and options.if_exists is IfExists.FAIL:
        refuse(
            "has its name taken by another restore; if that one has failed, choose --if-exists replace",
            TargetConflict.exit_code,
        )
    overrides: JsonObject = {}
    if options.replicas is not None:
        overrides["num_replicas"] = options.replicas
    if options.storage is not None:
        overrides["storage"] = options.storage
    notes: list[str] = []
    if _emptied_by_first_seq(entry, target):
        overrides["first_seq"] = None
        notes.append(f"first_seq is left out: {_text(target.version)} would empty the stream at each start")
    wanted = {key: value for key, value in {**entry.config, **overrides}.items() if value is not None}
    for lacking in lacking_for_stream(wanted, target.version):
        refuse(f"{lacking}, the target is {_text(target.version)}")
    config = fit_stream(wanted, target.version)
    replicas = config.get("num_replicas", 1)
    if replicas > 1 and target.clustered is False:
        refuse(f"has {replicas} replicas, the target is a single server; use --replicas 1")
    if replicas > 1 and config.get("persist_mode") == "async":
        refuse(f"has persist_mode async, which is for one replica, not {replicas}; use --replicas 1")
    wire, why, problem = _wire(entry, config, source, target, options)
    if problem:
        refuse(problem)
    consumers: list[PlannedConsumer] = []
    for consumer in entry.consumers:
        if options.consumers is Consumers.NONE:
            continue
        lacks = lacking_for_consumer(consumer.config, target.version)
        for lacking in lacks:
            refuse(f"consumer {consumer.name}: {lacking}, the target is {_text(target.version)}")
        consumers.append(_plan_consumer(consumer, config, wire, target, options))
    changes = tuple(
        ConfigChange(name, entry.config.get(name), value)
        for name, value in overrides.items()
        if entry.config.get(name) != value
    )
    return (
        Action(
            entry=entry,
            name=entry.name,
            wire=wire,
            wire_reason=why,
            config=config,
            replaces=exists,
            leftover=entry.name in target.leftovers | target.unborn,
            changes=changes,
            consumers=tuple(consumers),
            notes=(*notes, *_notes(entry, config, wire, consumers, target), *_staged_before(entry.name, target)),
        ),
        refusals,
    )


def _check_shapes(what: str, config: JsonObject) -> None:
    """The fields that decisions rest on. Raises FormatError."""
    for key, kind in _SHAPES.items():
        value = config.get(key)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise FormatError(f"{what}: {key} in its stored configuration is damaged")
    if not all(isinstance(subject, str) for subject in config.get("subjects") or ()):
        raise FormatError(f"{what}: subjects in its stored configuration are damaged")


def _wire(
    entry: StreamBackup, config: JsonObject, source: Source, target: Target, options: RestoreOptions
) -> tuple[Wire, str, str]:
    """The way to the target, why that one, and what stands against it ("" if nothing)."""
    new = target.version[:2] >= V2_SINCE
    memory = config.get("storage") == "memory"
    against = ""
    if entry.archive_format is ArchiveFormat.CONFIG:
        held = target.streams[entry.name].state.messages if entry.name in target.streams else 0
        if held:
            against = f"is backed up without messages, and would replace one that has {held}; choose another backup"
        return Wire.API, "is backed up without messages", against
    if entry.archive_format is ArchiveFormat.OPAQUE:
        return Wire.OPAQUE, "was kept as it came", _against_opaque(entry.name, source, target, options)
    if options.wire is not Wire.AUTO:
        if options.wire is Wire.V2 and not new:
            against = f"--wire v2 needs nats-server 2.15, the target is {_text(target.version)}; use --wire v1"
        if options.wire is Wire.V1 and memory:
            against = "--wire v1 cannot restore a stream kept in memory; leave it out, or use --storage file"
        return options.wire, "asked for", against
    if memory:
        if not new:
            against = f"is kept in memory, which {_text(target.version)} cannot restore (2.15 can); use --storage file"
        return Wire.V2, "the stream is kept in memory", against
    if new and options.consumers is Consumers.ALL and any(map(_kept_in_memory, entry.consumers)):
        return Wire.V2, "brings the state of consumers kept in memory", ""
    # M: into a file stream v1 is 3 to 5 times as fast as v2, on 2.15 too.
    return Wire.V1, "the faster one into a file stream" if new else f"all that {_text(target.version)} takes", ""


def _against_opaque(name: str, source: Source, target: Target, options: RestoreOptions) -> str:
    """What stands against sending a snapshot as it came."""
    if name in target.streams and name not in target.leftovers:
        return "was kept as it came and cannot be proved beside the one that it would replace; delete that one first"
    if options.wire is not Wire.AUTO:
        return f"was kept as it came, not decoded; --wire {options.wire} is not possible"
    if options.consumers is not Consumers.ALL:
        return f"was kept as it came, its consumers with it; --consumers {options.consumers} is not possible"
    parts = re.match(r"(\d{1,9})\.(\d{1,9})", source.server_version, re.ASCII)
    if parts is not None and (since := (int(parts[1]), int(parts[2]))) > target.version[:2]:
        return f"was kept as it came from {_text(since)}, the target is {_text(target.version)}"
    return ""


def _emptied_by_first_seq(entry: StreamBackup, target: Target) -> bool:
    """M: up to 2.10.27, and 2.11.0 and 2.11.1, a server that opens a stream whose first message has the sequence that
    `first_seq` names purges all of it (`NewFileStore`: `<=` where `<` is meant)."""
    buggy = target.version < (2, 10, 28) or (2, 11) <= target.version < (2, 11, 2)
    return buggy and 0 < entry.captured.first_seq <= (entry.config.get("first_seq") or 0)


def _kept_in_memory(consumer: ConsumerBackup) -> bool:
    return bool(consumer.config.get("mem_storage")) and consumer.state is not None


def _plan_consumer(
    entry: ConsumerBackup, stream: JsonObject, wire: Wire, target: Target, options: RestoreOptions
) -> PlannedConsumer:
    config = fit_consumer(entry.config, target.version)
    replicas, most = config.get("num_replicas", 0), stream.get("num_replicas", 1)
    # Where consumers decide what a stream keeps, servers insist on as many replicas for them as for the stream.
    if replicas > most or (replicas != most and stream.get("retention", "limits") != "limits"):
        config.pop("num_replicas", None)  # as many as the stream
    consumer = ArchivedConsumer(entry.name, config, entry.state, entry.created)
    if wire is Wire.OPAQUE:
        return PlannedConsumer(consumer, entry.fidelity, entry.reason)
    if options.consumers is Consumers.CONFIG or entry.state is None:
        note = entry.reason or "starts anew"
    elif wire is not Wire.V2 and _kept_in_memory(entry):
        note = "starts anew: only a v2 restore (2.15) brings the state of a consumer kept in memory"
    else:
        return PlannedConsumer(consumer, entry.fidelity, entry.reason, entry.pending)
    return PlannedConsumer(replace(consumer, state=None), Fidelity.CONFIG_ONLY, note)


def _notes(
    entry: StreamBackup, config: JsonObject, wire: Wire, consumers: Sequence[PlannedConsumer], target: Target
) -> Iterable[str]:
    if config.get("max_age"):
        yield expiring(entry, config["max_age"], target.now_ns)
    if config.get("allow_msg_ttl"):
        yield "messages whose own TTL has passed meanwhile are removed by the target"
    if wire is Wire.V2 and entry.state.last_seq > entry.captured.last_seq:
        yield "its last message was deleted; the time of it has no place in an archive v2"
    if config.get("mirror") or config.get("sources"):
        yield "goes on copying from its origins as soon as it is restored"
    if 0 < target.known_servers < (replicas := config.get("num_replicas", 1)):
        yield f"has {replicas} replicas, and the target tells of {target.known_servers} servers; see --replicas"
    floors = [planned.consumer.name for planned in consumers if planned.fidelity is Fidelity.FLOOR]
    if floors:
        yield f"messages come again to consumers known by their ack floor only: {', '.join(floors)}"


def _absent_origins(action: Action, actions: Sequence[Action], target: Target) -> Iterable[str]:
    """What it copies from and will not find."""
    there = {*target.streams, *(other.name for other in actions)}
    if absent := sorted(origins_of(action.config) - there):
        yield f"copies from {', '.join(absent)}, which neither the target has nor this restore brings"
    if action.name in origins_of(action.config):
        yield "copies from itself"


def _staged_before(name: str, target: Target) -> Iterable[str]:
    """Copies that earlier runs made beside the stream to replace it, and did not come to remove."""
    for other in target.streams:
        if re.fullmatch(rf"{re.escape(staging_prefix(name))}[0-9a-f]{{8}}", other):
            yield f"an interrupted replace left its copy {other}; remove that when this one is in place"


def _overlaps(actions: Sequence[Action], target: Target) -> Iterable[Refusal]:
    """Subjects of other streams, which in a cluster nobody checks at a restore.

    Also of those that are to be replaced: they are there until their turn comes.
    """
    taken = {name: stream.config.get("subjects") or [] for name, stream in target.streams.items()}
    for action in actions:
        for name, subjects in taken.items():
            pair = first_overlap(action.config.get("subjects") or [], subjects)
            if pair is not None and name != action.name:
                yield Refusal(
                    action.entry.name,
                    TargetConflict.exit_code,
                    f"its subject {pair[0]} overlaps with {pair[1]} of stream {name} at the target",
                )


def _text(version: Version) -> str:
    return "nats-server " + ".".join(map(str, version))
