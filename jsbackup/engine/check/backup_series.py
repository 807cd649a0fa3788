"""Series of backups: which there are, what the newest backup of each has, and which are covered by others.

A *series* (`line` in the code) has backups that succeed each other, as in retention (`retention.py`): of the same
cluster, account and domain (`origin.py`), with the same selection. Imports, transformed backups and backups of
configurations are in no series. A series is *covered* by another one of the same source whose newest complete backup is
newer and has all of its streams: so a backup of one stream by hand neither replaces the backup of all, nor has to be
repeated. A series of all streams, which includes new ones, is only covered by another one of all, and one with
consumers only by one with consumers. Streams that a backup leaves out are not covered, on purpose or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jsbackup.config import Glob
from jsbackup.repository.inventory import Inventory
from jsbackup.repository.keep.retention import TagRule
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    BackupSummary,
    Manifest,
    Selection,
    SkippedStream,
    StreamBackup,
    is_dated_ahead,
)
from jsbackup.repository.origin import Origin, origin_of
from jsbackup.repository.pages.segment_list import size_of
from jsbackup.repository.read.sources import Grouping, counts, group_of, hollow_backups

__all__ = ["BackupSeries", "StreamSize", "find_series", "with_coverage", "with_streams"]

# The newest series of each source only: it has a few, unless selections change all the time. Of a thousand sources,
# which may be the accounts of a system, none is left out.
_MOST_LINES = 50


@dataclass(frozen=True, slots=True)
class StreamSize:
    """A stream in the newest backup. `stored_bytes` is the size of its objects, including shared ones."""

    name: str
    messages: int
    bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class BackupSeries:
    """Backups that succeed each other, oldest first, none dated in the future. `words` names the series.

    `streams`, `skipped` and `warned` (streams that were read incompletely) are of the newest backup; `gone` and `new`
    compare it with the one before. They are empty if its manifest cannot be read.
    """

    words: str
    origin: Origin
    selection: Selection
    backups: tuple[BackupSummary, ...]
    streams: tuple[StreamSize, ...] = ()
    skipped: tuple[SkippedStream, ...] = ()
    warned: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    complete_streams: tuple[str, ...] = ()  # of the newest complete backup
    covered: bool = False
    hollow: frozenset[str] = frozenset()  # backups without any stream, although earlier ones had some

    @property
    def title(self) -> str:
        """The words, with the name of an account that they name by its key."""
        origin = self.origin
        if not origin.account_name:
            return self.words
        account = f"account {origin.account}"
        return self.words.replace(account, f"{account} ({origin.account_name})", 1)

    @property
    def newest(self) -> BackupSummary:
        return self.backups[-1]

    @property
    def complete(self) -> tuple[BackupSummary, ...]:
        return tuple(one for one in self.backups if one.result is BackupResult.COMPLETE and one.id not in self.hollow)

    @property
    def newest_complete(self) -> BackupSummary | None:
        return next(reversed(self.complete), None)

    @property
    def leaves_out(self) -> tuple[Glob, ...]:
        return tuple(map(Glob, self.selection.exclude))


def find_series(
    inventory: Inventory, now_ns: int, tags: Sequence[TagRule], origins: Sequence[Glob]
) -> tuple[list[BackupSeries], int, tuple[BackupSummary, ...]]:
    """Return the series, without their streams; the number of backups that are in none; and those dated in the
    future.
    """
    groups: dict[tuple[str, ...], list[BackupSummary]] = {}
    others = 0
    ahead: list[BackupSummary] = []
    for backup in inventory.summaries:
        if not _counts(backup, tags, origins):
            others += 1
        elif is_dated_ahead(backup.created, now_ns):
            ahead.append(backup)
        else:
            groups.setdefault(group_of(backup, Grouping.SELECTION), []).append(backup)
    newest: list[tuple[tuple[str, ...], list[BackupSummary]]] = []
    taken: Counter[Origin] = Counter()
    for words, backups in sorted(groups.items(), key=lambda item: item[1][-1].id, reverse=True):
        origin = origin_of(backups[-1])
        taken[origin] += 1
        if taken[origin] > _MOST_LINES:
            others += len(backups)
        else:
            newest.append((words, backups))
    lines = [
        BackupSeries(
            words=", ".join(words),
            origin=origin_of(backups[-1]),
            selection=backups[-1].selection,
            backups=tuple(backups),
            hollow=hollow_backups(backups),
        )
        for words, backups in newest
    ]
    return sorted(lines, key=lambda line: line.words), others, tuple(ahead)


def _counts(backup: BackupSummary, tags: Sequence[TagRule], origins: Sequence[Glob]) -> bool:
    """Return whether it is in a series: from a server, with messages, and chosen."""
    return backup.is_of_a_server and not backup.selection.config_only and counts(backup, tags, origins)


def with_streams(line: BackupSeries, manifests: Mapping[str, Manifest | None]) -> BackupSeries:
    """Return the series with what the manifests of its newest backups say."""
    newest = manifests[line.newest.id]
    if newest is None:
        return line
    names = {stream.name for stream in newest.streams}
    before = manifests[line.backups[-2].id] if len(line.backups) > 1 else None
    known = names if before is None else {stream.name for stream in before.streams}
    skipped = {one.name for one in newest.skipped}
    # Streams skipped before are not new, and streams skipped now are not gone.
    skipped_before = set() if before is None else {one.name for one in before.skipped}
    complete = newest if line.newest_complete is None else manifests[line.newest_complete.id]
    return replace(
        line,
        streams=tuple(_size_of(stream) for stream in newest.streams),
        skipped=newest.skipped,
        warned=tuple(s.name for s in newest.streams if s.warnings) if newest.result is BackupResult.PARTIAL else (),
        new=tuple(sorted(names - known - skipped_before)),
        gone=tuple(sorted(known - names - skipped)),
        complete_streams=() if complete is None else tuple(stream.name for stream in complete.streams),
    )


def _size_of(stream: StreamBackup) -> StreamSize:
    stored = size_of(stream.segments) + sum(ref.size for ref in stream.opaque)
    held = stream.captured if stream.archive_format is not ArchiveFormat.OPAQUE else stream.state
    return StreamSize(stream.name, held.messages, held.bytes, stored)


def with_coverage(lines: Sequence[BackupSeries]) -> tuple[BackupSeries, ...]:
    """Return the series, each with whether another one covers it."""
    return tuple(
        replace(line, covered=any(_covers(other, line) for other in lines if other is not line)) for line in lines
    )


def _covers(other: BackupSeries, line: BackupSeries) -> bool:
    ours, theirs = line.newest_complete or line.newest, other.newest_complete
    if theirs is None or theirs.id <= ours.id or other.origin != line.origin or not line.complete_streams:
        return False
    if (other.selection.streams and not line.selection.streams) or (
        line.selection.consumers and not other.selection.consumers
    ):
        return False
    return set(line.complete_streams) <= set(other.complete_streams)
