"""`df.write.format("jsbackup")`: publishes rows to a stream of a server, as new messages.

    df.write.format("jsbackup").mode("append").option("server", "nats://host:4222").option("stream", "ORDERS").save()

For the options and columns see `writer_options.py`, for how often a message is stored `putting_back/row_writing.py`.
A partition is written by one task, in order, with its own connection. The line with the result goes to the stderr of
the driver: Spark shows nothing that a writer returns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from jsbackup.config import environment
from jsbackup.engine.backup.worker_share import complete
from jsbackup.errors import IntegrityError, NatsError
from jsbackup.pipeline.messages.source_options import one_sentence
from jsbackup.pipeline.messages.writer_options import WRITER_NAMES, WriterOptions
from jsbackup.pipeline.tasks.task_source import freeze_worker
from jsbackup.putting_back.new_rows import NewRow, RowTarget, WrittenRows
from jsbackup.putting_back.row_writing import begin_write, check_written, how_to_resume, write_rows
from jsbackup.readable import format_count

__all__ = ["StreamWriter", "left_out_note", "new_rows", "say"]

_COLUMNS = ("subject", "data", "headers", "message_id")
# What tells rows of a backup from each other that are equal; not in which backup they were found.
_PLACE = ("stream", "sequence", "timestamp_ns")


@dataclass(frozen=True, slots=True)
class _Written(WriterCommitMessage):
    """What came of a partition."""

    partition: int
    rows: WrittenRows


class StreamWriter(DataSourceArrowWriter):
    """Looks at the stream when it is made, beside the driver. Its methods raise errors with a sentence."""

    def __init__(self, options: WriterOptions) -> None:
        self._server = options.server
        connection = self._server.resolve(environment())
        begin = begin_write(connection, options.stream, options.resume, new_ids=options.new_ids)
        self._target: RowTarget = complete(begin)

    # --- on an executor ---

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        freeze_worker()
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        again = context is not None and context.attemptNumber() > 0
        with one_sentence(WRITER_NAMES):
            connection = self._server.resolve(environment())
            rows = write_rows(connection, self._target, new_rows(iterator), partition=partition, again=again)
            return _Written(partition, complete(rows))

    # --- beside the driver ---

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        target, total = self._target, WrittenRows()
        partitions: set[int] = set()
        for message in messages:
            if not isinstance(message, _Written) or message.partition in partitions:
                raise IntegrityError(f"Spark does not say of each partition what became of it: {len(messages)} answers")
            partitions.add(message.partition)
            total.add(message.rows)
        with one_sentence(WRITER_NAMES):
            try:
                note = complete(check_written(self._server.resolve(environment()), target, total))
            except NatsError as error:
                told = f"all rows were stored, but whether any was stored twice is not known: {error.message}"
                raise error.with_message(told).with_more_hint(how_to_resume(target)) from error
        text = f"published {format_count(total.stored, 'message')} to stream {target.stream}"
        if total.repeated:
            text += f"; {total.repeated:,} more were there already, with the same id and content"
        say(f"{text}{left_out_note(total)}{note} (write {target.write})")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        total = WrittenRows()
        for message in messages:
            if isinstance(message, _Written):
                total.add(message.rows)
        target = self._target
        say(
            f"the write {target.write} to stream {target.stream} has failed; whole partitions with "
            f"{format_count(total.rows, 'row')} were written, and a part of others may be. "
            f"If a row was refused, mend it or leave it out. {how_to_resume(target, mended=True)}"
        )


def new_rows(batches: Iterator[pa.RecordBatch], *, with_place: bool = False) -> Iterator[Sequence[NewRow]]:
    """Yield the rows of batches that have some; `with_place`: and in which message of a backup they were."""
    for batch in batches:
        if not batch.num_rows:
            continue
        columns: list[Sequence[Any]] = [_column(batch, name) for name in _COLUMNS]
        if with_place and (names := [name for name in _PLACE if name in batch.schema.names]):
            places = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
            columns.append([repr(place).encode() for place in places])
        yield [NewRow(*row) for row in zip(*columns, strict=True)]


def _column(batch: pa.RecordBatch, name: str) -> Sequence[bytes | str | None]:
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    column = batch.column(name)
    if name == "message_id":
        found: list[str | None] = column.to_pylist()
        return found
    # Text as its bytes: of a message that was read, they may be any.
    return column.cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]


def left_out_note(rows: WrittenRows) -> str:
    """Return which headers were left out, as a part of a sentence."""
    if not rows.left_out:
        return ""
    return f"; headers that a server acts on were left out: {', '.join(sorted(rows.left_out))}"


def say(text: str) -> None:
    """Print a line on stderr, as of the driver."""
    sys.stderr.write(f"jsbackup: {text}\n")
    sys.stderr.flush()
