"""Read a stream message by message: the new ones, or all if no snapshot can be made.

Two ways:

- a push consumer without acknowledgements, with the server's flow control, delivers everything exactly as it is stored;
- for work-queue and interest streams, where a consumer of ours would change what is kept, one STREAM.MSG.GET for each
  sequence, many at once. It returns everything exactly, except for subjects that are not UTF-8, which have U+FFFD in
  place of the invalid bytes.

Direct gets cannot be used, although they come in batches: the headers that they add cannot be removed reliably (a
message without headers and one with an empty header block look the same), and a replica that lags may answer.

Reads up to the stream's end when reading began. Messages deleted meanwhile are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.subscription import Subscription
from jsbackup.engine.link.threads import in_thread
from jsbackup.engine.read.reader_consumer import IDLE_SECONDS, is_control, position_of, reader_config
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
from jsbackup.protocol.events import Message
from jsbackup.protocol.info import ConsumerInfo, StreamInfo

__all__ = ["Row", "open_reader", "read_into", "read_messages", "rows_as_batch"]

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
    """Yield a reader (`catch_up.py`) of the stream that begins at the sequence `first`; `only` as for `read_messages`.
    Raises NatsError.
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
    if info.config.get("retention", "limits") != "limits":
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
