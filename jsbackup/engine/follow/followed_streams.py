"""The streams that are followed: which there are, what has changed, and reading them on.

Reading a stream may take longer than backups are apart. Then it continues, and a later backup has it.

So a stream is read under the lease of the backup that began it: it is held until no reading needs it (`HeldLeases`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace

from jsbackup.engine.backup.backup import has_many
from jsbackup.engine.backup.run import BackupRun
from jsbackup.engine.follow.followed_stream import Followed
from jsbackup.engine.follow.poll import Look, Lookout, some_of
from jsbackup.engine.follow.tail import Backlog
from jsbackup.engine.link.concurrency import in_thread
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.mirrors import order_of, reach_of
from jsbackup.errors import JsBackupError, NatsError, NatsPermissionDenied, StoreError, TransferError
from jsbackup.failure import Failure
from jsbackup.planning.copies.creation_order import origin_names
from jsbackup.protocol.info import StreamInfo
from jsbackup.protocol.responses import lacks_stream
from jsbackup.repository.keep.leases import Lease
from jsbackup.repository.manifest import Source, StreamBackup
from jsbackup.repository.write.new_backup import StoredStream, previous_streams
from jsbackup.repository.write.receipts import Receipts
from jsbackup.times import format_time

__all__ = ["FollowedStreams", "HeldLeases"]


@dataclass(frozen=True, slots=True, eq=False)
class HeldLease:
    """A lease, and the readings under it."""

    lease: Lease
    stack: ExitStack
    readings: set[asyncio.Task[StoredStream]] = field(default_factory=set)


class HeldLeases:
    def __init__(self, hold: Callable[[], AbstractContextManager[Lease]]) -> None:
        self._hold = hold
        self._held: list[HeldLease] = []

    async def take(self) -> HeldLease:
        """Take another lease. Raises as `hold`."""
        stack = ExitStack()
        try:
            held = HeldLease(await in_thread(stack.enter_context, self._hold()), stack)
        except BaseException:  # if cancelled, it may be held by now
            await in_thread(stack.close)
            raise
        self._held.append(held)
        return held

    def check(self) -> None:
        """Raise RepositoryLocked if one of the leases was lost."""
        for held in self._held:
            held.lease.check()

    async def give_up(self, reading: Iterable[asyncio.Task[StoredStream]]) -> None:
        """Release leases without readings: what was stored under them is named by now, or never will be."""
        going_on = set(reading)
        for held in [held for held in self._held if not held.readings & going_on]:
            self._held.remove(held)
            # In a thread, because it waits for the store.
            await in_thread(held.stack.close)


_log = logging.getLogger(__name__)


class FollowedStreams:
    """The followed streams of one run, and those of them that are being read."""

    def __init__(self, js: JetStream, run: BackupRun, source: Source, *, lookout: Lookout, backlog: Backlog) -> None:
        self._js = js
        self._run = run
        self._source = source
        self._lookout = lookout
        self._backlog = backlog
        self._followed: dict[str, Followed] = {}
        self._reading: dict[str, asyncio.Task[StoredStream]] = {}
        self._circles: dict[str, frozenset[str]] = {}  # those already reported

    @property
    def readings(self) -> Collection[asyncio.Task[StoredStream]]:
        """The readings whose results no backup has."""
        return self._reading.values()

    @property
    def being_read(self) -> frozenset[str]:
        """The streams whose reading is not over."""
        return frozenset(name for name, task in self._reading.items() if not task.done())

    def entries(self) -> dict[str, StreamBackup]:
        """Return the streams as they were last stored, if they were."""
        return {name: one.entry for name, one in self._followed.items() if one.entry is not None}

    def as_before(self, names: Iterable[str]) -> dict[str, StoredStream]:
        """Return some streams as they were last stored, if they were."""
        entries = {name: self._followed[name].entry for name in names if name in self._followed}
        return {
            name: StoredStream(entry, len(entry.segments), 0) for name, entry in entries.items() if entry is not None
        }

    def have_changed(self, looks: Mapping[str, Look], unread: frozenset[str]) -> bool:
        """Return whether there are others than before, or one has changed that is not `unread`."""
        if self._followed.keys() - unread != looks.keys() - unread:
            return True
        return any(self._followed[name].has_changed(look) for name, look in looks.items() if name not in unread)

    async def follow(self, looks: Mapping[str, Look], failing: frozenset[str]) -> None:
        """Follow the streams of `looks`: of those that are new, or were recreated, the last backups are found. Those
        that `failing` has stay.
        """
        for name in [*self._followed]:
            if name not in looks and name not in failing:
                await self.leave(name)
        new: dict[str, StreamInfo] = {}
        for name, look in looks.items():
            followed = self._followed.get(name)
            if followed is not None and followed.created != look.info.created:
                await self.leave(name)
                followed = None
            if followed is None:
                new[name] = look.info
        if not new:
            return
        source = self._source
        incarnations = {name: source.incarnation(name, info.created) for name, info in new.items()}
        earlier = await in_thread(previous_streams, self._run.repository, incarnations)
        run = replace(self._run, many=has_many(looks))
        for name, info in new.items():
            entry = earlier.get(name)
            self._followed[name] = Followed(self._js, run, source, self._backlog, info=info, entry=entry)

    async def read(
        self, looks: Mapping[str, Look], receipts: Receipts, held: HeldLease, *, seconds: float | None
    ) -> tuple[dict[str, StoredStream], list[Failure]]:
        """Read all streams of `looks`. Reading one that takes longer than `seconds` continues, for a later backup.

        Streams that copy from another one are read before that is described (`read/mirrors.py`). Streams at rest are
        not read, so they cost little, in an account of thousands.
        """
        gate = asyncio.Semaphore(self._run.options.jobs)
        infos = {name: look.info for name, look in looks.items()}
        now = format_time(self._run.clock_ns())
        results = {
            name: resting.with_copied(reach_of(look.info, infos))
            for name, look in looks.items()
            if name not in self._reading and (resting := self._followed[name].at_rest(look, now)) is not None
        }
        # A copy that is read now may have what its origin got after the look.
        moving = deque(info for name, info in infos.items() if name not in results)
        while moving:
            for origin in origin_names(moving.popleft().config):
                if results.pop(origin, None) is not None:
                    moving.append(infos[origin])
        order = order_of([info for name, info in infos.items() if name not in results])
        for origin, copies in order.broken.items():
            if self._circles.get(origin) != copies:
                self._circles[origin] = copies
                _log.warning("streams copy in a circle: %s is read before %s", origin, ", ".join(sorted(copies)))

        async def read(followed: Followed, look: Look) -> StoredStream:
            if copies := [self._reading[name] for name in order.after[followed.name] if name in self._reading]:
                await asyncio.wait(copies)
                look = await self._lookout.describe(followed.name) or look
            async with gate:
                result = await followed.read_on(look, receipts)
            return result.with_copied(reach_of(look.info, infos))

        new = []
        # In this order, so that the streams that others wait for are being read.
        for name in [name for stage in order.stages for name in stage]:
            look = looks[name]
            if name not in self._reading:
                task = asyncio.create_task(read(self._followed[name], look))
                self._reading[name] = task
                held.readings.add(task)
                new.append(task)
        if new:
            await some_of(new, seconds)
        failures: list[Failure] = []
        for_all: list[JsBackupError] = []
        for name, task in [*self._reading.items()]:
            if not task.done():
                failures.append(Failure(name, TransferError("it takes long to read, and is still being read")))
                continue
            del self._reading[name]
            try:
                results[name] = task.result()
            except (StoreError, NatsPermissionDenied) as error:
                for_all.append(error)
            except JsBackupError as error:
                if await self._is_gone(name, error):
                    await self.leave(name)
                else:
                    failures.append(Failure(name, error))
        if for_all:
            raise for_all[0]
        return results, sorted(failures, key=lambda failure: failure.name)

    async def committed(self, stored: StreamBackup) -> None:
        """Note that a backup has a stream that was read."""
        followed = self._followed[stored.name]
        if stored.created == followed.created:
            followed.committed(stored)
        else:  # it was created again before it was read: it is followed from this backup on
            await self.leave(stored.name)

    async def _is_gone(self, name: str, error: JsBackupError) -> bool:
        """Return whether a stream could not be read because it was deleted meanwhile."""
        if not lacks_stream(error):
            return False
        with suppress(NatsError):
            return await self._lookout.describe(name) is None
        return False

    async def leave(self, name: str) -> None:
        """Stop following a stream."""
        task = self._reading.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        await self._followed.pop(name).close()

    async def leave_all(self) -> None:
        """Forget all followed streams: the next backup begins with what the repository has."""
        for name in [*self._followed]:
            await self.leave(name)
