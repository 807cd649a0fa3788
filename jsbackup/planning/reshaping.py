"""How each stream of a plan is reshaped: its name, its configuration, its messages; with refusals.

Names come first, because a stream's origins are renamed with it if both are restored. A stream that cannot have its new
name is refused, and not planned further.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from jsbackup.config import MAY_MISS, nearest
from jsbackup.errors import PlanRefused, UsageError
from jsbackup.model import JsonObject
from jsbackup.planning.model import Action, Consumers, RestoreOptions, Target
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.masking import (
    about_masks,
    about_nothing_kept,
    about_obfuscation,
    against_obfuscation,
    against_payload_masks,
)
from jsbackup.planning.selection.subset import KeptStream
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
from jsbackup.shell import shell_word
from jsbackup.transforms.cut import Cut
from jsbackup.transforms.follow import arriving_unmapped, held_by, may_hold, subjects_of
from jsbackup.transforms.rename import (
    Renames,
    StreamKind,
    bucket_of,
    config_subjects,
    kinds_of,
    subjects_of_bucket,
)
from jsbackup.transforms.reshape import Reshape
from jsbackup.transforms.subject_map import SubjectMap, SubjectMaps
from jsbackup.transforms.subjects import overlaps

__all__ = [
    "Reshaped",
    "Restored",
    "about_deliveries",
    "about_kept",
    "about_markers",
    "rename_streams",
    "reshape_stream",
]


@dataclass(frozen=True, slots=True)
class Restored:
    """The streams of a plan whose names are valid, and their common reshaping."""

    streams: Sequence[StreamBackup]
    reshape: Reshape

    @property
    def names(self) -> Collection[str]:
        return {entry.name for entry in self.streams}


@dataclass(frozen=True, slots=True)
class Reshaped:
    """One stream: its name and configuration at the target, the configurations of its consumers by name, its messages.

    If there are `refusals`, configurations may be unchanged.
    """

    name: str
    config: JsonObject
    consumers: dict[str, JsonObject]
    messages: Reshape
    refusals: Sequence[Finding] = ()
    warnings: Sequence[Finding] = ()

    def with_chosen(self, kept: KeptStream) -> Reshape:
        """Return the reshaping of its messages with what was found out about them."""
        return replace(self.messages, chosen=kept.chosen)


def rename_streams(
    entries: Sequence[StreamBackup], options: RestoreOptions, backup: str
) -> tuple[Restored, list[Finding]]:
    """Rename streams. Raises UsageError for a name that matches none of them."""
    if unknown := options.renames.unknown(entry.name for entry in entries):
        raise UsageError(
            f"--rename: {unknown[0]} is not among the streams to restore from backup {backup}",
            hint=nearest(unknown[0], [entry.name for entry in entries])
            or "See 'jsbackup show' for the streams it has.",
        )
    names: dict[str, str] = {}
    refusals: list[Finding] = []
    for entry in entries:
        try:
            names[entry.name] = options.renames.over({entry.name: entry.config}).name(entry.name)
        except UsageError as error:
            refusals.append(Finding(entry.name, Rule.RENAME, error.message, error.hint or "Choose another name."))
    for old, new in names.items():
        if others := sorted(other for other, its in names.items() if its == new and other != old):
            reason = f"would get the name {new}, as would {', '.join(others)}"
            refusals.append(Finding(old, Rule.RENAME_COLLISION, reason, "Choose names that differ."))
    refused = {refusal.stream for refusal in refusals}
    sound = [entry for entry in entries if entry.name not in refused]
    renames = options.renames.over({entry.name: entry.config for entry in sound}) if sound else Renames()
    reshape, names_there = options.reshape, [stream.name for stream in sound]
    patterns: list[str] = []
    if reshape.masks or reshape.maps or reshape.filters.by_subject:
        patterns = [pattern for entry in sound for pattern in may_hold(entry.config, names_there)]
    # Already done by the names: applied twice, a bucket that takes the old name of another would lose its keys to it.
    maps = SubjectMaps(tuple(subject_map for subject_map in options.reshape.maps.maps if not renames.does(subject_map)))
    refusals += _against_bucket_maps(sound, maps)
    if not options.allow_nothing:
        refusals += _against_aimless(patterns, reshape, maps)
    return Restored(sound, replace(options.reshape, renames=renames, maps=maps)), refusals


def reshape_stream(entry: StreamBackup, restored: Restored, options: RestoreOptions) -> Reshaped:
    """Reshape one of the restored streams. Raises FormatError if its configuration is damaged."""
    names, whole = restored.names, restored.reshape
    old, new = entry.name, whole.stream_name(entry.name)
    consumers = {consumer.name: consumer.config for consumer in entry.consumers}
    if entry.archive_format is ArchiveFormat.OPAQUE:
        reshaped = Reshaped(new, entry.config, consumers, Reshape())
        return replace(reshaped, refusals=list(_against_opaque(old, whole, renamed=new != old)))
    promoted = _promoted(entry, new, options)
    if promoted is not None:
        entry, own = promoted
        whole = replace(whole, maps=SubjectMaps((*whole.maps.maps, *own)))
    refusals = [*_against_newest(entry, whole), *against_obfuscation(entry, whole)]
    config, messages = entry.config, Reshape()
    try:
        config = whole.stream_config(entry.config, names)
        messages = whole.of_stream(entry.config, names)
    except PlanRefused as error:
        reason = f"its configuration cannot follow the subjects: {error.message}"
        refusals.append(Finding(old, Rule.MAP_STREAM, reason, error.hint or "Leave it out, or map its subjects whole."))
    for consumer in entry.consumers if options.consumers is not Consumers.NONE else ():
        try:
            consumers[consumer.name] = whole.consumer_config(consumer.config, entry.config, names)
        except PlanRefused as error:
            reason = f"consumer {consumer.name} cannot follow the subjects: {error.message}"
            hint = error.hint or "Restore it with --consumers none, and create the consumer again."
            refusals.append(Finding(old, Rule.MAP_CONSUMER, reason, hint))
    refusals += against_payload_masks(old, entry.config, whole.masks.masks)
    warnings = [*_about_maps(entry, whole, names), *about_obfuscation(entry, whole)]
    if promoted is not None:
        reason = f"becomes a bucket of its own, with the subjects {', '.join(config['subjects'])}"
        were = f"; its keys were {own[0].source}" if own else ""
        warnings.append(Finding(old, Rule.PROMOTED, reason + were))
    refusals += [warning for warning in warnings if warning.rule.code]
    warnings = [warning for warning in warnings if not warning.rule.code]
    return Reshaped(new, config, consumers, _of_messages(messages, entry.config), refusals, warnings)


def _promoted(
    entry: StreamBackup, name: str, options: RestoreOptions
) -> tuple[StreamBackup, Sequence[SubjectMap]] | None:
    """Return a bucket's mirror that is to be one no more as the bucket that it mirrors, and what maps the subjects of
    that one to those of stream `name`, by which clients find its keys; None for every other stream.
    """
    mirror, fields = entry.config.get("mirror"), options.fields
    if not mirror or "mirror" not in fields or fields["mirror"] is not None or "subjects" in fields:
        return None
    subjects = config_subjects(str(mirror.get("name")))
    if not subjects or bucket_of(entry.name)[0] is not bucket_of(str(mirror["name"]))[0]:
        return None
    kept = {field: value for field, value in entry.config.items() if field != "mirror"}
    old, new = subjects_of_bucket(mirror["name"]), subjects_of_bucket(name)
    promoted = replace(entry, config={**kept, "subjects": subjects})
    return promoted, [] if old == new else [SubjectMap(old, new)]


def _of_messages(reshape: Reshape, config: JsonObject) -> Reshape:
    """Remove names if no message can contain one: then nothing has to be read to know what is sent."""
    moved = reshape.maps or reshape.renames.subjects or reshape.marks or config.get("allow_msg_counter")
    return reshape if moved else replace(reshape, renames=Renames())


def _against_opaque(name: str, reshape: Reshape, *, renamed: bool) -> Iterator[Finding]:
    if renamed or reshape.drops or reshape.masks or reshape.maps or reshape.obfuscation:
        reason = "is stored undecoded; it cannot be renamed, mapped, cut, filtered, masked or obfuscated"
        yield Finding(name, Rule.OPAQUE_RESHAPED, reason, "Leave it out with --exclude, or use a newer jsbackup.")


def _against_newest(entry: StreamBackup, reshape: Reshape) -> Iterator[Finding]:
    """Refuse a choice of newest messages for a stream that would be damaged by it."""
    if reshape.newest is None or entry.archive_format is ArchiveFormat.CONFIG:
        return
    kinds = kinds_of(entry.name, entry.config)
    if reshape.newest.compact and StreamKind.KEY_VALUE not in kinds:
        reason = "is not a key-value bucket, and --kv-compact is for the keys of buckets"
        yield Finding(entry.name, Rule.COMPACTS_NO_BUCKET, reason, "Name the buckets, such as 'KV_*'.")
    elif StreamKind.OBJECT in kinds:
        reason = f"is an object bucket: {reshape.newest} damages objects, which are many messages of one subject"
        yield Finding(entry.name, Rule.NEWEST_OF_OBJECTS, reason, "Leave it out, or name the other streams.")


def _against_aimless(patterns: Sequence[str], reshape: Reshape, maps: SubjectMaps) -> Iterator[Finding]:
    """Refuse masks, maps and subject filters for subjects that no stream has; `patterns` match those of all streams. A
    map of `>` and similar always applies.
    """
    asked = [(Rule.MASK_AIMLESS, f"--mask {mask}", mask.subjects, "mask nothing") for mask in reshape.masks.masks]
    asked += [
        (Rule.MAP_AIMLESS, f"--map-subject {subject_map}", subject_map.source, "map nothing")
        for subject_map in maps.maps
        if not subject_map.is_wide
    ]
    filters, rule = reshape.filters, Rule.SUBJECT_AIMLESS
    asked += [(rule, f"--subject {pattern}", pattern, "keep nothing") for pattern in filters.subject]
    asked += [
        (rule, f"--exclude-subject {pattern}", pattern, "leave nothing out") for pattern in filters.exclude_subject
    ]
    for rule, option, subjects, what in asked if patterns else ():
        if not any(overlaps(subjects, pattern) for pattern in patterns):
            reason = f"{option}: no stream of the restore has such subjects, so it would {what}"
            hint = nearest(subjects, list(patterns)) or "Correct it, or leave it out."
            yield Finding("", rule, reason, f"{hint} {MAY_MISS}")


def _against_bucket_maps(entries: Sequence[StreamBackup], maps: SubjectMaps) -> Iterator[Finding]:
    """Refuse maps of a bucket's subjects: clients derive these from its name, and would find no keys."""
    for entry in entries:
        if not subjects_of_bucket(entry.name):
            continue
        bucket = str((entry.config.get("mirror") or {}).get("name") or entry.name)  # a mirror has those of its origin
        subjects = subjects_of_bucket(bucket)
        for subject_map in maps.maps:
            if subject_map.is_wide or not subjects or not overlaps(subject_map.source, subjects):
                continue
            if subjects.startswith("$MQTT."):
                reason, hint = "the server finds MQTT's messages by their subjects", "Leave that map out."
            else:
                reason = "the subjects of a bucket change with its name only"
                hint = f"Give it another name with --rename {shell_word(bucket)}=NAME, or leave that map out."
            yield Finding(entry.name, Rule.MAP_BUCKET, f"--map-subject {subject_map}: {reason}", hint)


