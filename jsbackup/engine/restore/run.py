"""What all steps of a restore or a clone share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from jsbackup.config.connection import Connection
from jsbackup.engine.restore.proof import ProofLevel
from jsbackup.engine.restore.send_archive import TransmitLimits
from jsbackup.model import Fidelity
from jsbackup.planning.model import RestoreOptions, SendAs
from jsbackup.progress import NullProgress, Progress
from jsbackup.repository.checks.verify import Problem

__all__ = ["Complete", "Copying", "RestoreRun", "RestoreSettings", "RestoredConsumer", "RestoredStream"]


@dataclass(frozen=True, slots=True)
class RestoredConsumer:
    """A consumer at the target. `note` says what differs ("" if nothing).

    `may_come_again` is the most messages that it gets again, including those that awaited acknowledgement; None if
    unknown.
    """

    name: str
    fidelity: Fidelity
    note: str = ""
    may_come_again: int | None = None


@dataclass(frozen=True, slots=True)
class Copying:
    """The state of a stream that copies from others. `waiting` are origins that it has not heard from."""

    settled: bool
    new_messages: int
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RestoredStream:
    """A stream at the target. `proof` is how much was compared, none if that was not requested or is not possible.

    `lost` is what the repository no longer has; numbers and proof are those of the rest. It could be used from
    `usable_ns` on; `seconds` is how long it was worked on, without waiting for its proof. `behind`: not all of its
    replicas were current then.
    """

    name: str
    as_name: str
    messages: int
    bytes: int
    digest: str
    proof: ProofLevel
    wire: SendAs
    seconds: float = 0.0
    consumers: tuple[RestoredConsumer, ...] = ()
    notes: tuple[str, ...] = ()
    incomplete: bool = False
    lost: tuple[Problem, ...] = ()
    copying: Copying | None = None
    usable_ns: int = 0
    behind: bool = False

    @property
    def lost_messages(self) -> int:
        return sum(problem.messages for problem in self.lost)

    @property
    def verified(self) -> bool:
        """Whether every message was compared."""
        return self.proof is ProofLevel.FULL


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
