"""Backup: every chosen stream of an account into a repository, side by side, then the manifest that commits it.

A stream that fails does not stop the others; it is named with its reason, and the backup is partial. Segments are
stored while they arrive; nobody sees them until the manifest is written, last.

Each of `jobs` workers has a connection of its own, so that a reconnect or a slow stream troubles no other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TypedDict

from jsbackup import __version__
from jsbackup.config import Connection, Glob, is_chosen
from jsbackup.engine.capture import CaptureLimits
from jsbackup.engine.copy_reach import ask_copied, with_copied
from jsbackup.engine.downstream import CaptureOrder, order_of
from jsbackup.engine.emptied import find_lost
from jsbackup.engine.failure import Failure
from jsbackup.engine.increment import Incremental
from jsbackup.engine.jetstream import JetStream, connect_jetstream
from jsbackup.engine.source import named_source
from jsbackup.engine.stream_backup import StreamResult, back_up_stream
from jsbackup.engine.watch import advisories
from jsbackup.errors import JsBackupError, NatsError, UsageError
from jsbackup.progress import Progress
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository import layout, leases
from jsbackup.repository.locking import BackupLock, LockRequest, open_lock
from jsbackup.repository.manifest import Manifest, Result, Selection, SkippedStream, Source, StreamBackup
from jsbackup.repository.previous import previous_streams
from jsbackup.repository.receipts import Receipts
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time

__all__ = [
    "TOOL",
    "BackupOptions",
    "BackupReport",
    "BegunBackup",
    "Chosen",
    "back_up_streams",
    "begin_backup",
    "choose_streams",
    "finish_backup",
    "run_backup",
]

_log = logging.getLogger(__name__)

TOOL = f"jsbackup {__version__}"


@dataclass(frozen=True, slots=True)
class BackupOptions:
    """What the user asked for. `streams` and `exclude` are names or globs; no `streams` means all.

    `allow_empty`: that nothing is left of what there was before is as it should be. `profile` is that of the command.
    """

    streams: tuple[Glob, ...] = ()
    exclude: tuple[Glob, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    profile: str = ""
    allow_empty: bool = False
    consumers: bool = True
    config_only: bool = False
    check: bool = False
    incremental: Incremental = Incremental.AUTO
    jobs: int = 4
    lock: LockRequest | None = None
    limits: CaptureLimits = field(default_factory=CaptureLimits)


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What came of it. `manifest` is None if nothing was committed because every stream failed.

    `note` is a sentence about all of it; "" for none.
    """

    manifest: Manifest | None
    streams: tuple[StreamResult, ...]
    failures: tuple[Failure, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Streams to read, largest first, with the last backup of each that has one. Travels to other processes."""

    source: Source
    streams: tuple[StreamInfo, ...]
    earlier: Mapping[str, StreamBackup]


@dataclass(frozen=True, slots=True)
class BegunBackup:
    """A backup before its streams are read. `failures` are streams that cannot be."""

    begun_ns: int
    chosen: Chosen
    failures: tuple[Failure, ...]
    receipts: Receipts
    lock: BackupLock | None


async def run_backup(
    connection: Connection,
    repository: Repository,
    options: BackupOptions,
    progress: Progress,
    *,
    lease: leases.Lease,
    clock_ns: Callable[[], int] = time.time_ns,
    random: Callable[[int], bytes],
) -> BackupReport:
    """Back streams up. `lease` is a shared one, renewed by the caller.

    Raises:
        UsageError: a named stream does not exist.
        NatsError: the server cannot be asked.
        RepositoryLocked: the lease was lost; nothing was committed.
    """
    async with _begun(connection, repository, options, progress, lease, clock_ns) as begun:
        results, failed = await back_up_streams(
            connection, repository, options, progress, begun.chosen, begun.receipts, clock_ns
        )
    return await asyncio.to_thread(finish_backup, repository, options, begun, results, failed, lease, random, clock_ns)


async def begin_backup(
    connection: Connection,
    repository: Repository,
    options: BackupOptions,
    progress: Progress,
    *,
    lease: leases.Lease,
    clock_ns: Callable[[], int] = time.time_ns,
) -> BegunBackup:
    """The backup that is to be made, whose streams are going to be read elsewhere. Raises as `run_backup`."""
    async with _begun(connection, repository, options, progress, lease, clock_ns) as begun:
        return begun


@asynccontextmanager
async def _begun(
    connection: Connection,
    repository: Repository,
    options: BackupOptions,
    progress: Progress,
    lease: leases.Lease,
    clock_ns: Callable[[], int],
) -> AsyncIterator[BegunBackup]:
    """Ask the server what there is. While this is entered its advisories are logged."""
    begun_ns = clock_ns()
    lock = None
    if options.lock is not None:
        lock = await asyncio.to_thread(open_lock, repository, options.lock, begun_ns / 10**9)
    async with connect_jetstream(connection) as js, advisories(js.link):
        await js.account()  # JetStream is there, and for this account
        source = replace(await named_source(js, connection), profile=options.profile or None)
        streams, failures = await choose_streams(js, options.streams, options.exclude)
        for origin, copies in order_of(streams).broken.items():
            _log.warning(
                "streams copy in a circle: %s is read before %s, which may have more of it", origin, ", ".join(copies)
            )
        if not options.config_only and options.check:
            _log.info("the server checks each stream before it sends it; that may take long")
        if not options.config_only:
            progress.expect({info.name: info.state.bytes for info in streams})
        incarnations = {
            info.name: layout.incarnation(source.cluster, source.account, info.name, info.created) for info in streams
        }
        receipts = Receipts(repository.documents, lease.id, format_time(begun_ns), TOOL)
        earlier: Mapping[str, StreamBackup] = {}
        if not options.config_only:
            earlier = await asyncio.to_thread(previous_streams, repository, incarnations)
            await asyncio.to_thread(receipts.read_earlier)
        yield BegunBackup(begun_ns, Chosen(source, tuple(streams), earlier), tuple(failures), receipts, lock)


def finish_backup(
    repository: Repository,
    options: BackupOptions,
    begun: BegunBackup,
    results: Sequence[StreamResult],
    failed: Sequence[Failure],
    lease: leases.Lease,
    random: Callable[[int], bytes],
    clock_ns: Callable[[], int] = time.time_ns,
) -> BackupReport:
    """Commit what was stored, if anything was. Raises RepositoryLocked and StoreError."""
    failures = (*begun.failures, *failed)
    if failures and not results:
        return BackupReport(None, (), failures)
    previous = next(reversed(repository.backups()), None)
    manifest = Manifest(
        id=layout.backup_id(begun.begun_ns, random(3), previous),
        created=format_time(begun.begun_ns),
        tool=TOOL,
        source=begun.chosen.source,
        **_outcome(results, failures),
        tags=dict(options.tags),
        previous=previous,
        selection=_selection(options),
        ended=format_time(clock_ns()),
        stored_bytes=sum(result.stored_bytes for result in results),
    )
    note = ""
    if not failures:
        lost = find_lost(repository, manifest, results, begun.chosen.earlier)
        results, failures, note = lost.results, lost.gone, lost.note
        manifest = replace(manifest, **_outcome(results, failures))
    if begun.lock is not None:
        manifest = begun.lock.lock_content(manifest)
    leases.commit(repository, manifest, lease)
    folders = {repository.objects.sealing.folder(stream.name, stream.incarnation) for stream in manifest.streams}
    begun.receipts.settle(folders)
    if begun.lock is not None:
        begun.lock.lock_manifest(manifest)
    return BackupReport(manifest, tuple(results), failures, note)


class _Outcome(TypedDict):
    result: Result
    streams: tuple[StreamBackup, ...]
    skipped: tuple[SkippedStream, ...]


def _outcome(results: Sequence[StreamResult], failures: Sequence[Failure]) -> _Outcome:
    """What a manifest says of it."""
    return {
        "result": Result.PARTIAL if failures or any(result.incomplete for result in results) else Result.COMPLETE,
        "streams": tuple(result.stream for result in results),
        "skipped": tuple(SkippedStream(failure.name, failure.error.message) for failure in failures),
    }


def _selection(options: BackupOptions) -> Selection:
    """In an order that does not depend on how it was typed."""
    streams, exclude = (sorted({glob.pattern for glob in globs}) for globs in (options.streams, options.exclude))
    return Selection(
        tuple(streams), tuple(exclude), options.consumers, options.config_only, allow_empty=options.allow_empty
    )


async def choose_streams(
    js: JetStream, names: Sequence[Glob], exclude: Sequence[Glob]
) -> tuple[list[StreamInfo], list[Failure]]:
    """The streams that are meant, largest first, and those that are too but did not answer.

    Raises UsageError if one is named that does not exist.
    """
    listing = await js.streams()
    silent = dict.fromkeys(listing.missing, "it did not answer")
    silent.update({name: f"it is offline: {reason}" for name, reason in listing.offline.items()})
    there = set(listing.entries) | set(silent)
    for glob in names:
        if not any(glob.matches(name) for name in there):
            raise UsageError(
                f"no stream matches {glob.pattern}", hint="See 'nats stream ls' for the streams there are."
            )

    def wanted(name: str) -> bool:
        return is_chosen(name, names, exclude)

    failures = [
        Failure(name, NatsError(f"stream {name} cannot be read: {reason}"))
        for name, reason in sorted(silent.items())
        if wanted(name)
    ]
    infos = [info for name, info in listing.entries.items() if wanted(name) and name not in silent]
    return sorted(infos, key=lambda info: (-info.state.bytes, info.name)), failures


async def back_up_streams(
    connection: Connection,
    repository: Repository,
    options: BackupOptions,
    progress: Progress,
    chosen: Chosen,
    receipts: Receipts,
    clock_ns: Callable[[], int],
) -> tuple[list[StreamResult], list[Failure]]:
    """Store all of them, `jobs` at a time; results in order of names. What fails is among the failures.

    What copies from a stream is captured before it (`downstream.py`).
    """
    order = CaptureOrder(chosen.streams)
    at_once = min(options.jobs, len(chosen.streams))
    options = replace(options, limits=options.limits.beside(at_once - 1))
    results: list[StreamResult] = []
    failures: list[Failure] = []
    unreachable: list[JsBackupError] = []

    async def store(js: JetStream, info: StreamInfo) -> bool:
        began = time.monotonic()
        try:
            copied = await ask_copied(js, info)
            stream = await back_up_stream(
                js,
                repository,
                info,
                options,
                progress,
                chosen.source,
                chosen.earlier.get(info.name),
                receipts,
                clock_ns,
            )
        except JsBackupError as error:
            _log.warning("stream %s failed: %s", info.name, error.message)
            failures.append(Failure(info.name, error))
            return False
        finally:
            progress.finish(info.name)
            await order.done(info.name)
        results.append(replace(with_copied(stream, copied), seconds=time.monotonic() - began))
        return True

    async def work() -> None:
        """Until no stream waits, or no connection can be had: then the others do what is left, or nobody can."""
        try:
            while order.waiting:
                async with connect_jetstream(connection) as js:
                    while (info := await order.take()) and (await store(js, info) or js.link.connected):
                        pass
        except JsBackupError as error:
            unreachable.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
    failures += [Failure(info.name, unreachable[-1]) for info in order.waiting]
    return sorted(results, key=lambda r: r.stream.name), sorted(failures, key=lambda f: f.name)
