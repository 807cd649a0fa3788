"""Which backups belong together: those of one source, and among these the series of backups that succeed each other.

A *series* has the same source and the same selection (`retention.py`). A backup without any stream after one with
messages is *hollow*: it shows that the server had lost its streams. New ones are marked as partial when they are made
(`engine/backup/backup.py`).

Servers without a name have no source of their own, as their ids change with each start: their streams tell them apart.
A stream is the same as in a backup if it was created at the same moment, or (if it was restored) begins with a message
of the same time, to the nanosecond. If no stream is the same, and the ids differ, there may be two servers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, TypeGuard

from jsbackup.config import Glob
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.repository.manifest import BackupResult, BackupSummary, Manifest, Selection, Source
from jsbackup.repository.origin import named_cluster, origin_of

if TYPE_CHECKING:
    from jsbackup.repository.keep.retention import TagRule
    from jsbackup.repository.repository import Repository

__all__ = [
    "FOLLOW_TAG",
    "Connected",
    "Grouping",
    "Life",
    "about_another_server",
    "can_replace",
    "counts",
    "group_of",
    "hollow_backups",
    "is_unnamed",
    "read_if_possible",
    "refuse_another_server",
    "selection_words",
    "series_of",
]

_log = logging.getLogger(__name__)

# The tag of backups that `follow` made.
FOLLOW_TAG = "follow"
# How many earlier backups are compared with the streams of a server without a name.
_LOOKED_AT = 16


def counts(backup: BackupSummary, tags: Sequence[TagRule], origins: Sequence[Glob]) -> bool:
    """Return whether --tag and --origin match: it has all of the tags, and one of the origins, if there are any."""
    known = not origins or any(origin_of(backup).matches(glob) for glob in origins)
    return known and all(tag.matches(backup) for tag in tags)


# --- series ---


class Grouping(StrEnum):
    """What the backups of one group have in common."""

    SELECTION = "selection"  # the source and the selection
    SOURCE = "source"  # the source
    NONE = "none"  # nothing


def group_of(backup: BackupSummary, grouping: Grouping) -> tuple[str, ...]:
    """Return the words that name a backup's group, such as `cluster C1`, `account A`, `streams ORDERS*`."""
    words: list[str] = []
    if grouping is not Grouping.NONE:
        words += [f"import of {backup.imported}"] if backup.imported is not None else []
        words += [f"changed copies {backup.transformed}".rstrip()] if backup.transformed is not None else []
        words += [f"{what} {name}" for what, name in origin_of(backup).parts if name]
    if grouping is Grouping.SELECTION:
        words += selection_words(backup.selection)
    words += ["without messages"] if backup.selection.config_only else []
    words += ["followed"] if FOLLOW_TAG in backup.tags else []
    return tuple(words) or ("all backups",)


def selection_words(selection: Selection) -> list[str]:
    """Return the words that say which streams a backup was to have: `all streams`, `except TMP`."""
    words = [f"streams {' '.join(selection.streams)}" if selection.streams else "all streams"]
    words += [f"except {' '.join(selection.exclude)}"] if selection.exclude else []
    return words + ([] if selection.consumers else ["without consumers"])


def series_of(backups: Iterable[BackupSummary]) -> list[list[BackupSummary]]:
    """Return the backups by series, in the same order."""
    series: dict[tuple[str, ...], list[BackupSummary]] = {}
    for backup in backups:
        series.setdefault(group_of(backup, Grouping.SELECTION), []).append(backup)
    return list(series.values())


def can_replace(newer: BackupSummary, older: BackupSummary) -> bool:
    """Return whether a backup has all that an older one was to have: of the same source, with no fewer streams, and not
    transformed, unless the other is in the same way.
    """
    if newer.imported != older.imported or newer.transformed not in (None, older.transformed):
        return False
    has, wants = newer.selection, older.selection
    if origin_of(newer).parts != origin_of(older).parts or not set(has.exclude) <= set(wants.exclude):
        return False
    if (wants.consumers and not has.consumers) or (has.config_only and not wants.config_only):
        return False
    return not has.streams or (
        bool(wants.streams)
        and all(name in has.streams or (Glob(name).is_literal and has.selects(name)) for name in wants.streams)
    )


