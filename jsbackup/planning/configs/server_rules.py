"""What servers refuse about a configuration, as far as it is known before a restore.

As nats-server checks it (`checkStreamCfg` in its stream.go, `addConsumerWithAssignment` and `checkConsumerCfg` in its
consumer.go, 2.10 to 2.15). Of most settings only what `--set` has changed is checked: everything else was accepted by
the server that was backed up. What copies and maps subjects is always checked (`mapping_rules.py`), and what is as that
server accepted it is a warning: should we be wrong, nothing keeps a stream from being restored. Not checked: limits in
the server's configuration file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

from jsbackup.model import JsonObject
from jsbackup.planning.configs.features import Version, version_text
from jsbackup.planning.configs.mapping_rules import mapping_problems
from jsbackup.planning.configs.overrides import about_unit
from jsbackup.planning.model import Action, RestoreOptions, Target
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.subjects import first_overlap
from jsbackup.readable import format_count
from jsbackup.repository.manifest import ArchiveFormat
from jsbackup.shell import shell_word
from jsbackup.times import ZERO_TIME
from jsbackup.transforms.subjects import contains, is_pattern, overlaps

__all__ = ["about_server_rules", "against_server_rules"]

_SECOND_NS = 1_000_000_000
_LEAST_NS = _SECOND_NS // 10
_MOST_DESCRIPTION = 4096
_MOST_MSG_SIZE = (1 << 31) - 1
_MOST_METADATA = 128 << 10
_EVERYTHING = ">"
_RESERVED: Mapping[str, str] = {"$JS.>": "$JS.EVENT.>", "$JSC.>": "", "$NRG.>": "", "$SYS.>": "$SYS.ACCOUNT.>"}
_NOT_ON_MIRRORS = (
    "subjects",
    "sources",
    "first_seq",
    "allow_msg_counter",
    "allow_atomic",
    "allow_batched",
    "allow_msg_schedules",
    "subject_delete_marker_ttl",
)
_NOT_ON_COUNTERS = ("allow_msg_ttl", "subject_delete_marker_ttl")  # a marker has a TTL
_WITHOUT = "Restore it with --consumers none, and create its consumers again."


def against_server_rules(action: Action, target: Target, options: RestoreOptions) -> Iterator[Finding]:
    """Yield refusals of what a server would refuse, or lose messages by."""
    changed = options.fields.keys()
    name, config = action.entry.name, action.config
    for fields, reason in _always_checked(action, target):
        if not _was_accepted(action, fields):
            hint = _put_right(fields, changed) if changed & set(fields) else _leave_out(fields[0], name)
            yield Finding(name, Rule.SERVER_REFUSES, reason, hint)
    for fields, reason in _of_schedules(config, target.version):
        hint = _put_right(fields, changed) if changed & set(fields) else _leave_out(fields[0], name)
        yield Finding(name, Rule.SERVER_REFUSES, reason, hint)
    rules = (_of_fields(config, options.unitless), _of_combinations(config), _of_subjects(config)) if changed else ()
    for fields, reason, hint in chain.from_iterable(rules):
        if changed & set(fields):
            yield Finding(name, Rule.SERVER_REFUSES, reason, hint or _put_right(fields, changed))
    for field, reason, hint in _of_consumers(action):
        # No update can lower it there (`until_consumers`).
        if field in changed or (field == "max_consumers" and target.version < (2, 12)):
            yield Finding(name, Rule.SERVER_REFUSES, reason, hint)
    if "first_seq" in changed:
        yield from _against_first_seq(action, target)


def about_server_rules(action: Action, target: Target) -> Iterator[Finding]:
    """Yield warnings of what the target may refuse, although the server that was backed up had accepted it."""
    name = action.entry.name
    for fields, reason in _always_checked(action, target):
        if _was_accepted(action, fields):
            yield Finding(name, Rule.MAY_BE_REFUSED, reason, _leave_out(fields[0], name))


def _always_checked(action: Action, target: Target) -> Iterator[tuple[Sequence[str], str]]:
    yield from _of_numbers(action.config)
    yield from mapping_problems(action.name, action.config, target.version)


def _was_accepted(action: Action, fields: Sequence[str]) -> bool:
    """Return whether a server had a stream of this name with these fields. One that was imported was on none."""
    entry, config = action.entry, action.config
    same = action.name == entry.name and all(config.get(field) == entry.config.get(field) for field in fields)
    return same and entry.created != ZERO_TIME


_Found = tuple[Sequence[str], str, str]  # the fields that take part, the reason, a hint or ""


def _put_right(fields: Sequence[str], changed: Collection[str]) -> str:
    return f"Correct --set {next(field for field in fields if field in changed)}, or leave it out."


def _leave_out(field: str, name: str) -> str:
    return (
        f"Change it with --set {field}=…, leave it out with --set {field}=null, or leave the stream out with --exclude "
        f"{shell_word(name)}."
    )


def _of_numbers(config: JsonObject) -> Iterator[tuple[Sequence[str], str]]:
    """Yield numbers that do not fit into the server's types."""
    if (size := config.get("max_msg_size") or 0) > _MOST_MSG_SIZE:
        yield ("max_msg_size",), f"would have a max_msg_size of {size:,}; at most {_MOST_MSG_SIZE:,} is possible"
    if (config.get("first_seq") or 0) < 0:
        yield ("first_seq",), "would have a negative first_seq"


