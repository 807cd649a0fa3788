"""`jsbackup stats`: examine a backup without restoring it.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jsbackup.cli.options.jobs import choose_readable, open_job
from jsbackup.cli.options.latest import WantedBackup
from jsbackup.cli.options.spark import Where
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.new_file import check_new_file, write_new_file
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.stats_report import stats_json, tell_stats
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_amounts import WholeNumber
from jsbackup.config.values import parse_glob
from jsbackup.errors import UsageError
from jsbackup.exit_codes import combined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jsbackup.cli.options.jobs import OpenedJob
    from jsbackup.pipeline.queries.stats import StreamStats
    from jsbackup.progress import Progress

__all__ = ["COMMANDS"]


@click.command(cls=Command, chooses=True, on_spark=True)
@click.argument("backup", shell_complete=complete_backup)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@click.option(
    "--subjects",
    "most_subjects",
    type=WholeNumber(0, 10_000),
    default=10,
    show_default=True,
    metavar="N",
    help="How many subjects of each stream to show, the largest first.",
)
@click.option("--duplicates", is_flag=True, help="Count messages that repeat a Nats-Msg-Id.")
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also make an HTML page with charts: one file, which loads nothing and runs no script.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def stats(
    shared: Shared,
    backup: str,
    streams: tuple[str, ...],
    most_subjects: int,
    *,
    duplicates: bool,
    page: Path | None,
    force: bool,
    where: Where | None,
) -> int:
    """Show statistics of BACKUP (an id, its start, or `latest`), by stream and subject.

    Messages, bytes (as `show` counts them), sizes (subject, headers and payload) that half, 90 % and 99 % of the
    messages do not exceed, and the time from the oldest to the newest message; the busiest time, the largest messages
    (of each size the first), and how streams have grown since earlier backups of the same account. --json also has the
    rates over the whole time, and the distribution of sizes.

    DuckDB counts, in this process; with --spark, Spark does.
    """
    start_log(shared)
    patterns = tuple(map(parse_glob, streams))
    # Of the documents of jobs only this one names its backup.
    wanted = WantedBackup(backup, patterns, silent=shared.output.as_json)
    if force and page is None:
        raise UsageError("--force makes sense with --html only", hint="Leave it out.")
    if page is not None:
        check_new_file(page, replace=force)

    with (
        open_job(shared, "stats", wanted, where=where) as job,
        make_progress("stats", wanted=shared.progress) as progress,
    ):
        readable, broken = choose_readable(shared, job.backup, streams)
        found = _collected(
            job, readable, most_subjects, duplicates=duplicates, progress=progress, spark=where is not None
        )
        manifest = job.backup.manifest
    saved = None
    if page is not None:
        from jsbackup.cli.output.html_pages import stats_page

        write_new_file(page, stats_page(manifest.id, manifest.created, found), replace=force)
        saved = str(page)
    shared.output.result(
        stats_json(manifest.id, found, broken, saved), lambda: tell_stats(shared.output, found, broken, saved)
    )
    return combined([0, *(error.exit_code for error in broken.values())])


def _collected(
    job: OpenedJob, readable: Sequence[str], most_subjects: int, *, duplicates: bool, progress: Progress, spark: bool
) -> list[StreamStats]:
    from jsbackup.pipeline.queries.query import backup_streams, run_query
    from jsbackup.pipeline.queries.stats import DUCKDB, SPARK, stats_of, stats_sql, widths_of
    from jsbackup.repository.read.growth import growth_of

    streams, manifest = job.backup.streams(readable), job.backup.manifest
    widths = widths_of(streams)
    dialect = SPARK if spark else DUCKDB
    sql = stats_sql(dialect, streams, widths, most_subjects=most_subjects, duplicates=duplicates)
    if not streams:
        rows = []
    elif spark:
        from jsbackup.pipeline.jobs.query import run_spark_query

        rows = run_spark_query(job.on_spark(streams), sql, progress=progress).rows
    else:
        chosen = backup_streams(streams, manifest.id)
        rows = run_query(job.repository.objects, chosen, sql, folder=job.backup.place.folder).rows
    growth = growth_of(job.repository, manifest, [stream.name for stream in streams])
    return stats_of(streams, rows, widths, growth, most_subjects=most_subjects, duplicates=duplicates)


COMMANDS = {"stats": stats}
