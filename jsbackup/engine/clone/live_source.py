"""The source of a clone: one stream of a server, and how it is reshaped.

The end of a cut stream is only known when all of it was read: until then its state does not end later than it will.

**The newest messages** of each subject (`LiveNewest`), of a stream that is written to while it is cloned.

Which ones they are is found before the messages are sent, in a reading of its own: without payloads, unless these are
filtered. Of what comes after that reading all is sent. In the end, messages that are not the newest any more are
superseded, and deleted at the target. So the copy has the newest messages of the source as it was when it was read to
its end; except that one that was deleted meanwhile is not replaced by an older one.

All subjects are in memory, as they are in that of the servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.engine.link.concurrency import in_thread
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.consume import read_messages
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import Fidelity, StreamState
from jsbackup.planning.model import PlannedConsumer, RestorePlan, SendAs
from jsbackup.progress import ignored
from jsbackup.repository.manifest import StreamBackup
from jsbackup.server_state import clamp_state
from jsbackup.transforms.batches import SEQUENCE, with_column
from jsbackup.transforms.cut import AtSequence, AtTime
from jsbackup.transforms.filters.newest import NewestFinder, rows_of_subjects
from jsbackup.transforms.filters.rising import RisingSequences
from jsbackup.transforms.renumber import renumbered_consumer, renumbered_state
from jsbackup.transforms.reshape import Reshape, ReshapeTally

__all__ = ["CloneSource", "Replan", "look_for_newest"]

_ANY_SIZE = 1 << 62
_SIZE_HEADER = "nats-msg-size"  # added by servers where a consumer gets no payloads


class LiveNewest:
    """What is known of the newest messages. `chosen` grows with what comes after sequence `end`."""

    def __init__(self, finder: NewestFinder, keeping: Reshape, end: int) -> None:
        self._finder = finder
        self._keeping = keeping
        self._end = end
        self.chosen = RisingSequences.of(finder.sequences())

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages that are about to be sent; later ones than before are chosen too."""
        for batch in batches:
            if batch.num_rows and batch.column("sequence")[-1].as_py() > self._end:
                self._choose(batch.filter(pc.greater(batch.column("sequence"), self._end)))
            yield batch

    def superseded(self) -> SequenceSet:
        """Return the chosen messages that are not the newest any more."""
        newest, chosen = self._finder.sequences(), self.chosen.array()
        return SequenceSet(chosen.filter(pc.invert(pc.is_in(chosen, value_set=newest))).to_pylist())

    def _choose(self, later: pa.RecordBatch) -> None:
        for kept in self._keeping.apply([later], stream=""):
            self._finder.add(rows_of_subjects(kept, self._finder.rule))
            self.chosen.add(kept.column("sequence"))


async def look_for_newest(js: JetStream, stream: str, reshape: Reshape) -> LiveNewest | None:
    """Read a stream, and return what `reshape.newest` keeps of it; None if all is kept.

    Raises NatsError, FormatError and UnsupportedError.
    """
    if reshape.newest is None:
        return None
    keeping = replace(reshape.keeping, newest=None)
    finder = NewestFinder(reshape.newest, most_bytes=_ANY_SIZE)
    info = await js.stream(stream, deleted_details=True)
    async for batch in read_messages(js, info, ignored, only=_only(keeping)):
        for kept in keeping.apply([batch], stream=stream):
            await in_thread(finder.add, rows_of_subjects(kept, reshape.newest))
    return LiveNewest(finder, keeping, info.state.last_seq)


def _only(keeping: Reshape) -> dict[str, bool]:
    """Return what the reading can do without."""
    filters = keeping.filters
    named = any(rule.name.lower() == _SIZE_HEADER for rule in filters.header)
    return {} if named or "data" in filters.columns else {"headers_only": True}


Replan = Callable[[StreamBackup, SendAs], RestorePlan]
"""Makes a plan for one stream as it was found, to be sent in this way."""


