"""Rows that become new messages of a stream: what a write is, what the stream takes, how a message is recognized. Pure.

Whoever writes rows may do so again, with some of them already stored: a task that failed half-way, or a whole write. So
each message has a message id, by which the server recognizes it for a while (the stream's `duplicate_window`): its own
one, or one that is made of the write, the partition and the number of the row in it. A streaming query makes others
(`batch_ids.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, Self

from jsbackup.errors import IntegrityError, UsageError
from jsbackup.model import JsonObject
from jsbackup.names import is_subject
from jsbackup.protocol.info import StreamInfo
from jsbackup.protocol.pub_ack import PubAck
from jsbackup.putting_back.headers import MAX_HEADER_BYTES, ROW_HEADER, block_of_new, message_id, reason_against_new
from jsbackup.transforms.subjects import is_pattern, matcher

__all__ = [
    "EXPECTED_STREAM",
    "FAILS_AGAIN",
    "MESSAGE_ID",
    "NewMessage",
    "NewRow",
    "RowOrder",
    "RowRules",
    "RowTarget",
    "WriteId",
    "WrittenRows",
    "as_message",
    "reason_against_rows",
]

MESSAGE_ID: Final = "Nats-Msg-Id"
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
FAILS_AGAIN: Final = "The same row fails again: mend it or leave it out, or change what the stream takes."
_SECOND: Final = 1_000_000_000
_NOT_IN_A_HEADER: Final = re.compile(r"[\r\n\0]")
_REMEMBERED: Final = 65_536  # subjects that were checked


@dataclass(frozen=True, slots=True)
class WriteId:
    """A write: when it began, by the server's clock in seconds, which sequence the stream had then, and a number."""

    began: int
    last_seq: int
    salt: str

    def __str__(self) -> str:
        return f"w{self.began:x}-{self.last_seq:x}-{self.salt}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises UsageError for another text."""
        found = re.fullmatch(r"w([0-9a-f]{1,12})-([0-9a-f]{1,16})-([0-9a-f]{8})", text.strip())
        if found is None:
            raise UsageError(
                f"not the id of a write: {text[:80]!r}",
                hint="What a write has failed with names it, as in w68f0a1b2-….",
            )
        return cls(int(found[1], 16), int(found[2], 16), found[3])

    def of_row(self, partition: int, row: int) -> str:
        """Return the message id of a row without one of its own."""
        return f"{self}-{partition}-{row}"

    def age_ns(self, now_ns: int) -> int:
        return now_ns - self.began * _SECOND


@dataclass(frozen=True, slots=True)
class RowTarget:
    """The stream that a write is for, as it was when it began. `window_ns` is how long the server recognizes an id.

    `resumed`: an earlier write with this id has failed. `new_ids`: messages lose their own ids.
    """

    stream: str
    created: str
    write: WriteId
    window_ns: int
    resumed: bool = False
    new_ids: bool = False


