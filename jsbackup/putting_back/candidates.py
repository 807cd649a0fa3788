"""Chosen messages as a plan needs them, without payloads, and what is decided for each. Pure, but for reading."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from sys import intern

from jsbackup.look.message import LookedUp
from jsbackup.names import BUCKET_STREAM
from jsbackup.protocol.info import StoredMessage, StreamInfo
from jsbackup.putting_back.chosen import is_value, name_of_key
from jsbackup.putting_back.headers import MessageOrigin, comparable, is_marker, message_id, origin_in, reason_against
from jsbackup.putting_back.model import Fate, PlannedMessage
from jsbackup.putting_back.target import takes_not
from jsbackup.repository.manifest import StreamBackup
from jsbackup.times import format_time

__all__ = ["ChosenMessage", "Judge", "content_of", "decide_value", "origin_of_message"]


@dataclass(frozen=True, slots=True)
class ChosenMessage:
    """A chosen message. `subject` is that at the target, `content` names subject, headers and payload; `reason` is why
    it cannot be written, "" if it can. `deletes`: it deletes a key of a bucket.
    """

    sequence: int
    timestamp_ns: int
    subject: str
    size: int
    content: bytes
    origin: tuple[str, int, int]
    reason: str = ""
    marker: bool = False
    deletes: bool = False
    message_id: bytes = b""

    def planned(self, fate: Fate, reason: str = "", *, name: str = "", conflict: bool = False) -> PlannedMessage:
        return PlannedMessage(
            self.sequence,
            self.timestamp_ns,
            self.subject,
            self.size,
            fate,
            reason,
            name=name,
            conflict=conflict,
            origin=self.origin,
        )


def content_of(subject: str, headers: bytes | None, data: bytes) -> bytes:
    """Return what names the content of a message, whether it was put back or not."""
    digest = hashlib.sha256()
    for part in (subject.encode("utf-8", "surrogateescape"), *comparable(headers)):
        digest.update(len(part).to_bytes(4) + part)
    digest.update(b"\xff" * 4 + data)
    return digest.digest()[:20]


def _content_at(present: StoredMessage) -> bytes:
    return content_of(present.subject, present.headers, present.data)


def origin_of_message(backup: str, stream: str, message: LookedUp) -> MessageOrigin:
    """Return where a message comes from: if it was put back itself, from where it was then."""
    return origin_in(message.headers) or MessageOrigin(backup, stream, message.sequence, message.timestamp_ns)


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges chosen messages by what the target takes. `subject_at` returns a subject at the target."""

    entry: StreamBackup
    info: StreamInfo
    subject_at: Callable[[str], str]
    max_payload: int
    now_ns: int

    def judge(self, messages: Iterable[LookedUp]) -> list[ChosenMessage]:
        """Return a candidate for each message. Raises as the iteration."""
        return [self._candidate(one) for one in messages]

    def _candidate(self, message: LookedUp) -> ChosenMessage:
        subject = intern(self.subject_at(message.subject))
        block_bytes = len(message.headers or b"")
        size = block_bytes + len(message.data)
        reason = reason_against(
            message.headers,
            stored_ns=message.timestamp_ns,
            now_ns=self.now_ns,
            allows_ttl=bool(self.info.config.get("allow_msg_ttl")),
        ) or takes_not(self.info, subject, size, block_bytes=block_bytes, max_payload=self.max_payload)
        return ChosenMessage(
            message.sequence,
            message.timestamp_ns,
            subject,
            size,
            content_of(subject, message.headers, message.data),
            origin_of_message("", self.entry.name, message).message,
            reason,
            is_marker(message.headers),
            self.entry.name.startswith(BUCKET_STREAM) and not is_value(message.headers),
            message_id(message.headers),
        )


def decide_value(one: ChosenMessage, present: StoredMessage | None, *, key: bool, overwrite: bool) -> PlannedMessage:
    """Decide about the only message of a subject that counts. `present` is the last one at the target; `key`: it is a
    key of a bucket.

    A deleted key has no value that could be lost, so that its value is written.
    """
    name = name_of_key(one.subject) if key else ""
    gone = present is None or not is_value(present.headers)
    if present is not None and not gone and _content_at(present) == one.content:
        return one.planned(Fate.THERE, f"message {present.sequence} is the same", name=name)
    if one.reason:
        return one.planned(Fate.REFUSED, one.reason, name=name)
    written = replace(
        one.planned(Fate.WRITE, name=name), expected=0 if present is None else present.sequence, overwrites=not gone
    )
    if present is None:
        return written
    when = f"message {present.sequence} of {format_time(present.timestamp_ns)}"
    if not gone and present.timestamp_ns >= one.timestamp_ns and not overwrite:
        return one.planned(Fate.REFUSED, f"{when} is newer, and differs", name=name, conflict=True)
    return replace(written, reason=f"removed by {when}" if gone else f"replaces {when}")
