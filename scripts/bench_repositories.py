"""Repositories of any number of segments, for the bench of scale: real ones, made quickly.

1. A real server gets the messages, three to a segment, and a real backup reads them into segments of the usual size.
2. Several processes read these and write them as small ones (`SegmentWriter`, 8 KiB) into another repository. Its
   manifest is that of the backup with other segments, so the server's streams are those that it says.
3. Earlier backups have fewer and fewer segments of the first stream; each ends with a segment that no other one has, as
   real ones do whose last segment was joined with later messages. So a prune finds something to delete. In all other
   streams nothing changes.

Nothing is flushed to the disk meanwhile.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context

from jsbackup.config import environment
from jsbackup.config.repository import s3_settings
from jsbackup.engine.read.increment import UNCHANGED
from jsbackup.repository import layout
from jsbackup.repository.inventory import note_backup
from jsbackup.repository.manifest import (
    ArchiveFormat,
    Captured,
    Manifest,
    ReadAs,
    Reading,
    SegmentRef,
    StreamBackup,
    total_of,
)
from jsbackup.repository.manifest_json import encode_manifest
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.stores import posix
from jsbackup.stores.url import open_store
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["MESSAGES_PER_SEGMENT", "MESSAGE_BYTES", "SEGMENT_BYTES", "Extent", "recut"]

SEGMENT_BYTES = 8 << 10
MESSAGES_PER_SEGMENT = 3
MESSAGE_BYTES = 2600  # with subject and header three of them fit, and four do not

_PROCESSES = max(2, len(os.sched_getaffinity(0)))
_EARLIER_SECONDS = 3600  # from one backup to the next
_LEAST_PIECES = 4


@dataclass(frozen=True, slots=True)
class Extent:
    """What a repository is to have. `segments` are those of all streams."""

    segments: int
    streams: int
    backups: int

    @property
    def segments_per_stream(self) -> int:
        return max(1, self.segments // self.streams)

    @property
    def messages_per_stream(self) -> int:
        return MESSAGES_PER_SEGMENT * self.segments_per_stream


@dataclass(frozen=True, slots=True)
class _Piece:
    """Adjacent segments of a stream that are cut anew."""

    source: str
    target: str
    folder: str
    refs: tuple[SegmentRef, ...]


def recut(source: str, target: str, backups: int) -> Manifest:
    """Make the repository `target` with the newest backup of `source` in small segments, and with so many backups.
    Return the newest.
    """
    whole = _opened(source).find("latest")
    made = Repository.create(
        open_store(target, s3_settings({}, environment())),
        repository_id=secrets.token_hex(16),
        created=format_time(time.time_ns()),
        tool=TOOL,
        segment_bytes=SEGMENT_BYTES,
    )
    newest = replace(whole, streams=tuple(_streams(source, target, whole)))
    earlier = list(_earlier(made.objects, newest, backups - 1))
    previous = sha256 = None
    for manifest in earlier:
        paged = made.paged(replace(manifest, previous=previous, previous_sha256=sha256))
        stored = made.documents.put(layout.manifest_key(manifest.id), encode_manifest(paged))
        note_backup(made.documents, manifest.id, previous, made.witness_of(stored.sha256))
        previous, sha256 = manifest.id, stored.sha256
    made.commit(replace(newest, previous=previous))
    os.sync()
    return newest


@cache
def _opened(location: str) -> Repository:
    _unflushed()
    return Repository.open(open_store(location, s3_settings({}, environment())))


def _unflushed() -> None:
    posix.fsync = lambda _file: None


def _streams(source: str, target: str, whole: Manifest) -> Iterator[StreamBackup]:
    pieces, counts = [], []
    for stream in whole.streams:
        folder = layout.stream_folder(stream.name, stream.incarnation)
        made = [_Piece(source, target, folder, (ref,)) for ref in stream.segments]
        counts.append(len(made))
        pieces += made
    if len(pieces) <= _LEAST_PIECES:
        parts = iter([_recut(piece) for piece in pieces])
        yield from _joined(whole, counts, parts)
        return
    # Not forked: threads of pyarrow do not survive that.
    with ProcessPoolExecutor(_PROCESSES, mp_context=get_context("spawn")) as pool:
        chunk = max(1, len(pieces) // (_PROCESSES * 8))
        yield from _joined(whole, counts, pool.map(_recut, pieces, chunksize=min(chunk, 64)))


def _joined(whole: Manifest, counts: Sequence[int], parts: Iterator[list[SegmentRef]]) -> Iterator[StreamBackup]:
    for stream, count in zip(whole.streams, counts, strict=True):
        yield replace(stream, segments=tuple(ref for _ in range(count) for ref in next(parts)))


def _recut(piece: _Piece) -> list[SegmentRef]:
    reader = SegmentReader(_opened(piece.source).objects)
    with closing(SegmentWriter(_opened(piece.target).objects, piece.folder)) as writer:
        for ref in piece.refs:
            for batch in reader.read(ref):
                writer.add(batch)
        return writer.finish()


def _earlier(objects: Objects, newest: Manifest, count: int) -> Iterator[Manifest]:
    """Yield so many backups before `newest`, oldest first."""
    first, *others = newest.streams
    nothing = Reading(ReadAs.INCREMENT, UNCHANGED)
    others = [replace(one, archive_format=ArchiveFormat.MESSAGES, read=nothing) for one in others]
    begun = time.time_ns() - (count + 1) * _EARLIER_SECONDS * 10**9
    for number in range(count):
        at = begun + number * _EARLIER_SECONDS * 10**9
        stream = _ending_earlier(objects, first, count - number)
        created = format_time(at)
        yield replace(
            newest,
            id=layout.backup_id(at, secrets.token_bytes(3)),
            created=created,
            ended=created,
            streams=(stream, *others),
        )


def _ending_earlier(objects: Objects, stream: StreamBackup, segments: int) -> StreamBackup:
    """The stream as it was so many segments before its end, where the last one then had one message only."""
    kept = max(1, len(stream.segments) - segments)
    if kept == len(stream.segments):
        return stream
    folder = layout.stream_folder(stream.name, stream.incarnation)
    with closing(SegmentWriter(objects, folder)) as writer:
        batch = next(iter(SegmentReader(objects).read(stream.segments[kept])))
        writer.add(batch.slice(0, 1))
        refs = (*stream.segments[:kept], *writer.finish())
    total = total_of(refs)
    state = replace(
        stream.state, messages=total.messages, bytes=total.bytes, last_seq=total.last_seq, last_ns=refs[-1].max_ns
    )
    captured = Captured.of(total, stream.captured.begun, stream.captured.ended)
    return replace(stream, segments=refs, digest=total.digest, captured=captured, state=state)
