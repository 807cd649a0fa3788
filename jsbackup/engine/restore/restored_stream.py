"""The result of restoring or cloning a stream."""

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
    """The state of a stream that copies from others. `waiting` are origins that it has not heard from."""

    settled: bool
    new_messages: int
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RestoredStream:
    """A stream at the target. `verified` is False only if no proof was requested or none is possible.

    `lost` is what the repository no longer has; numbers and proof are those of the rest.
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
