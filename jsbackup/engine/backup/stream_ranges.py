"""A stream that is read for the first time in ranges of sequences, by several processes at once.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jsbackup.engine.backup.backup import Chosen, back_up_streams
from jsbackup.engine.backup.options import BackupOptions
from jsbackup.engine.backup.run import BackupRun
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.link.threads import in_thread, with_own_threads
from jsbackup.engine.read.catch_up import describe_stream
from jsbackup.engine.read.consume import read_into
from jsbackup.engine.read.increment import (
    Incremental,
    PresentSequences,
    SequenceSpan,
    only_in_snapshots,
)
from jsbackup.errors import NatsTimeout, TransferError
from jsbackup.failure import Failure
from jsbackup.model import StreamState
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
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.repository.write.receipts import Receipts
from jsbackup.repository.write.segment_writer import SegmentWriter, StoredSegments, stored_segments
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["RangedStream", "StoredRange", "StreamRange", "plan_ranges", "store_on_ranges", "store_range"]

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
    found: dict[str, RangedStream] = {}
    async with connect_jetstream(run.connection) as js:
        for info in wanted:
            begun = time.monotonic()
            info = await describe_stream(js, info.name)
            if why_not := await _why_not(js, info, run.options, cores):
                _log.info("stream %s is read by one task: %s", info.name, why_not)
                continue
            bare = replace(info, deleted=None)
            ranges = tuple(StreamRange(bare, span) for span in _split(info, _range_bytes(info, cores)))
            found[info.name] = RangedStream(bare, ranges, begun)
            _log.info("stream %s is read in %s", info.name, format_count(len(ranges), "range"))
    return found


def _may_be_ranged(info: StreamInfo, options: BackupOptions) -> bool:
    """Return whether a consumer of ours can read the stream, and nothing else was asked for."""
    limited = (info.config.get("max_consumers") or 0) > 0
    readable = info.config.get("retention", "limits") == "limits" and not limited and not info.lost
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
        last = bisect_left(range(present.last + 1), upto, lo=at, key=lambda one: present.count(present.first, one))
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
    found = stored_segments(run.repository.objects, folder, *receipts.candidates(folder, None))
    return [ref for ref in found if span.first <= ref.first_seq and ref.last_seq <= span.last]


def _folder(run: BackupRun, source: Source, info: StreamInfo) -> str:
    return run.repository.objects.sealing.folder(info.name, _incarnation(source, info))


def _incarnation(source: Source, info: StreamInfo) -> str:
    return source.incarnation(info.name, info.created)


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
        incarnation=_incarnation(source, info),
        config=info.config,
        created=info.created,
        state=info.state,
        captured=Captured.of(totals, info.created, info.created),
        archive_format=ArchiveFormat.MESSAGES,
        digest=totals.digest,
        segments=refs,
    )
