"""`jsbackup export` and `import` with `--format parquet`, `jsonl`, `delta` and `iceberg`, which run on Spark.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from jsbackup.cli.commands.spark.payloads import PayloadOptions, payload_options
from jsbackup.cli.options.jobs import (
    LEAST_SPARK_BYTES,
    LEAST_SPARK_LINES_BYTES,
    SparkChoice,
    check_spark_options,
    choose_readable,
    names_of,
    open_job,
)
from jsbackup.cli.options.latest import WantedBackup, wanted_of
from jsbackup.cli.options.leases import writing
from jsbackup.cli.options.opening import open_or_make_repository
from jsbackup.cli.options.spark import Where, place_given, settings_of
from jsbackup.cli.output.exported import tell_leftovers
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.parsing.context import Shared
from jsbackup.config import environment, s3_settings
from jsbackup.errors import UsageError
from jsbackup.readable import format_count

if TYPE_CHECKING:
    from jsbackup.pipeline.messages.chosen import ChosenBackup
    from jsbackup.pipeline.tables.export import Exported, PlannedExport
    from jsbackup.pipeline.tables.table_files import Table
    from jsbackup.planning.transforming import TransformOptions
    from jsbackup.repository.manifest import Manifest
    from jsbackup.repository.write.new_backup import StoredStream

__all__ = [
    "READ_FORMATS",
    "WRITTEN_FORMATS",
    "TableOptions",
    "read_tables",
    "table_options",
    "write_tables",
]

# As in `pipeline/tables/export.py`. Tables of Delta and Iceberg are not read: files in their folders may be obsolete.
READ_FORMATS = ("parquet", "jsonl")
WRITTEN_FORMATS = (*READ_FORMATS, "delta", "iceberg")
_LOGGED_FORMATS = ("parquet", "delta", "iceberg")

F = TypeVar("F", bound=Callable[..., Any])

_APPEND = click.option(
    "--append",
    is_flag=True,
    help="For parquet, delta and iceberg: DIR may have the tables of an earlier export; add the messages that came "
    "since. `latest` is then the newest backup, also if streams that you name were deleted.",
)
_SKIP_GAPS = click.option(
    "--skip-gaps",
    is_flag=True,
    help="With --append: add what the backup has, although earlier ones that were not exported have messages that it "
    "lacks.",
)
_PARTITION_BY = click.option(
    "--partition-by",
    type=click.Choice(("day", "subject")),  # as `PartitionBy` of `pipeline/tables/partitions.py`
    help="For parquet, delta and iceberg: a folder for each day (of the message's time, in UTC) or each subject, as "
    "Hive has them: day=2026-11-26. Up to 10,000 for a stream.",
)
_PAYLOAD_MAY_MISS = click.option(
    "--payload-may-miss",
    is_flag=True,
    help="Allow a schema of payloads that no payload of a stream fits, or that has no field of any.",
)


def table_options(command: F) -> F:
    """Add the options of tables, also those of payloads, passed as `tables` beside `kind`, the format."""

    @wraps(command)
    def run(
        *arguments: Any,
        append: bool,
        skip_gaps: bool,
        partition_by: str | None,
        payloads: PayloadOptions,
        payload_may_miss: bool,
        **others: Any,
    ) -> Any:
        tables = TableOptions(
            others["kind"],
            append,
            partition_by,
            payloads,
            payload_may_miss,
            skip_gaps,
        )
        return command(*arguments, tables=tables, **others)

    return cast(F, _APPEND(_SKIP_GAPS(_PARTITION_BY(payload_options(_PAYLOAD_MAY_MISS(run))))))


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How tables are written. `kind` is a format. With `append`, tables that are there get what is new. `partition_by`
    is a `PartitionBy`; `payloads` may become columns. `payload_may_miss`: by a schema that is that of none.
    `skip_gaps`: messages that only other backups have do not stop an export.
    """

    kind: str
    append: bool = False
    partition_by: str | None = None
    payloads: PayloadOptions = field(default_factory=PayloadOptions)
    payload_may_miss: bool = False
    skip_gaps: bool = False

    def check(self, typed: Mapping[str, Any]) -> None:
        """Raise UsageError for options that exclude others, or are wrong; `typed` are those that change streams."""
        from jsbackup.transforms.cut import counts_from_now

        for option, given in (
            ("--append", self.append or None),
            ("--partition-by", self.partition_by),
            *((option, True) for option in self.payloads.typed),
        ):
            if given is not None and self.kind not in _LOGGED_FORMATS:
                *others, last = _LOGGED_FORMATS
                raise UsageError(
                    f"{option} is for --format {', '.join(others)} and {last}, and this is --format {self.kind}",
                    hint=f"Leave out {option}, or choose another format.",
                )
        if self.skip_gaps and not self.append:
            raise UsageError(
                "--skip-gaps is for tables that are extended, and there is no --append",
                hint="Leave it out, or add --append.",
            )
        if self.payload_may_miss and not self.payloads.typed:
            raise UsageError(
                "--payload-may-miss is for a schema of payloads, and none is given",
                hint="Leave it out, or give one, such as --payload-json 'id BIGINT'.",
            )
        for name in ("since", "until") if self.append else ():
            if typed[name] and counts_from_now(typed[name]):
                raise UsageError(
                    f"--{name} {typed[name][:40]} counts from now, so it would be another one in the next export",
                    hint="Write a time or a sequence, or leave it out: --append adds only what is new.",
                )
        if self.payloads.typed and typed["obfuscate"]:
            raise UsageError(
                f"{self.payloads.typed[0]} and --obfuscate exclude each other: payloads become zeros",
                hint="Leave one of them out.",
            )
        if self.payloads.given is not None:
            from jsbackup.pipeline.tables.table_payloads import parser_for_tables

            parser_for_tables(self.payloads.given)


