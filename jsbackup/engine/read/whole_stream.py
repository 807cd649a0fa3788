"""Read all messages of a live stream: from a snapshot, or message by message if none can be made or decoded.

Attempts adapt: after a broken transfer the next one uses a smaller window and smaller chunks (better for slow links and
slow stores). Waiting for another snapshot of the stream is not an attempt.

If a block comes encrypted (`SealedBlock`), all messages are read once: the server then knows the keys of all blocks. It
would also read them for a check, but one that finds damage makes servers before 2.14 refuse all further snapshots.

A stream may be written to while it is read: then it is read on, until nothing is missing (`catch_up`).

A reader that takes a stream's messages in order, up to the end at its beginning, misses messages that are overwritten
meanwhile: a key's old revision is deleted before it is reached, and the new one is after that end. So the key is read
with neither. This applies to snapshots v2 and to all reading message by message.

The missed messages come later in the stream. So the reader continues, and asks for the stream's state before each step:

    asked at t: the stream ends at E, and these sequences are deleted  ──▶  read on up to E

A message that exists at t, before the reader's position at that time, existed when the reader passed it, so it has been
read. If all messages that exist at t between that position and E arrive, then everything that the stream held at t has
been read, and any other message that was read had been deleted by t. Without the latter it is the stream as it was at t
(`gone_at`). If one did not arrive, it was overwritten between t and its reading, and the reader continues. The part to
read gets shorter each time, down to what is written between a request and its answer.

If more sequences are deleted than can be requested, none of those read last may be deleted, and other deletions are
known from the newer messages that replaced them (`repository/write/late_deletions.py`); messages deleted by a request
during the reading then stay in the backup.

`read_whole` does that for backups, clones, proofs and comparisons. A snapshot v1 reports its late deletions at its end,
so its messages are counted by the caller, without those. All other readings miss messages that are overwritten
meanwhile, and are read on (`catch_up`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

import pyarrow as pa

from jsbackup.engine.link.concurrency import in_thread
from jsbackup.engine.link.jetstream import MAX_DELETED, JetStream
from jsbackup.engine.read.consume import open_reader, read_into, read_messages
from jsbackup.engine.read.increment import PresentSequences
from jsbackup.engine.read.snapshot_transfer import Advance, Capture, CaptureLimits, Sink, capture_snapshot
from jsbackup.errors import (
    ApiError,
    FormatError,
    IntegrityError,
    JsBackupError,
    NatsPermissionDenied,
    NatsTimeout,
    SnapshotBusy,
    TransferError,
    UnsupportedError,
)
from jsbackup.formats.archive.archive import LateDeletions, SealedBlock, late_deletions
from jsbackup.formats.segment import drop_sequences
from jsbackup.formats.sequences import SequenceSet, ranges_of
from jsbackup.model import ArchivedConsumer, JsonObject, StreamState
from jsbackup.planning.configs.features import V2_SINCE
from jsbackup.progress import ignored
from jsbackup.protocol.info import ConsumerInfo, StreamInfo
from jsbackup.protocol.paging import Listing
from jsbackup.protocol.responses import ErrCode
from jsbackup.readable import format_count
from jsbackup.repository.manifest import ArchiveFormat, Fact, Losses, LostSpan, OpaqueRef, Reading, SegmentRef
from jsbackup.repository.read.losses import describe_losses
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.write.late_deletions import overwritten
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.transforms.removal import is_overwritten

__all__ = [
    "DAMAGE_HINT",
    "REPEATABLE",
    "REPORTED",
    "CaughtUp",
    "Ranges",
    "SnapshotAttempts",
    "Stored",
    "StreamReader",
    "WholeReading",
    "WholeSource",
    "catch_up",
    "check_count",
    "cut_down",
    "describe_stream",
    "gone_at",
    "is_damage",
    "is_salvageable",
    "read_whole",
    "read_with_attempts",
    "reported_losses",
    "spans_of",
]

DAMAGE_HINT = (
    "If the server's files of the stream are damaged, copy them before anything else, then see 'jsbackup help salvage'."
)
REPORTED = "the server reports that it lost them"
_FAILED = 500  # the status by which a server ends a snapshot that it cannot make
_MOST_LOST_SPANS = 10_000

Ranges = list[tuple[int, int]]


def is_salvageable(error: JsBackupError) -> bool:
    """Return whether this error of a snapshot may come from a damaged store."""
    if isinstance(error, ApiError):
        return error.err_code == ErrCode.SNAPSHOT_FAILED
    return isinstance(error, (TransferError, NatsTimeout, IntegrityError))


def is_damage(error: JsBackupError) -> bool:
    """Return whether this error of a snapshot most likely comes from a damaged store, not from the connection."""
    if isinstance(error, TransferError):
        return error.facts.get("status") == _FAILED
    return is_salvageable(error) and not isinstance(error, (NatsTimeout, SnapshotBusy))


def reported_losses(info: StreamInfo, segments: Iterable[SegmentRef]) -> Losses:
    """Return what a server reports to have lost; but for what is in one of the segments."""
    covered = [(ref.first_seq, ref.last_seq) for ref in segments if ref.dense]
    lost = (seq for seq in info.lost_sequences if not any(first <= seq <= last for first, last in covered))
    return Losses(tuple(spans_of(ranges_of(lost), lambda _: REPORTED)))


def spans_of(ranges: Ranges, why: Callable[[int], str], *, certain: bool = True) -> Iterator[LostSpan]:
    """Yield the ranges as spans; one in place of all if they are too many."""
    if len(ranges) > _MOST_LOST_SPANS:
        count = sum(last - first + 1 for first, last in ranges)
        yield LostSpan(ranges[0][0], ranges[-1][1], count, certain, why(ranges[0][0]))
        return
    for first, last in ranges:
        yield LostSpan(first, last, last - first + 1, certain, why(first))


T = TypeVar("T")

_log = logging.getLogger(__name__)

REPEATABLE = (TransferError, NatsTimeout, FormatError)
"""Errors of a snapshot after which another attempt may succeed. UnsupportedError needs another way of reading."""

_ATTEMPTS = 4
_IMPORTED = "The account that has the streams must export where snapshots are sent: see 'jsbackup help accounts'."
_FIRST_PAUSE_SECONDS = 0.5  # doubled with each attempt
_BUSY_SECONDS = 120.0  # how long to wait for another snapshot of the stream
_BUSY_PAUSE_SECONDS = 1.0


class SnapshotAttempts:
    """The attempts to take a snapshot of a stream: the `number` of the present one, and its `limits`.

    `level` is that of the log.
    """

    def __init__(self, js: JetStream, stream: str, limits: CaptureLimits, *, level: int = logging.WARNING) -> None:
        self._js = js
        self._woken = False
        self.number = 1
        self.limits = limits
        self._stream = stream
        self._level = level
        self._busy_until = time.monotonic() + _BUSY_SECONDS

    async def run(self, read: Callable[[CaptureLimits, UnsupportedError | None], Awaitable[T]]) -> T:
        """Return what `read` returns. After an UnsupportedError, because no snapshot can be made or decoded, it gets
        that, and has to do without a snapshot.
        """
        unsupported: UnsupportedError | None = None
        while True:
            try:
                return await read(self.limits, unsupported)
            except UnsupportedError as error:
                if unsupported is not None:
                    raise
                unsupported = error
            except REPEATABLE as error:
                await self.next(error)

    async def next(self, error: JsBackupError) -> None:
        """Wait before another attempt after this error of a snapshot. Raises the error if there is none."""
        if isinstance(error, SnapshotBusy):
            if time.monotonic() > self._busy_until:
                raise error
            _log.info("%s; waiting", error.message)
            await asyncio.sleep(_BUSY_PAUSE_SECONDS)
            return
        if self.number == _ATTEMPTS or (isinstance(error, TransferError) and not error.retry):
            if isinstance(error, NatsTimeout) and self._js.link.connection.js_api_prefix is not None:
                raise error.with_hint(_IMPORTED) from error.__cause__
            raise error
        if isinstance(error, SealedBlock) and not self._woken:
            self._woken = True
            await self._wake()
            return
        await self.repeat(error, _FIRST_PAUSE_SECONDS * 2 ** (self.number - 1))
        self.limits = self.limits.reduced()

    async def _wake(self) -> None:
        """Let the server read all blocks, as far as it can."""
        _log.info("stream %s: the server sends it encrypted until it has read its messages once", self._stream)
        with suppress(ApiError, FormatError, NatsPermissionDenied, NatsTimeout, TransferError, UnsupportedError):
            info = await self._js.stream(self._stream)
            messages = read_messages(self._js, info, ignored, only={"headers_only": True})
            async with aclosing(messages):
                async for _ in messages:
                    pass

    async def repeat(self, error: JsBackupError, pause_seconds: float) -> None:
        """Wait before another attempt with the same limits."""
        self.number += 1
        text = "stream %s: %s; attempt %d in %.1f s"
        _log.log(self._level, text, self._stream, error.message, self.number, pause_seconds)
        await asyncio.sleep(pause_seconds)


# Each attempt reads what was written during the one before. Measured: a bucket of 3,000 keys with 6,000 writes a second
# takes two to four, one key written 1,000 times a second up to ten.
_READINGS = 40
# Up to this many deleted sequences, eight bytes of JSON each, are requested that often; with more, there are fewer
# attempts.
_ASKED_OFTEN = 200_000
_FEWER_READINGS = 8


class StreamReader(Protocol):
    """Reads a stream in order, and continues from there."""

    def read(self, info: StreamInfo, first: int, last: int) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the messages from one sequence to another of the stream `info`."""

    def passed(self, last: int) -> int:
        """Return up to where, at most `last`, everything has arrived that existed when it was read up to `last`.

        A server may not know yet about messages stored just now, and seem to have no more.
        """


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """How far the reader got: everything that the stream held when it was `info` has been read.

    Except `missing` messages, which were overwritten faster than they could be read.
    """

    info: StreamInfo
    missing: int = 0


