"""A part of a backup or a restore, in a worker process of a larger run (`pipeline/` starts it).

A part may have been begun by another process that was lost. Then a backup stores what is missing. For a restore the
target shows how far the other process came: half-restored streams are removed, and complete ones are proved. A stream
that was being replaced is left to the user.

Functions here are synchronous, and run their own event loop.

**Ranges**: a stream that is read for the first time may be read in ranges of sequences, by several processes at once.

Each process reads ranges by a consumer, and stores them (`store_range`). That proves nothing: a replica may lag behind,
messages may be deleted or overwritten meanwhile. So their segments become the base of an increment, which the run that
commits makes (`store_on_ranges`). It compares them with the sequences that the server has, and reads what is missing
and what has changed (`read/increment.py`, `read/join.py`). A range that fails is only missing.

Consumers of a replicated stream are placed on any of its servers, so several ranges are read from several of them.

Measured, a stream of one server, seconds of processor for each GB: by snapshot jsbackup takes 9.3, of which one thread
4.4, and the server 4.5, whatever the size of messages. In ranges of messages of 1 KiB it is 18.7 and 3.5, of 16 KiB 10
and 1.6, of 128 KiB 10 and 1.4. So ranges are faster where executors have some cores.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from jsbackup.engine.backup.backup import Chosen, back_up_streams
from jsbackup.engine.backup.run import BackupOptions, BackupRun
from jsbackup.engine.link.concurrency import in_thread, with_own_threads
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.read.consume import read_into
from jsbackup.engine.read.increment import Incremental, PresentSequences, SequenceSpan, only_in_snapshots
from jsbackup.engine.read.whole_stream import describe_stream
from jsbackup.engine.restore.execution import Execution
from jsbackup.engine.restore.run import RestoredStream, RestoreRun
from jsbackup.engine.restore.send_archive import StoredSupply, Supply
from jsbackup.engine.restore.stream_restore import StartingPoint, Usable
from jsbackup.errors import NatsTimeout, TransferError
from jsbackup.failure import Failure
from jsbackup.model import StreamState
from jsbackup.planning.interrupted import is_marked, staging_prefix
from jsbackup.planning.model import Action, RestorePlan, SendAs
from jsbackup.progress import NullProgress, ignored
from jsbackup.protocol.info import StreamInfo
from jsbackup.readable import format_count
from jsbackup.repository.manifest import (
    ArchiveFormat,
    Captured,
    ReadAs,
    Reading,
    SegmentRef,
    Source,
    StreamBackup,
    total_of,
)
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.repository.write.receipts import Receipts
from jsbackup.repository.write.segment_writer import SegmentWriter, StoredSegments, stored_segments
from jsbackup.times import format_time
from jsbackup.tool import TOOL
from jsbackup.transforms.removal import is_queue

__all__ = [
    "RangedStream",
    "RestorePart",
    "RestoredPart",
    "StoredPart",
    "StoredRange",
    "StreamRange",
    "back_up_part",
    "complete",
    "plan_ranges",
    "restore_part",
    "store_on_ranges",
    "store_range",
]

T = TypeVar("T")

# Server source: a server gives up a restore after 5 s without a chunk. If its stream is deleted before that, the data
# that it still reads creates the stream again (`remove_unfinished.py`).
_GIVEN_UP_SECONDS = 6.0


def complete(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, even in a notebook, where this thread already runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, work).result()


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Streams that were stored, and those that failed. `receipts` list segments that a manifest will name."""

    results: tuple[StoredStream, ...]
    failures: tuple[Failure, ...]
    receipts: tuple[str, ...]


def back_up_part(run: BackupRun, chosen: Chosen, run_id: str) -> StoredPart:
    """Store these streams, one after another. `run_id` has 16 hex digits for receipts, new each time.

    Errors of a stream or the server are among the failures.
    """
    receipts = Receipts(run.repository.documents, run_id, format_time(run.clock_ns()), TOOL)
    if not run.options.config_only:
        receipts.read_earlier()
    alone = replace(run, options=replace(run.options, jobs=1))
    results, failures = asyncio.run(back_up_streams(alone, chosen, receipts))
    return StoredPart(tuple(results), tuple(failures), () if failures else receipts.keys)


@dataclass(frozen=True, slots=True)
class RestorePart:
    """Streams that may be restored in parallel, and the common starting point."""

    start: StartingPoint
    actions: tuple[Action, ...] = ()


@dataclass(frozen=True, slots=True)
class RestoredPart:
    """Streams that were restored, and those that failed; and the ids and folders of objects that were found damaged."""

    results: tuple[RestoredStream, ...]
    failures: tuple[Failure, ...]
    damaged: Mapping[bytes, str] = field(default_factory=dict)


