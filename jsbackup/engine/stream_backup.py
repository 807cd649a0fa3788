"""One stream into the repository: captured, settled, its consumers completed by the API, described for the manifest.

Attempts adapt: after a broken transfer the next one asks for a smaller window and smaller chunks (slow links and slow
stores need little on the way), and a stream of which somebody else is making a snapshot is waited for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from jsbackup.engine.capture import CaptureLimits, capture_opaque, capture_snapshot
from jsbackup.engine.catch_up import CaughtUp, catch_up, cut_down, describe_stream, gone_at, is_overwritten
from jsbackup.engine.consume import open_reader, read_messages
from jsbackup.engine.consumers import KnownConsumer, as_backed_up, merge_consumers
from jsbackup.engine.increment import MAX_DELETED, Incremental, Whole
from jsbackup.engine.jetstream import JetStream
from jsbackup.engine.join import take_increment
from jsbackup.engine.leftovers import about_mark
from jsbackup.errors import (
    FormatError,
    IntegrityError,
    KeyUnavailable,
    NatsPermissionDenied,
    NatsTimeout,
    SnapshotBusy,
    TransferError,
    UnsupportedError,
)
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import ArchivedConsumer, Fidelity, JsonObject, StreamState
from jsbackup.progress import Progress
from jsbackup.protocol.info import ConsumerInfo, StreamInfo, stored_config
from jsbackup.protocol.paging import Listing
from jsbackup.repository import layout
from jsbackup.repository.manifest import (
    ArchiveFormat,
    OpaqueRef,
    ReadAs,
    Reading,
    SegmentRef,
    Source,
    StreamBackup,
    total_of,
)
from jsbackup.repository.opaque import OpaqueWriter
from jsbackup.repository.pending import store_consumer
from jsbackup.repository.receipts import Receipts
from jsbackup.repository.repository import Repository
from jsbackup.repository.reuse import stored_segments, untouched
from jsbackup.repository.segments import SegmentReader, SegmentWriter
from jsbackup.repository.settle import messages_to_remove
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.engine.backup import BackupOptions

__all__ = ["StreamResult", "back_up_stream"]

_log = logging.getLogger(__name__)

_ATTEMPTS = 4
_FIRST_PAUSE_SECONDS = 0.5  # doubled with each attempt
_BUSY_SECONDS = 120.0  # how long another snapshot of the stream is waited for
_BUSY_PAUSE_SECONDS = 1.0
_V2_SINCE = (2, 15)
# Snapshots that are made again where messages are missing that the user may not read one by one.
_DENIALS = 2


@dataclass(frozen=True, slots=True)
class StreamResult:
    """A stream that was stored, for the manifest, with what it cost."""

    stream: StreamBackup
    segments_reused: int = 0
    stored_bytes: int = 0
    seconds: float = 0.0
    incomplete: bool = False  # something of it is missing, or is not proved; the warnings say what


@dataclass(frozen=True, slots=True)
class _Stored:
    """What a capture left in the store. `config` and `state` as reported, the state advanced to what was proved.

    `inventory` are the consumers that the state goes with, None if they are asked for afterwards.
    """

    archive_format: ArchiveFormat
    state: StreamState
    read: Reading | None = None
    config: JsonObject | None = None
    inventory: Listing[ConsumerInfo] | None = None
    archived: tuple[ArchivedConsumer, ...] = ()
    segments: tuple[SegmentRef, ...] = ()
    opaque: tuple[OpaqueRef, ...] = ()
    reused: int = 0
    stored_bytes: int = 0
    warnings: tuple[str, ...] = ()
    incomplete: bool = False  # something of it is missing; the warnings say what


@dataclass(frozen=True, slots=True)
class _Complete:
    """The segments of a stream that was read whole, and the state that they are; `warnings` say what is missing."""

    segments: list[SegmentRef]
    state: StreamState
    warnings: tuple[str, ...] = ()


async def back_up_stream(
    js: JetStream,
    repository: Repository,
    info: StreamInfo,
    options: BackupOptions,
    progress: Progress,
    source: Source,
    previous: StreamBackup | None,
    receipts: Receipts,
    clock_ns: Callable[[], int],
) -> StreamResult:
    """Store one stream, whose last backup is `previous`; `receipts` know of what was stored since, and are kept.

    Raises what makes it impossible; what was put into the store by then is nobody's."""
    incarnation = layout.incarnation(source.cluster, source.account, info.name, info.created)
    folder = repository.objects.sealing.folder(info.name, incarnation)
    begun_ns = clock_ns()
    said: tuple[str, ...] = ()
    if options.config_only:
        stored = _Stored(ArchiveFormat.CONFIG, info.state)
    else:
        run = _Run(js, repository, folder, options, progress, info.name, previous, receipts)
        with closing(run):
            done = await run.increment()
            if isinstance(done, Whole) and done.lost:
                said = (f"the server has lost some of it since the last backup: {done.why}",)
            stored = await _store_with_attempts(run, done.why) if isinstance(done, Whole) else done
        assert stored.read is not None
        _log.info("stream %s: %s: %s", info.name, stored.read.how, stored.read.why)
    marked = about_mark(info.config)
    warnings = [*marked, *said, *stored.warnings]
    known: list[KnownConsumer] = []
    lost: set[str] = set()
    if options.consumers:
        inventory = stored.inventory or await js.consumers(info.name)
        known = merge_consumers(stored.archived, inventory, stored.state.last_seq)
        lost = {*inventory.missing, *inventory.offline} - {item.consumer.name for item in known}
        warnings += [f"consumer {name} did not answer and is not in the backup" for name in sorted(lost)]
        if options.config_only:
            known = [_config_only(consumer) for consumer in known]
        if stored.archive_format is ArchiveFormat.OPAQUE:
            known = [_beside_opaque(consumer) for consumer in known]
    totals = total_of(stored.segments)
    stream = StreamBackup(
        name=info.name,
        incarnation=incarnation,
        config=stored_config(info.config if stored.config is None else stored.config),
        created=info.created,
        state=stored.state,
        captured=totals.captured(format_time(begun_ns), format_time(clock_ns())),
        archive_format=stored.archive_format,
        digest=totals.digest,
        segments=stored.segments,
        consumers=tuple(store_consumer(repository.objects, folder, as_backed_up(item)) for item in known),
        opaque=stored.opaque,
        warnings=tuple(warnings),
        read=stored.read,
    )
    incomplete = bool(lost or marked) or stored.incomplete or stored.archive_format is ArchiveFormat.OPAQUE
    return StreamResult(stream, stored.reused, stored.stored_bytes, incomplete=incomplete)


