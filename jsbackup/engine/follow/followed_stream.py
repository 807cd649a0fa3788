"""A followed stream: its present content, from its last backup and the messages since.

    entry (as the last backup has it) + tail (`tail.py`) + what the server reports now  ──read_on──▶  the next entry

As for every increment the server reports which sequences it has, and the backup will name exactly these (`join.py`). A
stream that was restored in place has lost the tail's consumer, and is compared completely. If anything does not fit, or
a consumer of ours would interfere (work queues, interest), the stream is backed up as by `backup --incremental always`,
which proves everything again.

A stream that is behind its last backup may have a new leader that is not up to date yet: this is only accepted if it
lasts.

Consumers left by a killed `follow`: the next one of the same repository removes them.

The server removes a consumer without a listener after a while, but a `follow` that is restarted at once would double
their number, which streams limit. The server shows which ones are left over: they have no listener. A running `follow`
listens before it creates its consumer; and a consumer whose connection was lost is useless, because every connection
creates its own.

What the next backup says of a followed stream, from its entry in the last one and from what the server says now.

All streams at rest are described alike, so that manifests list none of them (`manifest_json.py`).

Consumers: an increment has no snapshot, so the API reports less about them (`read/consumers.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, closing, nullcontext
from dataclasses import replace
from functools import lru_cache, partial

from jsbackup.engine.backup.run import BackupRun
from jsbackup.engine.backup.stream_backup import back_up_stream
from jsbackup.engine.follow.poll import Look
from jsbackup.engine.follow.tail import Backlog, Tail
from jsbackup.engine.link.concurrency import in_thread
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.consume import owner_of
from jsbackup.engine.read.consumers import as_backed_up, merge_consumers
from jsbackup.engine.read.increment import AT_REST, Increment, PresentSequences, intact_segments, plan_increment
from jsbackup.engine.read.join import read_increment
from jsbackup.engine.read.whole_stream import StreamReader, describe_stream
from jsbackup.errors import (
    ApiError,
    FormatError,
    IntegrityError,
    KeyUnavailable,
    NatsError,
    NatsTimeout,
    TransferError,
    UnsupportedError,
)
from jsbackup.model import StreamState
from jsbackup.planning.interrupted import about_leftover
from jsbackup.protocol.info import ConsumerInfo, StreamInfo, stored_config
from jsbackup.protocol.paging import Listing
from jsbackup.protocol.responses import may_pass
from jsbackup.repository.manifest import (
    ArchiveFormat,
    Captured,
    ConsumerBackup,
    ReadAs,
    Reading,
    SegmentRef,
    Source,
    StreamBackup,
    total_of,
)
from jsbackup.repository.pages.segment_list import BrokenPage, SegmentList, ends_of
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.repository.write.receipts import Receipts
from jsbackup.repository.write.segment_cuts import Cuts, extent_of
from jsbackup.repository.write.segment_writer import SegmentWriter, stored_segments
from jsbackup.times import format_time
from jsbackup.transforms.removal import is_queue

__all__ = ["Followed"]


def consumers_since(
    last: Iterable[ConsumerBackup], inventory: Listing[ConsumerInfo], info: StreamInfo
) -> tuple[ConsumerBackup, ...]:
    """Return the consumers as the API reports them, or from the last backup if that is more exact and nothing has
    changed.
    """
    if not (inventory.entries or inventory.missing or inventory.offline):
        return ()
    before = {consumer.name: consumer for consumer in last}
    now = [as_backed_up(item) for item in merge_consumers((), inventory, info.state.last_seq)]
    return tuple(
        before[consumer.name] if _is_still(before.get(consumer.name), inventory.entries[consumer.name]) else consumer
        for consumer in now
    )


def _is_still(before: ConsumerBackup | None, now: ConsumerInfo) -> bool:
    """Whether the consumer is unchanged since a snapshot reported exactly what it has pending."""
    if before is None or before.state is None or before.pending or not before.state.pending:
        return False
    state = before.state
    return (before.config, before.created, state.delivered, state.ack_floor, len(state.pending)) == (
        stored_config(now.config),
        now.created,
        now.delivered,
        now.ack_floor,
        now.num_ack_pending,
    ) and len(state.redelivered) == now.num_redelivered


FOLLOWED = Reading(ReadAs.INCREMENT, "it is followed")


def as_before(entry: StreamBackup, look: Look, now: str) -> StoredStream:
    """Return the stream with the same messages as before; `now` (RFC 3339) is when that was known."""
    config, state = stored_config(look.info.config), look.info.state
    consumers, warnings = _consumers_of(entry, look, look.info)
    kept = not entry.archive_format.has_messages
    stream = replace(
        entry,
        config=entry.config if config == entry.config else config,
        state=entry.state if state == entry.state else state,
        consumers=consumers,
        warnings=warnings,
        facts=(),  # of the backup that found them out
        captured=replace(entry.captured, begun=_begun(look.at_ns), ended=now),
        archive_format=entry.archive_format if kept else ArchiveFormat.MESSAGES,
        read=entry.read if kept else AT_REST,
    )
    return StoredStream(stream, len(entry.segments), 0, incomplete=bool(warnings))


def as_described(entry: StreamBackup, look: Look, now: str) -> StoredStream | None:
    """Return the same for an entry that says just what `look.info` does; None if consumers or warnings have to be
    compared. That is all that is done for most of thousands of streams.
    """
    inventory = look.consumers
    some = inventory is not None and (inventory.entries or inventory.missing or inventory.offline)
    if some or look.silent or entry.consumers or entry.remarks or entry.read is not AT_REST:
        return None
    again = entry.captured_again(_begun(look.at_ns), now, entry.archive_format, entry.read)
    return StoredStream(again, len(entry.segments))


def followed_on(
    entry: StreamBackup, look: Look, info: StreamInfo, *, segments: Sequence[SegmentRef], ended: str
) -> StreamBackup:
    """Return the stream with all its segments, read up to `info` at the time `ended` (RFC 3339)."""
    consumers, warnings = _consumers_of(entry, look, info)
    totals = total_of(segments)
    return StreamBackup(
        name=entry.name,
        incarnation=entry.incarnation,
        config=stored_config(info.config),
        created=info.created,
        state=info.state,
        captured=Captured.of(totals, _begun(look.at_ns), ended),
        archive_format=ArchiveFormat.MESSAGES,
        digest=totals.digest,
        segments=segments,
        consumers=consumers,
        warnings=warnings,
        read=FOLLOWED,
        life=entry.life,
    )


_begun = lru_cache(maxsize=4)(format_time)  # all streams of a list were asked for at one time


def _consumers_of(
    entry: StreamBackup, look: Look, info: StreamInfo
) -> tuple[tuple[ConsumerBackup, ...], tuple[str, ...]]:
    """Return the consumers as they are now, and warnings about stream and consumers."""
    leftover = about_leftover(info.config)
    if look.silent:
        return entry.consumers, (*leftover, "its consumers did not answer in time, and are as they were before")
    if look.consumers is None:
        return (), leftover
    lost = sorted({*look.consumers.missing, *look.consumers.offline})
    warnings = (f"consumer {name} did not answer; its positions are not known" for name in lost)
    return consumers_since(entry.consumers, look.consumers, info), (*leftover, *warnings)


_log = logging.getLogger(__name__)

# A server at the other end of a gateway learns of a listener a moment after the consumer was created.
_YOUNG_SECONDS = 2.0


async def remove_left_readers(js: JetStream, stream: str, owner: str, consumers: Iterable[ConsumerInfo] | None) -> None:
    """Remove the left consumers of `owner`, a repository's id. They are requested if `consumers` is None.

    Nothing is raised: consumers that cannot be removed expire.
    """
    try:
        if consumers is None:
            consumers = (await js.consumers(stream)).entries.values()
        for info in consumers:
            young = info.now_ns - info.created_ns <= _YOUNG_SECONDS * 1e9
            if owner_of(info.config) == owner and not (info.push_bound or young):
                await js.delete_consumer(stream, info.name)
                _log.info("stream %s: removed consumer %s of a follow that was killed", stream, info.name)
    except (NatsError, FormatError) as error:
        _log.debug("stream %s: %s", stream, error.message)


_ATTEMPTS = 5
# How long a stream has to be behind its last backup before that is accepted.
_BELIEVED_SECONDS = 10.0
# How often a long list of deleted sequences is requested if nothing seems to have changed.
_ASK_SECONDS = 60.0
# A tail is closed after this many looks without new messages.
_IDLE_LOOKS = 200


class Followed:
    """A stream with its last backup (`entry`), if there is one, and its tail."""

    def __init__(
        self,
        js: JetStream,
        run: BackupRun,
        source: Source,
        backlog: Backlog,
        *,
        info: StreamInfo,
        entry: StreamBackup | None,
    ) -> None:
        self.name = info.name
        self.created = info.created
        self.entry = entry
        self._js = js
        self._run = run
        self._repository = run.repository
        self._source = source
        self._backlog = backlog
        incarnation = source.incarnation(info.name, info.created)
        self._folder = run.repository.objects.sealing.folder(info.name, incarnation)
        self._tail: Tail | None = None
        self._proved = False  # whether the segments of the entry are known to be in the store
        self._free_of: frozenset[bytes] = frozenset()  # damaged objects that the entry does not name
        self._compared: tuple[int, ...] = ()  # the deleted sequences that the entry has been compared with
        self._asked_ns = 0  # when the server was last asked for all deleted sequences
        self._behind_since_ns: int | None = None
        self._no_tail = is_queue(info.config)
        self._read_anew = False
        self._described: StreamInfo | None = None  # the entry says just what this does
        self._at_rest: StreamInfo | None = None  # the entry will, once it is committed
        self._idle_looks = 0
        self._tidy = False  # whether leftovers of a killed predecessor were removed
        # Whether the last message was read by a tail, so that the time that the server states is the latest.
        self._ends_followed = entry is not None and entry.read == FOLLOWED

    def has_changed(self, look: Look) -> bool:
        """Return whether the last backup lacks anything of it."""
        entry = self.entry
        if entry is None or not self._proved or self._has_lost_tail(look):
            return True
        if look.info is not self._described and not (
            self._is_as_stored(look.info) and entry.config == stored_config(look.info.config)
        ):
            return True
        return (
            look.consumers is not None
            and consumers_since(entry.consumers, look.consumers, look.info) != entry.consumers
        )

    def at_rest(self, look: Look, now: str) -> StoredStream | None:
        """Return the stream if its messages are surely those of the last backup, without asking anybody; else None.
        `now` is the time, as many streams of a backup have it.
        """
        entry = self.entry
        if entry is None or not (self._tidy and self._proved) or self._tail is not None:
            return None
        if self._free_of != self._damage or self._is_due(look):
            return None
        self._at_rest = look.info
        if look.info is self._described and (again := as_described(entry, look, now)) is not None:
            return again
        return as_before(entry, look, now) if self._is_as_stored(look.info) else None

    async def read_on(self, look: Look, receipts: Receipts) -> StoredStream:
        """Store the stream as it is now. Call `committed` when a manifest names the result.

        Raises:
            NatsError: it cannot be read now; another try may succeed.
            IntegrityError, StoreError
        """
        self._at_rest = None
        if not self._tidy:
            self._tidy = True
            consumers = None if look.consumers is None else look.consumers.entries.values()
            await remove_left_readers(self._js, self.name, self._repository.descriptor.id, consumers)
        if self.entry is not None:
            damaged = self._free_of != self._damage and await in_thread(self._is_damaged, self.entry)
            self._proved = not damaged and (self._proved or await in_thread(self._is_stored, self.entry))
        if self.entry is None or not self._proved:
            return await self._anew(look, receipts)
        if self._has_lost_tail(look):
            await self.close()
        if self._is_as_stored(look.info) and not self._is_due(look):
            await self._rest()
            return as_before(self.entry, look, format_time(self._run.clock_ns()))
        self._asked_ns = look.at_ns
        self._idle_looks = 0
        self._refuse_behind(look)
        result = await self._join(self.entry, look, receipts)
        return await self._anew(look, receipts) if result is None else result

    @property
    def _damage(self) -> frozenset[bytes]:
        """The objects in its folder that are known to be damaged."""
        return self._repository.objects.damaged_in(self._folder)

    def _is_damaged(self, entry: StreamBackup) -> bool:
        """Return whether the entry names anything that is known to be damaged. If not, later ones do not either."""
        known = self._damage
        if any(isinstance(ref, BrokenPage) or self._repository.objects.is_damaged(ref) for ref in entry.walk()):
            return True
        self._free_of = known
        return False

    def _is_stored(self, entry: StreamBackup) -> bool:
        """Return whether its segments can be built on. As in a backup a long list is not looked for, nor those of many
        streams.
        """
        if (isinstance(entry.segments, SegmentList) or self._run.many) and not self._damage:
            return True
        stored = stored_segments(self._repository.objects, self._folder, entry.segments)
        return len(stored) == len(entry.segments)

    def committed(self, stream: StreamBackup) -> None:
        """Note that a manifest has the stream as it was read."""
        self.entry, self._proved = stream, True
        self._described, self._at_rest = self._at_rest, None
        if stream.read is not AT_REST:
            self._ends_followed = stream.read == FOLLOWED
        self._compared = ()
        if self._tail is not None:
            self._tail.settle(stream.state.last_seq, self._joinable_from(stream.segments))
        elif self._read_anew and not self._no_tail and stream.segments:
            # At once: its first message may be deleted by the time the next ones arrive.
            self._begin_tail(stream)
        self._read_anew = False

    def _joinable_from(self, segments: Sequence[SegmentRef]) -> int:
        """Return the first sequence of the short segments at the end, which the next backup may join with more."""
        cuts = Cuts(0, self._repository.objects.segment_bytes)
        first = segments[-1].last_seq + 1 if segments else 0
        for ref in reversed(segments):
            if not cuts.joinable(extent_of(ref)):
                break
            first = ref.first_seq
        return first

    async def close(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            await tail.close()

    def _refuse_behind(self, look: Look) -> None:
        assert self.entry is not None
        if look.info.state.last_seq >= self.entry.state.last_seq:
            self._behind_since_ns = None
            return
        if self._behind_since_ns is None:
            self._behind_since_ns = look.at_ns
        if look.at_ns - self._behind_since_ns < _BELIEVED_SECONDS * 1e9:
            raise TransferError(
                f"it ends at sequence {look.info.state.last_seq} and ended at {self.entry.state.last_seq} before, "
                f"which is believed after {_BELIEVED_SECONDS:.0f} s"
            )

    def _is_as_stored(self, info: StreamInfo) -> bool:
        assert self.entry is not None
        if info.created != self.entry.created or _ends(info.state) != _ends(self.entry.state):
            return False
        if not info.deleted or info.deleted == self._compared:  # none, as before, or too many to be reported each time
            return True
        present = PresentSequences(info.state, info.deleted)
        try:
            if len(intact_segments(self.entry.segments, present)) < len(self.entry.segments):
                return False
        except IntegrityError:  # a page: it will be read as if it had changed
            return False
        self._compared = info.deleted
        return True

    def _is_due(self, look: Look) -> bool:
        """Return whether it is time to request a long list of deleted sequences."""
        return look.info.deleted is None and look.at_ns - self._asked_ns >= _ASK_SECONDS * 1e9

    def _has_lost_tail(self, look: Look) -> bool:
        """Return whether the server no longer has the tail's consumer."""
        if self._tail is None or not self._tail.consumer or look.consumers is None:
            return False
        inventory = look.consumers
        return self._tail.consumer not in {*inventory.entries, *inventory.missing, *inventory.offline}

    async def _rest(self) -> None:
        self._idle_looks += 1
        if self._idle_looks > _IDLE_LOOKS:
            await self.close()

    # --- with its tail ---

    async def _join(self, entry: StreamBackup, look: Look, receipts: Receipts) -> StoredStream | None:
        """Continue the entry with the tail; None if it has to be read in another way."""
        if self._no_tail:
            return None
        info = look.info
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if info.deleted is None and info.state.deleted:
                    info = await describe_stream(self._js, self.name)
                writer = SegmentWriter(self._repository.objects, self._folder, entry.segments, note=receipts.note)
                with closing(writer):
                    segments = entry.segments
                    writer.cuts.losing_front = bool(segments) and info.state.first_seq > ends_of(segments)[0]
                    plan = await in_thread(plan_increment, entry, entry.segments, info, writer.cuts, anchors=0)
                    if not isinstance(plan, Increment) or not await self._has_tail(entry, info):
                        return None
                    assert self._tail is not None
                    joined = await read_increment(
                        self._js,
                        info,
                        plan,
                        None,
                        writer=writer,
                        read=self._tail.read,
                        read_on=partial(_reading_on, self._tail),
                    )
                    now = joined.info
                    segments = await in_thread(self._repository.listed, joined.segments)
                    stream = followed_on(entry, look, now, segments=segments, ended=format_time(self._run.clock_ns()))
                    return StoredStream(stream, joined.reused, joined.stored_bytes, incomplete=bool(stream.remarks))
            except (TransferError, NatsTimeout) as error:
                if attempt == _ATTEMPTS or not self._js.link.connected:
                    raise
                _log.info("stream %s: %s; once more", self.name, error.message)
                info = await self._js.stream(self.name)
            except (IntegrityError, KeyUnavailable, UnsupportedError) as error:
                _log.info("stream %s: %s", self.name, error.message)
                await self.close()
                return None
        raise AssertionError

    async def _has_tail(self, entry: StreamBackup, info: StreamInfo) -> bool:
        """Return whether there is a tail that continues at the end of the entry."""
        if self._tail is None:
            if ends_of(entry.segments)[1] not in PresentSequences(info.state, info.deleted or ()):
                return False
            self._begin_tail(entry)
        assert self._tail is not None
        try:
            await self._tail.begun()
        except ApiError as error:
            if may_pass(error):
                raise TransferError(error.message) from error
            # Limits on consumers. (A missing permission is left to the user to fix.)
            _log.warning("stream %s cannot be followed by a consumer, and is read again and again", self.name)
            _log.info("stream %s: %s", self.name, error.message)
            await self.close()
            self._no_tail = True
            return False
        return True

    def _begin_tail(self, entry: StreamBackup) -> None:
        last, state = entry.segments[-1], entry.state
        # The latest time is that of the last message, unless a clock was set back: then the tail does not begin.
        at_ns = state.last_ns if self._ends_followed and last.last_seq == state.last_seq else last.max_ns
        owner = self._repository.descriptor.id
        self._tail = Tail(self._js, self.name, last.last_seq, at_ns, backlog=self._backlog, owner=owner)

    # --- without its tail ---

    async def _anew(self, look: Look, receipts: Receipts) -> StoredStream:
        """Back up the stream as a backup does."""
        await self.close()
        result = await back_up_stream(
            self._run, self._js, look.info, source=self._source, previous=self.entry, receipts=receipts
        )
        self._behind_since_ns = None
        self._read_anew = True
        return result


def _reading_on(tail: Tail, _info: StreamInfo, _first: int) -> AbstractAsyncContextManager[StreamReader]:
    return nullcontext(tail)


def _ends(state: StreamState) -> tuple[int, ...]:
    return state.messages, state.bytes, state.first_seq, state.first_ns, state.last_seq, state.last_ns
