"""A drill: restore a backup into temporary servers (`drill_server.py`), with the planner and proof of any restore.

Settings that would prevent the drill from proving the stream are adapted and reported, also what a restore would lose
by them:

    num_replicas            at most as many as the drill has servers
    storage                 file, where the servers are older than 2.15 and cannot restore into memory
    placement               none: its servers have neither the cluster's name nor the tags
    max_age, allow_msg_ttl, subject_delete_marker_ttl, allow_msg_schedules
                            none: old messages would be gone before they can be compared, or new ones would come

In servers that stay, so that nothing goes away by looking:

    retention               limits: with interest or workqueue, messages go when a consumer acknowledges them, or when
                            the last one that wanted them is deleted
    inactive_threshold      of consumers: none, or a year for one that is not durable; no one uses them here

Everything else is as in the backup. Mirrors and sources stay: only streams of the same drill answer them.

**The folder** is for this user only, and removed afterwards, because it contains plain messages.

A drill that is killed cannot remove its folder. A lock file is held as long as the drill runs (the kernel releases the
lock), so the next drill in the same place removes this user's unlocked folders. The lock file gets its name once it is
locked.

**The record** in the repository: one drill leads from a backup to servers that hold it again, and to that record.

Its arguments are a repository and the manifest of a backup; its result is a report. The outcome is recorded for
`status`, also if the drill fails as a whole, but not if it is interrupted.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from jsbackup.config import excludes_nothing, format_bytes, hide_logins, is_chosen
from jsbackup.config.connection import Connection
from jsbackup.engine.check.drill_server import DrillServers, KeptServer, ServerProgram, keep_server
from jsbackup.engine.link.concurrency import with_own_threads
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.engine.restore.restore import RestoreReport, run_restore
from jsbackup.engine.restore.run import Complete, RestoreRun, RestoreSettings
from jsbackup.errors import (
    IncompleteError,
    Interrupted,
    JsBackupError,
    KeyUnavailable,
    NatsError,
    PlanRefused,
    StoreError,
    UsageError,
)
from jsbackup.exit_codes import DAMAGE, combined
from jsbackup.model import JsonObject
from jsbackup.planning.archive_choice import release_of
from jsbackup.planning.configs.features import MEMORY_SNAPSHOTS_SINCE
from jsbackup.planning.configs.stream_config import check_configs
from jsbackup.planning.forecast import find_expiring
from jsbackup.planning.model import RestoreOptions
from jsbackup.planning.selection.subset import kept_by_bounds
from jsbackup.progress import Progress
from jsbackup.readable import format_count, in_short
from jsbackup.repository.checks.ledger import DrilledStream, DrillOutcome, FailedStream, record_run
from jsbackup.repository.manifest import ConsumerBackup, Manifest, StreamBackup, summary_of
from jsbackup.repository.origin import origin_of
from jsbackup.repository.read.latest import find_unselected
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time, parse_time
from jsbackup.tool import TOOL
from jsbackup.transforms.reshape import Reshape

__all__ = ["DrillReport", "DrillRun"]

_PREFIX = "jsbackup-drill-"
_LOCK = "lock"


@contextmanager
def drill_folder(work_dir: Path | None) -> Iterator[Path]:
    """Make a folder below `work_dir`, or in the system's temporary folder. Raises UsageError if that fails."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=work_dir)).absolute()
    except OSError as error:
        raise UsageError(
            f"no folder can be made for the drill: {(error.strerror or str(error)).lower()}",
            hint="Name one to make it in with --work-dir.",
        ) from error
    try:
        begun = folder / f"{_LOCK}.new"
        with begun.open("w") as lock:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                begun.rename(folder / _LOCK)
            _remove_abandoned(folder)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(own: Path) -> None:
    for folder in own.parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder == own or folder.lstat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


_READY_SECONDS = 60.0
_PAUSE_SECONDS = 0.1
_PROBE_SECONDS = 1.0
_PROBE = "jsbackup_drill_probe"
_YEAR_NS = 365 * 86_400 * 10**9

