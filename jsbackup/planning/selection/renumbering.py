"""`--renumber` in a plan: a stream described with its new sequences, and what cannot have any.

A mirror has the sequences of its origin. A stream with sources knows by the sequences of its origins how far it has
copied. So neither is restored beside an origin that gets new ones, and a mirror gets none itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from jsbackup.model import ConsumerState, JsonObject, SequencePair
from jsbackup.planning.copies.copy_facts import sources_of
from jsbackup.planning.rules import Finding, Rule
from jsbackup.repository.manifest import ArchiveFormat, ConsumerBackup, StreamBackup
from jsbackup.repository.read.segments import state_to_restore
from jsbackup.transforms.copy_positions import is_external
from jsbackup.transforms.rename import StreamKind, bucket_of
from jsbackup.transforms.renumber import NewNumbers, renumbered_state

__all__ = ["about_renumbered", "against_renumbering", "renumbered_entry"]


def renumbered_entry(kept: StreamBackup, numbers: NewNumbers | None) -> StreamBackup:
    """Return the stream as it will be, given what is kept of it, in old sequences, and which messages these are.

    Without these, positions of consumers are upper bounds.
    """
    count = kept.captured.messages
    first = 1 if count else 0
    state = replace(
        state_to_restore(kept),
        first_seq=first,
        last_seq=count,
        deleted=0,
        **({} if count else {"first_ns": 0, "last_ns": 0}),
    )

    def follow(consumer: ConsumerBackup) -> ConsumerBackup:
        if consumer.state is None:
            return consumer
        if numbers is None:
            return replace(consumer, state=_bounded(consumer.state, count))
        return replace(consumer, state=renumbered_state(consumer.state, numbers))

    return replace(
        kept,
        state=state,
        captured=replace(kept.captured, first_seq=first, last_seq=count),
        consumers=tuple(map(follow, kept.consumers)),
    )


def _bounded(state: ConsumerState, last: int) -> ConsumerState:
    def within(pair: SequencePair) -> SequencePair:
        return SequencePair(pair.consumer, min(pair.stream, last))

    return replace(state, delivered=within(state.delivered), ack_floor=within(state.ack_floor))


def against_renumbering(
    entry: StreamBackup, name: str, config: JsonObject, renumbered: Collection[str]
) -> Iterator[Finding]:
    """Refuse a mirror with new sequences, and a stream whose origins get some.

    `name` and `config` are those at the target, `renumbered` are the names of streams with new sequences there.
    """
    if entry.archive_format in (ArchiveFormat.CONFIG, ArchiveFormat.OPAQUE):
        return
    mirror = config.get("mirror")
    if isinstance(mirror, dict) and name in renumbered:
        reason = f"is a mirror of {mirror.get('name')}, and has its sequences: --renumber would set them apart"
        hint = "Leave it out with --exclude, and create it again; or make it a stream with --set mirror=null."
        yield Finding(entry.name, Rule.RENUMBERS_MIRROR, reason, hint)
        return
    for source in sources_of(config):
        if source["name"] in renumbered and not is_external(source):
            reason = f"copies from {source['name']}, whose sequences --renumber changes: it would not know how far"
            hint = "Restore it without its sources (--set sources=null), or all without --renumber."
            yield Finding(entry.name, Rule.RENUMBERS_ORIGIN, reason, hint)
            return


def about_renumbered(before: StreamBackup, after: StreamBackup) -> Iterator[Finding]:
    """Yield what it means that a stream that had been `before` gets new sequences."""
    last = state_to_restore(before).last_seq
    if not after.captured.messages or last == after.captured.last_seq == before.captured.messages:
        return  # they are the same
    reason = f"its messages get new sequences, from 1 on: they had some up to {last:,}"
    if bucket_of(before.name)[0] is StreamKind.KEY_VALUE:
        reason += "; these are the revisions of its keys, and what was noted of old ones is wrong"
    yield Finding(before.name, Rule.RENUMBERED, reason)
