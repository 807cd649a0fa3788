"""The effects of a restore, as far as a manifest shows: what expires, what is redelivered, the times of messages.

A manifest has the times of segments, not of messages, so some values are bounds, and are reported as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from jsbackup.errors import IntegrityError
from jsbackup.model import Fidelity, JsonObject
from jsbackup.planning.model import Action, Expiring, LeftOut, PlannedConsumer, RestoreOptions, SendAs, Target
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.subset import KeptStream
from jsbackup.protocol.dialogue import window_for
from jsbackup.protocol.info import StreamInfo
from jsbackup.readable import count_are, format_count, format_seconds
from jsbackup.repository.manifest import FactKind, StreamBackup
from jsbackup.repository.pages.segment_list import Part, either, parts_of, parts_where
from jsbackup.repository.read.losses import about_losses

__all__ = [
    "ESTIMATE",
    "about_destroyed",
    "about_left_out",
    "about_messages",
    "against_expiry",
    "estimate_seconds",
    "find_dropped",
    "find_expiring",
    "left_out_reason",
    "may_come_again",
    "time_bounds",
]


# --- expiry ---
#
# Messages that expire as soon as they are restored: they are older than the `max_age` that the stream gets.
#
# What is left does not replace a stream that has more messages unless the user confirms it, as if a filter had left
# them out; and a shorter `max_age` that was asked for is refused. Where a stream loses messages by its own `max_age`,
# as it would have without the backup, and nothing that has more is replaced, that is only a warning,
# even if it loses all of them: after a disaster, streams of the last hour must not keep the others from being restored.
#
# The time to live of single messages (`Nats-TTL`) is in their headers. It is looked at where a stream that has messages
# would be replaced (`stored_facts.py`), and counts in the same way, except for markers of deleted keys.

_LONG_NS = 3600 * 1_000_000_000  # a shorter `max_age` was perhaps meant in another unit
_PART = (
    "Restore a newer backup, or this one beside it with --rename, and with --set {}, which keeps all; "
    "--replace-with-part replaces the stream anyway."
)


def find_expiring(
    kept: KeptStream, config: JsonObject, now_ns: int, *, expired: int | None = None, live: bool = False
) -> Expiring:
    """Return how many of the kept messages are older than the `max_age` of `config` at `now_ns` (0: unknown), which
    are `expired` if they were counted. `live` ones are counted by no one before they are sent.
    """
    expiring = _older(kept, config.get("max_age") or 0, now_ns, expired)
    # A message that never expires has that in its headers. Filters may leave out just those that do.
    return replace(expiring, least=0) if config.get("allow_msg_ttl") or not (kept.exact or live) else expiring


def _older(kept: KeptStream, max_age_ns: int, now_ns: int, expired: int | None) -> Expiring:
    entry, of = kept.entry, kept.entry.captured.messages
    if not now_ns or max_age_ns <= 0 or not of:
        return Expiring(of=of)
    if expired is not None:
        return Expiring(expired, expired, of)
    oldest = now_ns - max_age_ns
    # Times rise with sequences, and servers remove expired messages in this order.
    times = (entry.state.first_ns, entry.state.last_ns) if entry.opaque else kept.times
    if times is not None and times[1] > 0:
        if times[1] < oldest:
            return Expiring(of, of, of)
        if times[0] >= oldest:
            return Expiring(of=of)
    if entry.opaque:
        return Expiring(of=of) if times is None or times[1] <= 0 else Expiring(0, of, of)
    # A page that has both is read.
    older = list(parts_where(entry.segments, lambda part: either(part.max_ns < oldest, part.min_ns < oldest, part)))
    surely = sum(part.messages for part in older if part.max_ns < oldest)
    # Segments may have messages that are not kept.
    others = max(sum(part.messages for part in parts_of(entry.segments)) - of, 0)
    return Expiring(max(surely - others, 0), min(sum(part.messages for part in older), of), of)


def shortens_max_age(action: Action, options: RestoreOptions) -> bool:
    """Return whether the user asked for a shorter `max_age` than the stream had."""
    before, after = action.entry.config.get("max_age") or 0, action.config.get("max_age") or 0
    return "max_age" in options.fields and after > 0 and not 0 < before <= after


def against_expiry(action: Action, target: Target, options: RestoreOptions, *, live: bool) -> Iterator[Finding]:
    """Yield refusals of what messages that expire at once would cost. `live`: a server has the messages now, so that
    its own `max_age` costs none of them.
    """
    name, expiring = action.entry.name, action.expiring
    if not expiring.least and not action.outlived.expired and not (expiring.most and action.counted):
        return
    of_them, max_age = format_count(expiring.of, "message"), action.config.get("max_age") or 0
    if shortens_max_age(action, options) and (expiring.least or (expiring.most and action.counted)):
        left = expiring.of - expiring.least
        most = f"up to {left:,}" if expiring.least else f"fewer than {left:,}"
        kept = f"{left:,}" if expiring.least == expiring.most else most
        yield Finding(
            name,
            Rule.LIMIT_TRIMS,
            f"would keep {kept} of its {of_them}: the others are older than a max_age of {_words(max_age)}, and "
            "expire at once",
            _about_limit(max_age, options),
        )
        return
    if live:
        return
    live_stream = target.streams.get(action.name)
    held = live_stream.state.messages if action.replaces and live_stream is not None else 0
    lost = max(expiring.least, action.outlived.expired)
    if lost and expiring.of - lost < held and not options.replace_with_part:
        in_part = 0 < action.outlived.looked < expiring.of
        most, least = ("at most ", "at least ") if in_part else ("", "")
        reason = (
            f"would replace a stream with {format_count(held, 'message')} by one with {most}{expiring.of - lost:,}: "
            f"{_which(action, max_age)} at once, {least}{lost:,} of its {of_them}"
        )
        yield Finding(name, Rule.PART_REPLACES, reason, _how(action))


def _which(action: Action, max_age: int) -> str:
    """Say which messages expire."""
    older = f"what is older than its max_age of {_words(max_age)}"
    outlived = action.outlived
    if not outlived.by_ttl:
        return f"{older} expires"
    if outlived.by_ttl == outlived.expired and not action.expiring.least:
        return "messages that have outlived their Nats-TTL expire"
    return f"{older}, or has outlived its Nats-TTL, expires"


def _how(action: Action) -> str:
    outlived = action.outlived
    if not outlived.by_ttl:
        return _PART.format("max_age=null")
    only = outlived.by_ttl == outlived.expired and not action.expiring.least
    return _PART.format("allow_msg_ttl=null" if only else "max_age=null --set allow_msg_ttl=null")


def _about_limit(max_age: int, options: RestoreOptions) -> str:
    larger = "Restore it with a larger max_age, and lower that afterwards."
    if max_age >= _LONG_NS or "max_age" not in options.unitless:
        return larger
    unit = f"A max_age without a unit is in nanoseconds, and {max_age} are {max_age / 1e9:g} s"
    return f"{unit}; write for example --set max_age=7d. {larger}"


def _words(duration_ns: int) -> str:
    return format_seconds(duration_ns / 1e9)


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
    if (emptied := entry.fact(FactKind.EMPTIED)) is not None:
        hint = "Restore it from that backup if you need these messages."
        yield Finding(entry.name, Rule.EMPTIED, f"in this backup {emptied.text}", hint)
    if (lost_since := entry.fact(FactKind.LOST_SINCE)) is not None:
        hint = "Restore it from an earlier backup if you need these messages."
        yield Finding(entry.name, Rule.SERVER_LOSS, f"when this backup was made, {lost_since.text}", hint)
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


def about_destroyed(action: Action, live: StreamInfo) -> Iterator[Finding]:
    """Yield warnings: what the replaced stream is, and has besides messages (`LeftOut`), and the backup does not."""
    name = action.entry.name
    if live.created != action.entry.created:
        reason = f"replaces a stream that was made at {live.created}, not the one that was backed up"
        yield Finding(name, Rule.DESTROYS_ANOTHER, reason, "Compare them with 'jsbackup diff'.")
    if live.state.consumers > len(action.consumers):
        yield Finding(
            name,
            Rule.DESTROYS_CONSUMERS,
            f"brings back at most {format_count(len(action.consumers), 'consumer')}; the replaced stream has "
            f"{live.state.consumers:,}",
            "Create the others again after the restore.",
        )


_SELECTED = (
    "Restore it under another name with --rename, or whole without the cut or filter; "
    "--replace-with-part replaces it anyway."
)
_LACKING = "Bring it beside that stream with --rename; --replace-with-part replaces it anyway."


def find_dropped(action: Action, target: Target, options: RestoreOptions) -> LeftOut | None:
    """Return a least number of messages that a replacement leaves out by their content, or because they are not the
    newest; None for none.

    What the target has of these is not known. So a stream counts of which the backup has some; or, where its messages
    are not counted, every stream.
    """
    live, kept = target.streams.get(action.name), action.entry.captured.messages
    by = list(dict.fromkeys(option for option, _ in options.reshape.filters.by_content))
    by += [] if options.reshape.newest is None else [str(options.reshape.newest)]
    if not by or not action.replaces or live is None or not live.state.messages:
        return None
    if not action.reshape.drops_by_filters or (action.counted and kept >= action.had):
        return None
    held = live.state.messages
    return LeftOut(min(held, max(held - kept, 1)), held, False, by=" and ".join(by))


def about_left_out(action: Action, options: RestoreOptions) -> Iterator[Finding]:
    """Yield a refusal of what a replacement leaves out of a stream, or a warning if the user confirmed it."""
    left_out, name = action.left_out, action.entry.name
    if left_out is None:
        return
    if options.replace_with_part:
        yield Finding(name, Rule.DESTROYS_LEFT_OUT, left_out_reason(left_out, "are"))
        return
    part = "would be replaced by a part of it: " if left_out.by else ""
    reason, hint = left_out_reason(left_out, "would be"), _SELECTED if left_out.by else _LACKING
    yield Finding(name, Rule.PART_REPLACES, f"{part}{reason}", hint)


def left_out_reason(left_out: LeftOut, verb: str) -> str:
    """Return which messages `verb` deleted."""
    least = "" if left_out.exact else "at least "
    subjects = "" if left_out.subjects is None else f" ({left_out.subjects:,} of {left_out.of_subjects:,} subjects)"
    what = f"{least}{left_out.messages:,} of {format_count(left_out.of, 'message')} at the target{subjects}"
    if not left_out.by and not left_out.exact and left_out.messages == left_out.of:
        return f"may lack any of {format_count(left_out.of, 'message')} at the target, which this user may not read"
    if not left_out.by:
        return f"lacks {what}, which {verb} deleted"
    return f"left out by {left_out.by}: {what}, which {verb} deleted"


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
