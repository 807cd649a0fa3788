"""The growing end of a stream: its new messages, held in memory until a backup has stored them.

A push consumer exists as long as the tail, so published messages arrive a moment later. It begins with the last message
of the last backup, identified by its sequence and its time to the nanosecond: if there is another one, the stream has
lost its end and continued with the same sequences (`increment.py` explains how), and the tail fails. Deliveries are
counted from 1 without a gap, so a consumer that was recreated by the server (a node that restarted) is noticed, and so
is one that skipped something. So the tail has all messages that the stream has had since; the server reports which of
them still exist, as for every increment.

Memory is bounded for all tails together (`Backlog`). A tail without room stops reading, which stops the server by its
flow control, and later messages stay there. Messages that a backup has stored are kept while there is room, because the
next backup may join them with new ones.

A tail whose connection is lost keeps its messages, and continues from there when it is resumed.

The last messages are held as they came, earlier ones in compressed pieces.

`Backlog` is the memory that all tails share: it says when there is enough for a backup.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

import pyarrow as pa

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.subscription import Subscription
from jsbackup.engine.read.consume import Row, is_control, position_of, read_messages, reader_config, rows_as_batch
from jsbackup.errors import DigestMismatch, JsBackupError, NatsError, NatsTimeout, TransferError
from jsbackup.formats.batch import PackedBatch, columns_from_batch
from jsbackup.progress import ignored
from jsbackup.protocol.info import StreamInfo

__all__ = ["Backlog", "Tail"]


class Backlog:
    """The memory of all tails: at most `limit_bytes`, and what the server has sent of each stream besides.

    `due` is set when `due_bytes` (raw) have arrived that no backup has.
    """

    def __init__(self, limit_bytes: int, due_bytes: int) -> None:
        self.due = asyncio.Event()
        self._limit_bytes = limit_bytes
        self._due_bytes = due_bytes
        self._tails: set[Tail] = set()
        self._changed = asyncio.Event()
        self.held_bytes = 0
        self._new_bytes = 0

    def enter(self, tail: Tail) -> None:
        self._tails.add(tail)

    def leave(self, tail: Tail) -> None:
        self._tails.discard(tail)
        self.changed()

    def changed(self) -> None:
        """Note that something was read or released."""
        self._changed.set()

    def count(self, held_bytes: int, new_bytes: int) -> None:
        """Note that tails hold so much more, or less, and that so much more of it is in no backup (raw)."""
        self.held_bytes += held_bytes
        self._new_bytes += new_bytes
        if self._new_bytes >= self._due_bytes:
            self.due.set()

    @property
    def full(self) -> bool:
        return self.held_bytes > self._limit_bytes

    async def room_for(self, tail: Tail) -> None:
        """Wait until there is room for more, or until nothing of `tail` is unread."""
        while tail.unread and self.full:
            # More than is needed now: the next message does not have to look for room again.
            enough = self._limit_bytes - self._limit_bytes // 8
            for other in self._tails:
                while self.held_bytes > enough and other.forget_one():
                    pass
            if self.held_bytes <= self._limit_bytes:
                return
            self.due.set()
            self._changed.clear()
            await self._changed.wait()


# Messages are compressed by pieces of this many, or of this many raw bytes; fewer only where there is no room.
_PIECE_MESSAGES = 8192
_PIECE_BYTES = 1 << 20
LEAST_PIECE_BYTES = 64 << 10
_ENTRY_BYTES = 16  # of a message besides its contents
ROW_BYTES = 250  # what its Python objects take besides


@dataclass(frozen=True, slots=True)
class Piece:
    """Messages up to sequence `last`, compressed."""

    last: int
    raw_bytes: int
    packed: PackedBatch


@dataclass(slots=True)
class Rows:
    """Messages that are not compressed yet."""

    rows: list[Row] = field(default_factory=list)
    raw_bytes: int = 0

    def add(self, row: Row) -> int:
        """Add a message, and return its raw bytes."""
        self.rows.append(row)
        size = _raw_bytes(row)
        self.raw_bytes += size
        return size

    def forget_to(self, sequence: int) -> None:
        """Remove the messages up to `sequence`."""
        self.raw_bytes = self.bytes_after(sequence)
        del self.rows[: self._count_to(sequence)]

    def bytes_after(self, sequence: int) -> int:
        """Return the raw bytes of the messages after `sequence`."""
        return sum(map(_raw_bytes, self.rows[self._count_to(sequence) :]))

    def _count_to(self, sequence: int) -> int:
        return bisect_right(self.rows, sequence, key=lambda row: row.sequence)

    @property
    def held_bytes(self) -> int:
        return self.raw_bytes + len(self.rows) * ROW_BYTES

    @property
    def full(self) -> bool:
        return self.raw_bytes >= _PIECE_BYTES or len(self.rows) >= _PIECE_MESSAGES

    def batch(self, first: int, last: int) -> pa.RecordBatch:
        """Return the messages from `first` to `last`. Raises FormatError for an invalid sequence or time."""
        return rows_as_batch(self.rows[self._count_to(first - 1) : self._count_to(last)])

    def packed(self) -> Piece:
        """Compress them. Raises FormatError as `batch`."""
        return Piece(self.rows[-1].sequence, self.raw_bytes, PackedBatch(rows_as_batch(self.rows)))


def _raw_bytes(row: Row) -> int:
    return len(row.subject) + len(row.headers or b"") + len(row.data) + _ENTRY_BYTES


# Heartbeats come twice in the time after which a consumer counts as lost.
_IDLE_SECONDS = 2.5
_SILENT_SECONDS = 6.0
# How long a tail waits for its first message, and how long for an expected message before it asks the server.
_BEGIN_SECONDS = 10.0
_ASK_SECONDS = 0.2


class Tail:
    """The end of `stream` after sequence `at`, whose message has the time `at_ns`. Begins to read at once.

    `owner` is the repository that it belongs to (`followed_stream.py`).
    """

    def __init__(self, js: JetStream, stream: str, at: int, at_ns: int, *, backlog: Backlog, owner: str = "") -> None:
        self.stream = stream
        self.at, self.at_ns = at, at_ns  # the last message that arrived
        self._js = js
        self._owner = owner
        self._base = at  # everything after it is here
        self._needed_from = at + 1  # what has to stay; earlier messages may be released
        self._new_bytes = 0  # raw bytes that no backup has
        self._pieces: deque[Piece] = deque()
        self._rows = Rows()
        self._changed = asyncio.Event()
        self._failure: JsBackupError | None = None
        self._begun = False
        self.consumer = ""  # its name, once it has one
        self._wanted = False  # someone is waiting for messages
        self._backlog = backlog
        backlog.enter(self)
        self._task = asyncio.create_task(self._run())

    # --- used by the backlog ---

    @property
    def held_bytes(self) -> int:
        return sum(piece.packed.size for piece in self._pieces) + self._rows.held_bytes

    @property
    def unread(self) -> bool:
        return self._base < self.at and self.at >= self._needed_from

    def forget_one(self) -> bool:
        """Release the oldest piece, or the oldest messages, if possible."""
        if not self._pieces:
            return self._forget_rows(self._needed_from - 1)
        if self._pieces[0].last >= self._needed_from:
            return False
        piece = self._pieces.popleft()
        self._base = piece.last
        self._backlog.count(-piece.packed.size, 0)
        return True

    def _forget_rows(self, sequence: int) -> bool:
        """Release the messages up to `sequence` that no piece has; False if there are none."""
        if not self._rows.rows or self._rows.rows[0].sequence > sequence:
            return False
        before = self._rows.held_bytes
        self._rows.forget_to(sequence)
        self._base = min(sequence, self.at)
        self._backlog.count(self._rows.held_bytes - before, 0)
        return True

    # --- used by a backup ---

    async def begun(self) -> None:
        """Wait until it has proved to continue the stream. Resumes it after a failure.

        Raises:
            DigestMismatch: the stream has lost its end, or may have; this tail cannot be used.
            NatsError: it cannot be read now, or not by a consumer.
        """
        if isinstance(self._failure, TransferError | NatsTimeout):
            await asyncio.wait({self._task})
            self._failure, self._begun = None, False
            self._task = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(_BEGIN_SECONDS):
                while not self._begun:
                    await self._change()
        except TimeoutError:
            raise DigestMismatch(f"sequence {self.at} of {self.stream} was not delivered") from None

    async def read(self, info: StreamInfo, first: int, last: int) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the messages from `first` to `last` as they arrive. `info` must include `last`. Raises NatsError."""
        self._needed_from = first
        if first <= self._base:
            base = min(last, self._base)
            async with aclosing(read_messages(self._js, info, ignored, first=first, last=base)) as batches:
                async for batch in batches:
                    yield batch
            first = base + 1
        while first <= last:
            self._needed_from = first
            self._backlog.changed()
            if self.at < first and not await self._more(last):
                break
            piece = next((piece for piece in self._pieces if piece.last >= first), None)
            if piece is None:
                batch = self._rows.batch(first, last)
                first = self.at + 1
            else:
                batch = _within(piece.packed.unpack(), first, last)
                first = piece.last + 1
            if batch.num_rows:
                yield batch
        self._needed_from = last + 1
        self._backlog.changed()

    def passed(self, last: int) -> int:
        """Return up to where, at most `last`, everything has arrived."""
        return min(self.at, last)

    def settle(self, taken_to: int, keep_from: int) -> None:
        """Note that a backup has everything up to `taken_to`; messages from `keep_from` on may be needed again."""
        self._needed_from = taken_to + 1
        keep_from = min(keep_from, self._needed_from)
        while self._pieces and self._pieces[0].last < keep_from and self.forget_one():
            pass
        if not self._pieces:
            self._forget_rows(keep_from - 1)
        new_bytes = sum(piece.raw_bytes for piece in self._pieces if piece.last > taken_to)
        new_bytes += self._rows.bytes_after(taken_to)
        self._backlog.count(0, new_bytes - self._new_bytes)
        self._new_bytes = new_bytes
        self._backlog.changed()

    async def close(self) -> None:
        self._backlog.leave(self)
        self._backlog.count(-self.held_bytes, -self._new_bytes)
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _change(self) -> None:
        """Wait for something to happen. Raises the tail's failure."""
        if self._failure is not None:
            raise self._failure
        self._changed.clear()
        await self._changed.wait()
        if self._failure is not None:
            raise self._failure

    async def _more(self, last: int) -> bool:
        """Wait for more messages. Returns False if there are no more up to `last`, because they were deleted."""
        at = start = self.at
        packed = self._packed_to
        waited = 0.0
        self._wanted = True
        try:
            while self.at < last and self._packed_to == packed:
                try:
                    async with asyncio.timeout(_ASK_SECONDS):
                        await self._change()
                except TimeoutError:
                    consumer = await self._js.consumer(self.stream, self.consumer)
                    if consumer.num_pending == 0 and consumer.delivered.stream <= self.at:
                        return self.at > start
                    waited = waited + _ASK_SECONDS if self.at == at else 0.0
                    at = self.at
                    if waited > _SILENT_SECONDS:
                        raise TransferError(f"following {self.stream}: its consumer has stopped") from None
            return True
        finally:
            self._wanted = False

    @property
    def _packed_to(self) -> int:
        return self._pieces[-1].last if self._pieces else self._base

    # --- receiving ---

    async def _run(self) -> None:
        try:
            async with self._js.link.subscribe(self._js.link.new_inbox()) as subscription:
                if self.consumer:  # of the lost connection
                    with suppress(NatsError):
                        await self._js.delete_consumer(self.stream, self.consumer)
                config = reader_config(subscription.subject, self.at, _IDLE_SECONDS, self._owner)
                making = asyncio.create_task(self._js.create_consumer(self.stream, config))
                try:
                    self.consumer = (await asyncio.shield(making)).name
                    await self._receive(subscription)
                finally:
                    await asyncio.wait({making})  # if this is cancelled meanwhile, the server makes it nevertheless
                    if making.exception() is None and self._js.link.connected:  # else it expires
                        with suppress(NatsError):
                            await self._js.delete_consumer(self.stream, making.result().name)
        except JsBackupError as error:
            self._failure = error
        finally:
            self._changed.set()

    async def _receive(self, subscription: Subscription) -> None:
        deliveries = 0
        while True:
            message = subscription.next_nowait()
            if message is None:
                if self._wanted:
                    self._changed.set()
                try:
                    message = await subscription.next(_SILENT_SECONDS)
                except NatsTimeout as error:
                    raise TransferError(f"following {self.stream}: its consumer went silent") from error
            if is_control(message):
                if message.reply:
                    await subscription.publish(message.reply)
                continue
            at = position_of(self.stream, message.reply or "")
            deliveries += 1
            if at.delivery != deliveries:
                raise TransferError(f"following {self.stream}: delivery {at.delivery} came as number {deliveries}")
            if not self._begun:
                if (at.sequence, at.timestamp_ns) != (self.at, self.at_ns):
                    raise DigestMismatch(f"sequence {self.at} of {self.stream} is not there, or not what it was")
                self._begun = True
                self._changed.set()
                continue
            if at.sequence <= self.at:
                raise TransferError(f"following {self.stream}: sequence {at.sequence} came after {self.at}")
            self.at, self.at_ns = at.sequence, at.timestamp_ns
            subject = message.subject.encode("utf-8", "surrogateescape")
            row = Row(at.sequence, at.timestamp_ns, subject, message.headers or None, message.data)
            size = self._rows.add(row)
            self._new_bytes += size
            self._backlog.count(size + ROW_BYTES, size)
            if self._rows.full:
                self._pack()
            if self._backlog.full:
                if self._rows.raw_bytes >= LEAST_PIECE_BYTES:
                    self._pack()
                await self._backlog.room_for(self)

    def _pack(self) -> None:
        piece = self._rows.packed()
        rows, self._rows = self._rows, Rows()
        self._pieces.append(piece)
        self._backlog.count(piece.packed.size - rows.held_bytes, 0)
        self._changed.set()


def _within(batch: pa.RecordBatch, first: int, last: int) -> pa.RecordBatch:
    sequences: memoryview[int] = memoryview(columns_from_batch(batch).sequences).cast("B").cast("q")
    start = bisect_left(sequences, first)
    return batch.slice(start, bisect_right(sequences, last) - start)
