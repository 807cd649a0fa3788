"""What `--obfuscate` leaves in clear, what it cannot hide, and a backup that has nothing else in clear."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from jsbackup.model import Fidelity, JsonObject
from jsbackup.planning.rules import Finding, Rule
from jsbackup.repository.manifest import (
    ConsumerBackup,
    CopiedFrom,
    Losses,
    SkippedStream,
    Source,
    StreamBackup,
)
from jsbackup.transforms.obfuscate.names import ObfuscatedNames
from jsbackup.transforms.rename import StreamKind, bucket_of
from jsbackup.transforms.reshape import Reshape

__all__ = ["about_obfuscation", "against_obfuscation", "obfuscated_entry", "obfuscated_skipped", "obfuscated_source"]

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
        warnings=("what was backed up was not complete",) if entry.warnings else (),
        read=None,
        copied=tuple(_copied(one, names) for one in entry.copied),
        lost=Losses(tuple(replace(span, cause="lost", subjects=(), extra={}) for span in entry.lost.spans)),
        state_extra={},
        extra={},
    )


def _consumer(consumer: ConsumerBackup) -> ConsumerBackup:
    reason = "" if consumer.fidelity is Fidelity.EXACT and not consumer.reason else "not exact in the original backup"
    return replace(consumer, reason=reason, extra={}, state_extra={})


def _copied(one: CopiedFrom, names: ObfuscatedNames) -> CopiedFrom:
    def each(text: str) -> str:
        return "\f".join(map(names.destination, text.split("\f")))

    return replace(one, origin=names.stream(one.origin), filter=each(one.filter), destination=each(one.destination))


def obfuscated_source(source: Source, done: JsonObject) -> Source:
    """Return where an obfuscated backup comes from: the release of the server, and what was `done`."""
    return Source(server_version=source.server_version, extra={"transformed": done})


def obfuscated_skipped(skipped: Iterable[SkippedStream], names: ObfuscatedNames) -> Iterator[SkippedStream]:
    """Yield skipped streams without the reasons, which name something."""
    for one in skipped:
        yield SkippedStream(names.stream(one.name), "was skipped by the original backup")