async def describe_stream(js: JetStream, name: str) -> StreamInfo:
    """Return the stream with its deleted sequences, unless there are too many."""
    info = await js.stream(name)
    return await js.stream(name, deleted_details=True) if 0 < info.state.deleted <= MAX_DELETED else info


async def catch_up(
    js: JetStream, info: StreamInfo, at: int, reader: StreamReader, *, add: Callable[[pa.RecordBatch], None]
) -> CaughtUp:
    """Read on after the sequence `at`, up to which the stream `info` has been read; `add` is called in a thread.

    Raises:
        TransferError: it was recreated or lost its end meanwhile.
        NatsError, FormatError, and the errors of `add`.
    """
    attempt = 0
    while True:
        now = await describe_stream(js, info.name)
        if now.created != info.created or now.state.last_seq < at:
            raise TransferError(f"stream {info.name} was replaced while it was read")
        present = PresentSequences(now.state, now.deleted or ())
        missing = present.count(at + 1, present.last)
        async with aclosing(reader.read(now, at + 1, now.state.last_seq)) as batches:
            async for batch in batches:
                # A replica that lags may have messages that do not exist any more.
                sequences = batch.column("sequence")
                deleted = present.deleted.within(sequences[0].as_py(), sequences[-1].as_py())
                kept = drop_sequences(batch, deleted) if deleted else batch
                if kept.num_rows:
                    missing -= kept.num_rows
                    await in_thread(add, kept)
        at = max(at, reader.passed(now.state.last_seq))
        attempt += 1
        if not missing or attempt == (_READINGS if now.state.deleted <= _ASKED_OFTEN else _FEWER_READINGS):
            return CaughtUp(now, missing)


