"""What a restore will bring about, as far as a manifest tells: what expires, what comes again, from when messages are.

A manifest knows the times of segments, not of messages: what it does not tell exactly is a bound, and said to be.
"""

from __future__ import annotations

from jsbackup.engine.planned import PlannedConsumer
from jsbackup.model import Fidelity
from jsbackup.repository.manifest import StreamBackup

__all__ = ["expiring", "may_come_again", "time_bounds"]


def expiring(entry: StreamBackup, max_age_ns: int, now_ns: int) -> str:
    """What a `max_age` does to messages that were stored up to now, as a note."""
    general = "has max_age: messages older than that are removed by the target"
    if not now_ns or entry.opaque:
        return general
    oldest = now_ns - max_age_ns
    least = sum(ref.messages for ref in entry.segments if ref.max_ns < oldest)
    most = sum(ref.messages for ref in entry.segments if ref.min_ns < oldest)
    if not most:
        return general
    count = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return f"{count} of its {entry.captured.messages:,} messages are older than its max_age and expire at once"


def may_come_again(entry: StreamBackup, planned: PlannedConsumer) -> int | None:
    """How many messages, at most, the consumer gets that it had before the backup; None if nobody knows.

    What awaited its acknowledgement then does so again, and counts. A consumer that starts anew gets what its
    configuration says, which is all unless it says otherwise.
    """
    state = planned.consumer.state
    if planned.fidelity is Fidelity.EXACT:
        return None if planned.pending is not None or state is None else len(state.pending)
    if planned.fidelity is Fidelity.FLOOR and state is not None:
        floor = state.ack_floor.stream
        return sum(min(ref.messages, max(0, ref.last_seq - floor)) for ref in entry.segments)
    if planned.consumer.config.get("deliver_policy", "all") == "all":
        return entry.captured.messages
    return 0 if planned.consumer.config.get("deliver_policy") == "new" else None


def time_bounds(entry: StreamBackup) -> tuple[int, int, bool]:
    """Times of the first and the last message in nanoseconds since the epoch (0 for none), and whether they are exact.

    The server told them for the messages that it had when the capture began; else they are bounds.
    """
    captured, state = entry.captured, entry.state
    first, last = entry.segments[:1], entry.segments[-1:]
    if not captured.messages:
        return 0, 0, True
    if not first or not last:
        return state.first_ns, state.last_ns, False
    known_first = captured.first_seq == state.first_seq or first[0].messages == 1
    known_last = captured.last_seq == state.last_seq or last[0].messages == 1
    first_ns = state.first_ns if captured.first_seq == state.first_seq else first[0].min_ns
    last_ns = state.last_ns if captured.last_seq == state.last_seq else last[0].max_ns
    return first_ns, last_ns, known_first and known_last
