"""Tasks as a data source: each is one partition, its result one row. Used by `tasks.py`.

A partition only has its own task, so that in a run of many thousand tasks not all of them are sent to each; a query
over `range` with a function would do that, and need pandas on the driver (`mapInArrow`).
"""

from __future__ import annotations

import base64
import gc
import pickle
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from jsbackup.errors import JsBackupError
from jsbackup.repository.write.segment_writer import share_cores

__all__ = ["RowSource", "TaskSource", "encode_tasks", "freeze_worker"]

_SCHEMA = pa.schema([("task", pa.int32()), ("result", pa.binary())])
_frozen = False


class TaskSource(DataSource):
    """`spark.read.format("jsbackup_tasks").option("tasks", encode_tasks(…)).load()`."""

    @classmethod
    def name(cls) -> str:
        return "jsbackup_tasks"

    def schema(self) -> str:
        return "task int, result binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        # Removed, because this object is sent with each task.
        return _TaskReader(self.options.pop("tasks"))


class _TaskReader(DataSourceReader):
    def __init__(self, tasks: str) -> None:
        self._tasks = tasks

    def __getstate__(self) -> dict[str, Any]:
        return {"_tasks": ""}

    def partitions(self) -> Sequence[InputPartition]:
        tasks: list[bytes] = pickle.loads(zlib.decompress(base64.b64decode(self._tasks)))
        return [InputPartition((number, task)) for number, task in enumerate(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_worker()
        number, task = partition.value
        try:
            result: object = pickle.loads(task)()
        except JsBackupError as error:
            # If it were raised here, Spark would retry; the driver handles it.
            result = error
        row = [pa.array([number], pa.int32()), pa.array([pickle.dumps(result)], pa.binary())]
        yield pa.RecordBatch.from_arrays(row, schema=_SCHEMA)


class RowSource(DataSource):
    """`spark.read.format("jsbackup_rows").schema(…).option("tasks", encode_tasks(…)).load()`.

    Each task yields batches with the columns of the schema; errors fail the job.
    """

    @classmethod
    def name(cls) -> str:
        return "jsbackup_rows"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _RowReader(self.options.pop("tasks"))


class _RowReader(_TaskReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_worker()
        if partition.value is None:  # Spark's partition if there are no tasks
            return
        _, task = partition.value
        yield from pickle.loads(task)()


def encode_tasks(tasks: Sequence[object]) -> str:
    """Encode tasks (callables that can be pickled) as an option of a data source."""
    pickled = pickle.dumps([pickle.dumps(task) for task in tasks])
    return base64.b64encode(zlib.compress(pickled, 1)).decode()


def freeze_worker() -> None:
    """Prepare a worker, one for each core. Its garbage collection after each task takes 24 to 42 ms unless imported
    modules are excluded; and its segments are compressed in one thread.
    """
    global _frozen
    if not _frozen:
        _frozen = True
        share_cores()
        gc.collect()
        gc.freeze()