def hollow_backups(backups: Iterable[BackupSummary]) -> frozenset[str]:
    """Return the ids of backups without any stream after a complete one of their series that had messages; `backups`
    are oldest first.

    For configurations, streams count instead of messages. The backups of an account that never had streams are fine,
    and so is one with `backup --allow-nothing`.
    """
    hollow: set[str] = set()
    for series in series_of(backups):
        full = False
        for backup in series:
            if backup.streams:
                something = backup.messages or backup.selection.config_only
                full = full or (bool(something) and backup.result is BackupResult.COMPLETE)
            elif backup.selection.allow_empty:
                full = False
            elif full:
                hollow.add(backup.id)
    return frozenset(hollow)


# --- servers without a name ---


@dataclass(frozen=True, slots=True)
class Life:
    """What distinguishes streams of the same name; `first_ns` is 0 if it has no message."""

    created: str
    first_ns: int = 0


@dataclass(frozen=True, slots=True)
class Connected(Source):
    """The connected source, and its streams if the server is unnamed."""

    lives: Mapping[str, Life] = field(default_factory=dict)


def is_unnamed(source: Source | None) -> TypeGuard[Connected]:
    """Return whether this is a connected server without a name, which has streams."""
    return isinstance(source, Connected) and bool(source.lives) and not named_cluster(source.cluster)


def about_another_server(
    repository: Repository, source: Source, asked: Selection, tags: Mapping[str, str], *, lives: Mapping[str, Life]
) -> Iterator[str]:
    """Yield a warning if the backup before this one, with the same tags, seems to be of another server."""
    if named_cluster(source.cluster):
        return
    for earlier in _last_backups(repository, source):
        before = earlier.selection
        if (before.streams, before.exclude, earlier.tags) != (asked.streams, asked.exclude, tags):
            continue
        manifest = read_if_possible(repository, earlier.id)
        names = () if manifest is None else (stream.name for stream in manifest.streams)
        if manifest is not None and not lives.keys().isdisjoint(names) and _may_differ(source, lives, manifest):
            yield (
                f"this seems to be another server than that of backup {earlier.id}: streams of the same names are "
                "different ones. 'latest' cannot distinguish servers without a name: set server_name or "
                "cluster { name } in their configurations, or use a repository or a --tag for each"
            )
        return


def refuse_another_server(repository: Repository, chosen: Manifest, connected: Source | None) -> None:
    """Raise UsageError if the chosen backup seems to be of another server, and an earlier one does not."""
    if not is_unnamed(connected) or origin_of(chosen.source) != origin_of(connected):
        return
    if not _may_differ(connected, connected.lives, chosen):
        return
    for earlier in _last_backups(repository, connected):
        manifest = read_if_possible(repository, earlier.id)
        if manifest is None or manifest.source.cluster == chosen.source.cluster:
            continue
        if _has_any(manifest, connected.lives):
            raise UsageError(
                f"'latest' is ambiguous: the server has no name, its streams are those of backup {manifest.id}, and "
                f"{chosen.id}, the newest, looks like one of another server without a name",
                hint="Name the backup by its id. To tell servers apart, set server_name or cluster { name }.",
            )


def _may_differ(source: Source, lives: Mapping[str, Life], manifest: Manifest) -> bool:
    """Return whether the backup may be of another server without a name."""
    return manifest.source.cluster != source.cluster and not _has_any(manifest, lives)


def _has_any(manifest: Manifest, lives: Mapping[str, Life]) -> bool:
    """Return whether the backup has any of these streams."""
    for stream in manifest.streams:
        life = lives.get(stream.name)
        first_ns = stream.state.first_ns if stream.state.messages else 0
        if life is not None and (life.created == stream.created or 0 < life.first_ns == first_ns):
            return True
    return False


def _last_backups(repository: Repository, source: Source) -> Iterator[BackupSummary]:
    """Yield the last backups of a source, newest first."""
    try:
        backups = repository.inventory().summaries
    except JsBackupError as error:
        _log.warning("earlier backups cannot be read: %s", error.message)
        return
    servers = (backup for backup in reversed(backups) if backup.is_of_a_server)
    same = (backup for backup in servers if origin_of(backup) == origin_of(source))
    yield from islice((backup for backup in same if backup.streams), _LOOKED_AT)


def read_if_possible(repository: Repository, backup: str) -> Manifest | None:
    """Return the manifest of a backup; None, with a warning in the log, if it cannot be read."""
    try:
        return repository.manifest(backup)
    except JsBackupError as error:
        _log.warning("backup %s: %s", backup, error.message)
        return None
