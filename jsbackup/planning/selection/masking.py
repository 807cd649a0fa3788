"""The results of masks and selections, and whether they are plausible.

A mask with a misspelt path masks nothing, so data that it should hide would be copied; a misspelt filter keeps nothing.
Both are refusals, unless the user confirms them.

A mask is checked stream by stream, by the messages that it applies to: those with its subjects and a payload that can
be masked. One that applied to no message of any stream is reported once.

Some payloads belong to clients and servers, which could not go on without them: `against_payload_masks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from jsbackup.model import Fidelity, JsonObject
from jsbackup.planning.model import Action
from jsbackup.planning.rules import Finding, Rule
from jsbackup.readable import format_count
from jsbackup.repository.manifest import ConsumerBackup, CopiedFrom, Losses, SkippedStream, Source, StreamBackup
from jsbackup.transforms.follow import subjects_of
from jsbackup.transforms.mask import Mask, MaskAction, MaskCount
from jsbackup.transforms.obfuscate.names import ObfuscatedNames
from jsbackup.transforms.rename import StreamKind, bucket_of
from jsbackup.transforms.reshape import Reshape, ReshapeTally
from jsbackup.transforms.subjects import overlaps

__all__ = [
    "NO_MASK",
    "SPARED",
    "about_masks",
    "about_nothing_kept",
    "about_obfuscation",
    "about_sample",
    "about_unseen",
    "against_obfuscation",
    "against_payload_masks",
    "are_for",
    "obfuscated_entry",
    "obfuscated_skipped",
    "obfuscated_source",
    "of_unmasked",
    "unseen",
]


_LOOK = "Check the path of the mask; --allow-nothing allows masks that mask nothing."
_SUBJECTS = "Check the subjects of the mask; --allow-nothing allows masks that mask nothing."
NO_MASK = "not masked: no mask applies to the subjects of the stream"
SPARED = "values of counters, or descriptions of files"
_ZERO = "Mask them with payload=zero, which keeps files readable, or leave the bucket out with --exclude."
_MQTT = "Leave the stream out with --exclude, or choose subjects for the mask that are not those of MQTT."
# Whose payloads servers read (nats-server `server/mqtt.go`): sessions, and retained messages of older servers.
_READ_BY_SERVERS = ("$MQTT_sess", "$MQTT_rmsgs")
_EMPTY = (
    "Check the options that choose messages, such as --since, --subject and --header; with --allow-nothing it is "
    "restored without messages."
)


def about_masks(
    stream: str, config: JsonObject, masks: Sequence[Mask], count: MaskCount, *, may_miss: bool
) -> Iterator[Finding]:
    """Yield findings on the effect of masks on the messages of a stream with this config, after all were read."""
    for number, mask in enumerate(masks):
        values, seen = count.values.get(number, 0), count.seen.get(number, 0)
        if values:
            hit = count.hit.get(number, 0)
            part = "" if hit == seen else f"{hit:,} of "
            yield Finding(stream, Rule.MASKED, f"{mask} masks {_what(mask, values)} in {part}the {_applies_to(seen)}")
        elif seen and may_miss:
            yield Finding(stream, Rule.MASKED_NOTHING, f"{mask} masks nothing in the {_applies_to(seen)}")
        elif seen:
            yield Finding(stream, Rule.MASK_MISSED, f"--mask {mask} masks nothing in the {_applies_to(seen)}", _LOOK)
    if count.unmasked:
        stay = f"{format_count(count.unmasked, 'message')} {'stays' if count.unmasked == 1 else 'stay'} unmasked"
        yield Finding(stream, Rule.UNMASKED, of_unmasked(masks, config, f"{stay}: no mask applies to their subjects"))
    if count.spared:
        reason = f"not masked although a mask applies: {format_count(count.spared, 'message')} ({SPARED})"
        yield Finding(stream, Rule.MASK_SPARED, reason)
    if count.dropped:
        reason = f"left out because they cannot be masked: {format_count(count.dropped, 'message')}"
        yield Finding(stream, Rule.UNMASKABLE, reason)
    if count.kept:
        reason = f"kept as they are because a mask cannot read them: {format_count(count.kept, 'message')}"
        yield Finding(stream, Rule.UNMASKABLE, reason)


def _applies_to(seen: int) -> str:
    return f"{format_count(seen, 'message')} that it applies to"


def _what(mask: Mask, values: int) -> str:
    """Return in words how many values or payloads a mask replaces."""
    return format_count(values, "payload" if mask.of_payload else "value")


def against_payload_masks(stream: str, config: JsonObject, masks: Sequence[Mask]) -> Iterator[Finding]:
    """Yield refusals of masks that would take payloads away that clients or servers need."""
    bucket = str((config.get("mirror") or {}).get("name") or stream)  # a mirror has the subjects of its origin
    kind, name = bucket_of(bucket)
    for mask in masks:
        if (
            kind is StreamKind.OBJECT
            and mask.rule.action is MaskAction.DROP
            and overlaps(mask.subjects, f"$O.{name}.C.>")
        ):
            reason = f"--mask {mask}: files of a bucket cannot be opened without their content"
            yield Finding(stream, Rule.MASK_STATE, reason, _ZERO)
        if bucket in _READ_BY_SERVERS and mask.of_payload and are_for([mask], config):
            reason = f"--mask {mask}: servers read these payloads, and could not go on with MQTT"
            yield Finding(stream, Rule.MASK_STATE, reason, _MQTT)


def are_for(masks: Sequence[Mask], config: JsonObject) -> bool:
    """Return whether one of the masks may apply to messages of a stream with this config."""
    return any(overlaps(mask.subjects, pattern) for mask in masks for pattern in subjects_of(config))


def of_unmasked(masks: Sequence[Mask], config: JsonObject, part: str) -> str:
    """Return what to say of messages that no mask applies to: `part`, or that no mask is for their stream at all."""
    return part if are_for(masks, config) else NO_MASK


def unseen(masks: Sequence[Mask], counts: Iterable[MaskCount]) -> list[Mask]:
    """Return the masks that applied to no message of any stream."""
    totals = list(counts)
    return [
        mask
        for number, mask in enumerate(masks)
        if not any(count.seen.get(number) or count.dropped for count in totals)
    ]


def about_unseen(masks: Iterable[Mask], *, may_miss: bool) -> Iterator[Finding]:
    """Yield findings on such masks."""
    for mask in masks:
        reason = f"--mask {mask}: it applies to none of the kept messages"
        yield Finding("", Rule.MASKED_NOTHING if may_miss else Rule.MASK_MISSED, reason, "" if may_miss else _SUBJECTS)


_LATER = "The restore is refused if that holds for all messages; check its path and its subjects."


def about_sample(action: Action, tally: ReshapeTally, where: str) -> Iterator[Finding]:
    """Yield warnings about the effect of masks on some messages of a stream: those `where`."""
    name, masks, config = action.entry.name, action.reshape.masks.masks, action.entry.config
    if not tally.came.messages:
        return
    findings = [*about_masks(name, config, masks, tally.masked, may_miss=action.may_miss)]
    findings += about_unseen(unseen(masks, [tally.masked]), may_miss=action.may_miss)
    if tally.masked.dropped and not tally.kept.messages:
        findings.append(about_nothing_kept(name, tally.came.messages, may_be_empty=action.may_be_empty))
    for finding in findings:
        yield Finding(name, Rule.SAMPLED, f"{where}: {finding.reason}", _LATER if finding.code else "")


def about_nothing_kept(stream: str, count: int, *, may_be_empty: bool) -> Finding:
    """Return the finding for a selection that keeps none of the `count` messages of a stream."""
    of_them = format_count(count, "message")
    if may_be_empty:
        return Finding(stream, Rule.NOTHING_KEPT, f"is restored empty: none of its {of_them} is kept")
    return Finding(stream, Rule.KEEPS_NOTHING, f"would keep none of its {of_them}", _EMPTY)


# --- obfuscating ---
#
# What `--obfuscate` leaves in clear, what it cannot hide, and a backup that has nothing else in clear.

_STAYS = (
    "sequences, times, sizes of payloads, limits, names of header fields, headers that servers act on, positions of "
    "consumers"
)
_OF_OBJECTS = "sizes and times of files"
_OF_COUNTERS = "values of counters"


def about_obfuscation(entry: StreamBackup, reshape: Reshape) -> Iterator[Finding]:
    """Yield warnings: what of a stream stays in clear, and that it may grow."""
    if reshape.obfuscation is None:
        return
    stays = [_STAYS]
    stays += [_OF_COUNTERS] if entry.config.get("allow_msg_counter") else []
    stays += [_OF_OBJECTS] if bucket_of(entry.name)[0] is StreamKind.OBJECT else []
    yield Finding(entry.name, Rule.OBFUSCATED, f"obfuscated, except: {', '.join(stays)}")
    most = entry.config.get("max_bytes")
    if isinstance(most, int) and most > 0 and entry.captured.messages:
        reason = (
            f"has max_bytes {most}, and obfuscated subjects and headers are longer if they had less than 16 "
            "characters: the target deletes the oldest messages if that is too much"
        )
        yield Finding(entry.name, Rule.OBFUSCATED_GROWS, reason, "Leave the limit out with --set max_bytes=null.")


def against_obfuscation(entry: StreamBackup, reshape: Reshape) -> Iterator[Finding]:
    """Refuse streams whose names have to stay."""
    if reshape.obfuscation is not None and entry.name.startswith("$MQTT_"):
        reason = "cannot be obfuscated: servers find the streams of MQTT by their names and subjects"
        yield Finding(entry.name, Rule.OBFUSCATE_MQTT, reason, "Leave it out with --exclude '$MQTT_*'.")


def obfuscated_entry(entry: StreamBackup, names: ObfuscatedNames) -> StreamBackup:
    """Return a stream whose name, configurations and messages are obfuscated already, without what else names
    something.
    """
    return replace(
        entry,
        consumers=tuple(map(_consumer, entry.consumers)),
        warnings=("what was backed up was not complete",) if entry.remarks else (),
        facts=(),
        read=None,
        copied=tuple(_copied(position, names) for position in entry.copied),
        lost=Losses(tuple(replace(span, cause="lost", subjects=(), extra={}) for span in entry.lost.spans)),
        state_extra={},
        extra={},
    )


def _consumer(consumer: ConsumerBackup) -> ConsumerBackup:
    reason = "" if consumer.fidelity is Fidelity.EXACT and not consumer.reason else "not exact in the original backup"
    return replace(consumer, reason=reason, extra={}, state_extra={})


def _copied(position: CopiedFrom, names: ObfuscatedNames) -> CopiedFrom:
    def each(text: str) -> str:
        return "\f".join(map(names.destination, text.split("\f")))

    return replace(
        position,
        origin=names.stream(position.origin),
        filter=each(position.filter),
        destination=each(position.destination),
    )


def obfuscated_source(source: Source, done: JsonObject) -> Source:
    """Return where an obfuscated backup comes from: the release of the server, and what was `done`."""
    return Source(server_version=source.server_version, transformed=done)


def obfuscated_skipped(skipped: Iterable[SkippedStream], names: ObfuscatedNames) -> Iterator[SkippedStream]:
    """Yield skipped streams without the reasons, which name something."""
    for skip in skipped:
        yield SkippedStream(names.stream(skip.name), "was skipped by the original backup")
