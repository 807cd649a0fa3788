"""Read a stream message by message: the new ones, or all if no snapshot can be made.

Two ways:

- a push consumer without acknowledgements, with the server's flow control, delivers everything exactly as it is stored;
- for work-queue and interest streams, where a consumer of ours would change what is kept, one STREAM.MSG.GET for each
  sequence, many at once. It returns everything exactly, except for subjects that are not UTF-8, which have U+FFFD in
  place of the invalid bytes.

Direct gets cannot be used, although they come in batches: the headers that they add cannot be removed reliably (a
message without headers and one with an empty header block look the same), and a replica that lags may answer.

Reads up to the stream's end when reading began. Messages deleted meanwhile are missing.

The consumers by which streams are read have a description of ours, by which left ones are recognized (`is_reader`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import pyarrow as pa

from jsbackup.engine.link.concurrency import in_thread
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.subscription import Subscription
from jsbackup.engine.read.snapshot_transfer import Advance
from jsbackup.errors import (
    ApiError,
    FormatError,
    NatsError,
    NatsPermissionDenied,
    NatsTimeout,
    TransferError,
    UnsupportedError,
)
from jsbackup.formats.batch import BATCH_SCHEMA, BINARY_SUBJECT_SCHEMA
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import JsonObject
from jsbackup.protocol.dialogue import Message
from jsbackup.protocol.headers import parse_status
from jsbackup.protocol.info import ConsumerInfo, StreamInfo
from jsbackup.transforms.removal import is_queue

__all__ = [
    "LEFT_SECONDS",
    "PUT_BACK_DESCRIPTION",
    "Row",
    "is_control",
    "is_reader",
    "open_reader",
    "owner_of",
    "position_of",
    "read_into",
    "read_messages",
    "reader_config",
    "rows_as_batch",
    "rows_of",
]

IDLE_SECONDS = 5.0  # the requested heartbeat; after three missed ones the consumer counts as lost
_FLOW_CONTROL = 100
_DESCRIPTION = "jsbackup reads this stream"
PUT_BACK_DESCRIPTION = "jsbackup puts messages back into this stream"
_OWNER = "jsbackup.repository"  # metadata key
# How long a reader exists without a listener: as long as a silent reader is waited for.
LEFT_SECONDS = 15.0
_ACK_TOKENS, _LONG_ACK_TOKENS = 9, 12  # of an ack subject; the long one has a domain and an account before the stream


def is_control(message: Message) -> bool:
    """Return whether this is flow control or a heartbeat. A stored message may look alike, but has a position."""
    if message.data or not message.headers or (message.reply or "").count(".") >= _ACK_TOKENS - 1:
        return False
    status = parse_status(message.headers)
    return status is not None and status.code == _FLOW_CONTROL


def is_reader(config: JsonObject) -> bool:
    """Return whether a consumer with this configuration is one of ours: a killed run leaves it behind for a while."""
    ours = config.get("description") in (_DESCRIPTION, PUT_BACK_DESCRIPTION)
    return ours and not config.get("durable_name")


def owner_of(config: JsonObject) -> str | None:
    """Return the repository that a reader of ours was created for, if it is recorded."""
    if not is_reader(config):
        return None
    owner = (config.get("metadata") or {}).get(_OWNER)
    return owner if isinstance(owner, str) else None


def reader_config(inbox: str, first: int, idle_seconds: float, owner: str = "") -> JsonObject:
    """Return the configuration of a reader: delivers to `inbox` from sequence `first` on, with heartbeats when idle.

    `owner` is the id of its repository, by which a left reader is recognized.
    """
    config = {
        "name": inbox.replace(".", "-"),
        "description": _DESCRIPTION,
        "deliver_subject": inbox,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": first,
        "replay_policy": "instant",
        "ack_policy": "none",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "flow_control": True,
        "idle_heartbeat": int(idle_seconds * 1e9),
        "inactive_threshold": int(LEFT_SECONDS * 1e9),
    }
    return {**config, "metadata": {_OWNER: owner}} if owner else config


class MessagePosition(NamedTuple):
    """The position of a delivered message: its sequence and store time in the stream, the number of its delivery by the
    consumer, from 1, and how many messages are pending after it.
    """

    sequence: int
    delivery: int
    timestamp_ns: int
    pending: int


def position_of(stream: str, reply: str) -> MessagePosition:
    """Parse the ack subject of a delivered message. Raises FormatError for anything else."""
    tokens = reply.split(".")
    if len(tokens) >= _LONG_ACK_TOKENS - 1:
        tokens = tokens[4:]
    elif len(tokens) == _ACK_TOKENS:
        tokens = tokens[2:]
    else:
        raise FormatError(f"reading {stream}: a message without its position")
    try:
        return MessagePosition(int(tokens[3]), int(tokens[4]), int(tokens[5]), int(tokens[6]))
    except ValueError as error:
        raise FormatError(f"reading {stream}: a message without a valid position") from error


READ_BYTES = 4 * 1024 * 1024
_IDLE_BEATS = 4  # heartbeats without a message, while some are pending, after which the server counts as stuck
_ASK_SECONDS = 0.2  # of silence, after which a consumer that seems to have nothing left is queried
_GETS_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class Row:
    """One message, with the fields of a batch."""

    sequence: int
    timestamp_ns: int
    subject: bytes
    headers: bytes | None
    data: bytes


async def read_messages(
    js: JetStream,
    info: StreamInfo,
    advance: Advance,
    *,
    first: int = 0,
    last: int | None = None,
    only: JsonObject | None = None,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield batches of the stream's messages, in order: from `first` to `last`, or to the end of `info.state`.

    Sequences that `info` lists as deleted may be skipped. `only` are fields for the configuration of the consumer, such
    as `filter_subjects` and `headers_only`: less may be read then, but need not be.

    Raises NatsError, FormatError, UnsupportedError.
    """
    if not info.state.messages:
        return
    first = max(first, info.state.first_seq)
    last = info.state.last_seq if last is None else min(last, info.state.last_seq)
    async with (
        open_reader(js, info, advance, first=first, only=only) as reader,
        aclosing(reader.read(info, first, last)) as batches,
    ):
        async for batch in batches:
            yield batch


