"""Describe all followed streams every few seconds.

Late answers are awaited in the background. So a stream without a leader, or consumers on a node that is down, do not
delay the backups of others.

Many streams are described by the list of all streams, a few hundred in one answer. Only those with consumers are asked
one by one, for these, because their positions change without the stream. That takes as long as they need: a backup of
thousands of them is late, and complete. A list that a node delays delays the backup.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from jsbackup.engine.backup.backup import choose_streams, has_many
from jsbackup.engine.backup.run import BackupOptions
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.errors import ApiError, FormatError, NatsError, NatsTimeout, TransferError, UsageError
from jsbackup.failure import Failure
from jsbackup.protocol.info import ConsumerInfo, StreamInfo
from jsbackup.protocol.paging import Listing
from jsbackup.protocol.responses import lacks_stream

__all__ = ["Look", "Lookout", "some_of"]


@dataclass(frozen=True, slots=True)
class Look:
    """A stream as its server describes it. `consumers` is None if they are not backed up, or are `silent`."""

    info: StreamInfo
    consumers: Listing[ConsumerInfo] | None
    at_ns: int
    silent: bool = False


_log = logging.getLogger(__name__)

# How often to look for new and deleted streams.
_LIST_SECONDS = 5.0
# How many requests about streams run at once.
_LOOKS_AT_ONCE = 64
# A stream with no more deleted sequences lists them in each description.
_FEW_DELETED = 1000
# How long all streams may leave requests without an answer.
_ANSWER_SECONDS = 1.5
# How long one of them may hold up the requests that wait for their turn.
_TURN_SECONDS = 0.25
# How exactly the end of such a time is noticed: within one part in so many.
_STEPS = 8

_NO_CONSUMERS: Listing[ConsumerInfo] = Listing({}, (), {})


async def some_of(tasks: Collection[asyncio.Task[Any]], timeout: float | None) -> None:
    """Wait until all tasks have ended, or at least one and no other for `timeout` seconds: thousands that end one after
    the other are waited for, those that hang are not.
    """
    clock = asyncio.get_running_loop().time
    pending = set(tasks)
    ended_at = clock()
    step = None if timeout is None else timeout / _STEPS
    while pending:
        done, pending = await asyncio.wait(pending, timeout=step)
        if done:
            ended_at = clock()
        elif timeout is not None and clock() - ended_at >= timeout:
            break
    if len(pending) == len(tasks):
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)


class Lookout:
    """Describes the streams that `options` choose. The first `look` waits for all of them."""

    def __init__(self, js: JetStream, options: BackupOptions, clock_ns: Callable[[], int]) -> None:
        self._js = js
        self._options = options
        self._clock_ns = clock_ns
        self._chosen: list[str] | None = None
        self._infos: Mapping[str, StreamInfo] = {}  # from the newest list
        self._silent: tuple[Failure, ...] = ()
        self._noted: frozenset[str] = frozenset()
        self._listed_at = asyncio.get_running_loop().time()
        self._listing: asyncio.Task[None] | None = None
        self._asking: dict[str, asyncio.Task[Look | None]] = {}
        self._few_deleted: set[str] = set()
        self._answered = False

    async def close(self) -> None:
        await self._forget_asked()
        if self._listing is not None:
            self._listing.cancel()
            await asyncio.gather(self._listing, return_exceptions=True)

    async def look(self, *, last: bool = False) -> tuple[dict[str, Look], list[Failure]]:
        """Describe every followed stream; also return those that did not answer. The last look has all that there are
        now.
        """
        chosen = await self._list_now_and_then(last=last)
        listed: dict[str, Look] = {}
        known: dict[str, Look] = {}  # all of it but consumers
        if has_many(chosen):
            at_ns = self._clock_ns()
            await self._list()
            chosen = self._chosen or []
            for name, info in self._infos.items():
                if not self._options.consumers:
                    listed[name] = Look(info, None, at_ns)
                elif not info.state.consumers:
                    listed[name] = Look(info, _NO_CONSUMERS, at_ns)
                elif not info.state.deleted and not info.lost:
                    known[name] = Look(info, None, at_ns)
        gate = asyncio.Semaphore(_LOOKS_AT_ONCE)
        looks = dict(listed)
        failures = list(self._silent)
        # Late answers arrive in the background.
        for name in [name for name, task in self._asking.items() if task.done()]:
            self._asking.pop(name).exception()
        asked = dict.fromkeys(name for name in chosen if name not in self._asking and name not in listed)
        self._asking.update({name: asyncio.create_task(self._in_turn(name, gate, known.get(name))) for name in asked})
        if asked:
            timeout = _ANSWER_SECONDS if self._answered else None
            await some_of([self._asking[name] for name in asked], timeout)
        for name in chosen:
            if name in listed:
                continue
            # An answer to an earlier look may lack what was published before this one.
            if name not in asked or not self._asking[name].done():
                failures.append(Failure(name, NatsTimeout(f"no answer within {_ANSWER_SECONDS:g} s")))
                continue
            task = self._asking.pop(name)
            try:
                if (change := task.result()) is not None:
                    looks[name] = change
            except NatsError as error:
                failures.append(Failure(name, error))
            except FormatError as error:  # an invalid answer: the next one may be valid
                failures.append(Failure(name, TransferError(error.message)))
        if failures and not looks:
            await self._forget_asked()
            raise failures[0].error
        self._answered = True
        return looks, sorted(failures, key=lambda failure: failure.name)

    async def _forget_asked(self) -> None:
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        self._asking.clear()

    async def _list_now_and_then(self, *, last: bool) -> list[str]:
        """Return the streams to follow. A cluster without one of its nodes lists slowly, so only the first list and the
        last one are awaited.
        """
        now = asyncio.get_running_loop().time()
        if self._listing is not None and self._listing.done():
            listing, self._listing = self._listing, None
            if isinstance(error := listing.exception(), NatsError | FormatError):
                _log.info("the streams cannot be listed now: %s", error.message)
            else:
                listing.result()
        if self._chosen is None or (last and not has_many(self._chosen)):
            await self._list()
        elif self._listing is None and not has_many(self._chosen) and now - self._listed_at >= _LIST_SECONDS:
            self._listed_at = now
            self._listing = asyncio.create_task(self._list())
        assert self._chosen is not None
        return self._chosen

    async def _list(self) -> None:
        options = self._options
        try:
            infos, silent, notes = await choose_streams(self._js, options.streams, options.exclude)
        except UsageError as error:
            if self._chosen is None:
                raise
            # Streams may be deleted and created again after the start.
            _log.warning("%s any more", error.message)
            infos, silent, notes = await choose_streams(self._js, (), options.exclude)
            infos = [info for info in infos if any(glob.matches(info.name) for glob in options.streams)]
            silent = [stream for stream in silent if any(glob.matches(stream.name) for glob in options.streams)]
        for note in notes:
            if note not in self._noted:
                _log.warning("%s", note)
        self._noted = frozenset(notes)
        self._infos = {info.name: info for info in infos}
        self._chosen = list(self._infos)
        self._silent = tuple(silent)

    async def _in_turn(self, name: str, gate: asyncio.Semaphore, listed: Look | None) -> Look | None:
        """Describe one stream when it is its turn. One that does not answer gives its turn to the next."""
        await gate.acquire()
        turn = contextlib.ExitStack()
        turn.callback(gate.release)
        timer = asyncio.get_running_loop().call_later(_TURN_SECONDS, turn.close)
        try:
            return await self.describe(name, listed)
        finally:
            timer.cancel()
            turn.close()

    async def describe(self, name: str, listed: Look | None = None) -> Look | None:
        """Describe one stream; None if it was deleted. What this look has `listed` is not asked for again, and is that
        of the moment when the list was asked for.
        """
        if listed is None:
            at_ns = self._clock_ns()
            info = await self._js.find_stream(name, deleted_details=name in self._few_deleted)
        else:
            at_ns, info = listed.at_ns, listed.info
        if info is None:
            return None
        (self._few_deleted.add if info.state.deleted <= _FEW_DELETED else self._few_deleted.discard)(name)
        consumers: Listing[ConsumerInfo] | None = None
        if self._options.consumers:
            try:
                async with asyncio.timeout(None if not self._answered else _ANSWER_SECONDS / 2):
                    consumers = await self._js.consumers(name)
            except TimeoutError:
                return Look(info, None, at_ns, silent=True)
            except ApiError as error:
                if lacks_stream(error):
                    return None
                raise
        return Look(info, consumers, at_ns)
