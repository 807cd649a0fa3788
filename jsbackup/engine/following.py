"""Follow streams: one backup after the other, every few seconds, each of all that was published by then.

    look at every stream ──▶ has anything changed? ──▶ store what is new ──▶ commit a manifest ──▶ wait
                                 └── no: nothing is written, but for a manifest every `at_least_every_seconds`

Each is a backup as any other, made under a lease of its own that is given up in between: so `prune` finds its moment,
and backups of others go on beside it. Before anything is built on the last manifest it is looked for: as long as it is
there, all that it names is too.

Whatever goes wrong with the server or the store after the first backup is told once and tried again, later and later.
What has come meanwhile waits in memory, bounded, and the rest at the server. A stream that cannot be read for a while
stays in the backups as it was last stored, with a warning, and they are partial. Nothing is kept anywhere but in the
repository: whoever is killed goes on with its newest manifest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace

from jsbackup.config import Connection
from jsbackup.engine.backup import TOOL, BackupOptions, BegunBackup, Chosen, finish_backup
from jsbackup.engine.copy_reach import reach_of, with_copied
from jsbackup.engine.downstream import order_of
from jsbackup.engine.failure import Failure
from jsbackup.engine.follow_report import FollowReport
from jsbackup.engine.followed import Followed, Look
from jsbackup.engine.increment import Incremental
from jsbackup.engine.jetstream import JetStream, connect_jetstream
from jsbackup.engine.lookout import Lookout, some_of
from jsbackup.engine.source import named_source
from jsbackup.engine.stream_backup import StreamResult
from jsbackup.engine.tail import Backlog
from jsbackup.errors import (
    JsBackupError,
    NatsError,
    NatsPermissionDenied,
    ObjectNotFound,
    RepositoryLocked,
    StoreError,
    TransferError,
)
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository import layout
from jsbackup.repository.leases import Lease
from jsbackup.repository.manifest import Source
from jsbackup.repository.previous import previous_streams
from jsbackup.repository.receipts import Receipts
from jsbackup.repository.repository import Repository
from jsbackup.repository.retention import FOLLOW_TAG
from jsbackup.times import format_time

__all__ = ["FollowOptions", "FollowReport", "follow_streams"]

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.5
# How long a backup waits at least for a stream that takes long to read.
_READ_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 5.0
# After how much more than what it should take users are told of a backup that takes long.
_LATE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """`backup` is what is backed up. A backup is made `every_seconds`, or when `every_bytes` (raw) have come sooner; of
    streams in which nothing happens one is made `at_least_every_seconds`."""

    backup: BackupOptions
    every_seconds: float = 2.0
    every_bytes: int = 64 << 20
    at_least_every_seconds: float = 300.0


async def follow_streams(
    connection: Connection,
    repository: Repository,
    options: FollowOptions,
    *,
    hold: Callable[[], AbstractContextManager[Lease]],
    stopping: asyncio.Event,
    clock_ns: Callable[[], int] = time.time_ns,
    random: Callable[[int], bytes],
) -> FollowReport:
    """Follow until `stopping` is set, and make one last backup then. `hold` takes a shared lease.

    Raises:
        UsageError: a named stream does not exist.
        NatsError, StoreError, RepositoryLocked: the first backup cannot be made.
        JsBackupError: it makes no sense to go on.
    """
    async with connect_jetstream(connection, name="jsbackup follow") as js:
        await js.account()
        source = replace(await named_source(js, connection), profile=options.backup.profile or None)
        following = _Following(js, repository, options, source, hold, clock_ns, random)
        try:
            return await following.run(stopping)
        finally:
            await following.close()


class _Following:
    def __init__(
        self,
        js: JetStream,
        repository: Repository,
        options: FollowOptions,
        source: Source,
        hold: Callable[[], AbstractContextManager[Lease]],
        clock_ns: Callable[[], int],
        random: Callable[[int], bytes],
    ) -> None:
        tags = {FOLLOW_TAG: "true", **options.backup.tags}
        self._js = js
        self._repository = repository
        self._options = options
        self._asked = replace(options.backup, tags=tags, incremental=Incremental.ALWAYS)
        self._source = source
        self._hold = hold
        self._clock_ns = clock_ns
        self._random = random
        # Twice as much as makes a backup due: what comes while that is made.
        self._backlog = Backlog(2 * options.every_bytes, options.every_bytes)
        self._lookout = Lookout(js, options.backup, clock_ns)
        self._followed: dict[str, Followed] = {}
        self._reading: dict[str, asyncio.Task[StreamResult]] = {}
        self._held: list[_Held] = []
        self._up_to_ns: int | None = None  # the newest backup has what was published until then
        self._committed_at = 0.0
        self._failing: frozenset[str] = frozenset()  # streams that the newest backup has as they were, or not at all
        self._circles: Mapping[str, frozenset[str]] = {}  # as they were said
        self.report = FollowReport()

    async def run(self, stopping: asyncio.Event) -> FollowReport:
        loop = asyncio.get_running_loop()
        pause = _FIRST_PAUSE_SECONDS
        trouble = ""
        while True:
            last = stopping.is_set()
            began = loop.time()
            self._backlog.due.clear()
            late = loop.call_later(_LATE_SECONDS + self._options.every_seconds, self._say_late)
            try:
                await self._round()
            except (NatsError, StoreError, RepositoryLocked) as error:
                if self.report.newest is None or last or isinstance(error, NatsPermissionDenied):
                    raise
                self._up_to_ns = None  # what it takes longer now is the trouble's
                if not trouble:
                    self.report.troubles += 1
                    _log.warning("%s; tried again until it works", error.message)
                elif error.message != trouble:
                    _log.info("%s", error.message)
                trouble = error.message
                await _first_of(pause, stopping)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            finally:
                late.cancel()
            if trouble:
                _log.warning("it works again; what was published meanwhile is in backup %s", self._newest_id)
                trouble, pause = "", _FIRST_PAUSE_SECONDS
            if last:
                return self.report
            await _first_of(began + self._options.every_seconds - loop.time(), stopping, self._backlog.due)

    async def close(self) -> None:
        await self._lookout.close()
        await self._start_over()
        await self._give_up_leases()

    async def _start_over(self) -> None:
        """Forget what is followed: the next backup begins with what the repository has."""
        for name in [*self._followed]:
            await self._leave(name)

    def _say_late(self) -> None:
        """The store is asked again for minutes before that fails."""
        if self.report.newest is not None:
            _log.warning("no backup since %s: server or store take long", self._newest_id)

    @property
    def _newest_id(self) -> str:
        return self.report.newest.id if self.report.newest else "none"

    async def _round(self) -> None:
        """One backup, if there is something to back up."""
        begun_ns = self._clock_ns()
        looks, silent = await self._lookout.look()
        failures = {failure.name: failure for failure in silent}
        failing = frozenset(failures)
        # A stream that is still being read counts with those that cannot be read, until it is done.
        unread = failing | {name for name, task in self._reading.items() if not task.done()}
        has_read = any(task.done() for task in self._reading.values())
        due = asyncio.get_running_loop().time() - self._committed_at >= self._options.at_least_every_seconds
        if not (due or has_read or self._has_changed(looks, unread)):
            self._up_to_ns = begun_ns
            return
        held = _Held()
        self._held.append(held)
        try:
            held.lease = await asyncio.to_thread(held.stack.enter_context, self._hold())
            await self._find_earlier(looks, failing)
            receipts = Receipts(self._repository.documents, held.lease.id, format_time(begun_ns), TOOL)
            if self.report.newest is None:
                await asyncio.to_thread(receipts.read_earlier)
            results, failed = await self._read(looks, receipts, held)
            if failed and not self._js.link.connected:
                raise next((one.error for one in failed if one.name not in self._reading), failed[0].error)
            for failure in failed:
                failures.setdefault(failure.name, failure)
            for earlier in self._held:
                if earlier.lease is not None:
                    earlier.lease.check()
            await self._commit(begun_ns, held.lease, receipts, results, failures)
        finally:
            await self._give_up_leases()

    def _has_changed(self, looks: Mapping[str, Look], unread: frozenset[str]) -> bool:
        """Whether the newest backup is not what one would be that is made now."""
        if (
            self.report.newest is None
            or unread != self._failing
            or self._followed.keys() - unread != looks.keys() - unread
        ):
            return True
        return any(self._followed[name].has_changed(look) for name, look in looks.items() if name not in unread)

    async def _commit(
        self,
        begun_ns: int,
        lease: Lease,
        receipts: Receipts,
        read: Mapping[str, StreamResult],
        failures: Mapping[str, Failure],
    ) -> None:
        # By name: what was read to its end just now may be of a stream that does not answer any more.
        results = {**self._as_before(failures), **read}
        missing = [failure for name, failure in failures.items() if name not in results]
        for name in failures.keys() & results.keys():
            results[name] = _unanswered(results[name], failures[name])
        if not results and missing:
            raise missing[0].error
        begun = BegunBackup(begun_ns, Chosen(self._source, (), {}), (), receipts, None)
        streams = [results[name] for name in sorted(results)]
        report = await asyncio.to_thread(
            finish_backup, self._repository, self._asked, begun, streams, missing, lease, self._random
        )
        manifest = report.manifest
        assert manifest is not None
        before = {name: self._last_seq(name) for name in read}
        for name, result in read.items():
            await self._followed[name].committed(result)
        new = sum(max(result.stream.state.last_seq - before[name], 0) for name, result in read.items())
        stored_bytes = sum(result.stored_bytes for result in read.values())
        now_ns = self._clock_ns()
        behind = (now_ns - self._up_to_ns) / 1e9 if self._up_to_ns is not None else 0.0
        for name, failure in failures.items():
            if name not in self._failing:
                _log.warning("stream %s: %s", name, failure.error.message)
        self._failing = frozenset(failures)
        self._up_to_ns, self._committed_at = begun_ns, asyncio.get_running_loop().time()
        self.report.add(manifest, tuple(failures[name] for name in sorted(failures)), new, stored_bytes, behind)

    def _last_seq(self, name: str) -> int:
        entry = self._followed[name].entry
        return entry.state.last_seq if entry else 0

    def _as_before(self, names: Iterable[str]) -> dict[str, StreamResult]:
        """Streams as they were last stored, those that were."""
        entries = {name: self._followed[name].entry for name in names if name in self._followed}
        return {
            name: StreamResult(entry, len(entry.segments), 0) for name, entry in entries.items() if entry is not None
        }

    async def _find_earlier(self, looks: Mapping[str, Look], failing: frozenset[str]) -> None:
        """Streams that were not followed yet, or are others now, with their last backups."""
        newest = self.report.newest
        if newest is not None:
            key = self._repository.documents.stored_key(layout.manifest_key(newest.id))
            try:
                await asyncio.to_thread(self._repository.store.head, key)
            except ObjectNotFound:
                _log.warning("backup %s was removed; the next one builds on what there is", newest.id)
                await self._start_over()
        for name in [*self._followed]:
            if name not in looks and name not in failing:
                await self._leave(name)
        new: dict[str, StreamInfo] = {}
        for name, look in looks.items():
            followed = self._followed.get(name)
            if followed is not None and followed.created != look.info.created:
                await self._leave(name)
                followed = None
            if followed is None:
                new[name] = look.info
        if not new:
            return
        source = self._source
        incarnations = {
            name: layout.incarnation(source.cluster, source.account, name, info.created) for name, info in new.items()
        }
        earlier = await asyncio.to_thread(previous_streams, self._repository, incarnations)
        for name, info in new.items():
            self._followed[name] = Followed(
                self._js, self._repository, self._asked, source, self._backlog, info, earlier.get(name)
            )

    async def _read(
        self, looks: Mapping[str, Look], receipts: Receipts, held: _Held
    ) -> tuple[dict[str, StreamResult], list[Failure]]:
        """Read all that are looked at. One that takes long is read on, and is in a later backup.

        What copies from a stream is read before that is looked at (`downstream.py`).
        """
        gate = asyncio.Semaphore(self._options.backup.jobs)
        order = order_of([look.info for look in looks.values()])
        if order.broken != self._circles:
            self._circles = order.broken
            for origin, copies in order.broken.items():
                _log.warning("streams copy in a circle: %s is read before %s", origin, ", ".join(sorted(copies)))

        async def read(followed: Followed, look: Look) -> StreamResult:
            if copies := [self._reading[name] for name in order.after[followed.name] if name in self._reading]:
                await asyncio.wait(copies)
                look = await self._lookout.again(followed.name) or look
            async with gate:
                result = await followed.read_on(look, receipts, self._clock_ns)
            infos = {name: other.info for name, other in looks.items()}
            return with_copied(result, reach_of(look.info, infos))

        new = []
        # In this order, so that what a stream waits for is among those that are read.
        for name in [name for stage in order.stages for name in stage]:
            look = looks[name]
            if name not in self._reading:
                task = asyncio.create_task(read(self._followed[name], look))
                self._reading[name] = task
                held.readings.add(task)
                new.append(task)
        if new:
            timeout = None if self.report.newest is None else max(self._options.every_seconds, _READ_SECONDS)
            await some_of(new, timeout)
        results: dict[str, StreamResult] = {}
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
                failures.append(Failure(name, error))
        if for_all:
            raise for_all[0]
        return results, sorted(failures, key=lambda failure: failure.name)

    async def _leave(self, name: str) -> None:
        """Follow it no more."""
        task = self._reading.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        await self._followed.pop(name).close()

    async def _give_up_leases(self) -> None:
        """Those under which nothing is read any more: what was stored under them is named now, or never will be."""
        going_on = set(self._reading.values())
        for held in [held for held in self._held if not held.readings & going_on]:
            self._held.remove(held)
            # In a thread: it waits for the store.
            await asyncio.to_thread(held.stack.close)


@dataclass(slots=True, eq=False)
class _Held:
    """A lease, and what is read under it."""

    stack: ExitStack = field(default_factory=ExitStack)
    lease: Lease | None = None
    readings: set[asyncio.Task[StreamResult]] = field(default_factory=set)


def _unanswered(result: StreamResult, failure: Failure) -> StreamResult:
    """What is stored of a stream that cannot be read now."""
    begun = result.stream.captured.begun
    note = f"as it was at {begun}, because it could not be read: {failure.error.message}"
    return replace(result, stream=replace(result.stream, warnings=(*result.stream.warnings, note)), incomplete=True)


async def _first_of(seconds: float, *events: asyncio.Event) -> None:
    """Wait for so long, or until one of the events is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