def write_tables(
    shared: Shared,
    wanted: WantedBackup,
    options: TransformOptions,
    *,
    tables: TableOptions,
    output: str,
    mask_key: tuple[tuple[str, str], ...],
    where: Where,
    lock_timeout: str,
) -> tuple[Exported, SparkChoice]:
    """Write streams of a backup, changed as the options say, to `output`, a folder or a URL; return also what wrote.

    Raises the errors of `export_tables`, `plan_streams` and `open_target`.
    """
    from jsbackup.exchange.leftovers import clear_leftovers
    from jsbackup.pipeline.session.repository_ref import opened, place_of
    from jsbackup.pipeline.tables.export import export_tables, plan_export, require_package
    from jsbackup.pipeline.tables.gaps.deleted_streams import without_other_renames
    from jsbackup.pipeline.tables.gaps.table_gaps import OtherBackups
    from jsbackup.pipeline.tables.partitions import PartitionBy
    from jsbackup.pipeline.tables.table_payloads import TablePayloads, parser_for_tables
    from jsbackup.pipeline.tables.target import new_target, open_target, refuse_place
    from jsbackup.pipeline.tables.writing import TableFormat
    from jsbackup.pipeline.tasks.reshape_task import MaskKey
    from jsbackup.planning.transforming import plan_streams

    kind, given = TableFormat(tables.kind), tables.payloads.given
    require_package(kind)
    place = place_of(output, s3_settings(shared.s3, environment()), {})
    least_bytes = LEAST_SPARK_LINES_BYTES if kind is TableFormat.JSONL else LEAST_SPARK_BYTES
    source = place_given(shared)
    refuse_place(source, place)
    if place.folder is not None:
        tell_leftovers(shared, clear_leftovers(Path(place.folder)))
    planned: list[PlannedExport] = []
    # What can be refused is looked at first: Spark takes a while to start.
    check_spark_options(where)
    with (
        (open_target if tables.append else new_target)(place, os.urandom(4).hex()) as target,
        ExitStack() as stack,
    ):

        def plan(backup: ChosenBackup) -> int:
            readable, broken = choose_readable(shared, backup, names_of(wanted, backup.manifest))
            may_miss = tables.payload_may_miss
            payloads = None if given is None else TablePayloads(source, parser_for_tables(given), may_miss)
            streams, their, others = backup.streams(readable), options, None
            if tables.append:
                their = without_other_renames(options, [one.name for one in streams], target)
                others = OtherBackups(opened(backup.place), tables.skip_gaps, wanted_of(shared, wanted))
            found = plan_export(
                backup.manifest,
                target,
                kind,
                plan_streams(backup.manifest, streams, their, "exported"),
                options=options,
                mask_key=MaskKey(mask_key),
                append=tables.append,
                refused=broken,
                partition_by=None if tables.partition_by is None else PartitionBy(tables.partition_by),
                payloads=payloads,
                others=others,
            )
            planned.append(found)
            return found.raw_bytes

        job = stack.enter_context(
            open_job(
                shared,
                "export",
                wanted,
                where=where,
                lock_timeout=lock_timeout,
                least_bytes=least_bytes,
                raw_bytes=plan,
            )
        )
        exported = export_tables(
            job.runner,
            job.backup,
            target,
            planned[0],
            progress=stack.enter_context(make_progress("export", wanted=shared.progress)),
        )
        return exported, job.choice


