"""`jsbackup serve`. The engine is imported when it is called: `--help` and completion load this module."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from jsbackup.cli.options.latest import choosing_options, find_backup, parse_choosing
from jsbackup.cli.options.leases import lock_timeout_option, reading
from jsbackup.cli.options.opening import run_async
from jsbackup.cli.options.reshaping import mask_key_options, refuse_obfuscation, reshaping_options
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
from jsbackup.cli.output.drill_report import tell_served
from jsbackup.cli.output.log import start_log
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared, jobs_option
from jsbackup.cli.parsing.typed_amounts import WholeNumber
from jsbackup.cli.stop_signals import closing_undisturbed
from jsbackup.config import parse_duration, parse_glob
from jsbackup.errors import UsageError

__all__ = ["COMMANDS"]


@click.command(cls=Command)
@click.argument("backup", required=False, shell_complete=complete_backup)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@click.option(
    "--exclude", multiple=True, metavar="GLOB", shell_complete=complete_stream, help="Leave these streams out."
)
@click.option("--read-only", is_flag=True, help="Print a user who may only read, and seal all streams.")
@click.option(
    "--port",
    type=WholeNumber(1, 65535),
    metavar="PORT",
    help="Port of 127.0.0.1 to use (default: a free one).",
)
@click.option("--for", "duration", metavar="DURATION", help="End after this time, as after Ctrl-C.")
@nats_server_option
@work_dir_option
@reshaping_options
@mask_key_options
@choosing_options
@jobs_option
@lock_timeout_option
def serve(
    shared: Shared,
    backup: str | None,
    streams: tuple[str, ...],
    exclude: tuple[str, ...],
    *,
    read_only: bool,
    port: int | None,
    duration: str | None,
    program: Path | None,
    work_dir: Path | None,
    typed: Mapping[str, Any],
    mask_secret: bytes,
    origins: tuple[str, ...],
    tags: tuple[str, ...],
    jobs: int,
    lock_timeout: str,
) -> int:
    """Restore BACKUP into a throwaway server that stays until Ctrl-C, to look at it with any NATS client.

    BACKUP is an id, its start, or `latest` (the default).

    The server is started for this, on 127.0.0.1 with a random password, and is not connected to any other. What was
    restored is read back and compared. Then URL, user, password and a file for 'nats --context' are printed; with
    --json in one line. Ctrl-C or SIGTERM ends the server and removes its data.

    Nothing goes away by looking: max_age, TTLs, message schedules, retention by interest or as a work queue and
    inactive_threshold of consumers are lifted, and notes say where. Without --read-only the user may do everything.
    """
    from jsbackup.engine.check.serve_run import ServeRun
    from jsbackup.engine.restore.run import RestoreSettings
    from jsbackup.planning.model import RestoreOptions
    from jsbackup.planning.typed_options import rename_options, reshape_options

    start_log(shared)
    output = shared.output
    refuse_silence(output)
    seconds = None if duration is None else parse_duration(duration)
    if seconds == 0:
        raise UsageError("--for 0 would serve nothing", hint="Leave it out to serve until Ctrl-C.")
    options = RestoreOptions(
        streams=tuple(map(parse_glob, streams)),
        exclude=tuple(map(parse_glob, exclude)),
        renames=rename_options(typed),
        reshape=reshape_options(typed),
        allow_nothing=typed["allow_nothing"],
    )
    options.reshape.masks.check_secret(mask_secret)
    refuse_obfuscation(options.reshape, "jsbackup serve")
    wanted = wanted_for_server(shared, backup, parse_choosing(backup, origins, tags), options)
    server = program_to_start(program)
    repository = open_to_decrypt(shared)
    with closing_undisturbed() as keep:
        with reading(shared, repository, "serve", lock_timeout):
            manifest = find_backup(shared, repository, wanted)
            settings = RestoreSettings(jobs=jobs, mask_secret=mask_secret)
            run = ServeRun(
                repository, manifest, options, server, settings, read_only=read_only, port=port, work_dir=work_dir
            )
            with warned_progress(shared, "serve", run.warnings) as progress:
                report = run.fill(run_async, progress, keep)
        if report.kept is None:
            tell_served(output, report)
        else:
            wait_for_end(report.kept, seconds, lambda: tell_served(output, report))
    return report.code


COMMANDS = {"serve": serve}
