"""Messages that expire as soon as they are restored: they are older than the `max_age` that the stream gets.

What is left does not replace a stream that has more messages unless the user confirms it, as if a filter had left them
out; and a shorter `max_age` that was asked for is refused. Where a stream loses messages by its own `max_age`, as it
would have without the backup, and nothing that has more is replaced, that is only a warning (`forecast.py`), even if it
loses all of them: after a disaster, streams of the last hour must not keep the others from being restored.

The time to live of single messages (`Nats-TTL`) is in their headers. It is looked at where a stream that has messages
would be replaced (`selection/limited.py`), and counts in the same way, except for markers of deleted keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jsbackup.model import JsonObject
from jsbackup.planning.configs.overrides import about_unit
from jsbackup.planning.model import Action, Expiring, RestoreOptions, Target
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.subset import KeptStream
from jsbackup.readable import format_count, format_seconds
from jsbackup.repository.pages.segment_list import either, parts_of, parts_where

__all__ = ["against_expiry", "find_expiring"]

_LONG_NS = 3600 * 1_000_000_000  # a shorter `max_age` was perhaps meant in another unit
_PART = (
    "Restore a newer backup, or this one beside it with --rename, and with --set {}, which keeps all; "
    "--replace-with-part replaces the stream anyway."
)


def find_expiring(kept: KeptStream, config: JsonObject, now_ns: int) -> Expiring:
    """Return how many of the kept messages are older than the `max_age` of `config` at `now_ns` (0: unknown)."""
    expiring = _older(kept, config.get("max_age") or 0, now_ns)
    # A message that never expires has that in its headers.
    return replace(expiring, least=0) if config.get("allow_msg_ttl") else expiring


def _older(kept: KeptStream, max_age_ns: int, now_ns: int) -> Expiring:
    entry, of = kept.entry, kept.entry.captured.messages
    if not now_ns or max_age_ns <= 0 or not of:
        return Expiring(of=of)
    if kept.expired is not None:
        return Expiring(kept.expired, kept.expired, of)
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
    name, gone = action.entry.name, action.expiring
    if not gone.least and not action.outlived.expired and not (gone.most and action.counted):
        return
    of_them, max_age = format_count(gone.of, "message"), action.config.get("max_age") or 0
    if shortens_max_age(action, options) and (gone.least or (gone.most and action.counted)):
        left = gone.of - gone.least
        most = f"up to {left:,}" if gone.least else f"fewer than {left:,}"
        kept = f"{left:,}" if gone.least == gone.most else most
        yield Finding(
            name,
            Rule.LIMIT_TRIMS,
            f"would keep {kept} of its {of_them}: the others are older than a max_age of {_words(max_age)}, and "
            "expire at once",
            _about_limit(action, max_age, options),
        )
        return
    if live:
        return
    there = target.streams.get(action.name)
    held = there.state.messages if action.replaces and there is not None else 0
    lost = max(gone.least, action.outlived.expired)
    if lost and gone.of - lost < held and not options.replace_with_part:
        in_part = 0 < action.outlived.looked < gone.of
        most, least = ("at most ", "at least ") if in_part else ("", "")
        reason = (
            f"would replace a stream with {format_count(held, 'message')} by one with {most}{gone.of - lost:,}: "
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


def _about_limit(action: Action, max_age: int, options: RestoreOptions) -> str:
    larger = "Restore it with a larger max_age, and lower that afterwards."
    if max_age >= _LONG_NS or (action.config.get("duplicate_window") or 0) > max_age:  # or said of that window
        return larger
    return f"{about_unit('max_age', max_age, options.unitless)} {larger}".lstrip()


def _words(duration_ns: int) -> str:
    return format_seconds(duration_ns / 1e9)
