"""Plan an increment: which parts of a stream have to be read, given its last backup, and whether that is worthwhile.

An increment keeps segments of the previous backup by reference, and only reads the sequences that these do not cover
from the server (`join.py` does that and proves it). The plan relies on this:

- Within an incarnation a message never changes under its sequence. So a segment whose sequences the server still has is
  unchanged, and need not be read. The server's list of deleted sequences shows this for every segment, in one request
  and without a key to the repository. Their number would not be enough: a stream restored from an older backup, or with
  its server's disk, has messages again that had been deleted.
- The exception is a stream that lost its end and continued with the same sequences: a server that crashed before it had
  synced its disk, a stream restored from an older backup (which may keep its creation time). Such a stream lost
  everything after some point. So the last kept segment, the *anchor*, is read again, together with everything after it,
  and must have the stored digest: then nothing before it was lost and replaced. Short segments before it that will be
  joined with new messages (`repository/write/segment_cuts.py`) are read again too. A segment that has lost messages
  is read again from the server and stored in its present state.
- A stream with the same sequences, bytes and ends (times to the nanosecond) as in the previous backup has not changed:
  nothing is read.

This does not notice a stream that was replaced by an altered copy with the same name, cluster, account and creation
time, with the same sequences in each old segment and the same messages from the anchor on. A restore that alters
messages therefore gives the stream a new creation time. `--incremental never` reads everything.

Only a snapshot has a consumer's unacknowledged messages: after an increment its state is the ack floor, as for every
consumer that a snapshot omits. So `auto` makes no increment if a snapshot would have more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from jsbackup.formats.digest import digest_of_missing
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import StreamState
from jsbackup.planning.configs.features import MEMORY_SNAPSHOTS_SINCE, Version
from jsbackup.protocol.info import ConsumerInfo, StreamInfo
from jsbackup.readable import format_count
from jsbackup.repository.manifest import ReadAs, Reading, SegmentRef, StreamBackup
from jsbackup.repository.pages.segment_list import Part, SegmentList, parts_of, raw_bytes_of, split_at
from jsbackup.repository.write.segment_cuts import Cuts, SegmentExtent, extent_of
from jsbackup.transforms.removal import is_queue, removes_messages

__all__ = [
    "AT_REST",
    "UNCHANGED",
    "Increment",
    "Incremental",
    "PresentSequences",
    "SequenceSpan",
    "Whole",
    "accept_increment",
    "has_same_ends",
    "intact_segments",
    "only_in_snapshots",
    "plan_increment",
    "signs_of_loss",
]

UNCHANGED = "nothing has changed since the last backup"
AT_REST = Reading(ReadAs.INCREMENT, UNCHANGED)


class Incremental(StrEnum):
    """The user's choice: automatic, whenever it can be proved, or never."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Whole:
    """The stream has to be read completely, and why. `lost`: it has lost messages of the last backup: `why` says how
    that shows.
    """

    why: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """Sequences to read: `first` and `last` exist on the server, and `messages` in all."""

    first: int
    last: int
    messages: int


@dataclass(frozen=True, slots=True)
class Increment:
    """`kept` segments stay, `spans` are read, both in order. Spans lie between kept segments.

    `anchor` must be found in the last span; None if nothing has to be read. `read_bytes` of the stream's `whole_bytes`
    are an estimate, from the server's count.
    """

    kept: Sequence[SegmentRef]
    spans: tuple[SequenceSpan, ...]
    anchor: SegmentRef | None
    read_messages: int
    read_bytes: int
    whole_messages: int
    whole_bytes: int


class PresentSequences:
    """The sequences that a stream holds, according to its server."""

    def __init__(self, state: StreamState, deleted: Iterable[int]) -> None:
        self.first, self.last = state.first_seq, state.last_seq
        self.deleted = SequenceSet(deleted)

    def __contains__(self, sequence: int) -> bool:
        return self.first <= sequence <= self.last and sequence not in self.deleted

    def count(self, first: int, last: int) -> int:
        """Return how many exist from `first` to `last`."""
        first, last = max(first, self.first), min(last, self.last)
        return last - first + 1 - len(self.deleted.within(first, last)) if first <= last else 0

    def within(self, first: int, last: int) -> Iterator[int]:
        """Yield those from `first` to `last`, in order."""
        first, last = max(first, self.first), min(last, self.last)
        at = first
        for sequence in self.deleted.within(first, last):
            yield from range(at, sequence)
            at = sequence + 1
        yield from range(at, last + 1)

    def span(self, first: int, last: int) -> SequenceSpan | None:
        """Return what exists from `first` to `last`, None if nothing."""
        count = self.count(first, last)
        if not count:
            return None
        first, last = max(first, self.first), min(last, self.last)
        while first in self.deleted:
            first += 1
        while last in self.deleted:
            last -= 1
        return SequenceSpan(first, last, count)


