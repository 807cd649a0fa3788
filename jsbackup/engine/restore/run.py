"""What all steps of a restore or a clone share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from jsbackup.config import Connection
from jsbackup.engine.restore.partial_proof import ProofLevel
from jsbackup.engine.restore.restore_transfer import TransmitLimits
from jsbackup.planning.model import RestoreOptions
from jsbackup.progress import NullProgress, Progress

__all__ = ["Complete", "RestoreRun", "RestoreSettings"]

T = TypeVar("T")


class Complete(Protocol):
    """Runs a coroutine to its end, in an event loop of the caller. Raises Interrupted if the caller is interrupted."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """Settings of a restore. `mask_secret` is the key for hashing values.

    `partial` reads and checks all objects before anything is changed, and restores the rest if some are lost.
    """

    jobs: int = 4
    proof: ProofLevel = ProofLevel.FULL
    partial: bool = False
    limits: TransmitLimits = field(default_factory=TransmitLimits)
    mask_secret: bytes = field(default=b"", repr=False)

    @property
    def verify(self) -> bool:
        """Whether anything is compared."""
        return self.proof is not ProofLevel.NONE

    @property
    def passes(self) -> int:
        """How often the bytes of a stream are moved."""
        return 2 if self.proof is ProofLevel.FULL else 1


@dataclass(frozen=True, slots=True)
class RestoreRun:
    """A running restore or clone: its target, options and settings, and the sources of time and randomness."""

    connection: Connection
    options: RestoreOptions
    settings: RestoreSettings = field(default_factory=RestoreSettings)
    progress: Progress = field(default_factory=NullProgress)
    now_ns: Callable[[], int] = time.time_ns
    random: Callable[[int], bytes] = os.urandom
