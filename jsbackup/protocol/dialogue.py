"""What the snapshot and the restore dialogue share: a state that only their table moves, messages to send, an end.

House rules of the dialogues:
- No I/O, no clock, no await. The driver sends what `to_send` gives, hands in what arrives, and owns all timers: when it
  has waited long enough it says `timed_out`, and when its connection was replaced it says `reconnected`.
- A table `(state, event type) → state` is the only thing that changes the state; a pair that is not in it is a breach.
- A fault of the peer, of the network or of the time fails the dialogue for good: every further call that hands
  something in raises that same error, `to_send` gives nothing, and the driver starts a new dialogue.
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
    """State, outgoing messages and failure of one transfer. `what` opens the messages of its errors."""

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
        """The dialogue came to its good end."""
        return self._state is self._done

    def to_send(self) -> list[Publish]:
        """The messages to send now, in this order; each is given once."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def reconnected(self) -> None:
        """The connection was replaced under a running transfer: what was on its way may be lost without a trace.

        (measured: a snapshot whose client reconnects can end with status 204 and a hole.) Raises TransferError, unless
        the dialogue is at its good end.
        """
        self._check_failure()
        if not self.done:
            self._fail(TransferError(f"{self.what}: the connection was lost on the way"))

    def timed_out(self, awaited: str) -> None:
        """The driver waited for `awaited` in vain. Raises NatsTimeout, unless the dialogue is at its good end."""
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
