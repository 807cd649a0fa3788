"""Read messages that a server may not be able to read, around those that it cannot.

A consumer stops at a block that the server cannot read, so each message is requested by its sequence, many at once. One
that the server counts as present and does not return is unreadable: "no message found" is all that it says. It is
requested again, because a server that finds damage rebuilds what it knows of the block, and meanwhile denies others.

Where nothing can be read, this has to be fast:

- When a server has rebuilt a block, it counts the lost messages as deleted. So after some failures the stream is asked
  for again, and these are not requested one by one.
- Otherwise each request may cost as much as reading the block. If that is slow, the next readable message is looked for
  in growing steps, then between the last two. What was passed over is reported as not tried.

Where many messages in a row could be read, a consumer reads on, until it is stuck.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from copy import copy
from itertools import accumulate

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.engine.link.jetstream import MAX_DELETED, JetStream
from jsbackup.engine.read.consume import Row, read_messages, rows_as_batch
from jsbackup.engine.read.snapshot_transfer import Advance
from jsbackup.errors import ApiError, FormatError, NatsTimeout, TransferError
from jsbackup.formats.batch import BINARY_SUBJECT_SCHEMA
from jsbackup.formats.segment import drop_sequences
from jsbackup.formats.sequences import SequenceSet
from jsbackup.protocol.info import StreamInfo

__all__ = ["AroundDamage", "SequenceRanges", "merged"]

_AT_ONCE = 128
# A window of requests that all fail is slow if one of them takes longer than this on average.
_SLOW_SECONDS = 0.004
# After so many messages in a row a consumer reads on, if at least as many follow.
_SOUND = 5_000
_BATCH_BYTES = 4 << 20
_UNREADABLE = "the server cannot read them"
_DROPPED = "the server dropped them when it found the damage"
_NOT_TRIED = "the server cannot read messages around them; they were not tried one by one"


class SequenceRanges:
    """Sequences as ranges in rising order, counted. What is cut off the front is not copied."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges = ranges
        self._ends = list(accumulate(last - first + 1 for first, last in ranges))
        self._start = 0

    def __len__(self) -> int:
        return self._ends[-1] - self._start if self._ends else 0

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(index)
        at = bisect_right(self._ends, self._start + index)
        return self._ranges[at][1] - (self._ends[at] - 1 - self._start - index)

    def __iter__(self) -> Iterator[int]:
        return (one for first, last in self.between(0, len(self)) for one in range(first, last + 1))

    def from_index(self, index: int) -> SequenceRanges:
        """Return the sequences from the `index`-th on."""
        rest = copy(self)
        rest._start = min(self._start + index, self._ends[-1] if self._ends else 0)
        return rest

    def count_to(self, sequence: int) -> int:
        """Return how many of them are up to this sequence."""
        at = bisect_right(self._ranges, sequence, key=lambda one: one[0])
        if not at:
            return 0
        _, last = self._ranges[at - 1]
        return max(0, self._ends[at - 1] - max(0, last - sequence) - self._start)

    def between(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges from the `start`-th sequence to before the `stop`-th."""
        while start < stop:
            at = bisect_right(self._ends, self._start + start)
            first = self[start]
            last = min(self._ranges[at][1], first + stop - start - 1)
            yield first, last
            start += last - first + 1

    def without(self, deleted: SequenceSet) -> tuple[SequenceRanges, list[tuple[int, int]]]:
        """Return the sequences that are not deleted, and the ranges of those that are."""
        left: list[tuple[int, int]] = []
        gone: list[tuple[int, int]] = []
        for first, last in self.between(0, len(self)):
            at = first
            for sequence in deleted.within(first, last):
                if sequence > at:
                    left.append((at, sequence - 1))
                if gone and gone[-1][1] == sequence - 1:
                    gone[-1] = gone[-1][0], sequence
                else:
                    gone.append((sequence, sequence))
                at = sequence + 1
            if at <= last:
                left.append((at, last))
        return SequenceRanges(left), gone


class AroundDamage:
    """Reads a stream's messages by their sequences. `unread` are the ranges that could not be read, and why."""

    def __init__(
        self, js: JetStream, info: StreamInfo, advance: Advance, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._js = js
        self._info = info
        self._advance = advance
        self._clock = clock
        self._sound = 0  # messages in a row that could be read
        self._asked = False  # for the stream, since a message could be read
        self.unread: list[tuple[int, int, str]] = []

    async def read(self, wanted: SequenceRanges) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the messages of these sequences that can be read, in order. Raises NatsError if the server is gone."""
        rows: list[Row] = []
        size = 0
        while wanted:
            if self._sound >= _SOUND and _is_dense(wanted):
                if rows:
                    yield self._batch(rows)
                    rows, size = [], 0
                async with aclosing(self._read_on(wanted)) as batches:
                    async for batch, rest in batches:
                        wanted = rest
                        yield batch
                self._sound = 0
                continue
            found, wanted = await self._window(wanted)
            rows += found
            size += sum(len(row.data) + len(row.headers or b"") for row in found)
            if size >= _BATCH_BYTES:
                yield self._batch(rows)
                rows, size = [], 0
        if rows:
            yield self._batch(rows)

    def _batch(self, rows: list[Row]) -> pa.RecordBatch:
        batch = rows_as_batch(rows)
        self._advance(batch.nbytes, batch.num_rows)
        return batch

    async def _window(self, wanted: SequenceRanges) -> tuple[list[Row], SequenceRanges]:
        """Request the next messages; return those that came, and what is still wanted."""
        count = min(_AT_ONCE, len(wanted))
        sequences = [wanted[index] for index in range(count)]
        began = self._clock()
        rows = await self._get(sequences)
        seconds = self._clock() - began
        if rows:
            rows |= await self._get([sequence for sequence in sequences if sequence not in rows])
            self._note([sequence for sequence in sequences if sequence not in rows], _UNREADABLE)
            self._sound = self._sound + count if len(rows) == count else 0
            self._asked = False
            return [rows[sequence] for sequence in sorted(rows)], wanted.from_index(count)
        self._sound = 0
        if not self._asked:
            self._asked = True
            return [], await self._without_dropped(wanted)
        self._note(sequences, _UNREADABLE)
        if seconds < _SLOW_SECONDS * count:
            return [], wanted.from_index(count)
        return [], await self._skip(wanted, count)

    async def _get(self, sequences: Sequence[int]) -> dict[int, Row]:
        found = await asyncio.gather(*map(self._one, sequences))
        return {row.sequence: row for row in found if row is not None}

    async def _one(self, sequence: int) -> Row | None:
        try:
            message = await self._js.message(self._info.name, sequence)
        except (ApiError, FormatError, NatsTimeout):
            return None
        if message is None or "\ufffd" in message.subject:  # bytes that are not UTF-8 are not answered
            return None
        return Row(sequence, message.timestamp_ns, message.subject.encode(), message.headers, message.data)

    async def _without_dropped(self, wanted: SequenceRanges) -> SequenceRanges:
        """Ask for the stream, and do without what it calls deleted by now."""
        info = await self._js.stream(self._info.name)
        if not 0 < info.state.deleted <= MAX_DELETED:
            return wanted
        info = await self._js.stream(self._info.name, deleted_details=True)
        left, gone = wanted.without(SequenceSet(info.deleted or ()))
        self.unread += [(first, last, _DROPPED) for first, last in gone]
        return left

    async def _skip(self, wanted: SequenceRanges, failed: int) -> SequenceRanges:
        """Look for the next readable message behind the `failed` ones; return what is wanted from there on."""
        low, step, end = failed - 1, _AT_ONCE, len(wanted)
        high = end
        while low + step < end:
            if await self._is_readable(wanted[low + step]):
                high = low + step
                break
            low, step = low + step, 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            if await self._is_readable(wanted[middle]):
                high = middle
            else:
                low = middle
        self.unread += [(first, last, _NOT_TRIED) for first, last in wanted.between(failed, high)]
        return wanted.from_index(high)

    async def _is_readable(self, sequence: int) -> bool:
        return await self._one(sequence) is not None

    def _note(self, sequences: Sequence[int], why: str) -> None:
        for sequence in sequences:
            if self.unread and self.unread[-1][1:] == (sequence - 1, why):
                self.unread[-1] = self.unread[-1][0], sequence, why
            else:
                self.unread.append((sequence, sequence, why))

    async def _read_on(self, wanted: SequenceRanges) -> AsyncGenerator[tuple[pa.RecordBatch, SequenceRanges], None]:
        """Yield what a consumer reads, with requests for what it passes over, and what is wanted behind that.

        Ends early if the consumer is stuck.
        """
        batches = read_messages(self._js, self._info, self._advance, first=wanted[0], last=wanted[len(wanted) - 1])
        with suppress(TransferError, NatsTimeout):
            async with aclosing(batches):
                async for batch in batches:
                    came = batch.column("sequence").to_pylist()
                    count = wanted.count_to(came[-1])
                    expected, wanted = [wanted[index] for index in range(count)], wanted.from_index(count)
                    passed = sorted(set(expected).difference(came))
                    kept = drop_sequences(batch, surplus) if (surplus := set(came).difference(expected)) else batch
                    yield await self._completed(kept, passed) if passed else kept, wanted

    async def _completed(self, batch: pa.RecordBatch, passed: Sequence[int]) -> pa.RecordBatch:
        rows = await self._get(passed)
        self._note([sequence for sequence in passed if sequence not in rows], _UNREADABLE)
        return merged([batch, self._batch([rows[one] for one in sorted(rows)])]) if rows else batch


def _is_dense(wanted: SequenceRanges) -> bool:
    """Return whether many of the next messages are wanted."""
    return len(wanted) > _SOUND and wanted[_SOUND] - wanted[0] < 8 * _SOUND


def merged(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the messages of all batches, in order of sequences."""
    if len({batch.schema for batch in batches}) > 1:
        batches = [batch.cast(BINARY_SUBJECT_SCHEMA) for batch in batches]
    table = pa.Table.from_batches(batches).combine_chunks()
    (batch,) = table.take(pc.sort_indices(table.column("sequence"))).combine_chunks().to_batches()
    return batch