async def cut_down(
    writer: SegmentWriter, segments: Sequence[SegmentRef], caught: CaughtUp, reader: SegmentReader, *, after: int
) -> list[SegmentRef]:
    """Return the segments without messages that were deleted in the state that was caught up with.

    They were first read up to the sequence `after`, then further.

    Raises:
        TransferError: existing messages have not been read.
        KeyUnavailable: a segment of an earlier backup would have to be read, and no key that opens it was given.
        IntegrityError, StoreError
    """
    info = caught.info
    if info.deleted is not None or not info.state.deleted:
        deleted = gone_at(info, segments, info.state.last_seq)
    else:
        limit = info.config.get("max_msgs_per_subject") or 0
        deleted = await in_thread(overwritten, segments, after, max(limit, 0), reader)
    refs = await in_thread(partial(writer.without, segments, deleted, first=info.state.first_seq))
    lacking = info.state.messages - sum(ref.messages for ref in refs)
    if lacking > caught.missing:
        raise TransferError(f"{lacking} messages of {info.name} are there and were not read")
    return refs


def gone_at(info: StreamInfo, refs: Sequence[SegmentRef], last: int) -> SequenceSet:
    """Return the sequences of `refs`, up to `last`, that are deleted in `info`.

    `refs` hold all of the stream up to `last` and more. `info` has its deleted sequences. Sequences before its first
    message are not included.
    """
    present = PresentSequences(replace(info.state, last_seq=min(last, info.state.last_seq)), info.deleted or ())
    changed = (ref for ref in refs if present.count(ref.first_seq, ref.last_seq) < ref.messages)
    return SequenceSet(seq for ref in changed for seq in present.deleted.within(ref.first_seq, ref.last_seq))


