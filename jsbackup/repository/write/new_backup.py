"""Earlier backups of streams, which the next one can build on, and the manifest of a new one."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from jsbackup.errors import JsBackupError
from jsbackup.failure import Failure
from jsbackup.repository import layout
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    BackupSummary,
    CopiedFrom,
    Manifest,
    Selection,
    SkippedStream,
    Source,
    StreamBackup,
)
from jsbackup.repository.objects import PageRef, folder_of
from jsbackup.repository.origin import Origin, origin_of
from jsbackup.repository.pages.segment_list import BrokenPage, parts_of
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["NewBackup", "StoredStream", "imported_streams", "previous_streams", "with_streams"]


# --- previous ---
#
# Earlier backups of streams, which the next one can build on.
#
# Usually the newest backup has all streams. But several jobs may each back up some of the streams, one every ten
# minutes and one at night, and several accounts may share a repository. So after the newest few, the newest of each
# kind are read: those with the same source and selection, and of these first those of the source that is backed up now.
#
# Nothing depends on what is found here. A manifest that cannot be read is skipped with a warning, and so are the
# streams of a page that cannot.

_log = logging.getLogger(__name__)

_NEWEST = 4  # manifests that are read in any case, until all streams are found
_OF_A_KIND = 2  # a stream may be missing in the newest one because it failed
_LOOK_BACK = 16  # manifests in all


def previous_streams(
    repository: Repository,
    incarnations: Mapping[str, str],
    *,
    origin: Origin | None = None,
    among: Sequence[BackupSummary] | None = None,
) -> dict[str, StreamBackup]:
    """Return the newest backup with messages of each stream that has one, by name; `incarnations` by name.

    `origin` is that of the streams. `among` are all its backups, if they are known: then no others are looked up.

    Raises:
        StoreError: the backups cannot be listed.
    """
    streams: dict[str, StreamBackup] = {}
    missing = dict(incarnations)
    candidates = _candidates(repository, origin) if among is None else _newest_of_each_kind(among, _has_messages)
    for backup in islice(candidates, _LOOK_BACK):
        for stream in _streams_of(repository, backup):
            if missing.get(stream.name) == stream.incarnation and stream.archive_format is not ArchiveFormat.CONFIG:
                del missing[stream.name]
                if stream.archive_format is not ArchiveFormat.OPAQUE:
                    streams[stream.name] = stream
        if not missing:
            break
    return streams


def imported_streams(repository: Repository) -> dict[tuple[str, str], StreamBackup]:
    """Return the streams of the newest imports, by name and incarnation."""
    streams: dict[tuple[str, str], StreamBackup] = {}
    imports = _newest_of_each_kind(_summaries(repository), lambda summary: summary.imported is not None)
    for backup in islice(imports, _LOOK_BACK):
        for stream in _streams_of(repository, backup):
            if stream.archive_format is not ArchiveFormat.CONFIG:
                streams.setdefault((stream.name, stream.incarnation), stream)
    return streams


def _candidates(repository: Repository, origin: Origin | None) -> Iterator[str]:
    newest = list(reversed(repository.backups()[-_NEWEST:]))
    yield from newest
    summaries = _summaries(repository)
    ours = [summary for summary in summaries if origin_of(summary) == origin] if origin is not None else []
    kinds = (_newest_of_each_kind(some, _has_messages) for some in (ours, summaries))
    for backup in dict.fromkeys(chain.from_iterable(kinds)):
        if backup not in newest:
            yield backup


def _has_messages(summary: BackupSummary) -> bool:
    return not summary.selection.config_only


def _summaries(repository: Repository) -> Sequence[BackupSummary]:
    try:
        return repository.inventory().summaries
    except JsBackupError as error:
        _log.warning("no earlier backups can be looked up: %s", error.message)
        return ()


def _newest_of_each_kind(summaries: Sequence[BackupSummary], wanted: Callable[[BackupSummary], bool]) -> Iterator[str]:
    kinds: Counter[object] = Counter()
    for summary in reversed(summaries):
        if not wanted(summary):
            continue
        asked = (summary.selection.streams, summary.selection.exclude)
        kind = (summary.cluster, summary.account, summary.imported, summary.transformed, asked)
        kinds[kind] += 1
        if kinds[kind] <= _OF_A_KIND:
            yield summary.id


def _streams_of(repository: Repository, backup: str) -> tuple[StreamBackup, ...]:
    try:
        manifest = repository.manifest(backup, in_part=True)
        streams = manifest.streams
        for lost in manifest.unlisted:
            _log.warning("backup %s: %s cannot be built on: %s", backup, lost.words, lost.reason)
        return tuple(stream for stream in streams if _has_sound_pages(repository, stream))
    except JsBackupError as error:
        _log.warning("backup %s cannot be built on: %s", backup, error.message)
        return ()


def _has_sound_pages(repository: Repository, stream: StreamBackup) -> bool:
    """Return whether it can be built on. Its pages are only read if an object in its folder was found damaged."""
    parts = parts_of(stream.segments)
    if not parts or not repository.objects.damaged_in(folder_of(parts[0])):
        return True
    pages = (part for part in stream.walk() if isinstance(part, PageRef | BrokenPage))
    return not any(isinstance(page, BrokenPage) or repository.objects.is_damaged(page) for page in pages)


# --- new backup ---
#
# Make the manifest of a new backup from stored and failed streams; the caller commits it under its lease.


@dataclass(frozen=True, slots=True)
class StoredStream:
    """A stored stream, for the manifest, with statistics. `others` counts messages that its configuration does not take
    any more, where that is a default one. `notes` are sentences about its messages.
    """

    stream: StreamBackup
    segments_reused: int = 0
    stored_bytes: int = 0
    seconds: float = 0.0
    incomplete: bool = False  # something is missing or unproved; the warnings say what
    others: int = 0
    notes: tuple[str, ...] = ()

    def with_copied(self, copied: tuple[CopiedFrom, ...]) -> StoredStream:
        """Return the result with how far the stream had copied from its sources."""
        return replace(self, stream=replace(self.stream, copied=copied)) if copied else self


@dataclass(frozen=True, slots=True)
class NewBackup:
    """A backup that is being made of `source` since `begun_ns`; `random` returns that many random bytes."""

    repository: Repository
    source: Source
    begun_ns: int
    clock_ns: Callable[[], int]
    random: Callable[[int], bytes]
    tags: Mapping[str, str]
    selection: Selection | None = None

    def manifest(self, stored: Sequence[StoredStream], failures: Sequence[Failure] = ()) -> Manifest:
        """Return the manifest, after everything was stored."""
        previous = next(reversed(self.repository.backups()), None)
        manifest = Manifest(
            id=layout.backup_id(self.begun_ns, self.random(3), previous),
            created=format_time(self.begun_ns),
            tool=TOOL,
            source=self.source,
            result=BackupResult.COMPLETE,
            tags=dict(self.tags),
            previous=previous,
            selection=self.selection,
            ended=format_time(self.clock_ns()),
            stored_bytes=sum(stream.stored_bytes for stream in stored),
        )
        return with_streams(manifest, stored, failures)


def with_streams(manifest: Manifest, stored: Sequence[StoredStream], failures: Sequence[Failure]) -> Manifest:
    """Return the manifest with these streams: partial if one failed, or is incomplete."""
    return replace(
        manifest,
        result=BackupResult.PARTIAL
        if failures or any(stream.incomplete for stream in stored)
        else BackupResult.COMPLETE,
        streams=tuple(stream.stream for stream in stored),
        skipped=tuple(SkippedStream(failure.name, failure.error.message) for failure in failures),
    )