def _about_maps(entry: StreamBackup, reshape: Reshape, restored: Collection[str]) -> Iterator[Finding]:
    """Yield warnings about mapped subjects; a refusal if messages would be lost by it."""
    if not reshape.maps:
        return
    name, config = entry.name, entry.config
    for origin in arriving_unmapped(config, reshape.maps, restored):
        reason = f"continues copying from {origin}, where subjects are not mapped"
        yield Finding(name, Rule.COPIES_UNMAPPED, reason, f"Restore {origin} as well, so that it is mapped too.")
    merged = reshape.maps.guarding(held_by(config)).may_merge(subjects_of(config))
    if not merged:
        return
    if (config.get("max_msgs_per_subject") or -1) > 0 or config.get("allow_msg_counter"):
        reason = f"limits messages per subject, and {merged}: it would delete some"
        yield Finding(name, Rule.MAP_MERGES, reason, "Map subjects so that they stay apart.")
    else:
        yield Finding(name, Rule.SUBJECTS_MERGE, f"messages may get the same subject: {merged}")


def about_part(entry: StreamBackup, cut: Cut) -> Iterator[Finding]:
    """Yield warnings about a stream of which messages are left out, maybe by a cut."""
    kept_of_each = entry.config.get("max_msgs_per_subject") or 0
    if cut.until is not None and kept_of_each > 0:
        keeps = f"keeps the last {kept_of_each:,} messages" if kept_of_each > 1 else "keeps one message"
        reason = f"{keeps} of each subject: messages that were overwritten before the backup are missing"
        yield Finding(
            entry.name,
            Rule.OVERWRITTEN_SINCE,
            reason,
            "For the whole stream as it was then, restore a backup made before it.",
        )
    if bucket_of(entry.name)[0] is StreamKind.OBJECT:
        reason = "an object whose entry or chunks are left out cannot be opened"
        yield Finding(
            entry.name, Rule.OBJECTS_IN_PART, reason, "Restore all of the bucket, from a backup of that time."
        )


