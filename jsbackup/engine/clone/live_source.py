"""The source of a clone: one stream of a server, and how it is reshaped.

The end of a cut stream is only known when all of it was read: until then its state does not end later than it will.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.model import Fidelity, StreamState
from jsbackup.planning.model import PlannedConsumer, RestorePlan, SendAs
from jsbackup.repository.manifest import StreamBackup
from jsbackup.transforms.cut import AtSequence, AtTime
from jsbackup.transforms.reshape import Reshape, ReshapeTally

__all__ = ["CloneSource", "Replan"]

Replan = Callable[[StreamBackup, SendAs], RestorePlan]
"""Makes a plan for one stream as it was found, to be sent in this way."""


@dataclass(frozen=True, slots=True)
class CloneSource:
    """The stream `name` of the server behind `js`, reshaped by `reshape`.

    `consumers` are those that are already known, by name. `secret` is the key for hashing values.
    """

    js: JetStream
    name: str
    replan: Replan
    consumers: Mapping[str, PlannedConsumer] | None = None
    reshape: Reshape = field(default_factory=Reshape)
    secret: bytes = field(default=b"", repr=False)

    def reshaped(
        self, batches: Iterable[pa.RecordBatch], tally: ReshapeTally | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Return the messages as they are sent. Raises as `Reshape.apply`."""
        if not self.reshape:
            return iter(batches)
        return self.reshape.apply(batches, stream=self.name, secret=self.secret, tally=tally)

    def state_before(self, state: StreamState) -> StreamState:
        """Return the state at the beginning, as far as it is known; later messages move its end."""
        until = self.reshape.cut.until
        if isinstance(until, AtSequence) and until.sequence < state.last_seq:
            return replace(state, last_seq=until.sequence, last_ns=0)
        if isinstance(until, AtTime) and not 0 < state.last_ns <= until.time_ns:
            return replace(state, last_seq=0, last_ns=0)
        return state

    def state_after(self, state: StreamState, tally: ReshapeTally, size: int) -> StreamState:
        """Return the state after everything was sent, in `size` bytes, of a stream that had `state`."""
        if not self.reshape.drops:
            return state
        came = tally.came
        before = replace(
            state, first_seq=came.first_seq or state.first_seq, last_seq=max(state.last_seq, came.last_seq)
        )
        return self.reshape.cut.state_after(before, came.last_seq, tally.cut, tally.kept, size=size)

    def placed(self, planned: PlannedConsumer, wire: SendAs) -> PlannedConsumer:
        """Return a consumer as it can be sent: in v2 states come first, when the sequence of a cut in time is not known
        yet.
        """
        if wire is not SendAs.V2 or not isinstance(self.reshape.cut.until, AtTime):
            return planned
        note = "starts from its beginning: with --until TIME the end of the stream is not known before"
        return replace(
            planned, consumer=replace(planned.consumer, state=None), fidelity=Fidelity.CONFIG_ONLY, note=note
        )
