"""The status of a repository: the facts that `status` shows and checks (`health_rules.py`).

It has to be fast with thousands of backups, so it reads the catalog as `list` does, the newest manifests of each
series, and one small document for each of the last checks. It also lists the objects, and looks whether the newest
backups have all of theirs, as long as they are few: a listing has a page for each thousand of them. Beyond that, totals
of objects are only known if they are asked for, and missing ones are what `verify` finds.

**Series**: which there are, what the newest backup of each has, and which are covered by others.

A *series* (`line` in the code) has backups that succeed each other, as in retention (`retention.py`): of the same
cluster, account and domain (`origin.py`), with the same selection. Imports, transformed backups and backups of
configurations are in no series. A series is *covered* by another one of the same source whose newest complete backup is
newer and has all of its streams: so a backup of one stream by hand neither replaces the backup of all, nor has to be
repeated. A series of all streams, which includes new ones, is only covered by another one of all, and one with
consumers only by one with consumers. Streams that a backup leaves out are not covered, on purpose or not.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from jsbackup.config import Glob
from jsbackup.errors import IntegrityError, JsBackupError, KeyUnavailable, StoreError, UnsupportedError, UsageError
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.checks.ledger import DrillOutcome, VerifyOutcome, read_runs
from jsbackup.repository.checks.manifest_chain import Gap
from jsbackup.repository.checks.verify_run import check_readers, check_writers
from jsbackup.repository.crypto.readers import Flaw
from jsbackup.repository.inventory import Inventory, UnreadableBackup, find_missing
from jsbackup.repository.keep.damage import LostObjects, known_damage
from jsbackup.repository.keep.leases import LeaseText, SeenLease, is_gone, list_leases, read_lease
from jsbackup.repository.keep.prune import Marks, read_marks
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
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store

__all__ = ["BackupSeries", "RepositoryStatus", "StoredTotals", "take_status"]

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
        return tuple(
            backup for backup in self.backups if backup.result is BackupResult.COMPLETE and backup.id not in self.hollow
        )

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
    skipped = {skip.name for skip in newest.skipped}
    # Streams skipped before are not new, and streams skipped now are not gone.
    skipped_before = set() if before is None else {skip.name for skip in before.skipped}
    complete = newest if line.newest_complete is None else manifests[line.newest_complete.id]
    return replace(
        line,
        streams=tuple(_size_of(stream) for stream in newest.streams),
        skipped=newest.skipped,
        warned=tuple(s.name for s in newest.streams if s.remarks) if newest.result is BackupResult.PARTIAL else (),
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


_log = logging.getLogger(__name__)

# Requests mostly wait. Each thread holds one manifest.
_THREADS = 8
_MOST_CHECKS = 60
_MOST_LEASES = 20
# Twenty pages of a listing in S3, and about half a second to read as many entries of pages.
_MOST_OBJECTS = 20_000


@dataclass(frozen=True, slots=True)
class StoredTotals:
    """What is stored of streams; None if there was too much to list. *Unused* objects are those that the last prune
    found.

    `interrupted_runs` left receipts: they were stopped, and their objects will be reused or pruned.
    """

    objects: int | None = 0
    bytes: int | None = 0
    unused_objects: int = 0
    unused_bytes: int = 0
    interrupted_runs: int = 0


@dataclass(frozen=True, slots=True)
class SeenWork:
    """The lease of a command. `live`: it has not expired, and its process, if it is of this machine, has not ended.
    `expires_ns` is Unix time by the store's clock.
    """

    text: LeaseText | None
    exclusive: bool
    live: bool
    expires_ns: int


@dataclass(frozen=True, slots=True)
class RepositoryStatus:
    """The status at `now_ns`. Checks are newest first, lines are ordered by their words.

    `existing` are all ids. `ahead` are backups dated in the future. `removed` were removed or replaced by something
    else than jsbackup. `lost` counts, by backup, objects of the newest backups that are missing or have another size,
    if the objects were listed; `damaged` are all backups that are known to be damaged. `keys` are key files of readers
    and records of writers that are missing or damaged. `free_bytes` is what a folder's file system has left; None in
    S3, and where nothing can be stored.
    """

    now_ns: int
    existing: frozenset[str]
    lines: tuple[BackupSeries, ...]
    others: int  # backups that are in no series
    ahead: tuple[BackupSummary, ...]
    unreadable: tuple[UnreadableBackup, ...]
    verifies: tuple[VerifyOutcome, ...]
    drills: tuple[DrillOutcome, ...]
    stored: StoredTotals
    work: tuple[SeenWork, ...]
    warnings: tuple[str, ...] = ()
    removed: tuple[Gap, ...] = ()
    lost: Mapping[str, int] = field(default_factory=dict)
    damaged: frozenset[str] = frozenset()
    keys: tuple[Flaw, ...] = ()
    free_bytes: int | None = None

    def drills_of(self, origin: Origin | None) -> list[DrillOutcome]:
        """Return the drills of backups of this source; with None, of the sources of all series. Newest first.

        A drill without a recorded source counts for all.
        """
        known = {line.origin for line in self.lines} if origin is None else {origin}
        return [drill for drill in self.drills if drill.origin is None or drill.origin in known or not known]

    @property
    def backups(self) -> list[BackupSummary]:
        """The backups of all series, oldest first."""
        return sorted((backup for line in self.lines for backup in line.backups), key=lambda backup: backup.id)

    @property
    def newest_complete(self) -> BackupSummary | None:
        newest = [line.newest_complete for line in self.lines]
        return max((summary for summary in newest if summary is not None), key=lambda summary: summary.id, default=None)


def take_status(
    repository: Repository,
    *,
    now_ns: int,
    tags: Sequence[TagRule] = (),
    origins: Sequence[Glob] = (),
    all_objects: bool = False,
) -> RepositoryStatus:
    """Take the status. Only backups with all of `tags`, and of one of `origins`, if any are given, count.

    With `all_objects` the objects are listed however many there are. Nothing is written.

    Raises:
        KeyUnavailable: nothing can be read without a key that was not given.
        StoreError: the store does not answer.
    """
    inventory = repository.inventory()
    lines, others, ahead = find_series(inventory, now_ns, tags, origins)
    ids = {summary.id for summary in inventory.summaries} | {backup.id for backup in inventory.unreadable}
    damaged, unknown = known_damage(repository, ids)
    leases = list_leases(repository.store)
    manifests = _newest_manifests(repository, lines)
    stored, sizes = _stored(repository, None if all_objects else _most_listed(manifests.values()))
    lost = {} if sizes is None else _lost(repository, manifests, sizes)
    runs = _interrupted_runs(repository, {lease.key.id for lease in leases if lease.is_live(now_ns / 1e9)})
    return RepositoryStatus(
        now_ns=now_ns,
        existing=frozenset(ids),
        lines=with_coverage([with_streams(line, manifests) for line in lines]),
        others=others,
        ahead=ahead,
        unreadable=inventory.unreadable,
        verifies=tuple(read_runs(VerifyOutcome, repository.documents, _MOST_CHECKS)),
        drills=tuple(read_runs(DrillOutcome, repository.documents, _MOST_CHECKS)),
        stored=replace(stored, interrupted_runs=runs),
        work=tuple(_work(repository, lease, now_ns) for lease in leases[:_MOST_LEASES]),
        warnings=(*inventory.warnings, *unknown),
        removed=tuple(find_missing(repository.documents)) if inventory.gaps else (),
        lost=lost,
        damaged=damaged | lost.keys(),
        keys=(
            *check_writers(repository),
            *check_readers(repository),
        ),
        free_bytes=_free_bytes(repository.store),
    )


def _free_bytes(store: Store) -> int | None:
    try:
        room = store.room()
    except StoreError:  # a read-only mount, say
        return None
    return None if room is None else room[0]


def _newest_manifests(repository: Repository, lines: Sequence[BackupSeries]) -> dict[str, Manifest | None]:
    """Return the manifests of the two newest backups of each series, and of its newest complete one; None if
    unreadable.
    """
    wanted: list[str] = []
    for line in lines:
        wanted += [backup.id for backup in line.backups[-2:]]
        wanted += [] if line.newest_complete is None else [line.newest_complete.id]
    ids = list(dict.fromkeys(wanted))
    read = in_order([partial(_manifest, repository, backup) for backup in ids], _THREADS)
    return dict(zip(ids, read, strict=True))


def _manifest(repository: Repository, backup: str) -> Manifest | None:
    try:
        return repository.manifest(backup)
    except UsageError:  # forgotten since it was listed
        return None
    except (IntegrityError, UnsupportedError, KeyUnavailable) as error:
        _log.warning("backup %s: %s", backup, error.message)
        return None


def _lost(repository: Repository, manifests: Mapping[str, Manifest | None], sizes: Mapping[int, int]) -> dict[str, int]:
    """Count the objects that are missing or have another size, for backups that were not forgotten meanwhile.

    `sizes` are by the hash of the key.
    """
    lost = LostObjects(repository, lambda ref: sizes.get(hash(ref.key)) != ref.size)
    counts = {backup: lost.count(manifest) for backup, manifest in manifests.items() if manifest is not None}
    return {backup: count for backup, count in counts.items() if count and _manifest(repository, backup) is not None}


def _most_listed(manifests: Iterable[Manifest | None]) -> int:
    """Return how many objects may be listed: none if a manifest alone says that there are more."""
    named = (sum(len(stream.segments) for stream in manifest.streams) for manifest in manifests if manifest is not None)
    return _MOST_OBJECTS if max(named, default=0) <= _MOST_OBJECTS else 0


def _stored(repository: Repository, most: int | None) -> tuple[StoredTotals, dict[int, int] | None]:
    """Return the totals, and the size of each object by the hash of its key, if there are not more than `most`."""
    marks = _marks(repository)
    sizes: dict[int, int] = {}
    size = unused = unused_size = 0
    for info in repository.store.list(layout.SEGMENTS) if most != 0 else ():
        sizes[hash(info.key)] = info.size
        size += info.size
        if info.key in marks.unused:
            unused, unused_size = unused + 1, unused_size + info.size
        if most is not None and len(sizes) > most:
            break
    if most is None or len(sizes) <= most != 0:
        return StoredTotals(len(sizes), size, unused, unused_size), sizes
    return StoredTotals(None, None, len(marks.unused), sum(info.size for info in marks.unused.values())), None


def _interrupted_runs(repository: Repository, live_runs: Collection[str]) -> int:
    receipts = (layout.parse_receipt_key(info.key) for info in repository.documents.list(layout.RECEIPTS))
    return len({key.run for key in receipts if key is not None} - set(live_runs))


def _marks(repository: Repository) -> Marks:
    try:
        return read_marks(repository.store)
    except UnsupportedError as error:
        _log.warning("unused objects are not known: %s", error.message)
        return Marks((), {})


def _work(repository: Repository, lease: SeenLease, now_ns: int) -> SeenWork:
    text: LeaseText | None = None
    try:
        text = read_lease(repository.store, lease)
    except StoreError:
        pass
    except JsBackupError as error:
        _log.info("%s", error.message)
    has_ended = text is not None and text.process is not None and is_gone(text.process)
    live = lease.is_live(now_ns / 1e9) and not has_ended
    return SeenWork(text, lease.key.exclusive, live, round(lease.expires_seconds * 1e9))
