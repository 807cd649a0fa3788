"""`jsbackup drill`. The engine is imported when it is called: `--help` and completion load this module."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from jsbackup.cli.options.command import Command
from jsbackup.cli.options.completion import complete_backup, complete_stream
from jsbackup.cli.options.context import Shared, jobs_option
from jsbackup.cli.options.latest import LATEST, choosing_options, find_backup, parse_choosing
from jsbackup.cli.options.leases import lock_timeout_option, reading
from jsbackup.cli.options.opening import open_repository, run_async
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.drill_report import tell_drill
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.progress import make_progress
from jsbackup.config import environment, parse_glob

__all__ = ["COMMANDS"]


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
    from jsbackup.engine.check.drill_run import DrillRun
    from jsbackup.engine.check.drill_server import find_program
    from jsbackup.planning.model import RestoreOptions
    from jsbackup.repository.crypto.keys import needed

    start_log(shared)
    output = shared.output
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
            silent=output.as_json,
        )
        run = DrillRun(
            repository, manifest, options, server, note=output.note, nodes=nodes, jobs=jobs, work_dir=work_dir
        )
        for warning in run.warnings:
            output.note(State("warning"), f": {warning}")
        with make_progress("drill", wanted=shared.progress) as progress:
            report = run.carry_out(run_async, progress)
        return tell_drill(output, report)


COMMANDS = {"drill": drill}
