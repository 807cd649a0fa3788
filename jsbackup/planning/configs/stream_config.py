"""The configuration of a stream at the target: its changes from the backup, and what the target does with it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product

from jsbackup.errors import FormatError
from jsbackup.model import JsonObject
from jsbackup.names import is_pattern
from jsbackup.planning.configs.features import V2_SINCE, Lacking, lacking_for_consumer, lacking_for_stream, version_text
from jsbackup.planning.configs.overrides import FIELDS, Shape, has_shape, overriding
from jsbackup.planning.model import Action, ConfigChange, RestoreOptions, SendAs, Target
from jsbackup.planning.reshaping import Reshaped
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.subjects import first_overlap
from jsbackup.readable import format_count
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
from jsbackup.shell import shell_word

__all__ = [
    "ADAPT",
    "about_config",
    "adapt",
    "against_config",
    "as_created",
    "check_configs",
    "config_changes",
    "overrides_for",
    "questions_about",
    "way_around",
]


# --- adapting ---
#
# `--adapt`: leave out settings that the target's release does not know, if no stored message needs them, and store in
# a file what it cannot restore into memory.
#
# Newer clients set them without using them: `allow_msg_ttl` on every bucket, for example. Settings that only affect
# publishing can always be left out. Others only matter for messages with a certain header: such a message stops the
# restore (`Reshape`), because the target would keep it longer or treat it differently. Settings of mirrors and sources
# for their origin's server are still refused, and so are all of consumers, which decide who gets which message.

ADAPT = "--adapt"

# The header of messages that need a setting; "" if none does.
_NEEDED_BY: Mapping[str, str] = {
    "allow_msg_ttl": "Nats-TTL",
    "subject_delete_marker_ttl": "Nats-TTL",
    "allow_msg_counter": "Nats-Incr",
    "allow_msg_schedules": "Nats-Schedule",
    "allow_atomic": "",
    "allow_batched": "",
    "persist_mode": "",
}


def adapt(reshaped: Reshaped, entry: StreamBackup, target: Target, options: RestoreOptions) -> Reshaped:
    """Return the stream without settings that the target does not know, and with the headers that its messages must not
    have.
    """
    if not options.adapt or entry.archive_format is ArchiveFormat.OPAQUE:
        return reshaped
    if _needs_file(reshaped.config, entry, target) and "storage" not in options.fields:
        reason = f"storage is file: {version_text(target.version)} cannot restore a stream kept in memory"
        warnings = (*reshaped.warnings, Finding(entry.name, Rule.ADAPTED, reason))
        reshaped = replace(reshaped, config={**reshaped.config, "storage": "file"}, warnings=warnings)
    left_out = [
        lacking for lacking in lacking_for_stream(reshaped.config, target.version) if _can_go(lacking, entry, options)
    ]
    if not left_out:
        return reshaped
    fields = {lacking.field for lacking in left_out}
    headers = sorted({_NEEDED_BY[name] for name in fields} - {""})
    return replace(
        reshaped,
        config={key: value for key, value in reshaped.config.items() if key not in fields},
        messages=replace(reshaped.messages, unwanted=tuple(headers)),
        warnings=(*reshaped.warnings, *(_finding(lacking, entry.name, target) for lacking in left_out)),
    )


def _needs_file(config: JsonObject, entry: StreamBackup, target: Target) -> bool:
    """Return whether the target cannot restore the stream because it is kept in memory."""
    is_sent = entry.archive_format is not ArchiveFormat.CONFIG
    return is_sent and config.get("storage") == "memory" and target.version[:2] < V2_SINCE


def _can_go(lacking: Lacking, entry: StreamBackup, options: RestoreOptions) -> bool:
    if lacking.field not in _NEEDED_BY or lacking.field in options.fields:
        return False
    # Every message of such a stream is a counter.
    return lacking.field != "allow_msg_counter" or not entry.captured.messages


def _finding(lacking: Lacking, name: str, target: Target) -> Finding:
    header = _NEEDED_BY[lacking.field]
    reason = f"{lacking.field} is left out: {version_text(target.version)} does not know it"
    return Finding(
        name, Rule.ADAPTED, f"{reason}; a message with the header {header} stops the restore" if header else reason
    )


def way_around(lacking: Lacking, name: str, options: RestoreOptions) -> str:
    """Return a sentence on what to do about a setting that the target does not know."""
    ways = []
    if lacking.field in _NEEDED_BY:
        adapting = "" if options.adapt else f" ({ADAPT} does where no message needs it)"
        ways.append(f"leave it out with --set {lacking.field}=null{adapting}")
    ways += [f"leave the stream out with --exclude {shell_word(name)}", "restore into a newer server"]
    text = f"{', '.join(ways[:-1])}, or {ways[-1]}."
    return text[0].upper() + text[1:]


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


def overrides_for(entry: StreamBackup, target: Target, options: RestoreOptions) -> JsonObject:
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
    if action.config.get("num_replicas", 1) > 1 and target.clustered is False:
        reason = f"has {action.config['num_replicas']} replicas, the target is a single server"
        yield Finding(name, Rule.SINGLE_SERVER, reason, "Restore it with --replicas 1.")
    for origin in (action.config.get("mirror"), *(action.config.get("sources") or ())):
        subject = origin and origin.get("filter_subject")
        if subject and not is_pattern(subject):  # which servers only check when the stream is made
            reason = (
                f"would copy from {origin.get('name')} with the filter_subject {subject[:80]!r}, which is not a subject"
            )
            yield Finding(name, Rule.SERVER_REFUSES, reason, "Correct it with --set.")
    yield from _against_consumers(action, target, options.fields.keys())
    if "first_seq" in options.fields:
        yield from _against_first_seq(action, target)


_MOST_REASONS = 16
_PROBE = "jsbackup-probe"
_WITHOUT = "Restore it with --consumers none, and create its consumers again."


def _against_consumers(action: Action, target: Target, changed: Container[str]) -> Iterable[Finding]:
    """Refuse changes that the stream's consumers contradict.

    As nats-server checks it (`addConsumerWithAssignment` and `checkConsumerCfg` in its consumer.go, 2.10 to 2.15). It
    cannot be asked, because it only does so when it makes these consumers.
    """
    config, reasons = action.config, list[str]()
    consumers = {
        planned.consumer.name: planned.consumer.config
        for planned in action.consumers
        if not planned.consumer.config.get("direct") and not planned.consumer.config.get("sourcing")
    }
    most = config.get("max_consumers") or 0
    # No update can lower it on servers before 2.12 (`until_consumers`).
    if 0 < most < len(consumers) and ("max_consumers" in changed or target.version < (2, 12)):
        reasons.append(f"has {format_count(len(consumers), 'consumer')}, and would have a max_consumers of {most}")
    limits = (config.get("consumer_limits") or {}) if "consumer_limits" in changed else {}
    for (name, consumer), (field, limit) in product(consumers.items(), limits.items()):
        if 0 < (limit or 0) < (consumer.get(field) or 0):
            reasons.append(f"consumer {name} has {field} {consumer[field]}, and consumer_limits would allow {limit}")
    if config.get("retention") == "workqueue" and "retention" in changed:
        for name, consumer in consumers.items():
            acks = consumer.get("ack_policy", "none") in ("explicit", "flow_control")
            if not acks or consumer.get("deliver_policy", "all") != "all":
                reasons.append(f"consumer {name} lacks explicit acks or all messages, which retention workqueue needs")
        for (name, consumer), (other, its) in combinations(consumers.items(), 2):
            if first_overlap(_filters(consumer), _filters(its)):
                reasons.append(f"consumers {name} and {other} would share messages, which retention workqueue forbids")
    yield from (Finding(action.entry.name, Rule.SERVER_REFUSES, reason, _WITHOUT) for reason in reasons[:_MOST_REASONS])


def _filters(consumer: JsonObject) -> Sequence[str]:
    return consumer.get("filter_subjects") or [consumer.get("filter_subject") or ">"]


def _against_first_seq(action: Action, target: Target) -> Iterable[Finding]:
    """Refuse a first sequence above that of the first message: servers then purge what was restored. Some also if it is
    the same (`_emptied_by_first_seq`).
    """
    entry, first_seq = action.entry, action.config.get("first_seq") or 0
    first = entry.captured.first_seq if entry.captured.messages else entry.state.last_seq + 1
    purges_first = _purges_at_first_seq(target) and entry.captured.messages
    if entry.archive_format is not ArchiveFormat.CONFIG and (
        first_seq > first or (purges_first and first_seq == first)
    ):
        reason = f"would lose all its messages by a first_seq of {first_seq:,}: its first one has sequence {first:,}"
        if not entry.captured.messages:
            reason = f"would have a first_seq of {first_seq:,}, and continues with sequence {first:,}"
        hint = "Leave first_seq out: restored messages keep their sequences."
        yield Finding(entry.name, Rule.FIRST_SEQ_EMPTIES, reason, hint)


def questions_about(config: JsonObject) -> Iterator[JsonObject]:
    """Yield configurations that servers accept if they accept this one.

    Its origins have names that no stream has. A server compares it with the streams that it has now, the plan with
    those that will be there. Each transform is also that of a mirror that republishes by it. Measured: 2.10, and 2.11
    for external sources, only check transforms when the stream is made, but what is republished before.
    """
    mirror, sources = config.get("mirror") or {}, config.get("sources") or []
    absent = dict(config)
    if mirror:
        absent["mirror"] = _under_another_name(mirror)
    if sources:
        absent["sources"] = [_under_another_name(source) for source in sources]
    yield absent
    transforms = [config.get("subject_transform") or {}]
    for origin in (mirror, *sources):
        transforms += origin.get("subject_transforms") or []
    for transform in transforms:
        if transform.get("dest"):
            # An account may require a max_bytes.
            yield {"name": config["name"], "mirror": {"name": _PROBE}, "republish": transform, "max_bytes": 1}


def _under_another_name(origin: JsonObject) -> JsonObject:
    return {**origin, "name": f"{origin['name']}-{_PROBE}"} if origin.get("name") else origin


def check_configs(entry: StreamBackup) -> None:
    """Check the fields of a stream and its consumers that decisions depend on. Raises FormatError."""
    _check_shapes(f"stream {entry.name}", entry.config, FIELDS)
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
    return _purges_at_first_seq(target) and 0 < entry.captured.first_seq <= (entry.config.get("first_seq") or 0)


def _purges_at_first_seq(target: Target) -> bool:
    return target.version < (2, 10, 28) or (2, 11) <= target.version < (2, 11, 2)


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
