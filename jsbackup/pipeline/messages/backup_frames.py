"""A backup as DataFrames, read by Spark's own Parquet reader or by our data source.

Columns and rows are the same. Spark's reader is several times as fast, so it is used if possible: for plain segments in
a folder that the executors can access. It cannot read encrypted segments, nor S3 without Hadoop's jars for it, nor
filter by the column `time`, which is not in the files. It only checks the checksums of the pages; `verify` verifies the
files.

It takes the path of each file from the driver, lists it and opens it, so ours reads where there are many segments, or
many short ones.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from enum import StrEnum
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jsbackup.pipeline.messages.chosen import ChosenBackup, why_no_paths
from jsbackup.pipeline.messages.columns import COLUMNS, check_columns, ddl
from jsbackup.pipeline.messages.source import BackupSource
from jsbackup.pipeline.messages.source_options import options_of
from jsbackup.pipeline.session.data_sources import register
from jsbackup.pipeline.session.failures import spark_errors
from jsbackup.pipeline.session.parquet_files import whole_files
from jsbackup.pipeline.session.repository_ref import RepositoryRef, open_backup_at
from jsbackup.pipeline.session.session import attach
from jsbackup.pipeline.tasks.tasks import OnSpark
from jsbackup.repository.manifest import Manifest, StreamBackup

__all__ = ["BackupFrames", "FrameReader", "open_backup"]

_log = logging.getLogger(__name__)

_STORED = ("sequence", "timestamp_ns", "subject", "headers", "data")

# Streams that are read by a frame of their own.
#
# Measured, a group-by stream of three with 900,000 messages, warm: 1.0 s of processor with constants, 5.1 with a name
# decoded from the path of each row.
_MOST_APART = 16

# `div` rounds towards zero, but times before 1970 must be rounded down like all others.
_TIME = "timestamp_micros(timestamp_ns div 1000 - if(timestamp_ns % 1000 < 0, 1L, 0L))"

# Hadoop treats these in a path as a pattern.
_PATTERN = re.compile(r"[*?{}\[\]\\]")


class FrameReader(StrEnum):
    """The reader of segments."""

    AUTO = "auto"
    SPARK = "spark"
    STORE = "store"


class BackupFrames(ChosenBackup):
    """A backup, to be read with a session. Created by `open_backup`."""

    def __init__(self, session: SparkSession, place: RepositoryRef, manifest: Manifest, why_store: str) -> None:
        super().__init__(place, manifest)
        self.session = session
        self._why_store = why_store

    def messages(
        self,
        patterns: Sequence[str] = (),
        columns: Sequence[str] = COLUMNS,
        reader: FrameReader = FrameReader.AUTO,
    ) -> DataFrame:
        """Return messages of the chosen streams, with these columns (`columns.py`), unordered.

        Raises:
            UsageError, UnsupportedError, IntegrityError: as `streams`; the last also for a segment that is missing.
        """
        names = check_columns(columns)
        streams = self.streams(patterns)
        if reader is FrameReader.AUTO:
            why = self._why_store or why_no_paths(streams)
            reader = FrameReader.STORE if why else FrameReader.SPARK
            _log.info("messages are read by %s", f"jsbackup ({why})" if why else "Spark")
        with spark_errors("reading the backup"):
            if reader is FrameReader.SPARK:
                return self._by_spark(streams, names)
            return self._by_store(streams, names)

    def reader(self, patterns: Sequence[str] = (), wanted: FrameReader = FrameReader.AUTO) -> FrameReader:
        """Return the reader that `messages` takes. Raises the same errors as `streams`."""
        if wanted is not FrameReader.AUTO:
            return wanted
        return FrameReader.STORE if self._why_store or why_no_paths(self.streams(patterns)) else FrameReader.SPARK

    def _by_store(self, streams: Sequence[StreamBackup], names: Sequence[str]) -> DataFrame:
        if not streams:
            return self._nothing(names)
        source = register(self.session, BackupSource).read.format(BackupSource.name()).options(**options_of(self.place))
        source = source.options(
            backup=self.manifest.id,
            streams=json.dumps([stream.name for stream in streams]),
            columns=",".join(names),
            cores=OnSpark(self.session).cores,
        )
        return source.load()

    def _by_spark(self, streams: Sequence[StreamBackup], names: Sequence[str]) -> DataFrame:
        frame = self._stored(streams, named="stream" in names)
        if frame is None:
            return self._nothing(names)
        made = {"time": F.expr(_TIME), "backup": F.lit(self.manifest.id)}
        return frame.select(*(made[name].alias(name) if name in made else name for name in names))

    def _stored(self, streams: Sequence[StreamBackup], *, named: bool) -> DataFrame | None:
        """Return the stored columns of all segments, and `stream` if it is `named`; None without segments."""
        filled = [stream for stream in streams if stream.segments]
        if not filled:
            return None
        if not named:
            return self._parquet(filled)
        # The names of the largest streams are constants, with which Spark also leaves streams out. A frame for each of
        # thousands of streams would take longer to plan than to read.
        filled.sort(key=lambda stream: -stream.captured.bytes)
        apart, together = filled[:_MOST_APART], filled[_MOST_APART:]
        frames = [self._parquet([stream]).withColumn("stream", F.lit(stream.name)) for stream in apart]
        if together:
            # The folder gives the stream; in a URL the percent signs of its name are encoded again.
            folders = {ref.key.split("/")[1].replace("%", "%25"): one.name for one in together for ref in one.segments}
            folder = F.substring_index(F.substring_index(F.col("_metadata.file_path"), "/", -2), "/", 1)
            table = self.session.createDataFrame(list(folders.items()), "folder string, stream string")
            found = self._parquet(together).withColumn("folder", folder).join(F.broadcast(table), "folder")
            frames.append(found.drop("folder"))
        return reduce(DataFrame.unionByName, frames)

    def _parquet(self, streams: Sequence[StreamBackup]) -> DataFrame:
        paths = [f"file:{self.place.folder}/{ref.key}" for stream in streams for ref in stream.segments]
        return whole_files(self.session).schema(ddl(_STORED)).parquet(*paths)

    def _nothing(self, names: Sequence[str]) -> DataFrame:
        return self.session.createDataFrame([], ddl(names))


def open_backup(session: SparkSession, place: RepositoryRef, backup: str = "latest") -> BackupFrames:
    """Open a backup (an id, the start of one, or `latest`), to be read with `session`. Raises the same errors as
    `open_backup_at`.
    """
    attach(session)
    repository, manifest = open_backup_at(place, backup)
    why = ""
    if repository.objects.sealing.suffix:
        why = "they are encrypted"
    elif place.folder is None:
        why = "they are in S3"
    elif _PATTERN.search(place.folder):
        why = "Spark takes the path for a pattern"
    return BackupFrames(session, place, manifest, why)
