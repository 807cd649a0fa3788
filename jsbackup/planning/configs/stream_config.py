"""The configuration of a stream at the target: its changes from the backup, and what the target does with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from jsbackup.errors import FormatError
from jsbackup.model import JsonObject
from jsbackup.planning.configs.adapting import way_around
from jsbackup.planning.configs.features import (
    lacking_for_consumer,
    lacking_for_stream,
    version_text,
)
from jsbackup.planning.configs.override_values import Shape, has_shape, shape_of
from jsbackup.planning.configs.overrides import FIELDS, overriding
from jsbackup.planning.model import (
    Action,
    ConfigChange,
    RestoreOptions,
    SendAs,
    Target,
)
from jsbackup.planning.rules import Finding, Rule
from jsbackup.readable import format_count
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
from jsbackup.shell import shell_word

__all__ = ["about_config", "against_config", "as_created", "check_configs", "config_changes", "overrides_for"]

_STREAM: Mapping[str, Shape] = {field: shape_of(field, kind) for field, kind in FIELDS.items()}
_CONSUMER: Mapping[str, Shape] = {
    **dict.fromkeys(("name", "durable_name", "ack_policy", "deliver_policy", "deliver_subject", "filter_subject"), str),
    **dict.fromkeys(("inactive_threshold", "max_ack_pending", "num_replicas", "opt_start_seq"), int),
    **dict.fromkeys(("direct", "mem_storage", "sourcing"), bool),
    "filter_subjects": [str],
    "metadata": {},
}
_SERVER_METADATA = "_nats."
# What servers write there; they differ from server to server.
_WRITTEN_METADATA = frozenset({"_nats.ver", "_nats.level", "_nats.req.level"})


def config_changes(before: JsonObject, after: JsonObject, asked: JsonObject) -> Iterable[ConfigChange]:
    """Yield the changes: requested ones first, then those that follow from names and subjects, or that the server makes
    itself (`as_created`). The name is reported elsewhere.
    """
    before = _without_metadata(before, lambda key: key in _WRITTEN_METADATA)
    after = _without_metadata(after, lambda key: key.startswith(_SERVER_METADATA))
    for field in dict.fromkeys([*asked, *before, *after]):
        if field != "name" and before.get(field) != after.get(field):
            yield ConfigChange(field, before.get(field), after.get(field))


def _without_metadata(config: JsonObject, drops: Callable[[str], bool]) -> JsonObject:
    metadata = config.get("metadata")
    if not isinstance(metadata, dict) or not any(map(drops, metadata)):
        return config
    kept = {key: value for key, value in metadata.items() if not drops(key)}
    return {field: value for field, value in config.items() if field != "metadata"} | (
        {"metadata": kept} if kept else {}
    )


def as_created(config: JsonObject, target: Target) -> JsonObject:
    """Return a stream's configuration with what the target's servers set themselves, without a word, when they create
    it: markers and schedules need roll-ups, these need purges, and markers need TTLs of messages (`checkStreamCfg` in
    their stream.go). It is sent so, since a later update of the stream could not change it.
    """
    marks = (config.get("subject_delete_marker_ttl") or 0) > 0 and target.version >= (2, 11)
    schedules = bool(config.get("allow_msg_schedules")) and target.version >= (2, 12)
    created = dict(config)
    if marks:
        created["allow_msg_ttl"] = True
    if (marks or schedules) and not config.get("allow_rollup_hdrs"):
        created["allow_rollup_hdrs"] = True
        if created.get("deny_purge"):
            created["deny_purge"] = False
    return created


def overrides_for(entry: StreamBackup, config: JsonObject, target: Target, options: RestoreOptions) -> JsonObject:
    """Return the fields of the configuration that change at the target; None: left out."""
    overrides = overriding(options)
    if _emptied_by_first_seq(entry, target):
        overrides["first_seq"] = None
    return overrides


def against_config(action: Action, wanted: JsonObject, target: Target, options: RestoreOptions) -> Iterable[Finding]:
    """Yield refusals of what the target's servers would not accept or support."""
    name, version = action.entry.name, version_text(target.version)
    for lacking in lacking_for_stream(wanted, target.version):
        hint = way_around(lacking, name, options)
        yield Finding(name, Rule.STREAM_FEATURE, f"{lacking}, the target is {version}", hint)
    for consumer in action.entry.consumers if action.consumers else ():
        for lacking in lacking_for_consumer(consumer.config, target.version):
            yield Finding(
                name,
                Rule.CONSUMER_FEATURE,
                f"consumer {consumer.name}: {lacking}, the target is {version}",
                "Restore into a newer server, with --consumers none, or leave the stream out with "
                f"--exclude {shell_word(name)}.",
            )
    replicas = action.config.get("num_replicas", 1)
    one = "Restore it with --replicas 1."
    if replicas > 1 and target.clustered is False:
        yield Finding(name, Rule.SINGLE_SERVER, f"has {replicas} replicas, the target is a single server", one)
    if replicas > 1 and action.config.get("persist_mode") == "async":
        reason = f"has persist_mode async, which is for one replica, not {replicas}"
        yield Finding(name, Rule.ASYNC_REPLICAS, reason, one)


