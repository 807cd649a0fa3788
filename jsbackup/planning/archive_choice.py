"""How a stream is sent to its target: as archive v1 or v2, as a raw snapshot, or created by the API; and why. Which
settings come later, by an update.
"""

from __future__ import annotations

import re

from jsbackup.model import JsonObject
from jsbackup.planning.configs.features import V2_SINCE, version_text
from jsbackup.planning.model import Action, Consumers, RestoreOptions, SendAs, Target
from jsbackup.planning.rules import Finding, Rule
from jsbackup.repository.manifest import ArchiveFormat, ConsumerBackup, Source, StreamBackup
from jsbackup.transforms.subjects import contains

__all__ = ["choose_wire", "is_kept_in_memory", "lifted", "lifted_fields", "release_of", "until_consumers"]


def choose_wire(
    entry: StreamBackup, name: str, config: JsonObject, source: Source, *, target: Target, options: RestoreOptions
) -> tuple[SendAs, str, Finding | None]:
    """Return how stream `name` is sent to the target, the reason, and what blocks it."""
    new = target.version[:2] >= V2_SINCE
    memory = config.get("storage") == "memory"

    def against(rule: Rule, reason: str, hint: str) -> Finding:
        return Finding(entry.name, rule, reason, hint)

    problem: Finding | None = None
    if entry.archive_format is ArchiveFormat.CONFIG:
        held = target.streams[name].state.messages if name in target.streams else 0
        if held:
            reason = f"is backed up without messages and would replace a stream that has {held}"
            problem = against(Rule.CONFIG_ONLY_REPLACES, reason, "Choose a backup that has its messages.")
        return SendAs.API, "is backed up without messages", problem
    if entry.archive_format is ArchiveFormat.OPAQUE:
        return SendAs.OPAQUE, "is stored undecoded", _against_opaque(entry.name, source, target, options)
    if options.wire is not SendAs.AUTO:
        return options.wire, "as before", None
    if memory:
        if not new:
            reason = f"is kept in memory, which {version_text(target.version)} cannot restore (2.15 can)"
            problem = against(Rule.MEMORY_STREAM, reason, "Restore it with --adapt, or --set storage=file.")
        return SendAs.V2, "the stream is kept in memory", problem
    if new and options.consumers is Consumers.ALL and any(map(is_kept_in_memory, entry.consumers)):
        return SendAs.V2, "restores the state of consumers kept in memory", None
    # Measured: into a file stream v1 is 3 to 5 times as fast as v2, also on 2.15.
    return (
        SendAs.V1,
        "faster into a file stream" if new else f"all that {version_text(target.version)} takes",
        None,
    )


def _against_opaque(name: str, source: Source, target: Target, options: RestoreOptions) -> Finding | None:
    """Return what blocks sending a raw snapshot."""
    if name in target.streams and name not in target.leftovers:
        reason = "is stored undecoded and cannot be verified before it replaces the existing stream"
        return Finding(name, Rule.OPAQUE_REPLACES, reason, "Delete the existing stream first if it is not needed.")
    if options.consumers is not Consumers.ALL:
        reason = f"is stored undecoded together with its consumers; --consumers {options.consumers} is not possible"
        return Finding(name, Rule.OPAQUE_CONSUMERS, reason, "Leave --consumers out, and delete them after the restore.")
    since = release_of(source)
    if since is not None and since > target.version[:2]:
        reason = (
            f"is stored undecoded, as it came from {version_text(since)}, the target is {version_text(target.version)}"
        )
        return Finding(name, Rule.OPAQUE_NEWER, reason, "Restore it into a server of that release, or a newer one.")
    return None


def release_of(source: Source) -> tuple[int, int] | None:
    """Return the release of the backup's server, such as (2, 15); None if unknown."""
    parts = re.match(r"(\d{1,9})\.(\d{1,9})", source.server_version, re.ASCII)
    return None if parts is None else (int(parts[1]), int(parts[2]))


def is_kept_in_memory(consumer: ConsumerBackup) -> bool:
    return bool(consumer.config.get("mem_storage")) and consumer.state is not None


def lifted(action: Action) -> JsonObject:
    """Return the configuration with which a server takes the archive of a stream. An update brings the final one.

    Server source (`expireMsgsOnRecover`), and measured, 2.11.11 to 2.15.3: what is older than `max_age` is removed from
    an archive v1 whatever its `Nats-TTL` says, unless the stream marks deletions. An update of `max_age` heeds `never`.
    Measured, 2.15: messages of an archive v2 are refused that are larger than `max_msg_size`, which may be newer.
    """
    config = until_consumers(action)
    never = config.get("allow_msg_ttl") and not config.get("subject_delete_marker_ttl")
    fields = {SendAs.V1: ("max_age",) if never else (), SendAs.V2: ("max_msg_size",)}.get(action.wire, ())
    return {key: value for key, value in config.items() if key not in fields}


def until_consumers(action: Action) -> JsonObject:
    """Return the configuration of a stream until its consumers exist, for which an update brings the final one.

    Measured, 2.10.26 to 2.15.3: servers accept by an update what they refuse to new consumers: subjects to which one
    delivers, and from 2.12 on, a `max_consumers` that is less than their number. For the retention: `after_restore.py`.
    """
    config, consumers = dict(action.config), [planned.consumer.config for planned in action.consumers]
    if consumers and config.get("retention") == "interest" and (config.get("num_replicas") or 1) > 1:
        config["retention"] = "limits"
    if 0 < (config.get("max_consumers") or 0) < len(consumers):
        del config["max_consumers"]
    subjects, delivers = config.get("subjects") or [], [consumer.get("deliver_subject") for consumer in consumers]
    cycles = [subject for subject in subjects if any(to and contains(subject, to) for to in delivers)]
    if cycles:
        rest = [subject for subject in subjects if subject not in cycles]
        config["subjects"] = rest or [f"jsbackup.restoring.{config['name']}"]
    return config


def lifted_fields(action: Action) -> list[str]:
    """Return the settings that come by an update."""
    config = lifted(action)
    return [field for field in action.config if config.get(field) != action.config[field]]
