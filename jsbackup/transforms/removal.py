"""What removes messages from a stream although nobody deletes them: its settings, and the headers of messages.

All that has to know it asks here: what a backup may take for deleted, what a plan says will be gone, and what the proof
of a restore may excuse. Two messages have rules of their own:

- **A time to live** (header `Nats-TTL`, in a stream with `allow_msg_ttl`). A server counts it from the message's
  timestamp, also in a restored stream, and removes what has outlived it at once. With `never`, a message does not
  expire, not even by the `max_age` of its stream. A server finds the header by its exact name.
- **A schedule** (header `Nats-Schedule: @at TIME`, in a stream with `allow_msg_schedules`). When it is due, a server
  publishes to its target and removes it; one that was due before it was restored, at once. Repeating ones stay.

Server source (nats-server `getMessageTTL`, `expireMsgs`, `getScheduledMessages`), and measured: 2.11.11 to 2.15.3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from jsbackup.errors import FormatError
from jsbackup.formats.header_block import first_value
from jsbackup.model import JsonObject, StreamState
from jsbackup.times import parse_time

__all__ = [
    "NEVER",
    "Cause",
    "RemovalLimits",
    "discards_oldest",
    "empties_itself",
    "is_overwritten",
    "is_queue",
    "keeps_its_messages",
    "removal_of",
    "removes_messages",
    "schedule_ns",
    "ttl_of",
    "ttl_seconds",
]

NEVER = -1
"""The time to live of a message that does not expire, not even by the `max_age` of its stream."""

_SECOND_NS = 1_000_000_000
_LONG_NS = 24 * 3600 * _SECOND_NS  # of `max_age`: long beside a restore
_FULL = 0.5  # of a limit, from which on it is near
_LIMITS = ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject")
# Settings by which one message removes another, or itself.
_REMOVING = ("allow_msg_schedules", "allow_msg_ttl", "allow_rollup_hdrs")

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")


# ------------------------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True, slots=True)
class RemovalLimits:
    """How many messages, bytes, and messages of each subject a stream keeps before it removes the oldest for a new one;
    and for how long. 0 is no limit: one at which new messages are refused removes nothing.
    """

    messages: int
    bytes: int
    per_subject: int
    age_ns: int

    @classmethod
    def of(cls, config: JsonObject) -> RemovalLimits:
        values = (config.get(name) for name in ("max_msgs", "max_bytes", "max_msgs_per_subject", "max_age"))
        known = (value if isinstance(value, int) and value > 0 else 0 for value in values)
        messages, size, per_subject, age_ns = known
        if config.get("discard", "old") != "new":
            return cls(messages, size, per_subject, age_ns)
        return cls(0, 0, 0 if config.get("discard_new_per_subject") else per_subject, age_ns)


def is_queue(config: JsonObject) -> bool:
    """Return whether consumers remove messages by acknowledging them."""
    return bool(config.get("retention", "limits") != "limits")


def is_overwritten(config: JsonObject) -> bool:
    """Return whether new messages of the stream replace old ones."""
    return (config.get("max_msgs_per_subject") or 0) > 0 or bool(config.get("allow_rollup_hdrs"))


def discards_oldest(config: JsonObject) -> bool:
    """Return whether a stream removes its oldest messages, for new ones or after a while."""
    limits = RemovalLimits.of(config)
    return bool(limits.age_ns or limits.messages or limits.bytes)


def empties_itself(config: JsonObject) -> bool:
    """Return whether a stream may lose all its messages although nobody publishes to it."""
    return is_queue(config) or bool(config.get("max_age") or config.get("allow_msg_ttl"))


def removes_messages(config: JsonObject) -> bool:
    """Return whether a stream may lose messages without anybody deleting them."""
    limited = any((config.get(name) or 0) > 0 for name in _LIMITS)
    return limited or is_queue(config) or any(config.get(name) for name in _REMOVING)


def keeps_its_messages(config: JsonObject, state: StreamState) -> bool:
    """Return whether a stream in `state` still has its messages after a while, though clients use it.

    If not, its proof must not wait: it would find messages missing, or excuse too many of them. A queue removes what
    its consumers take; a bucket, what is written again; a stream near its limits, its oldest messages.
    """
    if is_queue(config) or any(config.get(setting) for setting in _REMOVING):
        return False
    if (config.get("max_msgs_per_subject") or 0) > 0 or 0 < (config.get("max_age") or 0) < _LONG_NS:
        return False
    limits = RemovalLimits.of(config)
    near = ((limits.messages, state.messages), (limits.bytes, state.bytes))
    return not any(0 < limit * _FULL < held for limit, held in near)


# ------------------------------------------------------------------------------------------------------------- messages


class Cause(StrEnum):
    """Why a stream has removed a message."""

    EXPIRED = "expired"
    FIRED = "published again, as their schedules were due"
    TAKEN = "acknowledged by consumers"
    DISCARDED = "discarded for newer ones"


def removal_of(timestamp_ns: int, headers: bytes, config: JsonObject) -> tuple[int, Cause] | None:
    """Return when a stream with this configuration removes a message, in Unix nanoseconds, and why; None if it stays.
    Only what the message itself decides is looked at.
    """
    moments: list[tuple[int, Cause]] = []
    ttl = ttl_of(headers) if config.get("allow_msg_ttl") else 0
    if ttl > 0:
        moments.append((timestamp_ns + ttl * _SECOND_NS, Cause.EXPIRED))
    if ttl != NEVER and (config.get("max_age") or 0) > 0:
        moments.append((timestamp_ns + config["max_age"], Cause.EXPIRED))
    if config.get("allow_msg_schedules") and (due_ns := schedule_ns(headers)) is not None:
        moments.append((due_ns, Cause.FIRED))
    return min(moments, default=None)


def ttl_seconds(text: str) -> int | None:
    """Return whole seconds as the server reads them, `NEVER`, or 0 for none; None if it is not valid."""
    if not text:
        return 0
    if text.lower() == "never":
        return NEVER
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        return int(text)
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return int(seconds) if 1 <= seconds < 1e10 else None


def ttl_of(block: bytes) -> int:
    """Return the same for a header block; 0 if it has none, or none that is valid."""
    text = first_value(block, b"Nats-TTL")
    return 0 if text is None else _ttl(text)


def schedule_ns(block: bytes) -> int | None:
    """Return when a message that is scheduled once is due, by its header block, in Unix nanoseconds; else None."""
    text = first_value(block, b"Nats-Schedule")
    if text is None or not text.startswith(b"@at "):
        return None
    try:
        return parse_time(text[4:].decode("ascii"))
    except (FormatError, UnicodeDecodeError):
        return None


@lru_cache(maxsize=4096)  # most messages of a stream have the same few
def _ttl(text: bytes) -> int:
    return ttl_seconds(text.decode("utf-8", "replace")) or 0
