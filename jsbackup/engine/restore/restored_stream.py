"""What became of a stream that was restored or cloned."""

from __future__ import annotations

from dataclasses import dataclass

from jsbackup.engine.restore.after_restore import (
    RestoredConsumer,
)
from jsbackup.planning.model import SendAs
from jsbackup.repository.checks.verify import Problem

__all__ = ["Copying", "RestoredStream"]


@dataclass(frozen=True, slots=True)
class Copying:
    """What a stream that copies from others did when it was there. `waiting` are origins that it has not heard of."""

    settled: bool
    new_messages: int
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RestoredStream:
    """A stream at the target. `verified` is False only where no proof was asked for or none is possible.

    `lost` is what the repository no longer has of it; numbers and proof are those of the rest.
    """

    name: str
    as_name: str
    messages: int
    bytes: int
    digest: str
    verified: bool
    wire: SendAs
    seconds: float = 0.0
    consumers: tuple[RestoredConsumer, ...] = ()
    notes: tuple[str, ...] = ()
    incomplete: bool = False
    lost: tuple[Problem, ...] = ()
    copying: Copying | None = None
