"""Send rows to a stream as messages, in their order, many in flight, each acknowledged.

All messages of a partition go over one connection, and never over a later one: what is published after a lost message
would overtake it. So a lost connection fails the partition, and whoever tries again sends the same message ids. How
rows get ids, and what is known of those that the stream has, is the business of a `RowRecognition`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Protocol

from jsbackup.config import Connection
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.link.subscription import Subscription
from jsbackup.engine.link.threads import in_thread
from jsbackup.engine.link.workers import gather_some
from jsbackup.errors import (
    ApiError,
    IncompleteError,
    IntegrityError,
    JsBackupError,
    NatsError,
    NatsPermissionDenied,
    NatsTimeout,
    TargetConflict,
    UsageError,
)
from jsbackup.protocol.events import Message
from jsbackup.protocol.info import StreamInfo
from jsbackup.protocol.pub_ack import PubAck
from jsbackup.protocol.responses import ErrCode
from jsbackup.putting_back.headers import comparable, message_id
from jsbackup.putting_back.new_rows import NewMessage, NewRow, RowRules, RowTarget, WrittenRows
from jsbackup.putting_back.publishing import stored_ack
from jsbackup.readable import format_count

__all__ = ["RowRecognition", "connected", "same_stream", "send_rows"]

_IN_FLIGHT = 512
_IN_FLIGHT_BYTES = 8 << 20
# Rows over which it is put off to find out what was removed, and answers with a whole message that are waited for.
_PUT_OFF_ROWS = 1024
_ASKED_AT_ONCE = 16
# A message takes a moment to the server, whose clock this one follows by a moment.
_MARGIN_NS = 2 * 10**9
_SECOND = 10**9
# Spark tries again at once, three times by default: a server that restarts would be there for none of them.
_PATIENCE_SECONDS, _PAUSE_SECONDS = 20.0, 0.5
# The replicas of a stream agree on a message of another task with the same id.
_AGREED_SECONDS = 0.1


class RowRecognition(Protocol):
    """How the rows of a partition become messages, and which of these the stream has."""

    keeps_order: bool
    """Whether the stream has the first rows, if it has some: all behind one that was new are new."""

    def message(self, row: NewRow, number: int, rules: RowRules) -> tuple[NewMessage, set[str]]:
        """Return the message of a row, and the names of headers that were left out. Raises UsageError."""

    def stored_as(self, message: NewMessage) -> int:
        """Return the sequence of a message that is known to be stored, 0 of others."""

    def may_be_removed(self, message: NewMessage) -> bool:
        """Return whether messages that were sent here may have removed a message that is known to be stored."""

    def is_removed(self, message: NewMessage, sequence: int) -> bool | None:
        """Return whether they have, when all of them were answered; None if the stream has to be asked."""

    def put_off(self, message: NewMessage, sequence: int) -> NewMessage:
        """Return what to send for a message that is sent behind later rows of other subjects: one that was removed, or
        a later one of its subject, whose `sequence` is 0.
        """

    async def when_late(self, number: int) -> None:
        """Called once, before the row with this number, if earlier tries may have stored rows and the server may have
        forgotten their ids.
        """

    def compares(self, message: NewMessage) -> bool:
        """Return whether a message that the server has by its id may be another one."""

    def add(self, message: NewMessage, ack: PubAck) -> None:
        """Take note that a message is stored. Raises IntegrityError for a wrong order, and IncompleteError if it was
        removed since.
        """


@asynccontextmanager
async def connected(connection: Connection, *, again: bool) -> AsyncIterator[JetStream]:
    """Connect. `again`: to a server that may be starting. Raises NatsError."""
    until = asyncio.get_running_loop().time() + (_PATIENCE_SECONDS if again else 0.0)
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


async def same_stream(js: JetStream, target: RowTarget) -> StreamInfo:
    """Raises UsageError if it is not the stream of the beginning any more."""
    info = await js.stream(target.stream)
    if info.created != target.created:
        raise UsageError(f"stream {target.stream} was deleted and created again while it was written to")
    return info


async def send_rows(
    js: JetStream,
    info: StreamInfo,
    target: RowTarget,
    rows: Iterator[Sequence[NewRow]],
    *,
    partition: int,
    recognition: RowRecognition,
    written: WrittenRows,
) -> None:
    """Send the rows of a partition. `written` grows; if it says `again`, some of them may be there.

    Raises:
        UsageError: a row cannot be a message of the stream, or has the message id of another message.
        IntegrityError: the stream has messages in another order, or in another stream.
        ApiError, TargetConflict, NatsError: a message was not stored, or that is not known.
    """
    inbox = js.link.new_inbox()
    async with js.link.subscribe(f"{inbox}.*") as subscription:
        subscription.remember(2 * _IN_FLIGHT)
        sender = _RowSender(js, info, target, subscription, recognition=recognition, written=written, part=partition)
        await sender.send(inbox, rows)


class _RowSender:
    def __init__(
        self,
        js: JetStream,
        info: StreamInfo,
        target: RowTarget,
        subscription: Subscription,
        *,
        recognition: RowRecognition,
        written: WrittenRows,
        part: int,
    ) -> None:
        self._js = js
        self._target = target
        self._subscription = subscription
        self._recognition = recognition
        self._written = written
        self._partition = part
        self._inbox = ""
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
        self._tasks: set[asyncio.Task[None]] = set()
        # Messages that may have been removed, with their sequences, and later ones of their subjects, with 0.
        self._unsure: list[tuple[NewMessage, int]] = []
        self._unsure_subjects: set[str] = set()
        self._unsure_bytes = 0
        self._left_out: set[str] = set()

    async def send(self, inbox: str, rows: Iterator[Sequence[NewRow]]) -> None:
        """Send all, or raise the first error, when no message will be sent any more."""
        self._inbox = inbox
        reader = asyncio.get_running_loop().create_task(self._read())
        number = 0
        try:
            while batch := await in_thread(next, rows, ()):
                for row in batch:
                    await self._send(row, number)
                    number += 1
            await self._find_out()
            await self._all_answered()
        finally:
            for task in (reader, *self._tasks):
                task.cancel()
            await asyncio.gather(reader, *self._tasks, return_exceptions=True)
        self._written.left_out = frozenset(self._left_out)
        if self._written.rows != number:
            raise IntegrityError(f"of {number:,} rows {self._written.rows:,} were acknowledged")

    async def _send(self, row: NewRow, number: int) -> None:
        message, left_out = self._recognition.message(row, number, self._rules)
        self._left_out |= left_out
        self._check()
        if self._unsure and self._is_put_off(number):
            await self._find_out()
        if self._until_ns is not None and time.monotonic_ns() + self._ahead_ns > self._until_ns:
            self._until_ns = None
            await self._recognition.when_late(number)
        sequence = self._recognition.stored_as(message)
        if message.subject in self._unsure_subjects or (sequence and self._recognition.may_be_removed(message)):
            self._unsure.append((message, sequence))
            self._unsure_subjects.add(message.subject)
            self._unsure_bytes += message.size
        elif sequence:
            self._count_known(message, sequence)
        else:
            await self._publish(message)

    async def _publish(self, message: NewMessage) -> None:
        if not self._has_room():
            async with self._room:
                await self._room.wait_for(lambda: self._has_room() or self._failure is not None)
        self._check()
        if not self._pending:
            self._moved = asyncio.get_running_loop().time()
        self._pending[message.row] = message
        self._bytes += message.size
        await self._subscription.publish(message.subject, message.data, f"{self._inbox}.{message.row}", message.block)

    def _is_put_off(self, number: int) -> bool:
        """Return whether finding out has been put off for long enough: what follows is remembered until then."""
        return number - self._unsure[0][0].row >= _PUT_OFF_ROWS or self._unsure_bytes >= _IN_FLIGHT_BYTES

    async def _find_out(self) -> None:
        """Find out which messages were removed, and send these once more, behind all that was sent so far. Those of one
        subject stay in order, and each is looked at when what was sent before it is answered: it may have removed it.
        """
        waiting = self._unsure
        self._unsure, self._unsure_subjects, self._unsure_bytes = [], set(), 0
        while waiting:
            await self._all_answered()
            removed = await self._removed(waiting)
            sent, blocked, rest = set[str](), set[str](), list[tuple[NewMessage, int]]()
            for message, sequence in waiting:
                subject = message.subject
                if subject in blocked or (sequence and (subject in sent or message.row not in removed)):
                    blocked.add(subject)
                    rest.append((message, sequence))
                elif sequence and not removed[message.row]:
                    self._count_known(message, sequence)
                else:
                    sent.add(subject)
                    await self._publish(self._recognition.put_off(message, sequence))
            waiting = rest

    async def _removed(self, waiting: Sequence[tuple[NewMessage, int]]) -> dict[int, bool]:
        """Return whether rows that are known to be stored were removed: of each subject the first one at least."""
        asked: dict[str, tuple[NewMessage, int]] = {}
        found: dict[int, bool] = {}
        for message, sequence in waiting:
            if sequence and message.subject not in asked:
                removed = self._recognition.is_removed(message, sequence)
                if removed is None:
                    asked[message.subject] = message, sequence
                else:
                    found[message.row] = removed
        there = await gather_some(_ASKED_AT_ONCE, self._is_there, (sequence for _, sequence in asked.values()))
        found |= {message.row: not one for (message, _), one in zip(asked.values(), there, strict=True)}
        return found

    async def _is_there(self, sequence: int) -> bool:
        return await self._js.message(self._target.stream, sequence) is not None

    def _count_known(self, message: NewMessage, sequence: int) -> None:
        self._count(message, PubAck(self._target.stream, sequence, duplicate=True))

    async def _all_answered(self) -> None:
        async with self._room:
            await self._room.wait_for(lambda: not self._pending or self._failure is not None)
        self._check()

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
            if len(self._pending) > len(self._tasks) and silent >= timeout:
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
            if isinstance(error, ApiError) and error.err_code == ErrCode.DUPLICATE_IN_PROCESS:
                self._begin(partial(self._send_again, message, answer))
                return
            raise error.with_message(f"row {message.row} of partition {self._partition}: {error.message}") from error
        if not ack.duplicate and self._recognition.keeps_order:
            self._until_ns = None
        if not (ack.duplicate and self._recognition.compares(message)):
            await self._done(message, ack)
            return
        self._begin(partial(self._compare, message, ack))

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        async def working() -> None:
            try:
                await work()
            except JsBackupError as error:
                await self._fail(error)

        task = asyncio.get_running_loop().create_task(working())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_again(self, message: NewMessage, answer: Message) -> None:
        """Ask once more about a message whose id is that of one that is being stored."""
        await asyncio.sleep(_AGREED_SECONDS)
        await self._subscription.publish(message.subject, message.data, answer.subject, message.block)

    async def _compare(self, message: NewMessage, ack: PubAck) -> None:
        """Handle that the stream has a message with this id: it is this one, or an error."""
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
        self._count(message, ack)
        del self._pending[message.row]
        self._bytes -= message.size
        async with self._room:
            self._room.notify_all()

    def _count(self, message: NewMessage, ack: PubAck) -> None:
        self._recognition.add(message, ack)
        written = self._written
        written.rows += 1
        written.repeated += ack.duplicate
        written.own += message.own_id
        written.own_repeated += message.own_id and ack.duplicate

    async def _fail(self, error: JsBackupError) -> None:
        self._failure = self._failure or error
        async with self._room:
            self._room.notify_all()
