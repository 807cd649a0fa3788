"""Exports of messages as tables, as on the command line."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Literal, TypeAlias, Unpack

from jsbackup.api.arguments import LOCK_TIMEOUT_SECONDS, ReshapingArguments, asked_by, one_of
from jsbackup.api.stored import Backup, BackupRepository, repository_of
from jsbackup.api.worker import OnProgress, note_waiting, progress_to
from jsbackup.engine.backup.lease_renewal import hold_to_read
from jsbackup.errors import IncompleteError, JsBackupError, UsageError
from jsbackup.exchange.exporting import ExportedStream
from jsbackup.pipeline.messages.chosen import ChosenBackup
from jsbackup.pipeline.session.repository_ref import check_readable, lent, place_of
from jsbackup.pipeline.tables.export import TablesAsked, export_tables, export_target, plan_export
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.pipeline.tasks.reshape_task import MaskKey
from jsbackup.pipeline.tasks.runner import THREADS, InProcess
from jsbackup.planning.typed_options import TableOptions, change_options, keeping_obfuscated
from jsbackup.repository import layout
from jsbackup.repository.read.latest import Wanted

__all__ = ["ExportOutcome", "ExportedTable", "export"]

_log = logging.getLogger(__name__)


ExportedTable: TypeAlias = ExportedStream
"""The table of a stream: how many `messages` were written, and what one should know of it (`notes`)."""


@dataclass(frozen=True, slots=True)
class ExportOutcome:
    """What was written of a backup, or added to tables: messages (`rows`) in `files` of so many `bytes`.

    `streams` and `failed` are by the names of the tables. The latter are streams that cannot be read, and tables that
    cannot be extended.
    """

    backup: Backup
    files: int
    rows: int
    bytes: int
    streams: Mapping[str, ExportedTable]
    failed: Mapping[str, JsBackupError]


def export(
    source: Backup | BackupRepository,
    output: str | PathLike[str],
    *,
    format: Literal["parquet", "jsonl", "delta", "iceberg"],
    append: bool = False,
    partition_by: Literal["day"] | None = None,
    catalog: str | None = None,
    mask_key_file: str | PathLike[str] | None = None,
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    progress: OnProgress | None = None,
    **how: Unpack[ReshapingArguments],
) -> ExportOutcome:
    """Write messages of a backup as tables, as `jsbackup export` does: one for each stream, in a folder of its name.

    `source` is a backup, or a repository: then it is the `latest` backup. `output` is a folder, or `s3://bucket/prefix`
    with the settings of the repository. With `append`, tables there get what they lack of all backups up to this one,
    each message once. `partition_by` and `catalog` are as the options. `how` are the options that choose and change
    streams, as in `restore`; the key for hashes is in `mask_key_file`. `progress` is of the whole export.

    Raises:
        UsageError: an argument is wrong, names something that does not exist, or something else is at `output`.
        UnsupportedError: the package for tables of Delta or Iceberg is not installed.
        PlanRefused, TargetConflict: something blocks it; or another export changed a table meanwhile.
        IncompleteError: some streams failed; `result` is the outcome. Any error of theirs, if all did.
        IntegrityError, KeyUnavailable: messages are lost or damaged, or no key reads them.
        StoreError: the repository cannot be read, or `output` not be written.
    """
    repository = repository_of(source)
    kind, asked = one_of("format", TableFormat, format), asked_by("export", how, ReshapingArguments)
    if partition_by not in (None, "day"):
        raise UsageError(f"partition_by: {partition_by!r} is not 'day'")
    TableOptions(kind, append, partition_by is not None, catalog).check(asked)
    options = change_options(asked, asked.streams)
    mask_key = MaskKey(() if mask_key_file is None else (("mask_key_file", fspath(mask_key_file)),))
    options.reshape.masks.check_secret(mask_key.secret())
    tables = TablesAsked(kind, options, mask_key, append, partition_by is not None, catalog)
    opened, place, location = repository._opened(), repository._place, fspath(output)
    with (
        keeping_obfuscated(asked.obfuscation_key, options.reshape, whole=None if "://" in location else Path(location)),
        export_target(place, place_of(location, place.s3, {}), tables, note=_log.warning) as target,
        hold_to_read(opened, "export", wait_seconds=lock_timeout_seconds, waiting=note_waiting, note=_log.warning),
        lent(place, opened),
    ):
        wanted = Wanted(options.streams, as_newest=append)
        manifest = source._manifest if isinstance(source, Backup) else opened.choose(layout.LATEST, wanted).manifest
        check_readable(opened)
        for reason in ChosenBackup(place, manifest).left_out():
            _log.warning("%s, and left out", reason)
        plan = plan_export(place, manifest, target, tables, patterns=options.streams)
        done = export_tables(InProcess(THREADS), place, target, plan, progress=progress_to(progress))
    outcome = ExportOutcome(
        backup=Backup(repository, manifest.id, manifest=manifest),
        files=done.files,
        rows=sum(stream.messages for stream in done.streams),
        bytes=done.bytes,
        streams={stream.name: stream for stream in done.streams},
        failed=done.refused,
    )
    lacking = [f"{name}: {error.message}" for name, error in done.refused.items()]
    lacking += [f"{stream.name}: {', '.join(stream.notes)}" for stream in done.streams if stream.incomplete]
    if lacking:
        raise IncompleteError(f"not all was exported: {'; '.join(lacking)}", result=outcome)
    return outcome