def plan_increment(
    previous: StreamBackup, stored: Sequence[SegmentRef], info: StreamInfo, cuts: Cuts, *, anchors: int = 1
) -> Increment | Whole:
    """Return what to keep of `previous` and what to read of the stream `info`, or why it is read completely.

    `previous` is a backup of the same incarnation, `stored` are its segments that are in the store, in order. `info`
    has the deleted sequences, unless there are too many. The writer will cut by `cuts`. `anchors` is 0 if it is known
    without an anchor that the stream has lost nothing at its end (`tail.py`).
    """
    state = info.state
    if info.created != previous.created:
        return Whole("it was created again")
    if not previous.segments:
        return Whole("the last backup has no messages of it")
    if info.lost:
        return Whole(f"the server reports {info.lost} damaged messages")
    if lost := signs_of_loss(previous, info):
        return Whole(lost, lost=True)
    if info.deleted is None and state.deleted:
        return Whole(f"{state.deleted} deleted sequences are too many to ask for")
    present = PresentSequences(state, info.deleted or ())
    if present.count(state.first_seq, state.last_seq) != state.messages:
        return Whole("the server's count of messages and its list of deleted ones do not agree")
    kept = intact_segments(stored, present)
    if has_same_ends(previous, state) and len(kept) == len(previous.segments):
        return Increment(kept, (), None, 0, 0, state.messages, state.bytes)
    if not kept:
        return Whole("every segment of the last backup has changed")
    anchor = kept[-1] if anchors else None
    if again := max(_read_again(kept, present, cuts), anchors):
        kept, _ = split_at(kept, kept[-again].first_seq)
    spans = tuple(_between(kept, present))
    read = sum(span.messages for span in spans)
    return Increment(
        kept=kept,
        spans=spans,
        anchor=anchor,
        read_messages=read,
        read_bytes=state.bytes * read // state.messages,
        whole_messages=state.messages,
        whole_bytes=state.bytes,
    )


def signs_of_loss(previous: StreamBackup, info: StreamInfo) -> str:
    """Return what shows that the stream has lost messages of its last backup, without reading any; "" if nothing does.

    Sequences never go back. Missing messages are a loss only where nobody may delete one and no limit removes any.
    """
    state, then = info.state, previous.state
    if info.created != previous.created or not previous.archive_format.has_messages:
        return ""
    last_stored = max(then.last_seq, previous.captured.last_seq)
    if state.last_seq < last_stored:
        return f"it ends at sequence {state.last_seq} and ended at {last_stored} in the last backup"
    if not then.messages and state.messages and state.first_seq <= last_stored:
        return f"it has sequence {state.first_seq}, and was empty up to {last_stored} in the last backup"
    if state.messages and state.first_seq < then.first_seq:
        return f"it begins at sequence {state.first_seq} and began at {then.first_seq} in the last backup"
    missing = previous.captured.messages - (state.messages - (state.last_seq - last_stored))
    if missing > 0 and not any(
        removes_messages(config) or not (config.get("deny_delete") and config.get("deny_purge"))
        for config in (info.config, previous.config)
    ):
        return f"it has {format_count(missing, 'message')} less than in the last backup, and nobody may delete any"
    return ""


def has_same_ends(previous: StreamBackup, state: StreamState) -> bool:
    """Return whether a stream in this state has as many messages and bytes as in its backup, and the same ends."""
    then, captured = previous.state, previous.captured
    ends = (state.messages, state.bytes, state.first_seq, state.first_ns, state.last_seq, state.last_ns)
    return (
        ends == (then.messages, then.bytes, then.first_seq, then.first_ns, then.last_seq, then.last_ns)
        and captured.messages == state.messages > 0
        and captured.first_seq == state.first_seq
    )


def _is_intact(ref: SegmentRef, present: PresentSequences) -> bool:
    """Return whether the stream has exactly the sequences of a segment."""
    if not (
        ref.first_seq in present
        and ref.last_seq in present
        and present.count(ref.first_seq, ref.last_seq) == ref.messages
    ):
        return False
    # Nothing is known about a segment that is not dense and has no record of the missing sequences.
    return ref.dense or (
        ref.gaps != "" and ref.gaps == digest_of_missing(present.deleted.within(ref.first_seq, ref.last_seq))
    )


