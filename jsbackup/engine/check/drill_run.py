"""One drill: from a backup to the servers that hold it again (`drill.py`), and to the record in the repository.

Its arguments are a repository and the manifest of a backup; its result is a report. The outcome is recorded for
`status`, also if the drill fails as a whole, but not if it is interrupted.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from jsbackup.config import excludes_nothing, format_bytes, hide_logins, is_chosen
from jsbackup.engine.check.drill import adapt_streams, needed_bytes, newest_message_ns, run_drill
from jsbackup.engine.check.drill_folder import drill_folder
from jsbackup.engine.check.drill_server import DrillServers
from jsbackup.engine.check.kept_server import KeptServer, keep_server
from jsbackup.engine.check.server_program import ServerProgram
from jsbackup.engine.restore.restore import RestoreReport
from jsbackup.engine.restore.run import Complete, RestoreRun, RestoreSettings
from jsbackup.errors import (
    IncompleteError,
    Interrupted,
    JsBackupError,
    KeyUnavailable,
    PlanRefused,
    StoreError,
)
from jsbackup.exit_codes import DAMAGE, combined
from jsbackup.planning.archive_choice import release_of
from jsbackup.planning.model import RestoreOptions
from jsbackup.progress import Progress
from jsbackup.readable import in_short
from jsbackup.repository.checks.ledger import DrilledStream, DrillOutcome, FailedStream, put_drill
from jsbackup.repository.manifest import Manifest, StreamBackup, summary_of
from jsbackup.repository.origin import origin_of
from jsbackup.repository.read.latest import find_unselected
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time, parse_time
from jsbackup.tool import TOOL

__all__ = ["DrillReport", "DrillRun"]

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
        there = [*(one.name for one in manifest.streams), *(one.name for one in manifest.skipped)]
        missed = excludes_nothing(there, self.options.exclude)
        found = [f"--exclude {pattern}: backup {manifest.id} has no such stream" for pattern in missed]
        return (*found, *_warn_if_older(manifest, self.server))

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
        return [one for one in manifest.streams if is_chosen(one.name, self.options.streams, self.options.exclude)]

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
            origin=None if "imported" in manifest.source.extra else origin_of(manifest.source),
        )

    def _record(self, outcome: DrillOutcome) -> DrillOutcome:
        """Record an outcome that ends now, and return it."""
        outcome = replace(outcome, ended=format_time(self.now_ns()))
        try:
            put_drill(self.repository.documents, outcome, TOOL, self.random)
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
        messages=sum(one.messages for one in drilled),
        streams=tuple(drilled),
        failed=tuple(FailedStream(one.name, hide_logins(one.error.message)) for one in restored.failures),
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
    names = in_short([one.stream for one in others], most=1)
    return f"backup {manifest.id} is without {names}, which {others[0].backup} has"
