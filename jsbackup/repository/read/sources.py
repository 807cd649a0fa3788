"""Which source `latest` means, in a repository that several servers or accounts share. Pure.

    the source that is connected to, if there are backups of it
    else the only source that there is: a lost cluster is restored into another one, under another name
    else the only source of backups that the named profile made: it may lead to another server by now
    else it cannot be known, and the candidates are named

Imports have no source, and transformed backups are not what a server had: both count only if there is nothing else. So
do sources that never had a stream.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeGuard

from jsbackup.config import Glob
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.repository.inventory import Inventory
from jsbackup.repository.manifest import BackupSummary, Manifest, Selection, Source
from jsbackup.repository.origin import Origin, named_cluster, origin_of

if TYPE_CHECKING:
    from jsbackup.repository.keep.retention import TagRule

from collections.abc import Iterable
from enum import StrEnum

from jsbackup.repository.manifest import BackupResult

__all__ = [
    "FOLLOW_TAG",
    "Connected",
    "Grouping",
    "Life",
    "Wanted",
    "about_another_server",
    "can_replace",
    "counts",
    "group_of",
    "hollow_backups",
    "of_one_source",
    "refuse_another_server",
]


_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is requested of `latest`.

    `streams` and `exclude` are those of the command (no `streams`: all); if `all_needed`, a backup must have all of
    them. If it is `as_newest`, that some of these were deleted does not lead to an older one. `origin` is the connected
    source. `origins` and `tags` are from --origin and --tag, which the command has if it is `choosable`. `profile` is
    the named one; `usual` is the selection of its backups, which it means by "all".
    """

    streams: tuple[Glob, ...] = ()
    exclude: tuple[Glob, ...] = ()
    all_needed: bool = True
    as_newest: bool = False
    origin: Origin | None = None
    origins: tuple[Glob, ...] = ()
    tags: tuple[TagRule, ...] = ()
    choosable: bool = False
    profile: str = ""
    usual: Selection | None = None


def counts(backup: BackupSummary, tags: Sequence[TagRule], origins: Sequence[Glob]) -> bool:
    """Return whether --tag and --origin match: it has all of the tags, and one of the origins, if there are any."""
    known = not origins or any(origin_of(backup).matches(glob) for glob in origins)
    return known and all(tag.matches(backup) for tag in tags)


def of_one_source(backups: Sequence[BackupSummary], wanted: Wanted) -> tuple[list[BackupSummary], Origin | None]:
    """Return the backups of the chosen source, oldest first, and the source; None for imports.

    Raises UsageError if several sources are possible.
    """
    of_servers = [one for one in backups if one.is_of_a_server]
    if not of_servers:
        imports = [one for one in backups if one.transformed is None]
        return imports or list(backups), None
    found: dict[Origin, list[BackupSummary]] = {}
    for one in of_servers:
        found.setdefault(origin_of(one), []).append(one)
    if wanted.origin in found:
        return found[wanted.origin], wanted.origin
    lively = {origin: of_it for origin, of_it in found.items() if any(one.streams for one in of_it)} or found
    if len(lively) > 1 and wanted.profile:
        made = {origin: of_it for origin, of_it in lively.items() if any(_is_by(one, wanted) for one in of_it)}
        lively = made if len(made) == 1 else lively
    if len(lively) > 1:
        raise _ambiguous(lively, wanted)
    [(origin, of_it)] = lively.items()
    return of_it, origin


def _is_by(backup: BackupSummary, wanted: Wanted) -> bool:
    return backup.profile == wanted.profile


def _ambiguous(found: Mapping[Origin, Sequence[BackupSummary]], wanted: Wanted) -> UsageError:
    newest = sorted(found.items(), key=lambda item: item[1][-1].id, reverse=True)
    shown = "; ".join(
        f"{origin.words} (newest {of_it[-1].id}, by --origin {shlex.quote(str(origin))})"
        if wanted.choosable
        else f"{origin.words} (newest {of_it[-1].id})"
        for origin, of_it in newest[:_MOST_NAMED]
    )
    more = f"; and {len(newest) - _MOST_NAMED} more" if len(newest) > _MOST_NAMED else ""
    connected = "" if wanted.origin is None else f", and none is of {wanted.origin.words}, the connected server"
    hint = "Choose one with --origin or --tag, or name a backup by its id." if wanted.choosable else _BY_ID
    return UsageError(
        f"'latest' is ambiguous: backups of {len(found)} sources are in this repository{connected}: {shown}{more}",
        hint=hint,
    )


_BY_ID = "Name a backup by its id: 'jsbackup list' shows which is of which source."


# --- lives ---
#
# Whether backups of unnamed servers are of the same server. Their ids change with each start, so streams decide.
#
# A stream is the same as in a backup if it was created at the same moment, or (if it was restored) begins with a
# message of the same time, to the nanosecond. If no stream is the same, and the ids differ, there may be two servers.

_log = logging.getLogger(__name__)

_LOOKED_AT = 16


class _Reader(Protocol):
    """A repository."""

    def inventory(self) -> Inventory: ...
    def manifest(self, backup: str) -> Manifest: ...


@dataclass(frozen=True, slots=True)
class Life:
    """What distinguishes streams of the same name; `first_ns` is 0 if it has no message."""

    created: str
    first_ns: int = 0


@dataclass(frozen=True, slots=True)
class Connected(Source):
    """The connected source, and its streams if the server is unnamed."""

    lives: Mapping[str, Life] = field(default_factory=dict)