def check_configs(entry: StreamBackup) -> None:
    """Check the fields of a stream and its consumers that decisions depend on. Raises FormatError."""
    _check_shapes(f"stream {entry.name}", entry.config, _STREAM)
    for consumer in entry.consumers:
        _check_shapes(f"consumer {consumer.name} of stream {entry.name}", consumer.config, _CONSUMER)


def _check_shapes(what: str, config: JsonObject, shapes: Mapping[str, Shape]) -> None:
    for key, value in config.items():
        if key in shapes and not has_shape(value, shapes[key]):
            raise FormatError(f"{what}: {key} in its stored configuration is damaged")


def _emptied_by_first_seq(entry: StreamBackup, target: Target) -> bool:
    """Return whether the server would empty the stream because of its `first_seq`.

    Measured: up to 2.10.27, and 2.11.0 and 2.11.1, a server that opens a stream whose first message has the sequence
    `first_seq` purges all of it (`NewFileStore`: `<=` where `<` is meant).
    """
    buggy = target.version < (2, 10, 28) or (2, 11) <= target.version < (2, 11, 2)
    return buggy and 0 < entry.captured.first_seq <= (entry.config.get("first_seq") or 0)


def about_config(action: Action, target: Target) -> Iterable[Finding]:
    """Yield warnings about what the target does with the configuration."""
    name, config = action.entry.name, action.config
    if action.entry.archive_format is ArchiveFormat.CONFIG:
        reason = "is configuration only in this backup, and restored without messages"
        yield Finding(name, Rule.WITHOUT_MESSAGES, reason, "See 'jsbackup list' for backups with messages.")
    if _emptied_by_first_seq(action.entry, target):
        reason = f"first_seq is left out: {version_text(target.version)} would empty the stream at each start"
        yield Finding(name, Rule.FIRST_SEQ, reason)
    if action.wire is SendAs.V2 and action.entry.state.last_seq > action.entry.captured.last_seq:
        reason = "its last message was deleted; an archive v2 cannot store the time of that message"
        yield Finding(name, Rule.DELETED_TAIL, reason)
    if 0 < target.known_servers < (replicas := config.get("num_replicas", 1)):
        reason = f"has {replicas} replicas, and the target reports {format_count(target.known_servers, 'server')}"
        yield Finding(name, Rule.FEW_SERVERS, reason, "Choose fewer with --replicas, unless there are more servers.")
    placement = config.get("placement") or {}
    if placement and target.clustered is False:
        yield Finding(name, Rule.PLACEMENT_SINGLE, "has a placement, which a single server ignores")
    elif target.cluster and placement.get("cluster") not in (None, "", target.cluster):
        reason = f"would be placed in cluster {placement['cluster']}, the target is in {target.cluster}"
        yield Finding(name, Rule.PLACEMENT_CLUSTER, reason, "It is refused there unless the two are connected.")
