"""The options of a backup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jsbackup.config import Glob
from jsbackup.engine.read.increment import Incremental
from jsbackup.engine.read.snapshot_acks import CaptureLimits
from jsbackup.repository.write.locking import LockRequest

__all__ = ["BackupOptions"]


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