@dataclass(frozen=True, slots=True)
class Stored:
    """The result of a capture. `config` and `state` are as reported; the state is advanced to what was proved.

    `inventory` has the consumers that belong to the state, None if they are requested afterwards. `goes_back`: it gives
    sequences again that the last backup has.
    """

    archive_format: ArchiveFormat
    state: StreamState
    read: Reading | None = None
    config: JsonObject | None = None
    inventory: Listing[ConsumerInfo] | None = None
    archived: tuple[ArchivedConsumer, ...] = ()
    segments: Sequence[SegmentRef] = ()
    opaque: tuple[OpaqueRef, ...] = ()
    reused: int = 0
    stored_bytes: int = 0
    warnings: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    incomplete: bool = False  # something is missing; the warnings say what
    lost: Losses = field(default_factory=Losses)
    created: str = ""  # of the stream that was read (RFC 3339 as the server writes it)
    goes_back: bool = False

    def with_lost(self, lost: Losses) -> Stored:
        """Return it without what the server has lost."""
        if not lost:
            return self
        return replace(self, warnings=(*self.warnings, *describe_losses(lost)), incomplete=True, lost=lost)


@dataclass(frozen=True, slots=True)
class WholeSource:
    """The stream `name`, to be read as a whole; `advance` gets the bytes and messages of each piece.

    `exact`: the messages are counted, and the stream is read on if some are overwritten meanwhile. Otherwise messages
    that are deleted meanwhile may be missing. `consumers`: a snapshot has them, too. `check`: the server checks its
    store before. `begun` gets the snapshot when the server has answered, before any data.
    """

    js: JetStream
    name: str
    advance: Advance = ignored
    exact: bool = True
    consumers: bool = False
    check: bool = False
    begun: Callable[[Capture], None] = ignored


@dataclass(frozen=True, slots=True)
class WholeReading:
    """What a sink has got of a stream that was `before` when the reading began: `messages`, up to the end of `state`.

    `capture` is the snapshot, None if it was read message by message. `caught` says how far it was read on, `denied`
    why it was not, although messages are missing.
    """

    before: StreamInfo
    state: StreamState
    messages: int
    capture: Capture | None = None
    caught: CaughtUp | None = None
    denied: str = ""

    @property
    def reached(self) -> StreamState:
        """The state of the stream when all of it had been read."""
        return self.state if self.caught is None else self.caught.info.state

    @property
    def archive_format(self) -> ArchiveFormat:
        if self.capture is None or self.capture.end is None:
            return ArchiveFormat.MESSAGES
        return ArchiveFormat(self.capture.end.format)

    @property
    def late(self) -> LateDeletions:
        """The messages that were deleted meanwhile, or may have been, by the end of a snapshot v1."""
        if self.capture is None or self.capture.end is None:
            return LateDeletions(SequenceSet(), SequenceSet())
        return late_deletions(self.capture.end)


