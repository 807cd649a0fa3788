"""Write rows to a stream as new messages, once, a partition at a time.

Who tries again sends the same message ids (`row_sender.py`), and the server says which messages it has; these are read
and compared with the rows.

The server forgets message ids. A row that may be there already is not sent later than `RowTarget.window_ns` after the
write began; but once one was new, all behind it are. What nobody here can know, a second try that looks like a first
one (Spark runs a stage again), is found at the end by the number of messages that the stream has more, or by their ids.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from jsbackup.config import Connection, nearest
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.engine.link.threads import with_own_threads
from jsbackup.errors import IncompleteError, IntegrityError, JsBackupError, NatsError, UsageError
from jsbackup.protocol.info import StreamInfo
from jsbackup.protocol.pub_ack import PubAck
from jsbackup.putting_back.new_rows import (
    FAILS_AGAIN,
    NewMessage,
    NewRow,
    RowOrder,
    RowRules,
    RowTarget,
    WriteId,
    WrittenRows,
    as_message,
    reason_against_rows,
)
from jsbackup.putting_back.row_reading import count_ids
from jsbackup.putting_back.row_sender import connected, same_stream, send_rows
from jsbackup.readable import format_count, format_seconds

__all__ = ["begin_write", "check_written", "how_to_resume", "stored_before", "write_rows"]

_SECOND = 10**9


@with_own_threads
async def begin_write(connection: Connection, stream: str, resume: str, *, new_ids: bool) -> RowTarget:
    """Look at the stream, and return what tasks have to know. `resume` is the id of a write that has failed, or "".

    Raises:
        UsageError: there is no such stream, it takes no messages, or the write cannot be resumed any more.
        NatsError: the server does not answer, or with an error.
    """
    write = WriteId.parse(resume) if resume else None
    async with connect_jetstream(connection) as js:
        info = await js.find_stream(stream)
        if info is None:
            known: Sequence[str] = ()
            with suppress(NatsError):  # a user may not list them
                known = list((await js.stream_names()).entries)
            raise UsageError(f"there is no stream {stream} on {js.link.server}", hint=nearest(stream, known))
        if problem := reason_against_rows(info):
            raise UsageError(problem)
        window = _window_ns(info)
        if write is None:
            write = WriteId(info.now_ns // _SECOND, info.state.last_seq, os.urandom(4).hex())
        elif write.age_ns(info.now_ns) >= window:
            raise UsageError(
                f"the write {write} began {_spoken(write.age_ns(info.now_ns))} ago, and stream {stream} recognizes "
                f"messages for {_spoken(window)} only (duplicate_window)",
                hint=f"Its messages have ids that begin with {write}: remove them, and write all rows again.",
            )
        return RowTarget(stream, info.created, write, window, resumed=bool(resume), new_ids=new_ids)


@with_own_threads
async def write_rows(
    connection: Connection, target: RowTarget, rows: Iterator[Sequence[NewRow]], *, partition: int, again: bool
) -> WrittenRows:
    """Write the rows of a partition. `again`: some of them may be there already.

    Raises:
        UsageError: a row cannot be a message of the stream, or has the message id of another message.
        IncompleteError: it is too late to find out what is there already.
        IntegrityError: the stream has messages in another order, or in another stream.
        ApiError, TargetConflict, NatsError: a message was not stored, or that is not known.
    """
    written = WrittenRows(again=again or target.resumed)
    try:
        async with connected(connection, again=again) as js:
            info = await same_stream(js, target)
            await send_rows(
                js,
                info,
                target,
                rows,
                partition=partition,
                recognition=_NumberedRows(target, partition),
                written=written,
            )
            return written
    except JsBackupError as error:
        raise _resumable(error, target, written) from error


class _NumberedRows:
    """Recognizes rows by their numbers: the first rows of an earlier try are the first rows of this one."""

    keeps_order = True

    def __init__(self, target: RowTarget, partition: int) -> None:
        self._target = target
        self._partition = partition
        remedy = f"Remove messages with ids that begin with {target.write}, and write all rows again."
        self._order = RowOrder(target.stream, partition, remedy=remedy)

    def message(self, row: NewRow, number: int, rules: RowRules) -> tuple[NewMessage, set[str]]:
        return as_message(row, number=number, partition=self._partition, target=self._target, rules=rules)

    def stored_as(self, message: NewMessage) -> int:
        return 0

    def may_be_removed(self, message: NewMessage) -> bool:
        return False

    def is_removed(self, message: NewMessage, sequence: int) -> bool | None:
        return False

    def put_off(self, message: NewMessage, sequence: int) -> NewMessage:
        return message

    async def when_late(self, number: int) -> None:
        write, window = self._target.write, _spoken(self._target.window_ns)
        raise IncompleteError(
            f"partition {self._partition} is written again, and row {number} may be in stream {self._target.stream} "
            f"already, which recognizes messages for {window} only (duplicate_window)",
            hint=f"Messages of this write have ids that begin with {write}: remove them, raise duplicate_window above "
            "the time that the write takes, and write again.",
        )

    def compares(self, message: NewMessage) -> bool:
        return True

    def add(self, message: NewMessage, ack: PubAck) -> None:
        self._order.add(message, ack)


@with_own_threads
async def check_written(connection: Connection, target: RowTarget, written: WrittenRows) -> str:
    """Find out that the stream has no more messages of the write than there are rows; return what is to be said.

    More are there if the server had forgotten ids, or if an earlier try had more rows, or other partitions.

    Raises:
        IntegrityError: some messages were stored twice.
        IncompleteError: an earlier try had other rows.
        NatsError: the server does not answer, or with an error.
    """
    async with connect_jetstream(connection) as js:
        info = await same_stream(js, target)
        write = target.write
        late = write.age_ns(info.now_ns) >= target.window_ns
        if not (late or written.again or target.resumed or written.repeated > written.own_repeated):
            return ""
        generated = written.rows - written.own
        if info.state.last_seq - write.last_seq <= generated + written.own - written.own_repeated:
            return ""
        try:
            found = await count_ids(js, info, f"{write}-".encode(), first=write.last_seq + 1)
        except NatsError:
            if late:
                raise
            # To publish, nobody has to be allowed to read.
            return "; others write to the stream, too, and whether an earlier try had more rows is not known"
        if found > generated and not late:
            raise IncompleteError(
                f"stream {target.stream} has {format_count(found - generated, 'message')} of the write {write} more "
                "than there are rows: an earlier try had more of them, or other partitions",
                hint="A DataFrame that is written must have the same rows and partitions each time that it is "
                f"computed. Remove messages with ids that begin with {write}, write the DataFrame to a table, and that "
                "to the stream.",
            )
        if found > generated:
            raise IntegrityError(
                f"{format_count(found - generated, 'message')} of the write {write} were stored twice in stream "
                f"{target.stream}: a stage ran again after the stream had forgotten the message ids",
                hint=f"Raise duplicate_window of the stream, remove messages with ids that begin with {write}, and "
                "write again.",
            )
        if late and (written.own or found < generated):
            return f"; it took {_spoken(write.age_ns(info.now_ns))}, longer than the stream recognizes message ids"
        return ""


def _resumable(error: JsBackupError, target: RowTarget, written: WrittenRows) -> JsBackupError:
    """Return the error with what was stored before, and how to go on: other partitions may have stored some, too."""
    error = stored_before(error, written)
    if isinstance(error, IncompleteError) or str(target.write) in (error.hint or ""):
        return error
    return error.with_more_hint(how_to_resume(target, mended=FAILS_AGAIN in (error.hint or "")))


def stored_before(error: JsBackupError, written: WrittenRows) -> JsBackupError:
    """Return the error of a partition with how many of its rows were stored."""
    if not written.rows:
        return error
    stored = f"{format_count(written.rows, 'row')} of the partition were stored before"
    return error.with_message(f"{error.message}; {stored}")


def how_to_resume(target: RowTarget, *, mended: bool = False) -> str:
    """Return what to do when a write has failed, as a sentence; `mended`: when something has to be mended before."""
    rows = "then write all rows again, the others as they were," if mended else "write the same rows again"
    return (
        f"Within {_spoken(target.window_ns)} of its beginning, {rows} with the option 'resume' {target.write}: what is "
        "stored is not stored twice."
    )


def _window_ns(info: StreamInfo) -> int:
    window = info.config.get("duplicate_window")
    return window if isinstance(window, int) else 0


def _spoken(ns: int) -> str:
    return format_seconds(ns / 1e9)
