"""Whether backups of unnamed servers are of the same server. Their ids change with each start, so streams decide.

A stream is the same as in a backup if it was created at the same moment, or (if it was restored) begins with a message
of the same time, to the nanosecond. If no stream is the same, and the ids differ, there may be two servers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, TypeGuard

from jsbackup.errors import JsBackupError, UsageError
from jsbackup.repository.inventory import Inventory
from jsbackup.repository.manifest import Manifest, Selection, Source
from jsbackup.repository.origin import named_cluster, origin_of
from jsbackup.repository.summary import BackupSummary

__all__ = ["Connected", "Life", "about_another_server", "refuse_another_server"]

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
