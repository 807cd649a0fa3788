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
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from jsbackup.engine.backup.backup import BegunBackup, Chosen, finish_backup
from jsbackup.engine.backup.run import BackupRun
from jsbackup.engine.follow.followed_streams import FollowedStreams, HeldLeases
from jsbackup.engine.follow.poll import Look, Lookout
from jsbackup.engine.follow.tail import Backlog
from jsbackup.engine.link.concurrency import in_thread, with_own_threads
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.link.source import named_source
from jsbackup.engine.read.increment import Incremental
from jsbackup.errors import (
    NatsError,
    NatsPermissionDenied,
    ObjectNotFound,
    RepositoryLocked,
    RepositoryNotFound,
    StoreError,
)
from jsbackup.failure import Failure
from jsbackup.progress import ignored
from jsbackup.repository import layout
from jsbackup.repository.keep.leases import Lease
from jsbackup.repository.manifest import BackupResult, Manifest, Source
from jsbackup.repository.read.sources import FOLLOW_TAG
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.repository.write.receipts import Receipts
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["FollowOptions", "FollowReport", "follow_streams"]

_log = logging.getLogger(__name__)


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
                raise next((one.error for one in failed if one.name not in self._streams.being_read), failed[0].error)
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
