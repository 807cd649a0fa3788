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
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from jsbackup.errors import JsBackupError
from jsbackup.pipeline.session.data_sources import register
from jsbackup.pipeline.session.repository_ref import RepositoryRef
from jsbackup.pipeline.tasks.row_storing import SinkRules, StoredPartition, store_messages
from jsbackup.pipeline.tasks.task_source import freeze_worker

__all__ = [
    "SegmentSink",
    "store_by_writer",
    "store_rows",
]


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
        freeze_worker()
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
        results: list[StoredPartition | JsBackupError] = pickle.loads(result.read_bytes())
    return results


def store_rows(
    place: RepositoryRef, folder: str, frame: DataFrame, rules: SinkRules
) -> list[StoredPartition | JsBackupError]:
    """As `store_by_writer`, on Spark Connect."""

    def store(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_worker()
        result = pickle.dumps(store_messages(place, folder, batches, rules))
        yield pa.RecordBatch.from_pydict({"result": pa.array([result], pa.binary())})

    return [pickle.loads(row.result) for row in frame.mapInArrow(store, "result binary").collect()]
