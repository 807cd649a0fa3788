"""What all steps of a restore or a clone need."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from jsbackup.config import Connection
from jsbackup.engine.restore.restore_transfer import TransmitLimits
from jsbackup.planning.model import RestoreOptions
from jsbackup.progress import NullProgress, Progress

__all__ = ["RestoreRun", "RestoreSettings"]


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """How to go about it. `window_bytes` may be on the way unacknowledged; None is what suits the link.

    `partial` restores what is left where objects are lost, which otherwise refuses everything. `mask_secret` is what
    values are hashed with.
    """

    jobs: int = 4
    window_bytes: int | None = None
    verify: bool = True
    partial: bool = False
    limits: TransmitLimits = field(default_factory=TransmitLimits)
    mask_secret: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class RestoreRun:
    """Streams that are brought to a server now: to which, which and as what, how, and by which clock."""

    connection: Connection
    options: RestoreOptions
    settings: RestoreSettings = field(default_factory=RestoreSettings)
    progress: Progress = field(default_factory=NullProgress)
    now_ns: Callable[[], int] = time.time_ns
    random: Callable[[int], bytes] = os.urandom
