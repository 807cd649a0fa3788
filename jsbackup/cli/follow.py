"""`jsbackup follow`. The engine is imported when it is called: `--help` and completion load this module."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from jsbackup.cli.backup import parse_tags
from jsbackup.cli.command import Command, Shared, jobs_option
from jsbackup.cli.leases import holder, lock_timeout_option
from jsbackup.cli.log import start_log
from jsbackup.cli.output import Output, format_bytes, format_count, format_seconds
from jsbackup.cli.session import connection_of, no_init_option, open_or_make_repository
from jsbackup.config import parse_duration, parse_glob, parse_size
from jsbackup.errors import IncompleteError, UsageError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.engine.follow_report import FollowReport

__all__ = ["COMMANDS"]

_LEAST_SECONDS = 0.5
_LEAST_BYTES = 1 << 20


@click.command(cls=Command, needs_server=True, unattended=True, endless=True)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...")
@click.option("--exclude", multiple=True, metavar="GLOB", help="Leave these streams out.")
@click.option("--tag", "tags", multiple=True, metavar="K=V", help="Tag the backups, beside 'follow'.")
@click.option("--no-consumers", is_flag=True, help="Leave consumers out.")
@click.option(
    "--every",
    metavar="DURATION",
    default="2s",
    show_default=True,
    help="Make a backup so often, if there is something new.",
)
@click.option(
    "--every-bytes",
    metavar="SIZE",
    default="64MiB",
    show_default=True,
    help="Make one sooner when so much is new. Memory holds up to twice as much.",
)
@click.option(
    "--at-least-every",
    metavar="DURATION",
    default="5m",
    show_default=True,
    help="Make one so often although nothing is new, so that it shows that all is well.",
)
@click.option("--for", "duration", metavar="DURATION", help="End after so long, as after Ctrl-C.")
@no_init_option
@jobs_option
@lock_timeout_option
def follow(
    shared: Shared,
    streams: tuple[str, ...],
    exclude: tuple[str, ...],
    tags: tuple[str, ...],
    no_consumers: bool,
    every: str,
    every_bytes: str,
    at_least_every: str,
    duration: str | None,
    no_init: bool,
    jobs: int,
    lock_timeout: str,
) -> int:
    """Keep streams backed up within seconds: all of the account, or those named (globs are allowed).

    Reads what is published as it comes and makes one backup after the other, each a whole one at the cost of what is
    new, until Ctrl-C or SIGTERM: then it makes a last one and ends with 0 (a second one interrupts that, with 130).
    Server and store may fail meanwhile: it says so, tries again, and goes on where it was. Killed and started again it
    goes on with the newest backup. With -v it tells of each backup; 'forget' thins them out.
    """
    import asyncio

    from jsbackup.cli.loop import run
    from jsbackup.engine.backup import BackupOptions
    from jsbackup.engine.following import FollowOptions, follow_streams
    from jsbackup.repository.leases import Mode

    start_log(shared)
    options = FollowOptions(
        BackupOptions(
            streams=tuple(map(parse_glob, streams)),
            exclude=tuple(map(parse_glob, exclude)),
            tags=parse_tags(tags),
            profile=shared.profile,
            consumers=not no_consumers,
            jobs=jobs,
        ),
        every_seconds=max(parse_duration(every), _LEAST_SECONDS),
        every_bytes=max(parse_size(every_bytes), _LEAST_BYTES),
        at_least_every_seconds=parse_duration(at_least_every),
    )
    seconds = None if duration is None else parse_duration(duration)
    if seconds == 0:
        raise UsageError("--for 0 would follow nothing", hint="Leave it out to follow until Ctrl-C.")
    connection = connection_of(shared)
    repository = open_or_make_repository(shared, may_make=not no_init)
    hold = holder(shared, repository, "follow", lock_timeout)
    stopping = asyncio.Event()

    async def work() -> FollowReport:
        if seconds is not None:
            asyncio.get_running_loop().call_later(seconds, stopping.set)
        return await follow_streams(
            connection,
            repository,
            options,
            hold=lambda: hold(Mode.SHARED),
            stopping=stopping,
            random=os.urandom,
        )

    return _tell(shared.output, run(work(), stopping.set))


def _tell(output: Output, report: FollowReport) -> int:
    newest = report.newest
    assert newest is not None
    document: JsonObject = {
        "backups": report.backups,
        "newest": newest.id,
        "result": newest.result,
        "streams": len(newest.streams),
        "messages": report.messages,
        "stored_bytes_added": report.stored_bytes,
        "longest_seconds_behind": round(report.behind_seconds, 3),
        "outages": report.troubles,
        "failed": [{"name": failure.name, "reason": failure.error.message} for failure in report.failures],
    }

    def text() -> None:
        for failure in report.failures:
            output.line(f"failed: {failure.name}: {failure.error.message}")
        output.line(
            f"{format_count(report.backups, 'backup')} of {format_count(len(newest.streams), 'stream')}, "
            f"{format_count(report.messages, 'new message')}, {format_bytes(report.stored_bytes)} added; "
            f"never more than {format_seconds(report.behind_seconds)} behind, "
            f"{format_count(report.troubles, 'outage')}"
        )
        output.line(f"newest: {newest.id}, {newest.result}")

    output.result(document, text)
    return 0 if newest.result == "complete" else IncompleteError.exit_code


COMMANDS = {"follow": follow}
