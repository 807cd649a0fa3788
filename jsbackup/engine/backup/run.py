"""What all steps of a backup need."""

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
    """A backup that is made now: of what, into which repository, how, and by which clock."""

    connection: Connection
    repository: Repository
    options: BackupOptions
    progress: Progress = field(default_factory=NullProgress)
    clock_ns: Callable[[], int] = time.time_ns
    random: Callable[[int], bytes] = os.urandom