def restore_part(run: RestoreRun, repository: Repository, part: RestorePart, *, again: bool) -> RestoredPart:
    """Restore these streams, one after another, and prove them.

    `again`: another process may have begun; then a stream created since the plan was made is from it.
    """

    @asynccontextmanager
    async def stored() -> AsyncIterator[Supply]:
        yield StoredSupply(repository.objects, run.settings.mask_secret, run.settings.proof)

    alone = replace(run, settings=replace(run.settings, jobs=1))
    execution = (_Repeated if again else Execution)(alone, stored, part.start)
    work = with_own_threads(execution.all)(RestorePlan(part.start.label, (part.actions,)))
    results, failures = asyncio.run(work)
    return RestoredPart(tuple(results), tuple(failures), dict(repository.objects.found_damaged))


class _Repeated(Execution):
    """Continues after another process was lost."""

    async def all(self, plan: RestorePlan) -> tuple[list[RestoredStream], list[Failure]]:
        await asyncio.sleep(_GIVEN_UP_SECONDS)
        return await super().all(plan)

    async def _begin(self, js: JetStream, supply: Supply, action: Action) -> RestoredStream | Usable:
        if action.replaces:
            raise TransferError(
                f"the process that was to replace stream {action.name} was lost",
                retry=False,
                hint=f"Look at it, and at streams named {staging_prefix(action.name)}…, of which one may be a proved "
                "copy of what was to come; then restore it again.",
            )
        if action.wire is SendAs.API:
            return await self._streams.create(js, action)  # creating it again has no effect
        info = await js.find_stream(action.name)
        if info is None or is_marked(info.config):
            return await super()._begin(js, supply, replace(action, leftover=info is not None))
        assert isinstance(supply, StoredSupply)
        sent, action = await supply.sent_before(action), replace(action, copies=())
        return await self._end(js, supply, await self._streams.make_usable(js, action, sent), ())


_log = logging.getLogger(__name__)

# Below this, starting tasks and reading the rest afterwards costs more than there is to gain.
_LEAST_STREAM_BYTES = 4 << 30
# Of the stream, by the server's count. A lost task costs one range; each range ends with a short segment.
_LEAST_BYTES, _MOST_BYTES = 256 << 20, 4 << 30
_RANGES_FOR_EACH_CORE = 3
# Seconds of a core for each byte and message of a range, and of one thread for each byte of a snapshot.
_RANGE_BYTE, _RANGE_MESSAGE, _WHOLE_BYTE = 9.8e-9, 9e-6, 5e-9
# How much faster it has to be by this estimate, which is of one machine.
_LEAST_GAIN = 1.5

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class StreamRange:
    """Sequences to read of the stream `info`, which lists no deleted ones."""

    info: StreamInfo
    span: SequenceSpan


@dataclass(frozen=True, slots=True)
class RangedStream:
    """A stream to read in ranges: as it was when they were planned, at `begun` (seconds of a monotonic clock)."""

    info: StreamInfo
    ranges: tuple[StreamRange, ...]
    begun: float


@dataclass(frozen=True, slots=True)
class StoredRange:
    """The segments of a range, in order, and receipts that list them."""

    stored: StoredSegments
    receipts: tuple[str, ...]


# --- which streams ---


@with_own_threads
async def plan_ranges(run: BackupRun, chosen: Chosen, cores: int) -> Mapping[str, RangedStream]:
    """Return the streams that are read faster in ranges, by name, if `cores` can work at once. Raises NatsError."""
    wanted = [
        info
        for info in chosen.streams
        if info.state.bytes >= _LEAST_STREAM_BYTES
        and _may_be_ranged(info, run.options)
        and (info.name not in chosen.earlier or run.options.incremental is Incremental.NEVER)
    ]
    if not wanted or cores < 2:
        return {}
    ranged: dict[str, RangedStream] = {}
    async with connect_jetstream(run.connection) as js:
        for info in wanted:
            begun = time.monotonic()
            info = await describe_stream(js, info.name)
            if why_not := await _why_not(js, info, run.options, cores):
                _log.info("stream %s is read by one task: %s", info.name, why_not)
                continue
            bare = replace(info, deleted=None)
            ranges = tuple(StreamRange(bare, span) for span in _split(info, _range_bytes(info, cores)))
            ranged[info.name] = RangedStream(bare, ranges, begun)
            _log.info("stream %s is read in %s", info.name, format_count(len(ranges), "range"))
    return ranged


def _may_be_ranged(info: StreamInfo, options: BackupOptions) -> bool:
    """Return whether a consumer of ours can read the stream, and nothing else was asked for."""
    limited = (info.config.get("max_consumers") or 0) > 0
    readable = not (is_queue(info.config) or limited or info.lost)
    return readable and not (options.config_only or options.check or options.salvage)


async def _why_not(js: JetStream, info: StreamInfo, options: BackupOptions, cores: int) -> str:
    if info.deleted is None and info.state.deleted:
        return f"{info.state.deleted} deleted sequences are too many to ask for"
    if options.consumers and options.incremental is not Incremental.ALWAYS:
        inventory = await js.consumers(info.name)
        if why := only_in_snapshots(info, inventory.entries.values(), js.link.server_version):
            return why
    if not _is_faster(info.state, cores):
        return f"with {format_count(cores, 'core')} ranges would not be faster"
    return ""


