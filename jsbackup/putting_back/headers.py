"""The header block of a message that is put back: what the origin had, without what would make a server act again.

All other lines stay byte for byte, in order. `Jsbackup-Origin` says where the message comes from, so that a second run
recognizes it.

Server source (`stream.go` of nats-server 2.10 to 2.15): these headers act when a message is published.

    Nats-Expected-*                       conditions of the first publisher              left out
    Nats-Rollup                           would remove all earlier messages              left out
    Nats-Batch-*, Nats-Trace-*            would be stored later, or not at all           left out
    Nats-Scheduler, Nats-Schedule-Next    would remove a schedule                        left out
    Nats-Stream-Source                    refused from clients (2.12)                    left out
    Nats-Request-Info                     left out by the server itself                  left out
    Nats-TTL                              expires after that time                        the rest of it
    Nats-Schedule                         would publish again                            refused
    Nats-Incr                             would be added to a counter                    refused
    Nats-Msg-Id                           not stored again within a window               kept
    KV-Operation                          read by clients alone                          kept
    Nats-Marker-Reason                    left by a server, not by a client              not put back
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from jsbackup.errors import FormatError
from jsbackup.formats.header_block import first_value, lines
from jsbackup.look.message import LookedUp
from jsbackup.names import is_name
from jsbackup.times import format_time, parse_time
from jsbackup.transforms.removal import NEVER, ttl_seconds

__all__ = [
    "ORIGIN_HEADER",
    "MessageOrigin",
    "comparable",
    "content_of",
    "is_marker",
    "message_id",
    "new_block",
    "origin_in",
    "origin_of_message",
    "reason_against",
]

ORIGIN_HEADER = "Jsbackup-Origin"
# The server accepts header blocks of up to 64 KiB.
MAX_HEADER_BYTES = 65_535

_VERSION = b"NATS/1.0"
_END = b"\r\n\r\n"
_SECOND = 1_000_000_000
_LEFT_OUT = ("nats-expected-", "nats-batch-", "nats-trace-", "nats-schedule-")
_LEFT_OUT_NAMES = frozenset(
    {"nats-rollup", "nats-scheduler", "nats-stream-source", "nats-request-info", "nats-counter-sources"}
)
_TTL = "nats-ttl"


@dataclass(frozen=True, slots=True)
class MessageOrigin:
    """Where a message comes from: the backup that it was put back from, and what it was in its stream."""

    backup: str
    stream: str
    sequence: int
    timestamp_ns: int

    def __str__(self) -> str:
        return f"{self.backup} {self.stream} {self.sequence} {format_time(self.timestamp_ns)}"

    @property
    def message(self) -> tuple[str, int, int]:
        """What identifies the message, whatever the backup."""
        return self.stream, self.sequence, self.timestamp_ns

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the origin, or None for any other text: clients may send anything."""
        parts = text.split(" ")
        if len(parts) != 4 or not is_name(parts[1]) or not re.fullmatch(r"[1-9]\d{0,18}", parts[2], re.ASCII):
            return None
        try:
            return cls(parts[0], parts[1], int(parts[2]), parse_time(parts[3]))
        except FormatError:
            return None


def origin_in(block: bytes | None) -> MessageOrigin | None:
    """Return the origin that a message has because it was put back, or None."""
    if not block or ORIGIN_HEADER.lower().encode() not in block.lower():
        return None
    values = (line.text for line in lines(block) if line.key == ORIGIN_HEADER.lower())
    return next(filter(None, map(MessageOrigin.parse, values)), None)


def origin_of_message(backup: str, stream: str, message: LookedUp) -> MessageOrigin:
    """Return where a message comes from: if it was put back itself, from where it was then."""
    return origin_in(message.headers) or MessageOrigin(backup, stream, message.sequence, message.timestamp_ns)


def reason_against(block: bytes | None, *, stored_ns: int, now_ns: int, allows_ttl: bool) -> str:
    """Return why a message with these headers cannot be put back; "" if it can."""
    if not block:
        return ""
    if not _is_block(block):
        return "its header block is damaged"
    names = {line.key: line.text for line in reversed(list(lines(block)))}
    if "nats-schedule" in names:
        return "it is a schedule, which would publish again"
    if "nats-incr" in names:
        return "it belongs to a counter, which it would change"
    ttl = names.get(_TTL)
    if not ttl:
        return ""
    seconds = ttl_seconds(ttl)
    if seconds is None:
        return "its time to live (Nats-TTL) cannot be understood"
    if seconds == 0:
        return ""
    if seconds != NEVER and stored_ns + seconds * _SECOND <= now_ns:
        return f"its time to live ended at {format_time(stored_ns + seconds * _SECOND)}"
    return "" if allows_ttl else "it has a time to live (Nats-TTL), and the stream does not allow that (allow_msg_ttl)"


def new_block(block: bytes | None, added: Sequence[tuple[str, str]], *, stored_ns: int, now_ns: int) -> bytes:
    """Return the block to publish: what stays of `block`, and the added headers. A time to live is what is left of it,
    at least a second.
    """
    kept = [_VERSION]
    if block:
        kept = [block.partition(b"\r\n")[0]]
        kept += [line.line for line in lines(block) if not _is_left_out(line.key)]
        ttl = ttl_seconds(next((line.text for line in lines(block) if line.key == _TTL), ""))
        if ttl == NEVER:
            added = [*added, ("Nats-TTL", "never")]
        elif ttl:
            left = max(math.ceil((stored_ns + ttl * _SECOND - now_ns) / _SECOND), 1)
            added = [*added, ("Nats-TTL", f"{left}s")]
    kept += [f"{name}: {value}".encode("utf-8", "surrogateescape") for name, value in added]
    return b"\r\n".join(kept) + _END


def comparable(block: bytes | None) -> tuple[bytes, ...]:
    """Return the lines of a block that are the same in a message and in the one that is put back for it."""
    return tuple(line.line for line in lines(block) if not _is_left_out(line.key))


def content_of(subject: str, headers: bytes | None, data: bytes) -> bytes:
    """Return what names the content of a message, whether it was put back or not."""
    digest = hashlib.sha256()
    for part in (subject.encode("utf-8", "surrogateescape"), *comparable(headers)):
        digest.update(len(part).to_bytes(4) + part)
    digest.update(b"\xff" * 4 + data)
    return digest.digest()[:20]


def is_marker(block: bytes | None) -> bool:
    """Return whether a server has left the message where others have expired or were removed."""
    return any(line.key == "nats-marker-reason" for line in lines(block))


def message_id(block: bytes | None) -> bytes:
    """Return the message id by which a server recognizes a message, b"" if it has none. The case of the name counts."""
    return first_value(block or b"", b"Nats-Msg-Id") or b""


def _is_left_out(name: str) -> bool:
    return name in _LEFT_OUT_NAMES or name == _TTL or name == ORIGIN_HEADER.lower() or name.startswith(_LEFT_OUT)


def _is_block(block: bytes) -> bool:
    return block.startswith(_VERSION) and block.endswith(_END) and _END not in block[:-1]
