"""Messages that a server has and did not deliver in a reading of the whole stream: then it contradicts itself.

Seen with 2.12.8, a stream with schedules and roll-ups: a snapshot, and the number of messages, lacked a sequence that
was not among the deleted ones, and that STREAM.MSG.GET returned before and after. So what was delivered is compared
with the sequences that the server lists afterwards: what a stream has then, it had before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

import pyarrow as pa

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.increment import PresentSequences
from jsbackup.engine.read.snapshot_transfer import Sink
from jsbackup.errors import NatsPermissionDenied
from jsbackup.protocol.info import StreamInfo
from jsbackup.transforms.filters.rising import RisingSequences

__all__ = ["Seen", "find_undelivered"]

_WINDOW = 1 << 20  # sequences
_MOST_ASKED = 100


class Seen:
    """A sink that passes messages on and remembers their `sequences`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.sequences = RisingSequences()

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self.sequences.add(batch.column("sequence"))
        self._sink.add(batch)


async def find_undelivered(
    js: JetStream, now: StreamInfo, seen: RisingSequences, last_seq: int, *, removed: Iterable[int] = ()
) -> list[int]:
    """Return sequences up to `last_seq`, the first ones, that a reading has not `seen`, or `removed` as deleted,
    although the stream has them `now`: by its list of deleted ones, and by a request for each.
    """
    if now.deleted is None and now.state.deleted:
        return []
    present = PresentSequences(now.state, now.deleted or ())
    undelivered: list[int] = []
    again = (sequence for sequence in removed if sequence <= last_seq and sequence in present)
    for sequence in islice(chain(again, _lacking(present, seen, last_seq)), _MOST_ASKED):
        try:
            message = await js.message(now.name, sequence)
        except NatsPermissionDenied:
            break
        undelivered += [sequence] if message is not None else []
    return undelivered


def _lacking(present: PresentSequences, seen: RisingSequences, last_seq: int) -> Iterator[int]:
    """Yield the sequences that are present and were not seen."""
    for first in range(max(present.first, 1), min(present.last, last_seq) + 1, _WINDOW):  # of an unused stream it is 0
        last = min(first + _WINDOW - 1, present.last, last_seq)
        if seen.rank(last) - seen.rank(first - 1) < last - first + 1 - len(present.deleted.within(first, last)):
            held = set(seen.within(first, last).array().to_pylist())
            yield from (sequence for sequence in present.within(first, last) if sequence not in held)
