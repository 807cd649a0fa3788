"""Store the messages of one stream: the new ones, or all, with the state that they belong to."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from jsbackup.engine.backup.run import BackupRun
from jsbackup.engine.link.jetstream import MAX_DELETED, JetStream
from jsbackup.engine.link.threads import in_thread
from jsbackup.engine.read.catch_up import CaughtUp, catch_up, cut_down, describe_stream, gone_at, is_overwritten
from jsbackup.engine.read.consume import open_reader, read_into
from jsbackup.engine.read.increment import Incremental, Whole
from jsbackup.engine.read.join import take_increment
from jsbackup.engine.read.snapshot_attempts import REPEATABLE, SnapshotAttempts
from jsbackup.engine.read.snapshot_transfer import CaptureLimits, capture_opaque, capture_snapshot
from jsbackup.errors import IntegrityError, KeyUnavailable, NatsPermissionDenied, TransferError, UnsupportedError
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import ArchivedConsumer, JsonObject, StreamState
from jsbackup.protocol.info import ConsumerInfo, StreamInfo
from jsbackup.protocol.paging import Listing
from jsbackup.repository.manifest import (
    ArchiveFormat,
    OpaqueRef,
    ReadAs,
    Reading,
    SegmentRef,
    StreamBackup,
    total_of,
)
from jsbackup.repository.pages.segment_list import SegmentList
from jsbackup.repository.segments import SegmentReader, SegmentWriter
from jsbackup.repository.write.late_deletions import messages_to_remove
from jsbackup.repository.write.raw_snapshot import OpaqueWriter
from jsbackup.repository.write.receipts import Receipts
from jsbackup.repository.write.reuse import stored_segments, untouched

__all__ = ["Stored", "capture_stream"]

_log = logging.getLogger(__name__)

_V2_SINCE = (2, 15)
# How often a snapshot is repeated if messages are missing that the user may not read one by one.
_DENIALS = 2


@dataclass(frozen=True, slots=True)
class Stored:
    """The result of a capture. `config` and `state` are as reported; the state is advanced to what was proved.

    `inventory` has the consumers that belong to the state, None if they are requested afterwards.
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
    incomplete: bool = False  # something is missing; the warnings say what


@dataclass(frozen=True, slots=True)
class _Complete:
    """The segments of a completely read stream, and their state; `warnings` say what is missing."""

    segments: list[SegmentRef]
    state: StreamState
    warnings: tuple[str, ...] = ()


async def capture_stream(
    run: BackupRun, js: JetStream, folder: str, name: str, *, previous: StreamBackup | None, receipts: Receipts
) -> Stored:
    """Store what the last backup, `previous`, lacks, or everything. Raises the error if that is impossible."""
    capture = _Capture(run, js, folder, name, previous=previous, receipts=receipts)
    with closing(capture):
        stored = await capture.increment()
        if isinstance(stored, Whole):
            why, lost = stored.why, stored.lost
            stored = await _store_with_attempts(capture, why)
            if lost:
                about = f"the server has lost some of it since the last backup: {why}"
                stored = replace(stored, warnings=(about, *stored.warnings))
    return stored


