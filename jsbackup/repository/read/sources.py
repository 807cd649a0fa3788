"""Which source `latest` means, in a repository that several servers or accounts share. Pure.

    the source that is connected to, if there are backups of it
    else the only source that there is: a lost cluster is restored into another one, under another name
    else the only source of backups that the named profile made: it may lead to another server by now
    else it cannot be known, and the candidates are named

Imports have no source, and transformed backups are not what a server had: both count only if there is nothing else. So
do sources that never had a stream.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jsbackup.config import Glob
from jsbackup.errors import UsageError
from jsbackup.repository.manifest import Selection
from jsbackup.repository.origin import Origin, origin_of
from jsbackup.repository.summary import BackupSummary

if TYPE_CHECKING:
    from jsbackup.repository.keep.retention import TagRule

__all__ = ["Wanted", "counts", "of_one_source"]

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
