"""`backup` and `restore` with `--spark`: distributed over executors.

Errors in the command are reported before Spark starts. Java only hands out tasks, and Python does the work. Only
imported if the option is given: it needs Spark.
"""

from __future__ import annotations

import click

from jsbackup.cli.loop import run_loop
from jsbackup.cli.options.opening import (
    Where,
    connection_of,
    connection_reference_of,
    open_or_make_repository,
    open_repository,
    place_given,
    reading,
    settings_of,
    writing,
)
from jsbackup.cli.options.restore_options import Asked
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.reports import backup_result
from jsbackup.cli.output.restore_report import restored_result
from jsbackup.cli.output.result import Result
from jsbackup.cli.parsing.context import GIVEN, Shared
from jsbackup.engine.backup.backup import begin_backup, finish_backup
from jsbackup.engine.backup.options import BackupOptions
from jsbackup.engine.backup.run import BackupRun
from jsbackup.engine.link.source import read_source
from jsbackup.engine.restore.restore import begin_restore
from jsbackup.engine.restore.run import RestoreRun, RestoreSettings
from jsbackup.pipeline.session.session import open_session
from jsbackup.pipeline.tasks.fan_out import Executors, store_streams
from jsbackup.pipeline.tasks.fan_out_restore import mask_key_of, restore_streams
from jsbackup.planning.model import RestoreOptions
from jsbackup.planning.saved_plan import SavedPlan
from jsbackup.repository.write.late_repository import make_now

__all__ = ["spread_backup", "spread_restore"]


def spread_backup(shared: Shared, options: BackupOptions, where: Where, *, may_make: bool) -> Result:
    """Run a backup on executors."""
    settings = settings_of(where)
    place = place_given(shared)
    reference, connection = connection_reference_of(shared), connection_of(shared)
    repository = open_or_make_repository(shared, may_make=may_make)
    with (
        writing(shared, repository, "backup") as lease,
        make_progress("backup", wanted=shared.progress) as progress,
    ):
        run = BackupRun(connection, repository, options, progress)
        begun = run_loop(begin_backup(run, lease))
        make_now(repository)  # executors open it themselves
        with open_session(settings) as session:
            executors = Executors(session, place, repository.descriptor.id, reference, _at_once())
            results, failures = store_streams(executors, run, begun)
            report = finish_backup(run, begun, results, failures, lease=lease)
    return backup_result(report)


def spread_restore(
    shared: Shared,
    asked: Asked,
    saved: SavedPlan | None,
    options: RestoreOptions,
    *,
    settings: RestoreSettings,
    where: Where,
) -> Result:
    """Run a restore of a backup, or of a saved plan, on executors."""
    spark_settings = settings_of(where)
    place = place_given(shared)
    reference, connection = connection_reference_of(shared), connection_of(shared)
    repository = open_repository(shared)
    with (
        reading(shared, repository, "restore"),
        make_progress("restore", wanted=shared.progress) as progress,
    ):
        finder = asked.finder(shared, repository, options, saved, silent=shared.output.as_json)
        manifest = finder.early()(run_loop(read_source(connection)))
        if saved is not None:
            saved.refuse_other(manifest)
        run = RestoreRun(connection, options, settings, progress)
        prospect = run_loop(begin_restore(run, repository, manifest, saved))
        mask_key = mask_key_of({"mask_key_file": click.get_current_context().params.get("mask_key_file")})
        with open_session(spark_settings) as session:
            executors = Executors(session, place, repository.descriptor.id, reference, _at_once())
            report = restore_streams(executors, run, manifest, prospect, mask_key=mask_key)
    return restored_result(report, "restored", finder)


def _at_once() -> int:
    """Return the value of `--jobs`, if given; else as many as Spark can."""
    ctx = click.get_current_context()
    return int(ctx.params["jobs"]) if ctx.get_parameter_source("jobs") in GIVEN else 0