class _Capture:
    """The capture of one stream, for any number of attempts."""

    def __init__(
        self,
        run: BackupRun,
        js: JetStream,
        folder: str,
        name: str,
        *,
        previous: StreamBackup | None,
        receipts: Receipts,
    ) -> None:
        self.js = js
        self.objects = run.repository.objects
        self._paged = run.repository.listed
        self.folder = folder
        self.options = run.options
        self._many = run.many
        self.progress = run.progress
        self.name = name
        self.previous = previous
        self.receipts = receipts
        self._denials = 0  # how often messages were missing that the user may not read
        self._shunned: set[str] = set()  # unreadable segments that hold messages to be removed
        self._writers_bytes = 0  # stored by all attempts except the last
        self._last_writer: SegmentWriter | None = None

    def advance(self, byte_count: int, messages: int) -> None:
        self.progress.advance(self.name, byte_count, messages)

    async def _stored(self, *lists: Sequence[SegmentRef]) -> list[SegmentRef]:
        found = await in_thread(stored_segments, self.objects, self.folder, *lists)
        return [ref for ref in found if ref.key not in self._shunned]

    async def _kept(self, segments: Sequence[SegmentRef]) -> Sequence[SegmentRef]:
        """Return the segments of the previous backup that can be kept.

        A long list is not looked for, nor those of many streams: no prune removes what its manifest names while this
        run has its lease.
        """
        trusted = isinstance(segments, SegmentList) or self._many
        return (
            segments if trusted and not (self.objects.knows_damage or self._shunned) else await self._stored(segments)
        )

    async def reusable(self) -> list[SegmentRef]:
        """Return the stored segments: of the previous backup, and those that later runs and attempts have left."""
        if self._last_writer is not None:  # it may still be storing a segment
            await in_thread(self._last_writer.settle)
        return await self._stored(*self.receipts.candidates(self.folder, self.previous))

    def _writer(self, reusable: Sequence[SegmentRef]) -> SegmentWriter:
        self._writers_bytes = self.stored_bytes
        self.close()
        self._last_writer = SegmentWriter(self.objects, self.folder, reusable, note=self.receipts.note)
        return self._last_writer

    def close(self) -> None:
        """Release what the last attempt still holds, if it failed."""
        if self._last_writer is not None:
            self._last_writer.close()

    @property
    def stored_bytes(self) -> int:
        """Bytes added to the store in all attempts; each continues with the segments of the one before."""
        return self._writers_bytes + (self._last_writer.stored_bytes if self._last_writer else 0)

    async def increment(self) -> Stored | Whole:
        """Capture what is new since the previous backup, or return why the stream has to be read completely."""
        if self.options.incremental is Incremental.NEVER:
            return Whole("it was asked for")
        if self.options.check:
            return Whole("the server checks its store when it makes a snapshot")
        if self.previous is None:
            return Whole("there is no earlier backup of it")
        # Receipts prove nothing: segments that are kept unread must be from the previous backup. The others only save
        # storing.
        kept = await self._kept(self.previous.segments)
        since = self.receipts.candidates(self.folder, None)
        reusable = await self._stored(kept, *since) if since else kept
        joined = await take_increment(
            self.js,
            self.options.incremental,
            self.previous,
            kept,
            new_writer=lambda: self._writer(reusable),
            start=lambda byte_count, messages: self.progress.start(self.name, byte_count, messages),
            advance=self.advance,
            consumers=self.options.consumers,
        )
        if isinstance(joined, Whole):
            return joined
        try:
            segments = await in_thread(self._paged, joined.segments)
        except (IntegrityError, UnsupportedError) as error:  # a page of the last backup; the server has the messages
            return Whole(error.message)
        return Stored(
            ArchiveFormat.MESSAGES,
            joined.info.state,
            Reading(ReadAs.INCREMENT, joined.why),
            joined.info.config,
            joined.consumers,
            segments=segments,
            reused=joined.reused,
            stored_bytes=self.stored_bytes,
        )

    async def snapshot(self, limits: CaptureLimits, why: str) -> Stored:
        info = await self.js.stream(self.name)
        self.progress.start(self.name, info.state.bytes, info.state.messages)
        deleted = await self._deleted(info)
        reusable = await self.reusable()
        writer = self._writer(reusable)
        capture = await capture_snapshot(
            self.js,
            self.name,
            writer,
            deleted=deleted,
            consumers=self.options.consumers,
            check=self.options.check,
            limits=limits,
            advance=self.advance,
        )
        end = capture.end
        assert end is not None
        archive_format = ArchiveFormat(end.format)
        if archive_format is ArchiveFormat.V2:
            await self._check_count(capture.state, capture.messages)
        touched = {ref.key for ref in reusable}
        try:
            if archive_format is ArchiveFormat.V2:
                whole = await self._complete(writer, info, capture.state, capture.messages)
            else:
                segments = await in_thread(writer.finish)
                reader = SegmentReader(self.objects)
                remove = await in_thread(messages_to_remove, end, capture.config, segments, reader)
                touched -= {ref.key for ref in untouched(reusable, remove)}
                segments = await in_thread(writer.without, segments, remove)
                state = replace(capture.state, last_seq=max(capture.state.last_seq, end.last_seq))
                whole = _Complete(segments, state)
        except (KeyUnavailable, IntegrityError) as error:
            # Segments of an earlier run that are encrypted or damaged had to be read: do not build on them.
            if not touched:
                raise
            self._shunned |= touched
            _log.info("stream %s: %s; trying again without it", self.name, error.message)
            return await self.snapshot(limits, why)
        if archive_format is ArchiveFormat.V1:
            await self._check_count(capture.state, total_of(whole.segments).messages)
        return Stored(
            archive_format,
            whole.state,
            Reading(ReadAs.SNAPSHOT, why),
            capture.config,
            archived=tuple(capture.consumers),
            segments=tuple(whole.segments),
            reused=writer.reused,
            stored_bytes=self.stored_bytes,
            warnings=whole.warnings,
            incomplete=bool(whole.warnings),
        )

    async def _complete(self, writer: SegmentWriter, info: StreamInfo, then: StreamState, messages: int) -> _Complete:
        """Return the segments and a state that the stream really had. `messages` were read, up to its end at `then`.

        If some of the messages of `then` were deleted before they were read, it is the state of now.
        """
        if messages == then.messages:
            return _Complete(await in_thread(writer.finish), then)
        reader = SegmentReader(self.objects)
        if not is_overwritten(info.config):
            now = await describe_stream(self.js, self.name)
            segments = await in_thread(writer.finish)
            if now.deleted is None and now.state.deleted:
                return _Complete(segments, then)
            gone = gone_at(now, segments, then.last_seq)
            try:
                cut = partial(writer.without, segments, gone, first=now.state.first_seq)
                return _Complete(await in_thread(cut), then)
            except KeyUnavailable:  # messages deleted since they were read stay
                return _Complete(segments, then)
        try:
            async with open_reader(self.js, info, self.advance, first=then.last_seq + 1) as on:
                caught = await catch_up(self.js, info, then.last_seq, on, add=writer.add)
        except NatsPermissionDenied as error:
            return await self._denied(writer, then, error)
        segments = await in_thread(writer.finish)
        segments = await cut_down(writer, segments, caught, reader, after=then.last_seq)
        return _Complete(segments, caught.info.state, _about_missing(caught))

    async def _denied(self, writer: SegmentWriter, then: StreamState, error: NatsPermissionDenied) -> _Complete:
        """Handle missing permission to read on: another snapshot may be made at a moment without writes."""
        if self._denials < _DENIALS:
            self._denials += 1
            raise TransferError(f"messages of {self.name} were overwritten while it was read") from error
        note = (
            "messages that were overwritten while it was read are missing, because the user may not read on: "
            f"{error.message}"
        )
        return _Complete(await in_thread(writer.finish), then, (note,))

    async def _deleted(self, info: StreamInfo) -> SequenceSet:
        """Request deleted sequences before a v1 snapshot, so that it needs less rewriting; its end has the rest."""
        if self.js.link.server_version >= _V2_SINCE or not 0 < info.state.deleted <= MAX_DELETED:
            return SequenceSet()
        detailed = await self.js.stream(self.name, deleted_details=True)
        return SequenceSet(detailed.deleted or ())

    async def _check_count(self, then: StreamState, messages: int) -> None:
        """Check the count, if the stream is unchanged since the snapshot began."""
        if messages == then.messages:
            return
        now = (await self.js.stream(self.name)).state
        quiet = (now.messages, now.first_seq, now.last_seq) == (then.messages, then.first_seq, then.last_seq)
        if quiet:
            raise IntegrityError(
                f"the snapshot of {self.name} has {messages} messages, the server reports {then.messages}",
                hint="The server's own store may be damaged; look at its log and at 'nats stream info'.",
            )

    async def otherwise(self, limits: CaptureLimits, why: str, unsupported: str) -> Stored:
        """Capture a stream of which no snapshot can be made, or decoded."""
        info = await self.js.stream(self.name)
        if info.config.get("storage") == "memory":
            return await self.messages(info, why)
        return await self.opaque(info, limits, why, unsupported)

    async def messages(self, info: StreamInfo, why: str) -> Stored:
        self.progress.start(self.name, info.state.bytes, info.state.messages)
        writer = self._writer(await self.reusable())
        messages = await read_into(self.js, info, writer.add, self.advance)
        whole = await self._complete(writer, info, info.state, messages)
        note = "read message by message: this server cannot make snapshots of streams kept in memory"
        return Stored(
            ArchiveFormat.MESSAGES,
            whole.state,
            Reading(ReadAs.MESSAGES, why),
            segments=tuple(whole.segments),
            reused=writer.reused,
            stored_bytes=self.stored_bytes,
            warnings=(note, *whole.warnings),
            incomplete=bool(whole.warnings),
        )

    async def opaque(self, info: StreamInfo, limits: CaptureLimits, why: str, unsupported: str) -> Stored:
        self.progress.start(self.name, info.state.bytes, 0)
        writer = OpaqueWriter(self.objects, self.folder)
        capture = await capture_opaque(
            self.js, self.name, writer.feed, consumers=self.options.consumers, limits=limits, advance=self.advance
        )
        pieces = await in_thread(writer.finish)
        note = f"stored in the server's format, not decoded and not verified: {unsupported}"
        return Stored(
            ArchiveFormat.OPAQUE,
            capture.state,
            Reading(ReadAs.SNAPSHOT, why),
            capture.config,
            opaque=tuple(pieces),
            stored_bytes=writer.stored_bytes,
            warnings=(note,),
        )


async def _store_with_attempts(capture: _Capture, why: str) -> Stored:
    """Capture the whole stream; `why` is the reason for that."""
    attempts = SnapshotAttempts(capture.name, capture.options.limits)
    unsupported = ""
    while True:
        limits = attempts.limits
        try:
            return await (capture.otherwise(limits, why, unsupported) if unsupported else capture.snapshot(limits, why))
        except UnsupportedError as error:
            if unsupported:
                raise
            unsupported = error.message
        except REPEATABLE as error:
            await attempts.next(error)


def _about_missing(caught: CaughtUp) -> tuple[str, ...]:
    if not caught.missing:
        return ()
    count = f"{caught.missing} messages were" if caught.missing > 1 else "1 message was"
    subjects = f"; written to meanwhile: {', '.join(caught.subjects)}" if caught.subjects else ""
    return (f"{count} overwritten faster than they could be read and are missing{subjects}",)
