"""What all steps of a backup share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jsbackup.config import Glob
from jsbackup.config.connection import Connection
from jsbackup.engine.link.source import KnownAccount
from jsbackup.engine.read.increment import Incremental
from jsbackup.engine.read.snapshot_transfer import CaptureLimits
from jsbackup.progress import NullProgress, Progress
from jsbackup.repository.checks.ledger import MOST_RUNS, RestoreNote, read_runs
from jsbackup.repository.document import Documents
from jsbackup.repository.manifest import BackupSummary
from jsbackup.repository.origin import Origin
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.locking import LockRequest
from jsbackup.times import parse_time

__all__ = ["BackupOptions", "BackupRun"]


@dataclass(frozen=True, slots=True)
class BackupOptions:
    """The options of the user. `streams` and `exclude` are names or globs; no `streams` means all.

    `allow_nothing` accepts a backup without the streams of earlier ones. `salvage`: a stream whose snapshot fails is
    read as far as possible. `profile` is that of the command.
    """

    streams: tuple[Glob, ...] = ()
    exclude: tuple[Glob, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    profile: str = ""
    allow_nothing: bool = False
    consumers: bool = True
    config_only: bool = False
    check: bool = False
    salvage: bool = False
    incremental: Incremental = Incremental.AUTO
    jobs: int = 4
    lock: LockRequest | None = None
    limits: CaptureLimits = field(default_factory=CaptureLimits)


class RecordedRestores:
    """The restores that the repository has a record of, read when they are first asked for."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._notes: list[RestoreNote] | None = None

    def took_back(self, origin: Origin, stream: str, since: str) -> bool:
        """Return whether a stream was restored to an earlier state after a moment (RFC 3339). Raises StoreError."""
        if self._notes is None:
            self._notes = read_runs(RestoreNote, self._documents, MOST_RUNS)
        notes = (note for note in self._notes if note.origin == origin and stream in note.streams)
        return any(parse_time(note.ended) > parse_time(since) for note in notes)


@dataclass(frozen=True, slots=True)
class BackupRun:
    """A running backup: its source, repository and options, and the sources of time and randomness.

    `many`: it reads so many streams that the store is not asked whether it still has what the last backup names of
    each. It has: no prune removes that while this run has its lease. `account` is the one that it has to be of, and
    `earlier` are all backups of its origin, oldest first, if these are known. `restores` are recorded ones.
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
    restores: RecordedRestores = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "restores", RecordedRestores(self.repository.documents))
