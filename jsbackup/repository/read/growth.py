"""How streams grew from backup to backup, according to manifests: no message is read.

Backups of other origins in the same repository do not count: streams of the same name elsewhere are different streams.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from jsbackup.errors import IntegrityError, JsBackupError, KeyUnavailable, UnsupportedError, UsageError
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import BackupSummary, Manifest, summary_of
from jsbackup.repository.pages.segment_list import size_of
from jsbackup.repository.repository import Repository

__all__ = ["GrowthPoint", "growth_of"]

_log = logging.getLogger(__name__)

# A manifest takes 16 ms if streams have hundreds of segments; with thousands of streams fewer points are kept.
_MOST_POINTS, _LEAST_POINTS, _POINTS_IN_ALL = 30, 5, 200_000
_THREADS = 8


@dataclass(frozen=True, slots=True)
class GrowthPoint:
    """A stream in one backup. `created` is RFC 3339; `stored_bytes` is the size of its objects, including shared
    ones.
    """

    backup: str
    created: str
    messages: int
    bytes: int
    stored_bytes: int


def growth_of(repository: Repository, manifest: Manifest, names: Sequence[str]) -> dict[str, list[GrowthPoint]]:
    """Return for each stream the last backups up to this one that have its messages, oldest first.

    Unreadable backups are left out, with a warning in the log. Raises StoreError if the store does not answer.
    """
    origin = _origin(summary_of(manifest))
    inventory = repository.inventory()
    for backup in inventory.unreadable:
        if backup.id < manifest.id:
            _warn(backup.id, backup.error)
    earlier = [summary.id for summary in inventory.summaries if summary.id < manifest.id and _origin(summary) == origin]
    most = max(_LEAST_POINTS, min(_MOST_POINTS, _POINTS_IN_ALL // max(1, len(names))))
    wanted = frozenset(names)
    tasks = [partial(_points_of, repository, backup, wanted) for backup in earlier[-(most - 1) :]]
    growth: dict[str, list[GrowthPoint]] = {name: [] for name in names}
    for points in (*in_order(tasks, _THREADS), _points(manifest, wanted)):
        for name, point in points.items():
            growth[name].append(point)
    return growth


def _points_of(repository: Repository, backup: str, wanted: frozenset[str]) -> dict[str, GrowthPoint]:
    try:
        return _points(repository.manifest(backup), wanted)
    except (UsageError, IntegrityError, UnsupportedError, KeyUnavailable) as error:
        _warn(backup, error)
        return {}


def _warn(backup: str, error: JsBackupError) -> None:
    _log.warning("growth leaves out backup %s: %s", backup, error.message)


def _points(manifest: Manifest, wanted: frozenset[str]) -> dict[str, GrowthPoint]:
    return {
        stream.name: GrowthPoint(
            manifest.id,
            manifest.created,
            stream.captured.messages,
            stream.captured.bytes,
            size_of(stream.segments),
        )
        for stream in manifest.streams
        if stream.name in wanted and stream.archive_format.has_messages
    }


def _origin(summary: BackupSummary) -> tuple[str | None, ...]:
    return summary.cluster, summary.account, summary.domain, summary.imported
