"""`df.writeStream.format("jsbackup")`: publishes the rows of a streaming query to a stream of a server.

    df.writeStream.format("jsbackup").option("checkpointLocation", "/checkpoint")
        .options(server="nats://host:4222", stream="ORDERS").start()

Options and columns are those of `df.write` (`writer_options.py`). For how each row is stored once, see
`putting_back/batch_writing.py`.

Spark makes a writer for each batch, beside the driver, before its tasks begin, and another one when they have ended.
Neither knows the query or, at first, the batch: only tasks do, which hand on what the end has to know.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from jsbackup.config import environment
from jsbackup.engine.backup.worker_share import complete
from jsbackup.errors import IntegrityError, NatsError, UnsupportedError
from jsbackup.pipeline.messages.source_options import one_sentence
from jsbackup.pipeline.messages.stream_writer import left_out_note, new_rows, say
from jsbackup.pipeline.messages.writer_options import WRITER_NAMES, WriterOptions
from jsbackup.pipeline.tasks.task_source import freeze_worker
from jsbackup.putting_back.batch_ids import BatchId, BatchPart
from jsbackup.putting_back.batch_writing import START_AGAIN, BatchTask, end_batch, may_have_run_before, write_batch
from jsbackup.putting_back.new_rows import RowTarget, WrittenRows
from jsbackup.putting_back.row_writing import begin_write
from jsbackup.readable import format_count

__all__ = ["StreamSink"]

# The module of Spark that ends batches, loaded only in processes that do so.
_ENDING = "pyspark.sql.worker.python_streaming_sink_runner"
# Local properties of Spark's jobs. The query's id is in its checkpoint, that of the run is another one each time.
_QUERY, _BATCH, _RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
_CONTINUOUS = "__is_continuous_processing"
_MICRO_BATCHES = "a stream is written by micro-batches only"
_HAD_ROWS = "the batch {} has no rows; whether it had some when it ran before"


@dataclass(frozen=True, slots=True)
class _Written(WriterCommitMessage):
    """What came of a partition."""

    target: RowTarget
    batch: BatchId
    part: BatchPart
    again: bool = True  # whether the batch may have run before


class StreamSink(DataSourceStreamArrowWriter):
    """A writer of one batch. Looks at the stream when it is made before the batch. Its methods raise errors with a
    sentence.
    """

    def __init__(self, options: WriterOptions) -> None:
        self._server = options.server
        self._stream = options.stream
        self._target: RowTarget | None = None
        if not _is_ending():
            connection = self._server.resolve(environment())
            self._target = complete(begin_write(connection, options.stream, "", new_ids=options.new_ids))

    # --- on an executor ---

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        freeze_worker()
        with one_sentence(WRITER_NAMES):
            task, target = _task(), self._target
            if target is None:
                raise IntegrityError("Spark sends a writer to tasks that was made to end a batch")
            again = may_have_run_before(task)
            rows = new_rows(iterator, with_place=True)
            first = next(rows, None)
            if first is None:
                return _Written(target, task.batch, BatchPart(task.partition), again)
            connection = self._server.resolve(environment())
            part = complete(write_batch(connection, target, task, chain([first], rows)))
            return _Written(target, task.batch, part, again)

    # --- beside the driver ---

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        written = [message for message in messages if isinstance(message, _Written)]
        if messages and not written:
            # In continuous processing Spark calls no writer, and drops what is raised here; so it is printed, too.
            say(f"{_MICRO_BATCHES}. Leave trigger(continuous=…) out.")
            raise UnsupportedError(_MICRO_BATCHES, hint="Leave trigger(continuous=…) out.")
        partitions = {one.part.partition for one in written}
        if len(partitions) < len(messages) or any(one.batch.number != batchId for one in written):
            raise IntegrityError(f"Spark does not say of each partition what became of it: {len(messages)} answers")
        parts = [one.part for one in written if one.part.rows.rows]
        # One without rows that had some before is a mistake. Without partitions, nobody says of which query it is.
        if not parts and not (written and all(one.again for one in written)):
            return
        target, batch = written[0].target, written[0].batch
        with one_sentence(WRITER_NAMES):
            try:
                ended = complete(end_batch(self._server.resolve(environment()), target, batch, parts))
            except NatsError as error:
                stored = "the rows of the batch {} were stored, but whether all were" if parts else _HAD_ROWS
                told = f"{stored.format(batch)} is not known: {error.message}"
                raise error.with_message(told).with_more_hint(START_AGAIN) from error
        notes = left_out_note(ended.rows)
        if ended.repeated:
            notes = f"; {ended.repeated:,} more were there already, with the same content{notes}"
        if ended.removed:
            gone = format_count(ended.removed, "row")
            notes += f"; {gone} of the batch are not in the stream any more: such may have been stored twice"
        if notes:
            stored = format_count(ended.rows.rows - ended.repeated, "message")
            say(f"published {stored} to stream {target.stream}{notes} (batch {batch})")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        total = WrittenRows()
        for message in messages:
            if isinstance(message, _Written):
                total.add(message.part.rows)
        say(
            f"batch {batchId} of a query to stream {self._stream} has failed; whole partitions with "
            f"{format_count(total.rows, 'row')} were written, and a part of others may be. "
            f"If a row was refused, mend it or leave it out. {START_AGAIN}"
        )


def _is_ending() -> bool:
    """Return whether this process ends a batch; then the stream is not looked at again."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return _ENDING in sys.modules or (spec is not None and spec.name == _ENDING)


def _task() -> BatchTask:
    """Return what this task is. Raises UnsupportedError if it is not one of a micro-batch."""
    context = TaskContext.get()
    if context is not None and context.getLocalProperty(_CONTINUOUS) != "true":
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query and batch:
            run, again = context.getLocalProperty(_RUN) or "", context.attemptNumber() > 0
            return BatchTask(BatchId(query, int(batch)), context.partitionId(), run, again)
    raise UnsupportedError(_MICRO_BATCHES, hint="Leave trigger(continuous=…) out.")
