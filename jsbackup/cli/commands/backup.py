"""`jsbackup backup`. The engine is imported when it is called: `--help` and completion load this module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jsbackup.cli.accounts.options import AskedAccounts, account_options
from jsbackup.cli.options.leases import writing
from jsbackup.cli.options.opening import connection_of, no_init_option, open_or_make_repository, run_async
from jsbackup.cli.options.spark import Where
from jsbackup.cli.options.tag_options import tagged_as
from jsbackup.cli.options.tagging import parse_lock_end, parse_tags
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.reports import backup_result
from jsbackup.cli.output.result import Result
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_stream
from jsbackup.cli.parsing.context import Shared, jobs_option
from jsbackup.config import parse_glob
from jsbackup.stores.base import LockMode

if TYPE_CHECKING:
    from jsbackup.repository.write.locking import LockRequest

__all__ = ["COMMANDS"]


def _lock_request(text: str, mode: str) -> LockRequest:
    from jsbackup.repository.write.locking import LockRequest

    until, duration = parse_lock_end(text)
    return LockRequest(LockMode(mode), until_seconds=until, for_seconds=duration)


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
    from jsbackup.engine.backup.options import BackupOptions
    from jsbackup.engine.backup.run import BackupRun
    from jsbackup.engine.read.increment import Incremental

    start_log(shared)
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
        lock=None if lock_until is None else _lock_request(lock_until, lock_mode),
        jobs=jobs,
    )
    if accounts.all_accounts:
        from jsbackup.cli.accounts.backup import back_up_all
        from jsbackup.cli.options.restore_options import refuse_given

        refuse_given(click.get_current_context(), "--all-accounts", "spark", "spark_conf")
        return back_up_all(shared, accounts, options, may_make=not no_init)
    if where is not None:
        from jsbackup.cli.commands.spark.fan_out import spread_backup

        return spread_backup(shared, options, where, may_make=not no_init)
    connection = connection_of(shared)
    repository = open_or_make_repository(shared, may_make=not no_init)
    with (
        writing(shared, repository, "backup") as lease,
        make_progress("backup", wanted=shared.progress) as progress,
    ):
        report = run_async(run_backup(BackupRun(connection, repository, options, progress), lease))
    return backup_result(report)


COMMANDS = {"backup": backup}
