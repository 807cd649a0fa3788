"""`jsbackup backup` and `follow`. The engine is imported when they are called: `--help` and completion load this."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from jsbackup.cli.loop import exempt_from_collection, run_loop
from jsbackup.cli.options.opening import (
    AskedAccounts,
    Where,
    account_options,
    connection_of,
    connection_reference_of,
    holder,
    no_init_option,
    open_or_make_repository,
    place_given,
    settings_of,
    writing,
)
from jsbackup.cli.output.progress import make_live_line, make_progress
from jsbackup.cli.output.reports import backup_result, follow_result, following_text
from jsbackup.cli.output.result import Result, format_bytes
from jsbackup.cli.parsing.command import Command, tagged_as
from jsbackup.cli.parsing.completion import complete_stream
from jsbackup.cli.parsing.context import GIVEN, Shared, jobs_option
from jsbackup.cli.parsing.typed_values import parse_lock_end, parse_tags
from jsbackup.config import parse_duration, parse_glob, parse_size
from jsbackup.errors import UsageError
from jsbackup.stores.base import LockMode

if TYPE_CHECKING:
    from jsbackup.engine.backup.run import BackupOptions

__all__ = ["COMMANDS"]

_REDRAW_SECONDS = 1.0


@click.command(cls=Command, needs_server=True, unattended=True, on_spark=True)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@click.option(
    "--exclude", multiple=True, metavar="GLOB", shell_complete=complete_stream, help="Leave these streams out."
)
@tagged_as("Tag the backup.")
@click.option("--no-consumers", is_flag=True, help="Leave consumers out.")
@click.option("--config-only", is_flag=True, help="Configurations of streams and consumers, without messages.")
@click.option("--check", is_flag=True, help="Let the server check its store first; slow before 2.15.")
@click.option(
    "--salvage",
    is_flag=True,
    help="Read what can be read of a stream whose snapshot fails, and name what is lost (exit code 3). Copy the "
    "server's files first: see 'jsbackup help salvage'.",
)
@click.option(
    "--incremental",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="auto: read only new messages if that is faster and loses no consumer state; always: wherever it is "
    "proved that nothing else changed; never: read everything.",
)
@click.option(
    "--lock-until",
    metavar="DURATION|TIME",
    help="Lock the backup in the store until then (S3 with object lock), such as 30d.",
)
@click.option(
    "--lock-mode",
    type=click.Choice([mode.value for mode in LockMode]),
    default="governance",
    show_default=True,
    help="Who may end the lock early: users with a special permission, or no one.",
)
@click.option("--allow-nothing", is_flag=True, help="Allow a backup that has nothing of what earlier backups have.")
@account_options(
    "Back up all accounts that have JetStream: log in as a user of the system account, and give the logins of the "
    "accounts by the options below."
)
@no_init_option
@jobs_option
def backup(
    shared: Shared,
    streams: tuple[str, ...],
    exclude: tuple[str, ...],
    tags: tuple[str, ...],
    *,
    no_consumers: bool,
    config_only: bool,
    check: bool,
    salvage: bool,
    incremental: str,
    lock_until: str | None,
    lock_mode: str,
    allow_nothing: bool,
    accounts: AskedAccounts,
    no_init: bool,
    jobs: int,
    where: Where | None,
) -> Result | int:
    """Back up streams: all of the account, or those that you name (globs are allowed).

    Where the location is empty, the repository is created as soon as there is something to store, unless you give
    --no-init.

    A stream that fails does not stop the others: the output names it, and the exit code is 3. The exit code is also 3
    if nothing is left of what earlier backups of the same server and account have, unless you give --allow-nothing. It
    is 14 if a reader's key file of an encrypted repository is missing or damaged; the backup is made all the same.

    With --all-accounts, each account is a backup of its own in the repository, and there is one report. An account
    without credentials is named, and the exit code is 3. Named streams need not be in every account.

    With --spark, executors of Spark read and store the streams, as many at a time as Spark can, or as --jobs
    says.
    """
    from jsbackup.engine.backup.backup import run_backup
    from jsbackup.engine.backup.run import BackupOptions, BackupRun
    from jsbackup.engine.read.increment import Incremental
    from jsbackup.repository.write.locking import LockRequest

    until, lock_seconds = (None, None) if lock_until is None else parse_lock_end(lock_until)
    options = BackupOptions(
        streams=tuple(map(parse_glob, streams)),
        exclude=tuple(map(parse_glob, exclude)),
        tags=parse_tags(tags),
        profile=shared.profile,
        allow_nothing=allow_nothing,
        consumers=not no_consumers,
        config_only=config_only,
        check=check,
        salvage=salvage,
        incremental=Incremental(incremental),
        lock=None
        if lock_until is None
        else LockRequest(LockMode(lock_mode), for_seconds=lock_seconds, until_seconds=until),
        jobs=jobs,
    )
    if accounts.all_accounts:
        from jsbackup.cli.commands.all_accounts import back_up_all
        from jsbackup.cli.options.restore_options import refuse_given

        refuse_given(click.get_current_context(), "--all-accounts", "spark", "spark_conf")
        return back_up_all(shared, accounts, options, may_make=not no_init)
    if where is not None:
        jobs_given = click.get_current_context().get_parameter_source("jobs") in GIVEN  # else as many as Spark can
        return _spread(shared, options, where, at_once=jobs if jobs_given else 0, may_make=not no_init)
    connection = connection_of(shared)
    repository = open_or_make_repository(shared, may_make=not no_init)
    with (
        writing(shared, repository, "backup") as lease,
        make_progress("backup", wanted=shared.progress) as progress,
    ):
        report = run_loop(run_backup(BackupRun(connection, repository, options, progress), lease))
    return backup_result(report)


def _spread(shared: Shared, options: BackupOptions, where: Where, *, at_once: int, may_make: bool) -> Result:
    """Run a backup on executors of Spark. Java only hands out tasks, and Python does the work.

    Errors in the command are reported before Spark starts.
    """
    from jsbackup.engine.backup.backup import begin_backup, finish_backup
    from jsbackup.engine.backup.run import BackupRun
    from jsbackup.pipeline.session.session import open_session
    from jsbackup.pipeline.tasks.fan_out import Executors, store_streams
    from jsbackup.repository.write.late_repository import make_now

    settings, place = settings_of(where), place_given(shared)
    reference, connection = connection_reference_of(shared), connection_of(shared)
    repository = open_or_make_repository(shared, may_make=may_make)
    with (
        writing(shared, repository, "backup") as lease,
        make_progress("backup", wanted=shared.progress) as progress,
    ):
        run = BackupRun(connection, repository, options, progress)
        begun = run_loop(begin_backup(run, lease))
        make_now(repository)  # executors open it themselves
        with open_session(settings) as session:
            executors = Executors(session, place, repository.descriptor.id, reference, at_once)
            results, failures = store_streams(executors, run, begun)
            report = finish_backup(run, begun, results, failures, lease=lease)
    return backup_result(report)


@click.command(cls=Command, needs_server=True, unattended=True, endless=True)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@click.option(
    "--exclude", multiple=True, metavar="GLOB", shell_complete=complete_stream, help="Leave these streams out."
)
@tagged_as("Tag the backups, in addition to 'follow'.")
@click.option("--no-consumers", is_flag=True, help="Leave consumers out.")
@click.option(
    "--every",
    metavar="DURATION",
    default="2s",
    show_default=True,
    help="How often to make a backup, if there is something new.",
)
@click.option(
    "--every-bytes",
    metavar="SIZE",
    default="64MiB",
    show_default=True,
    help="Make a backup earlier when this much is new. Memory holds up to twice as much.",
)
@click.option(
    "--at-least-every",
    metavar="DURATION",
    default="5m",
    show_default=True,
    help="How often to make a backup when nothing is new, as a sign of life.",
)
@click.option("--for", "duration", metavar="DURATION", help="End after this time, as after Ctrl-C.")
@no_init_option
@jobs_option
def follow(
    shared: Shared,
    streams: tuple[str, ...],
    exclude: tuple[str, ...],
    tags: tuple[str, ...],
    *,
    no_consumers: bool,
    every: str,
    every_bytes: str,
    at_least_every: str,
    duration: str | None,
    no_init: bool,
    jobs: int,
) -> Result:
    """Keep streams backed up within seconds: all of the account, or those that you name (globs are allowed).

    Reads what is published and makes one backup after the other. Each is complete by itself, at the cost of what is
    new. Ctrl-C or SIGTERM makes a last backup and ends with 0; a second one interrupts that (130).

    If server or store fail, it reports that, retries, and continues where it was. If it is killed and started again,
    it continues with the newest backup. With -v it logs each backup. Use 'forget' to thin backups out.
    """
    import asyncio

    from jsbackup.engine.backup.run import BackupOptions, BackupRun
    from jsbackup.engine.follow.follow import FollowOptions, FollowReport, follow_streams
    from jsbackup.repository.keep.leases import Mode

    asked = BackupOptions(
        streams=tuple(map(parse_glob, streams)),
        exclude=tuple(map(parse_glob, exclude)),
        tags=parse_tags(tags),
        profile=shared.profile,
        consumers=not no_consumers,
        jobs=jobs,
    )
    options = FollowOptions(parse_duration(every), parse_size(every_bytes), parse_duration(at_least_every))
    for typed, value, least, shown in (
        (f"--every {every}", options.every_seconds, 0.5, "500ms"),
        (f"--every-bytes {every_bytes}", options.every_bytes, 1 << 20, format_bytes(1 << 20)),
        # Each backup of an account where nothing happens is one more to list and to forget.
        (f"--at-least-every {at_least_every}", options.at_least_every_seconds, 1.0, "1s"),
    ):
        if value < least:
            raise UsageError(f"{typed} is less than {shown}")
    seconds = None if duration is None else parse_duration(duration)
    if seconds == 0:
        raise UsageError("--for 0 would follow nothing", hint="Leave it out to follow until Ctrl-C.")
    connection = connection_of(shared)
    repository = open_or_make_repository(shared, may_make=not no_init)
    hold = holder(shared, repository, "follow")
    stopping = asyncio.Event()
    report = FollowReport()

    async def work(show: Callable[[str], None] | None) -> FollowReport:
        loop = asyncio.get_running_loop()
        if seconds is not None:
            loop.call_later(seconds, stopping.set)

        def draw() -> None:
            if show is not None:
                show(following_text(report, time.time_ns()))
                loop.call_later(_REDRAW_SECONDS, draw)

        draw()
        return await follow_streams(
            BackupRun(connection, repository, asked),
            options,
            hold=lambda: hold(Mode.SHARED),
            stopping=stopping,
            report=report,
            first_done=exempt_from_collection,
        )

    with make_live_line(wanted=shared.progress and not shared.output.as_json) as show:
        run_loop(work(show), stopping.set)
    return follow_result(report)


COMMANDS = {"backup": backup, "follow": follow}
