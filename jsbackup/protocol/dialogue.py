"""The common part of the snapshot and restore dialogues: a state that only their table changes, messages to send, an
end.

Rules of the dialogues:
- No I/O, no clock, no await. The driver sends what `to_send` returns, passes in what arrives, and owns all timers:
  after a timeout it calls `timed_out`, and after its connection was replaced `reconnected`.
- Only a table `(state, event type) → state` changes the state; a pair that is not in it violates the protocol.
- A fault of the peer or the network, or a timeout, fails the dialogue permanently: every further call that passes
  something in raises the same error, `to_send` returns nothing, and the driver starts a new dialogue.
- A mistake of the caller (a chunk too large, a release twice) is a UsageError and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, NoReturn, TypeVar

from jsbackup.errors import JsBackupError, NatsTimeout, TransferError
from jsbackup.protocol.events import Event, Publish, TransferFailed

__all__ = ["Dialogue"]

S = TypeVar("S", bound=Enum)


class Dialogue(Generic[S]):
    """State, outgoing messages and failure of one transfer. `what` begins its error messages."""

    def __init__(self, what: str, transitions: Mapping[tuple[S, type[Event]], S], first: S, done: S) -> None:
        self.what = what
        self.failure: JsBackupError | None = None
        self._transitions = transitions
        self._done = done
        self._state = first
        self._outgoing: list[Publish] = []

    @property
    def state(self) -> S:
        return self._state

    @property
    def done(self) -> bool:
        """Whether the dialogue has ended successfully."""
        return self._state is self._done

    def to_send(self) -> list[Publish]:
        """Return the messages to send now, in this order; each is returned once."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def reconnected(self) -> None:
        """Note that the connection was replaced during the transfer, so that messages may be lost without a trace.

        (Measured: a snapshot whose client reconnects can end with status 204 and a gap.) Raises TransferError, unless
        the dialogue has ended successfully.
        """
        self._check_failure()
        if not self.done:
            self._fail(TransferError(f"{self.what}: the connection was lost on the way"))

    def timed_out(self, awaited: str) -> None:
        """Note that `awaited` did not arrive in time. Raises NatsTimeout, unless the dialogue has ended
        successfully.
        """
        self._check_failure()
        if not self.done:
            self._fail(NatsTimeout(f"{self.what}: {awaited} did not come in time"))

    def _check_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _advance(self, event: Event) -> None:
        following = self._transitions.get((self._state, type(event)))
        if following is None:
            self._breach(f"unexpected {type(event).__name__} in state {self._state.name}")
        self._state = following

    def _breach(self, problem: str) -> NoReturn:
        self._fail(TransferError(f"{self.what}: {problem}"))

    def _fail(self, error: JsBackupError) -> NoReturn:
        self._state = self._transitions[self._state, TransferFailed]
        self.failure = error
        self._outgoing.clear()
        raise error
