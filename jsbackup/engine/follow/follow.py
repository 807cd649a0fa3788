"""Follow streams: make a backup every few seconds, each with everything published by then.

    look at every stream ──▶ has anything changed? ──▶ store what is new ──▶ commit a manifest ──▶ wait
                                 └── no: nothing is written, but for a manifest every `at_least_every_seconds`

Each is a normal backup, made under its own lease, which is released in between: so `prune` gets its turn, and other
backups can run at the same time. Before it builds on the last manifest it checks that this still exists: then all
objects that it names exist too.

Errors of the server or the store after the first backup are reported once and retried, at growing intervals. New
messages wait in bounded memory, the rest on the server. A stream that cannot be read for a while stays in the backups
as it was last stored, with a warning, and they are partial. All state is in the repository: after a kill, `follow`
continues from its newest manifest.

Reading a stream may take longer than backups are apart. Then it continues, and a later backup has it. So a stream is
read under the lease of the backup that began it: it is held until no reading needs it (`HeldLeases`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace

from jsbackup.engine.backup.backup import BegunBackup, Chosen, finish_backup, has_many
from jsbackup.engine.backup.run import BackupRun
from jsbackup.engine.follow.followed_stream import Followed
from jsbackup.engine.follow.poll import Look, Lookout, some_of
from jsbackup.engine.follow.tail import Backlog
from jsbackup.engine.link.concurrency import in_thread, with_own_threads
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.link.source import named_source
from jsbackup.engine.read.increment import Incremental
from jsbackup.engine.read.mirrors import order_of, reach_of
from jsbackup.errors import (
    JsBackupError,
    NatsError,
    NatsPermissionDenied,
    ObjectNotFound,
    RepositoryLocked,
    RepositoryNotFound,
    StoreError,
    TransferError,
)
from jsbackup.failure import Failure
from jsbackup.planning.copies.creation_order import origin_names
from jsbackup.progress import ignored
from jsbackup.protocol.info import StreamInfo
from jsbackup.protocol.responses import lacks_stream
from jsbackup.repository import layout
from jsbackup.repository.keep.leases import Lease
from jsbackup.repository.manifest import BackupResult, Manifest, Source, StreamBackup
from jsbackup.repository.read.sources import FOLLOW_TAG
from jsbackup.repository.write.new_backup import StoredStream, previous_streams
from jsbackup.repository.write.receipts import Receipts
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["FollowOptions", "FollowReport", "follow_streams"]

_log = logging.getLogger(__name__)


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
        """Take another lease. Raises RepositoryLocked, StoreError."""
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
        return {name: followed.entry for name, followed in self._followed.items() if followed.entry is not None}

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


@dataclass(slots=True)
class FollowReport:
    """The result so far.

    `behind_seconds` is the longest time that published messages were in no backup while server and store answered, but
    for streams that could not be read: `partial` backups name them. The first backup counts from its beginning.
    `troubles` counts how often they did not, and `trouble` is the present problem. `failures` are the streams that the
    newest backup lacks, or has as they were. It was committed at `committed_ns`, and has everything published until
    `up_to_ns`. `lost_readers` are sentences about key files of readers that are missing or damaged.
    """

    backups: int = 0
    newest: Manifest | None = None
    messages: int = 0
    stored_bytes: int = 0
    behind_seconds: float = 0.0
    partial: int = 0
    troubles: int = 0
    trouble: str = ""
    failures: tuple[Failure, ...] = ()
    committed_ns: int = 0
    up_to_ns: int = 0
    lost_readers: tuple[str, ...] = ()

    def add(
        self,
        manifest: Manifest,
        failures: tuple[Failure, ...],
        messages: int,
        stored_bytes: int,
        *,
        behind_seconds: float,
    ) -> None:
        """Add a backup with `messages` new messages, which waited up to `behind_seconds` for it."""
        self.backups += 1
        self.partial += manifest.result is BackupResult.PARTIAL
        self.newest = manifest
        self.failures = failures
        self.messages += messages
        self.stored_bytes += stored_bytes
        self.behind_seconds = max(self.behind_seconds, behind_seconds)
        fields = {
            "backup": manifest.id,
            "result": str(manifest.result),
            "messages": messages,
            "stored_bytes": stored_bytes,
            "behind_seconds": round(behind_seconds, 3),
        }
        _log.info(
            "backup %s: %d new messages, %d bytes stored, at most %.1f s behind",
            manifest.id,
            messages,
            stored_bytes,
            behind_seconds,
            extra={"fields": fields},
        )


_FIRST_PAUSE_SECONDS = 0.5
# The least time that a backup waits for a stream that takes long to read.
_READ_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 5.0
# How much later than expected a backup may be before users are warned.
_LATE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """When to make backups: every `every_seconds`, or as soon as `every_bytes` (raw) have arrived; without changes,
    every `at_least_every_seconds`.
    """

    every_seconds: float = 2.0
    every_bytes: int = 64 << 20
    at_least_every_seconds: float = 300.0


@with_own_threads
async def follow_streams(
    run: BackupRun,
    options: FollowOptions,
    *,
    hold: Callable[[], AbstractContextManager[Lease]],
    stopping: asyncio.Event,
    report: FollowReport | None = None,
    first_done: Callable[[], None] = ignored,
) -> FollowReport:
    """Follow until `stopping` is set, then make one last backup. `hold` takes a shared lease.

    A `report` is updated during the run. `first_done` is called after the first backup, when all that stays is there.

    Raises:
        UsageError: a named stream does not exist.
        NatsError, StoreError, RepositoryLocked: the first backup cannot be made.
        JsBackupError: continuing makes no sense.
    """
    async with connect_jetstream(run.connection, name="jsbackup follow") as js:
        await js.account()
        source = replace(await named_source(js, run.connection), profile=run.options.profile or None)
        following = _Following(js, run, options, source, hold=hold)
        following.report = report or following.report
        try:
            return await following.run(stopping, first_done)
        finally:
            await following.close()


class _Following:
    def __init__(
        self,
        js: JetStream,
        run: BackupRun,
        options: FollowOptions,
        source: Source,
        *,
        hold: Callable[[], AbstractContextManager[Lease]],
    ) -> None:
        tags = {FOLLOW_TAG: "true", **run.options.tags}
        self._js = js
        self._run = replace(run, options=replace(run.options, tags=tags, incremental=Incremental.ALWAYS))
        self._repository = run.repository
        self._options = options
        self._source = source
        self._leases = HeldLeases(hold)
        # Twice the bytes that make a backup due: more arrive while it is made.
        self._backlog = Backlog(2 * options.every_bytes, options.every_bytes)
        self._lookout = Lookout(js, run.options, run.clock_ns)
        self._streams = FollowedStreams(js, self._run, source, lookout=self._lookout, backlog=self._backlog)
        self._up_to_ns: int | None = None  # the newest backup has everything published until then
        self._committed_at = 0.0
        self._generation = js.link.generation
        self._failing: frozenset[str] = frozenset()  # streams that the newest backup has as they were, or not at all
        self.report = FollowReport()

    async def run(self, stopping: asyncio.Event, first_done: Callable[[], None]) -> FollowReport:
        loop = asyncio.get_running_loop()
        is_first = True
        pause = _FIRST_PAUSE_SECONDS
        report = self.report
        while True:
            last = stopping.is_set()
            began = loop.time()
            self._backlog.due.clear()
            late = loop.call_later(_LATE_SECONDS + self._options.every_seconds, self._say_late)
            try:
                await self._round(last=last)
            except (NatsError, StoreError, RepositoryLocked, RepositoryNotFound) as error:
                if report.newest is None or last or isinstance(error, NatsPermissionDenied):
                    raise
                self._up_to_ns = None  # the delay from now on is caused by the error
                if not report.trouble:
                    report.troubles += 1
                    _log.warning("%s; trying again until it works", error.message)
                elif error.message != report.trouble:
                    _log.info("%s", error.message)
                report.trouble = error.message
                await _first_of(pause, stopping)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            finally:
                late.cancel()
            if self._was_cut_off and not report.trouble:
                report.troubles += 1
                _log.warning("the connection to the server was lost and restored")
            self._generation = self._js.link.generation
            if report.trouble:
                _log.warning("it works again; backup %s has what was published meanwhile", self._newest_id)
                report.trouble, pause = "", _FIRST_PAUSE_SECONDS
            if is_first:
                is_first = False
                first_done()
            if last:
                return report
            await _first_of(began + self._options.every_seconds - loop.time(), stopping, self._backlog.due)

    async def close(self) -> None:
        await self._lookout.close()
        await self._streams.leave_all()
        await self._leases.give_up(self._streams.readings)

    def _has_changed(self, looks: Mapping[str, Look], unread: frozenset[str]) -> bool:
        """Return whether a backup made now would differ from the newest one."""
        return self.report.newest is None or unread != self._failing or self._streams.have_changed(looks, unread)

    def _say_late(self) -> None:
        """Report a late backup: requests to the store are retried for minutes before they fail."""
        if self.report.newest is not None:
            _log.warning("no backup since %s: the server or the store is slow", self._newest_id)

    @property
    def _was_cut_off(self) -> bool:
        """Whether the connection was lost and restored in this round before anything failed."""
        return self._js.link.generation != self._generation

    @property
    def _newest_id(self) -> str:
        return self.report.newest.id if self.report.newest else "none"

    async def _round(self, *, last: bool) -> None:
        """Make one backup, if anything has changed."""
        begun_ns = self._run.clock_ns()
        looks, silent = await self._lookout.look(last=last)
        failures = {failure.name: failure for failure in silent}
        failing = frozenset(failures)
        # Streams that are still being read count as unreadable until they are done.
        unread = failing | self._streams.being_read
        has_read = any(task.done() for task in self._streams.readings)
        due = asyncio.get_running_loop().time() - self._committed_at >= self._options.at_least_every_seconds
        if not (due or has_read or self._has_changed(looks, unread)):
            self._up_to_ns = self.report.up_to_ns = begun_ns
            return
        try:
            if self.report.newest is not None:  # before a lease is put into what may be there instead
                await in_thread(self._repository.check_there)
            held = await self._leases.take()
            await in_thread(self._repository.look_for_damage)
            await self._forget_removed()
            await self._streams.follow(looks, failing)
            receipts = Receipts(self._repository.documents, held.lease.id, format_time(begun_ns), TOOL)
            if self.report.newest is None:
                await in_thread(receipts.read_earlier)
            longest = None if self.report.newest is None else max(self._options.every_seconds, _READ_SECONDS)
            results, failed = await self._streams.read(looks, receipts, held, seconds=longest)
            if failed and not self._js.link.connected:
                raise next(
                    (failure.error for failure in failed if failure.name not in self._streams.being_read),
                    failed[0].error,
                )
            for failure in failed:
                failures.setdefault(failure.name, failure)
            self._leases.check()
            await self._commit(begun_ns, held.lease, receipts, results, failures=failures)
        finally:
            await self._leases.give_up(self._streams.readings)

    async def _commit(
        self,
        begun_ns: int,
        lease: Lease,
        receipts: Receipts,
        read: Mapping[str, StoredStream],
        *,
        failures: Mapping[str, Failure],
    ) -> None:
        # By name: a stream that was just read completely may not answer any more.
        results = {**self._streams.as_before(failures), **read}
        missing = [failure for name, failure in failures.items() if name not in results]
        for name in failures.keys() & results.keys():
            results[name] = _unanswered(results[name], failures[name])
        if not results and missing:
            raise missing[0].error
        begun = BegunBackup(begun_ns, Chosen(self._source, (), {}), (), receipts, None)
        streams = [results[name] for name in sorted(results)]
        entries = self._streams.entries()
        report = await in_thread(finish_backup, self._run, begun, streams, missing, lease=lease, followed=entries)
        manifest = report.manifest
        assert manifest is not None
        for sentence in report.lost_readers if report.lost_readers != self.report.lost_readers else ():
            _log.warning("%s", sentence)
        self.report.lost_readers = report.lost_readers
        before = {name: entries[name].state.last_seq if name in entries else 0 for name in read}
        stored = {stream.name: stream for stream in manifest.streams}
        for name in read:
            await self._streams.committed(stored[name])
        new = sum(max(result.stream.state.last_seq - before[name], 0) for name, result in read.items())
        stored_bytes = sum(result.stored_bytes for result in read.values())
        now_ns = self._run.clock_ns()
        since_ns = begun_ns if self.report.newest is None else self._up_to_ns
        behind = 0.0 if since_ns is None or self._was_cut_off else (now_ns - since_ns) / 1e9
        for name, failure in failures.items():
            if name not in self._failing:
                said = failure.error.message
                _log.warning("%s", said if said.startswith(f"stream {name} ") else f"stream {name}: {said}")
        self._failing = frozenset(failures)
        self._up_to_ns = self.report.up_to_ns = begun_ns
        self.report.committed_ns, self._committed_at = now_ns, asyncio.get_running_loop().time()
        self.report.add(
            manifest, tuple(failures[name] for name in sorted(failures)), new, stored_bytes, behind_seconds=behind
        )

    async def _forget_removed(self) -> None:
        """Start over if the newest backup is not there any more."""
        newest = self.report.newest
        if newest is None:
            return
        key = self._repository.documents.stored_key(layout.manifest_key(newest.id))
        try:
            await in_thread(self._repository.store.head, key)
        except ObjectNotFound:
            _log.warning("backup %s was removed; the next one builds on the remaining ones", newest.id)
            await self._streams.leave_all()


def _unanswered(result: StoredStream, failure: Failure) -> StoredStream:
    """Return the stored state of a stream that cannot be read now, with a warning."""
    begun = result.stream.captured.begun
    note = f"as it was at {begun}, because it could not be read: {failure.error.message}"
    return replace(result, stream=replace(result.stream, warnings=(*result.stream.warnings, note)), incomplete=True)


async def _first_of(seconds: float, *events: asyncio.Event) -> None:
    """Wait for `seconds`, or until one of the events is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
