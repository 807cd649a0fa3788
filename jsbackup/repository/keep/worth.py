"""What a backup is worth beside those before it: whether a server that has lost its streams was backed up.

A backup that finds nothing of what an earlier one of the same streams had is partial from its making on
(`engine/backup/emptied.py`). Those that older tools made say that they are complete; they are told here by their
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

from jsbackup.repository.manifest import Result
from jsbackup.repository.summary import BackupSummary

__all__ = ["find_hollow"]


def find_hollow(line: Iterable[BackupSummary]) -> frozenset[str]:
    """Ids of backups without any stream, although a complete one before it had messages; `line` is oldest first.

    The backups have to be of one group (`retention.py`); of those of configurations streams count for messages. An
    account that never had any, or of which `backup --allow-empty` was told that it has none any more, is backed up as
    it should be.
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
