"""`spark.readStream.format("jsbackup")`: follows a repository as backups are added to it, by any command.

    spark.readStream.format("jsbackup").option("stream", "ORDERS").load("/backups")

Each message comes once, by stream, incarnation, life and sequence, from the first backup that has it
(`stream_walk.py`). The offset is in the checkpoint: a query that is started again goes on behind
it. Followed are the backups of one source (cluster and account), made from a server: no imports, no transformed ones,
none dated in the future.

The reader lives as long as the query, in a process beside the driver. It keeps what it has looked at without finding
anything new, and the ranges of the micro-batch that it has planned; nothing is lost with it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from jsbackup.config import Glob, parse_glob
from jsbackup.errors import IncompleteError, UsageError
from jsbackup.pipeline.messages.bounds import ALL, Bounds
from jsbackup.pipeline.messages.chosen import choose_streams
from jsbackup.pipeline.messages.followed import find_origin, make_walk
from jsbackup.pipeline.messages.segment_rows import RowColumns
from jsbackup.pipeline.messages.source_options import SourceOptions, one_sentence
from jsbackup.pipeline.messages.stream_walk import BackupWalk, MessageRange, ReadLimits, StreamOffsets
from jsbackup.pipeline.session.repository_ref import check_readable, opened
from jsbackup.pipeline.tasks.packing import pack_tasks
from jsbackup.pipeline.tasks.task_source import freeze_worker
from jsbackup.repository import layout
from jsbackup.repository.read.latest import Wanted
from jsbackup.repository.repository import Repository

__all__ = ["BackupStreamReader"]

_log = logging.getLogger(__name__)

# Spark asks for more all the time. A listing is a request to the store.
_LOOK_SECONDS = 1.0
_GO_ON = "Set the option failOnDataLoss to false to go on with what is there."


class BackupStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader with the columns `columns`. Its methods raise errors with a sentence (`one_sentence`)."""

    def __init__(self, options: SourceOptions, columns: RowColumns) -> None:
        self._options = options
        self._columns = columns
        self._only: frozenset[str] | None = None  # with Trigger.AvailableNow: the backups that were there then
        self._looked: tuple[float, list[str]] | None = None
        self._ahead: tuple[StreamOffsets, StreamOffsets] | None = None  # of what is between, nothing is to deliver
        self._idle: tuple[StreamOffsets, list[str]] | None = None  # when nothing was new: from where, what was there
        self._planned: tuple[StreamOffsets, StreamOffsets, list[MessageRange]] | None = None

    # --- where it begins and how far it gets; beside the driver ---

    def initialOffset(self) -> dict[str, Any]:
        with one_sentence():
            repository = self._open()
            start = self._with_origin(repository, StreamOffsets(repository.descriptor.id))
            if start.origin:
                chosen = repository.choose(layout.LATEST, Wanted(origins=(Glob(start.origin),))).manifest
                choose_streams(chosen, [text for text in self._options.patterns if parse_glob(text).is_literal])
            if not self._options.from_latest or not start.origin:
                return start.to_json()
            walk = self._walk(repository, start, repository.backups())
            walk.run()
            return walk.end.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with one_sentence():
            repository = self._open()
            before = self._decoded(repository, start)
            present = self._look(repository)
            if self._idle == (before, present):
                return start
            begin = self._with_origin(repository, before) if present else before
            if not begin.origin:
                self._idle = (before, present)
                return start
            if self._ahead is not None and self._ahead[0] == before:
                begin = self._ahead[1]
            walk = self._walk(repository, begin, present, limits=self._limits(limit))
            walk.run()
            if not walk.has_news:
                self._idle, self._ahead = (before, present), (before, walk.end)
                return start
            end = walk.end
            self._planned = (before, end, walk.ranges)
            return end.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.most_messages:
            return ReadMaxRows(self._options.most_messages)
        return ReadMaxBytes(self._options.most_bytes) if self._options.most_bytes else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        with one_sentence():
            self._only = frozenset(self._open().backups())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with one_sentence():
            repository = self._open()
            first, last = self._decoded(repository, start), self._decoded(repository, end)
            ranges = self._ranges(repository, first, last)
            slices = pack_tasks([part.ref.bytes for part in ranges], self._options.cores or os.cpu_count() or 0)
            # One at least: a sink whose batch has no partition is not told whose batch it is.
            return [InputPartition(tuple(ranges[piece])) for piece in slices] or [InputPartition(())]

    # --- on an executor ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_worker()
        repository = opened(self._options.place)
        message_range: MessageRange
        for message_range in partition.value or ():
            bounds = (
                ALL
                if message_range.is_whole
                else Bounds(sequence=(message_range.first_seq, message_range.last_seq), only=message_range.only)
            )
            yield from self._columns.rows(
                repository, message_range.ref, bounds, stream=message_range.key.name, backup=message_range.backup
            )

    # --- planning ---

    def _open(self) -> Repository:
        repository = opened(self._options.place)
        check_readable(repository)
        return repository

    def _decoded(self, repository: Repository, offset: dict[str, Any]) -> StreamOffsets:
        decoded = StreamOffsets.from_json(offset)
        if decoded.repository != repository.descriptor.id:
            raise UsageError(
                f"the checkpoint belongs to another repository than the one at {self._options.place.location}",
                hint="Use another checkpoint location for this one.",
            )
        return decoded

    def _with_origin(self, repository: Repository, start: StreamOffsets) -> StreamOffsets:
        """Return the offset with the source that is followed; that remains "" while there is no backup of one."""
        if start.origin:
            return start
        try:
            return replace(start, origin=find_origin(repository, self._options.origins))
        except UsageError as error:
            raise UsageError(
                error.message.replace("'latest' is ambiguous: ", ""), hint="Choose one with the option 'origin'."
            ) from None

    def _look(self, repository: Repository) -> list[str]:
        """Return the backups that there are, at most `_LOOK_SECONDS` ago."""
        now = time.monotonic()
        if self._looked is None or now - self._looked[0] >= _LOOK_SECONDS:
            self._looked = now, repository.backups()
        present = self._looked[1]
        return present if self._only is None else [backup for backup in present if backup in self._only]

    def _limits(self, limit: ReadLimit) -> ReadLimits:
        limits = ReadLimits()
        if isinstance(limit, ReadAllAvailable):
            return limits
        limits.messages = self._options.most_messages or None
        limits.bytes = self._options.most_bytes or None
        if isinstance(limit, ReadMaxRows):
            limits.messages = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            limits.bytes = limit.max_bytes
        return limits

    def _walk(
        self,
        repository: Repository,
        start: StreamOffsets,
        present: Sequence[str],
        *,
        limits: ReadLimits | None = None,
        until: StreamOffsets | None = None,
    ) -> BackupWalk:
        patterns = self._options.patterns
        return make_walk(repository, start, present, patterns, told=self._tell_loss, limits=limits, until=until)

    def _tell_loss(self, sentence: str) -> None:
        if self._options.fail_on_loss:
            raise IncompleteError(sentence, hint=_GO_ON)
        _log.warning("%s", sentence)

    def _ranges(self, repository: Repository, start: StreamOffsets, end: StreamOffsets) -> list[MessageRange]:
        """Return what is between two offsets: as it was planned, unless backups have been forgotten since."""
        present = repository.backups()
        if self._planned is not None and self._planned[:2] == (start, end):
            ranges = self._planned[2]
            if {message_range.backup for message_range in ranges} <= set(present):
                return ranges
        if not end.origin:
            return []
        walk = self._walk(repository, replace(start, origin=end.origin), present, until=end)
        walk.run()
        return walk.ranges
