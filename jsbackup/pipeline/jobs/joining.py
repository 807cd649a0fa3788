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
from a repository with another one. An encrypted segment that another backup has recompressed, too, is stored again.

Some thousands of segments are held; pages of the new lists are stored meanwhile.

Objects that only the old backup needs are deleted when that one is forgotten and pruned, not here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from jsbackup.errors import IntegrityError
from jsbackup.formats.segment import SegmentEncoder
from jsbackup.pipeline.jobs.job_run import JobRun
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tasks.packing import OPENING_BYTES, as_one, pack_tasks, waves
from jsbackup.pipeline.tasks.runner import TaskRunner
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.keep import leases
from jsbackup.repository.manifest import Manifest, SegmentRef, StreamBackup, total_of
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.page_store import ListWriter
from jsbackup.repository.pages.segment_list import raw_bytes_of
from jsbackup.repository.repository import Repository
from jsbackup.repository.segments import SegmentReader, SegmentWriter, StoredSegments
from jsbackup.repository.write.cutter import checked_batches
from jsbackup.repository.write.locking import LOCKED
from jsbackup.times import parse_time
from jsbackup.tool import TOOL

__all__ = ["Gain", "Group", "compact_backup", "gain_of", "grouped", "list_writer", "merge_groups"]

S = TypeVar("S")

Group = tuple[SegmentRef, ...]
"""Segments that are to be joined, or one that stays."""


def grouped(refs: Iterable[SegmentRef], segment_bytes: int) -> Iterator[Group]:
    """Group the segments of a stream, in order; those worth joining are together."""
    run: list[SegmentRef] = []
    size = 0
    for ref in refs:
        short = 2 * ref.bytes < segment_bytes
        if run and not (short and size + ref.bytes <= segment_bytes):
            yield tuple(run)
            run, size = [], 0
        if short:
            run.append(ref)
            size += ref.bytes
        else:
            yield (ref,)
    if run:
        yield tuple(run)


@dataclass(frozen=True, slots=True)
class Gain:
    """The number of segments `before` a compaction and `after` it, and the raw bytes that are stored again for it."""

    before: int
    after: int
    joined_bytes: int


def gain_of(streams: Iterable[StreamBackup], segment_bytes: int) -> Gain:
    """Return what a compaction to that size makes of some streams. Reads all pages of their lists."""
    before = after = joined_bytes = 0
    for stream in streams:
        for group in grouped(stream.segments, segment_bytes):
            before += len(group)
            after += 1
            joined_bytes += sum(ref.bytes for ref in group) if len(group) > 1 else 0
    return Gain(before, after, joined_bytes)


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
    stored = objects.put_once(ref.key, content)
    made = replace(ref, key=stored.key, size=stored.size, sha256=stored.sha256)
    return StoredSegments((made,), reused=int(not stored.added), stored_bytes=stored.size if stored.added else 0)


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
    streams: Iterable[tuple[S, Iterable[SegmentRef]]],
    progress: Progress | None,
    *,
    recompress: bool = False,
) -> Iterator[tuple[S, Group, StoredSegments]]:
    """Join short adjacent segments of streams, and `recompress` the others; yield what becomes of each group, in order,
    with what its stream is called here. Some thousands of segments are held. Raises IntegrityError and StoreError.
    """
    segment_bytes = opened(place).objects.segment_bytes
    least = 1 if recompress else 2
    groups = ((stream, group) for stream, refs in streams for group in grouped(refs, segment_bytes))
    for wave in waves(groups, lambda one: len(one[1])):
        wanted = [group for _, group in wave if len(group) >= least]
        joined = iter(_joined(runner, place, wanted, progress))
        for stream, group in wave:
            yield stream, group, next(joined) if len(group) >= least else StoredSegments(group)


def _joined(
    runner: TaskRunner, place: RepositoryRef, groups: Sequence[Group], progress: Progress | None
) -> list[StoredSegments]:
    if not groups:
        return []
    sizes = [sum(ref.bytes for ref in group) for group in groups]
    costs = [size + len(group) * OPENING_BYTES for size, group in zip(sizes, groups, strict=True)]
    pieces = pack_tasks(costs, runner.cores)
    tasks = [_Join(place, tuple(groups[piece])) for piece in pieces]
    weights = [sum(sizes[piece]) for piece in pieces]
    return [one for part in runner.run("joining segments", tasks, weights=weights, progress=progress) for one in part]


def list_writer(repository: Repository) -> ListWriter:
    """Return what makes the list of `Repository.listed` of segments that come one after the other."""
    return ListWriter(repository.pages)


def compact_backup(
    run: JobRun[TaskRunner], manifest: Manifest, gain: Gain, *, unread: Collection[str] = (), recompress: bool = False
) -> Manifest | None:
    """Write the backup `manifest` in fewer segments, and commit it. Streams in `unread` stay as they are, and `gain` is
    that of the others. Return None if all segments stay.

    Raises:
        IntegrityError: a segment is missing or damaged; nothing is committed.
        RepositoryLocked: the lease was lost; nothing is committed.
        KeyUnavailable, StoreError: something cannot be read or stored.
    """
    streams = {stream.name: stream for stream in manifest.streams if stream.name not in unread}
    compacted = {name: _Compacted(run.repository, stream) for name, stream in streams.items()}
    segments = ((name, stream.segments) for name, stream in streams.items())
    raw_bytes = sum(raw_bytes_of(stream.segments) for stream in streams.values()) if recompress else gain.joined_bytes
    with as_one(run.progress, raw_bytes) as progress:
        for name, group, stored in merge_groups(run.runner, run.place, segments, progress, recompress=recompress):
            compacted[name].add(group, stored)
    merged = {name: one.finish() for name, one in compacted.items()}
    if not any(one.differs for one in compacted.values()):
        return None
    run.lease.check()
    # A copy of that manifest, not one of a backup made now: its times are those of the old one.
    made = replace(
        manifest,
        id=layout.backup_id(parse_time(manifest.created, f"backup {manifest.id}"), run.random(3), manifest.id),
        tool=TOOL,
        stored_bytes=sum(one.stored_bytes for one in compacted.values()),
        streams=tuple(merged.get(stream.name, stream) for stream in manifest.streams),
        # The new objects are not locked.
        extra={**{k: v for k, v in manifest.extra.items() if k != LOCKED}, "compacted": {"backup": manifest.id}},
    )
    leases.commit(run.repository, made, run.lease)
    return made


class _Compacted:
    """A stream whose new segments come. They are listed only from the first one on that differs from an old one: else
    pages would be stored for a backup that is not made.
    """

    def __init__(self, repository: Repository, stream: StreamBackup) -> None:
        self._repository = repository
        self._stream = stream
        self._same = 0  # how many come first that are the old ones
        self._listed: ListWriter | None = None
        self.stored_bytes = 0

    @property
    def differs(self) -> bool:
        return self._listed is not None

    def add(self, group: Group, stored: StoredSegments) -> None:
        self.stored_bytes += stored.stored_bytes
        if self._listed is None:
            if stored.refs == group:
                self._same += len(group)
                return
            self._listed = list_writer(self._repository)
            self._listed.add(islice(self._stream.segments, self._same))
        self._listed.add(stored.refs)

    def finish(self) -> StreamBackup:
        if self._listed is None:
            return self._stream
        refs = self._listed.finish()
        if total_of(self._stream.segments) != total_of(refs):
            raise IntegrityError(f"stream {self._stream.name} is not the same after joining")
        return replace(self._stream, segments=refs)