_FINITE = ("max_age", "allow_msg_ttl", "subject_delete_marker_ttl", "allow_msg_schedules")


def adapt_streams(
    manifest: Manifest, options: RestoreOptions, nodes: int, version: str, *, now_ns: int = 0, stays: bool = False
) -> tuple[Manifest, Mapping[str, list[str]]]:
    """Return the manifest, adapted to `nodes` servers of this version, and what was adapted in each stream.

    `stays`: others look at it afterwards.

    Raises FormatError for a damaged configuration.
    """
    notes: dict[str, list[str]] = {}
    keeps_memory = tuple(map(int, version.split("."))) >= MEMORY_SNAPSHOTS_SINCE
    streams: list[StreamBackup] = []
    for entry in manifest.streams:
        if is_chosen(entry.name, options.streams, options.exclude):
            check_configs(entry)
            config, changes = _adapted(entry.config, nodes, keeps_memory)
            if (lost := find_expiring(kept_by_bounds(entry, Reshape()), entry.config, now_ns)).most:
                changes.append(f"a restore would lose {lost.count} of {format_count(lost.of, 'message')} by max_age")
            consumers = entry.consumers
            if stays and (retention := config.get("retention", "limits")) != "limits":
                config["retention"] = "limits"
                changes.append(f"restored with retention limits instead of {retention}")
            if stays and (consumers := tuple(map(_lasting, consumers))) != entry.consumers:
                changes.append("consumers restored without inactive_threshold")
            notes[entry.name] = changes
            streams.append(replace(entry, config=config, consumers=consumers))
        else:
            streams.append(entry)
    return replace(manifest, streams=tuple(streams)), notes


def _adapted(before: JsonObject, nodes: int, keeps_memory: bool) -> tuple[JsonObject, list[str]]:
    config, changes = dict(before), []
    replicas = before.get("num_replicas") or 1
    if replicas > nodes:
        config["num_replicas"] = nodes
        changes.append(f"restored with {nodes} instead of {replicas} replicas")
    if before.get("storage") == "memory" and not keeps_memory:
        config["storage"] = "file"
        changes.append("restored in file storage")
    if before.get("placement"):
        del config["placement"]
        changes.append("restored without its placement")
    for field in _FINITE:
        if before.get(field):
            del config[field]
            changes.append(f"restored without {field}")
    return config, changes


def _lasting(consumer: ConsumerBackup) -> ConsumerBackup:
    if not consumer.config.get("inactive_threshold"):
        return consumer
    config = dict(consumer.config)
    if config.get("durable_name"):
        del config["inactive_threshold"]
    else:
        config["inactive_threshold"] = _YEAR_NS
    return replace(consumer, config=config)


def needed_bytes(streams: Sequence[StreamBackup], nodes: int, jobs: int) -> int:
    """Return the most that the servers need on disk: every replica, and the archives of streams being restored."""
    on_disk = [stream for stream in streams if stream.config.get("storage") != "memory"]
    kept = sum(_bytes(stream) * min(nodes, stream.config.get("num_replicas") or 1) for stream in on_disk)
    arriving = sorted((_bytes(stream) for stream in streams), reverse=True)[:jobs]
    return kept + sum(arriving)


def _bytes(stream: StreamBackup) -> int:
    return max(stream.captured.bytes, stream.state.bytes)


def newest_message_ns(streams: Sequence[StreamBackup]) -> int | None:
    """Return the newest time of a message in the backup; None if there is no message, or it is not known."""
    return max((ref.max_ns for stream in streams for ref in stream.segments), default=None)


@with_own_threads
async def run_drill(run: RestoreRun, repository: Repository, manifest: Manifest, nodes: int) -> RestoreReport:
    """Wait for the servers, restore an adapted manifest and prove it.

    Raises PlanRefused, IntegrityError, NatsError, StoreError.
    """
    await _wait_ready(run.connection, nodes)
    return await run_restore(run, repository, manifest)


