"""A backup as DataFrames, read by our data source."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from jsbackup.pipeline.messages.chosen import ChosenBackup
from jsbackup.pipeline.messages.columns import COLUMNS, check_columns, ddl
from jsbackup.pipeline.messages.source import BackupSource
from jsbackup.pipeline.messages.source_options import options_of
from jsbackup.pipeline.session.data_sources import register
from jsbackup.pipeline.session.failures import spark_errors
from jsbackup.pipeline.session.repository_ref import RepositoryRef, open_backup_at
from jsbackup.pipeline.session.session import attach
from jsbackup.pipeline.tasks.tasks import OnSpark
from jsbackup.repository.manifest import Manifest

__all__ = ["BackupFrames", "open_backup"]


class BackupFrames(ChosenBackup):
    """A backup, to be read with a session."""

    def __init__(self, session: SparkSession, place: RepositoryRef, manifest: Manifest) -> None:
        super().__init__(place, manifest)
        self.session = session

    def messages(self, patterns: Sequence[str] = (), columns: Sequence[str] = COLUMNS) -> DataFrame:
        """Return messages of the chosen streams, with these columns (`columns.py`), unordered.

        Raises:
            UsageError, UnsupportedError, IntegrityError: as `streams`.
        """
        names, streams = check_columns(columns), self.streams(patterns)
        with spark_errors("reading the backup"):
            if not streams:
                return self.session.createDataFrame([], ddl(names))
            source = register(self.session, BackupSource).read.format(BackupSource.name())
            source = source.options(**options_of(self.place)).options(
                backup=self.manifest.id,
                streams=json.dumps([stream.name for stream in streams]),
                columns=",".join(names),
                cores=OnSpark(self.session).cores,
            )
            return source.load()


def open_backup(session: SparkSession, place: RepositoryRef, backup: str = "latest") -> BackupFrames:
    """Open a backup (an id, the start of one, or `latest`), to be read with `session`. Raises the same errors as
    `open_backup_at`.
    """
    attach(session)
    _repository, manifest = open_backup_at(place, backup)
    return BackupFrames(session, place, manifest)
