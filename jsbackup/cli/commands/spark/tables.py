"""`jsbackup export` and `import` of tables: `--format parquet`, `jsonl`, `delta` and `iceberg`, here or on Spark.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from jsbackup.cli.options.jobs import open_job
from jsbackup.cli.options.latest import WantedBackup
from jsbackup.cli.options.leases import writing
from jsbackup.cli.options.opening import open_or_make_repository
from jsbackup.cli.options.spark import Where, place_given, settings_of
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.parsing.context import Shared
from jsbackup.config import environment, s3_settings
from jsbackup.readable import format_count

if TYPE_CHECKING:
    from jsbackup.pipeline.messages.chosen import ChosenBackup
    from jsbackup.pipeline.tables.export import Exported, PlannedExport
    from jsbackup.planning.transforming import TransformOptions
    from jsbackup.planning.typed_options import TableOptions
    from jsbackup.repository.manifest import Manifest
    from jsbackup.repository.write.new_backup import StoredStream

__all__ = [
    "READ_FORMATS",
    "WRITTEN_FORMATS",
    "read_tables",
    "table_options",
    "write_tables",
]

# As in `pipeline/tables/export.py`. Tables of Delta and Iceberg are not read: files in their folders may be obsolete.
READ_FORMATS = ("parquet", "jsonl")
WRITTEN_FORMATS = (*READ_FORMATS, "delta", "iceberg")

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--append",
        is_flag=True,
        help="For parquet, delta and iceberg: add to the tables in DIR what they lack of all backups up to BACKUP, "
        "oldest first. The first time that is all that the repository has.",
    ),
    click.option(
        "--partition-by",
        type=click.Choice(("day",)),
        help="For parquet, delta and iceberg: a partition for each day (of the message's time, in UTC).",
    ),
    click.option(
        "--catalog",
        metavar="NAME",
        help="For iceberg: the catalog of the tables, NAME or NAME/NAMESPACE of pyiceberg's configuration, or a URI of "
        "SQL such as sqlite:////lake.db. Without it a file in DIR.",
    ),
)


def table_options(command: F) -> F:
    """Add the options of tables, passed as `tables` beside `kind`, the format."""

    @wraps(command)
    def run(*arguments: Any, append: bool, partition_by: str | None, catalog: str | None, **others: Any) -> Any:
        from jsbackup.planning.typed_options import TableOptions

        tables = TableOptions(others["kind"], append, partition_by is not None, catalog)
        return command(*arguments, tables=tables, **others)

    for option in reversed(_OPTIONS):
        run = option(run)
    return cast(F, run)


def write_tables(
    shared: Shared,
    wanted: WantedBackup,
    options: TransformOptions,
    *,
    tables: TableOptions,
    output: str,
    mask_key: tuple[tuple[str, str], ...],
    where: Where | None,
) -> Exported:
    """Write streams of a backup, changed as the options say, to `output`, a folder or a URL.

    Raises the errors of `export_tables`, `plan_export` and `export_target`.
    """
    from jsbackup.pipeline.session.repository_ref import place_of
    from jsbackup.pipeline.tables.export import TablesAsked, export_tables, export_target, plan_export
    from jsbackup.pipeline.tables.writing import TableFormat
    from jsbackup.pipeline.tasks.reshape_task import MaskKey

    kind = TableFormat(tables.kind)
    asked = TablesAsked(kind, options, MaskKey(mask_key), tables.append, tables.by_day, tables.catalog)
    place = place_of(output, s3_settings(shared.s3, environment()), {})
    planned: list[PlannedExport] = []
    with export_target(place_given(shared), place, asked, note=shared.output.note) as target, ExitStack() as stack:

        def plan(backup: ChosenBackup) -> None:
            for reason in backup.left_out():
                shared.output.note(f"{reason}, and left out")
            planned.append(plan_export(backup.place, backup.manifest, target, asked, patterns=wanted.streams))

        job = stack.enter_context(open_job(shared, "export", wanted, where=where, look=plan))
        progress = stack.enter_context(make_progress("export", wanted=shared.progress))
        return export_tables(job.runner, job.backup.place, target, planned[0], progress=progress)


def _default_config(stored: StoredStream) -> str:
    """Say of a stream without a configuration what a restored one would not store again."""
    from jsbackup.pipeline.jobs.imported_streams import default_subjects

    name, messages = stored.stream.name, stored.stream.captured.messages
    said = f"stream {name} has no configuration, so a default one is used"
    if stored.others:
        other = "has another subject" if stored.others == 1 else "have other subjects"
        said += f", for {' and '.join(default_subjects(name))} alone, and {stored.others:,} of its "
        said += f"{format_count(messages, 'message')} {other}"
    return f"{said}; see --stream-config"


def read_tables(
    shared: Shared,
    table: str,
    kind: str,
    stream: str | None,
    *,
    configs: Sequence[Path],
    tags: Mapping[str, str],
    where: Where | None,
    may_make: bool,
) -> tuple[Manifest, list[StoredStream], tuple[str, ...]]:
    """Make a backup of the tables at `table`. Also returns sentences about key files of readers that are lost.

    Raises the errors of `find_tables`, `read_printed_configs`, `write_streams`.
    """
    from jsbackup.exchange.config_files import read_configs_of
    from jsbackup.pipeline.jobs.imported_streams import RowStream, write_rows
    from jsbackup.pipeline.jobs.job_run import JobRun
    from jsbackup.pipeline.session.repository_ref import lent
    from jsbackup.pipeline.tables.table_files import find_tables
    from jsbackup.pipeline.tables.table_rows import row_tasks
    from jsbackup.pipeline.tables.writing import TableFormat
    from jsbackup.pipeline.tasks.runner import InProcess
    from jsbackup.repository.checks.document_checks import tend_readers

    settings = None if where is None else settings_of(where)
    # Errors in the command are reported before Spark starts, and before a repository is created.
    found = find_tables(Path(table), TableFormat(kind), stream)
    configured = read_configs_of(configs, [one.stream for one in found])
    streams = {
        one.stream: RowStream(one, row_tasks(one, TableFormat(kind)), configured.get(one.stream, {})) for one in found
    }
    place, origin = place_given(shared), f"table ({kind})"
    repository = open_or_make_repository(shared, may_make=may_make)
    with (
        writing(shared, repository, "import") as lease,
        make_progress("import", wanted=shared.progress) as progress,
    ):
        if settings is None:
            with lent(place, repository):
                run = JobRun(InProcess(), place, repository, lease, progress)
                manifest, stored = write_rows(run, streams, tags=tags, origin=origin)
        else:
            from jsbackup.pipeline.jobs.write import write_row_streams
            from jsbackup.pipeline.session.session import open_session
            from jsbackup.pipeline.tasks.tasks import OnSpark

            with open_session(settings) as session:
                spread = JobRun(OnSpark(session), place, repository, lease, progress)
                manifest, stored = write_row_streams(spread, streams, tags=tags, origin=origin)
    for one in stored:
        if one.stream.name not in configured:
            shared.output.note(_default_config(one))
    return manifest, stored, tend_readers(repository)
