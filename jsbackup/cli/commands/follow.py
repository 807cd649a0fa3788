"""`jsbackup follow`. The engine is imported when it is called: `--help` and completion load this module."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from jsbackup.cli.options.leases import holder
from jsbackup.cli.options.opening import connection_of, no_init_option, open_or_make_repository
from jsbackup.cli.options.tag_options import tagged_as
from jsbackup.cli.options.tagging import parse_tags
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.grouped import Said, said_lines
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import format_bytes, format_count, format_seconds
from jsbackup.cli.output.progress import make_live_line
from jsbackup.cli.output.result import Block, Result
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_stream
from jsbackup.cli.parsing.context import Shared, jobs_option
from jsbackup.config import parse_duration, parse_glob, parse_size
from jsbackup.errors import IncompleteError, UsageError
from jsbackup.exit_codes import damage
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.engine.follow.follow import FollowOptions
    from jsbackup.engine.follow.follow_report import FollowReport

__all__ = ["COMMANDS"]

_LEAST_SECONDS = 0.5
_LEAST_BYTES = 1 << 20
_LEAST_QUIET_SECONDS = 1.0  # each backup of an account where nothing happens is one more to list and to forget
_REDRAW_SECONDS = 1.0


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

    from jsbackup.cli.loop import exempt_from_collection, run_loop
    from jsbackup.engine.backup.options import BackupOptions
    from jsbackup.engine.backup.run import BackupRun
    from jsbackup.engine.follow.follow import FollowReport, follow_streams
    from jsbackup.repository.keep.leases import Mode

    start_log(shared)
    asked = BackupOptions(
        streams=tuple(map(parse_glob, streams)),
        exclude=tuple(map(parse_glob, exclude)),
        tags=parse_tags(tags),
        profile=shared.profile,
        consumers=not no_consumers,
        jobs=jobs,
    )
    options = _rhythm(every, every_bytes, at_least_every)
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
            assert show is not None
            show(_live_text(report, time.time_ns()))
            loop.call_later(_REDRAW_SECONDS, draw)

        if show is not None:
            draw()
        backup = BackupRun(connection, repository, asked)
        return await follow_streams(
            backup,
            options,
            hold=lambda: hold(Mode.SHARED),
            stopping=stopping,
            report=report,
            first_done=exempt_from_collection,
        )

    with make_live_line(wanted=shared.progress and not shared.output.as_json) as show:
        run_loop(work(show), stopping.set)
    return _result(report)


def _rhythm(every: str, every_bytes: str, at_least_every: str) -> FollowOptions:
    """Return how often backups are made. Raises UsageError if that is more often than it could be."""
    from jsbackup.engine.follow.follow import FollowOptions

    options = FollowOptions(
        every_seconds=parse_duration(every),
        every_bytes=parse_size(every_bytes),
        at_least_every_seconds=parse_duration(at_least_every),
    )
    if options.every_seconds < _LEAST_SECONDS:
        raise UsageError(f"--every {every} is less than {_LEAST_SECONDS * 1000:.0f}ms")
    if options.every_bytes < _LEAST_BYTES:
        raise UsageError(f"--every-bytes {every_bytes} is less than {format_bytes(_LEAST_BYTES)}")
    if options.at_least_every_seconds < _LEAST_QUIET_SECONDS:
        raise UsageError(f"--at-least-every {at_least_every} is less than {_LEAST_QUIET_SECONDS:.0f}s")
    return options


def _live_text(report: FollowReport, now_ns: int) -> str:
    """Return the live text, the most important first: a narrow terminal cuts off the end."""
    from jsbackup.engine.check.health_rules import span

    if report.newest is None:
        return "follow: making the first backup"
    behind, age = (span((now_ns - moment) / 1e9) for moment in (report.up_to_ns, report.committed_ns))
    outages = format_count(report.troubles, "outage") + (", one of them now" if report.trouble else "")
    return (
        f"follow {format_count(len(report.newest.streams), 'stream')}: "
        f"{behind} behind, last backup {age} ago, {outages}; "
        f"{format_count(report.messages, 'message')}, {format_bytes(report.stored_bytes)} stored"
    )


def _result(report: FollowReport) -> Result:
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
        "partial": report.partial,
        "outages": report.troubles,
        "failed": [{"name": failure.name, "reason": failure.error.message} for failure in report.failures],
        "notes": list(report.lost_readers),
    }
    code = damage(report.lost_readers) or (0 if newest.result == "complete" else IncompleteError.exit_code)
    return Result(document, _text(document), code)


def _text(document: JsonObject) -> Iterator[Block]:
    yield from said_lines(Said("failed", failure["name"], failure["reason"]) for failure in document["failed"])
    partial = f", {format_count(document['partial'], 'partial backup')}" if document["partial"] else ""
    yield (
        f"{format_count(document['backups'], 'backup')} of {format_count(document['streams'], 'stream')}, "
        f"{format_count(document['messages'], 'new message')}, {format_bytes(document['stored_bytes_added'])} added; "
        f"never more than {format_seconds(document['longest_seconds_behind'])} behind, "
        f"{format_count(document['outages'], 'outage')}{partial}"
    )
    for note in document["notes"]:
        yield State("warning"), f": {note}"
    yield f"newest: {document['newest']}, ", State(document["result"])


COMMANDS = {"follow": follow}