class NewRow(NamedTuple):
    """A row: `headers` is a header block or None, `message_id` None or "" if it has none beside the headers.

    `place` is what else tells it from a row that is equal, b"" if nothing does.
    """

    subject: bytes | None
    data: bytes | None
    headers: bytes | None
    message_id: str | None
    place: bytes = b""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to publish, of the row with this number. `own_id`: its message id is not the one that was made for it,
    `row_id`.
    """

    row: int
    subject: str
    block: bytes
    data: bytes
    own_id: bool
    row_id: str

    @property
    def size(self) -> int:
        return len(self.subject) + len(self.block) + len(self.data)


@dataclass(slots=True)
class WrittenRows:
    """What came of the rows of a partition. `repeated` were there before, with the same id and content.

    `own` of `rows` had ids of their own, and `own_repeated` of these were there before. `left_out` names headers.
    `again`: some partition had been written before, in a part or as a whole.
    """

    rows: int = 0
    repeated: int = 0
    own: int = 0
    own_repeated: int = 0
    left_out: frozenset[str] = frozenset()
    again: bool = False

    @property
    def stored(self) -> int:
        return self.rows - self.repeated

    def add(self, other: WrittenRows) -> None:
        self.rows += other.rows
        self.repeated += other.repeated
        self.own += other.own
        self.own_repeated += other.own_repeated
        self.left_out |= other.left_out
        self.again |= other.again


class TakenSubjects:
    """Which subjects a stream takes, by its configuration."""

    def __init__(self, stream: str, config: JsonObject) -> None:
        self._stream = stream
        listed = [one for one in config.get("subjects") or () if isinstance(one, str) and is_pattern(one)]
        self._patterns = [matcher(one) for one in listed]
        transform = config.get("subject_transform")
        self._renames = isinstance(transform, dict)
        source = transform.get("src") if isinstance(transform, dict) else None
        self._renamed = matcher(source) if isinstance(source, str) and source and is_pattern(source) else None
        self.reason_against = lru_cache(_REMEMBERED)(self._reason_against)

    def _reason_against(self, subject: bytes) -> str:
        """Return why the stream takes no message of this subject; "" if it does."""
        try:
            text = subject.decode()
        except UnicodeDecodeError:
            return f"the subject {subject[:80]!r} is not UTF-8"
        if not is_subject(text):
            return f"{text[:80]!r} is not a subject that can be published to"
        if not any(one.fullmatch(text) for one in self._patterns):
            return f"stream {self._stream} does not listen to the subject {text}"
        if self._renames and (self._renamed is None or self._renamed.fullmatch(text)):
            return f"stream {self._stream} would rename the subject {text} (subject_transform)"
        return ""


@dataclass(frozen=True, slots=True)
class RowRules:
    """What a stream and its server take. Limits are in bytes, headers included, 0 if there are none."""

    subjects: TakenSubjects
    allows_ttl: bool
    max_msg_size: int
    max_payload: int

    @classmethod
    def of(cls, info: StreamInfo, max_payload: int) -> Self:
        limit, allows_ttl = info.config.get("max_msg_size"), bool(info.config.get("allow_msg_ttl"))
        subjects = TakenSubjects(info.name, info.config)
        return cls(subjects, allows_ttl, limit if isinstance(limit, int) and limit > 0 else 0, max_payload)

    def too_large(self, size: int) -> str:
        """Return why a message of so many bytes is not taken; "" if it is."""
        for name, limit in (("max_msg_size of the stream", self.max_msg_size), ("max_payload", self.max_payload)):
            if 0 < limit < size:
                return f"it has {size:,} bytes with its headers, and at most {limit:,} are taken ({name})"
        return ""


class RowOrder:
    """Checks that sequences rise with rows; those of earlier messages with an id of their own may be anywhere.

    `fresh_only`: those of all earlier messages may be. `remedy` is what to do about a wrong order, as a sentence.
    """

    def __init__(self, stream: str, partition: int, *, remedy: str, fresh_only: bool = False) -> None:
        self._stream = stream
        self._partition = partition
        self._remedy = remedy
        self._fresh_only = fresh_only
        self._next = 0
        self._last = 0
        self._early: dict[int, int | None] = {}

    def add(self, message: NewMessage, ack: PubAck, *, anywhere: bool = False) -> None:
        """`anywhere`: that of this message may be, too. Raises IntegrityError."""
        anywhere |= ack.duplicate and (message.own_id or self._fresh_only)
        self._early[message.row] = None if anywhere else ack.sequence
        while self._next in self._early:
            sequence = self._early.pop(self._next)
            if sequence is not None and sequence <= self._last:
                raise IntegrityError(
                    f"stream {self._stream} has row {self._next} of partition {self._partition} before an earlier row, "
                    f"as message {sequence}",
                    hint="The stream had changed its leader or refused the earlier row at first, or the rows have "
                    f"changed their order. {self._remedy}",
                )
            self._last = sequence or self._last
            self._next += 1


def reason_against_rows(info: StreamInfo) -> str:
    """Return why the stream takes no rows at all, as a sentence; "" if it does."""
    config, name = info.config, info.name
    if config.get("sealed"):
        return f"stream {name} is sealed, and takes no messages"
    if isinstance(mirror := config.get("mirror"), dict):
        return f"stream {name} is a mirror of {mirror.get('name')}, and takes no messages"
    if not config.get("subjects"):
        return f"stream {name} listens to no subjects, and only copies from other streams"
    if config.get("no_ack"):
        return f"stream {name} does not acknowledge messages (no_ack): what it stores cannot be known"
    if config.get("allow_msg_counter"):
        return f"stream {name} counts: a message would be added to its counter"
    return ""


def as_message(
    row: NewRow, *, number: int, partition: int, target: RowTarget, rules: RowRules, row_id: str = ""
) -> tuple[NewMessage, set[str]]:
    """Return the message of a row, and the lower-case names of headers that were left out of it.

    Without `row_id` its id is that of the write, the partition and the number. With it, a message that has an id of its
    own has that in a header.

    Raises:
        UsageError: there can be no message of this row, or not in this stream.
    """
    if row.subject is None or row.data is None:
        raise _refused(number, partition, f"the column {'subject' if row.subject is None else 'data'} is null")
    problem = rules.subjects.reason_against(row.subject)
    problem = problem or reason_against_new(row.headers, allows_ttl=rules.allows_ttl)
    if problem:
        raise _refused(number, partition, problem)
    column = "" if target.new_ids else row.message_id or ""
    if _NOT_IN_A_HEADER.search(column):
        raise _refused(number, partition, "its message id has a line break or NUL")
    has_own = not target.new_ids and bool(column or message_id(row.headers))
    added = [(EXPECTED_STREAM, target.stream)]
    made = row_id or target.write.of_row(partition, number)
    if new_id := column or ("" if has_own else made):
        added.append((MESSAGE_ID, new_id))
    if row_id and has_own:
        added.append((ROW_HEADER, row_id))
    # An id that is added replaces that of the headers, also one that is empty.
    block, left_out = block_of_new(row.headers, added, without=MESSAGE_ID if new_id else "")
    if len(block) > MAX_HEADER_BYTES:
        raise _refused(number, partition, f"its headers are too large ({len(block):,} bytes with those that are added)")
    # Before it is sent: the server would refuse it, and store those behind it.
    if problem := rules.too_large(len(block) + len(row.data)):
        raise _refused(number, partition, problem)
    return NewMessage(number, row.subject.decode(), block, row.data, has_own, made), left_out


def _refused(number: int, partition: int, problem: str) -> UsageError:
    return UsageError(f"row {number} of partition {partition} cannot be a message: {problem}", hint=FAILS_AGAIN)
