"""Write rows to segments on executors, for backups from DataFrames (`write.py`).

Each partition has a separate range of sequences, in order. A repeated attempt stores the same segments under the same
keys, and finds them there; unused ones are in no manifest. References are returned as commit messages; the process in
which Spark collects them writes them to a file for the driver. Our errors are returned likewise: if they were raised,
Spark would retry in vain. On Spark Connect that process is on another machine: there the results are rows of a function
over batches, which needs pandas on the client, as all of Connect does.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from jsbackup.errors import FormatError, JsBackupError
from jsbackup.formats.archive.archive_items import refuse_too_large
from jsbackup.pipeline.session.data_sources import register
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tasks.row_rules import NO_COUNTS, RowCounts, SinkRules, as_messages, count_rows
from jsbackup.pipeline.tasks.task_source import freeze_worker
from jsbackup.repository.segments import SegmentWriter, StoredSegments

__all__ = [
    "SegmentSink",
    "StoredPartition",
    "store_by_writer",
    "store_messages",
    "store_rows",
]


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """What was stored of a partition."""

    segments: StoredSegments
    counts: RowCounts = NO_COUNTS


@dataclass
class _Result(WriterCommitMessage):
    result: StoredPartition | JsBackupError


class SegmentSink(DataSource):
    """`frame.write.format("jsbackup_segments")`; options `place` with rules (pickled, in hex), `folder`, `result`."""

    @classmethod
    def name(cls) -> str:
        return "jsbackup_segments"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        place, rules = pickle.loads(bytes.fromhex(self.options["place"]))
        return _SegmentWriter(place, self.options["folder"], self.options["result"], rules)


class _SegmentWriter(DataSourceArrowWriter):
    def __init__(self, place: RepositoryRef, folder: str, result: str, rules: SinkRules) -> None:
        self._place = place
        self._folder = folder
        self._result = result
        self._rules = rules

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _Result(store_messages(self._place, self._folder, iterator, self._rules))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        results = [message.result for message in messages if isinstance(message, _Result)]
        Path(self._result).write_bytes(pickle.dumps(results))


def store_by_writer(
    place: RepositoryRef, folder: str, frame: DataFrame, rules: SinkRules
) -> list[StoredPartition | JsBackupError]:
    """Store the partitions of a frame; return the result of each."""
    with tempfile.TemporaryDirectory(prefix="jsbackup-write-") as temporary:
        result = Path(temporary) / "segments"
        options = {"place": pickle.dumps((place, rules)).hex(), "folder": folder, "result": str(result)}
        register(frame.sparkSession, SegmentSink)
        frame.write.format(SegmentSink.name()).options(**options).mode("append").save()
        found: list[StoredPartition | JsBackupError] = pickle.loads(result.read_bytes())
    return found


def store_rows(
    place: RepositoryRef, folder: str, frame: DataFrame, rules: SinkRules
) -> list[StoredPartition | JsBackupError]:
    """As `store_by_writer`, on Spark Connect."""

    def store(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        result = pickle.dumps(store_messages(place, folder, batches, rules))
        yield pa.RecordBatch.from_pydict({"result": pa.array([result], pa.binary())})

    return [pickle.loads(row.result) for row in frame.mapInArrow(store, "result binary").collect()]


def store_messages(
    place: RepositoryRef, folder: str, batches: Iterator[pa.RecordBatch], rules: SinkRules
) -> StoredPartition | JsBackupError:
    """Store rows in order of their sequences, in a task. Return our error, if there is one, as Spark retries others."""
    freeze_worker()
    try:
        if not rules.stores:
            _look_at(batches, rules)
            return StoredPartition(StoredSegments())
        writer = SegmentWriter(opened(place).objects, folder)
        last, counts = 0, NO_COUNTS
        try:
            for batch in batches:
                if batch.num_rows:
                    messages = as_messages(batch, any_headers=rules.any_headers)
                    last = _rising(messages.column("sequence"), last)
                    counts += count_rows(messages, rules)
                    writer.add(messages)
            return StoredPartition(writer.finish_all(), counts)
        finally:
            writer.close()
    except JsBackupError as error:
        return error


def _look_at(batches: Iterator[pa.RecordBatch], rules: SinkRules) -> None:
    """Raise the errors of rows that cannot be stored. Of rows in no order, those that are there twice may be missed."""
    last = 0
    for batch in batches:
        if batch.num_rows:
            sequences = as_messages(batch, any_headers=rules.any_headers).column("sequence")
            last = _rising(sequences, last) if rules.in_order else 0
            if not rules.in_order:
                _rising(sequences.take(pc.sort_indices(sequences)), 0)


def _rising(sequences: pa.Array, last: int) -> int:
    """Return the last of sequences in order after `last`. Raises FormatError for a repeated or an invalid one."""
    first, end = sequences[0].as_py(), sequences[-1].as_py()
    if first < 1:
        raise FormatError(f"{first} is not a sequence: sequences start at 1")
    try:
        refuse_too_large(end)
    except FormatError as error:
        raise error.with_hint("The messages need other sequences: a backup of these could not be restored.") from None
    again = sequences[1:].filter(pc.equal(sequences[1:], sequences[:-1]))
    if first == last or len(again):
        raise FormatError(f"sequence {first if first == last else again[0].as_py()} is there twice")
    return int(end)
