"""What all steps of a backup share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jsbackup.config import Connection
from jsbackup.engine.backup.options import BackupOptions
from jsbackup.engine.link.source import KnownAccount
from jsbackup.progress import NullProgress, Progress
from jsbackup.repository.repository import Repository
from jsbackup.repository.summary import BackupSummary

__all__ = ["BackupRun"]


@dataclass(frozen=True, slots=True)
class BackupRun:
    """A running backup: its source, repository and options, and the sources of time and randomness.

    `many`: it reads so many streams that the store is not asked whether it still has what the last backup names of
    each. It has: no prune removes that while this run has its lease. `account` is the one that it has to be of, and
    `earlier` are all backups of its origin, oldest first, if these are known.
    """

    connection: Connection
    repository: Repository
    options: BackupOptions
    progress: Progress = field(default_factory=NullProgress)
    clock_ns: Callable[[], int] = time.time_ns
    random: Callable[[int], bytes] = os.urandom
    many: bool = False
    account: KnownAccount | None = None
    earlier: Sequence[BackupSummary] | None = None
