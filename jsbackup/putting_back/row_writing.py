"""Write rows to a stream as new messages, in their order, many in flight, each acknowledged.

All messages of a partition go over one connection, and never over a later one: what is published after a lost message
would overtake it. So a lost connection fails the partition. Whoever tries again sends the same message ids, and the
server says which messages it has; these are read and compared with the rows.

The server forgets message ids. A row that may be there already is not sent later than `RowTarget.window_ns` after the
write began; but once one was new, all behind it are. What nobody here can know, a second try that looks like a first
one (Spark runs a stage again), is found at the end by the number of messages that the stream has more, or by their ids.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from jsbackup.config import Connection, nearest
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.link.subscription import Subscription
from jsbackup.engine.link.threads import in_thread, with_own_threads
from jsbackup.engine.read.consume import read_messages
from jsbackup.errors import (
    IncompleteError,
    IntegrityError,
    JsBackupError,
    NatsError,
    NatsPermissionDenied,
    NatsTimeout,
    TargetConflict,
    UsageError,
)
from jsbackup.protocol.info import StreamInfo
from jsbackup.protocol.pub_ack import PubAck
from jsbackup.putting_back.headers import comparable, message_id
from jsbackup.putting_back.new_rows import (
    NewMessage,
    NewRow,
    RowOrder,
    RowRules,
    RowTarget,
    WriteId,
    WrittenRows,
    as_message,
    reason_against_rows,
)
from jsbackup.putting_back.publishing import stored_ack
from jsbackup.readable import format_count, format_seconds

__all__ = ["begin_write", "check_written", "how_to_resume", "write_rows"]

_IN_FLIGHT = 512
_IN_FLIGHT_BYTES = 8 << 20
# A message takes a moment to the server, whose clock this one follows by a moment.
_MARGIN_NS = 2 * 10**9
_SECOND = 10**9
# Spark tries again at once, three times by default: a server that restarts would be there for none of them.
_PATIENCE_SECONDS, _PAUSE_SECONDS = 20.0, 0.5


@with_own_threads
async def begin_write(connection: Connection, stream: str, resume: str, *, new_ids: bool) -> RowTarget:
    """Look at the stream, and return what tasks have to know. `resume` is the id of a write that has failed, or "".

    Raises:
        UsageError: there is no such stream, it takes no messages, or the write cannot be resumed any more.
        NatsError: the server does not answer, or with an error.
    """
    write = WriteId.parse(resume) if resume else None
    async with connect_jetstream(connection) as js:
        info = await js.find_stream(stream)
        if info is None:
            known: Sequence[str] = ()
            with suppress(NatsError):  # a user may not list them
                known = list((await js.stream_names()).entries)
            raise UsageError(f"there is no stream {stream} on {js.link.server}", hint=nearest(stream, known))
        if problem := reason_against_rows(info):
            raise UsageError(problem)
        window = _window_ns(info)
        if write is None:
            write = WriteId(info.now_ns // _SECOND, info.state.last_seq, os.urandom(4).hex())
        elif write.age_ns(info.now_ns) >= window:
            raise UsageError(
                f"the write {write} began {_spoken(write.age_ns(info.now_ns))} ago, and stream {stream} recognizes "
                f"messages for {_spoken(window)} only (duplicate_window)",
                hint=f"Its messages have ids that begin with {write}: remove them, and write all rows again.",
            )
        return RowTarget(stream, info.created, write, window, resumed=bool(resume), new_ids=new_ids)


@with_own_threads
async def write_rows(
    connection: Connection, target: RowTarget, rows: Iterator[Sequence[NewRow]], *, partition: int, again: bool
) -> WrittenRows:
    """Write the rows of a partition. `again`: some of them may be there already.

    Raises:
        UsageError: a row cannot be a message of the stream, or has the message id of another message.
        IncompleteError: it is too late to find out what is there already.
        IntegrityError: the stream has messages in another order, or in another stream.
        ApiError, TargetConflict, NatsError: a message was not stored, or that is not known.
    """
    written = WrittenRows(again=again or target.resumed)
    try:
        async with _connected(connection, _PATIENCE_SECONDS if again else 0.0) as js:
            info = await _same_stream(js, target)
            inbox = js.link.new_inbox()
            async with js.link.subscribe(f"{inbox}.*") as subscription:
                subscription.remember(2 * _IN_FLIGHT)
                writer = _RowWriter(js, info, target, subscription, written=written, partition=partition)
                return await writer.write(inbox, rows)
    except JsBackupError as error:
        raise _resumable(error, target, written) from error


@asynccontextmanager
async def _connected(connection: Connection, patience_seconds: float) -> AsyncIterator[JetStream]:
    """Connect, to a server that may be starting. Raises NatsError after so many seconds."""
    until = asyncio.get_running_loop().time() + patience_seconds
    async with AsyncExitStack() as stack:
        while True:
            try:
                js = await stack.enter_async_context(connect_jetstream(connection))
                break
            except NatsPermissionDenied:
                raise
            except NatsError:
                if asyncio.get_running_loop().time() >= until:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)
        yield js


@with_own_threads
async def check_written(connection: Connection, target: RowTarget, written: WrittenRows) -> str:
    """Find out that the stream has no more messages of the write than there are rows; return what is to be said.

    More are there if the server had forgotten ids, or if an earlier try had more rows, or other partitions.

    Raises:
        IntegrityError: some messages were stored twice.
        IncompleteError: an earlier try had other rows.
        NatsError: the server does not answer, or with an error.
    """
    async with connect_jetstream(connection) as js:
        info = await _same_stream(js, target)
        write = target.write
        late = write.age_ns(info.now_ns) >= target.window_ns
        if not (late or written.again or target.resumed or written.repeated > written.own_repeated):
            return ""
        generated = written.rows - written.own
        if info.state.last_seq - write.last_seq <= generated + written.own - written.own_repeated:
            return ""
        try:
            found = await _count_of_write(js, info, write)
        except NatsError:
            if late:
                raise
            # To publish, nobody has to be allowed to read.
            return "; others write to the stream, too, and whether an earlier try had more rows is not known"
        if found > generated and not late:
            raise IncompleteError(
                f"stream {target.stream} has {format_count(found - generated, 'message')} of the write {write} more "
                "than there are rows: an earlier try had more of them, or other partitions",
                hint="A DataFrame that is written must have the same rows and partitions each time that it is "
                f"computed. Remove messages with ids that begin with {write}, write the DataFrame to a table, and that "
                "to the stream.",
            )
        if found > generated:
            raise IntegrityError(
                f"{format_count(found - generated, 'message')} of the write {write} were stored twice in stream "
                f"{target.stream}: a stage ran again after the stream had forgotten the message ids",
                hint=f"Raise duplicate_window of the stream, remove messages with ids that begin with {write}, and "
                "write again.",
            )
        if late and (written.own or found < generated):
            return f"; it took {_spoken(write.age_ns(info.now_ns))}, longer than the stream recognizes message ids"
        return ""


async def _count_of_write(js: JetStream, info: StreamInfo, write: WriteId) -> int:
    """Return how many messages have ids that the write gave. Raises NatsError."""
    found, prefix = 0, f"{write}-".encode()
    messages = read_messages(
        js, info, lambda _size, _count: None, first=write.last_seq + 1, only={"headers_only": True}
    )
    async for batch in messages:
        blocks = batch.column("headers").to_pylist()
        found += sum(1 for block in blocks if message_id(block).startswith(prefix))
    return found


class _RowWriter:
    def __init__(
        self,
        js: JetStream,
        info: StreamInfo,
        target: RowTarget,
        subscription: Subscription,
        *,
        written: WrittenRows,
        partition: int,
    ) -> None:
        self.written = written
        self._js = js
        self._target = target
        self._subscription = subscription
        self._partition = partition
        self._rules = RowRules.of(info, js.link.max_payload_bytes)
        # The server's clock, by this machine's monotonic one.
        self._ahead_ns = info.now_ns - time.monotonic_ns()
        # Of the server's clock, while rows may be there already.
        self._until_ns = target.write.began * _SECOND + target.window_ns - _MARGIN_NS if written.again else None
        self._pending: dict[int, NewMessage] = {}
        self._bytes = 0
        self._moved = 0.0
        self._failure: JsBackupError | None = None
        self._room = asyncio.Condition()
        self._comparing: set[asyncio.Task[None]] = set()
        self._order = RowOrder(target, partition)
        self._left_out: set[str] = set()

    async def write(self, inbox: str, rows: Iterator[Sequence[NewRow]]) -> WrittenRows:
        """Write all, or raise the first error, when no message will be sent any more."""
        reader = asyncio.get_running_loop().create_task(self._read())
        number = 0
        try:
            while batch := await in_thread(next, rows, ()):
                for row in batch:
                    await self._send(inbox, row, number)
                    number += 1
            async with self._room:
                await self._room.wait_for(lambda: not self._pending or self._failure is not None)
            self._check()
        finally:
            for task in (reader, *self._comparing):
                task.cancel()
            await asyncio.gather(reader, *self._comparing, return_exceptions=True)
        self.written.left_out = frozenset(self._left_out)
        if self.written.rows != number:
            raise IntegrityError(f"of {number:,} rows {self.written.rows:,} were acknowledged")
        return self.written

    async def _send(self, inbox: str, row: NewRow, number: int) -> None:
        message, left_out = as_message(
            row, number=number, partition=self._partition, target=self._target, rules=self._rules
        )
        self._left_out |= left_out
        if not self._has_room():
            async with self._room:
                await self._room.wait_for(lambda: self._has_room() or self._failure is not None)
        self._check()
        if self._until_ns is not None and time.monotonic_ns() + self._ahead_ns > self._until_ns:
            raise IncompleteError(
                f"partition {self._partition} is written again, and row {number} may be in stream "
                f"{self._target.stream} already, which recognizes messages for {_spoken(self._target.window_ns)} only "
                "(duplicate_window)",
                hint=f"Messages of this write have ids that begin with {self._target.write}: remove them, raise "
                "duplicate_window above the time that the write takes, and write again.",
            )
        if not self._pending:
            self._moved = asyncio.get_running_loop().time()
        self._pending[number] = message
        self._bytes += message.size
        await self._subscription.publish(message.subject, message.data, f"{inbox}.{number}", message.block)

    def _has_room(self) -> bool:
        return len(self._pending) < _IN_FLIGHT and (self._bytes < _IN_FLIGHT_BYTES or not self._pending)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _read(self) -> None:
        try:
            while True:
                await self._read_one()
        except JsBackupError as error:
            await self._fail(error)

    async def _read_one(self) -> None:
        timeout = self._js.timeout_seconds
        try:
            answer = await self._subscription.next(timeout)
        except NatsTimeout:
            silent = asyncio.get_running_loop().time() - self._moved
            if len(self._pending) > len(self._comparing) and silent >= timeout:
                raise NatsTimeout(
                    f"stream {self._target.stream} did not acknowledge {format_count(len(self._pending), 'message')} "
                    f"within {timeout:g} s"
                ) from None
            return
        self._moved = asyncio.get_running_loop().time()
        token = answer.subject.rpartition(".")[2]
        message = self._pending.get(int(token)) if token.isdecimal() else None
        if message is None:
            return
        try:
            ack = stored_ack(answer, self._target.stream, message.subject)
        except (NatsError, TargetConflict) as error:
            raise error.with_message(f"row {message.row} of partition {self._partition}: {error.message}") from error
        if not ack.duplicate:
            self._until_ns = None
            await self._done(message, ack)
            return
        task = asyncio.get_running_loop().create_task(self._compare(message, ack))
        self._comparing.add(task)
        task.add_done_callback(self._comparing.discard)

    async def _compare(self, message: NewMessage, ack: PubAck) -> None:
        """Handle that the stream has a message with this id: it is this one, or an error."""
        try:
            found = await self._js.message(self._target.stream, ack.sequence)
            if found is not None:
                same = found.subject == message.subject and found.data == message.data
                if not same or comparable(found.headers) != comparable(message.block):
                    raise self._another(message, ack)
            elif not message.own_id:
                raise IncompleteError(
                    f"row {message.row} of partition {self._partition} was stored as message {ack.sequence} of stream "
                    f"{self._target.stream}, which was removed since: whether it was the same row cannot be known",
                    hint="Rows with ids of their own, in a column message_id, are not compared then.",
                )
            await self._done(message, ack)
        except JsBackupError as error:
            await self._fail(error)

    def _another(self, message: NewMessage, ack: PubAck) -> JsBackupError:
        row, stream = f"row {message.row} of partition {self._partition}", self._target.stream
        if message.own_id:
            text = message_id(message.block).decode("utf-8", "replace")[:80]
            return UsageError(
                f"{row} has the message id {text!r} of message {ack.sequence} of stream {stream}, which is another "
                "one: the server drops what has the same id",
                hint="Set the option 'ids' to new, and messages get new ids.",
            )
        return IncompleteError(
            f"{row} is another one than when it was stored as message {ack.sequence} of stream {stream}",
            hint="A DataFrame that is written must have the same rows each time that it is computed: write it to a "
            "table, and that to the stream.",
        )

    async def _done(self, message: NewMessage, ack: PubAck) -> None:
        self._order.add(message, ack)
        written = self.written
        written.rows += 1
        written.repeated += ack.duplicate
        written.own += message.own_id
        written.own_repeated += message.own_id and ack.duplicate
        del self._pending[message.row]
        self._bytes -= message.size
        async with self._room:
            self._room.notify_all()

    async def _fail(self, error: JsBackupError) -> None:
        self._failure = self._failure or error
        async with self._room:
            self._room.notify_all()


async def _same_stream(js: JetStream, target: RowTarget) -> StreamInfo:
    """Raises UsageError if it is not the stream of the beginning any more."""
    info = await js.stream(target.stream)
    if info.created != target.created:
        raise UsageError(f"stream {target.stream} was deleted and created again while it was written to")
    return info


def _resumable(error: JsBackupError, target: RowTarget, written: WrittenRows) -> JsBackupError:
    """Return the error with what was stored before, and how to go on: other partitions may have stored some, too."""
    if written.rows:
        stored = f"{format_count(written.rows, 'row')} of the partition were stored before"
        error = error.with_message(f"{error.message}; {stored}")
    if isinstance(error, IncompleteError) or str(target.write) in (error.hint or ""):
        return error
    return error.with_more_hint(how_to_resume(target))


def how_to_resume(target: RowTarget) -> str:
    """Return what to do when a write has failed, as a sentence."""
    return (
        f"Within {_spoken(target.window_ns)} of its beginning, write the same rows again with the option 'resume' "
        f"{target.write}: what is stored is not stored twice."
    )


def _window_ns(info: StreamInfo) -> int:
    window = info.config.get("duplicate_window")
    return window if isinstance(window, int) else 0


def _spoken(ns: int) -> str:
    return format_seconds(ns / 1e9)
