"""`backup` and `restore` with `--spark-master`: executors do the work of the streams.

Whatever is wrong with the command is said before Spark starts. Loaded only when it is asked for: it takes Spark.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from jsbackup.cli.command import GIVEN, Shared
from jsbackup.cli.latest import make_finder
from jsbackup.cli.leases import reading, writing
from jsbackup.cli.planning import Asked
from jsbackup.cli.progress import make_progress
from jsbackup.cli.reports import tell_backup
from jsbackup.cli.restore import tell_restored
from jsbackup.cli.session import (
    connection_of,
    connection_reference_of,
    open_or_make_repository,
    open_repository,
    run_async,
)
from jsbackup.cli.spark import Where, place_given, settings_of
from jsbackup.engine.backup import BackupOptions, begin_backup, finish_backup
from jsbackup.engine.plan_file import SavedPlan
from jsbackup.engine.planned import RestoreOptions
from jsbackup.engine.restore import RestoreSettings, begin_restore
from jsbackup.engine.source import read_source
from jsbackup.repository.late import make_now

__all__ = ["spread_backup", "spread_restore"]


def spread_backup(shared: Shared, options: BackupOptions, where: Where, lock_timeout: str, *, may_make: bool) -> int:
    """Back streams up by executors; the exit code."""
    settings = settings_of(where)
    from jsbackup.pipeline.fan_out import Executors, store_streams
    from jsbackup.pipeline.session import open_session

    place = place_given(shared)
    reference, connection = connection_reference_of(shared), connection_of(shared)
    repository = open_or_make_repository(shared, may_make=may_make)
    with (
        writing(shared, repository, "backup", lock_timeout) as lease,
        make_progress("backup", wanted=shared.progress) as progress,
    ):
        begun = run_async(begin_backup(connection, repository, options, progress, lease=lease))
        make_now(repository)  # executors open it by themselves
        with open_session(settings) as session:
            executors = Executors(session, place, repository.descriptor.id, reference, _at_once())
            results, failures = store_streams(executors, repository, options, begun, progress)
            report = finish_backup(repository, options, begun, results, failures, lease, os.urandom)
    return tell_backup(shared.output, report.manifest, report.streams, report.failures, report.note)


def spread_restore(
    shared: Shared,
    asked: Asked,
    saved: SavedPlan | None,
    options: RestoreOptions,
    settings: RestoreSettings,
    where: Where,
    lock_timeout: str,
) -> int:
    """Restore by executors what a backup, or a saved plan, says; the exit code."""
    spark_settings = settings_of(where)
    from jsbackup.pipeline.fan_out import Executors
    from jsbackup.pipeline.fan_out_restore import mask_key_of, restore_streams
    from jsbackup.pipeline.session import open_session

    place = place_given(shared)
    reference, connection = connection_reference_of(shared), connection_of(shared)
    mask_key = mask_key_of({name: _typed().get(name) for name in ("mask_key_file", "mask_key_command")})
    repository = open_repository(shared)
    with (
        reading(shared, repository, "restore", lock_timeout),
        make_progress("restore", wanted=shared.progress) as progress,
    ):
        finder = make_finder(
            shared,
            repository,
            asked.backup if saved is None else saved.backup,
            asked.choosing(),
            streams=options.streams,
            exclude=options.exclude,
            silent=shared.output.as_json,
        )
        manifest = finder(run_async(read_source(connection)) if finder.is_latest else None)
        if saved is not None:
            saved.refuse_other(manifest)
        prospect = run_async(begin_restore(connection, repository, manifest, options, saved=saved))
        with open_session(spark_settings) as session:
            executors = Executors(session, place, repository.descriptor.id, reference, _at_once())
            report = restore_streams(executors, manifest, prospect, settings, mask_key, progress)
    return tell_restored(shared, report, "restored", finder)


def _typed() -> Mapping[str, Any]:
    return click.get_current_context().params


def _at_once() -> int:
    """What `--jobs` says, if it was given; else as many as Spark can."""
    given = click.get_current_context().get_parameter_source("jobs") in GIVEN
    return int(_typed()["jobs"]) if given else 0