def _about_missing(caught: CaughtUp) -> tuple[str, ...]:
    if not caught.missing:
        return ()
    count = f"{caught.missing} messages were" if caught.missing > 1 else "1 message was"
    subjects = f"; written to meanwhile: {', '.join(caught.subjects)}" if caught.subjects else ""
    return (f"{count} overwritten faster than they could be read, and are missing{subjects}",)


def _config_only(known: KnownConsumer) -> KnownConsumer:
    return KnownConsumer(replace(known.consumer, state=None), Fidelity.CONFIG_ONLY)


def _beside_opaque(known: KnownConsumer) -> KnownConsumer:
    return (
        replace(known, reason="its state is within the snapshot, which was kept as it came") if known.reason else known
    )


class _Run:
    """The capture of one stream, for as many attempts as it takes."""

    def __init__(
        self,
        js: JetStream,
        repository: Repository,
        folder: str,
        options: BackupOptions,
        progress: Progress,
        name: str,
        previous: StreamBackup | None,
        receipts: Receipts,
    ) -> None:
        self.js = js
        self.objects = repository.objects
        self.folder = folder
        self.options = options
        self.progress = progress
        self.name = name
        self.previous = previous
        self.receipts = receipts
        self._denials = 0  # how often messages were missing that the user may not read
        self._shunned: set[str] = set()  # segments that hold what has to go, and cannot be read
        self._writers_bytes = 0  # stored by all attempts but the last
        self._last_writer: SegmentWriter | None = None

    def advance(self, byte_count: int, messages: int) -> None:
        self.progress.advance(self.name, byte_count, messages)

    async def _stored(self, *lists: Sequence[SegmentRef]) -> list[SegmentRef]:
        found = await asyncio.to_thread(stored_segments, self.objects, self.folder, *lists)
        return [ref for ref in found if ref.key not in self._shunned]

    async def reusable(self) -> list[SegmentRef]:
        """The segments that are in the store: of the previous backup, and of what runs and attempts have left since."""
        if self._last_writer is not None:  # it may still be storing one
            await asyncio.to_thread(self._last_writer.settle)
        return await self._stored(*self.receipts.candidates(self.folder, self.previous))

    def _writer(self, reusable: Sequence[SegmentRef]) -> SegmentWriter:
        self._writers_bytes = self.stored_bytes
        self.close()
        self._last_writer = SegmentWriter(self.objects, self.folder, reusable, note=self.receipts.note)
        return self._last_writer

    def close(self) -> None:
        """Let go of what the last attempt still holds, if it failed."""
        if self._last_writer is not None:
            self._last_writer.close()

    @property
    def stored_bytes(self) -> int:
        """What was added to the store in all attempts; each goes on with the segments of the one before."""
        return self._writers_bytes + (self._last_writer.stored_bytes if self._last_writer else 0)

    async def increment(self) -> _Stored | Whole:
        """What is new since the previous backup, or why the stream has to be read whole."""
        if self.options.incremental is Incremental.NEVER:
            return Whole("it was asked for")
        if self.options.check:
            return Whole("the server checks its store when it makes a snapshot")
        if self.previous is None:
            return Whole("there is no earlier backup of it")
        # A receipt proves nothing: what is kept unread has to be of the previous backup. The rest spares storing.
        kept = await self._stored(self.previous.segments)
        since = self.receipts.candidates(self.folder, None)
        reusable = await self._stored(kept, *since) if since else kept
        joined = await take_increment(
            self.js,
            self.options.incremental,
            self.previous,
            kept,
            lambda: self._writer(reusable),
            lambda byte_count, messages: self.progress.start(self.name, byte_count, messages),
            self.advance,
            consumers=self.options.consumers,
        )
        if isinstance(joined, Whole):
            return joined
        return _Stored(
            ArchiveFormat.MESSAGES,
            joined.info.state,
            Reading(ReadAs.INCREMENT, joined.why),
            joined.info.config,
            joined.consumers,
            segments=joined.segments,
            reused=joined.reused,
            stored_bytes=self.stored_bytes,
        )

    async def snapshot(self, limits: CaptureLimits, why: str) -> _Stored:
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
                segments = await asyncio.to_thread(writer.finish)
                reader = SegmentReader(self.objects)
                remove = await asyncio.to_thread(messages_to_remove, end, capture.config, segments, reader)
                touched -= {ref.key for ref in untouched(reusable, remove)}
                segments = await asyncio.to_thread(writer.without, segments, remove)
                state = replace(capture.state, last_seq=max(capture.state.last_seq, end.last_seq))
                whole = _Complete(segments, state)
        except (KeyUnavailable, IntegrityError) as error:
            # Of an earlier run, and encrypted or not what it should be. What had to be read is not to be built on.
            if not touched:
                raise
            self._shunned |= touched
            _log.info("stream %s: %s; once more without it", self.name, error.message)
            return await self.snapshot(limits, why)
        if archive_format is ArchiveFormat.V1:
            await self._check_count(capture.state, total_of(whole.segments).messages)
        return _Stored(
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
        """What was read of the stream, `messages` up to the end it had `then`, as a state that it really had.

        If some of those that it had then went before they were read, that is how it is by now.
        """
        if messages == then.messages:
            return _Complete(await asyncio.to_thread(writer.finish), then)
        reader = SegmentReader(self.objects)
        if not is_overwritten(info.config):
            now = await describe_stream(self.js, self.name)
            segments = await asyncio.to_thread(writer.finish)
            if now.deleted is None and now.state.deleted:
                return _Complete(segments, then)
            gone = gone_at(now, segments, then.last_seq)
            try:
                cut = partial(writer.without, segments, gone, first=now.state.first_seq)
                return _Complete(await asyncio.to_thread(cut), then)
            except KeyUnavailable:  # what went since it was read stays
                return _Complete(segments, then)
        try:
            async with open_reader(self.js, info, self.advance, first=then.last_seq + 1) as on:
                caught = await catch_up(self.js, info, then.last_seq, on, writer.add)
        except NatsPermissionDenied as error:
            return await self._denied(writer, then, error)
        segments = await asyncio.to_thread(writer.finish)
        segments = await cut_down(writer, segments, caught, reader, after=then.last_seq)
        return _Complete(segments, caught.info.state, _about_missing(caught))

    async def _denied(self, writer: SegmentWriter, then: StreamState, error: NatsPermissionDenied) -> _Complete:
        """The user may not read on. Another snapshot may meet a moment at which nothing is written."""
        if self._denials < _DENIALS:
            self._denials += 1
            raise TransferError(f"messages of {self.name} were overwritten while it was read") from error
        note = (
            "messages that were overwritten while it was read are missing, because the user may not read on: "
            f"{error.message}"
        )
        return _Complete(await asyncio.to_thread(writer.finish), then, (note,))

    async def _deleted(self, info: StreamInfo) -> SequenceSet:
        """Those asked for beforehand, so that a v1 archive needs no rewriting; the rest is learnt from its end."""
        if self.js.link.server_version >= _V2_SINCE or not 0 < info.state.deleted <= MAX_DELETED:
            return SequenceSet()
        detailed = await self.js.stream(self.name, deleted_details=True)
        return SequenceSet(detailed.deleted or ())

    async def _check_count(self, then: StreamState, messages: int) -> None:
        """A stream that is now as it was when the snapshot began did not change: then the count has to be right."""
        if messages == then.messages:
            return
        now = (await self.js.stream(self.name)).state
        quiet = (now.messages, now.first_seq, now.last_seq) == (then.messages, then.first_seq, then.last_seq)
        if quiet:
            raise IntegrityError(
                f"the snapshot of {self.name} has {messages} messages, the server reports {then.messages}",
                hint="The server's own store may be damaged; look at its log and at 'nats stream info'.",
            )

    async def otherwise(self, limits: CaptureLimits, why: str, unsupported: str) -> _Stored:
        """A stream of which no snapshot can be had, or none that can be decoded."""
        info = await self.js.stream(self.name)
        if info.config.get("storage") == "memory":
            return await self.messages(info, why)
        return await self.opaque(info, limits, why, unsupported)

    async def messages(self, info: StreamInfo, why: str) -> _Stored:
        self.progress.start(self.name, info.state.bytes, info.state.messages)
        writer = self._writer(await self.reusable())
        messages = 0
        async for batch in read_messages(self.js, info, self.advance):
            messages += batch.num_rows
            await asyncio.to_thread(writer.add, batch)
        whole = await self._complete(writer, info, info.state, messages)
        note = "read message by message: this server cannot make snapshots of streams kept in memory"
        return _Stored(
            ArchiveFormat.MESSAGES,
            whole.state,
            Reading(ReadAs.MESSAGES, why),
            segments=tuple(whole.segments),
            reused=writer.reused,
            stored_bytes=self.stored_bytes,
            warnings=(note, *whole.warnings),
            incomplete=bool(whole.warnings),
        )

    async def opaque(self, info: StreamInfo, limits: CaptureLimits, why: str, unsupported: str) -> _Stored:
        self.progress.start(self.name, info.state.bytes, 0)
        writer = OpaqueWriter(self.objects, self.folder)
        capture = await capture_opaque(
            self.js, self.name, writer.feed, consumers=self.options.consumers, limits=limits, advance=self.advance
        )
        pieces = await asyncio.to_thread(writer.finish)
        note = f"kept as it came, not decoded and not verified: {unsupported}"
        return _Stored(
            ArchiveFormat.OPAQUE,
            capture.state,
            Reading(ReadAs.SNAPSHOT, why),
            capture.config,
            opaque=tuple(pieces),
            stored_bytes=writer.stored_bytes,
            warnings=(note,),
        )


async def _store_with_attempts(run: _Run, why: str) -> _Stored:
    """The whole stream, which `why` says the reason of."""
    limits = run.options.limits
    busy_until = time.monotonic() + _BUSY_SECONDS
    attempt = 1
    unsupported = ""
    while True:
        try:
            return await (run.otherwise(limits, why, unsupported) if unsupported else run.snapshot(limits, why))
        except SnapshotBusy as error:
            if time.monotonic() > busy_until:
                raise
            _log.info("%s; waiting", error.message)
            await asyncio.sleep(_BUSY_PAUSE_SECONDS)
        except UnsupportedError as error:
            if unsupported:
                raise
            unsupported = error.message
        except (TransferError, NatsTimeout, FormatError) as error:
            if attempt == _ATTEMPTS or (isinstance(error, TransferError) and not error.retry):
                raise
            pause = _FIRST_PAUSE_SECONDS * 2 ** (attempt - 1)
            _log.warning("stream %s: %s; attempt %d in %.1f s", run.name, error.message, attempt + 1, pause)
            await asyncio.sleep(pause)
            attempt += 1
            limits = limits.reduced()
