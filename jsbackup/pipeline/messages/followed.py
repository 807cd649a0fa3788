"""The backups of one source in a repository, as a walk over them (`stream_walk.py`) takes them.

Followed are backups of one cluster and account, made from a server: no imports, no transformed ones, none dated in the
future.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

from jsbackup.config import Glob, is_chosen, parse_glob
from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.pipeline.messages.bounds import ALL
from jsbackup.pipeline.messages.segment_rows import segment_rows
from jsbackup.pipeline.messages.stream_walk import BackupWalk, FollowedBackup, MessageRange, ReadLimits, StreamOffsets
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import Manifest, SegmentRef, StreamBackup, is_dated_ahead
from jsbackup.repository.manifest_json import read_needed
from jsbackup.repository.origin import origin_of
from jsbackup.repository.read.latest import Wanted, of_one_source
from jsbackup.repository.read.sources import counts
from jsbackup.repository.repository import Repository
from jsbackup.times import parse_time

__all__ = ["all_messages", "find_origin", "make_walk", "sequences_of"]

# Manifests that are read at the same time.
_THREADS = 8


def find_origin(repository: Repository, origins: Sequence[Glob] = ()) -> str:
    """Return the source whose backups are followed; "" if there is none yet. Raises UsageError if there are several."""
    summaries = [
        summary
        for summary in repository.inventory().summaries
        if summary.is_of_a_server and counts(summary, (), origins)
    ]
    return str(of_one_source(summaries, Wanted())[1]) if summaries else ""


def make_walk(
    repository: Repository,
    start: StreamOffsets,
    present: Sequence[str],
    patterns: Sequence[str],
    *,
    told: Callable[[str], None],
    limits: ReadLimits | None = None,
    until: StreamOffsets | None = None,
) -> BackupWalk:
    """Return a walk from `start`, which has an origin, over the backups `present`, and their streams that names
    or patterns choose: all without any.
    """
    return BackupWalk(
        start,
        _of_origin(repository, start.origin, present),
        read=partial(_followed, repository, frozenset(present), patterns),
        sequences=partial(sequences_of, repository),
        told=told,
        limits=limits,
        until=until,
    )


def all_messages(
    repository: Repository, patterns: Sequence[str] = (), origins: Sequence[Glob] = ()
) -> list[MessageRange]:
    """Return each message that any backup of one source has of the chosen streams, once: from the first that has it.

    Raises:
        UsageError: there is no such backup, or there are several sources.
        IntegrityError, KeyUnavailable, StoreError, UnsupportedError: a backup cannot be read.
    """
    origin = find_origin(repository, origins)
    if not origin:
        raise UsageError("there is no backup of a server yet")
    walk = make_walk(
        repository,
        replace(StreamOffsets(repository.descriptor.id), origin=origin),
        repository.backups(),
        patterns,
        told=_nothing_is_lost,
    )
    walk.run()
    return walk.ranges


def _nothing_is_lost(sentence: str) -> None:
    raise AssertionError(sentence)  # a walk from the beginning has forgotten nothing


def _of_origin(repository: Repository, origin: str, present: Collection[str]) -> dict[str, int]:
    """Return the backups of an origin, with when each was finished (Unix time in nanoseconds); and those that cannot be
    read, with 0.
    """
    inventory, now_ns, glob = repository.inventory(), time.time_ns(), Glob(origin)
    ours = dict.fromkeys((backup.id for backup in inventory.unreadable), 0)
    for summary in inventory.summaries:
        if summary.is_of_a_server and origin_of(summary).matches(glob) and not is_dated_ahead(summary.created, now_ns):
            ours[summary.id] = parse_time(summary.ended or summary.created)
    stored = frozenset(present)
    return {backup: ended_ns for backup, ended_ns in ours.items() if backup in stored}


def _followed(
    repository: Repository, stored: Collection[str], patterns: Sequence[str], backups: Sequence[str]
) -> Iterator[FollowedBackup]:
    """Yield those of the backups that are not forgotten. `stored` are all that there are."""
    for manifest in in_order([partial(_read, repository, patterns, backup) for backup in backups], _THREADS):
        if manifest is not None:
            streams = tuple(stream for stream in manifest.streams if _follows(stream, patterns))
            missing = manifest.previous if manifest.previous not in stored else None
            yield FollowedBackup(manifest.id, missing or "", streams)


def _read(repository: Repository, patterns: Sequence[str], backup: str) -> Manifest | None:
    literal = all(parse_glob(pattern).is_literal for pattern in patterns)
    needed = [[pattern] for pattern in patterns] if literal else ()
    try:
        return read_needed(repository, backup, needed, in_part=False)
    except UsageError:  # forgotten since it was listed
        return None


def _follows(stream: StreamBackup, patterns: Sequence[str]) -> bool:
    if not is_chosen(stream.name, [parse_glob(pattern) for pattern in patterns], ()):
        return False
    if stream.unknown_format and stream.name in patterns:
        raise UnsupportedError(stream.unknown_format)
    return stream.archive_format.has_messages


def sequences_of(repository: Repository, ref: SegmentRef) -> Sequence[int]:
    """Return the sequences of a segment, as walks take them."""
    batches = segment_rows(repository, ref, ("sequence",), ALL, stream="", backup="")
    return [sequence for batch in batches for sequence in batch.column("sequence").to_pylist()]
