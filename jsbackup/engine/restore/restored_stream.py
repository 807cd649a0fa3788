"""The result of restoring or cloning a stream."""

from __future__ import annotations

from dataclasses import dataclass

from jsbackup.engine.restore.partial_proof import ProofLevel
from jsbackup.model import Fidelity
from jsbackup.planning.model import SendAs
from jsbackup.repository.checks.verify import Problem

__all__ = ["Copying", "RestoredConsumer", "RestoredStream"]


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