def about_markers(stream: str, count: int) -> Finding:
    """Return the warning that so many markers of deleted keys are left out because of their content."""
    reason = (
        f"{count:,} messages that say that a key is gone are left out by their content: older revisions of these keys "
        "may count again"
    )
    return Finding(stream, Rule.KEYS_RETURN, reason, "Choose keys by --subject, if those are to stay gone.")


def about_kept(kept: KeptStream, reshape: Reshape, *, may_be_empty: bool, may_miss: bool) -> Iterator[Finding]:
    """Yield findings on what is kept of a stream, and what was masked. Some are refusals, depending on their rules."""
    entry = kept.entry
    if kept.had and not entry.captured.messages:
        yield about_nothing_kept(entry.name, kept.had, may_be_empty=may_be_empty)
    elif kept.markers:
        yield about_markers(entry.name, kept.markers)
    if kept.counted and kept.had:
        yield from about_masks(entry.name, entry.config, reshape.masks.masks, kept.masked, may_miss=may_miss)
    if reshape.drops and (kept.had > entry.captured.messages or not kept.exact):
        yield from about_part(entry, reshape.cut)


def about_deliveries(action: Action, target: Target) -> Iterator[Finding]:
    """Yield warnings about consumers of a renamed stream that deliver where those of the old one do."""
    name, reshape = action.entry.name, action.reshape
    pushed = [consumer.consumer for consumer in action.consumers if consumer.consumer.config.get("deliver_subject")]
    # An obfuscated subject to deliver to is another one.
    if action.name != name and name in target.streams and pushed and reshape.obfuscation is None:
        for consumer in pushed:
            reason = (
                f"consumer {consumer.name} delivers to {consumer.config['deliver_subject']}, as that of {name} does"
            )
            yield Finding(name, Rule.DELIVERS_TWICE, reason, "Restore it with --consumers none if it should not.")
