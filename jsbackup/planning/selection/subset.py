"""The part of a stream that a restore keeps, described like a backup of only that part.

Plans use it in place of the backup of the stream. It is computed from the bounds of segments in the manifest
(`kept_by_bounds`, which reads nothing), or from messages (`kept_messages.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace

from jsbackup.formats.digest import StreamDigest
from jsbackup.model import ConsumerState, JsonObject, SequencePair, StreamState
from jsbackup.planning.copies.copy_facts import sources_of
from jsbackup.planning.rules import Finding, Rule
from jsbackup.readable import format_count
from jsbackup.repository.manifest import ArchiveFormat, ConsumerBackup, SegmentRef, StreamBackup, total_of
from jsbackup.repository.objects import PageRef
from jsbackup.repository.pages.segment_list import Part, SegmentList, parts_of, touching
from jsbackup.repository.read.segments import state_to_restore
from jsbackup.server_state import clamp_state
from jsbackup.transforms.copy_positions import is_external
from jsbackup.transforms.cut import AtSequence, AtTime, Cut, Edge, Extent, KeptShare
from jsbackup.transforms.filters.rising import RisingSequences
from jsbackup.transforms.mask import MaskCount
from jsbackup.transforms.rename import StreamKind, bucket_of
from jsbackup.transforms.renumber import NewNumbers, renumbered_state
from jsbackup.transforms.reshape import Reshape

__all__ = [
    "Counted",
    "KeptSequences",
    "KeptStream",
    "about_renumbered",
    "against_renumbering",
    "kept_by_bounds",
    "kept_from",
    "renumbered_entry",
    "segments_within",
    "share_of",
    "whole_segments",
]


# --- renumbering ---
#
# `--renumber` in a plan: a stream described with its new sequences, and what cannot have any.
#
# A mirror has the sequences of its origin. A stream with sources knows by the sequences of its origins how far it has
# copied. So neither is restored beside an origin that gets new ones, and a mirror gets none itself.


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


@dataclass(frozen=True, slots=True)
class KeptStream:
    """`entry` is the stream as it will be, with its old name and configurations; it `had` this many messages.

    If not `exact`, messages and bytes are upper bounds, and times and sequences are bounds. `counted` says whether
    every message was read and transformed; `first_dropped` is sequence and time of the first message after the last one
    within the cut, None if there is none or it is unknown. `times` are those of the first and last kept message, None
    if no messages were read.

    `chosen` is what `Reshape.newest` keeps, `matched` and `markers` are those of `ReshapeTally`, and `numbers` the old
    sequences of messages with new ones; None if unknown, or not asked for.
    """

    entry: StreamBackup
    exact: bool = True
    counted: bool = False
    first_dropped: tuple[int, int] | None = None
    times: tuple[int, int] | None = None
    masked: MaskCount = field(default_factory=MaskCount)
    had: int = 0
    chosen: RisingSequences | None = None
    matched: Counter[str] | None = None
    markers: int = 0
    numbers: NewNumbers | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """Totals of kept messages: those within the cut, and those of them that filters keep, with their bytes and
    digest.
    """

    cut: Extent = field(default_factory=Extent)
    kept: Extent = field(default_factory=Extent)
    bytes: int = 0
    digest: StreamDigest = field(default_factory=StreamDigest)


class KeptSequences:
    """Sequences of kept messages: those in `kept`, and those within segments that are kept completely."""

    def __init__(self, kept: Container[int], whole: Sequence[SegmentRef]) -> None:
        self._found = kept
        self._whole = whole

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._found or self._is_within(sequence)

    def _is_within(self, sequence: object) -> bool:
        return isinstance(sequence, int) and any(True for _ in touching(self._whole, sequence, sequence))


def whole_segments(segments: Sequence[SegmentRef], cut: Cut) -> Sequence[SegmentRef]:
    """Return the segments of which a cut keeps all."""

    def keeps(part: Part) -> bool | None:
        share = share_of(part, cut)
        return None if share is KeptShare.SOME and isinstance(part, PageRef) else share is KeptShare.ALL

    if isinstance(segments, SegmentList):
        return segments.select(keeps)
    return tuple(ref for ref in segments if keeps(ref))


def share_of(ref: Part, cut: Cut) -> KeptShare:
    """Return how much of a segment or page the cut keeps, according to its bounds."""
    return cut.share(ref.first_seq, ref.last_seq, ref.min_ns, ref.max_ns)


def segments_within(entry: StreamBackup, cut: Cut) -> Sequence[SegmentRef]:
    """Return the segments that a cut may keep something of. Reads no page of which it keeps all or nothing."""

    def keeps(part: Part) -> bool | None:
        share = share_of(part, cut)
        return None if share is KeptShare.SOME and isinstance(part, PageRef) else share is not KeptShare.NONE

    if isinstance(entry.segments, SegmentList):
        return entry.segments.select(keeps)
    return tuple(ref for ref in entry.segments if keeps(ref))


def kept_by_bounds(entry: StreamBackup, reshape: Reshape) -> KeptStream:
    """Return what is kept, as far as the manifest shows."""
    kept = _kept_by_bounds(entry, reshape)
    if not reshape.renumber or entry.archive_format is ArchiveFormat.CONFIG:
        return kept
    return replace(kept, entry=renumbered_entry(kept.entry, None))


def _kept_by_bounds(entry: StreamBackup, reshape: Reshape) -> KeptStream:
    if not reshape.drops or not entry.segments:
        return KeptStream(entry, had=entry.captured.messages)
    segments = segments_within(entry, reshape.cut)
    exact = not replace(reshape, cut=Cut()).drops and all(
        share_of(part, reshape.cut) is KeptShare.ALL for part in parts_of(segments)
    )
    if exact and len(segments) == len(entry.segments):
        return KeptStream(entry, had=entry.captured.messages)
    total = total_of(segments)
    first_seq, first_ns = _since(reshape.cut.since, segments)
    last_seq, last_ns = _until(reshape.cut.until, segments)
    extent = Extent(total.messages, first_seq, first_ns, last_seq, last_ns) if segments else Extent()
    counted = Counted(extent, extent, total.bytes, total.digest)
    kept = kept_from(entry, reshape.cut, counted, KeptSequences((), segments), whole=_as_listed)
    return KeptStream(kept, exact=False, had=entry.captured.messages)


def _since(edge: Edge | None, segments: Sequence[SegmentRef]) -> tuple[int, int]:
    """Return a lower bound of the sequence and time of the first kept message."""
    if not segments:
        return 0, 0
    first = segments[0]
    sequence = max(first.first_seq, edge.sequence) if isinstance(edge, AtSequence) else first.first_seq
    return sequence, max(first.min_ns, edge.time_ns) if isinstance(edge, AtTime) else first.min_ns


def _until(edge: Edge | None, segments: Sequence[SegmentRef]) -> tuple[int, int]:
    """Return an upper bound of the sequence and time of the last kept message."""
    if not segments:
        return 0, 0
    last = segments[-1]
    sequence = min(last.last_seq, edge.sequence) if isinstance(edge, AtSequence) else last.last_seq
    return sequence, min(last.max_ns, edge.time_ns) if isinstance(edge, AtTime) else last.max_ns


def _as_listed(consumer: ConsumerBackup) -> ConsumerBackup:
    return consumer


def kept_from(
    entry: StreamBackup,
    cut: Cut,
    counted: Counted,
    present: Container[int],
    *,
    whole: Callable[[ConsumerBackup], ConsumerBackup],
) -> StreamBackup:
    """Return the stream with only what was `counted`.

    Its segments include everything kept, and maybe more. `present` are the kept sequences; `whole` returns a consumer
    with its complete state, if available.
    """
    kept = counted.kept
    state = cut.state_after(state_to_restore(entry), entry.captured.last_seq, counted.cut, kept, size=counted.bytes)
    captured = replace(
        entry.captured,
        messages=kept.messages,
        bytes=counted.bytes,
        first_seq=kept.first_seq,
        last_seq=kept.last_seq,
    )
    return replace(
        entry,
        state=state,
        captured=captured,
        digest=counted.digest,
        segments=segments_within(entry, cut),
        consumers=tuple(_kept_consumer(whole(consumer), state, present) for consumer in entry.consumers),
    )


def _kept_consumer(consumer: ConsumerBackup, stream: StreamState, present: Container[int]) -> ConsumerBackup:
    """Return the consumer for a stream with this end and these messages, and the reason for changes."""
    state = consumer.state
    if state is None:
        return consumer
    clamped = clamp_state(state, stream.last_seq, present)
    if clamped == state:
        return consumer
    reasons = [consumer.reason, _set_back(state, clamped), _forgotten(state, clamped)]
    return replace(consumer, state=clamped, reason="; ".join(filter(None, reasons)))


def _set_back(before: ConsumerState, after: ConsumerState) -> str:
    if after.delivered.stream == before.delivered.stream:
        return ""
    return f"set back from sequence {before.delivered.stream} to {after.delivered.stream}, where its stream ends now"


def _forgotten(before: ConsumerState, after: ConsumerState) -> str:
    forgotten = len(before.pending) - len(after.pending)
    return f"not restored: {forgotten:,} of {format_count(len(before.pending), 'pending message')}" if forgotten else ""
