"""What all steps of a backup share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from jsbackup.config import Connection
from jsbackup.engine.backup.options import BackupOptions
from jsbackup.progress import NullProgress, Progress
from jsbackup.repository.repository import Repository

__all__ = ["BackupRun"]


@dataclass(frozen=True, slots=True)
class BackupRun:
    """A running backup: its source, repository and options, and the sources of time and randomness.

    `many`: it reads so many streams that the store is not asked whether it still has what the last backup names of
    each. It has: no prune removes that while this run has its lease.
    """

    connection: Connection
    repository: Repository
    options: BackupOptions
    progress: Progress = field(default_factory=NullProgress)
    clock_ns: Callable[[], int] = time.time_ns
    random: Callable[[int], bytes] = os.urandom
    many: bool = False
