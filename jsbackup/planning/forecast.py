"""The effects of a restore, as far as a manifest shows: what expires, what is redelivered, the times of messages.

A manifest has the times of segments, not of messages, so some values are bounds, and are reported as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jsbackup.errors import IntegrityError
from jsbackup.model import Fidelity
from jsbackup.planning.model import Action, PlannedConsumer, SendAs, Target
from jsbackup.planning.rules import Finding, Rule
from jsbackup.protocol.info import StreamInfo
from jsbackup.protocol.window import window_for
from jsbackup.readable import count_are, format_count
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.pages.segment_list import Part, either, parts_of, parts_where
from jsbackup.repository.read.losses import about_losses

__all__ = ["ESTIMATE", "about_destroyed", "about_messages", "estimate_seconds", "may_come_again", "time_bounds"]

# Measured: jsbackup into nats-server 2.12 and 2.15, all on the same two cores, with messages of 200 bytes (limited by
# their number) and of 60 KB (limited by bytes). The proof reads everything back.
_PACE: dict[SendAs, tuple[float, float]] = {  # bytes and messages per second
    SendAs.V1: (120e6, 400_000),
    SendAs.V2: (150e6, 300_000),
    SendAs.OPAQUE: (200e6, 1_000_000),
}
_PROOF_PACE = (250e6, 500_000)
_STREAM_ROUND_TRIPS = 12  # sequential requests for one stream
ESTIMATE = (
    "from bytes and messages, at the pace measured on two cores on loopback, and the round trip to the target; "
    "one stream after the other, with the proof"
)


def estimate_seconds(action: Action, target: Target) -> float:
    """Estimate the seconds for the stream, including copy and proof, as if nothing else were restored at the
    same time.
    """
    byte_count, messages = action.entry.captured.bytes, action.entry.captured.messages
    waiting = (_STREAM_ROUND_TRIPS + byte_count / window_for(target.round_trip_seconds)) * target.round_trip_seconds
    once = waiting
    if action.wire in _PACE:
        for bytes_pace, messages_pace in (_PACE[action.wire], _PROOF_PACE):
            once += max(byte_count / bytes_pace, messages / messages_pace)
    return once * (2 if action.replaces else 1)


def about_messages(action: Action, target: Target) -> Iterator[Finding]:
    """Yield warnings: messages that were deleted before the backup, and what the target does to restored ones."""
    entry, config = action.entry, action.config
    if entry.emptied:
        hint = "Restore it from that backup if you need these messages."
        yield Finding(entry.name, Rule.EMPTIED, f"in this backup {entry.emptied}", hint)
    if entry.lost_since:
        hint = "Restore it from an earlier backup if you need these messages."
        yield Finding(entry.name, Rule.SERVER_LOSS, f"when this backup was made, {entry.lost_since}", hint)
    if lost := about_losses(entry.lost):
        hint = "Another backup may have them: see 'jsbackup show' and 'jsbackup history'."
        yield Finding(entry.name, Rule.SALVAGED, f"was read from a damaged store, and lacks {lost}", hint)
    if action.expiring.most:
        of = format_count(action.expiring.of, "message")
        reason = f"older than its max_age, and expire at once: {action.expiring.count} of {of}"
        yield Finding(entry.name, Rule.EXPIRES, reason, "Restore a newer backup if you need these messages.")
    elif config.get("max_age"):
        yield Finding(entry.name, Rule.MAX_AGE, "has max_age: messages older than that are removed by the target")
    if config.get("allow_msg_ttl") and entry.captured.messages:
        reason = f"the target removes messages whose TTL has expired{_outlived(action)}"
        yield Finding(entry.name, Rule.MESSAGE_TTL, reason)
    if (outlived := action.outlived).due:
        first = "" if outlived.looked >= entry.captured.messages else f", of the first {outlived.looked:,} messages"
        reason = f"{count_are(outlived.due, 'schedule')} due, and published by the target at once{first}"
        hint = "With --set allow_msg_schedules=null they are restored, and nothing is published."
        yield Finding(entry.name, Rule.SCHEDULES_FIRE, reason, hint)
    largest = max((part.bytes // part.messages for part in parts_of(entry.segments) if part.messages), default=0)
    most = target.max_payload_bytes
    if 0 < most < largest:
        yield Finding(
            entry.name,
            Rule.LARGE_MESSAGES,
            f"has messages of {largest} bytes and more, and the max_payload of the target is {most}",
            "They are restored; raise max_payload before clients publish messages of that size.",
        )


def _outlived(action: Action) -> str:
    """Return how many do at once, as far as that is known, as the rest of a sentence."""
    outlived, of = action.outlived, action.entry.captured.messages
    if not outlived.looked:
        return ""
    if outlived.looked >= of:
        return f": {outlived.by_ttl:,} of {format_count(of, 'message')} at once" if outlived.by_ttl else ""
    return (
        f": {outlived.by_ttl:,} at once, of the first {format_count(outlived.looked, 'message')}; the TTL of the "
        f"others, {of - outlived.looked:,}, was not looked at"
    )


def about_destroyed(action: Action, there: StreamInfo) -> Iterator[Finding]:
    """Yield warnings: what the replaced stream is, and has besides messages (`LeftOut`), and the backup does not."""
    name = action.entry.name
    if there.created != action.entry.created:
        reason = f"replaces a stream that was made at {there.created}, not the one that was backed up"
        yield Finding(name, Rule.DESTROYS_ANOTHER, reason, "Compare them with 'jsbackup diff'.")
    if there.state.consumers > len(action.consumers):
        yield Finding(
            name,
            Rule.DESTROYS_CONSUMERS,
            f"brings back at most {format_count(len(action.consumers), 'consumer')}; the replaced stream has "
            f"{there.state.consumers:,}",
            "Create the others again after the restore.",
        )


def may_come_again(entry: StreamBackup, planned: PlannedConsumer) -> int | None:
    """Return the most messages that the consumer gets again; None if unknown.

    Messages that awaited acknowledgement count. A consumer without a state gets what its configuration says, by default
    everything.
    """
    state = planned.consumer.state
    if planned.fidelity is Fidelity.EXACT:
        return None if planned.pending is not None or state is None else len(state.pending)
    if planned.fidelity is Fidelity.FLOOR and state is not None:
        floor = state.ack_floor.stream
        above = parts_where(entry.segments, lambda part: either(part.first_seq > floor, part.last_seq > floor, part))
        try:
            stored = sum(min(part.messages, part.last_seq - floor) for part in above)
            stored = min(stored, max(0, entry.captured.last_seq - floor))  # segments may have had other sequences
        except IntegrityError:  # of a page, which is reported when objects are checked
            return planned.above_floor
        return stored if planned.above_floor is None else min(stored, planned.above_floor)
    if planned.consumer.config.get("deliver_policy", "all") == "all":
        return entry.captured.messages
    return 0 if planned.consumer.config.get("deliver_policy") == "new" else None


def _ends(entry: StreamBackup) -> tuple[Sequence[Part], Sequence[Part]]:
    """Return the first and the last segment, each as a list; pages whose segments cannot be read in place of them."""
    parts = parts_of(entry.segments)
    try:
        return entry.segments[:1], entry.segments[-1:]
    except IntegrityError:
        return parts[:1], parts[-1:]


def time_bounds(entry: StreamBackup) -> tuple[int, int, bool]:
    """Return the times of the first and last message in Unix nanoseconds (0 for none), and whether they are exact.

    The server reported them for the messages that it had when the capture began; otherwise they are bounds.
    """
    captured, state = entry.captured, entry.state
    first, last = _ends(entry)
    if not captured.messages:
        return 0, 0, True
    if not first or not last:
        return state.first_ns, state.last_ns, False
    known_first = captured.first_seq == state.first_seq or first[0].messages == 1
    known_last = captured.last_seq == state.last_seq or last[0].messages == 1
    first_ns = state.first_ns if captured.first_seq == state.first_seq else first[0].min_ns
    last_ns = state.last_ns if captured.last_seq == state.last_seq else last[0].max_ns
    return first_ns, last_ns, known_first and known_last
