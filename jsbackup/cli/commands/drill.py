"""`jsbackup drill`. The engine is imported when it is called: `--help` and completion load this module."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jsbackup import times
from jsbackup.cli.options.command import Command
from jsbackup.cli.options.completion import complete_backup, complete_stream
from jsbackup.cli.options.context import Shared, jobs_option
from jsbackup.cli.options.latest import LATEST, choosing_options, find_backup, parse_choosing
from jsbackup.cli.options.leases import lock_timeout_option, reading
from jsbackup.cli.options.opening import open_repository, run_async
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.grouped import Said, tell_each
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import Output, format_bytes, format_count, format_seconds
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.reports import consumer_result_json, consumer_result_text
from jsbackup.cli.output.terminal import hide_logins
from jsbackup.config import environment, excludes_nothing, is_chosen, parse_glob
from jsbackup.errors import (
    IncompleteError,
    IntegrityError,
    Interrupted,
    JsBackupError,
    KeyUnavailable,
    PlanRefused,
    StoreError,
)
from jsbackup.exit_codes import combined
from jsbackup.model import JsonObject
from jsbackup.tool import TOOL

if TYPE_CHECKING:
    from jsbackup.engine.check.drill_server import ServerProgram
    from jsbackup.engine.restore.restore import RestoreReport
    from jsbackup.engine.restore.restored_stream import RestoredStream
    from jsbackup.planning.model import RestoreOptions
    from jsbackup.progress import Progress
    from jsbackup.repository.checks.outcomes import DrillOutcome
    from jsbackup.repository.manifest import Manifest, StreamBackup
    from jsbackup.repository.repository import Repository

__all__ = ["COMMANDS"]

# Logs, indexes and other files of a server besides messages.
_SPARE_BYTES = 256 << 20


@click.command(cls=Command, unattended=True)
@click.argument("backup", required=False, shell_complete=complete_backup)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@click.option(
    "--exclude", multiple=True, metavar="GLOB", shell_complete=complete_stream, help="Leave these streams out."
)
@click.option(
    "--nats-server",
    "program",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The server to start (default: nats-server on the PATH, else that of jsbackup[drill]).",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 5),
    default=1,
    show_default=True,
    help="Number of servers; more than one form a cluster.",
)
@click.option(
    "--work-dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="FOLDER",
    help="Where the servers store their data, in a folder that is removed afterwards (default: the temporary folder).",
)
@choosing_options
@jobs_option
@lock_timeout_option
def drill(
    shared: Shared,
    backup: str | None,
    streams: tuple[str, ...],
    exclude: tuple[str, ...],
    *,
    program: Path | None,
    nodes: int,
    work_dir: Path | None,
    origins: tuple[str, ...],
    tags: tuple[str, ...],
    jobs: int,
    lock_timeout: str,
) -> int:
    """Restore BACKUP into a throwaway server, prove all of it, and say how long it took.

    BACKUP is an id, its start, or `latest` (the default).

    The server is started for this, on 127.0.0.1 with a password of its own. Everything is restored, read back and
    compared; then the server is stopped and its data removed. The result is recorded in the repository, for 'jsbackup
    status --max-drill-age'. A drill of only some streams does not count there, nor one of a backup that leaves out
    streams of the same server and account that others have.
    """
    from jsbackup.engine.check.drill import adapt_streams
    from jsbackup.engine.check.drill_server import find_program
    from jsbackup.planning.model import RestoreOptions
    from jsbackup.repository.crypto.keys import needed

    start_log(shared)
    options = RestoreOptions(tuple(map(parse_glob, streams)), tuple(map(parse_glob, exclude)), pattern_may_miss=True)
    choosing = parse_choosing(backup, origins, tags)
    server = find_program(program, environment().get("PATH"), Path(sys.executable).parent / "nats-server")
    repository = open_repository(shared)
    if repository.descriptor.recipient is not None:
        needed(repository.secret)
    with reading(shared, repository, "drill", lock_timeout):
        manifest = find_backup(
            shared,
            repository,
            backup or LATEST,
            choosing,
            streams=options.streams,
            exclude=options.exclude,
            silent=shared.output.as_json,
        )
        uncounted = _why_uncounted(repository, manifest, options)
        adapted, notes = adapt_streams(manifest, options, nodes, server.version)
        chosen = [one for one in adapted.streams if is_chosen(one.name, options.streams, options.exclude)]
        run = _Drill(shared, repository, server, nodes, jobs, options, adapted, chosen, notes, uncounted)
        return run.carry_out(work_dir)


@dataclass(frozen=True, slots=True)
class _Drill:
    """A drill with the `chosen` streams of `manifest`, which are adapted as `notes` say.

    `uncounted` is why it does not count as a drill of the whole source; "" if it does.
    """

    shared: Shared
    repository: Repository
    server: ServerProgram
    nodes: int
    jobs: int
    options: RestoreOptions
    manifest: Manifest
    chosen: Sequence[StreamBackup]
    notes: Mapping[str, Sequence[str]]
    uncounted: str

    def carry_out(self, work_dir: Path | None) -> int:
        from jsbackup.engine.check.drill_folder import drill_folder

        begun_ns, clock = time.time_ns(), time.monotonic()
        warnings = self._warnings()
        for warning in warnings:
            self.shared.output.note(State("warning"), f": {warning}")
        try:
            with (
                drill_folder(work_dir) as folder,
                make_progress("drill", wanted=self.shared.progress) as progress,
            ):
                self._check_room(folder)
                report = self._restore(folder, progress)
        except Interrupted:
            raise
        except JsBackupError as error:
            self._record(self._outcome(begun_ns, error.exit_code, error=error.message))
            raise
        code = _code(report)
        outcome = self._outcome(begun_ns, code, report)
        self._record(outcome)
        document = self._json(report, outcome, warnings, time.monotonic() - clock)
        self.shared.output.result(document, lambda: self._tell(report, outcome, time.monotonic() - clock))
        return code

    def _restore(self, folder: Path, progress: Progress) -> RestoreReport:
        from jsbackup.engine.check.drill import run_drill
        from jsbackup.engine.check.drill_server import DrillServers
        from jsbackup.engine.restore.run import RestoreRun, RestoreSettings

        with DrillServers(self.server, self.nodes, folder, os.urandom) as servers:
            run = RestoreRun(servers.connection, self.options, RestoreSettings(jobs=self.jobs), progress)
            return run_async(run_drill(run, self.repository, self.manifest, self.nodes))

    def _warnings(self) -> list[str]:
        from jsbackup.planning.archive_choice import release_of

        there = [*(one.name for one in self.manifest.streams), *(one.name for one in self.manifest.skipped)]
        missed = excludes_nothing(there, self.options.exclude)
        found = [f"--exclude {pattern}: backup {self.manifest.id} has no such stream" for pattern in missed]
        source, ours = self.manifest.source, self.server.version
        release = release_of(source)
        if release is not None and tuple(map(int, ours.split(".")))[:2] < release:
            found.append(
                f"the backup comes from nats-server {source.server_version}, and is drilled on {ours}, which is older"
            )
        return found

    def _check_room(self, folder: Path) -> None:
        from jsbackup.engine.check.drill import needed_bytes

        needed = needed_bytes(self.chosen, self.nodes, self.jobs)
        needed += needed // 10 + _SPARE_BYTES
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise PlanRefused(
                f"there is room for {format_bytes(free)} in {folder.parent}, the drill may take {format_bytes(needed)}",
                hint="Name another folder with --work-dir, or drill some of the streams.",
            )

    def _outcome(
        self, begun_ns: int, code: int, report: RestoreReport | None = None, *, error: str = ""
    ) -> DrillOutcome:
        from jsbackup.engine.check.drill import newest_message_ns
        from jsbackup.repository.checks.outcomes import DrilledStream, DrillOutcome, FailedStream
        from jsbackup.repository.origin import origin_of

        source = self.manifest.source
        newest = newest_message_ns(self.chosen)
        outcome = DrillOutcome(
            begun=times.format_time(begun_ns),
            ended=times.format_time(time.time_ns()),
            ok=code == 0,
            code=code,
            backup=self.manifest.id,
            backup_created=self.manifest.created,
            error=hide_logins(error),
            newest_message=None if newest is None else times.format_time(newest),
            server=self.server.version,
            nodes=self.nodes,
            everything=not self.uncounted,
            origin=None if "imported" in source.extra else origin_of(source),
        )
        if report is None:
            return outcome
        drilled = [DrilledStream(s.name, s.messages, s.bytes, s.verified, s.seconds) for s in report.streams]
        failed = [FailedStream(one.name, hide_logins(one.error.message)) for one in report.failures]
        messages = sum(one.messages for one in drilled)
        return replace(outcome, restored=len(drilled), messages=messages, streams=tuple(drilled), failed=tuple(failed))

    def _record(self, outcome: DrillOutcome) -> None:
        from jsbackup.repository.checks.outcomes import put_drill

        try:
            put_drill(self.repository.documents, outcome, TOOL, os.urandom)
        except (KeyUnavailable, StoreError) as error:
            self.shared.output.note(f"status will not know of this drill: {error.message}")

    def _json(
        self, report: RestoreReport, outcome: DrillOutcome, warnings: Sequence[str], seconds: float
    ) -> JsonObject:
        return {
            "backup": self.manifest.id,
            "created": self.manifest.created,
            "ok": outcome.ok,
            "seconds": round(seconds, 3),
            "server": {"version": self.server.version, "nodes": self.nodes},
            "everything": outcome.everything,
            "uncounted": self.uncounted or None,
            "recovery_point": {
                "backup_age_seconds": round(_seconds_before(outcome.begun, outcome.backup_created), 3),
                "newest_message": outcome.newest_message,
                "newest_message_age_seconds": None
                if outcome.newest_message is None
                else round(_seconds_before(outcome.begun, outcome.newest_message), 3),
            },
            "streams": [
                {
                    "name": s.name,
                    "messages": s.messages,
                    "bytes": s.bytes,
                    "digest": s.digest,
                    "verified": s.verified,
                    "seconds": round(s.seconds, 3),
                    "consumers": [consumer_result_json(consumer) for consumer in s.consumers],
                    "notes": self._notes(s),
                }
                for s in report.streams
            ],
            "failed": [
                {"name": one.name, "code": one.error.exit_code, "reason": one.error.message} for one in report.failures
            ],
            "warnings": list(warnings),
        }

    def _notes(self, stream: RestoredStream) -> list[str]:
        return [*self.notes.get(stream.name, ()), *stream.notes]

    def _remarks(self, report: RestoreReport) -> Iterator[Said]:
        for s in report.streams:
            for note in self._notes(s):
                yield Said("note", s.name, note)
            for c in s.consumers:
                if c.note:
                    yield Said("note", s.name, consumer_result_text(c))
        for failure in report.failures:
            yield Said("failed", failure.name, failure.error.message)

    def _tell(self, report: RestoreReport, outcome: DrillOutcome, seconds: float) -> None:
        output: Output = self.shared.output
        output.table(
            ["STREAM", ">MESSAGES", ">BYTES", ">CONSUMERS", ">TIME", "PROOF"],
            [
                (
                    s.name,
                    format_count(s.messages),
                    format_bytes(s.bytes),
                    str(len(s.consumers)),
                    format_seconds(s.seconds),
                    State("verified" if s.verified else "not verified"),
                )
                for s in report.streams
            ],
        )
        tell_each(output, self._remarks(report))
        from jsbackup.engine.check.health_rules import span

        age = span(_seconds_before(outcome.begun, outcome.backup_created))
        newest = outcome.newest_message
        last = "" if newest is None else f", its newest message {span(_seconds_before(outcome.begun, newest))}"
        output.line(f"recovery point: the backup is {age} old{last}")
        where = f"nats-server {self.server.version}" + (f", {self.nodes} of them" if self.nodes > 1 else "")
        if self.uncounted:
            output.line(f"note: it does not count as a drill of everything: {self.uncounted}")
        came = "all restored and proved" if outcome.ok else "NOT all restored and proved"
        if not report.streams and not report.failures:
            came = "nothing restored, nothing proved: the backup has no stream"
        output.line(f"drilled backup {outcome.backup} in {format_seconds(seconds)} ({where}): ", State(came))


def _why_uncounted(repository: Repository, manifest: Manifest, options: RestoreOptions) -> str:
    """Return why a drill of this backup does not cover all of its source; "" if it does."""
    from jsbackup.repository.read.latest import find_unselected
    from jsbackup.repository.summary import summary_of

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
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return f"backup {manifest.id} is without {others[0].stream}{more}, which {others[0].backup} has"


def _code(report: RestoreReport) -> int:
    """Return the exit code: 0 if everything was restored and verified."""
    if report.failures:
        return combined((failure.error.exit_code for failure in report.failures), first=(IntegrityError.exit_code,))
    unproved = not report.streams or any(stream.incomplete or not stream.verified for stream in report.streams)
    return IncompleteError.exit_code if unproved else 0


def _seconds_before(later: str, earlier: str) -> float:
    return (times.parse_time(later) - times.parse_time(earlier)) / 1e9


COMMANDS = {"drill": drill}