def _default_config(stored: StoredStream) -> str:
    """Say of a stream without a configuration what a restored one would not store again."""
    from jsbackup.pipeline.jobs.write import default_subjects

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
    where: Where,
    lock_timeout: str,
    may_make: bool,
) -> tuple[Manifest, list[StoredStream], tuple[str, ...]]:
    """Make a backup of the tables at `table`. Also returns sentences about key files of readers that are lost.

    Raises the errors of `find_tables`, `read_printed_configs`, `write_streams`.
    """
    settings = settings_of(where)
    from jsbackup.exchange.printed_configs import read_configs_of
    from jsbackup.pipeline.jobs.job_run import JobRun
    from jsbackup.pipeline.jobs.write import SMALL_BYTES, SmallStream, TableStream, write_streams
    from jsbackup.pipeline.session.session import open_session
    from jsbackup.pipeline.tables.table_files import find_tables, read_small, read_table
    from jsbackup.pipeline.tables.writing import TableFormat
    from jsbackup.pipeline.tasks.tasks import OnSpark
    from jsbackup.repository.checks.document_checks import tend_readers

    # Errors in the command are reported before Spark starts, and before a repository is created.
    found = find_tables(Path(table), TableFormat(kind), stream)
    configured = read_configs_of(configs, [one.stream for one in found])
    place = place_given(shared)
    repository = open_or_make_repository(shared, may_make=may_make)
    with (
        writing(shared, repository, "import", lock_timeout) as lease,
        open_session(settings) as session,
        make_progress("import", wanted=shared.progress) as progress,
    ):

        def stream_of(one: Table) -> TableStream:
            frame = read_table(session, one, TableFormat(kind))
            config = configured.get(one.stream, {})
            return TableStream(frame, config, one.bytes, release=True, any_headers=one.any_headers)

        def small_of(one: Table) -> SmallStream | None:
            read = read_small(one, TableFormat(kind)) if is_many and one.bytes < SMALL_BYTES else None
            config = configured.get(one.stream, {})
            if read is None:
                return None
            return SmallStream(read, one.bytes, config, partial(stream_of, one), one.any_headers)

        is_many = len(found) > 1  # one alone has a job in any case
        streams = {one.stream: small_of(one) or stream_of(one) for one in found}
        origin = f"table ({kind})"
        run = JobRun(OnSpark(session), place, repository, lease, progress)
        manifest, stored = write_streams(run, streams, tags=tags, origin=origin)
    for one in stored:
        if one.stream.name not in configured:
            shared.output.note(_default_config(one))
    return manifest, stored, tend_readers(repository)
