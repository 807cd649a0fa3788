"""`jsbackup backup`."""

from __future__ import annotations

import os

import click

from jsbackup.cli.command import Command, Shared
from jsbackup.cli.output import format_bytes, format_count
from jsbackup.cli.progress import make_progress
from jsbackup.cli.reports import backup_json, print_stream_table, stream_json
from jsbackup.cli.session import connection_of, open_or_make_repository, run_async, start_log
from jsbackup.config import parse_glob
from jsbackup.engine.backup import BackupOptions, BackupReport, run_backup
from jsbackup.errors import IncompleteError, JsBackupError, UsageError

__all__ = ["COMMANDS", "parse_tags"]


def parse_tags(texts: tuple[str, ...]) -> dict[str, str]:
    """`K=V` texts as a mapping. UsageError for anything else."""
    tags = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"not a tag: {text!r}", hint="Write it as KEY=VALUE.")
        tags[key] = value
    return tags


@click.command(cls=Command, needs_server=True)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...")
@click.option("--exclude", multiple=True, metavar="GLOB", help="Leave these streams out.")
@click.option("--tag", "tags", multiple=True, metavar="K=V", help="Tag the backup.")
@click.option("--no-consumers", is_flag=True, help="Leave consumers out.")
@click.option("--config-only", is_flag=True, help="Configurations of streams and consumers, without messages.")
@click.option("--check", is_flag=True, help="Let the server check its store first; slow before 2.15.")
@click.option("--jobs", type=click.IntRange(1, 64), default=4, show_default=True, help="Streams at the same time.")
def backup(
    shared: Shared,
    streams: tuple[str, ...],
    exclude: tuple[str, ...],
    tags: tuple[str, ...],
    no_consumers: bool,
    config_only: bool,
    check: bool,
    jobs: int,
) -> int:
    """Back streams up: all of the account, or those named (globs are allowed).

    Makes the repository where the location is empty. A stream that fails does not stop the others: the exit code is 3
    then, and the output names it.
    """
    start_log(shared)
    options = BackupOptions(
        streams=tuple(map(parse_glob, streams)),
        exclude=tuple(map(parse_glob, exclude)),
        tags=parse_tags(tags),
        consumers=not no_consumers,
        config_only=config_only,
        check=check,
        jobs=jobs,
    )
    connection = connection_of(shared)
    repository = open_or_make_repository(shared)
    with make_progress("backup", wanted=shared.progress) as progress:
        report = run_async(run_backup(connection, repository, options, progress, random=os.urandom))
    return _tell(shared, report)


def _tell(shared: Shared, report: BackupReport) -> int:
    output = shared.output
    results = [
        stream_json(
            result.stream,
            segments_reused=result.segments_reused,
            stored_bytes_added=result.stored_bytes,
            seconds=result.seconds,
        )
        for result in report.streams
    ]
    skipped = [{"name": failure.name, "reason": failure.error.message} for failure in report.failures]

    def text() -> None:
        print_stream_table(output, results)
        for failure in report.failures:
            output.line(f"failed: {failure.name}: {failure.error.message}")
        if report.manifest is not None:
            messages = sum(s["messages"] for s in results)
            added = sum(s["stored_bytes_added"] for s in results)
            output.line(
                f"backup {report.manifest.id} is {report.manifest.result}: {len(results)} streams, "
                f"{format_count(messages)} messages, {format_bytes(added)} added"
            )

    if report.manifest is None:
        raise _all_failed(report)
    output.result(backup_json(report.manifest, results, skipped), text)
    return IncompleteError.exit_code if report.failures else 0


def _all_failed(report: BackupReport) -> JsBackupError:
    """Every stream failed: the first error, if it speaks for all of them, decides the exit code."""
    errors = [failure.error for failure in report.failures]
    if len(errors) == 1:
        return errors[0]
    kind = type(errors[0]) if len({error.exit_code for error in errors}) == 1 else JsBackupError
    error = JsBackupError(f"all {len(errors)} streams failed, nothing was committed; first: {errors[0].message}")
    error.hint = errors[0].hint
    error.exit_code = kind.exit_code
    return error


COMMANDS = {"backup": backup}
