"""Rows into segments: what executors do when a DataFrame becomes a backup. `write.py` is how it is used.

Each partition holds a run of sequences that no other has, in order. An attempt that is repeated stores the same
segments under the same keys, and finds them there; what attempts have stored in vain no manifest names. References
travel back as commit messages; the process in which Spark collects them leaves them in a file for the driver.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from jsbackup.errors import UsageError
from jsbackup.formats.batch import BATCH_SCHEMA, BINARY_SUBJECT_SCHEMA
from jsbackup.pipeline.place import Place, opened
from jsbackup.pipeline.task_source import freeze_worker
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.segments import SegmentWriter

__all__ = ["SegmentSink", "as_messages"]


@dataclass
class _Stored(WriterCommitMessage):
    refs: tuple[SegmentRef, ...]


class SegmentSink(DataSource):
    """`frame.write.format("jsbackup_segments")`; options `place` (pickled, in hex), `folder`, `result`."""

    @classmethod
    def name(cls) -> str:
        return "jsbackup_segments"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        place: Place = pickle.loads(bytes.fromhex(self.options["place"]))
        return _SegmentWriter(place, self.options["folder"], self.options["result"])


class _SegmentWriter(DataSourceArrowWriter):
    def __init__(self, place: Place, folder: str, result: str) -> None:
        self._place = place
        self._folder = folder
        self._result = result

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        freeze_worker()
        writer = SegmentWriter(opened(self._place).objects, self._folder)
        for batch in iterator:
            if batch.num_rows:
                writer.add(as_messages(batch))
        return _Stored(tuple(writer.finish()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        stored = [message for message in messages if isinstance(message, _Stored)]
        Path(self._result).write_bytes(pickle.dumps([message.refs for message in stored]))


def as_messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of a DataFrame's as messages. Raises `UsageError` where a row lacks what a message has."""
    arrays = []
    for field in BATCH_SCHEMA:
        array = batch.column(batch.schema.get_field_index(field.name))
        if array.null_count and not field.nullable:
            raise UsageError(f"a message without {field.name} cannot be stored")
        arrays.append(array)
    schema = BATCH_SCHEMA
    try:
        arrays[2].validate(full=True)
    except pa.ArrowInvalid:
        schema = BINARY_SUBJECT_SCHEMA
        arrays[2] = arrays[2].view(pa.binary())
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