def about_another_server(
    repository: _Reader, source: Source, asked: Selection, tags: Mapping[str, str], *, lives: Mapping[str, Life]
) -> Iterator[str]:
    """Yield a warning if the backup before this one, with the same tags, seems to be of another server."""
    if named_cluster(source.cluster):
        return
    for earlier in islice(_backups_of(repository, source), _LOOKED_AT):
        before = earlier.selection
        if (before.streams, before.exclude, earlier.tags) != (asked.streams, asked.exclude, tags):
            continue
        manifest = _read(repository, earlier.id)
        if manifest is None or not any(stream.name in lives for stream in manifest.streams):
            return
        if manifest.source.cluster != source.cluster and not _goes_on(lives, manifest):
            yield (
                f"this seems to be another server than that of backup {earlier.id}: streams of the same names are "
                "different ones. 'latest' cannot distinguish servers without a name: set server_name or "
                "cluster { name } in their configurations, or use a repository or a --tag for each"
            )
        return


def is_unnamed(source: Source | None) -> TypeGuard[Connected]:
    """Return whether this is a connected server without a name, which has streams."""
    return isinstance(source, Connected) and bool(source.lives) and not named_cluster(source.cluster)


def refuse_another_server(repository: _Reader, chosen: Manifest, connected: Source | None) -> None:
    """Raise UsageError if the chosen backup seems to be of another server, and an earlier one does not."""
    if connected is None or not is_unnamed(connected):
        return
    if origin_of(chosen.source) != origin_of(connected) or chosen.source.cluster == connected.cluster:
        return
    if _goes_on(connected.lives, chosen):
        return
    for earlier in islice(_backups_of(repository, connected), _LOOKED_AT):
        manifest = None if earlier.id == chosen.id else _read(repository, earlier.id)
        if manifest is None or manifest.source.cluster == chosen.source.cluster:
            continue
        if _goes_on(connected.lives, manifest):
            raise UsageError(
                f"'latest' is ambiguous: the server has no name, its streams are those of backup {manifest.id}, and "
                f"{chosen.id}, the newest, looks like one of another server without a name",
                hint="Name the backup by its id. To tell servers apart, set server_name or cluster { name }.",
            )


def _goes_on(lives: Mapping[str, Life], manifest: Manifest) -> bool:
    for stream in manifest.streams:
        life = lives.get(stream.name)
        first_ns = stream.state.first_ns if stream.state.messages else 0
        if life is not None and (life.created == stream.created or 0 < life.first_ns == first_ns):
            return True
    return False


def _backups_of(repository: _Reader, source: Source) -> Iterator[BackupSummary]:
    """Yield the backups of a source, newest first."""
    try:
        backups = repository.inventory().summaries
    except JsBackupError as error:
        _log.warning("earlier backups cannot be read: %s", error.message)
        return
    for one in reversed(backups):
        if one.streams and one.is_of_a_server and origin_of(one) == origin_of(source):
            yield one


def _read(repository: _Reader, backup: str) -> Manifest | None:
    try:
        return repository.manifest(backup)
    except JsBackupError as error:
        _log.warning("backup %s: %s", backup, error.message)
        return None


# --- groups ---
#
# Groups of backups that succeed each other: of the same source, with the same selection (`retention.py`); and backups
# that show that a server has lost its streams.
#
# Such a backup has nothing of what an earlier one of the same streams had. New ones are marked as partial when they are
# made (`engine/backup/backup.py`). Those of older tools are marked as complete; here they are recognized by their
# numbers.


def find_hollow(line: Iterable[BackupSummary]) -> frozenset[str]:
    """Return the ids of backups without any stream after a complete one that had messages; `line` is oldest first.

    The backups must be of one group; for configurations, streams count instead of messages. The
    backups of an account that never had streams are fine, and so is one with `backup --allow-nothing`.
    """
    found: set[str] = set()
    full = False
    for backup in line:
        if backup.selection.allow_empty and not backup.streams:
            full = False
        elif backup.streams:
            something = backup.messages or backup.selection.config_only
            full = full or (bool(something) and backup.result is BackupResult.COMPLETE)
        elif full:
            found.add(backup.id)
    return frozenset(found)


# The tag of backups that `follow` made.
FOLLOW_TAG = "follow"


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
    selection = backup.selection
    if grouping is Grouping.SELECTION:
        words.append(f"streams {' '.join(selection.streams)}" if selection.streams else "all streams")
        words += [f"except {' '.join(selection.exclude)}"] if selection.exclude else []
        words += [] if selection.consumers else ["without consumers"]
    words += ["without messages"] if selection.config_only else []
    words += ["followed"] if FOLLOW_TAG in backup.tags else []
    return tuple(words) or ("all backups",)


def can_replace(one: BackupSummary, other: BackupSummary) -> bool:
    """Return whether a backup has all that the other, older one was to have: of the same source, with no fewer streams,
    and not transformed, unless the other is in the same way.
    """
    if one.imported != other.imported or one.transformed not in (None, other.transformed):
        return False
    if origin_of(one).parts != origin_of(other).parts:
        return False
    has, had = one.selection, other.selection
    if (had.consumers and not has.consumers) or (has.config_only and not had.config_only):
        return False
    if not set(has.exclude) <= set(had.exclude):
        return False
    return not has.streams or (
        bool(had.streams)
        and all(name in has.streams or (Glob(name).is_literal and has.selects(name)) for name in had.streams)
    )


def hollow_backups(backups: Iterable[BackupSummary]) -> frozenset[str]:
    """Return the ids of backups without any stream whose group (the narrowest) had some before; `backups` oldest
    first.
    """
    groups: dict[tuple[str, ...], list[BackupSummary]] = {}
    for one in backups:
        groups.setdefault(group_of(one, Grouping.SELECTION), []).append(one)
    return frozenset(backup for group in groups.values() for backup in find_hollow(group))