def _is_faster(state: StreamState, cores: int) -> bool:
    ranges = (state.bytes * _RANGE_BYTE + state.messages * _RANGE_MESSAGE) / cores
    return _LEAST_GAIN * ranges < state.bytes * _WHOLE_BYTE


def _range_bytes(info: StreamInfo, cores: int) -> int:
    return max(_LEAST_BYTES, min(_MOST_BYTES, info.state.bytes // (_RANGES_FOR_EACH_CORE * cores)))


def _split(info: StreamInfo, range_bytes: int) -> Iterator[SequenceSpan]:
    """Yield ranges that have about as many messages each, `range_bytes` if all messages are of one size."""
    present = PresentSequences(info.state, info.deleted or ())
    count = max(1, info.state.bytes // range_bytes)
    at = present.first
    for number in range(1, count + 1):
        upto = info.state.messages * number // count  # messages up to the end of this range
        last = bisect_left(
            range(present.last + 1), upto, lo=at, key=lambda sequence: present.count(present.first, sequence)
        )
        if span := present.span(at, present.last if number == count else last):
            yield span
        at = last + 1


# --- one range ---


def store_range(run: BackupRun, source: Source, part: StreamRange, run_id: str) -> StoredRange:
    """Read and store a range. `run_id` has 16 hex digits for receipts, new each time.

    Messages that are gone, or that a lagging replica does not have, are missing. Raises NatsError, StoreError.
    """
    receipts = Receipts(run.repository.documents, run_id, format_time(run.clock_ns()), TOOL)
    receipts.read_earlier()
    return asyncio.run(_store_range(run, source, part, receipts))


@with_own_threads
async def _store_range(run: BackupRun, source: Source, part: StreamRange, receipts: Receipts) -> StoredRange:
    stored_bytes = 0
    folder = _folder(run, source, part.info)
    for attempt in range(1, _ATTEMPTS + 1):
        reusable = await in_thread(_reusable, run, folder, part.span, receipts)
        writer = SegmentWriter(run.repository.objects, folder, reusable, note=receipts.note)
        try:
            async with connect_jetstream(run.connection) as js:
                await read_into(js, part.info, writer.add, ignored, first=part.span.first, last=part.span.last)
            stored = await in_thread(writer.finish_all)
            stored = replace(stored, stored_bytes=stored.stored_bytes + stored_bytes)
            return StoredRange(stored, receipts.keys)
        except (TransferError, NatsTimeout) as error:
            if attempt == _ATTEMPTS:
                raise
            _log.info("stream %s: %s; once more", part.info.name, error.message)
        finally:
            await in_thread(writer.settle)
        stored_bytes += writer.stored_bytes
    raise AssertionError


def _reusable(run: BackupRun, folder: str, span: SequenceSpan, receipts: Receipts) -> list[SegmentRef]:
    """Return the segments of the range that this run, or one that did not finish, has stored."""
    segments = stored_segments(run.repository.objects, folder, *receipts.candidates(folder, None))
    return [ref for ref in segments if span.first <= ref.first_seq and ref.last_seq <= span.last]


def _folder(run: BackupRun, source: Source, info: StreamInfo) -> str:
    return run.repository.objects.sealing.folder(info.name, source.incarnation(info.name, info.created))


# --- all ranges together ---


@with_own_threads
async def store_on_ranges(
    run: BackupRun, source: Source, stream: RangedStream, parts: Sequence[StoredSegments], *, receipts: Receipts
) -> StoredStream | Failure:
    """Store the stream, of which `parts` are the ranges that were stored, in order: prove and complete them."""
    refs = tuple(ref for part in parts for ref in part.refs)
    earlier = {stream.info.name: _base(source, stream.info, refs)} if refs else {}
    # Nothing has been chosen by the estimates of a small increment: what is stored must not be read again.
    options = replace(run.options, incremental=Incremental.ALWAYS)
    last = replace(run, options=options, progress=NullProgress())
    results, failures = await back_up_streams(last, Chosen(source, (stream.info,), earlier), receipts)
    if failures:
        return failures[0]
    (result,) = results
    new = len(refs) - sum(part.reused for part in parts)
    made = replace(
        result,
        segments_reused=max(0, result.segments_reused - new),
        stored_bytes=result.stored_bytes + sum(part.stored_bytes for part in parts),
        seconds=time.monotonic() - stream.begun,
    )
    if refs and made.stream.read is not None and made.stream.read.how is ReadAs.INCREMENT:
        why = f"in {format_count(len(stream.ranges), 'range')} at once; {made.stream.read.why} afterwards"
        made = replace(made, stream=replace(made.stream, read=Reading(ReadAs.MESSAGES, why)))
    return made


def _base(source: Source, info: StreamInfo, refs: tuple[SegmentRef, ...]) -> StreamBackup:
    """Return the ranges as the last backup of an increment."""
    totals = total_of(refs)
    return StreamBackup(
        name=info.name,
        incarnation=source.incarnation(info.name, info.created),
        config=info.config,
        created=info.created,
        state=info.state,
        captured=Captured.of(totals, info.created, info.created),
        archive_format=ArchiveFormat.MESSAGES,
        digest=totals.digest,
        segments=refs,
    )