def intact_segments(segments: Sequence[SegmentRef], present: PresentSequences) -> Sequence[SegmentRef]:
    """Return the segments whose sequences the stream has, exactly. Reads no page of which all or nothing is there."""

    def verdict(part: Part) -> bool | None:
        if isinstance(part, SegmentRef):
            return _is_intact(part, present)
        count = present.count(part.first_seq, part.last_seq)
        return (part.dense and count == part.messages) or (None if count else False)

    if isinstance(segments, SegmentList):
        return segments.select(verdict)
    return tuple(ref for ref in segments if _is_intact(ref, present))


def _read_again(kept: Sequence[SegmentRef], present: PresentSequences, cuts: Cuts) -> int:
    """Return how many of the last segments are read again, because they are short and joined with new messages.

    The size of the new messages is estimated. If that is wrong, they are joined next time.
    """
    new = present.span(kept[-1].last_seq + 1, present.last)
    if new is None:
        return 0
    size = raw_bytes_of(kept) * new.messages // sum(part.messages for part in parts_of(kept))
    extent = SegmentExtent(new.first, new.last, new.messages, size, new=True)
    last: list[SegmentExtent] = []
    for ref in reversed(kept):
        last.append(extent_of(ref))
        size += ref.bytes
        if size > cuts.segment_bytes:  # no more are joined
            break
    return cuts.joined([*reversed(last), extent]) - 1


def _between(kept: Sequence[SegmentRef], present: PresentSequences) -> Iterator[SequenceSpan]:
    at = present.first
    for ref in parts_of(kept):  # a page that was not read has all sequences from its first to its last
        if span := present.span(at, ref.first_seq - 1):
            yield span
        at = ref.last_seq + 1
    if span := present.span(at, present.last):
        yield span


# Seconds for reading: per request, message and byte. Measured, 2.12.8 and 2.15.1 on a busy machine with two cores,
# including digests: a snapshot delivers 320,000 to 520,000 messages of 256 B a second, or 210 to 340 MB/s with those of
# 16 KiB; a consumer 50,000 or 120 to 220 MB/s; one get for each message 7,000 or 27 to 58 MB/s. So up to a ninth of
# small messages may be read one by one before a snapshot of all is faster, and two thirds of large ones. On a slow line
# only bytes count, and an increment gains more than this says.
_SNAPSHOT = (0.02, 2e-6, 1 / 300e6)
_CONSUMER = (0.005, 18e-6, 1 / 250e6)
_GETS = (0.005, 140e-6, 1 / 50e6)


def accept_increment(
    mode: Incremental, plan: Increment, info: StreamInfo, consumers: Iterable[ConsumerInfo], *, version: Version
) -> Increment | Whole:
    """Return the increment, or why the stream is read completely after all. `consumers` are those of the backup.

    `mode` is AUTO or ALWAYS.
    """
    if mode is Incremental.ALWAYS:
        return plan
    if why := only_in_snapshots(info, consumers, version):
        return Whole(why)
    if plan.spans and _seconds_apart(plan, info) >= _seconds_whole(plan, info, version):
        return Whole(f"{plan.read_messages} of {plan.whole_messages} messages would have to be read one by one")
    return plan


def only_in_snapshots(info: StreamInfo, consumers: Iterable[ConsumerInfo], version: Version) -> str:
    """Return what only a snapshot of the stream has; "" if nothing, or if none can be made."""
    if _no_snapshot(info, version):
        return ""
    names = (consumer.name for consumer in consumers if _snapshot_has_more(consumer, version))
    name = next(names, None)
    return "" if name is None else f"only a snapshot shows which messages consumer {name} has not acknowledged"


def _no_snapshot(info: StreamInfo, version: Version) -> bool:
    return info.config.get("storage") == "memory" and version < MEMORY_SNAPSHOTS_SINCE


def _snapshot_has_more(consumer: ConsumerInfo, version: Version) -> bool:
    """Return whether a snapshot has more of the consumer than the API. An archive v1 has none of those in memory."""
    pending = consumer.num_ack_pending > 0 or consumer.num_redelivered > 0
    return pending and not (consumer.config.get("mem_storage") and version < MEMORY_SNAPSHOTS_SINCE)


def _seconds_apart(plan: Increment, info: StreamInfo) -> float:
    each, per_message, per_byte = _GETS if is_queue(info.config) else _CONSUMER
    return len(plan.spans) * each + plan.read_messages * per_message + plan.read_bytes * per_byte


def _seconds_whole(plan: Increment, info: StreamInfo, version: Version) -> float:
    each, per_message, per_byte = _CONSUMER if _no_snapshot(info, version) else _SNAPSHOT
    return each + plan.whole_messages * per_message + plan.whole_bytes * per_byte
