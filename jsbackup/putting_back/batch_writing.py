"""Write the rows of a micro-batch of a streaming query to a stream, each once, also if the batch is run again.

A batch that runs again has the same rows, in any partitions and any order (`batch_ids.py`). Two things recognize those
that are stored: the server, by their message ids, for as long as its `duplicate_window` lasts; and whoever writes them,
who reads back what an earlier run has stored. For that, a task looks from the stream's end, as it was when this run of
the batch began, back to the batch before. Usually that is the last message.

Rows that the stream has are not sent, and are where they were. The others come behind them, those of a partition in
their order. Equal rows in two partitions have one id, so that the stream may have one of them only; `end_batch` stores
the others.

Where a stream keeps few messages of a subject, such as a bucket, earlier rows of a subject that come again remove later
ones. So these follow once more, with other ids: the last row of a partition is the last one of its subject. Which ones
were removed, the acknowledgements say if a subject has one message; else the stream is asked, about many at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count, islice

from jsbackup.config import Connection
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.link.threads import with_own_threads
from jsbackup.engine.link.workers import gather_some
from jsbackup.errors import IncompleteError, IntegrityError, JsBackupError
from jsbackup.protocol.info import StoredMessage, StreamInfo
from jsbackup.protocol.pub_ack import PubAck
from jsbackup.putting_back.batch_ids import (
    BatchId,
    BatchPart,
    RowIds,
    StoredRows,
    count_rows,
    id_once_more,
    numbered,
    packed,
    row_in,
    rows_too_many,
)
from jsbackup.putting_back.headers import block_of_new
from jsbackup.putting_back.new_rows import (
    EXPECTED_STREAM,
    MESSAGE_ID,
    NewMessage,
    NewRow,
    RowOrder,
    RowRules,
    RowTarget,
    WrittenRows,
    as_message,
)
from jsbackup.putting_back.publishing import publish_one
from jsbackup.putting_back.row_reading import rows_of_batch
from jsbackup.putting_back.row_sender import connected, same_stream, send_rows
from jsbackup.putting_back.row_writing import stored_before
from jsbackup.putting_back.target import subject_limit
from jsbackup.readable import format_count

__all__ = ["START_AGAIN", "BatchTask", "EndedBatch", "end_batch", "may_have_run_before", "write_batch"]

START_AGAIN = "Start the query again with its checkpoint: what is stored is not stored twice."
_REPAIRED = "and start the query again."
_COPIES_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class BatchTask:
    """A partition of a batch. `run` is the id of the query's run, "" if it is not known; `again`: the task had begun
    before in this run of the batch.
    """

    batch: BatchId
    partition: int
    run: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True)
class EndedBatch:
    """What came of a batch. `copies` of its rows were stored at the end, as they are equal to others. `removed` is how
    many, at least, the stream does not have any more; that is looked for if the batch was run again.
    """

    rows: WrittenRows
    copies: int = 0
    removed: int = 0

    @property
    def repeated(self) -> int:
        """How many rows the stream had before this run."""
        return self.rows.repeated - self.copies


@dataclass(frozen=True, slots=True)
class _Looked:
    """What earlier runs of a query have stored of the last batch that this process has had a part of."""

    task: BatchTask
    rows: StoredRows = field(default_factory=StoredRows)


@with_own_threads
async def write_batch(
    connection: Connection, target: RowTarget, task: BatchTask, rows: Iterator[Sequence[NewRow]]
) -> BatchPart:
    """Write the rows of a partition.

    Raises:
        UsageError: a row cannot be a message of the stream, or has the message id of another message.
        IntegrityError: the stream has messages in another order, or in another stream.
        IncompleteError: a row that was removed by others cannot be stored again yet.
        ApiError, TargetConflict, NatsError: a message was not stored, or that is not known.
    """
    written = WrittenRows(again=task.again)
    try:
        async with connected(connection, again=task.again) as js:
            info = await same_stream(js, target)
            known = await _stored_by_earlier_runs(js, info, target, task)
            recognition = _RowsOfBatch(js, target, task, known, kept=_kept(info))
            await send_rows(js, info, target, rows, partition=task.partition, recognition=recognition, written=written)
    except JsBackupError as error:
        told = stored_before(error, written)
        raise (told if _REPAIRED in (told.hint or "") else told.with_more_hint(START_AGAIN)) from error
    written.again |= bool(known)
    return BatchPart(task.partition, written, packed(recognition.fresh), packed(recognition.known))


# Of one query: a worker process of Spark has tasks of one after the other.
_looked: _Looked | None = None
_begun = BatchTask(BatchId("", 0), 0)


def may_have_run_before(task: BatchTask) -> bool:
    """Return whether the batch of a task may have run before its query was started. At most the first one of a run has;
    which one that is, this process knows if it has had a task of it.
    """
    global _begun
    if not task.run or _begun.run != task.run:
        _begun = task
    return task.batch.number <= _begun.batch.number


async def _stored_by_earlier_runs(js: JetStream, info: StreamInfo, target: RowTarget, task: BatchTask) -> StoredRows:
    """Return the rows that the stream had when this run of the batch began."""
    global _looked
    if _looked is not None and task.run and _looked.task.run == task.run:
        number = _looked.task.batch.number
        if number < task.batch.number:
            # At most the first batch of a run has run before.
            _looked = _Looked(task)
        if number <= task.batch.number:
            return _looked.rows
    rows = StoredRows()
    if target.write.last_seq:
        async with aclosing(rows_of_batch(js, info, task.batch, last=target.write.last_seq)) as found:
            async for row_id, sequence in found:
                rows.add(row_in(row_id), task.batch.content_in(row_id), sequence)
    _looked = _Looked(task, rows)
    return rows


def _kept(info: StreamInfo) -> int:
    """Return how many messages of a subject the stream keeps, 0 if all. (Consumers remove what they are done with: that
    has not to come again.)
    """
    return max(subject_limit(info), 0) if info.config.get("retention", "limits") == "limits" else 0


class _RowsOfBatch:
    """Recognizes rows by what is in them. `fresh` and `known` are sequences, as in `BatchPart`.

    `kept` is how many messages of a subject the stream keeps, 0 for all.
    """

    keeps_order = False

    def __init__(self, js: JetStream, target: RowTarget, task: BatchTask, stored: StoredRows, *, kept: int) -> None:
        self.fresh: list[int] = []
        self.known: list[int] = []
        self._js = js
        self._target = target
        self._task = task
        self._stored = stored
        self._taken: Counter[bytes] = Counter()  # how many of `more` stand for rows, by content
        self._kept = kept
        # By subjects, where new messages remove others: which were sent, and the last sequence of one that was new.
        self._sent: set[str] = set()
        self._fresh: dict[str, int] = {}
        self._once_more: set[str] = set()  # ids of rows that were sent again
        self._moved: set[int] = set()  # numbers of rows that come behind later ones of other subjects
        self._ids = RowIds(task.batch)
        remedy = f"Remove messages with ids that begin with {task.batch}-, {_REPAIRED}"
        self._order = RowOrder(target.stream, task.partition, remedy=remedy, fresh_only=True)

    def message(self, row: NewRow, number: int, rules: RowRules) -> tuple[NewMessage, set[str]]:
        row_id = self._ids.of(row)
        return as_message(
            row, number=number, partition=self._task.partition, target=self._target, rules=rules, row_id=row_id
        )

    def stored_as(self, message: NewMessage) -> int:
        sequence = self._stored_as(message.row_id.encode()) if self._stored else 0
        if not sequence and self._kept:
            self._sent.add(message.subject)
        return sequence

    def _stored_as(self, row_id: bytes) -> int:
        if sequence := self._stored.of(row_id):
            return sequence
        content = self._task.batch.content_in(row_id)
        more, taken = self._stored.more(content), self._taken[content]
        if taken >= len(more):
            return 0
        self._taken[content] += 1
        return more[taken]

    def may_be_removed(self, message: NewMessage) -> bool:
        return message.subject in self._sent

    def is_removed(self, message: NewMessage, sequence: int) -> bool | None:
        if self._fresh.get(message.subject, 0) < sequence:
            return False
        return True if self._kept == 1 else None

    def put_off(self, message: NewMessage, sequence: int) -> NewMessage:
        self._moved.add(message.row)
        if not sequence:
            return message
        # The server may know the id still, and say of this message too that it has it.
        row_id = id_once_more(message.row_id, sequence)
        self._once_more.add(row_id)
        block = message.block.replace(f": {message.row_id}\r\n".encode(), f": {row_id}\r\n".encode())
        return replace(message, row_id=row_id, block=block)

    async def when_late(self, number: int) -> None:
        info = await same_stream(self._js, self._target)
        begin, batch = self._target.write.last_seq + 1, self._task.batch
        rows = self._stored.copy()
        async with aclosing(rows_of_batch(self._js, info, batch, first=begin)) as found:
            async for row_id, sequence in found:
                rows.add(row_in(row_id), batch.content_in(row_id), sequence)
        self._stored = rows

    def compares(self, message: NewMessage) -> bool:
        return message.own_id

    def add(self, message: NewMessage, ack: PubAck) -> None:
        if ack.duplicate and message.own_id and message.row_id in self._once_more:
            raise IncompleteError(
                f"row {message.row} of partition {self._task.partition} was removed by an earlier row of its subject, "
                f"which came again, and stream {self._target.stream} does not store it again while it knows its id",
                hint="Wait for the duplicate_window of the stream.",
            )
        self._order.add(message, ack, anywhere=message.row in self._moved)
        if self._kept and not ack.duplicate:
            self._fresh[message.subject] = max(self._fresh.get(message.subject, 0), ack.sequence)
        if not message.own_id:
            (self.known if ack.duplicate else self.fresh).append(ack.sequence)


@with_own_threads
async def end_batch(
    connection: Connection, target: RowTarget, batch: BatchId, parts: Collection[BatchPart]
) -> EndedBatch:
    """Store what is missing of equal rows, and find out that the stream has no more messages of the batch than there
    are rows. `parts` are the partitions that have rows: none, if the batch has none, and may have had some before.

    Raises:
        IntegrityError: it has more: some were stored twice, or the batch had other rows before.
        IncompleteError: it is not known any more what is missing.
        NatsError: the server does not answer, or with an error.
    """
    rows = WrittenRows()
    for part in parts:
        rows.add(part.rows)
    repeats = rows.repeated > rows.own_repeated
    too_many: set[int] = rows_too_many(parts) if repeats else set()
    async with connect_jetstream(connection) as js:
        info = await same_stream(js, target)
        copies = 0
        if too_many:
            copies = await _store_copies(js, info, batch, parts, too_many=too_many)
            info = await same_stream(js, target)
        late = target.write.age_ns(info.now_ns) >= target.window_ns
        late = late and info.state.last_seq - target.write.last_seq > rows.stored + copies
        if parts and not (late or rows.again or repeats):
            return EndedBatch(rows)
        messages = 0
        async with aclosing(rows_of_batch(js, info, batch)) as found:
            async for _ in found:
                messages += 1
        if messages > rows.rows:
            raise IntegrityError(
                f"stream {target.stream} has {format_count(messages - rows.rows, 'message')} of the batch {batch} more "
                "than it has rows: it had other rows when it ran before, or ran longer than the stream recognizes "
                "message ids, and a stage of it ran twice",
                hint="A batch must have the same rows each time that it is computed. Remove messages with ids that "
                f"begin with {batch}-, {_REPAIRED}",
            )
        # Rows with ids of their own may be messages that the batch has not stored. A first run has stored none twice.
        removed = max(rows.rows - rows.own_repeated - messages, 0) if rows.again or repeats else 0
        return EndedBatch(rows, copies, removed)


async def _store_copies(
    js: JetStream, info: StreamInfo, batch: BatchId, parts: Collection[BatchPart], *, too_many: Collection[int]
) -> int:
    """Store the rows for which the stream has no message of their own, unless an earlier run has. Return how many."""
    contents: set[bytes] = set()
    lost = set(too_many)
    async with aclosing(rows_of_batch(js, info, batch)) as found:
        async for row_id, sequence in found:
            if sequence in too_many:
                contents.add(batch.content_in(row_id))
                lost.discard(sequence)
    if lost:
        raise IncompleteError(
            f"message {min(lost)} of stream {info.name} is one of several equal rows in different partitions, and was "
            "removed before the others were stored",
            hint="Write with repartition('subject'): then equal rows are in one partition.",
        )
    stored: dict[bytes, dict[int, bytes]] = {content: {} for content in contents}
    async with aclosing(rows_of_batch(js, info, batch)) as found:
        async for row_id, sequence in found:
            if (content := batch.content_in(row_id)) in contents:
                stored[content][sequence] = row_id
    rows, copies = count_rows(parts, set(chain.from_iterable(stored.values()))), 0
    for content, messages in stored.items():
        missing = sum(rows[sequence] for sequence in messages) - len(messages)
        if missing <= 0:
            continue
        model = await js.message(info.name, min(messages))
        if model is None:
            raise IncompleteError(f"message {min(messages)} of stream {info.name} was removed while it was copied")
        ids = islice(_other_ids(content.decode(), set(map(row_in, messages.values()))), missing)
        acks = await gather_some(_COPIES_AT_ONCE, partial(_store_copy, js, info, model), ids)
        copies += sum(not ack.duplicate for ack in acks)
    return copies


def _other_ids(content: str, taken: Collection[bytes]) -> Iterator[str]:
    ids = (numbered(content, number) for number in count())
    return (row_id for row_id in ids if row_id.encode() not in taken)


async def _store_copy(js: JetStream, info: StreamInfo, model: StoredMessage, row_id: str) -> PubAck:
    added = [(EXPECTED_STREAM, info.name), (MESSAGE_ID, row_id)]
    block, _ = block_of_new(model.headers, added, without=MESSAGE_ID)
    return await publish_one(js, info, model.subject, model.data, block=block)
