"""Statistics of a backup as `stats.py` has them, without Spark: each segment is read once, in this process.

Messages are counted by subject and size, which gives exact percentiles. Few segments are in memory at a time, and
counts that do not fit are in temporary files (`grouped_counts.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from jsbackup.formats.digest import MessageBatch
from jsbackup.memory import give_back
from jsbackup.pipeline.jobs.distribution import MessageTally, raw_sizes, scales_of
from jsbackup.pipeline.jobs.grouped_counts import GroupedCounts
from jsbackup.pipeline.jobs.stats_model import Sizes, StreamStats
from jsbackup.pipeline.jobs.subject_totals import COUNTED, StreamTotals, key_prefix, rows_by_stream, totals_of
from jsbackup.pipeline.tasks.gathering import gathered
from jsbackup.progress import NullProgress, Progress
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import Manifest, SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.growth import growth_of
from jsbackup.repository.repository import Repository
from jsbackup.repository.segments import SegmentReader

__all__ = ["as_binary", "collect_stats_here", "found_stats", "message_ids"]

_MOST_SEGMENTS, _PIECE_BYTES = 64, 2 << 20

_MESSAGE_ID: Final = "\\r\\n(?i:nats-msg-id):[ \\t]*(?P<id>[^\\r\\n]+)"  # the first one of a header block


def collect_stats_here(
    repository: Repository,
    manifest: Manifest,
    streams: Sequence[StreamBackup],
    *,
    most_subjects: int = 10,
    duplicates: bool = False,
    progress: Progress | None = None,
    threads: int = 1,
) -> list[StreamStats]:
    """Return statistics of streams of a backup, in their order, with the `most_subjects` largest subjects of each.

    Raises:
        IntegrityError, KeyUnavailable, StoreError: the backup cannot be read, or temporary files cannot be written.
    """
    progress = progress or NullProgress()
    doing = "the statistics"
    progress.start(doing, sum(stream.captured.bytes for stream in streams), 0)
    with closing(_Counts(repository.objects, streams, duplicates=duplicates)) as counts:
        tasks = (
            partial(counts.count, number, refs)
            for number, stream in enumerate(streams)
            for refs in _pieces(stream.segments)
        )
        try:
            with closing(in_order(tasks, threads)) as done:
                for raw_bytes in done:
                    progress.advance(doing, raw_bytes, 0)
        finally:
            progress.finish(doing)
        totals = totals_of(counts.sizes.sorted_groups(), most_subjects)
        repeated = counts.repeated() if duplicates else None
    return found_stats(repository, manifest, streams, totals=totals, repeated=repeated, tallies=counts.tallies)


def found_stats(
    repository: Repository,
    manifest: Manifest,
    streams: Sequence[StreamBackup],
    *,
    totals: Mapping[int, StreamTotals],
    repeated: Mapping[int, int] | None,
    tallies: Sequence[MessageTally],
) -> list[StreamStats]:
    """Return statistics of streams from what was counted of them, by their numbers; `repeated` is None if ids were not.
    Raises as `growth_of`.
    """
    growth = growth_of(repository, manifest, [stream.name for stream in streams])
    found = []
    for number, (stream, tally) in enumerate(zip(streams, tallies, strict=True)):
        counted = None if repeated is None else repeated.get(number, 0)
        distribution, grown = tally.distribution(), tuple(growth[stream.name])
        total = totals.get(number)
        if total is None:
            found.append(StreamStats(stream.name, 0, 0, 0, 0, Sizes(), 0, (), counted, distribution, grown))
            continue
        span = (total.messages, total.bytes, total.oldest_ns, total.newest_ns, total.sizes)
        found.append(StreamStats(stream.name, *span, total.subject_count, total.subjects, counted, distribution, grown))
    return found


class _Counts:
    """What is counted of all streams, by their numbers. `count` may be called from several threads."""

    def __init__(self, objects: Objects, streams: Sequence[StreamBackup], *, duplicates: bool) -> None:
        self._reader = SegmentReader(objects)
        self._scales = scales_of(streams)
        self._lock = threading.Lock()
        self.tallies = [MessageTally(scale) for scale in self._scales]
        self.sizes = GroupedCounts(("key", "size"), COUNTED)
        self._ids = GroupedCounts(("key",), {"messages": "sum"}) if duplicates else None

    def count(self, stream: int, refs: Sequence[SegmentRef]) -> int:
        """Count the messages of segments; return their raw bytes. Raises as `SegmentReader.read`, and StoreError."""
        tally = MessageTally(self._scales[stream])
        for batch in gathered(batch for ref in refs for batch in self._reader.read(ref)):
            sizes = raw_sizes(batch)
            tally.add(batch, sizes)
            self.sizes.add(
                pa.table(
                    {
                        "key": _keys(stream, batch.column("subject")),
                        "size": sizes,
                        "messages": pa.repeat(1, batch.num_rows),
                        "oldest_ns": batch.column("timestamp_ns"),
                        "newest_ns": batch.column("timestamp_ns"),
                    }
                )
            )
            if self._ids is not None:
                ids = message_ids(batch)
                self._ids.add(pa.table({"key": _keys(stream, ids), "messages": pa.repeat(1, len(ids))}))
        with self._lock:
            self.tallies[stream].merge(tally)
        size = sum(ref.bytes for ref in refs)
        give_back(size)
        return size

    def repeated(self) -> dict[int, int]:
        """Return how many messages of each stream have an id that an earlier one has."""
        found: dict[int, int] = {}
        for table in self._ids.sorted_groups() if self._ids is not None else ():
            for number, part in rows_by_stream(table):
                found[number] = found.get(number, 0) + pc.sum(part.column("messages")).as_py() - part.num_rows
        return found

    def close(self) -> None:
        self.sizes.close()
        if self._ids is not None:
            self._ids.close()


def _pieces(segments: Iterable[SegmentRef]) -> Iterator[list[SegmentRef]]:
    """Yield what is counted at a time: one segment, or several short ones."""
    piece: list[SegmentRef] = []
    size = 0
    for ref in segments:
        if piece and (len(piece) == _MOST_SEGMENTS or size + ref.bytes > _PIECE_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(ref)
        size += ref.bytes
    if piece:
        yield piece


def _keys(stream: int, texts: pa.Array) -> pa.Array:
    prefix, none = pa.scalar(key_prefix(stream), pa.binary()), pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(prefix, as_binary(texts), none)


def message_ids(batch: MessageBatch) -> pa.Array:
    """Return the ids of those messages that have one."""
    return pc.struct_field(pc.extract_regex(batch.column("headers"), _MESSAGE_ID), "id").drop_null()


def as_binary(texts: pa.Array) -> pa.Array:
    """Return texts, or bytes, as bytes, without a copy."""
    return texts.view(pa.binary()) if texts.type == pa.string() else texts
