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

from jsbackup import __version__
from jsbackup.config import Connection, Glob
from jsbackup.engine.capture import CaptureLimits
from jsbackup.engine.increment import Incremental
from jsbackup.engine.jetstream import JetStream
from jsbackup.engine.link import Link
from jsbackup.engine.plan import is_chosen
from jsbackup.engine.stream_backup import StreamResult, back_up_stream
from jsbackup.engine.watch import advisories
from jsbackup.errors import JsBackupError, NatsError, UsageError
from jsbackup.progress import Progress
from jsbackup.protocol.api import ApiPrefix
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository import layout, leases
from jsbackup.repository.locking import LockRequest, open_lock
from jsbackup.repository.manifest import Manifest, Result, Selection, SkippedStream, Source, StreamBackup
from jsbackup.repository.previous import previous_streams
from jsbackup.repository.receipts import Receipts
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time

__all__ = [
    "BackupOptions",
    "BackupReport",
    "Failure",
    "choose_streams",
    "connect_jetstream",
    "describe_source",
    "run_backup",
]

_log = logging.getLogger(__name__)

_TOOL = f"jsbackup {__version__}"


@dataclass(frozen=True, slots=True)
class BackupOptions:
    """What the user asked for. `streams` and `exclude` are names or globs; no `streams` means all."""

    streams: tuple[Glob, ...] = ()
    exclude: tuple[Glob, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    consumers: bool = True
    config_only: bool = False
    check: bool = False
    incremental: Incremental = Incremental.AUTO
    jobs: int = 4
    lock: LockRequest | None = None
    limits: CaptureLimits = field(default_factory=CaptureLimits)


@dataclass(frozen=True, slots=True)
class Failure:
    """A stream that is not in the backup (or not restored), and why."""

    name: str
    error: JsBackupError


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What came of it. `manifest` is None if nothing was committed because every stream failed."""

    manifest: Manifest | None
    streams: tuple[StreamResult, ...]
    failures: tuple[Failure, ...]


@asynccontextmanager
async def connect_jetstream(connection: Connection, name: str = "jsbackup") -> AsyncIterator[JetStream]:
    """A link of its own with the JetStream API on it."""
    async with await Link.connect(connection, name=name) as link:
        yield JetStream(link, ApiPrefix(connection.api_prefix), connection.timeout_seconds)


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
    begun_ns = clock_ns()
    lock = None
    if options.lock is not None:
        lock = await asyncio.to_thread(open_lock, repository, options.lock, begun_ns / 10**9)
    async with connect_jetstream(connection) as js, advisories(js.link):
        await js.account()  # JetStream is there, and for this account
        source = await describe_source(js, connection)
        streams, failures = await choose_streams(js, options.streams, options.exclude)
        if not options.config_only and options.check:
            _log.info("the server checks each stream before it sends it; that may take long")
        if not options.config_only:
            progress.expect({info.name: info.state.bytes for info in streams})
        incarnations = {
            info.name: layout.incarnation(source.cluster, source.account, info.name, info.created) for info in streams
        }
        receipts = Receipts(repository.documents, lease.id, format_time(begun_ns), _TOOL)
        earlier: Mapping[str, StreamBackup] = {}
        if not options.config_only:
            earlier = await asyncio.to_thread(previous_streams, repository, incarnations)
            await asyncio.to_thread(receipts.read_earlier)
        results, failed = await _run_workers(
            connection, repository, options, progress, source, streams, earlier, receipts, clock_ns
        )
    failures += failed
    if failures and not results:
        return BackupReport(None, (), tuple(failures))
    previous = next(reversed(repository.backups()), None)
    manifest = Manifest(
        id=layout.backup_id(begun_ns, random(3), previous),
        created=format_time(begun_ns),
        tool=_TOOL,
        source=source,
        result=Result.PARTIAL if failures or any(result.incomplete for result in results) else Result.COMPLETE,
        streams=tuple(result.stream for result in results),
        skipped=tuple(SkippedStream(failure.name, failure.error.message) for failure in failures),
        tags=dict(options.tags),
        previous=previous,
        selection=_selection(options),
    )
    if lock is not None:
        manifest = await asyncio.to_thread(lock.lock_content, manifest)
    await asyncio.to_thread(leases.commit, repository, manifest, lease)
    folders = {repository.objects.sealing.folder(stream.name, stream.incarnation) for stream in manifest.streams}
    await asyncio.to_thread(receipts.settle, folders)
    if lock is not None:
        await asyncio.to_thread(lock.lock_manifest, manifest)
    return BackupReport(manifest, tuple(results), tuple(failures))


def _selection(options: BackupOptions) -> Selection:
    """In an order that does not depend on how it was typed."""
    streams, exclude = (sorted({glob.pattern for glob in globs}) for globs in (options.streams, options.exclude))
    return Selection(tuple(streams), tuple(exclude), options.consumers, options.config_only)


async def describe_source(js: JetStream, connection: Connection) -> Source:
    """Where streams come from, by what the server said."""
    return Source(
        server_version=".".join(map(str, js.link.server_version)),
        cluster=js.link.cluster_name or js.link.server_name or "",
        account=await js.link.account() or "",
        domain=connection.js_domain or js.link.domain,
        context=connection.context,
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


async def _run_workers(
    connection: Connection,
    repository: Repository,
    options: BackupOptions,
    progress: Progress,
    source: Source,
    streams: list[StreamInfo],
    earlier: Mapping[str, StreamBackup],
    receipts: Receipts,
    clock_ns: Callable[[], int],
) -> tuple[list[StreamResult], list[Failure]]:
    """All streams, `jobs` at a time; results in order of names."""
    waiting = list(reversed(streams))
    at_once = min(options.jobs, len(streams))
    options = replace(options, limits=options.limits.beside(at_once - 1))
    results: list[StreamResult] = []
    failures: list[Failure] = []
    unreachable: list[JsBackupError] = []

    async def store(js: JetStream, info: StreamInfo) -> bool:
        began = time.monotonic()
        try:
            stream = await back_up_stream(
                js, repository, info, options, progress, source, earlier.get(info.name), receipts, clock_ns
            )
        except JsBackupError as error:
            _log.warning("stream %s failed: %s", info.name, error.message)
            failures.append(Failure(info.name, error))
            return False
        finally:
            progress.finish(info.name)
        results.append(replace(stream, seconds=time.monotonic() - began))
        return True

    async def work() -> None:
        """Until no stream waits, or no connection can be had: then the others do what is left, or nobody can."""
        try:
            while waiting:
                async with connect_jetstream(connection) as js:
                    while waiting and (await store(js, waiting.pop()) or js.link.connected):
                        pass
        except JsBackupError as error:
            unreachable.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
    failures += [Failure(info.name, unreachable[-1]) for info in waiting]
    return sorted(results, key=lambda r: r.stream.name), sorted(failures, key=lambda f: f.name)
