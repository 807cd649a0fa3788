"""`jsbackup drill`. The engine is imported when it is called: `--help` and completion load this module."""

from __future__ import annotations

from pathlib import Path

import click

from jsbackup.cli.options.latest import choosing_options, find_backup, parse_choosing
from jsbackup.cli.options.leases import lock_timeout_option, reading
from jsbackup.cli.options.opening import run_async
from jsbackup.cli.options.throwaway import (
    nats_server_option,
    open_to_decrypt,
    program_to_start,
    refuse_silence,
    wait_for_end,
    wanted_for_server,
    warned_progress,
    work_dir_option,
)
from jsbackup.cli.output.drill_report import tell_drill
from jsbackup.cli.output.log import start_log
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared, jobs_option
from jsbackup.cli.parsing.typed_amounts import WholeNumber
from jsbackup.cli.stop_signals import closing_undisturbed
from jsbackup.config import parse_glob

__all__ = ["COMMANDS"]


@click.command(cls=Command, unattended=True)
@click.argument("backup", required=False, shell_complete=complete_backup)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@click.option(
    "--exclude", multiple=True, metavar="GLOB", shell_complete=complete_stream, help="Leave these streams out."
)
@nats_server_option
@click.option(
    "--nodes",
    type=WholeNumber(1, 5),
    metavar="N",
    default=1,
    show_default=True,
    help="Number of servers; more than one form a cluster.",
)
@work_dir_option
@click.option("--keep", is_flag=True, help="Let the servers stay until Ctrl-C, and print how to reach them.")
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
    keep: bool,
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

    With --keep the servers stay until Ctrl-C or SIGTERM, to look at what came back. 'jsbackup serve' is for that, too:
    it can restore a part, and has users who may only read.
    """
    from jsbackup.engine.check.drill_run import DrillRun
    from jsbackup.planning.model import RestoreOptions

    start_log(shared)
    output = shared.output
    if keep:
        refuse_silence(output)
    options = RestoreOptions(tuple(map(parse_glob, streams)), tuple(map(parse_glob, exclude)), allow_nothing=True)
    wanted = wanted_for_server(shared, backup, parse_choosing(backup, origins, tags), options)
    server = program_to_start(program)
    repository = open_to_decrypt(shared)
    with closing_undisturbed() as kept:
        with reading(shared, repository, "drill", lock_timeout):
            manifest = find_backup(shared, repository, wanted)
            run = DrillRun(
                repository, manifest, options, server, note=output.note, nodes=nodes, jobs=jobs, work_dir=work_dir
            )
            with warned_progress(shared, "drill", run.warnings) as progress:
                report = run.carry_out(run_async, progress, kept if keep else None)
        if report.kept is None:
            return tell_drill(output, report)
        wait_for_end(report.kept, None, lambda: tell_drill(output, report))
    return report.outcome.code


COMMANDS = {"drill": drill}