async def _wait_ready(connection: Connection, nodes: int) -> None:
    """Wait until a stream with a replica on each server can be created. Raises NatsError if that takes too long."""
    deadline = time.monotonic() + _READY_SECONDS
    config: JsonObject = {"name": _PROBE, "subjects": [_PROBE], "storage": "memory", "retention": "limits"}
    # Requests sent before there is a leader are never answered.
    async with connect_jetstream(replace(connection, timeout_seconds=_PROBE_SECONDS)) as js:
        while True:
            try:
                await js.create_stream({**config, "num_replicas": nodes})
                break
            except NatsError as error:
                if time.monotonic() > deadline:
                    raise NatsError(f"the servers did not start in time: {error.message}") from error
            await asyncio.sleep(_PAUSE_SECONDS)
        await js.delete_stream(_PROBE)


# Logs, indexes and other files of a server besides messages.
_SPARE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class DrillReport:
    """The result of a drill. `adapted` says by stream what was adapted, `uncounted` why it does not count as a drill of
    everything ("" if it does). `kept` is the server if it stays.
    """

    outcome: DrillOutcome
    restored: RestoreReport
    adapted: Mapping[str, Sequence[str]]
    warnings: tuple[str, ...]
    uncounted: str
    seconds: float
    kept: KeptServer | None = None

    @property
    def backup_age_seconds(self) -> float:
        """How old the backup was when the drill began."""
        return self._seconds_since(self.outcome.backup_created)

    @property
    def newest_message_age_seconds(self) -> float | None:
        """How old its newest message was; None if there is none, or its time is not known."""
        newest = self.outcome.newest_message
        return None if newest is None else self._seconds_since(newest)

    def _seconds_since(self, earlier: str) -> float:
        return (parse_time(self.outcome.begun) - parse_time(earlier)) / 1e9