def _of_fields(config: JsonObject, unitless: Collection[str]) -> Iterator[_Found]:
    """Yield what single fields must not be."""
    for field in ("max_age", "duplicate_window"):
        value = config.get(field) or 0
        if value < 0:
            yield (field,), f"would have a negative {field}", ""
        elif 0 < value < _LEAST_NS:
            yield (
                (field,),
                f"would have a {field} of {_seconds(value)}; the least is 0.1 s",
                about_unit(field, value, unitless),
            )
    marker_ttl = config.get("subject_delete_marker_ttl") or 0
    if marker_ttl < 0:
        yield ("subject_delete_marker_ttl",), "would have a negative subject_delete_marker_ttl", ""
    elif 0 < marker_ttl < _SECOND_NS:
        reason = f"would have a subject_delete_marker_ttl of {_seconds(marker_ttl)}; the least is 1 s"
        yield ("subject_delete_marker_ttl",), reason, about_unit("subject_delete_marker_ttl", marker_ttl, unitless)
    if (length := len((config.get("description") or "").encode(errors="surrogatepass"))) > _MOST_DESCRIPTION:
        yield ("description",), f"would have a description of {length:,} bytes; at most 4,096 are allowed", ""
    size = sum(len(key.encode()) + len(str(value).encode()) for key, value in (config.get("metadata") or {}).items())
    if size > _MOST_METADATA:
        yield ("metadata",), f"would have metadata of {size:,} bytes; at most {_MOST_METADATA:,} are allowed", ""
    if (config.get("placement") or {}).get("preferred"):
        yield ("placement",), "would have a placement with a preferred server, which is not allowed", ""
    if (config.get("num_replicas") or 1) > 5 or (config.get("num_replicas") or 1) < 0:
        yield ("num_replicas",), f"would have {config['num_replicas']} replicas; 1 to 5 are possible", ""


def _of_combinations(config: JsonObject) -> Iterator[_Found]:
    """Yield which fields exclude or need each other."""
    discards_new = config.get("discard") == "new"
    if config.get("discard_new_per_subject"):
        if not discards_new:
            fields = ("discard_new_per_subject", "discard")
            yield fields, "would have discard_new_per_subject without discard new", "Add --set 'discard=\"new\"'."
        if (config.get("max_msgs_per_subject") or 0) <= 0:
            fields = ("discard_new_per_subject", "max_msgs_per_subject")
            yield fields, "would have discard_new_per_subject without max_msgs_per_subject", ""
    if config.get("deny_purge") and config.get("allow_rollup_hdrs"):
        yield ("deny_purge", "allow_rollup_hdrs"), "would have deny_purge and allow_rollup_hdrs, which needs purges", ""
    if config.get("mirror"):
        for field in _NOT_ON_MIRRORS:
            if config.get(field):
                leave_out = f"Add --set {field}=null, or leave the mirror out with --set mirror=null."
                yield ("mirror", field), f"would be a mirror with {field}, which a mirror must not have", leave_out
    if config.get("sources") and config.get("allow_msg_schedules"):
        yield (
            ("sources", "allow_msg_schedules"),
            "would have sources and allow_msg_schedules, which exclude each other",
            "",
        )
    if config.get("allow_msg_counter"):
        for field in _NOT_ON_COUNTERS:
            if config.get(field):
                reason = f"would have allow_msg_counter and {field}, which exclude each other"
                yield ("allow_msg_counter", field), reason, ""
        if discards_new:
            reason = "would have allow_msg_counter and discard new, which exclude each other"
            yield ("allow_msg_counter", "discard"), reason, ""
        if config.get("retention", "limits") != "limits":
            fields = ("allow_msg_counter", "retention")
            yield fields, "would have allow_msg_counter, which is for retention limits only", ""
    if config.get("persist_mode") == "async":
        if config.get("storage", "file") != "file":
            yield ("persist_mode", "storage"), "would have persist_mode async, which is for storage file only", ""
        if config.get("allow_atomic"):
            fields = ("persist_mode", "allow_atomic")
            yield fields, "would have persist_mode async and allow_atomic, which exclude each other", ""


def _of_schedules(config: JsonObject, version: Version) -> Iterator[tuple[Sequence[str], str]]:
    """Yield what servers refuse that an older one accepted. Measured: 2.12.8 takes both, 2.14.6 and 2.15.3 neither."""
    if not config.get("allow_msg_schedules") or version < (2, 14):
        return
    exclude = f"which {version_text(version)} does not allow"
    if config.get("discard") == "new":
        yield ("discard", "allow_msg_schedules"), f"would have discard new and allow_msg_schedules, {exclude}"
    if config.get("allow_msg_counter"):
        fields = ("allow_msg_schedules", "allow_msg_counter")
        yield fields, f"would have allow_msg_counter and allow_msg_schedules, {exclude}"


