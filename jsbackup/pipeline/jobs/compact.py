"""Compaction: rewrite a backup with the same content in fewer segments, so that the old one can be forgotten.

Consecutive backups share segments, which are cut so that less has to be stored (`repository/write/reuse.py`): a stream
that grows a little each time, or loses scattered messages, gets many short ones. A backup that is kept for long does
not need them. Runs of adjacent segments, each shorter than half a segment, are joined to segments of up to 32 MiB, or
the repository's own size; all others are reused. Only segments change: messages, digests, consumers, `created` and tags
stay. So retention treats the compacted backup as one of the same time, and its id is the next one after the other's:
`latest` has the same content as before.

A stream's folder stays too, so the next backup of the server may build on these segments. It stores more if messages
are deleted all over the stream, until the segments are short again.

Objects that only the old backup needs are deleted when that one is forgotten and pruned, not here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby

from pyspark.sql import SparkSession

from jsbackup.errors import IntegrityError
from jsbackup.pipeline.session.lease import held_lease
from jsbackup.pipeline.session.repository_ref import RepositoryRef, find_readable, opened
from jsbackup.pipeline.session.session import attach
from jsbackup.pipeline.tasks.tasks import pack, pack_tasks, run_tasks
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.keep import leases
from jsbackup.repository.keep.leases import Lease
from jsbackup.repository.manifest import Manifest, SegmentRef, StreamBackup, total_of
from jsbackup.repository.objects import Objects
from jsbackup.repository.repository import Repository
from jsbackup.repository.segments import SegmentReader, SegmentWriter
from jsbackup.repository.write.locking import LOCKED
from jsbackup.times import parse_time
from jsbackup.tool import TOOL

__all__ = ["Group", "compact", "compact_backup", "count_after", "grouped", "join_segments", "merge_groups"]

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


def join_segments(objects: Objects, group: Group) -> SegmentRef:
    """Store the joined segment beside these and return it. Raises IntegrityError and StoreError."""
    if len(group) == 1:
        return group[0]
    reader = SegmentReader(objects)
    writer = SegmentWriter(objects, layout.parse_segment_key(group[0].key).folder)
    with closing(writer):
        for ref in group:
            for batch in reader.prove(ref):
                writer.add(batch)
        stored = writer.finish()
    if len(stored) != 1 or total_of(stored) != total_of(group):
        raise IntegrityError(f"segments from {group[0].key} on do not come to one of the same content")
    return stored[0]


@dataclass(frozen=True, slots=True)
class _Join:
    """A task."""

    place: RepositoryRef
    groups: tuple[Group, ...]

    def __call__(self) -> list[SegmentRef]:
        objects = opened(self.place).objects
        return [join_segments(objects, group) for group in self.groups]


def merge_groups(
    session: SparkSession, place: RepositoryRef, streams: Sequence[Sequence[SegmentRef]], progress: Progress | None
) -> list[tuple[SegmentRef, ...]]:
    """Join short adjacent segments; return the new segments of each stream. Raises IntegrityError and StoreError."""
    segment_bytes = opened(place).objects.segment_bytes
    groups = [grouped(refs, segment_bytes) for refs in streams]
    wanted = [group for stream in groups for group in stream if len(group) > 1]
    sizes = [sum(ref.bytes for ref in group) for group in wanted]
    pieces = pack_tasks(sizes)
    tasks = [_Join(place, tuple(wanted[piece])) for piece in pieces]
    weights = [sum(sizes[piece]) for piece in pieces]
    joined = iter(
        [
            ref
            for part in run_tasks(session, "joining segments", tasks, weights=weights, progress=progress)
            for ref in part
        ]
    )
    return [tuple(next(joined) if len(group) > 1 else group[0] for group in stream) for stream in groups]


def compact(
    session: SparkSession, place: RepositoryRef, backup: str, *, progress: Progress | None = None
) -> Manifest | None:
    """Compact a backup (an id, the start of one, or `latest`); return None if there is nothing to join.

    Raises the same errors as `find_backup` and `compact_backup`.
    """
    attach(session)
    repository = place.open()
    repository.documents.ensure_writable()
    with held_lease(repository, "compact") as lease:
        manifest = find_readable(repository, backup)
        before, after = count_after(manifest.streams, repository.objects.segment_bytes)
        if after == before:
            return None
        return compact_backup(session, place, repository, manifest, lease=lease, random=os.urandom, progress=progress)


def compact_backup(
    session: SparkSession,
    place: RepositoryRef,
    repository: Repository,
    manifest: Manifest,
    *,
    lease: Lease,
    random: Callable[[int], bytes],
    unread: Collection[str] = (),
    progress: Progress | None = None,
) -> Manifest:
    """Write the backup `manifest` in fewer segments, and commit it; `lease` is a shared one, renewed by the caller.
    Streams in `unread` stay as they are.

    Raises:
        IntegrityError: a segment is missing or damaged; nothing is committed.
        RepositoryLocked: the lease was lost; nothing is committed.
        KeyUnavailable, StoreError: something cannot be read or stored.
    """
    streams = [stream for stream in manifest.streams if stream.name not in unread]
    refs = merge_groups(session, place, [stream.segments for stream in streams], progress)
    merged = {stream.name: _checked(stream, found) for stream, found in zip(streams, refs, strict=True)}
    lease.check()
    made = replace(
        manifest,
        id=layout.backup_id(parse_time(manifest.created, f"backup {manifest.id}"), random(3), manifest.id),
        tool=TOOL,
        streams=tuple(merged.get(stream.name, stream) for stream in manifest.streams),
        # The new objects are not locked.
        extra={**{k: v for k, v in manifest.extra.items() if k != LOCKED}, "compacted": {"backup": manifest.id}},
    )
    leases.commit(repository, made, lease)
    return made


def _checked(stream: StreamBackup, refs: tuple[SegmentRef, ...]) -> StreamBackup:
    if total_of(stream.segments) != total_of(refs):
        raise IntegrityError(f"stream {stream.name} does not come out as it was")
    return replace(stream, segments=refs)
