"""`backup` and `restore` with `--spark-master`: distributed over executors, or done here if that is faster.

Errors in the command are reported before Spark starts. Java only hands out tasks, and Python does the work. Only
imported if the option is given: it needs Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from jsbackup.cli.options.leases import reading, writing
from jsbackup.cli.options.opening import (
    connection_of,
    connection_reference_of,
    open_or_make_repository,
    open_repository,
    run_async,
)
from jsbackup.cli.options.restore_options import Asked
from jsbackup.cli.options.spark import SparkUse, Where, place_given, settings_of
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.reports import tell_backup
from jsbackup.cli.output.restore_report import tell_restored
from jsbackup.cli.parsing.context import GIVEN, Shared
from jsbackup.config import format_bytes
from jsbackup.engine.backup.backup import begin_backup, continue_backup, finish_backup
from jsbackup.engine.backup.options import BackupOptions
from jsbackup.engine.backup.run import BackupRun
from jsbackup.engine.link.source import read_source
from jsbackup.engine.restore.execution import bytes_to_move
from jsbackup.engine.restore.restore import begin_restore, continue_restore
from jsbackup.engine.restore.run import RestoreRun, RestoreSettings
from jsbackup.planning.model import RestoreOptions
from jsbackup.planning.saved_plan import SavedPlan
from jsbackup.readable import format_count
from jsbackup.repository.write.late_repository import make_now

__all__ = ["spread_backup", "spread_restore"]

# Measured on two cores: until executors work, 13 to 17 seconds pass, in which one process backs up or restores 2 GB.
_LEAST_SPREAD_BYTES = 2 << 30


def spread_backup(shared: Shared, options: BackupOptions, where: Where, lock_timeout: str, *, may_make: bool) -> int:
    """Run a backup on executors; return the exit code."""
    settings = replace(settings_of(where), is_short=True)
    place = place_given(shared)
    reference, connection = connection_reference_of(shared), connection_of(shared)
    repository = open_or_make_repository(shared, may_make=may_make)
    with (
        writing(shared, repository, "backup", lock_timeout) as lease,
        make_progress("backup", wanted=shared.progress) as progress,
    ):
        run = BackupRun(connection, repository, options, progress)
        begun = run_async(begin_backup(run, lease))
        sizes = [0 if options.config_only else one.state.bytes for one in begun.chosen.streams]
        if _stays_here(shared, where, sizes):
            report = run_async(continue_backup(run, begun, lease))
        else:
            from jsbackup.pipeline.session.session import open_session
            from jsbackup.pipeline.tasks.fan_out import Executors, store_streams

            make_now(repository)  # executors open it themselves
            with open_session(settings) as session:
                executors = Executors(session, place, repository.descriptor.id, reference, _at_once())
                results, failures = store_streams(executors, run, begun)
                report = finish_backup(run, begun, results, failures, lease=lease)
    return tell_backup(shared.output, report, where.spark_json)


def spread_restore(
    shared: Shared,
    asked: Asked,
    saved: SavedPlan | None,
    options: RestoreOptions,
    *,
    settings: RestoreSettings,
    where: Where,
    lock_timeout: str,
) -> int:
    """Run a restore of a backup, or of a saved plan, on executors; return the exit code."""
    spark_settings = replace(settings_of(where), is_short=True)
    place = place_given(shared)
    reference, connection = connection_reference_of(shared), connection_of(shared)
    repository = open_repository(shared)
    with (
        reading(shared, repository, "restore", lock_timeout),
        make_progress("restore", wanted=shared.progress) as progress,
    ):
        finder = asked.finder(shared, repository, options, saved, silent=shared.output.as_json)
        manifest = finder.early()(run_async(read_source(connection)))
        if saved is not None:
            saved.refuse_other(manifest)
        run = RestoreRun(connection, options, settings, progress)
        prospect = run_async(begin_restore(run, repository, manifest, saved))
        if _stays_here(shared, where, [bytes_to_move(action, settings) for action in prospect.plan.actions]):
            report = run_async(continue_restore(run, repository, manifest, prospect))
        else:
            from jsbackup.pipeline.session.session import open_session
            from jsbackup.pipeline.tasks.fan_out import Executors
            from jsbackup.pipeline.tasks.fan_out_restore import mask_key_of, restore_streams

            mask_key = mask_key_of({name: _typed().get(name) for name in ("mask_key_file", "mask_key_command")})
            with open_session(spark_settings) as session:
                executors = Executors(session, place, repository.descriptor.id, reference, _at_once())
                report = restore_streams(executors, run, manifest, prospect, mask_key=mask_key)
    return tell_restored(shared, report, "restored", finder, spark=where.spark_json)


def _stays_here(shared: Shared, where: Where, sizes: Sequence[int]) -> bool:
    """Return whether streams of these sizes in bytes are not worth the start of Spark, and say so. By Spark Connect it
    runs already.
    """
    small = sum(sizes) < _LEAST_SPREAD_BYTES and where.use is SparkUse.AUTO and where.remote is None
    if small:
        shared.output.note(
            f"{format_count(len(sizes), 'stream')} with {format_bytes(sum(sizes))}: done without Spark, which is "
            f"faster below {format_bytes(_LEAST_SPREAD_BYTES)}; --spark always spreads them"
        )
    return small


def _typed() -> Mapping[str, Any]:
    return click.get_current_context().params


def _at_once() -> int:
    """Return the value of `--jobs`, if given; else as many as Spark can."""
    given = click.get_current_context().get_parameter_source("jobs") in GIVEN
    return int(_typed()["jobs"]) if given else 0
