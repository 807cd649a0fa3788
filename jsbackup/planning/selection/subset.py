"""What a restore keeps of a stream: the stream as its backup would be, had it held just that.

A plan decides by the backup of a stream, and so by this one in its place. It comes from the bounds that the manifest
has of segments (`kept_by_bounds`, which reads nothing), or from messages (`count_subset.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from jsbackup.formats.digest import StreamDigest
from jsbackup.model import ConsumerState, StreamState
from jsbackup.repository.manifest import ConsumerBackup, SegmentRef, StreamBackup, total_of
from jsbackup.repository.read.archiving import state_to_restore
from jsbackup.transforms.consumer_state import clamp_state
from jsbackup.transforms.cut import AtSequence, AtTime, Cut, Edge, Extent, KeptShare
from jsbackup.transforms.mask import MaskCount
from jsbackup.transforms.reshape import Reshape

__all__ = [
    "NOTHING_COUNTED",
    "Counted",
    "KeptSequences",
    "KeptStream",
    "kept_by_bounds",
    "kept_from",
    "segments_within",
    "share_of",
]


@dataclass(frozen=True, slots=True)
class KeptStream:
    """`entry` is the stream as it will be, under its old name, with its old configurations; it `had` so many messages.

    If not `exact`, messages and bytes are as many as there can be, and times and sequences the bounds of what is known.
    `counted` says whether every message has been through the transforms; `first_dropped` is sequence and time of the
    first message after the last one within the cut, None if there is none or it is not known. `times` are those of the
    first and the last message kept, None where nobody has looked.
    """

    entry: StreamBackup
    exact: bool = True
    counted: bool = False
    first_dropped: tuple[int, int] | None = None
    times: tuple[int, int] | None = None
    masked: MaskCount = field(default_factory=MaskCount)
    had: int = 0


NOTHING_COUNTED: Mapping[str, KeptStream] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Counted:
    """Messages kept, added up: those within the cut, those that filters keep of them too, and what these come to."""

    cut: Extent = field(default_factory=Extent)
    kept: Extent = field(default_factory=Extent)
    bytes: int = 0
    digest: StreamDigest = field(default_factory=StreamDigest)


class KeptSequences:
    """Sequences of messages that are kept: those `found`, and those within segments that are kept whole."""

    def __init__(self, found: Container[int], whole: Iterable[SegmentRef]) -> None:
        self._found = found
        self._whole = [range(ref.first_seq, ref.last_seq + 1) for ref in whole]

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._found or any(sequence in segment for segment in self._whole)


def share_of(ref: SegmentRef, cut: Cut) -> KeptShare:
    """How much of a segment the cut keeps, as far as its bounds tell."""
    return cut.share(ref.first_seq, ref.last_seq, ref.min_ns, ref.max_ns)


def segments_within(entry: StreamBackup, cut: Cut) -> tuple[SegmentRef, ...]:
    """The segments that a cut may keep something of: nobody needs the others."""
    return tuple(ref for ref in entry.segments if share_of(ref, cut) is not KeptShare.NONE)


def kept_by_bounds(entry: StreamBackup, reshape: Reshape) -> KeptStream:
    """As far as the manifest tells."""
    if not reshape.drops or not entry.segments:
        return KeptStream(entry, had=entry.captured.messages)
    segments = segments_within(entry, reshape.cut)
    exact = not replace(reshape, cut=Cut()).drops and all(
        share_of(ref, reshape.cut) is KeptShare.ALL for ref in segments
    )
    if exact and segments == entry.segments:
        return KeptStream(entry, had=entry.captured.messages)
    total = total_of(segments)
    first_seq, first_ns = _since(reshape.cut.since, segments)
    last_seq, last_ns = _until(reshape.cut.until, segments)
    extent = Extent(total.messages, first_seq, first_ns, last_seq, last_ns) if segments else Extent()
    counted = Counted(extent, extent, total.bytes, total.digest)
    kept = kept_from(entry, reshape.cut, counted, KeptSequences((), segments), whole=_as_listed)
    return KeptStream(kept, exact=False, had=entry.captured.messages)


def _since(edge: Edge | None, segments: tuple[SegmentRef, ...]) -> tuple[int, int]:
    """Sequence and time that the first message kept does not come before."""
    if not segments:
        return 0, 0
    first = segments[0]
    sequence = max(first.first_seq, edge.sequence) if isinstance(edge, AtSequence) else first.first_seq
    return sequence, max(first.min_ns, edge.time_ns) if isinstance(edge, AtTime) else first.min_ns


def _until(edge: Edge | None, segments: tuple[SegmentRef, ...]) -> tuple[int, int]:
    """Sequence and time that the last message kept does not come after."""
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
    """The stream with nothing but what was `counted`.

    Its segments are those that hold it, and maybe more. `present` are sequences kept; `whole` gives a consumer all of
    its state, if that can be had.
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
    """The consumer, if its stream ends there and has those messages, and why it is not as it was."""
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
    gone = len(before.pending) - len(after.pending)
    return f"{gone} of {len(before.pending)} messages that it has pending are not restored" if gone else ""