@dataclass(frozen=True, slots=True)
class CloneSource:
    """The stream `name` of the server behind `js`, reshaped by `reshape`.

    `consumers` are those that are already known, by name. `secret` is the key for hashing values. `newest` knows what
    `reshape` keeps, if that are the newest messages of each subject.
    """

    js: JetStream
    name: str
    replan: Replan
    consumers: Mapping[str, PlannedConsumer] | None = None
    reshape: Reshape = field(default_factory=Reshape)
    secret: bytes = field(default=b"", repr=False)
    newest: LiveNewest | None = None

    def reshaped(
        self, batches: Iterable[pa.RecordBatch], tally: ReshapeTally | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Return the messages as they are sent. Raises as `Reshape.apply`."""
        if not self.reshape:
            return iter(batches)
        if self.newest is not None:
            batches = self.newest.watch(batches)
        return self.reshape.apply(batches, stream=self.name, secret=self.secret, tally=tally)

    def reshaped_again(
        self, batches: Iterable[pa.RecordBatch], numbers: RisingSequences | None
    ) -> Iterator[pa.RecordBatch]:
        """Return messages that are read once more as they were sent; `numbers` are those with new sequences."""
        if numbers is None:
            yield from self.reshape.apply(batches, stream=self.name, secret=self.secret) if self.reshape else batches
            return
        again = replace(self.reshape, renumber=False)
        for batch in again.apply(batches, stream=self.name, secret=self.secret):
            kept = batch.filter(numbers.rows(batch.column(SEQUENCE)))
            ranks = [numbers.rank(sequence) for sequence in kept.column(SEQUENCE).to_pylist()]
            yield with_column(kept, SEQUENCE, pa.array(ranks, pa.int64()))

    def state_before(self, state: StreamState) -> StreamState:
        """Return the state at the beginning, as far as it is known; later messages move its end."""
        if self.reshape.renumber:
            return replace(state, first_seq=1, last_seq=0, last_ns=0)
        until = self.reshape.cut.until
        if isinstance(until, AtSequence) and until.sequence < state.last_seq:
            return replace(state, last_seq=until.sequence, last_ns=0)
        if isinstance(until, AtTime) and not 0 < state.last_ns <= until.time_ns:
            return replace(state, last_seq=0, last_ns=0)
        return state

    def state_after(self, state: StreamState, tally: ReshapeTally, size: int, wire: SendAs) -> StreamState:
        """Return the state after everything was sent, in `size` bytes, of a stream that had `state`.

        In v2 the state comes first. So with a cut in time, whose end is not known before, the stream ends with its last
        message.
        """
        if self.reshape.renumber:
            count, times = tally.kept.messages, (tally.kept.first_ns, tally.kept.last_ns)
            first_ns, last_ns = times if count else (0, 0)
            renumbered = replace(state, messages=count, bytes=size, first_seq=1 if count else 0, last_seq=count)
            return replace(renumbered, first_ns=first_ns, last_ns=last_ns, deleted=0)
        if not self.reshape.drops:
            return state
        came = tally.came
        before = replace(
            state, first_seq=came.first_seq or state.first_seq, last_seq=max(state.last_seq, came.last_seq)
        )
        kept = tally.kept
        after = self.reshape.cut.state_after(before, came.last_seq, tally.cut, kept, size=size)
        if wire is not SendAs.V2 or not isinstance(self.reshape.cut.until, AtTime) or not kept.messages:
            return after
        gone = after.last_seq - kept.last_seq
        return replace(after, last_seq=kept.last_seq, last_ns=kept.last_ns, deleted=after.deleted - gone)

    def placed(self, planned: PlannedConsumer, wire: SendAs, last_seq: int, tally: ReshapeTally) -> PlannedConsumer:
        """Return a consumer as it can be sent, given the end of the stream at the source.

        In v2 states come first, when the sequence of a cut in time and new sequences are not known yet.
        """
        if wire is SendAs.V2 and (self.reshape.renumber or isinstance(self.reshape.cut.until, AtTime)):
            what = "--renumber its new position" if self.reshape.renumber else "--until TIME the end of the stream"
            note = f"starts from its beginning: with {what} is not known before"
            # From the first message on, so that none is left out.
            start = {"opt_start_seq": 1} if planned.consumer.config.get("opt_start_seq") else {}
            config = {**planned.consumer.config, **start} if self.reshape.renumber else planned.consumer.config
            consumer = replace(planned.consumer, config=config, state=None)
            return replace(planned, consumer=consumer, fidelity=Fidelity.CONFIG_ONLY, note=note)
        if not self.reshape.renumber:
            return planned
        state = planned.consumer.state
        if state is not None:
            state = renumbered_state(clamp_state(state, last_seq, tally.numbered), tally.numbered)
        config = renumbered_consumer(planned.consumer.config, tally.numbered)
        return replace(planned, consumer=replace(planned.consumer, config=config, state=state))