@dataclass(frozen=True, slots=True)
class DrillRun:
    """A drill of the streams of `manifest` that `options` choose, on `nodes` servers, `jobs` streams at a time.

    `note` gets remarks for the user. The servers store in a folder below `work_dir`, or in the temporary folder.
    """

    repository: Repository
    manifest: Manifest
    options: RestoreOptions
    server: ServerProgram
    note: Callable[[str], None]
    nodes: int = 1
    jobs: int = 4
    work_dir: Path | None = None
    now_ns: Callable[[], int] = time.time_ns
    random: Callable[[int], bytes] = os.urandom

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know before it begins."""
        manifest = self.manifest
        names = [*(stream.name for stream in manifest.streams), *(skip.name for skip in manifest.skipped)]
        missed = excludes_nothing(names, self.options.exclude)
        sentences = [f"--exclude {pattern}: backup {manifest.id} has no such stream" for pattern in missed]
        return (*sentences, *_warn_if_older(manifest, self.server))

    def carry_out(self, complete: Complete, progress: Progress, keep: ExitStack | None = None) -> DrillReport:
        """Start servers, restore, prove and record; `complete` runs the restore.

        With `keep` the servers stay until that is closed, if any stream was restored.

        Raises FormatError for a damaged configuration, UsageError and PlanRefused if there is no place for the servers,
        and as `run_restore`.
        """
        uncounted = _why_uncounted(self.repository, self.manifest, self.options)
        manifest, adapted = adapt_streams(
            self.manifest,
            self.options,
            self.nodes,
            self.server.version,
            now_ns=self.now_ns(),
            stays=keep is not None,
        )
        outcome, clock = self._begun(everything=not uncounted), time.monotonic()
        try:
            with ExitStack() as stack:
                folder = stack.enter_context(drill_folder(self.work_dir))
                _check_room(folder, needed_bytes(self._chosen(manifest), self.nodes, self.jobs))
                servers = stack.enter_context(DrillServers(self.server, self.nodes, folder, random=self.random))
                run = RestoreRun(servers.connection, self.options, RestoreSettings(jobs=self.jobs), progress)
                restored = complete(run_drill(run, self.repository, manifest, self.nodes))
                kept = None
                if keep is not None and restored.streams:
                    kept = keep_server(servers, folder)
                    keep.enter_context(stack.pop_all())
        except Interrupted:
            raise
        except JsBackupError as error:
            self._record(replace(outcome, code=error.exit_code, error=hide_logins(error.message)))
            raise
        outcome = self._record(_with_result(outcome, restored))
        return DrillReport(outcome, restored, adapted, self.warnings, uncounted, time.monotonic() - clock, kept)

    def _chosen(self, manifest: Manifest) -> list[StreamBackup]:
        return [
            stream for stream in manifest.streams if is_chosen(stream.name, self.options.streams, self.options.exclude)
        ]

    def _begun(self, *, everything: bool) -> DrillOutcome:
        """Return the outcome as far as it is known in advance."""
        manifest, now = self.manifest, format_time(self.now_ns())
        newest = newest_message_ns(self._chosen(manifest))
        return DrillOutcome(
            begun=now,
            ended=now,
            ok=False,
            code=JsBackupError.exit_code,
            backup=manifest.id,
            backup_created=manifest.created,
            newest_message=None if newest is None else format_time(newest),
            server=self.server.version,
            nodes=self.nodes,
            everything=everything,
            origin=None if manifest.source.imported is not None else origin_of(manifest.source),
        )

    def _record(self, outcome: DrillOutcome) -> DrillOutcome:
        """Record an outcome that ends now, and return it."""
        outcome = replace(outcome, ended=format_time(self.now_ns()))
        try:
            record_run(self.repository.documents, outcome, TOOL, self.random)
        except (KeyUnavailable, StoreError) as error:
            self.note(f"status will not know of this drill: {error.message}")
        return outcome


def _with_result(outcome: DrillOutcome, restored: RestoreReport) -> DrillOutcome:
    code = _proof_code(restored)
    drilled = [DrilledStream(s.name, s.messages, s.bytes, s.verified, s.seconds) for s in restored.streams]
    return replace(
        outcome,
        ok=code == 0,
        code=code,
        restored=len(drilled),
        messages=sum(stream.messages for stream in drilled),
        streams=tuple(drilled),
        failed=tuple(FailedStream(failure.name, hide_logins(failure.error.message)) for failure in restored.failures),
    )


def _check_room(folder: Path, bytes_: int) -> None:
    """Raise PlanRefused if there is no room for streams of this size, and for what else a server stores."""
    needed = bytes_ + bytes_ // 10 + _SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise PlanRefused(
            f"{folder.parent} has {format_bytes(free)} free; this may need {format_bytes(needed)}",
            hint="Name another folder with --work-dir, or choose some of the streams.",
        )


def _warn_if_older(manifest: Manifest, server: ServerProgram) -> tuple[str, ...]:
    """Return a warning if the server is of an older release than the origin."""
    release = release_of(manifest.source)
    if release is None or tuple(map(int, server.version.split(".")))[:2] >= release:
        return ()
    origin = manifest.source.server_version
    return (f"the backup comes from nats-server {origin}, and is drilled on {server.version}, which is older",)


def _proof_code(restored: RestoreReport) -> int:
    """Return the exit code: 0 if everything was restored and verified."""
    if restored.failures:
        return combined((failure.error.exit_code for failure in restored.failures), first=(DAMAGE,))
    unproved = not restored.streams or any(stream.incomplete or not stream.verified for stream in restored.streams)
    return IncompleteError.exit_code if unproved else 0


def _why_uncounted(repository: Repository, manifest: Manifest, options: RestoreOptions) -> str:
    """Return why a drill of this backup does not cover all of its source; "" if it does."""
    if not all(is_chosen(stream.name, options.streams, options.exclude) for stream in manifest.streams):
        return "some streams are left out"
    if not manifest.streams:
        return f"backup {manifest.id} has no stream"
    if summary_of(manifest).selection.config_only:
        return f"backup {manifest.id} has configurations only"
    if manifest.skipped:
        return f"backup {manifest.id} lacks {manifest.skipped[0].name}"
    others = find_unselected(repository, manifest)
    if not others:
        return ""
    names = in_short([other.stream for other in others], most=1)
    return f"backup {manifest.id} is without {names}, which {others[0].backup} has"
