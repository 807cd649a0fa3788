"""Earlier backups of streams, which the next one can build on.

Usually the newest backup has all streams. But several jobs may each back up some of the streams, one every ten minutes
and one at night, and several accounts may share a repository. So after the newest few, the newest of each kind are
read: those with the same source and selection.

Nothing depends on what is found here. A manifest that cannot be read is skipped with a warning.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from jsbackup.errors import JsBackupError
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
from jsbackup.repository.pages.segment_list import BrokenPage
from jsbackup.repository.refs import PageRef
from jsbackup.repository.repository import Repository
from jsbackup.repository.summary import BackupSummary

__all__ = ["imported_streams", "previous_streams"]

_log = logging.getLogger(__name__)

_NEWEST = 4  # manifests that are read in any case, until all streams are found
_OF_A_KIND = 2  # a stream may be missing in the newest one because it failed
_LOOK_BACK = 16  # manifests in all


def previous_streams(repository: Repository, incarnations: Mapping[str, str]) -> dict[str, StreamBackup]:
    """Return the newest backup with messages of each stream that has one, by name; `incarnations` by name.

    Raises:
        StoreError: the backups cannot be listed.
    """
    found: dict[str, StreamBackup] = {}
    missing = dict(incarnations)
    for backup in islice(_candidates(repository), _LOOK_BACK):
        for stream in _streams_of(repository, backup):
            if missing.get(stream.name) == stream.incarnation and stream.archive_format is not ArchiveFormat.CONFIG:
                del missing[stream.name]
                if stream.archive_format is not ArchiveFormat.OPAQUE:
                    found[stream.name] = stream
        if not missing:
            break
    return found


def imported_streams(repository: Repository) -> dict[tuple[str, str], StreamBackup]:
    """Return the streams of the newest imports, by name and incarnation."""
    found: dict[tuple[str, str], StreamBackup] = {}
    for backup in islice(_newest_of_each_kind(repository, lambda summary: summary.imported is not None), _LOOK_BACK):
        for stream in _streams_of(repository, backup):
            if stream.archive_format is not ArchiveFormat.CONFIG:
                found.setdefault((stream.name, stream.incarnation), stream)
    return found


def _candidates(repository: Repository) -> Iterator[str]:
    newest = list(reversed(repository.backups()[-_NEWEST:]))
    yield from newest
    for backup in _newest_of_each_kind(repository, lambda summary: not summary.selection.config_only):
        if backup not in newest:
            yield backup


def _newest_of_each_kind(repository: Repository, wanted: Callable[[BackupSummary], bool]) -> Iterator[str]:
    try:
        summaries = repository.inventory().summaries
    except JsBackupError as error:
        _log.warning("no earlier backups can be looked up: %s", error.message)
        return
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
        streams = repository.manifest(backup).streams
        if not repository.objects.knows_damage:
            return streams
        return tuple(stream for stream in streams if _has_sound_pages(repository, stream))
    except JsBackupError as error:
        _log.warning("backup %s cannot be built on: %s", backup, error.message)
        return ()


def _has_sound_pages(repository: Repository, stream: StreamBackup) -> bool:
    pages = (part for part in stream.walk() if isinstance(part, PageRef | BrokenPage))
    return not any(isinstance(page, BrokenPage) or repository.objects.is_damaged(page) for page in pages)