async def read_into(
    js: JetStream,
    info: StreamInfo,
    add: Callable[[pa.RecordBatch], None],
    advance: Advance,
    *,
    first: int = 0,
    last: int | None = None,
) -> int:
    """Pass each batch to `add`, in a thread; return the number of messages. Raises the errors of `read_messages` and
    `add`.
    """
    messages = 0
    async with aclosing(read_messages(js, info, advance, first=first, last=last)) as batches:
        async for batch in batches:
            await in_thread(add, batch)
            messages += batch.num_rows
    return messages


@asynccontextmanager
async def open_reader(
    js: JetStream, info: StreamInfo, advance: Advance, *, first: int, only: JsonObject | None = None
) -> AsyncIterator[_ConsumerReader | _GetReader]:
    """Yield a reader (`StreamReader`) of the stream that begins at the sequence `first`; `only` is as for
    `read_messages`. Raises NatsError.
    """
    inbox = js.link.new_inbox()
    consumer = await _try_consumer(js, info, {**reader_config(inbox, first, IDLE_SECONDS), **(only or {})})
    if consumer is None:
        yield _GetReader(js, info.name, advance)
        return
    async with js.link.subscribe(inbox) as subscription:
        try:
            yield _ConsumerReader(js, info, advance, subscription, consumer=consumer, first=first)
        finally:
            with suppress(NatsError):  # then it expires
                await js.delete_consumer(info.name, consumer.name)


async def _batched(rows: AsyncGenerator[Row, None], advance: Advance) -> AsyncGenerator[pa.RecordBatch, None]:
    batch: list[Row] = []
    size = 0
    async with aclosing(rows):
        async for row in rows:
            batch.append(row)
            size += len(row.subject) + len(row.headers or b"") + len(row.data) + 16
            if size >= READ_BYTES:
                advance(size, len(batch))
                yield rows_as_batch(batch)
                batch, size = [], 0
    if batch:
        advance(size, len(batch))
        yield rows_as_batch(batch)


def rows_as_batch(rows: list[Row]) -> pa.RecordBatch:
    """Return a message batch. Raises FormatError for an invalid sequence or time."""
    schema = BATCH_SCHEMA
    subjects: list[bytes] | list[str] = [row.subject for row in rows]
    try:
        subjects = [row.subject.decode() for row in rows]
    except UnicodeDecodeError:
        schema = BINARY_SUBJECT_SCHEMA
    try:
        return pa.RecordBatch.from_arrays(_columns(rows, subjects, schema), schema=schema)
    except (OverflowError, pa.ArrowInvalid) as error:
        raise FormatError("a message has no valid sequence or time") from error


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """Yield the messages of a batch. A server treats no header block and an empty one alike."""
    for sequence, timestamp, subject, headers, data in zip(*(c.to_pylist() for c in batch.columns), strict=True):
        encoded = subject.encode() if isinstance(subject, str) else subject
        yield Row(sequence, timestamp, encoded, headers or None, data)


def _columns(rows: list[Row], subjects: list[bytes] | list[str], schema: pa.Schema) -> list[pa.Array]:
    return [
        pa.array([row.sequence for row in rows], pa.int64()),
        pa.array([row.timestamp_ns for row in rows], pa.int64()),
        pa.array(subjects, schema.field("subject").type),
        pa.array([row.headers for row in rows], pa.binary()),
        pa.array([row.data for row in rows], pa.binary()),
    ]


