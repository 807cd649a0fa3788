"""`jsbackup restore`. The engine is imported when it is called: `--help` and completion load this module."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from jsbackup.cli.command import Command, Shared
from jsbackup.cli.completion import complete_backup
from jsbackup.cli.leases import lock_timeout_option, reading
from jsbackup.cli.log import start_log
from jsbackup.cli.output import format_bytes, format_count, format_seconds
from jsbackup.cli.progress import make_progress
from jsbackup.cli.reports import lost_text, problem_json
from jsbackup.cli.session import connection_of, open_repository, run_async
from jsbackup.config import parse_glob, parse_size
from jsbackup.errors import IncompleteError, JsBackupError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.engine.restore import RestoredStream, RestoreReport

__all__ = ["COMMANDS", "CONSUMERS", "IF_EXISTS", "WIRES"]

# As `engine/plan.py` has them; of the ways to send only those that one can ask for.
IF_EXISTS = ("fail", "skip", "replace")
CONSUMERS = ("all", "config", "none")
WIRES = ("auto", "v1", "v2")


@click.command(cls=Command, needs_server=True)
@click.argument("backup", shell_complete=complete_backup)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...")
@click.option("--exclude", multiple=True, metavar="GLOB", help="Leave these streams out.")
@click.option(
    "--if-exists",
    type=click.Choice(IF_EXISTS),
    default="fail",
    show_default=True,
    help="What to do about a stream that is there; replace keeps it until the new one is proved.",
)
@click.option("--replicas", type=click.IntRange(1, 5), help="Number of replicas at the target.")
@click.option("--storage", type=click.Choice(["file", "memory"]), help="Storage at the target.")
@click.option(
    "--consumers",
    type=click.Choice(CONSUMERS),
    default="all",
    show_default=True,
    help="all: with their state; config: starting anew; none: without.",
)
@click.option(
    "--wire",
    type=click.Choice(WIRES),
    default="auto",
    show_default=True,
    help="Archive format to send; auto takes the faster one that the target can take.",
)
@click.option("--window", metavar="BYTES", default="4MiB", show_default=True, help="Bytes on the way, unacknowledged.")
@click.option("--partial", is_flag=True, help="Where stored objects are lost or damaged, restore what is left.")
@click.option("--no-verify", is_flag=True, help="Do not read back what was restored.")
@click.option("--jobs", type=click.IntRange(1, 64), default=4, show_default=True, help="Streams at the same time.")
@lock_timeout_option
def restore(
    shared: Shared,
    backup: str,
    streams: tuple[str, ...],
    exclude: tuple[str, ...],
    if_exists: str,
    replicas: int | None,
    storage: str | None,
    consumers: str,
    wire: str,
    window: str,
    partial: bool,
    no_verify: bool,
    jobs: int,
    lock_timeout: str,
) -> int:
    """Restore streams and consumers of BACKUP (an id, its start, or `latest`), then read them back and compare.

    Nothing is changed unless everything asked for can be restored. With --partial messages that are lost are missing
    from a stream as if they had been deleted; the output says which, and the exit code is 3.
    """
    from jsbackup.engine.plan import Consumers, IfExists, RestoreOptions, Wire
    from jsbackup.engine.restore import RestoreSettings, run_restore

    start_log(shared)
    options = RestoreOptions(
        streams=tuple(map(parse_glob, streams)),
        exclude=tuple(map(parse_glob, exclude)),
        if_exists=IfExists(if_exists),
        wire=Wire(wire),
        consumers=Consumers(consumers),
        replicas=replicas,
        storage=storage,
    )
    settings = RestoreSettings(jobs=jobs, window_bytes=parse_size(window), verify=not no_verify, partial=partial)
    connection = connection_of(shared)
    repository = open_repository(shared)
    with (
        reading(shared, repository, "restore", lock_timeout),
        make_progress("restore", wanted=shared.progress) as progress,
    ):
        manifest = repository.manifest(repository.resolve(backup))
        report = run_async(
            run_restore(connection, repository, manifest, options, settings, progress, random=os.urandom)
        )
    return _tell(shared, report)


def _stream_json(stream: RestoredStream) -> JsonObject:
    return {
        "name": stream.name,
        "as": stream.as_name,
        "messages": stream.messages,
        "bytes": stream.bytes,
        "digest": stream.digest,
        "verified": stream.verified,
        "seconds": round(stream.seconds, 3),
        "wire": stream.wire,
        "consumers": [{"name": c.name, "fidelity": c.fidelity, "note": c.note} for c in stream.consumers],
        "notes": list(stream.notes),
        "lost": [problem_json(problem) for problem in stream.lost],
    }


def _tell(shared: Shared, report: RestoreReport) -> int:
    output = shared.output
    streams = [_stream_json(stream) for stream in report.streams]
    failed = [{"name": f.name, "code": f.error.exit_code, "reason": f.error.message} for f in report.failures]
    skipped = [{"name": refusal.stream, "reason": refusal.reason} for refusal in report.plan.skipped]

    def text() -> None:
        output.table(
            ["STREAM", ">MESSAGES", ">BYTES", ">CONSUMERS", ">TIME", "SENT AS", "PROOF"],
            [
                (
                    s.as_name,
                    format_count(s.messages),
                    format_bytes(s.bytes),
                    str(len(s.consumers)),
                    format_seconds(s.seconds),
                    s.wire,
                    "verified" if s.verified else "not verified",
                )
                for s in report.streams
            ],
        )
        for s in report.streams:
            for note in s.notes:
                output.line(f"note: {s.as_name}: {note}")
            for c in s.consumers:
                if c.note:
                    output.line(f"note: {s.as_name}: consumer {c.name}: {c.fidelity}: {c.note}")
            for problem in s.lost:
                output.line(f"lost: {s.as_name}: {problem.problem}{lost_text(problem)}")
        for item in skipped:
            output.line(f"skipped: {item['name']}: {item['reason']}")
        for failure in report.failures:
            output.line(f"failed: {failure.name}: {failure.error.message}")
            if failure.error.hint:
                output.line(f"hint: {failure.error.hint}")
        restored = format_count(len(report.streams), "stream")
        lost = sum(problem.messages for stream in report.streams for problem in stream.lost)
        lacking = f"; {format_count(lost, 'message')} lost" if lost else ""
        output.line(f"restored {restored}, {len(report.failures)} failed, {len(skipped)} skipped{lacking}")

    output.result({"streams": streams, "failed": failed, "skipped": skipped}, text)
    if report.failures and not report.streams:
        codes = {failure.error.exit_code for failure in report.failures}
        return codes.pop() if len(codes) == 1 else JsBackupError.exit_code
    if report.failures or any(stream.incomplete for stream in report.streams):
        return IncompleteError.exit_code
    return 0


COMMANDS = {"restore": restore}
