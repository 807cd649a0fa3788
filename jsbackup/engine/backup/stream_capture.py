"""Store the messages of one stream: the new ones, or all, with the state that they belong to.

Store what can be read of a stream that the server cannot read as a whole (`engine/read/salvage/salvage.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from jsbackup.engine.backup.run import BackupRun
from jsbackup.engine.backup.stored import Stored
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.threads import in_thread
from jsbackup.engine.read.catch_up import CaughtUp, cut_down, describe_stream, gone_at
from jsbackup.engine.read.increment import Incremental, Whole, signs_of_loss
from jsbackup.engine.read.join import take_increment
from jsbackup.engine.read.salvage.damage import DAMAGE_HINT, is_damage, is_salvageable, reported_losses
from jsbackup.engine.read.snapshot_acks import CaptureLimits
from jsbackup.engine.read.snapshot_attempts import SnapshotAttempts
from jsbackup.engine.read.snapshot_transfer import capture_opaque
from jsbackup.engine.read.stream_reading import StreamReading, state_at_end
from jsbackup.engine.read.undelivered import Seen, find_undelivered
from jsbackup.engine.read.vanished import vanished
from jsbackup.errors import (
    IntegrityError,
    JsBackupError,
    KeyUnavailable,
    NatsPermissionDenied,
    TransferError,
    UnsupportedError,
)
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import JsonObject, StreamState
from jsbackup.protocol.info import StreamInfo
from jsbackup.readable import count_were
from jsbackup.repository.manifest import (
    LOST_SINCE,
    ArchiveFormat,
    ReadAs,
    Reading,
    SegmentRef,
    StreamBackup,
    total_of,
)
from jsbackup.repository.origin import Origin
from jsbackup.repository.pages.segment_list import SegmentList
from jsbackup.repository.read.losses import about_losses
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.write.late_deletions import messages_to_remove
from jsbackup.repository.write.receipts import Receipts
from jsbackup.repository.write.segment_writer import SegmentWriter, stored_segments, untouched
from jsbackup.repository.write.stream_objects import OpaqueWriter
from jsbackup.transforms.removal import is_overwritten

__all__ = ["capture_stream", "salvage"]

_log = logging.getLogger(__name__)


async def salvage(capture: StreamCapture, why: str) -> Stored:
    """Store what can be read of a stream; `why` says what is wrong with it.

    What the last backup has need not be read again, so that this may be everything. Raises NatsError and StoreError.
    """
    from jsbackup.engine.read.salvage.salvage import SalvageRun  # few backups need it

    _log.warning("stream %s: %s; reading what can be read", capture.name, why)
    info = await capture.js.stream(capture.name)
    capture.progress.start(capture.name, info.state.bytes, info.state.messages)
    earlier: Sequence[SegmentRef] = ()
    if capture.previous is not None and capture.previous.created == info.created:
        earlier = await capture.still_stored(capture.previous.segments)
        if (stored := await _increment(capture, earlier, why)) is not None:
            return stored
    found = await SalvageRun(
        capture.js,
        capture.name,
        capture.new_writer,
        SegmentReader(capture.objects),
        await capture.reusable(),
        earlier,
        capture.options.consumers,
        capture.options.limits,
        capture.advance,
    ).run()
    return Stored(
        found.archive_format,
        found.state,
        Reading(ReadAs.MESSAGES, why),
        found.config,
        archived=found.archived,
        segments=tuple(found.segments),
        reused=found.reused,
        stored_bytes=capture.stored_bytes,
        warnings=(why, *found.flaws, *found.notes),
    ).with_lost(found.lost)


async def _increment(capture: StreamCapture, earlier: Sequence[SegmentRef], why: str) -> Stored | None:
    """Read only what is new, if all that the server cannot read is in the last backup; None if it is not."""
    assert capture.previous is not None
    try:
        joined = await take_increment(
            capture.js,
            Incremental.ALWAYS,
            capture.previous,
            earlier,
            new_writer=lambda: capture.new_writer(earlier),
            start=lambda _bytes, _messages: None,
            advance=capture.advance,
            consumers=capture.options.consumers,
        )
    except JsBackupError as error:
        if not is_salvageable(error):
            raise
        return None
    if isinstance(joined, Whole):
        return None
    return Stored(
        ArchiveFormat.MESSAGES,
        joined.info.state,
        Reading(ReadAs.INCREMENT, f"{why}; {joined.why}"),
        joined.info.config,
        joined.consumers,
        segments=await in_thread(capture.paged, joined.segments),
        reused=joined.reused,
        stored_bytes=capture.stored_bytes,
        warnings=(why, "what was stored before the last backup is taken from that"),
    )


# How often a snapshot is repeated if messages are missing that the user may not read one by one.
_DENIALS = 2
_SHOWN = 5  # sequences in a warning


@dataclass(frozen=True, slots=True)
class _Complete:
    """The segments of a completely read stream, and their state; `warnings` say what is missing."""

    segments: list[SegmentRef]
    state: StreamState
    warnings: tuple[str, ...] = ()
    config: JsonObject | None = None  # if it is known as it was with that state


async def capture_stream(
    run: BackupRun,
    js: JetStream,
    folder: str,
    name: str,
    *,
    origin: Origin,
    previous: StreamBackup | None,
    receipts: Receipts,
) -> Stored:
    """Store what the last backup, `previous`, lacks, or everything. Raises the error if that is impossible.

    What the server has lost since makes the result incomplete: it may be the only notice of that. What a restore took
    back is not lost.
    """
    capture = StreamCapture(run, js, folder, name, origin=origin, previous=previous, receipts=receipts)
    with closing(capture):
        stored = await capture.increment()
        if isinstance(stored, Whole):
            why, lost = stored.why, stored.why if stored.lost else ""
            stored = await _store_with_attempts(capture, why)
            if lost := lost or capture.loss:
                stored = replace(stored, goes_back=True)
                if not await in_thread(capture.was_restored):
                    warnings = (f"{LOST_SINCE}{lost}", *stored.warnings)
                    stored = replace(stored, warnings=warnings, incomplete=True)
    return replace(stored, created=capture.created)


class StreamCapture:
    """The capture of one stream, for any number of attempts."""

    def __init__(
        self,
        run: BackupRun,
        js: JetStream,
        folder: str,
        name: str,
        *,
        origin: Origin,
        previous: StreamBackup | None,
        receipts: Receipts,
    ) -> None:
        self.js = js
        self._restores, self._origin = run.restores, origin
        self.objects = run.repository.objects
        self.paged = run.repository.listed
        self.folder = folder
        self.options = run.options
        self._many = run.many
        self.progress = run.progress
        self.name = name
        self._reading = StreamReading(js, name, self.advance)
        self.previous = previous
        self.receipts = receipts
        self.created = ""  # of the stream that was read
        self._first: StreamInfo | None = None  # before it was first read completely
        self._last: StreamInfo | None = None  # after the last one, of an archive v2
        self._contradicted = False  # whether messages were not delivered that the server has
        self._denials = 0  # how often messages were missing that the user may not read
        self._shunned: set[str] = set()  # unreadable segments that hold messages to be removed
        self._writers_bytes = 0  # stored by all attempts except the last
        self._last_writer: SegmentWriter | None = None

    def advance(self, byte_count: int, messages: int) -> None:
        self.progress.advance(self.name, byte_count, messages)

    async def still_stored(self, *lists: Sequence[SegmentRef]) -> list[SegmentRef]:
        found = await in_thread(stored_segments, self.objects, self.folder, *lists)
        return [ref for ref in found if ref.key not in self._shunned]

    async def _kept(self, segments: Sequence[SegmentRef]) -> Sequence[SegmentRef]:
        """Return the segments of the previous backup that can be kept.

        A long list is not looked for, nor those of many streams: no prune removes what its manifest names while this
        run has its lease.
        """
        trusted = isinstance(segments, SegmentList) or self._many
        if trusted and not (self.objects.damaged_in(self.folder) or self._shunned):
            return segments
        return await self.still_stored(segments)

    async def reusable(self) -> list[SegmentRef]:
        """Return the stored segments: of the previous backup, and those that later runs and attempts have left."""
        if self._last_writer is not None:  # it may still be storing a segment
            await in_thread(self._last_writer.settle)
        return await self.still_stored(*self.receipts.candidates(self.folder, self.previous))

    def new_writer(self, reusable: Sequence[SegmentRef]) -> SegmentWriter:
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

    def was_restored(self) -> bool:
        """Return whether the stream was restored to an earlier state since the previous backup, by our records."""
        assert self.previous is not None
        return self._restores.took_back(self._origin, self.name, self.previous.captured.begun)

    @property
    def loss(self) -> str:
        """What shows that the stream has lost messages of the previous backup, when it began to be read completely; ""
        if nothing does. What was listed before does not count: another backup may have stored more since.
        """
        if self.previous is None or self._first is None:
            return ""
        return signs_of_loss(self.previous, self._first)

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
        reusable = await self.still_stored(kept, *since) if since else kept
        joined = await take_increment(
            self.js,
            self.options.incremental,
            self.previous,
            kept,
            new_writer=lambda: self.new_writer(reusable),
            start=lambda byte_count, messages: self.progress.start(self.name, byte_count, messages),
            advance=self.advance,
            consumers=self.options.consumers,
        )
        if isinstance(joined, Whole):
            return joined
        self.created = joined.info.created
        try:
            segments = await in_thread(self.paged, joined.segments)
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

    async def snapshot(self, why: str, limits: CaptureLimits) -> Stored:
        info = await self.js.stream(self.name)
        self._first, self.created = self._first or info, info.created
        self.progress.start(self.name, info.state.bytes, info.state.messages)
        info = before = await self._reading.with_deleted(info)
        reusable = await self.reusable()
        writer = self.new_writer(reusable)
        seen, remove = Seen(writer), SequenceSet()
        capture = await self._reading.snapshot(
            info, seen, limits=limits, consumers=self.options.consumers, check=self.options.check
        )
        end = capture.end
        assert end is not None
        archive_format = ArchiveFormat(end.format)
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
                whole = _Complete(segments, state_at_end(capture))
        except (KeyUnavailable, IntegrityError) as error:
            # Segments of an earlier run that are encrypted or damaged had to be read: do not build on them.
            if not touched:
                raise
            self._shunned |= touched
            _log.info("stream %s: %s; trying again without it", self.name, error.message)
            return await self.snapshot(why, limits)
        if archive_format is ArchiveFormat.V1:
            await self._reading.check_count(capture.state, total_of(whole.segments).messages)
        stored = Stored(
            archive_format,
            whole.state,
            Reading(ReadAs.SNAPSHOT, why),
            whole.config or capture.config,
            archived=tuple(capture.consumers),
            segments=tuple(whole.segments),
            reused=writer.reused,
            stored_bytes=self.stored_bytes,
            warnings=whole.warnings,
            incomplete=bool(whole.warnings),
        )
        now = await describe_stream(self.js, self.name)
        if archive_format is ArchiveFormat.V2:  # the server may have found damage while it read its messages
            before = self._last = now
        stored = await self._without_undelivered(stored, now, seen, capture.state.last_seq, removed=remove)
        lost = reported_losses(before, stored.segments)
        if lost and self.options.salvage:
            return await salvage(self, f"the server has lost {about_losses(lost)}")
        return stored.with_lost(lost)

    async def _without_undelivered(
        self, stored: Stored, now: StreamInfo, seen: Seen, last_seq: int, *, removed: Iterable[int] = ()
    ) -> Stored:
        """Return the result, incomplete if the server has messages up to `last_seq` that it did not deliver. Raises
        TransferError for the first time.
        """
        if now.created != self.created:
            return stored
        undelivered = await find_undelivered(self.js, now, seen.sequences, last_seq, removed=removed)
        if not undelivered:
            return stored
        shown = ", ".join(map(str, undelivered[:_SHOWN])) + (", …" if len(undelivered) > _SHOWN else "")
        problem = f"the server has messages that it does not deliver with the others: {shown}"
        if not self._contradicted:
            self._contradicted = True
            raise TransferError(f"stream {self.name}: {problem}")
        return replace(stored, warnings=(*stored.warnings, problem), incomplete=True)

    async def with_vanished(self, stored: Stored, *, suspected: bool) -> Stored:
        """Return the result with what is gone since the first snapshot began. `suspected`: one failed by damage."""
        if self._first is None or stored.lost or not (suspected or self._last):
            return stored
        had = self._first.state
        new = max(0, stored.state.last_seq - had.last_seq)
        if total_of(stored.segments).messages - new >= had.messages:  # salvage took from the last backup what is gone
            return stored
        after = self._last or await describe_stream(self.js, self.name)
        return stored.with_lost(vanished(self._first, after, suspected=suspected))

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
            caught = await self._reading.read_on(info, then.last_seq, writer.add)
        except NatsPermissionDenied as error:
            return await self._denied(writer, then, error)
        segments = await in_thread(writer.finish)
        segments = await cut_down(writer, segments, caught, reader, after=then.last_seq)
        return _Complete(segments, caught.info.state, _about_missing(caught), caught.info.config)

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

    async def without_snapshot(self, why: str, limits: CaptureLimits, unsupported: UnsupportedError) -> Stored:
        """Capture a stream of which no snapshot can be made, or decoded."""
        info = await self.js.stream(self.name)
        self._first, self.created = self._first or info, info.created
        if info.config.get("storage") == "memory":
            return await self.messages(info, why)
        return await self.opaque(info, limits, why, unsupported.message)

    async def messages(self, info: StreamInfo, why: str) -> Stored:
        self.progress.start(self.name, info.state.bytes, info.state.messages)
        writer = self.new_writer(await self.reusable())
        seen = Seen(writer)
        messages = await self._reading.messages(info, seen.add)
        whole = await self._complete(writer, info, info.state, messages)
        note = "read message by message: this server cannot make snapshots of streams kept in memory"
        stored = Stored(
            ArchiveFormat.MESSAGES,
            whole.state,
            Reading(ReadAs.MESSAGES, why),
            whole.config or info.config,
            segments=tuple(whole.segments),
            reused=writer.reused,
            stored_bytes=self.stored_bytes,
            warnings=(note, *whole.warnings),
            incomplete=bool(whole.warnings),
        )
        now = await describe_stream(self.js, self.name)
        return await self._without_undelivered(stored, now, seen, info.state.last_seq)

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


async def _store_with_attempts(capture: StreamCapture, why: str) -> Stored:
    """Capture the whole stream; `why` is the reason for that. What is damaged is salvaged, if so asked."""
    attempts = SnapshotAttempts(capture.js, capture.name, capture.options.limits)
    damage: list[JsBackupError] = []

    async def snapshot(limits: CaptureLimits) -> Stored:
        try:
            return await capture.snapshot(why, limits)
        except JsBackupError as error:
            if is_damage(error):
                damage.append(error)
            raise

    try:
        stored = await attempts.run(snapshot, partial(capture.without_snapshot, why))
        return await capture.with_vanished(stored, suspected=bool(damage))
    except JsBackupError as error:
        if capture.options.salvage and is_salvageable(error):
            return await salvage(capture, f"its snapshot fails: {error.message}")
        raise error.with_more_hint(DAMAGE_HINT) if is_damage(error) else error from error.__cause__


def _about_missing(caught: CaughtUp) -> tuple[str, ...]:
    if not caught.missing:
        return ()
    count = count_were(caught.missing, "message")
    subjects = f"; written to meanwhile: {', '.join(caught.subjects)}" if caught.subjects else ""
    return (f"{count} overwritten faster than they could be read and are missing{subjects}",)
