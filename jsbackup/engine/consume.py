"""Read a stream message by message, where no snapshot can be had: memory streams on servers before 2.15.

Two ways, both give sequences, timestamps, subjects, raw headers and payloads exactly:

- a push consumer without acknowledgements, with the server's flow control (M: 208,000 messages a second);
- for work-queue and interest streams, where a consumer of ours would change what is kept, one STREAM.MSG.GET for each
  sequence, many on the way at once (M: about 15,000 a second).

The end is where the stream ended when reading began. Messages that go meanwhile are simply not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pyarrow as pa

from jsbackup.engine.capture import Advance
from jsbackup.engine.jetstream import JetStream
from jsbackup.errors import ApiError, FormatError, NatsPermissionDenied, NatsTimeout, TransferError
from jsbackup.formats.batch import BATCH_SCHEMA, BINARY_SUBJECT_SCHEMA
from jsbackup.model import JsonObject
from jsbackup.protocol.events import Message
from jsbackup.protocol.headers import parse_status
from jsbackup.protocol.info import ConsumerInfo, StreamInfo

__all__ = ["read_messages"]

BATCH_BYTES = 4 * 1024 * 1024
_IDLE_SECONDS = 5.0  # the heartbeat asked for; three missed ones mean that the consumer is gone
_GETS_AT_ONCE = 128
_FLOW_CONTROL = 100
_ACK_TOKENS, _LONG_ACK_TOKENS = 9, 12  # of an ack subject; the long one has a domain and an account before the stream


@dataclass(frozen=True, slots=True)
class _Row:
    sequence: int
    timestamp_ns: int
    subject: bytes
    headers: bytes | None
    data: bytes


async def read_messages(js: JetStream, info: StreamInfo, advance: Advance) -> AsyncIterator[pa.RecordBatch]:
    """Message batches of the stream up to `info.state.last_seq`, in order. Raises NatsError and TransferError."""
    if not info.state.messages:
        return
    inbox = js.link.new_inbox()
    consumer = await _try_consumer(js, info, inbox)
    rows = _get_each(js, info) if consumer is None else _consume(js, info, inbox, consumer)
    batch: list[_Row] = []
    size = 0
    async for row in rows:
        batch.append(row)
        size += len(row.subject) + len(row.headers or b"") + len(row.data) + 16
        if size >= BATCH_BYTES:
            advance(size, len(batch))
            yield _as_batch(batch)
            batch, size = [], 0
    if batch:
        advance(size, len(batch))
        yield _as_batch(batch)


def _as_batch(rows: list[_Row]) -> pa.RecordBatch:
    schema = BATCH_SCHEMA
    subjects: list[bytes] | list[str] = [row.subject for row in rows]
    try:
        subjects = [row.subject.decode() for row in rows]
    except UnicodeDecodeError:
        schema = BINARY_SUBJECT_SCHEMA
    columns = [
        pa.array([row.sequence for row in rows], pa.int64()),
        pa.array([row.timestamp_ns for row in rows], pa.int64()),
        pa.array(subjects, schema.field("subject").type),
        pa.array([row.headers for row in rows], pa.binary()),
        pa.array([row.data for row in rows], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


async def _get_each(js: JetStream, info: StreamInfo) -> AsyncIterator[_Row]:
    sequences = range(info.state.first_seq, info.state.last_seq + 1)
    for start in range(0, len(sequences), _GETS_AT_ONCE):
        wanted = sequences[start : start + _GETS_AT_ONCE]
        for message in await asyncio.gather(*(js.message(info.name, sequence) for sequence in wanted)):
            if message is not None:
                yield _Row(
                    message.sequence, message.timestamp_ns, message.subject.encode(), message.headers, message.data
                )


async def _try_consumer(js: JetStream, info: StreamInfo, inbox: str) -> ConsumerInfo | None:
    """A consumer of ours, which delivers as soon as somebody listens; None where it would disturb or is not allowed."""
    if info.config.get("retention", "limits") != "limits":
        return None
    try:
        return await js.create_consumer(info.name, _consumer_config(inbox))
    except (ApiError, NatsPermissionDenied):  # limits on consumers, such as max_consumers or consumer_limits
        return None


async def _consume(js: JetStream, info: StreamInfo, inbox: str, consumer: ConsumerInfo) -> AsyncIterator[_Row]:
    async with js.link.subscribe(inbox) as subscription:
        try:
            left = consumer.num_pending
            last = 0
            while left > 0 and last < info.state.last_seq:
                try:
                    message = await subscription.next(3 * _IDLE_SECONDS)
                except NatsTimeout as error:
                    raise TransferError(f"reading {info.name}: its consumer went silent") from error
                status = parse_status(message.headers) if message.headers and not message.data else None
                if status is not None and status.code == _FLOW_CONTROL:
                    if message.reply:
                        await subscription.publish(message.reply)
                    elif (await js.consumer(info.name, consumer.name)).num_pending == 0:
                        return  # idle: what was still to come has been deleted
                    continue
                row, left = _row_of(info.name, message, last)
                if row.sequence > info.state.last_seq:
                    return
                last = row.sequence
                yield row
        finally:
            await js.delete_consumer(info.name, consumer.name)


def _consumer_config(inbox: str) -> JsonObject:
    return {
        "name": inbox.replace(".", "-"),
        "description": "jsbackup reads this stream",
        "deliver_subject": inbox,
        "deliver_policy": "all",
        "replay_policy": "instant",
        "ack_policy": "none",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "flow_control": True,
        "idle_heartbeat": int(_IDLE_SECONDS * 1e9),
        "inactive_threshold": int(60 * 1e9),
    }


def _row_of(stream: str, message: Message, last: int) -> tuple[_Row, int]:
    """A delivered message, and how many are to come after it; both told by its ack subject."""
    tokens = (message.reply or "").split(".")
    if len(tokens) >= _LONG_ACK_TOKENS - 1:
        tokens = tokens[4:]
    elif len(tokens) == _ACK_TOKENS:
        tokens = tokens[2:]
    else:
        raise FormatError(f"reading {stream}: a message without its position")
    try:
        sequence, timestamp_ns, pending = int(tokens[3]), int(tokens[5]), int(tokens[6])
    except ValueError as error:
        raise FormatError(f"reading {stream}: a message with a position that is none") from error
    if sequence <= last:
        raise TransferError(f"reading {stream}: sequence {sequence} came after {last}")
    subject = message.subject.encode("utf-8", "surrogateescape")
    return _Row(sequence, timestamp_ns, subject, message.headers or None, message.data), pending
