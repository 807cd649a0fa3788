"""Write planned messages, in order, a few in flight, each acknowledged; then read them back and compare.

A message whose subject keeps one value, or has little room, is only stored if the last one of its subject is still the
one that the plan has seen, or that was written here (`Nats-Expected-Last-Subject-Sequence`). So no concurrent writer is
lost: the message is a conflict then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.threads import in_thread
from jsbackup.engine.link.workers import gather_some
from jsbackup.errors import ApiError, IntegrityError, JsBackupError, NatsNoResponders, TargetConflict
from jsbackup.look.message import LookedUp
from jsbackup.progress import NullProgress, Progress
from jsbackup.protocol.headers import NO_RESPONDERS, parse_status
from jsbackup.protocol.info import StreamInfo
from jsbackup.protocol.pub_ack import PubAck, decode_ack
from jsbackup.protocol.responses import ErrCode, as_target_error
from jsbackup.putting_back.candidates import content_of, origin_of_message
from jsbackup.putting_back.chosen import ChosenMessages
from jsbackup.putting_back.headers import ORIGIN_HEADER, MessageOrigin, new_block
from jsbackup.putting_back.model import PlannedMessage, PutBackPlan, PutBackReport, Wrote
from jsbackup.readable import format_count

__all__ = ["WritingRun", "expecting", "is_overtaken", "publish_one", "write_messages"]

_IN_FLIGHT = 64
_IN_FLIGHT_BYTES = 4 << 20
_AT_ONCE = 64
_WAIT_SECONDS = 3.0  # after an error, for answers that are under way
_WRONG_LAST = (ErrCode.WRONG_LAST_SEQUENCE, ErrCode.WRONG_LAST_SEQUENCE_IN_FLIGHT)
_STORE_FAILED = 10077  # such as "maximum messages exceeded"
_AGAIN = "Run the same command again: it goes on with what is missing."


@dataclass(slots=True)
class WritingRun:
    """What was written so far. It grows while messages are written, and `watcher` is informed."""

    watcher: Progress = field(default_factory=NullProgress)

    written: list[Wrote] = field(default_factory=list)
    duplicates: list[Wrote] = field(default_factory=list)
    conflicts: list[PlannedMessage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def report(self, plan: PutBackPlan, replaced: int = 0) -> PutBackReport:
        def in_order(found: Sequence[Wrote]) -> tuple[Wrote, ...]:
            return tuple(sorted(found, key=lambda one: one.message.sequence))

        return PutBackReport(
            plan,
            in_order(self.written),
            in_order(self.duplicates),
            tuple(sorted(self.conflicts, key=lambda one: one.sequence)),
            replaced,
            notes=tuple(self.notes),
        )


async def publish_one(js: JetStream, info: StreamInfo, subject: str, data: bytes, *, block: bytes) -> PubAck:
    """Publish a message, and return its acknowledgement.

    Raises:
        ApiError: the stream did not store it; TargetConflict: for lack of space, or because of its limits.
        IntegrityError: another stream did.
        NatsError: there was no answer; the message may have been stored.
    """
    try:
        answer = await js.link.request(subject, data, js.timeout_seconds, block)
    except NatsNoResponders:
        raise _nobody_listens(info.name, subject) from None
    stream = info.name
    status = parse_status(answer.headers) if not answer.data else None
    if status is not None and status.code == NO_RESPONDERS:
        raise _nobody_listens(stream, subject)
    try:
        ack = decode_ack(answer.data, subject)
    except ApiError as error:
        if error.err_code == _STORE_FAILED:
            raise TargetConflict(f"stream {stream} did not store a message: {error.message}") from error
        raise as_target_error(error) from error
    if ack.stream != stream:
        raise IntegrityError(
            f"a message on {subject} was stored by stream {ack.stream}, not {stream}, as message {ack.sequence}",
            hint=f"Remove it there: nats stream rmm {ack.stream} {ack.sequence}.",
        )
    return ack


def _nobody_listens(stream: str, subject: str) -> NatsNoResponders:
    return NatsNoResponders(f"no stream listens to {subject} any more", hint=f"See the subjects of stream {stream}.")


def expecting(info: StreamInfo, origin: MessageOrigin, expected: int | None) -> list[tuple[str, str]]:
    """Return the headers that are added."""
    added = [(ORIGIN_HEADER, str(origin)), ("Nats-Expected-Stream", info.name)]
    if expected is not None:
        added.append(("Nats-Expected-Last-Subject-Sequence", str(expected)))
    return added


def is_overtaken(error: JsBackupError) -> bool:
    """Return whether a message was not stored because another one came before it."""
    return isinstance(error, ApiError) and error.err_code in _WRONG_LAST


async def write_messages(js: JetStream, chosen: ChosenMessages, plan: PutBackPlan, run: WritingRun) -> PutBackReport:
    """Write what is planned. `run` says what was written, also if it fails or is interrupted.

    Raises the errors of `publish_one`, and of `ChosenMessages`; the message says how much was written before. Raises
    IntegrityError if a message is another one when it is read back.
    """
    writer, name = _Writer(js, plan, run), plan.target.name
    run.watcher.start(name, sum(one.size for one in plan.writes), len(plan.writes))
    try:
        await writer.write(chosen)
    except JsBackupError as error:
        done = f"{len(run.written):,} of {format_count(len(plan.writes), 'message')} written"
        failed = error.with_message(f"{error.message}; {done}")
        raise (failed.with_more_hint(_AGAIN) if run.written else failed) from error
    finally:
        run.watcher.finish(name)
    return run.report(plan, await writer.replaced())


class _Writer:
    def __init__(self, js: JetStream, plan: PutBackPlan, run: WritingRun) -> None:
        self._js = js
        self._plan = plan
        self._run = run
        self._contents: dict[int, bytes] = {}
        self._bytes = 0
        self._failure: JsBackupError | None = None
        self._room = asyncio.Condition()
        self._pending: set[asyncio.Task[int | None]] = set()
        self._last: dict[str, asyncio.Task[int | None]] = {}  # of subjects that are watched: who writes the last one

    async def write(self, chosen: ChosenMessages) -> None:
        """Write all, or raise the first error when no answer is under way any more."""
        planned = {one.sequence: one for one in self._plan.writes}
        messages = chosen.at(planned.keys())
        try:
            while batch := await in_thread(_next, messages):
                for message in batch:
                    await self._start(planned[message.sequence], message)
            while self._pending:
                await asyncio.wait(self._pending)
            self._check()
        finally:
            if self._pending:
                await asyncio.wait(self._pending, timeout=_WAIT_SECONDS)
            for task in self._pending:
                task.cancel()
        done = len(self._run.written) + len(self._run.duplicates) + len(self._run.conflicts)
        if done != len(planned):
            raise IntegrityError(f"{len(planned) - done} planned messages are not in the backup any more")

    async def _start(self, one: PlannedMessage, message: LookedUp) -> None:
        async with self._room:
            await self._room.wait_for(
                lambda: len(self._pending) < _IN_FLIGHT and (self._bytes < _IN_FLIGHT_BYTES or not self._pending)
            )
        self._check()
        self._bytes += one.size
        # The order of messages is the order in which their tasks begin.
        before = None if one.expected is None else self._last.get(one.subject)
        task = asyncio.get_running_loop().create_task(self._write_one(one, message, before))
        self._pending.add(task)
        if one.expected is not None:
            self._last[one.subject] = task

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _write_one(
        self, one: PlannedMessage, message: LookedUp, before: asyncio.Task[int | None] | None
    ) -> int | None:
        """Write a message after `before`; return the last sequence of its subject then. None if that is not known, so
        that no other one of the subject may be written.
        """
        try:
            expected = one.expected if before is None else await before
            if before is not None and expected is None:
                if self._failure is None:
                    self._run.conflicts.append(one)
                return None
            ack = await self._publish(one, message, expected)
            return expected if ack.duplicate else ack.sequence
        except JsBackupError as error:
            if is_overtaken(error) and one.expected is not None:
                self._run.conflicts.append(one)
            elif self._failure is None:
                self._failure = error
            return None
        finally:
            self._bytes -= one.size
            if (task := asyncio.current_task()) is not None:
                self._pending.discard(task)
            async with self._room:
                self._room.notify_all()

    async def _publish(self, one: PlannedMessage, message: LookedUp, expected: int | None) -> PubAck:
        plan = self._plan
        origin = origin_of_message(plan.manifest.id, plan.entry.name, message)
        added = expecting(plan.target, origin, expected)
        block = new_block(message.headers, added, stored_ns=message.timestamp_ns, now_ns=time.time_ns())
        ack = await publish_one(self._js, plan.target, one.subject, message.data, block=block)
        self._run.watcher.advance(plan.target.name, one.size, 1)
        if ack.duplicate:
            self._run.duplicates.append(Wrote(one, ack.sequence, duplicate=True))
        else:
            self._run.written.append(Wrote(one, ack.sequence))
            self._contents[ack.sequence] = content_of(one.subject, message.headers, message.data)
        return ack

    async def replaced(self) -> int:
        """Read back what was written; return how many messages are not there any more. Raises IntegrityError."""

        async def is_replaced(sequence: int) -> bool:
            found = await self._js.message(self._plan.target.name, sequence)
            if found is not None and content_of(found.subject, found.headers, found.data) != self._contents[sequence]:
                raise IntegrityError(
                    f"message {sequence} of stream {self._plan.target.name} is not what was written",
                    hint="Something on the way to the stream has changed it, such as a mapping of subjects.",
                )
            return found is None

        return sum(await gather_some(_AT_ONCE, is_replaced, [one.as_sequence for one in self._run.written]))


def _next(messages: Iterator[LookedUp]) -> list[LookedUp]:
    """Return the next few messages, none at the end."""
    found: list[LookedUp] = []
    size = 0
    for message in islice(messages, _IN_FLIGHT):
        found.append(message)
        size += len(message.data)
        if size >= _IN_FLIGHT_BYTES:
            break
    return found
