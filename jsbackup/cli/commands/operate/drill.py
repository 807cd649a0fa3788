"""`jsbackup drill`. The engine is imported when it is called: `--help` and completion load this module."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jsbackup.cli.options.latest import LATEST, WantedBackup, find_backup
from jsbackup.cli.options.leases import reading
from jsbackup.cli.options.opening import open_repository, run_async
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.grouped import Said, said_lines
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import failure_json, format_bytes, format_count, format_seconds
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.reports import consumer_result_text, restored_stream_json
from jsbackup.cli.output.result import Block, Result, Table
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared, jobs_option
from jsbackup.cli.parsing.typed_amounts import WholeNumber
from jsbackup.cli.stop_signals import closing_undisturbed
from jsbackup.config import environment, parse_glob
from jsbackup.errors import UsageError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.engine.check.drill_run import DrillReport
    from jsbackup.engine.check.kept_server import KeptServer
    from jsbackup.engine.restore.restore import RestoreReport
    from jsbackup.engine.restore.restored_stream import RestoredStream

__all__ = ["COMMANDS"]


def _result(report: DrillReport) -> Result:
    """Return the result; its servers may still run."""
    document = _drill_json(report)
    if report.kept is None:
        return Result(document, _text(report), report.outcome.code)
    text = [*_text(report), *_kept_text(report.kept)]
    return Result({**document, "kept": _kept_json(report.kept)}, text, report.outcome.code, at_once=True)


def _drill_json(report: DrillReport) -> JsonObject:
    outcome, newest_age = report.outcome, report.newest_message_age_seconds
    return {
        "backup": outcome.backup,
        "created": outcome.backup_created,
        "ok": outcome.ok,
        "seconds": round(report.seconds, 3),
        "server": {"version": outcome.server, "nodes": outcome.nodes},
        "everything": outcome.everything,
        "uncounted": report.uncounted or None,
        "recovery_point": {
            "backup_age_seconds": round(report.backup_age_seconds, 3),
            "newest_message": outcome.newest_message,
            "newest_message_age_seconds": None if newest_age is None else round(newest_age, 3),
        },
        "streams": [restored_stream_json(s, _notes(report, s)) for s in report.restored.streams],
        "failed": [failure_json(one.name, one.error) for one in report.restored.failures],
        "warnings": list(report.warnings),
    }


def _notes(report: DrillReport, stream: RestoredStream) -> list[str]:
    return [*report.adapted.get(stream.name, ()), *stream.notes]


def _text(report: DrillReport) -> Iterator[Block]:
    from jsbackup.engine.check.health_rules import span

    outcome, streams = report.outcome, report.restored.streams
    yield from _proved_streams(report.restored, report.adapted)
    newest_age = report.newest_message_age_seconds
    last = "" if newest_age is None else f", its newest message {span(newest_age)}"
    yield f"recovery point: the backup is {span(report.backup_age_seconds)} old{last}"
    if report.uncounted:
        yield f"note: it does not count as a drill of everything: {report.uncounted}"
    came = "all restored and proved" if outcome.ok else "NOT all restored and proved"
    if not streams and not report.restored.failures:
        came = "nothing restored, nothing proved: the backup has no stream"
    where = f"nats-server {outcome.server}" + (f", {outcome.nodes} of them" if outcome.nodes > 1 else "")
    yield f"drilled backup {outcome.backup} in {format_seconds(report.seconds)} ({where}): ", State(came)


def _kept_json(kept: KeptServer) -> JsonObject:
    """Return how to reach a server that stays."""
    return {
        "url": kept.url,
        "user": kept.user,
        "password": kept.password,
        "context": str(kept.context),
        "folder": str(kept.folder),
    }


def _kept_text(kept: KeptServer) -> Iterator[Block]:
    yield ""
    for name, value in (
        ("url", kept.url),
        ("user", kept.user),
        ("password", kept.password),
        ("folder", str(kept.folder)),
        ("look", f"nats --context {shlex.quote(str(kept.context))} stream ls -a"),
    ):
        yield f"{name:<10}{value}"
    yield "Ctrl-C ends the server and removes the folder."


def _proved_streams(restored: RestoreReport, adapted: Mapping[str, Sequence[str]]) -> Iterator[Block]:
    """Yield the streams of a throwaway server; `adapted` says by stream what was adapted."""
    yield Table(
        ["STREAM", ">MESSAGES", ">BYTES", ">CONSUMERS", ">TIME", "PROOF"],
        [
            (
                s.as_name,
                format_count(s.messages),
                format_bytes(s.bytes),
                str(len(s.consumers)),
                format_seconds(s.seconds),
                State("verified" if s.verified else "not verified"),
            )
            for s in restored.streams
        ],
    )
    yield from said_lines(_remarks(restored, adapted))


def _remarks(restored: RestoreReport, adapted: Mapping[str, Sequence[str]]) -> Iterator[Said]:
    for s in restored.streams:
        for note in (*adapted.get(s.name, ()), *s.notes):
            yield Said("note", s.as_name, note)
        for c in s.consumers:
            if c.note:
                yield Said("note", s.as_name, consumer_result_text(c))
    for failure in restored.failures:
        yield Said("failed", failure.name, failure.error.message)


@click.command(cls=Command, unattended=True, chooses=True)
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
    type=WholeNumber(1, 5),
    metavar="N",
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
@click.option("--keep", is_flag=True, help="Let the servers stay until Ctrl-C, and print how to reach them.")
@jobs_option
def drill(
    shared: Shared,
    backup: str | None,
    streams: tuple[str, ...],
    exclude: tuple[str, ...],
    *,
    program: Path | None,
    nodes: int,
    work_dir: Path | None,
    keep: bool,
    jobs: int,
) -> Result | int:
    """Restore BACKUP into a throwaway server, prove all of it, and say how long it took.

    BACKUP is an id, its start, or `latest` (the default).

    The server is started for this, on 127.0.0.1 with a password of its own. Everything is restored, read back and
    compared; then the server is stopped and its data removed. The result is recorded in the repository, for 'jsbackup
    status --max-drill-age'. A drill of only some streams does not count there, nor one of a backup that leaves out
    streams of the same server and account that others have.

    With --keep the servers stay until Ctrl-C or SIGTERM, to look at what came back with any NATS client. URL, user,
    password and a file for 'nats --context' are printed; with --json in one line. Nothing goes away by looking:
    retention by interest or as a work queue and inactive_threshold of consumers are lifted, too, and notes say where.
    """
    from jsbackup.engine.check.drill_run import DrillRun
    from jsbackup.engine.check.server_program import find_program
    from jsbackup.planning.model import RestoreOptions
    from jsbackup.repository.crypto.keys import needed

    start_log(shared)
    output = shared.output
    if keep and output.quiet and not output.as_json:
        raise UsageError("--quiet would hide where the server is", hint="Leave it out, or add --json.")
    options = RestoreOptions(tuple(map(parse_glob, streams)), tuple(map(parse_glob, exclude)), allow_nothing=True)
    wanted = WantedBackup(backup or LATEST, options.streams, options.exclude, silent=output.as_json)
    server = find_program(program, environment().get("PATH"), Path(sys.executable).parent / "nats-server")
    repository = open_repository(shared)
    if repository.descriptor.recipient is not None:
        needed(repository.secret)
    with closing_undisturbed() as kept:
        with reading(shared, repository, "drill"):
            manifest = find_backup(shared, repository, wanted)
            run = DrillRun(
                repository, manifest, options, server, note=output.note, nodes=nodes, jobs=jobs, work_dir=work_dir
            )
            for warning in run.warnings:
                output.note(State("warning"), f": {warning}")
            with make_progress("drill", wanted=shared.progress) as progress:
                report = run.carry_out(run_async, progress, kept if keep else None)
        if report.kept is None:
            return _result(report)
        _wait_for_end(report.kept, lambda: output.show(_result(report)))
    return report.outcome.code


def _wait_for_end(kept: KeptServer, tell: Callable[[], object]) -> None:
    """Wait for Ctrl-C or SIGTERM. Raises JsBackupError if the server ends before.

    `tell` says that it is ready. Anyone who reads that may end the command at once.
    """
    import asyncio

    from jsbackup.cli.loop import run_loop
    from jsbackup.engine.check.kept_server import stay

    stopping = asyncio.Event()

    async def work() -> None:
        tell()
        await stay(kept, stopping)

    run_loop(work(), stopping.set)


COMMANDS = {"drill": drill}
