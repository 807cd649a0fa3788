"""A backup as DataFrames, and the choice of who reads it: Spark's own Parquet reader, or our data source.

Same columns, same rows. Spark's reader is several times as fast, so it is taken where it can be: plain segments in a
folder that the executors see. It cannot open what is encrypted, nor S3 without Hadoop's jars for it, nor skip by the
column `time`, which is not in the files. It trusts the files but for the checksums of their pages; `verify` is what
proves them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from enum import StrEnum

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jsbackup.errors import UnsupportedError
from jsbackup.pipeline.messages.columns import COLUMNS, check_columns, ddl
from jsbackup.pipeline.messages.source import choose_streams, options_of
from jsbackup.pipeline.session.failures import explained
from jsbackup.pipeline.session.repository_ref import RepositoryRef, find_backup
from jsbackup.pipeline.session.session import attach
from jsbackup.repository.manifest import ArchiveFormat, Manifest, StreamBackup

__all__ = ["BackupFrames", "FrameReader", "open_backup"]

_log = logging.getLogger(__name__)

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_STORED = ("sequence", "timestamp_ns", "subject", "headers", "data")

# Hadoop takes these in a path for a pattern.
_PATTERN = re.compile(r"[*?{}\[\]\\]")


class FrameReader(StrEnum):
    """Who reads segments."""

    AUTO = "auto"
    SPARK = "spark"
    STORE = "store"


class BackupFrames:
    """One backup, to be read with a session. `open_backup` makes one."""

    def __init__(self, session: SparkSession, place: RepositoryRef, manifest: Manifest, why_store: str) -> None:
        self.session = session
        self.place = place
        self.manifest = manifest
        self._why_store = why_store

    def streams(self, patterns: Sequence[str] = ()) -> list[StreamBackup]:
        """The streams that names and patterns choose, those without readable messages left out.

        Raises:
            UsageError: a pattern names none.
            UnsupportedError: one that is named by its name is kept in a format that is not known here.
        """
        chosen = choose_streams(self.manifest, patterns)
        for stream in chosen:
            if stream.archive_format is ArchiveFormat.OPAQUE and stream.name in patterns:
                raise UnsupportedError(f"stream {stream.name} is of an archive format that is not known here")
        return [stream for stream in chosen if stream.archive_format is not ArchiveFormat.OPAQUE]

    def left_out(self, patterns: Sequence[str] = ()) -> list[str]:
        """The names of those that `streams` leaves out."""
        chosen = [one for one in choose_streams(self.manifest, patterns) if one.name not in patterns]
        return [one.name for one in chosen if one.archive_format is ArchiveFormat.OPAQUE]

    def messages(
        self, patterns: Sequence[str] = (), columns: Sequence[str] = COLUMNS, reader: FrameReader = FrameReader.AUTO
    ) -> DataFrame:
        """Messages of the chosen streams, with these columns (`columns.py`), in no order. Errors as of `streams`."""
        names = check_columns(columns)
        streams = self.streams(patterns)
        if reader is FrameReader.AUTO:
            reader = FrameReader.STORE if self._why_store else FrameReader.SPARK
            _log.info("messages are read by %s", f"jsbackup ({self._why_store})" if self._why_store else "Spark")
        with explained("reading the backup"):
            if reader is FrameReader.SPARK:
                return self._by_spark(streams, names)
            return self._by_store(streams, names)

    def _by_store(self, streams: Sequence[StreamBackup], names: Sequence[str]) -> DataFrame:
        if not streams:
            return self._nothing(names)
        source = self.session.read.format("jsbackup").options(**options_of(self.place))
        source = source.options(
            backup=self.manifest.id,
            streams=json.dumps([stream.name for stream in streams]),
            columns=",".join(names),
            pushdown=str(self.session.conf.get(_PUSHDOWN, "false")).lower(),
        )
        return source.load()

    def _by_spark(self, streams: Sequence[StreamBackup], names: Sequence[str]) -> DataFrame:
        paths = [f"file:{self.place.folder}/{ref.key}" for stream in streams for ref in stream.segments]
        if not paths:
            return self._nothing(names)
        frame = self.session.read.schema(ddl(_STORED)).parquet(*paths)
        if len(streams) == 1:
            frame = frame.withColumn("stream", F.lit(streams[0].name))
        elif "stream" in names:
            # Which stream it is, the folder says; a URL has the percent signs of its name encoded once more.
            folders = {ref.key.split("/")[1]: stream.name for stream in streams for ref in stream.segments}
            folder = F.url_decode(F.regexp_extract(F.col("_metadata.file_path"), "([^/]+)/[^/]+$", 1))
            table = self.session.createDataFrame(list(folders.items()), "folder string, stream string")
            frame = frame.withColumn("folder", folder).join(F.broadcast(table), "folder")
        # `div` rounds towards zero, times before 1970 are to be rounded down as all others.
        down = F.expr("if(timestamp_ns % 1000 < 0, 1L, 0L)")
        frame = frame.withColumn("time", F.timestamp_micros(F.expr("timestamp_ns div 1000") - down))
        return frame.withColumn("backup", F.lit(self.manifest.id)).select(*names)

    def _nothing(self, names: Sequence[str]) -> DataFrame:
        return self.session.createDataFrame([], ddl(names))


def open_backup(session: SparkSession, place: RepositoryRef, backup: str = "latest") -> BackupFrames:
    """A backup (an id, the start of one, or `latest`), to be read with `session`. Errors as `find_backup`."""
    attach(session)
    repository, manifest = find_backup(place, backup)
    why = ""
    if repository.objects.sealing.suffix:
        why = "they are encrypted"
    elif place.folder is None:
        why = "they are in S3"
    elif _PATTERN.search(place.folder):
        why = "Spark takes the path for a pattern"
    return BackupFrames(session, place, manifest, why)
