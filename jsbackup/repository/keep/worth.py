"""Backups that show that a server has lost its streams.

Such a backup has nothing of what an earlier one of the same streams had. New ones are marked as partial when they are
made (`engine/backup/emptied.py`). Those of older tools are marked as complete; here they are recognized by their
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

from jsbackup.repository.manifest import Result
from jsbackup.repository.summary import BackupSummary

__all__ = ["find_hollow"]


def find_hollow(line: Iterable[BackupSummary]) -> frozenset[str]:
    """Return the ids of backups without any stream after a complete one that had messages; `line` is oldest first.

    The backups must be of one group (`retention.py`); for configurations, streams count instead of messages. The
    backups of an account that never had streams are fine, and so is one with `backup --allow-nothing`.
    """
    found: set[str] = set()
    full = False
    for backup in line:
        if backup.selection.allow_empty and not backup.streams:
            full = False
        elif backup.streams:
            something = backup.messages or backup.selection.config_only
            full = full or (bool(something) and backup.result is Result.COMPLETE)
        elif full:
            found.add(backup.id)
    return frozenset(found)
