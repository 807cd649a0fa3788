"""`jsbackup backup`. The engine is imported when it is called: `--help` and completion load this module."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from jsbackup.cli.command import Command, Shared, jobs_option
from jsbackup.cli.leases import lock_timeout_option, writing
from jsbackup.cli.log import start_log
from jsbackup.cli.progress import make_progress
from jsbackup.cli.reports import tell_backup
from jsbackup.cli.session import connection_of, no_init_option, open_or_make_repository, run_async
from jsbackup.cli.spark import Where, spread_by_spark
from jsbackup.config import parse_duration, parse_glob, parse_time
from jsbackup.errors import UsageError
from jsbackup.stores.base import LockMode

if TYPE_CHECKING:
    from jsbackup.repository.locking import LockRequest

__all__ = ["COMMANDS", "parse_lock_end", "parse_tags"]


def parse_tags(texts: tuple[str, ...]) -> dict[str, str]:
    """`K=V` texts as a mapping. UsageError for anything else."""
    tags = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"not a tag: {text!r}", hint="Write it as KEY=VALUE.")
        tags[key] = value
    return tags


def parse_lock_end(text: str) -> tuple[float | None, float | None]:
    """A time in seconds since the epoch, or a duration in seconds. UsageError for anything else."""
    if text[:4].isdecimal() and "-" in text:
        return parse_time(text) / 10**9, None
    return None, parse_duration(text)


def _lock_request(text: str, mode: str) -> LockRequest:
    from jsbackup.repository.locking import LockRequest

    until, duration = parse_lock_end(text)
    return LockRequest(LockMode(mode), until_seconds=until, for_seconds=duration)


@click.command(cls=Command, needs_server=True, unattended=True)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...")
@click.option("--exclude", multiple=True, metavar="GLOB", help="Leave these streams out.")
@click.option("--tag", "tags", multiple=True, metavar="K=V", help="Tag the backup.")
@click.option("--no-consumers", is_flag=True, help="Leave consumers out.")
@click.option("--config-only", is_flag=True, help="Configurations of streams and consumers, without messages.")
@click.option("--check", is_flag=True, help="Let the server check its store first; slow before 2.15.")
@click.option(
    "--incremental",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Read only what is new: where that is quicker and loses nothing of the consumers' state, wherever it can be "
    "proved to be all that has changed, or not at all.",
)
@click.option(
    "--lock-until",
    metavar="DURATION|TIME",
    help="Let the store keep the backup from everybody until then (S3 with object lock), such as 30d.",
)
@click.option(
    "--lock-mode",
    type=click.Choice([mode.value for mode in LockMode]),
    default="governance",
    show_default=True,
    help="Who may end that earlier: users with a special permission, or nobody at all.",
)
@click.option(
    "--allow-empty", is_flag=True, help="That nothing is left of what earlier backups have is as it should be."
)
@no_init_option
@jobs_option
@spread_by_spark
@lock_timeout_option
def backup(
    shared: Shared,
    streams: tuple[str, ...],
    exclude: tuple[str, ...],
    tags: tuple[str, ...],
    no_consumers: bool,
    config_only: bool,
    check: bool,
    incremental: str,
    lock_until: str | None,
    lock_mode: str,
    allow_empty: bool,
    no_init: bool,
    jobs: int,
    where: Where,
    lock_timeout: str,
) -> int:
    """Back streams up: all of the account, or those named (globs are allowed).

    Where the location is empty, the repository is made when there is something to store, unless with --no-init. A
    stream that fails does not stop the others: the exit code is 3 then, and the output names it. It is 3, too, if
    nothing is left of what earlier backups of the same server and account have, unless with --allow-empty. With
    --spark-master executors of Spark read and store the streams, as many at the same time as Spark can, or as --jobs
    says.
    """
    from jsbackup.engine.backup import BackupOptions, run_backup
    from jsbackup.engine.increment import Incremental

    start_log(shared)
    options = BackupOptions(
        streams=tuple(map(parse_glob, streams)),
        exclude=tuple(map(parse_glob, exclude)),
        tags=parse_tags(tags),
        profile=shared.profile,
        allow_empty=allow_empty,
        consumers=not no_consumers,
        config_only=config_only,
        check=check,
        incremental=Incremental(incremental),
        lock=None if lock_until is None else _lock_request(lock_until, lock_mode),
        jobs=jobs,
    )
    if where.given:
        from jsbackup.cli.fan_out import spread_backup

        return spread_backup(shared, options, where, lock_timeout, may_make=not no_init)
    connection = connection_of(shared)
    repository = open_or_make_repository(shared, may_make=not no_init)
    with (
        writing(shared, repository, "backup", lock_timeout) as lease,
        make_progress("backup", wanted=shared.progress) as progress,
    ):
        report = run_async(run_backup(connection, repository, options, progress, lease=lease, random=os.urandom))
    return tell_backup(shared.output, report.manifest, report.streams, report.failures, report.note)


COMMANDS = {"backup": backup}