async def read_whole(
    source: WholeSource, info: StreamInfo, sink: Sink, limits: CaptureLimits, *, by_messages: bool
) -> WholeReading:
    """Read the stream, which is `info` now, into `sink`: from a snapshot, or message by message.

    A snapshot v1 may have messages that are deleted meanwhile (`WholeReading.late`), except those that `info` lists:
    the caller takes these out, and counts what is left (`check_count`).

    Raises:
        IntegrityError: messages are missing in a snapshot of a stream that has not changed.
        TransferError, NatsTimeout, FormatError: another attempt may help (`SnapshotAttempts`).
        UnsupportedError: no snapshot can be made, or decoded.
        NatsError, and the errors of `sink`.
    """
    js, capture = source.js, None
    if by_messages:
        then, messages = info.state, await read_into(js, info, sink.add, source.advance)
    else:
        info = await _with_deleted(js, info)
        capture = await capture_snapshot(
            js,
            source.name,
            sink,
            deleted=SequenceSet(info.deleted or ()),
            consumers=source.consumers,
            check=source.check,
            limits=limits,
            advance=source.advance,
            begun=source.begun,
        )
        then, messages = capture.state, capture.messages
        assert capture.end is not None
        if capture.end.format == "v1":  # messages that arrived while it began may be in it
            then = replace(then, last_seq=max(then.last_seq, capture.end.last_seq))
            return WholeReading(info, then, messages, capture)
        if source.exact:
            await check_count(js, source.name, then, messages)
    reading = WholeReading(info, then, messages, capture)
    if not source.exact or messages == then.messages or not is_overwritten(info.config):
        return reading
    try:
        async with open_reader(js, info, source.advance, first=then.last_seq + 1) as reader:
            return replace(reading, caught=await catch_up(js, info, then.last_seq, reader, add=sink.add))
    except NatsPermissionDenied as error:
        return replace(reading, denied=error.message)


async def check_count(js: JetStream, name: str, then: StreamState, messages: int) -> None:
    """Check that `messages` are those of the state `then`, unless the stream has changed since. Raises
    IntegrityError.
    """
    if messages == then.messages:
        return
    now = (await js.stream(name)).state
    if (now.messages, now.first_seq, now.last_seq) == (then.messages, then.first_seq, then.last_seq):
        raise IntegrityError(
            f"the snapshot of {name} has {format_count(messages, 'message')}, the server reports {then.messages}",
            hint="The server's own store may be damaged; look at its log and at 'nats stream info'.",
        )


async def _with_deleted(js: JetStream, info: StreamInfo) -> StreamInfo:
    """Request deleted sequences before a snapshot v1, unless `info` has them: less has to be removed afterwards."""
    known = info.deleted is not None or not 0 < info.state.deleted <= MAX_DELETED
    if known or js.link.server_version >= V2_SINCE:
        return info
    return await js.stream(info.name, deleted_details=True)


S = TypeVar("S", bound=Sink)


async def read_with_attempts(
    source: WholeSource, info: StreamInfo, make_sink: Callable[[], S]
) -> tuple[S, WholeReading]:
    """Read the stream into a new sink for each attempt; return the last one.

    Raises IntegrityError, TransferError, NatsError, UnsupportedError, FormatError.
    """

    async def read(limits: CaptureLimits, unsupported: UnsupportedError | None) -> tuple[S, WholeReading]:
        sink = make_sink()
        return sink, await read_whole(source, info, sink, limits, by_messages=unsupported is not None)

    return await SnapshotAttempts(source.js, source.name, CaptureLimits(), level=logging.INFO).run(read)
