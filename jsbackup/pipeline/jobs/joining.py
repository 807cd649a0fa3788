"""Compaction: rewrite a backup with the same content in fewer segments, so that the old one can be forgotten.

Consecutive backups share segments, which are cut so that less has to be stored (`repository/write/reuse.py`): a stream
that grows a little each time, or loses scattered messages, gets many short ones. A backup that is kept for long does
not need them. Runs of adjacent segments, each shorter than half a segment, are joined to segments of up to 32 MiB, or
the repository's own size; all others are reused. Only segments change: messages, digests, consumers, `created` and tags
stay. So retention treats the compacted backup as one of the same time, and its id is the next one after the other's:
`latest` has the same content as before.

A stream's folder stays too, so the next backup of the server may build on these segments. It stores more if messages
are deleted all over the stream, until the segments are short again.

With `recompress` the other segments are encoded again, with the compression of the repository: those that were copied
from a repository with another one. The key of a segment says its messages, not its bytes, so what differs is stored
beside it, under a replacement's key. An encrypted segment that another backup has recompressed, too, is stored again.

Objects that only the old backup needs are deleted when that one is forgotten and pruned, not here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby

from jsbackup.errors import IntegrityError, ObjectExists
from jsbackup.formats.segment import SegmentEncoder
from jsbackup.pipeline.jobs.job_run import JobRun
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tasks.packing import pack, pack_tasks
from jsbackup.pipeline.tasks.runner import TaskRunner
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.keep import leases
from jsbackup.repository.manifest import Manifest, SegmentRef, StreamBackup, total_of
from jsbackup.repository.objects import Objects, all_damaged, sha256_of
from jsbackup.repository.segments import SegmentReader, SegmentWriter, StoredSegments
from jsbackup.repository.write.cutter import checked_batches
from jsbackup.repository.write.locking import LOCKED
from jsbackup.times import parse_time
from jsbackup.tool import TOOL

__all__ = ["Group", "compact_backup", "count_after", "grouped", "joined_bytes", "merge_groups"]

Group = tuple[SegmentRef, ...]
"""Segments that are to be joined, or one that stays."""


def grouped(refs: Sequence[SegmentRef], segment_bytes: int) -> list[Group]:
    """Group the segments of a stream, in order; those worth joining are together."""
    groups: list[Group] = []
    for short, neighbours in groupby(refs, lambda ref: 2 * ref.bytes < segment_bytes):
        run = tuple(neighbours)
        pieces = (
            pack([ref.bytes for ref in run], segment_bytes) if short else [slice(i, i + 1) for i in range(len(run))]
        )
        groups += [run[piece] for piece in pieces]
    return groups


def count_after(streams: Sequence[StreamBackup], segment_bytes: int) -> tuple[int, int]:
    """Return the number of segments of some streams, and the number after compaction to that size."""
    before = sum(len(stream.segments) for stream in streams)
    return before, sum(len(grouped(stream.segments, segment_bytes)) for stream in streams)


def joined_bytes(streams: Sequence[StreamBackup], segment_bytes: int) -> int:
    """Return the raw bytes that a compaction reads and stores again."""
    groups = (group for stream in streams for group in grouped(stream.segments, segment_bytes) if len(group) > 1)
    return sum(ref.bytes for group in groups for ref in group)


def _recompress_segment(objects: Objects, ref: SegmentRef) -> StoredSegments:
    """Store a segment with the repository's compression, and return it; the same one if it has that already. Raises as
    `_join_segments`.
    """
    encoder = SegmentEncoder(objects.compression)
    before = objects.fetch(ref)
    for batch in checked_batches(before, ref):
        encoder.write(batch)
    content = memoryview(encoder.finish()).cast("B")
    if content == before:
        return StoredSegments((ref,), reused=1)
    sealed = objects.sealing.seal(content)
    size, sha256 = memoryview(sealed).nbytes, sha256_of(sealed)
    for key in objects.names_for(layout.replaced_key(ref.key), sha256):
        stored = replace(ref, key=key, size=size, sha256=sha256)
        try:
            objects.store.put(key, sealed)
        except ObjectExists:
            if objects.store.get_range(key, 0, size + 1) == sealed:
                return StoredSegments((stored,), reused=1)
        else:
            return StoredSegments((stored,), stored_bytes=size)
    raise all_damaged(ref.key)


def _join_segments(objects: Objects, group: Group) -> StoredSegments:
    """Store the joined segment beside these and return it. Raises IntegrityError and StoreError."""
    reader = SegmentReader(objects)
    writer = SegmentWriter(objects, layout.parse_segment_key(group[0].key).folder)
    with closing(writer):
        for ref in group:
            for batch in reader.prove(ref):
                writer.add(batch)
        stored = writer.finish_all()
    if len(stored.refs) != 1 or total_of(stored.refs) != total_of(group):
        raise IntegrityError(f"segments from {group[0].key} on do not have the same content when joined")
    return stored


@dataclass(frozen=True, slots=True)
class _Join:
    """A task."""

    place: RepositoryRef
    groups: tuple[Group, ...]

    def __call__(self) -> list[StoredSegments]:
        objects = opened(self.place).objects
        return [
            _join_segments(objects, group) if len(group) > 1 else _recompress_segment(objects, group[0])
            for group in self.groups
        ]


def merge_groups(
    runner: TaskRunner,
    place: RepositoryRef,
    streams: Sequence[Sequence[SegmentRef]],
    progress: Progress | None,
    *,
    recompress: bool = False,
) -> list[StoredSegments]:
    """Join short adjacent segments, and `recompress` the others; return all segments of each stream. Raises
    IntegrityError and StoreError.
    """
    segment_bytes = opened(place).objects.segment_bytes
    groups = [grouped(refs, segment_bytes) for refs in streams]
    least = 1 if recompress else 2
    wanted = [group for stream in groups for group in stream if len(group) >= least]
    sizes = [sum(ref.bytes for ref in group) for group in wanted]
    pieces = pack_tasks(sizes, runner.cores)
    tasks = [_Join(place, tuple(wanted[piece])) for piece in pieces]
    weights = [sum(sizes[piece]) for piece in pieces]
    joined = iter(
        [one for part in runner.run("joining segments", tasks, weights=weights, progress=progress) for one in part]
    )
    return [
        StoredSegments.joined(next(joined) if len(group) >= least else StoredSegments(group) for group in stream)
        for stream in groups
    ]


def compact_backup(
    run: JobRun[TaskRunner], manifest: Manifest, *, unread: Collection[str] = (), recompress: bool = False
) -> Manifest | None:
    """Write the backup `manifest` in fewer segments, and commit it. Streams in `unread` stay as they are. Return None
    if all segments do.

    Raises:
        IntegrityError: a segment is missing or damaged; nothing is committed.
        RepositoryLocked: the lease was lost; nothing is committed.
        KeyUnavailable, StoreError: something cannot be read or stored.
    """
    streams = [stream for stream in manifest.streams if stream.name not in unread]
    segments = [stream.segments for stream in streams]
    found = merge_groups(run.runner, run.place, segments, run.progress, recompress=recompress)
    merged = {stream.name: _checked(stream, one.refs) for stream, one in zip(streams, found, strict=True)}
    if all(one.refs == tuple(refs) for one, refs in zip(found, segments, strict=True)):
        return None
    run.lease.check()
    # A copy of that manifest, not one of a backup made now: its times are those of the old one.
    made = replace(
        manifest,
        id=layout.backup_id(parse_time(manifest.created, f"backup {manifest.id}"), run.random(3), manifest.id),
        tool=TOOL,
        stored_bytes=sum(one.stored_bytes for one in found),
        streams=tuple(merged.get(stream.name, stream) for stream in manifest.streams),
        # The new objects are not locked.
        extra={**{k: v for k, v in manifest.extra.items() if k != LOCKED}, "compacted": {"backup": manifest.id}},
    )
    leases.commit(run.repository, made, run.lease)
    return made


def _checked(stream: StreamBackup, refs: tuple[SegmentRef, ...]) -> StreamBackup:
    if total_of(stream.segments) != total_of(refs):
        raise IntegrityError(f"stream {stream.name} is not the same after joining")
    return replace(stream, segments=refs)