def _of_subjects(config: JsonObject) -> Iterator[_Found]:
    subjects = [one for one in config.get("subjects") or () if isinstance(one, str)]
    for number, subject in enumerate(subjects):
        if not is_pattern(subject):
            yield ("subjects",), f"would have {subject[:80]!r} among its subjects, which is none", ""
            continue
        later = [one for one in subjects[number + 1 :] if is_pattern(one)]
        if subject in later:
            yield ("subjects",), f"would have the subject {subject} twice", ""
        elif pair := first_overlap([subject], later):
            yield ("subjects",), f"would have the subject {subject}, which overlaps with its subject {pair[1]}", ""
        if not config.get("no_ack"):
            yield from _without_no_ack(subject)
        elif subject == _EVERYTHING and (config.get("num_replicas") or 1) != 1:
            yield ("subjects", "num_replicas"), "would have the subject >, which is for one replica only", ""


def _without_no_ack(subject: str) -> Iterator[_Found]:
    if subject == _EVERYTHING:
        yield ("subjects", "no_ack"), "would have the subject >, which needs no_ack", "Add --set no_ack=true."
        return
    for reserved, allowed in _RESERVED.items():
        if overlaps(subject, reserved) and not (allowed and contains(allowed, subject)):
            reason = f"its subject {subject} overlaps with {reserved} of the server, which needs no_ack"
            yield ("subjects", "no_ack"), reason, "Add --set no_ack=true."


def _of_consumers(action: Action) -> Iterator[tuple[str, str, str]]:
    """Yield what the stream would have against its consumers: the field, the reason and a hint."""
    config = action.config
    consumers = {
        one.consumer.name: one.consumer.config
        for one in action.consumers
        if not one.consumer.config.get("direct") and not one.consumer.config.get("sourcing")
    }
    if 0 < (most := config.get("max_consumers") or 0) < len(consumers):
        reason = f"has {format_count(len(consumers), 'consumer')}, and would have a max_consumers of {most}"
        yield "max_consumers", reason, "Restore it with --consumers none, or raise max_consumers."
    limits = config.get("consumer_limits") or {}
    for name, its in consumers.items():
        for field in ("inactive_threshold", "max_ack_pending"):
            limit, value = limits.get(field) or 0, its.get(field) or 0
            if 0 < limit < value:
                reason = f"consumer {name} has {field} {value}, and consumer_limits would allow {limit}"
                yield "consumer_limits", reason, f"Raise it, or: {_WITHOUT[0].lower()}{_WITHOUT[1:]}"
    if config.get("retention") != "workqueue":
        return
    for name, its in consumers.items():
        if its.get("ack_policy", "none") not in ("explicit", "flow_control"):
            yield "retention", f"consumer {name} has no explicit acks, which retention workqueue needs", _WITHOUT
        elif its.get("deliver_policy", "all") != "all":
            reason = f"consumer {name} does not deliver all messages, which retention workqueue needs"
            yield "retention", reason, _WITHOUT
    filters = {name: _filters(its) for name, its in consumers.items()}
    names = list(filters)
    for number, name in enumerate(names):
        for other in names[number + 1 :]:
            if first_overlap(filters[name], filters[other]):
                reason = f"consumers {name} and {other} would get the same messages, which retention workqueue forbids"
                yield "retention", reason, _WITHOUT
                return


def _filters(consumer: JsonObject) -> Sequence[str]:
    filters = consumer.get("filter_subjects") or [consumer.get("filter_subject") or _EVERYTHING]
    return [one for one in filters if isinstance(one, str)]


def _against_first_seq(action: Action, target: Target) -> Iterator[Finding]:
    """Refuse a first sequence above that of the first message: servers then purge what was restored.

    Up to 2.10.27, and 2.11.0 and 2.11.1, also the sequence of that message (`stream_config.py`).
    """
    entry, first_seq = action.entry, action.config.get("first_seq") or 0
    if entry.archive_format is ArchiveFormat.CONFIG:
        return
    first = entry.captured.first_seq if entry.captured.messages else entry.state.last_seq + 1
    buggy = target.version < (2, 10, 28) or (2, 11) <= target.version < (2, 11, 2)
    if first_seq > first or (buggy and first_seq == first and entry.captured.messages):
        reason = f"would lose all its messages by a first_seq of {first_seq:,}: its first one has sequence {first:,}"
        if not entry.captured.messages:
            reason = f"would have a first_seq of {first_seq:,}, and continues with sequence {first:,}"
        hint = "Leave first_seq out: restored messages keep their sequences."
        yield Finding(entry.name, Rule.FIRST_SEQ_EMPTIES, reason, hint)


def _seconds(value_ns: int) -> str:
    return f"{value_ns / _SECOND_NS:g} s"