class _GetReader:
    """Requests each message."""

    def __init__(self, js: JetStream, stream: str, advance: Advance) -> None:
        self._js = js
        self._stream = stream
        self._advance = advance

    def read(self, info: StreamInfo, first: int, last: int) -> AsyncGenerator[pa.RecordBatch, None]:
        return _batched(self._rows(info, first, last), self._advance)

    def passed(self, last: int) -> int:
        return last

    async def _rows(self, info: StreamInfo, first: int, last: int) -> AsyncGenerator[Row, None]:
        deleted = SequenceSet(info.deleted or ())
        first = max(first, info.state.first_seq)
        sequences = (sequence for sequence in range(first, last + 1) if sequence not in deleted)
        while wanted := list(islice(sequences, _GETS_AT_ONCE)):
            for message in await asyncio.gather(*(self._js.message(self._stream, sequence) for sequence in wanted)):
                if message is None:
                    continue
                if "\ufffd" in message.subject:
                    raise UnsupportedError(
                        f"the subject of message {message.sequence} is not UTF-8, and cannot be read exactly on its own"
                    )
                yield Row(
                    message.sequence, message.timestamp_ns, message.subject.encode(), message.headers, message.data
                )


async def _try_consumer(js: JetStream, info: StreamInfo, config: JsonObject) -> ConsumerInfo | None:
    """Create a consumer, which delivers once someone listens; None if it would interfere or is not allowed."""
    if is_queue(info.config):
        return None
    try:
        return await js.create_consumer(info.name, config)
    except (ApiError, NatsPermissionDenied):  # limits on consumers, such as max_consumers or consumer_limits
        return None


class _ConsumerReader:
    """Reads what a consumer of ours delivers.

    The server sends with each message how many are pending. That is exact for messages that existed when the consumer
    was created. The consumer learns of later ones a moment after they are stored, so it is queried after some silence.
    """

    def __init__(
        self,
        js: JetStream,
        info: StreamInfo,
        advance: Advance,
        subscription: Subscription,
        *,
        consumer: ConsumerInfo,
        first: int,
    ) -> None:
        self._js = js
        self._stream = info.name
        self._advance = advance
        self._subscription = subscription
        self._consumer = consumer.name
        self._known_to = info.state.last_seq  # the stream's end when the consumer was created
        self._left = consumer.num_pending
        self._at = first - 1
        self._ahead: Row | None = None  # arrived, but is beyond the requested end

    def read(self, _info: StreamInfo, _first: int, last: int) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the next messages, up to `last`: each message is yielded once."""
        return _batched(self._rows(last), self._advance)

    def passed(self, last: int) -> int:
        return last if self._ahead is not None or (not self._left and last <= self._known_to) else self._at

    async def _rows(self, last: int) -> AsyncGenerator[Row, None]:
        while self._at < last:
            if self._ahead is None:
                if not self._left and last <= self._known_to:
                    return
                self._ahead = await self._receive()
                if self._ahead is None:
                    return
            if self._ahead.sequence > last:
                return
            row, self._ahead = self._ahead, None
            self._at = row.sequence
            yield row

    async def _receive(self) -> Row | None:
        """Return the next message, None if there is none for now."""
        silent, idle = 0.0, 0
        while True:
            try:
                message = await self._subscription.next(_ASK_SECONDS if not self._left else IDLE_SECONDS)
            except NatsTimeout as error:
                if self._left:
                    silent += IDLE_SECONDS
                elif await self._is_done():
                    return None
                else:
                    silent += _ASK_SECONDS
                if silent >= 3 * IDLE_SECONDS:
                    raise TransferError(f"reading {self._stream}: its consumer went silent") from error
                continue
            if is_control(message):
                silent = 0.0
                if message.reply:
                    await self._subscription.publish(message.reply)
                elif await self._is_done():  # idle: the messages that were pending have been deleted
                    return None
                else:
                    idle += 1
                if idle == _IDLE_BEATS:
                    raise TransferError(
                        f"reading {self._stream}: its consumer delivers nothing after sequence {self._at}, although "
                        f"{self._left} messages are pending",
                        hint="The server may not be able to read its own store; look at its log.",
                    )
                continue
            row, self._left = _row_of(self._stream, message, self._at)
            return row

    async def _is_done(self) -> bool:
        """Return whether everything was delivered and received. Assumed if the user may not query the consumer."""
        try:
            consumer = await self._js.consumer(self._stream, self._consumer)
        except NatsPermissionDenied:
            return True
        return consumer.num_pending == 0 and consumer.delivered.stream <= self._at


def _row_of(stream: str, message: Message, last: int) -> tuple[Row, int]:
    """Return a delivered message, and how many are pending after it."""
    at = position_of(stream, message.reply or "")
    if at.sequence <= last:
        raise TransferError(f"reading {stream}: sequence {at.sequence} came after {last}")
    subject = message.subject.encode("utf-8", "surrogateescape")
    return Row(at.sequence, at.timestamp_ns, subject, message.headers or None, message.data), at.pending
