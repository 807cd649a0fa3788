"""Read back which rows of a write or a micro-batch a stream has, by the ids in the headers of its messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.consume import read_messages
from jsbackup.protocol.info import StreamInfo
from jsbackup.putting_back.batch_ids import BatchId
from jsbackup.putting_back.headers import id_beginning_with

__all__ = ["count_ids", "rows_of_batch"]

# Messages that are read at first, and how many times more after each part in which there is no older batch. Often the
# last message of the stream is of the batch before.
_FIRST_MESSAGES, _TIMES_MORE = 1, 64


async def count_ids(js: JetStream, info: StreamInfo, prefix: bytes, *, first: int) -> int:
    """Return how many messages from a sequence on have ids with this prefix. Raises NatsError."""
    count = 0
    async with aclosing(_ids_between(js, info, prefix, first=first, last=info.state.last_seq)) as ids:
        async for _ in ids:
            count += 1
    return count


async def rows_of_batch(
    js: JetStream, info: StreamInfo, batch: BatchId, *, first: int = 0, last: int = 0
) -> AsyncGenerator[tuple[bytes, int], None]:
    """Yield the ids and sequences of the messages that a batch has stored from sequence `first` to `last`, or to the
    end of `info.state`.

    Reads backwards, and only as far as the last message of an earlier batch of the query: a batch begins when the
    earlier ones are complete. Raises NatsError.
    """
    prefix, at_once = batch.query_prefix.encode(), _FIRST_MESSAGES
    first = max(first, info.state.first_seq)
    last = min(last or info.state.last_seq, info.state.last_seq)
    while info.state.messages and first <= last:
        begin = max(last - at_once + 1, first)
        reached_earlier = False
        async with aclosing(_ids_between(js, info, prefix, first=begin, last=last)) as ids:
            async for row_id, sequence in ids:
                number = batch.number_in(row_id)
                if number == batch.number:
                    yield row_id, sequence
                reached_earlier |= number is not None and number < batch.number
        if reached_earlier:
            return
        last, at_once = begin - 1, at_once * _TIMES_MORE


async def _ids_between(
    js: JetStream, info: StreamInfo, prefix: bytes, *, first: int, last: int
) -> AsyncGenerator[tuple[bytes, int], None]:
    """Yield ids with this prefix, and the sequences of their messages, in order."""
    if first == last:
        message = await js.message(info.name, first)
        if message is not None and (found := id_beginning_with(prefix, message.headers)):
            yield found, first
        return
    messages = read_messages(js, info, lambda _size, _count: None, first=first, last=last, only={"headers_only": True})
    async with aclosing(messages) as batches:
        async for batch in batches:
            columns = (batch.column(name).to_pylist() for name in ("headers", "sequence"))
            for block, sequence in zip(*columns, strict=True):
                if found := id_beginning_with(prefix, block):
                    yield found, sequence
